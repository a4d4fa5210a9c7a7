//! Waking without notifications: every way they can fail, and how it is found out.

mod deadlines;
mod listener;
mod options;
mod passed_on;
mod ping_pong;
mod pooler;
mod queue_full;

use std::time::Duration;

use leasehold::{Error, Lease, LeaseClient};
use leasehold_testkit::{FaultProxy, eventually};
use sqlx::{ConnectOptions, PgConnection};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::Level;

use crate::support::heard::Heard;
use crate::support::sql::{Grant, grant, release};
use crate::support::{SOON, TestDb, unique_name};

/// A name that somebody holds who is no client, and a waiter for it who sleeps.
struct Waiting {
    holder: PgConnection,
    grant: Grant,
    waiter: JoinHandle<Result<Lease, Error>>,
}

impl Waiting {
    async fn begin(db: &TestDb, leases: &LeaseClient) -> Self {
        let mut holder = db.session().await;
        let grant = grant(&mut holder, &unique_name!(), "1 minute").await;
        let waiter = tokio::spawn(leases.acquire(&grant.name).into_future());
        asleep(db, leases, &grant.name, 1).await;
        Self { holder, grant, waiter }
    }

    /// Releases the name; returns how long it took until the waiter had it.
    async fn hand_off(mut self) -> Duration {
        let released_at = Instant::now();
        assert_eq!(release(&mut self.holder, &self.grant, "0").await, "released");
        let lease = timeout(SOON, self.waiter).await.expect("the waiter is served");
        let lease = lease.unwrap().unwrap();
        let took = released_at.elapsed();
        lease.release().await.unwrap();
        took
    }
}

async fn hand_off(db: &TestDb, leases: &LeaseClient) -> Duration {
    Waiting::begin(db, leases).await.hand_off().await
}

/// Whether a hand-off came about without a heartbeat. One that is notified may meet with a heartbeat,
/// too; one that is not cannot do without.
async fn is_notified(db: &TestDb, leases: &LeaseClient, lane: &FaultProxy) -> bool {
    let waiting = Waiting::begin(db, leases).await;
    let beat = lane.wait_for_execute("leasehold.heartbeat");
    waiting.hand_off().await;
    timeout(Duration::ZERO, beat).await.is_err()
}

/// Waits until `count` stand in line, those of the client after their second look.
async fn asleep(db: &TestDb, leases: &LeaseClient, name: &str, count: i64) {
    eventually(SOON, "all stand in line", async || {
        let waiters = waiters(db, name).await;
        if waiters == count { Ok(()) } else { Err(waiters) }
    })
    .await;
    for _ in 0..3 {
        assert!(leases.try_acquire(name).await.unwrap().is_none());
    }
}

async fn waiters(db: &TestDb, name: &str) -> i64 {
    let sql = "select count(*) from leasehold.waiters where name = $1";
    sqlx::query_scalar(sql).bind(name).fetch_one(&db.pool).await.expect(sql)
}

/// The server processes that listen for an application.
async fn listening(db: &TestDb, application: &str) -> Vec<i32> {
    let sql = "select pid from pg_stat_activity where application_name = $1 and query ilike 'listen %'";
    sqlx::query_scalar(sql)
        .bind(application)
        .fetch_all(&db.pool)
        .await
        .expect(sql)
}

fn url(db: &TestDb) -> String {
    db.options.to_url_lossy().into()
}

fn warnings(heard: &Heard) -> usize {
    heard.told(Level::WARN, "notifications do not come through")
}

fn recoveries(heard: &Heard) -> usize {
    heard.told(Level::INFO, "notifications come through again")
}

/// No heartbeat comes to the help of a hand-off.
const NO_BEAT: Duration = Duration::from_secs(30);

/// A heartbeat that serves in no time.
const QUICK_BEAT: Duration = Duration::from_millis(200);

/// One between which there is time for hand-offs.
const SLOW_BEAT: Duration = Duration::from_millis(500);

/// Long before [`NO_BEAT`].
const AT_ONCE: Duration = Duration::from_secs(1);
