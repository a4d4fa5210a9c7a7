//! A reply that never comes: the database has done what was asked, and the client does not know.
//!
//! Every operation is repeatable by its owner token, so the lane asks again on a new connection.

use std::time::Duration;

use leasehold::Release;
use leasehold_testkit::eventually;

use crate::support::SOON;
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn acquire_whose_reply_is_lost_gets_the_grant_that_was_made() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let leases = db.through(&proxy).client();

    proxy.hold_replies_after_execute("leasehold.acquire");
    let acquiring = leases.acquire(&name).ttl(TTL);
    let (lease, granted) = tokio::join!(acquiring, async {
        eventually(SOON, "the grant is in the database", async || {
            db.row(&name).await.filter(|row| row.is_held())
        })
        .await
    });

    // Whoever had waited for himself would have a later grant.
    let lease = lease.unwrap();
    assert_eq!(i64::from(lease.fencing_token()), granted.token);
    assert_eq!(proxy.accepted(), 2);
    assert_eq!(lease.release().await.unwrap(), Release::Released);
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn batch_of_acquires_whose_reply_is_lost_gets_the_grants_that_were_made() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let leases = db.through(&proxy).client();
    let names: Vec<String> = (0..16).map(|number| format!("{name}:{number}")).collect();

    proxy.hold_replies_after_execute("leasehold.acquire_many");
    let acquiring: Vec<_> = names
        .iter()
        .map(|name| tokio::spawn(leases.acquire(name).ttl(TTL).into_future()))
        .collect();
    let mut granted = Vec::new();
    for name in &names {
        let row = eventually(SOON, "the grant is in the database", async || {
            db.row(name).await.filter(|row| row.is_held())
        });
        granted.push(row.await.token);
    }
    let mut leases = Vec::new();
    for lease in acquiring {
        leases.push(lease.await.unwrap().unwrap());
    }

    let tokens: Vec<i64> = leases.iter().map(|lease| lease.fencing_token().into()).collect();
    assert_eq!(tokens, granted);
    assert_eq!(proxy.accepted(), 2, "the fault has hit");
}

#[tokio::test]
async fn renewal_whose_reply_is_lost_is_sent_again_and_the_lease_is_kept() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let lease = db
        .through(&proxy)
        .client()
        .acquire(&name)
        .ttl(TTL)
        .manual_renewal()
        .await
        .unwrap();
    let before = db.row(&name).await.unwrap();

    proxy.hold_replies_after_execute("leasehold.renew");
    lease.renew().await.unwrap();

    assert!(lease.is_held());
    assert_eq!(proxy.accepted(), 2, "the fault has hit");
    let after = db.row(&name).await.unwrap();
    assert!(after.is_held());
    assert_eq!((after.token, after.owner), (before.token, before.owner));
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn release_whose_reply_is_lost_is_unknown_and_the_name_is_free() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let lease = db.through(&proxy).client().acquire(&name).ttl(TTL).await.unwrap();

    proxy.hold_replies_after_execute("leasehold.release");
    let released = lease.release().await;

    assert_eq!(released.unwrap(), Release::Unknown);
    assert_eq!(proxy.accepted(), 2, "the fault has hit");
    assert!(!db.is_held(&name).await);
}

/// The handle goes with the release, so nobody is left to ask `is_held()`; what can still be seen
/// of its end is that the next holder is let in and that no renewal follows.
#[tokio::test]
async fn unanswered_release_lets_the_next_holder_in_and_is_followed_by_no_renewal() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let (behind, direct) = (db.through(&proxy).client(), db.client());
    let lease = behind.acquire(&name).ttl(TTL).await.unwrap();
    let first = lease.fencing_token();

    let renewal = proxy.wait_for_execute("leasehold.renew");
    proxy.hold_replies_after_execute("leasehold.release");
    let mut releasing = Box::pin(lease.release());
    let next = tokio::select! {
        biased;
        released = &mut releasing => panic!("the release was answered: {released:?}"),
        next = direct.acquire(&name).ttl(TTL * 10).wait_at_most(SOON) => next.unwrap(),
    };

    assert!(next.fencing_token() > first);
    assert_eq!(releasing.await.unwrap(), Release::Unknown);
    // A kept registry entry would have been due within a third of the ttl.
    assert!(tokio::time::timeout(TTL / 2, renewal).await.is_err());
    assert!(next.is_held());
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

/// The lane gives a connection up after a third of it.
const TTL: Duration = Duration::from_secs(3);
