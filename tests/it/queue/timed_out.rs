//! Waits that end without the name.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use leasehold::Error;
use tokio::time::Instant;

use super::{AT_ONCE, by_events, clock, granted, granted_at, line_is, listens, stand_in_line};
use crate::support::{LONG, TestDb, unique_name};

#[tokio::test]
async fn timed_out_wait_tells_of_the_present_holder_and_of_who_is_ahead_now() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db
        .builder()
        .heartbeat_every(Duration::from_millis(100))
        .build()
        .unwrap();
    let first = leases.acquire(&name).ttl(LONG).holder("first").await.unwrap();
    let second = stand_in_line(&db, &name, leases.acquire(&name).ttl(LONG).holder("second")).await;
    let _third = stand_in_line(&db, &name, leases.acquire(&name).ttl(LONG).holder("third")).await;
    let waits = stand_in_line(&db, &name, leases.acquire(&name).wait_at_most(AT_ONCE / 2)).await;

    first.release().await.unwrap();
    let _second = granted(second).await;
    let since = db.lock(&name).await.unwrap().acquired_at;
    let ended = waits.await.unwrap().unwrap_err();

    assert!(ended.to_string().contains("held by second, 1 ahead"), "{ended}");
    let Error::WaitTimedOut {
        name: of,
        holder,
        held_since,
        pinned,
        ahead,
        waited,
        ..
    } = ended
    else {
        panic!("{ended:?}")
    };
    assert_eq!(of.as_str(), name);
    assert_eq!((holder.as_deref(), held_since), (Some("second"), Some(since)));
    assert_eq!((pinned, ahead), (false, 1));
    assert!(waited >= AT_ONCE / 2);
}

#[tokio::test]
async fn who_gives_up_leaves_the_line_and_is_in_nobodys_way() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let (others, (builder, application)) = (db.client(), by_events(&db));
    let leases = builder.build().unwrap();
    let timed_out = stand_in_line(&db, &name, others.acquire(&name).wait_at_most(AT_ONCE / 3)).await;
    let dropped = stand_in_line(&db, &name, others.acquire(&name)).await;
    let stays = stand_in_line(&db, &name, leases.acquire(&name)).await;
    listens(&db, &application).await;

    let ended = timed_out.await.unwrap();
    dropped.abort();
    line_is(&db, &name, 1).await;
    let released_at = Instant::now();
    held.release().await.unwrap();
    let _lease = granted(stays).await;

    assert!(matches!(ended, Err(Error::WaitTimedOut { ahead: 0, .. })), "{ended:?}");
    assert!(released_at.elapsed() < AT_ONCE);
    line_is(&db, &name, 0).await;
}

#[tokio::test]
async fn who_is_dropped_just_after_it_was_told_passes_its_turn_on() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let ((of_first, hears_first), (of_second, hears_second)) = (by_events(&db), by_events(&db));
    let (of_first, of_second) = (of_first.build().unwrap(), of_second.build().unwrap());
    let is_released = Arc::new(AtomicBool::new(false));
    let (acquire, is_told) = (of_first.acquire(&name), Arc::clone(&is_released));
    let first = tokio::spawn(async move {
        let mut wait = acquire.into_future();
        // Woken after the release, it is dropped before it can do anything about it.
        poll_fn(|cx| {
            if is_told.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
            wait.as_mut().poll(cx).map(|ended| panic!("{ended:?}"))
        })
        .await;
    });
    line_is(&db, &name, 1).await;
    let second = stand_in_line(&db, &name, of_second.acquire(&name)).await;
    listens(&db, &hears_first).await;
    listens(&db, &hears_second).await;

    is_released.store(true, Ordering::SeqCst);
    let released_at = clock(&db).await;
    held.release().await.unwrap();
    first.await.expect("it was told");
    let _lease = granted(second).await;

    let after = granted_at(&db, &name).await - released_at;
    assert!(after.to_std().unwrap() < AT_ONCE, "{after}");
    line_is(&db, &name, 0).await;
}
