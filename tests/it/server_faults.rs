//! Servers that end, kill or forget sessions, crash and come back, and a pool that is full.

use std::time::Duration;

use leasehold::{LossCause, Release};
use leasehold_testkit::{Cluster, StopMode, eventually};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::SOON;
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn terminated_backend_is_replaced_and_no_lease_is_lost() {
    let (db, name, application) = (TestDb::shared().await, unique_name!(), application());
    let leases = db
        .as_application(&application)
        .builder()
        .ttl(Duration::from_secs(10))
        .build()
        .unwrap();
    let mut held = Vec::new();

    // Before the first lease, and with more and more of them.
    for round in 0..4 {
        held.push(leases.acquire(format!("{name}:{round}")).await.unwrap());
        let backend = db.lane_backend(&application).await;
        let ended: bool = sqlx::query_scalar("select pg_terminate_backend($1, 10000)")
            .bind(backend)
            .fetch_one(&db.pool)
            .await
            .unwrap();
        assert!(ended);
        if round % 2 == 0 {
            let passing = leases.acquire(format!("{name}:passing")).await.unwrap();
            assert_eq!(passing.release().await.unwrap(), Release::Released);
        }
        for lease in &held {
            lease.renew().await.unwrap();
        }
    }

    for (round, lease) in held.into_iter().enumerate() {
        let row = db.row(&format!("{name}:{round}")).await.unwrap();
        assert_eq!((row.token, row.is_held()), (lease.fencing_token().get(), true));
        assert_eq!(lease.release().await.unwrap(), Release::Released);
    }
    assert_eq!(db.backends(&application).await.len(), 1);
}

#[tokio::test]
async fn crashed_server_comes_back_with_its_leases_and_higher_tokens() {
    let cluster = Cluster::start().await;
    let db = TestDb::with(cluster.options());
    db.install_schema().await;
    let leases = db.builder().ttl(MINUTE).answer_within(SOON).build().unwrap();
    let lease = leases.acquire("kept").await.unwrap();
    let mut newest = lease.fencing_token();

    for round in 0..3 {
        let brief = leases.acquire("brief").ttl(MINUTE / 120).await.unwrap();
        match round {
            0 => cluster.kill_postmaster().await,
            1 => cluster.stop(StopMode::Immediate).await,
            _ => cluster.stop(StopMode::Fast).await,
        }
        let waiting = tokio::spawn(leases.acquire(format!("asked-while-down:{round}")).into_future());
        let lost = timeout(SOON, brief.lost()).await.unwrap();
        cluster.restart().await;

        // Lost on this side, so it is lost, although the row may still be there.
        assert_eq!(lost.cause, LossCause::Expired);
        assert!(!brief.is_held());
        brief.release().await.unwrap();
        let next = leases.acquire("brief").wait_at_most(SOON).await.unwrap();
        assert!(next.fencing_token() > newest);
        newest = next.fencing_token();
        assert_eq!(next.release().await.unwrap(), Release::Released);

        lease.renew().await.unwrap();
        assert!(lease.is_held());
        assert_eq!(db.row("kept").await.unwrap().token, lease.fencing_token().get());
        let served = waiting.await.unwrap().unwrap();
        assert_eq!(served.release().await.unwrap(), Release::Released);
    }

    assert_eq!(lease.release().await.unwrap(), Release::Released);
    let held: i64 = sqlx::query_scalar("select count(*) from leasehold.held")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(held, 0);
}

#[tokio::test]
async fn server_that_ends_idle_sessions_costs_neither_leases_nor_answers() {
    let db = TestDb::own("faults_idle").await;
    db.pool
        .execute("alter database faults_idle set idle_session_timeout = '200ms'")
        .await
        .unwrap();
    let watcher = TestDb::with(db.options.clone().options([("idle_session_timeout", "0")]));
    let (name, application, proxy) = (unique_name!(), application(), db.proxy());
    let leases = db
        .as_application(&application)
        .through(&proxy)
        .builder()
        .ttl(MINUTE / 10)
        .build()
        .unwrap();
    let lease = leases.acquire(&name).await.unwrap();

    // Its renewals come two seconds apart, each to a session that is gone.
    eventually(SOON, "several sessions were ended", async || proxy.accepted() >= 3).await;
    lease.renew().await.unwrap();
    for _ in 0..3 {
        eventually(SOON, "the session is ended", async || {
            watcher.backends(&application).await.is_empty()
        })
        .await;
        let other = leases.try_acquire(format!("{name}:other")).await.unwrap().unwrap();
        eventually(SOON, "the session is ended", async || {
            watcher.backends(&application).await.is_empty()
        })
        .await;
        assert_eq!(other.release().await.unwrap(), Release::Released);
    }

    assert!(lease.is_held());
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn grant_that_an_old_connection_makes_after_its_release_is_undone() {
    let db = TestDb::own("faults_ghost").await;
    db.pool.execute(AssertSqlSafe(GATE)).await.unwrap();
    let (name, application, proxy) = (unique_name!(), application(), db.proxy());
    let leases = db.as_application(&application).through(&proxy).client();
    // Its renewals make the lane give up a connection that does not answer.
    let companion = leases
        .acquire(format!("{name}:companion"))
        .ttl(MINUTE / 20)
        .await
        .unwrap();
    let mut gatekeeper = db.session().await;
    gatekeeper.execute("select pg_advisory_lock(7)").await.unwrap();

    let acquiring = tokio::spawn(leases.acquire(&name).ttl(MINUTE).holder("slow").into_future());
    eventually(SOON, "the connection is given up", async || {
        db.backends(&application).await.len() == 2
    })
    .await;
    let released = proxy.wait_for_execute("leasehold.release");
    acquiring.abort();
    timeout(SOON, released)
        .await
        .expect("a release is sent for whoever has gone");
    // The compensating release has found nothing; only now is the grant made.
    let granted_before = db.row(&name).await.map_or(0, |row| row.token);
    gatekeeper.execute("select pg_advisory_unlock(7)").await.unwrap();
    eventually(SOON, "the grant is made", async || {
        db.row(&name).await.is_some_and(|row| row.token > granted_before)
    })
    .await;

    db.assert_free_soon(&name).await;
    eventually(SOON, "the old session is gone", async || {
        db.backends(&application).await.len() == 1
    })
    .await;
    assert!(!db.is_held(&name).await);
    assert!(companion.is_held());
    let next = leases.try_acquire(&name).await.unwrap().unwrap();
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn full_pool_keeps_nobody_from_acquiring_renewing_and_releasing() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect_with(db.options.clone())
        .await
        .unwrap();
    let (mut first, mut second) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    let leases = leasehold::LeaseClient::builder(pool.clone())
        .ttl(MINUTE / 20)
        .build()
        .unwrap();

    let mut held = Vec::new();
    for number in 0..8 {
        held.push(leases.acquire(format!("{name}:{number}")).await.unwrap());
    }
    let before = db.row(&format!("{name}:0")).await.unwrap();
    eventually(SOON, "the lease has outlived its ttl", async || {
        let age =
            "select extract(epoch from clock_timestamp() - acquired_at)::float8 from leasehold.locks where name = $1";
        let age: f64 = sqlx::query_scalar(age)
            .bind(format!("{name}:0"))
            .fetch_one(&db.pool)
            .await
            .unwrap();
        age > 4.0
    })
    .await;

    assert_eq!((pool.size(), pool.num_idle()), (2, 0), "the pool is full");
    for lease in held {
        assert!(lease.is_held());
        lease.renew().await.unwrap();
        assert_eq!(lease.release().await.unwrap(), Release::Released);
    }
    let after = db.row(&format!("{name}:0")).await.unwrap();
    assert_eq!((after.token, after.is_held()), (before.token, false));
    first.execute("select 1").await.unwrap();
    second.execute("select 1").await.unwrap();
}

fn application() -> String {
    format!("faults-{}", Uuid::new_v4())
}

/// Holds the grant of a slow holder up inside its statement, until the gate is opened.
const GATE: &str = "
    create function public.gate() returns trigger language plpgsql as $$
    begin
        while not pg_try_advisory_xact_lock_shared(7) loop
            perform pg_sleep(0.01);
        end loop;
        return new;
    end
    $$;

    create trigger gate before update on leasehold.locks
        for each row when (new.holder = 'slow' and old.holder is distinct from 'slow')
        execute function public.gate()";

const MINUTE: Duration = Duration::from_secs(60);
