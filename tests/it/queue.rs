//! The queue across clients and processes: order, bounds, and what a waiter costs.

mod cost;
mod crash;
mod dead;
mod ending;
mod hold;
mod order;
mod pinned;
mod process;
mod timed_out;

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::{Acquire, Error, Lease, LeaseClientBuilder};
use leasehold_testkit::eventually;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::{SOON, TestDb};

/// An acquisition that waits in a task of its own.
type Wait = JoinHandle<Result<Lease, Error>>;

/// Waits for the name, and returns once the database has the waiter in line.
async fn stand_in_line(db: &TestDb, name: &str, acquire: Acquire) -> Wait {
    let before = in_line(db, name).await;
    let wait = tokio::spawn(acquire.into_future());
    line_is(db, name, before + 1).await;
    wait
}

/// How many stand in line for the name, dead or alive.
async fn in_line(db: &TestDb, name: &str) -> i64 {
    let sql = "select count(*) from leasehold.waiters where name = $1";
    let count = sqlx::query_scalar(sql).bind(name).fetch_one(&db.pool);
    count.await.expect(sql)
}

async fn line_is(db: &TestDb, name: &str, length: i64) {
    line_is_within(SOON, db, name, length).await;
}

async fn line_is_within(deadline: Duration, db: &TestDb, name: &str, length: i64) {
    eventually(deadline, &format!("{length} stand in line"), async || {
        match in_line(db, name).await {
            found if found == length => Ok(()),
            found => Err(found),
        }
    })
    .await;
}

async fn granted(wait: Wait) -> Lease {
    let ended = tokio::time::timeout(SOON, wait).await.expect("the wait ends");
    ended.expect("it does not panic").expect("it is granted")
}

/// Now, by the database's clock.
async fn clock(db: &TestDb) -> DateTime<Utc> {
    let sql = "select clock_timestamp()";
    sqlx::query_scalar(sql).fetch_one(&db.pool).await.expect(sql)
}

async fn granted_at(db: &TestDb, name: &str) -> DateTime<Utc> {
    db.lock(name).await.expect("it is held").acquired_at
}

/// A client whose heartbeat comes too late to help: events alone wake its waiters.
fn by_events(db: &TestDb) -> (LeaseClientBuilder, String) {
    let application = format!("waiter-{}", Uuid::new_v4());
    let builder = db.as_application(&application).builder();
    (builder.heartbeat_every(NEVER), application)
}

/// Waits until such a client listens, and has sent the one heartbeat that it sends then.
async fn listens(db: &TestDb, application: &str) {
    let sql = "select count(*) from pg_stat_activity
               where application_name = $1
                   and state = 'idle'
                   and (query ilike 'listen %' or query like '%leasehold.heartbeat(%')";
    eventually(SOON, "the client listens", async || {
        let settled = sqlx::query_scalar::<_, i64>(sql).bind(application).fetch_one(&db.pool);
        settled.await.expect(sql) == 2
    })
    .await;
}

/// A heartbeat that no test waits for.
const NEVER: Duration = Duration::from_secs(60);

/// What an event is followed by within a moment, on a machine that is busy too.
const AT_ONCE: Duration = Duration::from_secs(3);
