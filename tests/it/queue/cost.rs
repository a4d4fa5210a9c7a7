//! What waiting costs the server, and that it costs nothing while nobody waits.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::Release;
use leasehold_testkit::eventually;
use sqlx::Executor;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::{granted, in_line, line_is, line_is_within, stand_in_line};
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_waiters_cost_two_connections_and_a_statement_a_second() {
    let (db, name) = (TestDb::own("queue_thousand").await, "contended");
    let of_waiters = db.as_application("thousand");
    // Asked one after the other, the last of them is not answered soon on a machine that is busy.
    let leases = of_waiters.builder().answer_within(LONG).build().unwrap();
    let holders = db.client();
    let held = holders.acquire(name).ttl(LONG).await.unwrap();
    let mut waits = JoinSet::new();
    for _ in 0..1000 {
        waits.spawn(leases.acquire(name).into_future());
    }
    line_is_within(LONG, &db, name, 1000).await;
    is_at_rest(&db, "thousand", Duration::from_millis(500)).await;

    let seen = Seen::watch(&db, "thousand", Duration::from_secs(4)).await;

    let backends = seen.statements.iter().map(|(backend, _)| *backend);
    assert_eq!(backends.collect::<BTreeSet<_>>().len(), 2);
    assert_eq!(of_waiters.pool.size(), 0);
    // What each had sent before, and a heartbeat a second.
    assert!(seen.statements.len() <= 2 + 5, "{seen:?}");
    assert!(seen.statements.len() >= 2 + 2, "{seen:?}");
    assert_eq!(seen.in_transaction, 0);
    assert!(seen.with_snapshot < seen.looks / 4, "{seen:?}");

    let index = async {
        db.pool.execute("create table document as select 1 as id").await?;
        db.pool.execute("create index concurrently on document (id)").await
    };
    timeout(SOON, index).await.expect("nobody is in its way").unwrap();
    let one: i32 = sqlx::query_scalar("select 1")
        .fetch_one(&of_waiters.pool)
        .await
        .unwrap();
    assert_eq!(one, 1);
    waits.shutdown().await;
    line_is(&db, name, 0).await;
    assert_eq!(held.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn leases_that_nobody_waits_for_need_no_listener_and_no_heartbeat() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let application = format!("eager-{}", Uuid::new_v4());
    let leases = eager(&db, &application);

    for _ in 0..3 {
        let lease = leases.acquire(&name).ttl(LONG).await.unwrap();
        lease.release().await.unwrap();
    }
    let held = leases.acquire(&name).ttl(LONG).await.unwrap();
    assert!(leases.try_acquire(&name).await.unwrap().is_none());
    assert!(leases.acquire(&name).wait_at_most(Duration::ZERO).await.is_err());
    let seen = Seen::watch(&db, &application, EAGER * 5).await;

    assert_eq!(seen.statements.len(), 1, "{seen:?}");
    assert_eq!(db.backends(&application).await.len(), 1);
    assert!(held.is_held());
}

#[tokio::test]
async fn heartbeats_end_with_the_last_wait() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let application = format!("eager-{}", Uuid::new_v4());
    let leases = eager(&db, &application);
    let held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let waits = stand_in_line(&db, &name, leases.acquire(&name).ttl(LONG)).await;
    let dropped = stand_in_line(&db, &name, leases.acquire(&name).ttl(LONG)).await;

    let waiting = Seen::watch(&db, &application, EAGER * 5).await;
    held.release().await.unwrap();
    let _lease = granted(waits).await;
    dropped.abort();
    line_is(&db, &name, 0).await;
    is_at_rest(&db, &application, EAGER * 2).await;
    let after = Seen::watch(&db, &application, EAGER * 5).await;

    assert!(waiting.statements.len() >= 2 + 2, "{waiting:?}");
    assert_eq!(after.statements.len(), 2, "{after:?}");
    assert_eq!(in_line(&db, &name).await, 0);
}

/// A client that would beat often.
fn eager(db: &TestDb, application: &str) -> leasehold::LeaseClient {
    let builder = db.as_application(application).builder();
    builder.heartbeat_every(EAGER).build().unwrap()
}

/// Waits until an application's sessions have sent nothing for that long.
async fn is_at_rest(db: &TestDb, application: &str, quiet: Duration) {
    let sql = "select count(*) from pg_stat_activity
               where application_name = $1
                   and (state <> 'idle' or query_start > clock_timestamp() - make_interval(secs => $2))";
    eventually(LONG, "its sessions are at rest", async || {
        let busy = sqlx::query_scalar::<_, i64>(sql)
            .bind(application)
            .bind(quiet.as_secs_f64())
            .fetch_one(&db.pool);
        busy.await.expect(sql) == 0
    })
    .await;
}

/// What the server shows of an application's sessions over a time.
#[derive(Debug, Default)]
struct Seen {
    looks: usize,
    /// Which backend began a statement when.
    statements: BTreeSet<(i32, DateTime<Utc>)>,
    in_transaction: usize,
    with_snapshot: usize,
}

impl Seen {
    async fn watch(db: &TestDb, application: &str, time: Duration) -> Self {
        let sql = "select pid, coalesce(query_start, backend_start), state like 'idle in transaction%', backend_xmin is not null
                   from pg_stat_activity where application_name = $1";
        let (mut seen, until) = (Self::default(), Instant::now() + time);
        while Instant::now() < until {
            let sessions: Vec<(i32, DateTime<Utc>, bool, bool)> = sqlx::query_as(sql)
                .bind(application)
                .fetch_all(&db.pool)
                .await
                .expect(sql);
            seen.looks += 1;
            for (backend, began_at, is_in_transaction, has_snapshot) in sessions {
                seen.statements.insert((backend, began_at));
                seen.in_transaction += usize::from(is_in_transaction);
                seen.with_snapshot += usize::from(has_snapshot);
            }
            sleep(Duration::from_millis(10)).await;
        }
        seen
    }
}

const EAGER: Duration = Duration::from_millis(200);
