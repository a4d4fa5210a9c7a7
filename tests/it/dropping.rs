//! Dropping a lease, wherever that happens: it never panics, never blocks, and releases.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use chrono::TimeDelta;
use leasehold::{Lease, LossCause};
use leasehold_testkit::eventually;
use sqlx::postgres::PgConnectOptions;
use tokio::runtime::Runtime;

use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn lease_dropped_inside_the_runtime_is_released() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(LONG).await.unwrap();

    drop(lease);

    db.is_let_go(&name).await;
}

#[tokio::test]
async fn lease_dropped_on_a_thread_outside_any_runtime_is_released() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(LONG).await.unwrap();

    let outcome = thread::spawn(move || drop(lease)).join();

    assert!(outcome.is_ok(), "it does not panic");
    db.is_let_go(&name).await;
}

#[tokio::test]
async fn lease_dropped_while_a_task_unwinds_is_released() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(LONG).await.unwrap();

    let task = tokio::spawn(async move {
        let _lease = lease;
        panic!("as the test wants");
    });

    // A panic in a destructor while unwinding would abort the process.
    assert!(task.await.unwrap_err().is_panic());
    db.is_let_go(&name).await;
}

#[tokio::test]
async fn lease_dropped_while_a_thread_outside_any_runtime_unwinds_is_released() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(LONG).await.unwrap();

    let outcome = thread::spawn(move || {
        let _lease = lease;
        panic!("as the test wants");
    })
    .join();

    assert!(outcome.is_err());
    db.is_let_go(&name).await;
}

#[tokio::test]
async fn lease_of_an_aborted_task_is_released() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let task = tokio::spawn(async move { lease.lost().await });

    task.abort();

    assert!(task.await.unwrap_err().is_cancelled());
    db.is_let_go(&name).await;
}

#[tokio::test]
async fn lease_dropped_in_the_shutdown_of_a_runtime_that_is_not_the_clients_is_released() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(LONG).await.unwrap();

    let dropped = dropped_in_shutdown(move |_| lease).await;

    assert!(dropped.is_ok(), "it does not panic");
    db.is_let_go(&name).await;
}

#[tokio::test]
async fn lease_dropped_in_the_shutdown_of_the_clients_own_runtime_runs_out() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let options = db.options.clone();

    let of = name.clone();
    let dropped = dropped_in_shutdown(move |runtime| runtime.block_on(short_lease(options, of))).await;

    assert!(dropped.is_ok(), "it does not panic");
    let next = db.client().acquire(&name).wait_at_most(SOON).await;
    assert!(next.is_ok(), "it is free after the ttl");
}

#[tokio::test]
async fn lease_that_outlives_its_clients_runtime_knows_when_it_ends_and_drops_quietly() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (options, of) = (db.options.clone(), name.clone());
    let lease = thread::spawn(move || {
        let runtime = Runtime::new().unwrap();
        let lease = runtime.block_on(short_lease(options, of));
        runtime.shutdown_timeout(SOON);
        lease
    })
    .join()
    .unwrap();

    let lost = tokio::time::timeout(SOON, lease.lost())
        .await
        .expect("the loss is signalled");

    assert_eq!(lost.cause, LossCause::Expired);
    assert!(!lease.is_held());
    assert!(lease.renew().await.is_err());
    assert!(
        lease.release().await.is_err(),
        "it cannot be sent any more, and says so"
    );
    assert!(db.client().acquire(&name).wait_at_most(SOON).await.is_ok());
}

#[tokio::test]
async fn drop_does_not_block_while_the_database_does_not_answer() {
    let (direct, name) = (TestDb::shared().await, unique_name!());
    let proxy = direct.proxy();
    let leases = direct.through(&proxy).client();
    let lease = leases.acquire(&name).ttl(LONG).await.unwrap();
    proxy.pause();

    let (done, is_done) = mpsc::channel();
    let dropper = thread::spawn(move || {
        drop(lease);
        done.send(()).unwrap();
    });

    // Blocks the test's runtime, which is the client's: nothing there can help the drop along.
    assert!(is_done.recv_timeout(SOON).is_ok(), "it returns");
    dropper.join().unwrap();
    assert!(direct.is_held(&name).await);
    proxy.resume();
    direct.is_let_go(&name).await;
}

#[tokio::test]
async fn forgotten_lease_is_renewed_until_the_client_is_closed() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let lease = leases.acquire(&name).ttl(SHORT).await.unwrap();
    let granted = db.lock(&name).await.unwrap();

    std::mem::forget(lease);

    eventually(SOON, "it was renewed beyond two ttls", async || {
        let lock = db.lock(&name).await.unwrap();
        lock.expires_at > granted.acquired_at + TimeDelta::from_std(SHORT * 5 / 2).unwrap()
    })
    .await;
    assert_eq!(db.lock(&name).await.unwrap().token, granted.token);
    leases.close().await;
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn forgotten_lease_is_renewed_until_hold_at_most_has_passed() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let most = SHORT * 3 / 2;
    let acquire = db.client().acquire(&name).ttl(SHORT).hold_at_most(most);
    let lease = acquire.await.unwrap();
    let granted = db.lock(&name).await.unwrap();

    std::mem::forget(lease);

    let next = db.client().acquire(&name).wait_at_most(SOON).await.unwrap();
    assert!(next.fencing_token() > granted.token);
    let held_for = db.lock(&name).await.unwrap().acquired_at - granted.acquired_at;
    assert!(
        held_for > TimeDelta::from_std(SHORT).unwrap(),
        "renewed at first: {held_for}"
    );
}

/// Drops a lease in the shutdown of a runtime of its own, while a task there holds it, and
/// tells whether that panicked.
async fn dropped_in_shutdown(acquire: impl FnOnce(&Runtime) -> Lease + Send + 'static) -> thread::Result<()> {
    let (tell, told) = mpsc::channel();
    let shut_down = tokio::task::spawn_blocking(move || {
        thread::spawn(move || {
            let runtime = Runtime::new().unwrap();
            let watched = WatchedDrop {
                lease: Some(acquire(&runtime)),
                tell,
            };
            runtime.spawn(async move {
                let _watched = watched;
                std::future::pending::<()>().await
            });
            runtime.shutdown_timeout(SOON);
        })
        .join()
    });
    shut_down.await.unwrap().expect("the shutdown does not panic");
    told.recv_timeout(Duration::ZERO)
        .expect("the shutdown has dropped the lease")
}

/// A lease of a client of its own, which lives in the runtime that runs this.
async fn short_lease(options: PgConnectOptions, name: String) -> Lease {
    let leases = TestDb::with(options).client();
    leases.acquire(&name).ttl(SHORT).await.unwrap()
}

struct WatchedDrop {
    lease: Option<Lease>,
    tell: mpsc::Sender<thread::Result<()>>,
}

impl Drop for WatchedDrop {
    fn drop(&mut self) {
        let lease = self.lease.take();
        let _ = self.tell.send(catch_unwind(AssertUnwindSafe(|| drop(lease))));
    }
}

const SHORT: Duration = Duration::from_secs(2);
