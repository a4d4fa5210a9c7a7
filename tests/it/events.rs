//! What the crate tells of its work through `tracing`: past-tense facts with the lease in them.
//!
//! Each test and its client run on one thread, which is how their events are told from others'.

mod faults;
mod spans;
mod waits;

use std::time::Duration;

use leasehold::{Error, FencingToken, LossCause};
use leasehold_testkit::eventually;
use tracing::Level;

use crate::support::heard::Heard;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn clean_life_of_a_lease_is_told_at_debug_and_nothing_louder() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();

    let lease = leases.acquire(&name).ttl(LONG).await.unwrap();
    lease.renew().await.unwrap();
    let token = lease.fencing_token();
    lease.release().await.unwrap();
    leases.close().await;

    let told = heard.of_lease(&name, token);
    let messages: Vec<_> = told.iter().map(|event| &*event.message).collect();
    assert_eq!(
        messages,
        ["acquired the lease", "renewed the lease", "released the lease"]
    );
    assert!(told.iter().all(|event| event.level == Level::DEBUG), "{told:?}");
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

#[tokio::test]
async fn every_event_of_a_lease_carries_the_same_owner() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();

    let lease = db.client().acquire(&name).await.unwrap();
    lease.renew().await.unwrap();
    let token = lease.fencing_token();
    let owner: uuid::Uuid = sqlx::query_scalar("select owner from leasehold.locks where name = $1")
        .bind(&name)
        .fetch_one(&db.pool)
        .await
        .unwrap();
    lease.release().await.unwrap();

    let told = heard.of_lease(&name, token);
    assert_eq!(told.len(), 3);
    for event in told {
        assert_eq!(event.fields.get("lease.owner"), Some(&owner.to_string()), "{event:?}");
    }
}

#[tokio::test]
async fn renewal_that_finds_the_row_locked_is_told_as_a_warning_and_retried() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.builder().ttl(LONG).renew_every(EAGER).build().unwrap();
    let lease = leases.acquire(&name).await.unwrap();
    let token = lease.fencing_token();
    let mut psql = db.pool.begin().await.unwrap();
    sqlx::query("select from leasehold.locks where name = $1 for update")
        .bind(&name)
        .execute(&mut *psql)
        .await
        .unwrap();

    let warned = eventually(SOON, "the renewal is told to be retried", async || {
        let told = heard.of_lease(&name, token);
        told.into_iter().find(|event| event.level == Level::WARN)
    })
    .await;
    let renewed_before = heard.count(&name, token, "renewed the lease");
    psql.rollback().await.unwrap();

    assert!(warned.message.contains("will be retried"), "{warned:?}");
    eventually(SOON, "the retried renewal is told", async || {
        heard.count(&name, token, "renewed the lease") > renewed_before
    })
    .await;
    assert!(lease.is_held());
}

#[tokio::test]
async fn lost_lease_is_told_once_as_an_error_with_its_cause() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.builder().ttl(LONG).renew_every(EAGER).build().unwrap();
    let lease = leases.acquire(&name).await.unwrap();
    let token = lease.fencing_token();

    leases.break_lease(&name).await.unwrap();
    let lost = lease.lost().await;
    lease.release().await.unwrap();
    leases.close().await;

    let told = heard.of_lease(&name, token);
    let errors: Vec<_> = told.iter().filter(|event| event.level == Level::ERROR).collect();
    let [error] = errors[..] else { panic!("{errors:?}") };
    assert_eq!(error.message, "lost the lease");
    assert_eq!(error.fields.get("cause"), Some(&lost.cause.to_string()));
}

#[tokio::test]
async fn lease_that_ran_out_is_told_as_lost_while_its_holder_still_has_it() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let acquire = db.client().acquire(&name).ttl(Duration::from_secs(1)).manual_renewal();
    let lease = acquire.await.unwrap();

    let lost = lease.lost().await;

    assert_eq!(lost.cause, LossCause::Expired);
    eventually(SOON, "the loss is told", async || {
        heard.count(&name, lost.fencing_token, "lost the lease") == 1
    })
    .await;
    assert!(!lease.is_held());
}

#[tokio::test]
async fn lease_dropped_the_moment_it_is_lost_is_told_as_lost_all_the_same() {
    let (db, names) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();

    let one = async |name: String| {
        let acquire = leases.acquire(&name).hold_at_most(Duration::from_secs(1));
        let lease = acquire.await.unwrap();
        let lost = lease.lost().await;
        drop(lease);
        (name, lost)
    };
    let name = |i| format!("{names}:{i}");
    let (a, b, c, d) = tokio::join!(one(name(1)), one(name(2)), one(name(3)), one(name(4)));
    leases.close().await;

    for (name, lost) in [a, b, c, d] {
        assert_eq!(lost.cause, LossCause::HeldAtMost);
        let told = heard.of_lease(&name, lost.fencing_token);
        let losses = told.iter().filter(|event| event.message == "lost the lease");
        assert_eq!(losses.count(), 1, "{told:?}");
    }
}

#[tokio::test]
async fn lease_that_is_dropped_is_told_as_released_and_nothing_louder() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();

    let lease = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let token = lease.fencing_token();
    drop(lease);
    db.is_let_go(&name).await;

    assert_eq!(heard.count(&name, token, "released the lease"), 1);
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

#[tokio::test]
async fn leases_of_a_client_that_is_closed_are_told_as_released_and_nothing_louder() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();

    let lease = leases.acquire(&name).ttl(LONG).await.unwrap();
    leases.close().await;

    assert_eq!(lease.lost().await.cause, LossCause::Closed);
    let told = heard.count(&name, lease.fencing_token(), "released the lease of a closed client");
    assert_eq!(told, 1);
    drop(lease);
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

#[tokio::test]
async fn broken_lease_is_told() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();
    let _lease = leases.acquire(&name).ttl(LONG).await.unwrap();

    assert!(leases.break_lease(&name).await.unwrap());

    let told = heard.all();
    let told: Vec<_> = told.iter().filter(|event| event.message == "broke the lease").collect();
    let [told] = told[..] else { panic!("{told:?}") };
    assert_eq!((told.level, told.fields.get("lease.name")), (Level::DEBUG, Some(&name)));
}

#[tokio::test]
async fn stale_holder_that_the_fence_keeps_from_writing_is_told_as_a_warning_each_time() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.builder().ttl(LONG).build().unwrap();
    let lease = leases.acquire(&name).await.unwrap();
    let token = lease.fencing_token();
    leases.break_lease(&name).await.unwrap();

    let by_the_database = lease.fence(&mut db.pool.begin().await.unwrap()).await;
    let known_before = lease.begin(&db.pool).await;

    assert!(by_the_database.is_err() && known_before.is_err());
    let told = heard.of_lease(&name, token);
    let warnings: Vec<_> = told.iter().filter(|event| event.level == Level::WARN).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for warning in warnings {
        assert_eq!(warning.message, "the fence refused the lease");
        assert_eq!(warning.fields.get("cause"), Some(&LossCause::Fenced.to_string()));
    }
}

#[tokio::test]
async fn stale_token_that_a_resource_refuses_is_told_as_a_warning() {
    let (db, resource) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let mut tx = db.pool.begin().await.unwrap();
    FencingToken::new(8).admit(&mut tx, &resource).await.unwrap();

    let stale = FencingToken::new(7).admit(&mut tx, &resource).await;

    assert!(matches!(stale, Err(Error::Stale { .. })), "{stale:?}");
    let told = heard.louder_than_debug();
    let [warning] = &told[..] else { panic!("{told:?}") };
    assert_eq!(
        (warning.level, &*warning.message),
        (Level::WARN, "the resource refused the fencing token")
    );
    assert_eq!(warning.fields.get("lease.fencing_token"), Some(&"7".to_owned()));
    assert!(
        warning
            .fields
            .get("resource")
            .is_some_and(|told| told.contains(&resource))
    );
}

#[tokio::test]
async fn hold_that_is_ended_by_closing_the_client_is_told_without_a_warning() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();

    let held = leases
        .acquire(&name)
        .ttl(LONG)
        .hold(async |_| leases.close().await)
        .await;
    leases.close().await;

    assert!(held.is_err());
    db.is_let_go(&name).await;
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

const EAGER: Duration = Duration::from_millis(50);
