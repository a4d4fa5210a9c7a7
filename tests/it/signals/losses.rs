//! How losses, failed renewals and refused holders are counted.

use std::time::Duration;

use leasehold::{Error, FencingToken, Lease, LossCause, is_fenced};
use leasehold_testkit::eventually;
use tokio::time::timeout;

use super::{EAGER, LOST, REJECTIONS, RENEWAL_FAILURES, lock_row};
use crate::support::meter::Meter;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn each_loss_is_counted_once_under_its_cause() {
    let (db, names) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();
    let leases = db.builder().ttl(LONG).build().unwrap();
    let acquire = |how: &str| leases.acquire(format!("{names}:{how}")).class("loses");
    let second = Duration::from_secs(2);

    let expired = acquire("expired").ttl(second).manual_renewal().await.unwrap();
    let held_at_most = acquire("held at most").hold_at_most(second / 2).await.unwrap();
    let superseded = acquire("superseded").await.unwrap();
    db.supersede(superseded.name()).await;
    superseded.renew().await.unwrap_err();
    let gone = acquire("gone").await.unwrap();
    leases.break_lease(gone.name()).await.unwrap();
    gone.renew().await.unwrap_err();
    let fenced = acquire("fenced").await.unwrap();
    leases.break_lease(fenced.name()).await.unwrap();
    fenced.fence(&mut db.pool.begin().await.unwrap()).await.unwrap_err();
    let is_lost = async |lease: &Lease| timeout(SOON, lease.lost()).await.expect("it is lost").cause;
    assert_eq!(is_lost(&held_at_most).await, LossCause::HeldAtMost);
    assert_eq!(is_lost(&expired).await, LossCause::Expired);
    let closed = acquire("closed").await.unwrap();
    leases.close().await;
    assert_eq!(is_lost(&closed).await, LossCause::Closed);
    drop([expired, held_at_most, superseded, gone, fenced, closed]);

    for cause in ["expired", "held_at_most", "superseded", "gone", "fenced", "closed"] {
        let counted = meter.value(LOST, &[("class", "loses"), ("cause", cause)]);
        assert_eq!(counted, 1.0, "{cause}: {:?}", meter.all());
    }
}

#[tokio::test]
async fn lease_that_is_released_or_dropped_is_not_counted_as_lost() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();
    let leases = db.client();

    let lease = leases.acquire(&name).ttl(LONG).await.unwrap();
    lease.release().await.unwrap();
    drop(leases.acquire(&name).ttl(LONG).await.unwrap());
    leases.close().await;

    assert!(!meter.metrics().contains(LOST), "{:?}", meter.all());
}

#[tokio::test]
async fn renewals_that_find_the_row_locked_are_counted() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();
    let leases = db.builder().ttl(LONG).renew_every(EAGER).build().unwrap();
    let lease = leases.acquire(&name).class("renews").await.unwrap();
    let failures = || meter.value(RENEWAL_FAILURES, &[("class", "renews")]);

    let locked = lock_row(&db, &name).await;
    eventually(SOON, "more than one is counted", async || failures() >= 2.0).await;
    locked.rollback().await.unwrap();

    lease.renew().await.unwrap();
    assert!(lease.is_held());
}

#[tokio::test]
async fn renewal_that_is_cut_off_is_counted() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let meter = Meter::new();
    let _listening = meter.listen();
    let leases = db.through(&proxy).builder().ttl(LONG).build().unwrap();
    let lease = leases.acquire(&name).class("renews").await.unwrap();

    proxy.hold_replies_after_execute("leasehold.renew(");
    let asked = proxy.wait_for_execute("leasehold.renew(");
    let (renewed, ()) = tokio::join!(lease.renew(), async {
        timeout(SOON, asked).await.expect("it is asked for");
        proxy.cut();
        proxy.resume();
    });

    renewed.unwrap();
    assert!(meter.value(RENEWAL_FAILURES, &[("class", "renews")]) >= 1.0);
}

#[tokio::test]
async fn stale_holder_is_counted_each_time_that_the_fence_keeps_it_from_writing() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();
    let leases = db.builder().ttl(LONG).build().unwrap();
    let lease = leases.acquire(&name).class("writes").await.unwrap();
    let rejections = || meter.value(REJECTIONS, &[("class", "writes"), ("check", "fence")]);

    lease.begin(&db.pool).await.unwrap().commit().await.unwrap();
    assert_eq!(rejections(), 0.0);
    leases.break_lease(&name).await.unwrap();
    lease.fence(&mut db.pool.begin().await.unwrap()).await.unwrap_err();
    assert_eq!(rejections(), 1.0, "the database refuses it");
    lease.begin(&db.pool).await.unwrap_err();
    assert_eq!(rejections(), 2.0, "it is known to be lost");

    // A statement of the caller's own, and the question about its error, are not the crate's to count.
    let sql = "select leasehold.fence($1, $2)";
    let inline = sqlx::query(sql).bind(&name).bind(lease.fencing_token());
    assert!(is_fenced(&inline.execute(&db.pool).await.unwrap_err()));
    assert_eq!(rejections(), 2.0);
}

#[tokio::test]
async fn stale_token_is_counted_when_the_resource_refuses_it() {
    let (db, resource) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();
    let rejections = || meter.value(REJECTIONS, &[("class", ""), ("check", "admit")]);
    let mut tx = db.pool.begin().await.unwrap();

    FencingToken::new(8).admit(&mut tx, &resource).await.unwrap();
    assert_eq!(rejections(), 0.0);
    let stale = FencingToken::new(7).admit(&mut tx, &resource).await;

    assert!(matches!(stale, Err(Error::Stale { .. })), "{stale:?}");
    assert_eq!(rejections(), 1.0);
}
