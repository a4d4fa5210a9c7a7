//! How acquisitions and hand-offs are timed.

use std::time::Duration;

use leasehold::Error;
use tokio::time::Instant;

use super::{ACQUIRE, HANDOFF, LIMIT, TIMEOUTS, asleep, waiter};
use crate::support::cancelled::{Drop, dropped};
use crate::support::meter::Meter;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn grant_is_timed_once_under_its_class_and_never_under_its_name() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();
    let asked_at = Instant::now();

    let lease = db.client().acquire(&name).class("settle").await.unwrap();
    let elapsed = asked_at.elapsed();
    lease.release().await.unwrap();

    let [took] = meter.samples(ACQUIRE, &[("class", "settle"), ("outcome", "granted")])[..] else {
        panic!("{:?}", meter.all())
    };
    assert!(took > 0.0 && took <= elapsed.as_secs_f64(), "{took} s");
    let told = format!("{:?}", meter.all());
    assert!(!told.contains(&name), "{told}");
}

#[tokio::test]
async fn acquisition_without_a_class_is_timed_under_the_empty_one() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();

    db.client()
        .try_acquire(&name)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();

    let granted = meter.samples(ACQUIRE, &[("class", ""), ("outcome", "granted")]);
    assert_eq!(granted.len(), 1, "{:?}", meter.all());
}

#[tokio::test]
async fn question_about_a_held_name_is_timed_as_held_whichever_way_it_is_asked() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let _held = leases.acquire(&name).ttl(LONG).await.unwrap();
    let meter = Meter::new();
    let _listening = meter.listen();

    let asked = leases.acquire(&name).class("asks").try_acquire().await;
    let no_wait = leases.acquire(&name).class("asks").wait_at_most(Duration::ZERO).await;

    assert!(asked.unwrap().is_none() && no_wait.is_err());
    let held = meter.samples(ACQUIRE, &[("class", "asks"), ("outcome", "held")]);
    assert_eq!(held.len(), 2, "{:?}", meter.all());
    assert_eq!(meter.value(TIMEOUTS, &[("class", "asks")]), 0.0);
}

#[tokio::test]
async fn wait_that_comes_to_its_limit_is_timed_and_counted_as_timed_out() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let _held = leases.acquire(&name).ttl(LONG).await.unwrap();
    let meter = Meter::new();
    let _listening = meter.listen();

    let waited = leases.acquire(&name).class("waits").wait_at_most(LIMIT).await;

    assert!(matches!(waited, Err(Error::WaitTimedOut { .. })), "{waited:?}");
    let [took] = meter.samples(ACQUIRE, &[("class", "waits"), ("outcome", "timed_out")])[..] else {
        panic!("{:?}", meter.all())
    };
    assert!(took >= LIMIT.as_secs_f64(), "{took} s");
    assert_eq!(meter.value(TIMEOUTS, &[("class", "waits")]), 1.0);
}

#[tokio::test]
async fn acquisition_that_ends_with_an_error_is_timed_as_failed() {
    let (db, name) = (TestDb::empty("leasehold_signals_empty").await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();

    let refused = db.client().acquire(&name).class("fails").await;

    assert!(matches!(refused, Err(Error::SchemaMissing { .. })), "{refused:?}");
    let failed = meter.samples(ACQUIRE, &[("class", "fails"), ("outcome", "failed")]);
    assert_eq!(failed.len(), 1, "{:?}", meter.all());
}

#[tokio::test]
async fn acquisition_that_is_never_asked_dropped_or_closed_is_not_timed() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let _held = leases.acquire(&name).ttl(LONG).await.unwrap();
    let meter = Meter::new();
    let _listening = meter.listen();

    let invalid = leases.acquire("").class("ends").await;
    let dropped = dropped(Drop::Pending(1), leases.acquire(&name).class("ends").into_future()).await;
    let waiter = waiter(&leases, &name, &meter, "ends").await;
    leases.close().await;
    let closed = waiter.await.unwrap();

    assert!(invalid.is_err() && dropped.is_none());
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    assert!(!meter.metrics().contains(ACQUIRE), "{:?}", meter.all());
}

#[tokio::test]
async fn waiter_that_is_told_of_its_turn_is_timed_from_then_to_the_grant() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let held = leases.acquire(&name).ttl(LONG).class("free").await.unwrap();
    let meter = Meter::new();
    let _listening = meter.listen();
    let waiter = waiter(&leases, &name, &meter, "waits").await;
    asleep(&leases, &name).await;

    let released_at = Instant::now();
    held.release().await.unwrap();
    let lease = waiter.await.unwrap().unwrap();
    let elapsed = released_at.elapsed();

    let [took] = meter.samples(HANDOFF, &[("class", "waits")])[..] else {
        panic!("{:?}", meter.all())
    };
    assert!(took > 0.0 && took <= elapsed.as_secs_f64(), "{took} s");
    lease.release().await.unwrap();
    // Nobody was told of a name that was free.
    let lease = leases.acquire(&name).wait_at_most(SOON).class("free").await.unwrap();
    assert!(meter.samples(HANDOFF, &[("class", "free")]).is_empty());
    lease.release().await.unwrap();
}
