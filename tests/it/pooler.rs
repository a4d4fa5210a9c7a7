//! PgBouncer in transaction mode: each statement may meet another server session.

mod pool;
mod through;
mod unaware;

use std::time::Duration;

use leasehold::{Error, LeaseClient, Release};
use leasehold_testkit::{FaultProxy, PgBouncer, eventually};
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::faults::pgbouncer;
use crate::support::{SOON, TestDb};

#[tokio::test]
async fn clients_share_two_server_sessions_of_a_transaction_pooler_without_an_error() {
    let Some(pgbouncer) = pgbouncer().await else { return };
    let (db, application) = (TestDb::own("faults_pooler").await, format!("pooler-{}", Uuid::new_v4()));
    let behind = TestDb::with(pgbouncer.options(&db.options)).as_application(&application);
    let clients: Vec<LeaseClient> = (0..4)
        .map(|_| {
            behind
                .builder()
                .pooler(!pgbouncer.keeps_statements())
                .ttl(TTL)
                .renew_every(TTL / 20)
                .build()
                .unwrap()
        })
        .collect();

    // Leases that are renewed meanwhile, and cycles of names of one's own and of a name for all.
    let mut held = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        held.push(client.acquire(format!("held:{number}")).await.unwrap());
    }
    let tasks: Vec<_> = (0..16)
        .map(|number| tokio::spawn(cycles(clients[number % clients.len()].clone(), number)))
        .collect();
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.extend(task.await.unwrap());
    }
    eventually(SOON, "the leases have been renewed", async || {
        let renewed = "select min(extract(epoch from expires_at - acquired_at))::float8
            from leasehold.locks where name like 'held:%'";
        let renewed: f64 = sqlx::query_scalar(renewed).fetch_one(&db.pool).await.unwrap();
        renewed > TTL.as_secs_f64() + 1.0
    })
    .await;

    let sessions = db.backends(&application).await.len();
    assert!((1..=2).contains(&sessions), "{sessions} server sessions");
    let grants = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), grants, "every grant has a token of its own");
    for lease in held {
        assert!(lease.is_held());
        lease.renew().await.unwrap();
        assert_eq!(lease.release().await.unwrap(), Release::Released);
    }
    for client in clients {
        client.close().await;
    }
    let left: i64 = sqlx::query_scalar("select count(*) from leasehold.held")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn every_new_connection_through_the_pooler_serves_at_its_first_try() {
    let Some(pgbouncer) = pgbouncer().await else { return };
    let db = TestDb::own("faults_pooler_connects").await;
    let proxy = proxy(&pgbouncer, &db);
    let behind = TestDb::with(proxy.options(&db.options));

    let tasks: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let client = behind
                .builder()
                .pooler(!pgbouncer.keeps_statements())
                .ttl(TTL)
                .answer_within(SOON)
                .build()
                .unwrap();
            tokio::spawn(async move {
                let lease = client.acquire(format!("own:{number}")).await.unwrap();
                lease.release().await
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap(), Release::Released);
    }

    assert_eq!(proxy.accepted(), CONNECTIONS);
}

#[tokio::test]
async fn broken_connection_to_the_pooler_costs_no_lease() {
    let Some(pgbouncer) = pgbouncer().await else { return };
    let db = TestDb::own("faults_pooler_breaks").await;
    let proxy = proxy(&pgbouncer, &db);
    let leases = TestDb::with(proxy.options(&db.options))
        .builder()
        .pooler(!pgbouncer.keeps_statements())
        .ttl(TTL)
        .build()
        .unwrap();
    let lease = leases.acquire("kept").await.unwrap();

    for round in 0..4 {
        proxy.hold_replies_after_execute("leasehold.acquire");
        let asked = proxy.wait_for_execute("leasehold.acquire");
        let acquiring = tokio::spawn(leases.acquire(format!("asked:{round}")).into_future());
        timeout(SOON, asked).await.expect("it is asked for");
        proxy.reset();
        let asked = acquiring.await.unwrap().unwrap();
        assert_eq!(asked.release().await.unwrap(), Release::Released);
    }
    lease.renew().await.unwrap();

    assert!(lease.is_held());
    assert_eq!(lease.release().await.unwrap(), Release::Released);
    db.assert_free_soon("asked:3").await;
}

/// Acquires and releases again and again; any error ends the test.
async fn cycles(client: LeaseClient, number: usize) -> Vec<i64> {
    let mut tokens = Vec::new();
    for _ in 0..30 {
        let own = client.acquire(format!("own:{number}")).await.unwrap();
        tokens.push(own.fencing_token().get());
        match client.try_acquire("for all").await {
            Ok(Some(shared)) => {
                tokens.push(shared.fencing_token().get());
                assert_eq!(shared.release().await.unwrap(), Release::Released);
            }
            // Somebody else was about to acquire it for all of the time that was given.
            Ok(None) | Err(Error::Busy { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        assert_eq!(own.release().await.unwrap(), Release::Released);
    }
    tokens
}

fn proxy(pgbouncer: &PgBouncer, db: &TestDb) -> FaultProxy {
    FaultProxy::start(([127, 0, 0, 1], pgbouncer.options(&db.options).get_port()).into())
}

/// PgBouncer where it keeps prepared statements, so that a client need not be told of it.
async fn keeper_of_statements() -> Option<PgBouncer> {
    let pgbouncer = pgbouncer().await?;
    if !pgbouncer.keeps_statements() {
        eprintln!("left out: PgBouncer keeps prepared statements from 1.21 on");
        return None;
    }
    Some(pgbouncer)
}

const TTL: Duration = Duration::from_secs(10);
const CONNECTIONS: u64 = 80;
