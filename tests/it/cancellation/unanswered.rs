//! Dropped while nobody knows whether the statement was carried out: its connection is gone, and the
//! database may have granted what nobody wants any more.

use std::time::Duration;

use leasehold_testkit::eventually;
use tokio::time::sleep;

use super::stage::{Stage, nobody_waits};
use crate::support::SOON;
use crate::support::cancelled::{Drop, Rng, dropped};

#[tokio::test]
async fn acquire_whose_connection_is_cut_under_it_and_that_is_dropped_then_leaves_nothing() {
    let (stage, mut rng) = (Stage::set(Duration::ZERO).await, Rng::new());
    let mut was_dropped = 0;

    for turn in 0..CUTS {
        let name = stage.name();
        stage.proxy.hold_replies_after_execute("leasehold.acquire");
        let cut = stage.proxy.wait_for_execute("leasehold.acquire");
        let acquire = stage.leases.acquire(&name);
        let limit = rng.pause(Duration::from_millis(30));
        let acquiring = tokio::spawn(async move {
            match turn % 2 {
                0 => dropped(Drop::After(limit), acquire.try_acquire()).await.is_none(),
                _ => dropped(Drop::After(limit), acquire.into_future()).await.is_none(),
            }
        });
        cut.await;
        // Carried out, and its answer on the way.
        sleep(rng.pause(Duration::from_millis(4))).await;
        stage.proxy.resume();
        if rng.in_range(0..2) == 0 {
            stage.proxy.cut()
        } else {
            stage.proxy.reset()
        };
        was_dropped += u32::from(acquiring.await.unwrap());

        stage.is_free(&name).await;
        nobody_waits(&stage.db, &name).await;
    }

    assert!(was_dropped > CUTS / 10, "dropped {was_dropped} times");
    stage.ends_clean().await;
}

#[tokio::test]
async fn release_whose_connection_is_cut_under_it_and_that_is_dropped_then_still_releases() {
    let (stage, mut rng) = (Stage::set(Duration::ZERO).await, Rng::new());

    for _ in 0..CUTS / 2 {
        let name = stage.name();
        let lease = stage.lease(&name).await;
        let cut = stage.proxy.wait_for_execute("leasehold.release");
        let limit = rng.pause(Duration::from_millis(10));
        let releasing = tokio::spawn(async move { dropped(Drop::After(limit), lease.release()).await });
        cut.await;
        stage.proxy.cut();
        let _ = releasing.await.unwrap();

        stage.is_free(&name).await;
    }

    stage.ends_clean().await;
}

#[tokio::test]
async fn waiter_whose_connection_is_cut_under_it_and_that_is_dropped_then_leaves_the_line() {
    let (stage, mut rng) = (Stage::set(Duration::ZERO).await, Rng::new());

    for _ in 0..CUTS / 4 {
        let name = stage.name();
        let theirs = stage.theirs(&name).await;
        let wait = tokio::spawn(stage.leases.acquire(&name).into_future());
        sleep(rng.pause(Duration::from_millis(10))).await;
        stage.proxy.cut();
        sleep(rng.pause(Duration::from_millis(10))).await;
        wait.abort();
        let _ = wait.await;

        eventually(SOON, "it is out of line", async || {
            theirs.is_held() && stage.db.is_held(&name).await
        })
        .await;
        nobody_waits(&stage.db, &name).await;
        theirs.release().await.unwrap();
        stage.is_free(&name).await;
    }

    stage.ends_clean().await;
}

const CUTS: u32 = 60;
