//! What goes up comes down again, whatever way is taken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use leasehold::{LeaseClient, LossCause};
use leasehold_testkit::eventually;
use tokio::task::yield_now;

use super::{ACQUIRE, HELD, LIMIT, WAITERS, waiter};
use crate::support::meter::Meter;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn waiters_are_counted_until_they_are_granted_the_name_or_dropped() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let held = leases.acquire(&name).ttl(LONG).await.unwrap();
    let meter = Meter::new();
    let _listening = meter.listen();
    let count = async |waiting: f64| {
        eventually(SOON, "so many wait", async || {
            let told = meter.value(WAITERS, &[("class", "waits")]);
            if told == waiting { Ok(()) } else { Err(told) }
        })
        .await;
    };

    let first = waiter(&leases, &name, &meter, "waits").await;
    let second = tokio::spawn(leases.acquire(&name).class("waits").into_future());
    count(2.0).await;
    second.abort();
    count(1.0).await;
    held.release().await.unwrap();
    let granted = first.await.unwrap().unwrap();

    assert_eq!(meter.value(WAITERS, &[("class", "waits")]), 0.0);
    granted.release().await.unwrap();
}

#[tokio::test]
async fn waiter_that_times_out_panics_or_whose_client_closes_is_counted_no_more() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let meter = Meter::new();
    let _listening = meter.listen();
    let waiting = |class| meter.value(WAITERS, &[("class", class)]);
    let leases = db.client();

    let timed_out = leases.acquire(&name).class("limit").wait_at_most(LIMIT).await;
    let panicked = panics(async {
        let mut acquire = pin!(leases.acquire(&name).class("panics").into_future());
        tokio::select! {
            granted = &mut acquire => drop(granted),
            () = until(|| waiting("panics") == 1.0) => panic!("on purpose"),
        }
    })
    .await;
    let waiter = waiter(&leases, &name, &meter, "closes").await;
    leases.close().await;
    let closed = waiter.await.unwrap();

    assert!(timed_out.is_err() && panicked && closed.is_err());
    for class in ["limit", "panics", "closes"] {
        assert_eq!(waiting(class), 0.0, "{class}");
        assert!(meter.told(WAITERS, &[("class", class)]), "{class}");
    }
}

#[tokio::test]
async fn lease_is_counted_until_it_is_let_go_of() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();
    let held = || meter.value(HELD, &[("class", "held")]);
    let leases = db.client();
    let take = || leases.acquire(&name).ttl(LONG).class("held");

    let lease = take().await.unwrap();
    assert_eq!(held(), 1.0);
    lease.release().await.unwrap();
    assert_eq!(held(), 0.0, "it is released");

    let lease = take().await.unwrap();
    assert_eq!(held(), 1.0);
    drop(lease);
    assert_eq!(held(), 0.0, "it is dropped");

    let lease = take().await.unwrap();
    assert_eq!(held(), 1.0);
    std::thread::spawn(|| drop(lease)).join().unwrap();
    assert_eq!(held(), 0.0, "it is dropped on another thread");

    let work = take().hold(async |_| {
        if held() == 1.0 {
            panic!("on purpose")
        }
    });
    assert!(panics(async { drop(work.await) }).await);
    assert_eq!(held(), 0.0, "it is dropped by a panic");
}

#[tokio::test]
async fn lease_is_counted_until_it_is_lost_though_its_holder_still_has_it() {
    let (db, names) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();
    let held = || meter.value(HELD, &[("class", "held")]);
    let take = async |leases: &LeaseClient, how: &str| {
        let acquire = leases.acquire(format!("{names}:{how}")).ttl(LONG).class("held");
        acquire.await.unwrap()
    };
    let leases = db.client();

    let broken = take(&leases, "broken").await;
    leases.break_lease(broken.name()).await.unwrap();
    broken.renew().await.unwrap_err();
    assert_eq!(held(), 0.0, "it is broken");

    let closed = take(&leases, "closed").await;
    std::mem::forget(take(&leases, "leaked").await);
    assert_eq!(held(), 2.0);
    leases.close().await;
    assert_eq!(closed.lost().await.cause, LossCause::Closed);
    assert_eq!(held(), 0.0, "its client is closed");
}

#[tokio::test]
async fn recorder_that_is_installed_while_a_lease_is_held_never_counts_below_zero() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (before, since) = (Meter::new(), Meter::new());
    let listening = before.listen();
    let lease = db.client().acquire(&name).ttl(LONG).class("held").await.unwrap();

    drop(listening);
    let _listening = since.listen();
    lease.release().await.unwrap();

    assert_eq!(before.value(HELD, &[("class", "held")]), 0.0);
    assert!(before.metrics().contains(ACQUIRE));
    assert!(!since.metrics().contains(HELD), "{:?}", since.all());
}

/// Looks again whenever anything else may have happened.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now().await;
    }
}

/// Whether the future panics; it is dropped then.
async fn panics(future: impl Future<Output = ()>) -> bool {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        polled.map_or(Poll::Ready(true), |polled| polled.map(|()| false))
    })
    .await
}
