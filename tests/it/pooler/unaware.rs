//! Clients that have not been told of the pooler, which keeps their prepared statements.
//!
//! Its server sessions are not theirs: none is ended, and none is taken for a connection that still works.

use std::time::Duration;

use leasehold::{LeaseClient, Release};
use leasehold_testkit::FaultProxy;
use sqlx::PgConnection;
use tokio::time::timeout;
use uuid::Uuid;

use super::{TTL, keeper_of_statements, proxy};
use crate::support::{SOON, TestDb};

#[tokio::test]
async fn connections_that_break_again_and_again_do_not_stall_a_client() {
    let Some(pgbouncer) = keeper_of_statements().await else {
        return;
    };
    let db = TestDb::own("pooler_unaware").await;
    let proxy = proxy(&pgbouncer, &db);
    let leases = client(&db, &proxy);
    let kept = leases.acquire("kept").await.unwrap();

    for round in 0..6 {
        // Nothing is under way: the pooler keeps the server session for the next client.
        proxy.reset();
        let asked = timeout(SOON, leases.acquire(format!("asked:{round}")).into_future());
        let asked = asked.await.expect("it is served").unwrap();
        assert_eq!(asked.release().await.unwrap(), Release::Released);
    }

    kept.renew().await.unwrap();
    assert_eq!(kept.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn server_session_of_a_connection_given_up_is_not_ended() {
    let Some(pgbouncer) = keeper_of_statements().await else {
        return;
    };
    let (db, application) = (
        TestDb::own("pooler_not_ended").await,
        format!("pooler-{}", Uuid::new_v4()),
    );
    let proxy = proxy(&pgbouncer, &db);
    let leases = client(&db.as_application(&application), &proxy);
    leases.acquire("first").await.unwrap().release().await.unwrap();
    let [session] = db.backends(&application).await[..] else {
        panic!("one server session serves one client")
    };
    let others = TestDb::with(pgbouncer.options(&db.options).application_name("others"));

    proxy.reset();
    let second = leases.acquire("second").await.unwrap();
    // The pooler gives away first what it got back last, so each round leaves the other session to the
    // lane, which asks for the connection that it gave up while that one's idles.
    for _ in 0..4 {
        let (mut one, mut other) = (others.pool.begin().await.unwrap(), others.pool.begin().await.unwrap());
        let both = [backend(&mut one).await, backend(&mut other).await];
        assert!(both.contains(&session), "{session} is gone, there are {both:?}");
        one.commit().await.unwrap();
        other.commit().await.unwrap();
        tokio::time::sleep(ASKED_EVERY * 2).await;
    }

    let sql = "select exists (select from pg_stat_activity where pid = $1)";
    let is_there: bool = sqlx::query_scalar(sql).bind(session).fetch_one(&db.pool).await.unwrap();
    assert!(is_there, "the session is the pooler's");
    assert_eq!(second.release().await.unwrap(), Release::Released);
}

async fn backend(session: &mut PgConnection) -> i32 {
    let sql = "select pg_backend_pid()";
    sqlx::query_scalar(sql).fetch_one(session).await.unwrap()
}

fn client(db: &TestDb, proxy: &FaultProxy) -> LeaseClient {
    TestDb::with(proxy.options(&db.options))
        .builder()
        .ttl(TTL)
        .build()
        .unwrap()
}

/// How often the lane asks about connections that it gave up.
const ASKED_EVERY: Duration = Duration::from_millis(250);
