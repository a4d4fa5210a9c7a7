//! Waiting for a name that is free, or has run out, and that an open fenced transaction pins.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::{Error, Lease};
use leasehold_testkit::eventually;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{clock, granted, granted_at, in_line, line_is, stand_in_line};
use crate::support::install::run;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn first_waiter_for_a_pinned_name_asks_some_fifty_times_a_second_and_the_others_not_at_all() {
    let db = TestDb::own("queue_pinned").await;
    run(&db, "alter database queue_pinned set track_functions = 'pl'").await;
    let (counted, name) = (db.as_application("counted"), "pinned");
    let leases = counted.client();
    let held = leases.acquire(name).ttl(LONG).await.unwrap();
    let tx = held.begin(&db.pool).await.unwrap();
    held.release().await.unwrap();
    let started_at = Instant::now();

    let first = stand_in_line(&db, name, leases.acquire(name)).await;
    let others: Vec<_> = (0..20)
        .map(|_| tokio::spawn(leases.acquire(name).into_future()))
        .collect();
    line_is(&db, name, 21).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let elapsed = started_at.elapsed();
    leases.close().await;

    for wait in others.into_iter().chain([first]) {
        assert!(matches!(wait.await.unwrap(), Err(Error::Closed)));
    }
    tx.rollback().await.unwrap();
    // A session reports what it has called when it ends.
    eventually(SOON, "its sessions are gone", async || {
        db.backends("counted").await.is_empty()
    })
    .await;
    let sql = "select coalesce(sum(calls), 0)::int8 from pg_stat_user_functions
               where schemaname = 'leasehold' and funcname in ('acquire', 'acquire_many')";
    let asked: i64 = sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap();
    let seconds = elapsed.as_secs_f64();
    // The others ask twice or three times each, to stand in line.
    let (least, most) = (41 + (seconds * 10.0) as i64, 61 + (seconds * 60.0) as i64);
    assert!(
        (least..=most).contains(&asked),
        "{asked} in {elapsed:?}, not from {least} to {most}"
    );
}

#[tokio::test]
async fn first_waiter_is_served_within_a_moment_of_the_end_of_the_transaction() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let mut moments = Vec::new();

    for _ in 0..5 {
        let held = leases.acquire(&name).ttl(LONG).await.unwrap();
        let tx = held.begin(&db.pool).await.unwrap();
        held.release().await.unwrap();
        let first = stand_in_line(&db, &name, leases.acquire(&name)).await;
        // Long enough for its pauses to have grown.
        tokio::time::sleep(Duration::from_millis(400)).await;
        let ended_at = clock(&db).await;
        tx.commit().await.unwrap();
        let lease = granted(first).await;
        moments.push((granted_at(&db, &name).await - ended_at).to_std().unwrap());
        lease.release().await.unwrap();
    }

    // One of them may meet with a machine that does something else.
    moments.sort();
    assert!(moments[2] < Duration::from_millis(200), "{moments:?}");
}

#[tokio::test]
async fn lease_that_runs_out_under_its_open_transaction_is_pinned_and_granted_after_it() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let ttl = Duration::from_millis(500);
    let held = leases.acquire(&name).ttl(ttl).manual_renewal().await.unwrap();
    let work = Work::begin(&db, &held).await;
    let first = stand_in_line(&db, &name, db.client().acquire(&name)).await;
    eventually(SOON, "the lease runs out", async || !db.is_held(&name).await).await;

    let ended = leases.acquire(&name).wait_at_most(ttl).await;
    let was_granted = first.is_finished();
    let ended_at = work.end(&db).await;
    let lease = granted(first).await;

    assert!(matches!(ended, Err(Error::WaitTimedOut { ahead: 1, .. })), "{ended:?}");
    assert!(!was_granted);
    assert!(lease.fencing_token() > held.fencing_token());
    assert!(granted_at(&db, &name).await >= ended_at);
    line_is(&db, &name, 0).await;
}

#[tokio::test]
async fn first_waiter_is_told_that_a_run_out_name_is_pinned() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let ttl = Duration::from_millis(500);
    let held = leases.acquire(&name).ttl(ttl).manual_renewal().await.unwrap();
    let work = Work::begin(&db, &held).await;

    let ended = db.client().acquire(&name).wait_at_most(ttl * 3).await;
    let asked = leases.try_acquire(&name).await;

    assert!(
        matches!(
            ended,
            Err(Error::WaitTimedOut {
                pinned: true,
                ahead: 0,
                ..
            })
        ),
        "{ended:?}"
    );
    assert!(asked.unwrap().is_none());
    work.end(&db).await;
    assert!(leases.acquire(&name).wait_at_most(SOON).await.unwrap().is_held());
    assert_eq!(in_line(&db, &name).await, 0);
}

/// A fenced transaction that goes on working, so that the server does not end it.
struct Work {
    task: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Work {
    async fn begin(db: &TestDb, held: &Lease) -> Self {
        let mut tx = held.begin(&db.pool).await.unwrap();
        let (end, mut ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            while ended.try_recv().is_err() {
                sqlx::query("select pg_sleep(0.02)").execute(&mut *tx).await.unwrap();
            }
            tx.commit().await.unwrap();
        });
        Self { task, end }
    }

    /// Ends it, and tells a time before that.
    async fn end(self, db: &TestDb) -> DateTime<Utc> {
        let before = clock(db).await;
        self.end.send(()).unwrap();
        self.task.await.unwrap();
        before
    }
}
