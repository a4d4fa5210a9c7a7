//! Waiting for a name that somebody else holds, or whose row an open transaction pins.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::Error;
use leasehold_testkit::eventually;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn zero_wait_on_a_free_name_acquires() {
    let (db, name) = (TestDb::shared().await, unique_name!());

    let lease = db.client().acquire(&name).wait_at_most(Duration::ZERO).await;

    assert!(lease.unwrap().is_held());
}

#[tokio::test]
async fn zero_wait_on_a_held_name_answers_at_once() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let other = db.builder().answer_within(LONG).build().unwrap();
    let asked_at = Instant::now();

    let refused = other.acquire(&name).wait_at_most(Duration::ZERO).await;

    assert!(matches!(refused, Err(Error::WaitTimedOut { .. })), "{refused:?}");
    assert!(asked_at.elapsed() < SOON);
}

#[tokio::test]
async fn wait_ends_at_its_limit_and_tells_who_holds_the_name_since_when() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).holder("batch-7").await.unwrap();
    let since = db.lock(&name).await.unwrap().acquired_at;
    let (limit, asked_at) = (Duration::from_millis(700), Instant::now());

    let refused = db.client().acquire(&name).wait_at_most(limit).await.unwrap_err();

    let elapsed = asked_at.elapsed();
    assert!(elapsed >= limit && elapsed < limit + SOON / 2, "{elapsed:?}");
    assert!(refused.to_string().contains("batch-7"), "{refused}");
    let Error::WaitTimedOut {
        name: of,
        holder,
        held_since,
        pinned,
        waited,
        ..
    } = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!((of.as_str(), holder.as_deref()), (&*name, Some("batch-7")));
    assert_eq!(held_since, Some(since));
    assert!(!pinned);
    assert!(waited >= limit && waited <= elapsed);
}

#[tokio::test]
async fn waiter_is_granted_the_name_once_it_is_released() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let token = held.fencing_token();
    let waiter = tokio::spawn(db.client().acquire(&name).wait_at_most(SOON).into_future());
    let limit = db
        .client()
        .acquire(&name)
        .wait_at_most(Duration::from_millis(300))
        .await;
    assert!(
        limit.is_err() && !waiter.is_finished(),
        "it waits as long as the name is held"
    );

    held.release().await.unwrap();

    assert!(waiter.await.unwrap().unwrap().fencing_token() > token);
}

#[tokio::test]
async fn waiter_is_granted_the_name_of_a_crashed_holder_once_its_ttl_is_over() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let token = db.crashed_holder(&name, Duration::from_millis(1200)).await;
    let expires_at = db.lock(&name).await.unwrap().expires_at;

    let lease = db.client().acquire(&name).wait_at_most(SOON).await.unwrap();

    assert!(lease.fencing_token() > token);
    let granted_at = db.lock(&name).await.unwrap().acquired_at;
    assert!(granted_at >= expires_at);
    assert!(granted_at < expires_at + SOON / 4, "{:?}", granted_at - expires_at);
}

#[tokio::test]
async fn wait_without_a_limit_outlasts_the_time_an_answer_may_take() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let expired_after = Duration::from_millis(1500);
    let token = db.crashed_holder(&name, expired_after).await;
    let leases = db.builder().answer_within(expired_after / 3).build().unwrap();

    let lease = tokio::time::timeout(SOON, leases.acquire(&name)).await;

    assert!(lease.expect("the wait ends").unwrap().fencing_token() > token);
}

#[tokio::test]
async fn name_pinned_by_an_open_fenced_transaction_is_reported_as_pinned() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let lease = leases.acquire(&name).ttl(LONG).await.unwrap();
    let tx = lease.begin(&db.pool).await.unwrap();
    lease.release().await.unwrap();

    let asked = leases.try_acquire(&name).await;
    let waited = leases.acquire(&name).wait_at_most(Duration::from_millis(300)).await;

    assert!(asked.unwrap().is_none());
    assert!(
        matches!(waited, Err(Error::WaitTimedOut { pinned: true, .. })),
        "{waited:?}"
    );
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn waiter_is_granted_a_pinned_name_soon_after_the_transaction_ends() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let lease = leases.acquire(&name).ttl(LONG).await.unwrap();
    let token = lease.fencing_token();
    let tx = lease.begin(&db.pool).await.unwrap();
    lease.release().await.unwrap();
    let waiter = tokio::spawn(leases.acquire(&name).into_future());
    let other = leases.acquire(&name).wait_at_most(Duration::from_millis(300)).await;
    assert!(
        other.is_err() && !waiter.is_finished(),
        "it waits as long as the name is pinned"
    );

    tx.commit().await.unwrap();

    let granted = tokio::time::timeout(SOON, waiter).await.expect("the wait ends");
    assert!(granted.unwrap().unwrap().fencing_token() > token);
}

#[tokio::test]
async fn name_that_another_session_keeps_locked_is_busy_and_neither_held_nor_granted() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.builder().answer_within(Duration::from_millis(500)).build().unwrap();
    leases.acquire(&name).await.unwrap().release().await.unwrap();
    let mut psql = db.pool.begin().await.unwrap();
    sqlx::query("select from leasehold.locks where name = $1 for update")
        .bind(&name)
        .execute(&mut *psql)
        .await
        .unwrap();

    let asked = leases.try_acquire(&name).await;
    let waited = leases.acquire(&name).wait_at_most(Duration::from_millis(300)).await;

    assert!(matches!(asked, Err(Error::Busy { .. })), "{asked:?}");
    assert!(matches!(waited, Err(Error::Busy { .. })), "{waited:?}");
    psql.rollback().await.unwrap();
    assert!(leases.try_acquire(&name).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_several_clients_hold_the_name_one_at_a_time_and_all_come_to_it() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let inside = std::sync::Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();

    for _ in 0..3 {
        let leases = db.client();
        for _ in 0..3 {
            let (leases, name, inside) = (leases.clone(), name.clone(), inside.clone());
            waiters.spawn(async move {
                let lease = leases.acquire(&name).ttl(LONG).wait_at_most(LONG).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "nobody else holds it");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                let token = lease.fencing_token();
                lease.release().await.unwrap();
                token
            });
        }
    }
    let mut tokens = waiters.join_all().await;

    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 9);
}

#[tokio::test]
async fn wait_is_ended_by_closing_the_client() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let leases = db.client();
    let waiter = tokio::spawn(leases.acquire(&name).into_future());
    eventually(SOON, "the waiter has asked", async || {
        leases.try_acquire(&name).await.unwrap().is_none()
    })
    .await;

    leases.close().await;

    let ended = tokio::time::timeout(SOON, waiter).await.expect("the wait ends");
    assert!(matches!(ended.unwrap(), Err(Error::Closed)));
}
