//! Renewal, and how a lease is lost: each of the ways to learn of it, and that none leads back.

use std::time::Duration;

use leasehold::{Error, LossCause, Release};
use leasehold_testkit::eventually;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn lease_is_renewed_in_the_background_for_longer_than_its_ttl() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(SHORT).await.unwrap();
    let first = db.lock(&name).await.unwrap();

    eventually(
        SOON,
        "it was renewed past its first expiry and the one after",
        async || db.lock(&name).await.unwrap().expires_at > first.expires_at + SHORT,
    )
    .await;

    assert!(lease.is_held());
    assert_eq!(db.lock(&name).await.unwrap().token, lease.fencing_token());
    assert!(lease.remaining() > Duration::ZERO && lease.remaining() < SHORT);
}

#[tokio::test]
async fn broken_lease_is_lost_as_gone_at_the_next_renewal() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = eager(&db);
    let lease = leases.acquire(&name).await.unwrap();

    leases.break_lease(&name).await.unwrap();
    let lost = lost_soon(&lease).await;

    assert_eq!(lost.cause, LossCause::Gone);
    assert_eq!(
        (lost.name.as_str(), lost.fencing_token),
        (&*name, lease.fencing_token())
    );
    assert!(!lease.is_held());
    assert_eq!(lease.remaining(), Duration::ZERO);
}

#[tokio::test]
async fn lease_granted_to_another_is_lost_as_superseded_at_the_next_renewal() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = eager(&db).acquire(&name).await.unwrap();

    db.supersede(&name).await;
    let lost = lost_soon(&lease).await;

    assert_eq!(lost.cause, LossCause::Superseded);
    assert_eq!(lease.release().await.unwrap(), Release::NotOwner);
    assert!(db.is_held(&name).await, "the other's lease is not touched");
}

#[tokio::test]
async fn run_until_lost_returns_what_the_work_returned() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).await.unwrap();

    let output = lease.run_until_lost(async { 42 }).await;

    assert_eq!(output, Ok(42));
    assert!(lease.is_held(), "it outlives the work");
}

#[tokio::test]
async fn run_until_lost_drops_the_work_when_the_lease_is_lost() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = eager(&db);
    let lease = leases.acquire(&name).await.unwrap();
    let (dropped_with_the_work, mut work_lives) = oneshot::channel::<()>();

    let work = async move {
        let _held = dropped_with_the_work;
        std::future::pending::<()>().await
    };
    let (ran, broken) = tokio::join!(
        tokio::time::timeout(SOON, lease.run_until_lost(work)),
        leases.break_lease(&name)
    );

    assert!(broken.unwrap());
    assert_eq!(ran.expect("the loss ends the work").unwrap_err().cause, LossCause::Gone);
    assert_eq!(work_lives.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert!(
        lease.run_until_lost(async {}).await.is_err(),
        "no work begins after the loss"
    );
}

#[tokio::test]
async fn manual_lease_is_not_renewed_unless_asked_and_is_lost_before_its_ttl_ends() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(SHORT).manual_renewal().await.unwrap();
    let granted = db.lock(&name).await.unwrap();

    let lost = lost_soon(&lease).await;

    assert_eq!(lost.cause, LossCause::Expired);
    assert_eq!(db.lock(&name).await.unwrap().expires_at, granted.expires_at);
}

#[tokio::test]
async fn renew_extends_a_manual_lease_for_another_ttl() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(SHORT).manual_renewal().await.unwrap();
    let granted = db.lock(&name).await.unwrap();
    eventually(SOON, "a part of the window has passed", async || {
        lease.remaining() < SHORT * 7 / 10
    })
    .await;

    lease.renew().await.unwrap();

    assert!(lease.remaining() > SHORT * 7 / 10);
    let renewed = db.lock(&name).await.unwrap();
    assert!(renewed.expires_at > granted.expires_at);
    assert_eq!(renewed.token, granted.token);
    assert_eq!(lost_soon(&lease).await.cause, LossCause::Expired);
    assert_eq!(db.lock(&name).await.unwrap().expires_at, renewed.expires_at);
}

#[tokio::test]
async fn renew_confirms_an_automatic_lease_at_once() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let granted = db.lock(&name).await.unwrap();

    lease.renew().await.unwrap();

    assert!(db.lock(&name).await.unwrap().expires_at > granted.expires_at);
}

#[tokio::test]
async fn renew_of_a_lease_that_passed_on_says_so() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let lease = leases.acquire(&name).ttl(LONG).await.unwrap();
    leases.break_lease(&name).await.unwrap();

    let first = lease.renew().await;
    let second = lease.renew().await;

    for renewed in [first, second] {
        assert!(
            matches!(&renewed, Err(Error::Lost(lost)) if lost.cause == LossCause::Gone),
            "{renewed:?}"
        );
    }
}

#[tokio::test]
async fn lost_lease_is_never_revived_though_its_row_is_still_there() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let lease = leases.acquire(&name).ttl(SHORT).await.unwrap();
    // Renewals find the row locked for as long as the ttl and more.
    let mut blocker = db.pool.begin().await.unwrap();
    sqlx::query("select from leasehold.locks where name = $1 for update")
        .bind(&name)
        .execute(&mut *blocker)
        .await
        .unwrap();

    let lost = lost_soon(&lease).await;
    let at_the_loss = db.lock(&name).await.unwrap();
    blocker.rollback().await.unwrap();

    assert_eq!(lost.cause, LossCause::Expired);
    assert!(matches!(lease.renew().await, Err(Error::Lost(again)) if again == lost));
    assert!(!lease.is_held());
    let next = leases.acquire(&name).wait_at_most(SOON).await.unwrap();
    let taken_over = db.lock(&name).await.unwrap();
    assert!(
        taken_over.acquired_at >= at_the_loss.expires_at,
        "by then it had run out"
    );
    assert!(next.fencing_token() > lease.fencing_token());
    assert!(!lease.is_held());
}

#[tokio::test]
async fn hold_at_most_ends_the_lease_in_time_and_renewals_with_it() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let most = SHORT * 3 / 2;
    let asked_at = Instant::now();
    let lease = db.client().acquire(&name).ttl(SHORT).hold_at_most(most).await.unwrap();
    let granted_at = Instant::now();

    let lost = lost_soon(&lease).await;
    let (lost_at, at_the_loss) = (Instant::now(), db.lock(&name).await.unwrap());

    assert_eq!(lost.cause, LossCause::HeldAtMost);
    assert!(
        lost_at >= asked_at + most,
        "renewed past the first ttl, and not lost early"
    );
    assert!(lost_at <= granted_at + most + LATE, "not lost late");
    eventually(SOON, "it runs out", async || !db.is_held(&name).await).await;
    assert_eq!(db.lock(&name).await.unwrap().expires_at, at_the_loss.expires_at);
}

/// A client whose renewals come every 50 ms, under a ttl that nothing outlasts.
fn eager(db: &TestDb) -> leasehold::LeaseClient {
    db.builder()
        .ttl(LONG)
        .renew_every(Duration::from_millis(50))
        .build()
        .unwrap()
}

async fn lost_soon(lease: &leasehold::Lease) -> leasehold::LeaseLost {
    tokio::time::timeout(SOON, lease.lost())
        .await
        .expect("the loss is signalled")
}

const SHORT: Duration = Duration::from_secs(2);

/// What a timer may be late by on a machine that is busy.
const LATE: Duration = Duration::from_secs(5);
