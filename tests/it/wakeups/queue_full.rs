//! The server's queue of notifications is full: a release that tells somebody is undone at its
//! commit, so it goes again and tells nobody.

use leasehold::{LeaseClient, Release};
use leasehold_testkit::{Cluster, eventually};
use sqlx::PgConnection;
use tokio::time::timeout;
use tracing::Level;

use super::{QUICK_BEAT, Waiting, asleep, listening, waiters, warnings};
use crate::support::heard::Heard;
use crate::support::install::run;
use crate::support::sql;
use crate::support::{LONG, SOON, TestDb};

#[tokio::test]
async fn release_that_the_full_queue_undoes_is_sent_again_once_without_a_wake_up() {
    let (heard, _listening) = Heard::listen();
    let db = full("wakeups_queue_full").await;
    let (leases, others) = (client(&db), client(&db));
    let held = leases.acquire("a").ttl(LONG).await.unwrap();
    let waiter = tokio::spawn(others.acquire("a").into_future());
    asleep(&db, &others, "a", 1).await;

    let released = held.release().await;

    assert_eq!(released.unwrap(), Release::Released);
    assert_eq!((refused(&db).await, told_so(&heard)), (1, 1));
    let next = timeout(SOON, waiter).await.expect("the heartbeat serves").unwrap();
    assert_eq!(next.unwrap().release().await.unwrap(), Release::Released);
    assert_eq!((refused(&db).await, told_so(&heard)), (1, 1), "nobody waited any more");
}

#[tokio::test]
async fn releases_in_one_statement_that_the_full_queue_undoes_are_sent_again_once() {
    let (heard, _listening) = Heard::listen();
    let db = full("wakeups_queue_full_many").await;
    let (leases, others) = (client(&db), client(&db));
    let (mut held, mut waiters) = (Vec::new(), Vec::new());
    for name in (0..NAMES).map(|number| number.to_string()) {
        held.push(leases.acquire(&name).ttl(LONG).await.unwrap());
        waiters.push(tokio::spawn(others.acquire(&name).into_future()));
        asleep(&db, &others, &name, 1).await;
    }

    let released: Vec<_> = held.into_iter().map(|lease| tokio::spawn(lease.release())).collect();
    for released in released {
        assert_eq!(released.await.unwrap().unwrap(), Release::Released);
    }

    // The first goes alone, or all together.
    let statements = told_so(&heard);
    assert!((1..=2).contains(&statements), "{statements} statements were undone");
    for waiter in waiters {
        let next = timeout(SOON, waiter).await.expect("the heartbeat serves").unwrap();
        assert_eq!(next.unwrap().release().await.unwrap(), Release::Released);
    }
    assert_eq!(told_so(&heard), statements);
}

#[tokio::test]
async fn lease_that_is_dropped_is_released_although_the_queue_is_full() {
    let db = full("wakeups_queue_full_drop").await;
    let (leases, others) = (client(&db), client(&db));
    let held = leases.acquire("a").ttl(LONG).await.unwrap();
    let waiter = tokio::spawn(others.acquire("a").into_future());
    asleep(&db, &others, "a", 1).await;

    drop(held);

    let next = timeout(SOON, waiter).await.expect("the heartbeat serves").unwrap();
    assert_eq!(next.unwrap().release().await.unwrap(), Release::Released);
    assert_eq!(refused(&db).await, 1);
}

/// Whoever leaves a full queue behind him is passed over all the same, and nobody else with him.
#[tokio::test]
async fn first_in_line_leaves_and_the_next_is_served_although_the_queue_is_full() {
    let db = full("wakeups_queue_full_leave").await;
    let (leases, others) = (client(&db), client(&db));
    let waiting = Waiting::begin(&db, &leases).await;
    let name = waiting.grant.name.clone();
    let next = tokio::spawn(others.acquire(&name).into_future());
    asleep(&db, &others, &name, 2).await;
    let (mut holder, grant) = (waiting.holder, waiting.grant);

    waiting.waiter.abort();
    let sql = "select leasehold.release($1, $2, wake => false)";
    let freed = sqlx::query_scalar(sql).bind(&name).bind(grant.owner);
    let freed: String = freed.fetch_one(&mut holder).await.unwrap();
    let served = timeout(SOON, next).await.expect("it is served");

    assert_eq!(freed, "released");
    served.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn queue_that_is_really_full_undoes_neither_releases_nor_leaves_nor_heartbeats() {
    let Some(bin) = std::env::var_os("LEASEHOLD_PG17_BIN") else {
        let why = "LEASEHOLD_PG17_BIN names no server of PostgreSQL 17 or newer, which may have a small queue";
        eprintln!("left out: {why}");
        return;
    };
    let (heard, _listening) = Heard::listen();
    let cluster = Cluster::builder().bin_dir(bin).setting("max_notify_queue_pages", "64");
    let cluster = cluster.start().await;
    let db = TestDb::with(cluster.options());
    db.install_schema().await;
    let pool = db.as_application("leasehold");
    let (leases, others) = (client(&pool), client(&pool));
    let held = leases.acquire("a").ttl(LONG).await.unwrap();
    let leaving = tokio::spawn(leases.acquire("a").into_future());
    asleep(&db, &leases, "a", 1).await;
    let second = tokio::spawn(leases.acquire("a").into_future());
    asleep(&db, &leases, "a", 2).await;
    let third = tokio::spawn(others.acquire("a").into_future());
    asleep(&db, &others, "a", 3).await;
    let _reader = fill(&db).await;

    // A listener that has only begun is pinged.
    eventually(SOON, "both listen", async || {
        listening(&db, "leasehold").await.len() == 2
    })
    .await;
    for listener in listening(&db, "leasehold").await {
        run(&db, &format!("select pg_terminate_backend({listener}, 10000)")).await;
    }
    leaving.abort();
    eventually(SOON, "the first has left", async || waiters(&db, "a").await == 2).await;
    eventually(SOON, "both listen again", async || {
        listening(&db, "leasehold").await.len() == 2
    })
    .await;
    asleep(&db, &leases, "a", 2).await;
    let released = held.release().await.unwrap();
    let second = timeout(SOON, second)
        .await
        .expect("the heartbeat serves")
        .unwrap()
        .unwrap();
    let released_too = second.release().await.unwrap();
    let third = timeout(SOON, third)
        .await
        .expect("the heartbeat serves")
        .unwrap()
        .unwrap();

    assert_eq!((released, released_too), (Release::Released, Release::Released));
    assert!(third.is_held());
    let refused = cluster.log().matches("too many notifications").count();
    assert_eq!(refused, 1, "nothing was told but what filled the queue");
    assert_eq!(told_so(&heard), 0);
    assert_eq!(warnings(&heard), 2, "each client has said so once");
}

/// Fills the queue, which the session returned does not read.
async fn fill(db: &TestDb) -> PgConnection {
    let mut reader = db.session().await;
    sql::run(&mut reader, "listen nothing").await;
    sql::run(&mut reader, "begin; select 1").await;
    let fill = "select pg_notify('nothing', repeat('x', 7990))";
    let refused = loop {
        if let Err(error) = sqlx::query(fill).execute(&db.pool).await {
            break error;
        }
    };
    assert_eq!(sql::sql_state(&refused), "54000");
    reader
}

/// A database of its own in which whatever tells a waiter is undone when it commits. It counts.
async fn full(name: &str) -> TestDb {
    let db = TestDb::own(name).await;
    run(&db, FULL).await;
    db
}

fn client(db: &TestDb) -> LeaseClient {
    db.builder().heartbeat_every(QUICK_BEAT).build().unwrap()
}

async fn refused(db: &TestDb) -> i64 {
    let sql = "select case when is_called then last_value else 0 end from public.refused";
    sqlx::query_scalar(sql).fetch_one(&db.pool).await.expect(sql)
}

fn told_so(heard: &Heard) -> usize {
    heard.told(Level::WARN, "notifications are not taken in")
}

const FULL: &str = "
    create sequence public.refused;

    create table public.told ();

    create function public.refuse() returns trigger language plpgsql as $$
    begin
        perform nextval('public.refused');
        raise exception 'too many notifications in the NOTIFY queue' using errcode = '54000';
    end
    $$;

    create constraint trigger refuse after insert on public.told
        deferrable initially deferred
        for each row execute function public.refuse();

    create or replace function leasehold.wake(lock_name text)
        returns boolean
        language plpgsql
        volatile
        parallel unsafe
        security definer
        set search_path = pg_catalog, pg_temp
    as $$
    begin
        if not exists (select from leasehold.live_waiters as w where w.name = wake.lock_name) then
            return false;
        end if;
        insert into public.told default values;
        return true;
    end
    $$";

const NAMES: usize = 8;
