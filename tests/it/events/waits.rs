//! What a wait tells: when it begins, when it is woken, and how it ends.

use std::time::Duration;

use leasehold::{Error, Lease, LeaseClient};
use leasehold_testkit::eventually;
use tokio::task::JoinHandle;
use tracing::Level;

use crate::support::cancelled::{Drop, dropped};
use crate::support::heard::Heard;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn wait_is_told_from_its_beginning_to_the_grant() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let held = db.client().acquire(&name).ttl(LONG).holder("batch-7").await.unwrap();
    let (heard, _listening) = Heard::listen();
    let leases = db.client();
    let waiter = waiter(&leases, &name, &heard).await;

    // Released once it sleeps: one that has only just come to stand in line looks again by itself.
    for _ in 0..3 {
        assert!(leases.try_acquire(&name).await.unwrap().is_none());
    }
    held.release().await.unwrap();
    let lease = waiter.await.unwrap().unwrap();

    let told = heard.all();
    let owner = told
        .iter()
        .find(|event| event.message == "began to wait")
        .and_then(|event| event.fields.get("lease.owner"));
    let mut of_waiter: Vec<_> = told
        .iter()
        .filter(|event| event.fields.get("lease.owner") == owner)
        .collect();
    of_waiter.dedup_by_key(|event| event.message.clone());
    let messages: Vec<_> = of_waiter.iter().map(|event| &*event.message).collect();
    assert_eq!(messages, ["began to wait", "woken to ask again", "acquired the lease"]);
    for event in &of_waiter {
        assert_eq!(event.fields.get("lease.name"), Some(&name), "{event:?}");
        assert_eq!((event.level, &event.within[..]), (Level::DEBUG, &["acquire"][..]));
    }
    assert!(
        of_waiter[0]
            .fields
            .get("holder")
            .is_some_and(|told| told.contains("batch-7"))
    );
    assert_eq!(of_waiter[0].fields.get("ahead"), Some(&"0".to_owned()));
    lease.release().await.unwrap();
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

#[tokio::test]
async fn wait_that_comes_to_its_limit_is_told_as_given_up_and_nothing_louder() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let (heard, _listening) = Heard::listen();

    let refused = db.client().acquire(&name).wait_at_most(LIMIT).await;

    assert!(refused.is_err());
    assert_eq!(heard.told_of(&name, "began to wait"), 1);
    assert_eq!(heard.told_of(&name, "gave up waiting"), 1);
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

#[tokio::test]
async fn acquire_that_is_dropped_while_it_waits_is_told_as_given_up_and_nothing_louder() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let (heard, _listening) = Heard::listen();
    let leases = db.client();
    let waiter = waiter(&leases, &name, &heard).await;

    waiter.abort();

    eventually(SOON, "the wait is told to be over", async || {
        heard.told_of(&name, "gave up waiting") == 1
    })
    .await;
    // What the dropped one has left to be undone is done.
    leases.close().await;
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

#[tokio::test]
async fn acquire_that_is_dropped_at_any_point_tells_nothing_louder_than_debug() {
    let (db, names) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();

    for polls in 0..8 {
        for when in [Drop::Pending(polls), Drop::Woken(polls)] {
            let name = format!("{names}:{polls}:{when:?}");
            drop(dropped(when, leases.acquire(&name).into_future()).await);
            drop(dropped(when, leases.try_acquire(&name)).await);
        }
    }
    db.is_let_go(&names).await;
    leases.close().await;

    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

#[tokio::test]
async fn wait_that_closing_the_client_ends_is_told_as_given_up_and_nothing_louder() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let (heard, _listening) = Heard::listen();
    let leases = db.client();
    let waiter = waiter(&leases, &name, &heard).await;

    leases.close().await;

    assert!(matches!(waiter.await.unwrap(), Err(Error::Closed)));
    assert_eq!(heard.told_of(&name, "gave up waiting"), 1);
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

/// Somebody who has begun to wait.
async fn waiter(leases: &LeaseClient, name: &str, heard: &Heard) -> JoinHandle<Result<Lease, Error>> {
    let waiter = tokio::spawn(leases.acquire(name).ttl(LONG).into_future());
    eventually(SOON, "the wait is told to have begun", async || {
        heard.told_of(name, "began to wait") == 1
    })
    .await;
    waiter
}

/// Of a wait: long enough for a first answer, also on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(2);
