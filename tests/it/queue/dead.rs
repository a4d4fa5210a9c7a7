//! Waiters and holders that die or stand still: for how long the next one waits for them.

use std::mem::ManuallyDrop;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::{Lease, LeaseClient};
use leasehold_testkit::{eventually, signals};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Runtime;

use super::process::Process;
use super::{clock, granted, granted_at, in_line, line_is, stand_in_line};
use crate::support::install::run;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_in_line_killed_just_after_it_was_told_is_passed_over_after_its_clients_ttl() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let line = Line::form(&db, &name).await;

    let (first, next, killed_at) = (line.first, line.next, clock(&db).await);
    // What it is told comes to a process that does not run any more, and then is none.
    assert!(signals::stop(first.pid()));
    line.held.release().await.unwrap();
    assert!(signals::kill(first.pid()));
    let _lease = granted(next).await;

    let after = since(killed_at, granted_at(&db, &name).await);
    assert!(after < CLIENT_TTL + BEAT + LATE, "{after:?}");
    assert_eq!(in_line(&db, &name).await, 1, "the sweep removes it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_in_line_stopped_just_after_it_was_told_is_passed_over_and_served_when_it_goes_on() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let line = Line::form(&db, &name).await;

    let (mut first, next, stopped_at) = (line.first, line.next, clock(&db).await);
    assert!(signals::stop(first.pid()));
    line.held.release().await.unwrap();
    let lease = granted(next).await;
    let after = since(stopped_at, granted_at(&db, &name).await);
    assert!(signals::cont(first.pid()));
    eventually(SOON, "its client is back", async || is_anybody_alive(&db, &name).await).await;
    let was_holding = first.is_holding();
    let token = lease.fencing_token();
    assert!(lease.is_held());
    lease.release().await.unwrap();

    assert!(after < CLIENT_TTL + BEAT + LATE, "{after:?}");
    assert!(!was_holding);
    assert!(first.granted() > token.get());
    assert!(first.is_holding());
    line_is(&db, &name, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_in_line_is_served_when_the_lease_of_a_killed_holder_runs_out() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let mut holder = Process::start(&db, &name, TTL, DEFAULT_BEAT);
    holder.wait();
    let token = holder.granted();
    let first = stand_in_line(&db, &name, db.client().acquire(&name)).await;

    let killed_at = clock(&db).await;
    assert!(signals::kill(holder.pid()));
    let lease = granted(first).await;

    assert!(lease.fencing_token().get() > token);
    let after = since(killed_at, granted_at(&db, &name).await);
    assert!(after < TTL + LATE, "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_became_first_when_the_holder_was_served_comes_next_when_that_one_is_killed() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let mut holder = Process::start(&db, &name, TTL, DEFAULT_BEAT);
    holder.wait();
    line_is(&db, &name, 1).await;
    let second = stand_in_line(&db, &name, db.client().acquire(&name)).await;

    held.release().await.unwrap();
    let token = holder.granted();
    let killed_at = clock(&db).await;
    assert!(signals::kill(holder.pid()));
    let lease = granted(second).await;

    assert!(lease.fencing_token().get() > token);
    let after = since(killed_at, granted_at(&db, &name).await);
    assert!(after < TTL + LATE, "{after:?}");
}

#[tokio::test]
async fn holder_whose_runtime_is_gone_holds_up_another_client_of_its_process_for_its_ttl() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (of, at) = (name.clone(), clock(&db).await);
    let dead = on_a_runtime_that_ends(&db, async move |leases| leases.acquire(&of).ttl(TTL).await.unwrap()).await;

    let lease = granted(stand_in_line(&db, &name, db.client().acquire(&name)).await).await;

    assert!(lease.fencing_token() > dead.fencing_token() && !dead.is_held());
    let after = since(at, granted_at(&db, &name).await);
    assert!(after < TTL + LATE, "{after:?}");
}

#[tokio::test]
async fn waiter_whose_runtime_is_gone_is_passed_over_and_swept() {
    let (db, name) = (TestDb::own("queue_dead_waiters").await, "contended");
    let held = db.client().acquire(name).ttl(LONG).await.unwrap();
    let pool = db.pool.clone();
    on_a_runtime_that_ends(&db, async move |leases: LeaseClient| {
        for _ in 0..20 {
            // Neither dropped nor polled any more, as in a process that is gone.
            let mut wait = ManuallyDrop::new(leases.acquire("contended").into_future());
            tokio::spawn(async move { wait.as_mut().await.map(drop) });
        }
        let (db, _leases) = (TestDb::with((*pool.connect_options()).clone()), leases);
        line_is(&db, name, 20).await;
    })
    .await;
    let leases = db.builder().heartbeat_every(BEAT).build().unwrap();
    let lives = stand_in_line(&db, name, leases.acquire(name)).await;

    let released_at = clock(&db).await;
    held.release().await.unwrap();
    let _lease = granted(lives).await;

    let after = since(released_at, granted_at(&db, name).await);
    assert!(after < CLIENT_TTL + BEAT + LATE, "{after:?}");
    assert_eq!(in_line(&db, name).await, 20);
    // As if two minutes had gone by.
    run(
        &db,
        "update leasehold.clients set expires_at = expires_at - interval '2 minutes' where expires_at <= clock_timestamp();
         update leasehold.sweeps set next_at = clock_timestamp();
         select leasehold.sweep()",
    )
    .await;
    assert_eq!(in_line(&db, name).await, 0);
}

/// A name with its holder, a process that is first in line, and the next one.
struct Line {
    held: Lease,
    first: Process,
    next: super::Wait,
}

impl Line {
    async fn form(db: &TestDb, name: &str) -> Self {
        let held = db.client().acquire(name).ttl(LONG).await.unwrap();
        let mut first = Process::start(db, name, LONG, BEAT);
        first.wait();
        line_is(db, name, 1).await;
        let leases = db.builder().heartbeat_every(BEAT).build().unwrap();
        let next = stand_in_line(db, name, leases.acquire(name).ttl(LONG)).await;
        Self { held, first, next }
    }
}

/// Runs `work` with a client on a runtime of its own, which ends with it.
async fn on_a_runtime_that_ends<T: Send + 'static>(
    db: &TestDb,
    work: impl AsyncFnOnce(LeaseClient) -> T + Send + 'static,
) -> T {
    let options = db.options.clone();
    let worked = tokio::task::spawn_blocking(move || {
        let runtime = Runtime::new().unwrap();
        let worked = runtime.block_on(async move {
            let pool: PgPool = PgPoolOptions::new().connect_lazy_with(options);
            work(LeaseClient::builder(pool).heartbeat_every(BEAT).build().unwrap()).await
        });
        runtime.shutdown_background();
        worked
    });
    worked.await.unwrap()
}

async fn is_anybody_alive(db: &TestDb, name: &str) -> bool {
    let sql = "select exists (select from leasehold.live_waiters where name = $1)";
    sqlx::query_scalar(sql).bind(name).fetch_one(&db.pool).await.unwrap()
}

fn since(from: DateTime<Utc>, to: DateTime<Utc>) -> Duration {
    (to - from).to_std().expect("it comes after")
}

const TTL: Duration = Duration::from_secs(1);
const DEFAULT_BEAT: Duration = Duration::from_secs(1);
const BEAT: Duration = Duration::from_millis(200);
const CLIENT_TTL: Duration = Duration::from_millis(600);

/// What a machine that is busy adds.
const LATE: Duration = Duration::from_millis(500);
