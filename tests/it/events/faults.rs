//! What is told when the database, the network or time fails an operation.

use std::time::Duration;

use leasehold_testkit::eventually;
use sqlx::Executor;
use tokio::time::timeout;
use tracing::Level;

use crate::support::heard::Heard;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn renewal_that_is_cut_off_is_told_as_a_warning_and_retried() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let (heard, _listening) = Heard::listen();
    let leases = db.through(&proxy).builder().ttl(LONG).build().unwrap();
    let lease = leases.acquire(&name).await.unwrap();
    let token = lease.fencing_token();

    proxy.hold_replies_after_execute("leasehold.renew(");
    let asked = proxy.wait_for_execute("leasehold.renew(");
    let (renewed, ()) = tokio::join!(lease.renew(), async {
        timeout(SOON, asked).await.expect("it is asked for");
        proxy.cut();
        proxy.resume();
    });

    renewed.unwrap();
    let told = heard.of_lease(&name, token);
    let warning = told.iter().find(|event| event.level == Level::WARN).expect("a warning");
    assert_eq!(warning.message, "renewal was not answered and will be retried");
    assert!(warning.fields.contains_key("error"));
    assert_eq!(heard.count(&name, token, "renewed the lease"), 1);
    assert!(heard.told(Level::WARN, "lane lost its connection") > 0);
}

#[tokio::test]
async fn standing_for_election_that_fails_is_told_as_a_warning_and_repeated() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let (heard, _listening) = Heard::listen();
    let leases = db.through(&proxy).builder().ttl(LONG);
    let leases = leases.answer_within(Duration::from_millis(500)).build().unwrap();

    proxy.pause();
    let leading = leases.lead(&name, async |_| leases.close().await);
    let (led, ()) = tokio::join!(leading, async {
        let told = "could not stand for election";
        eventually(SOON, "the failure is told", async || heard.told_of(&name, told) > 0).await;
        proxy.resume();
    });

    led.unwrap();
    assert!(heard.told_of(&name, "acquired the lease") > 0);
}

#[tokio::test]
async fn release_and_close_that_are_not_answered_are_told_as_warnings() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let (heard, _listening) = Heard::listen();
    let leases = db.through(&proxy).builder().ttl(LONG);
    let leases = leases.answer_within(Duration::from_millis(500)).build().unwrap();

    let held = leases
        .acquire(&name)
        .wait_at_most(SOON)
        .hold(async |_| proxy.hold_replies());
    held.await.unwrap();
    leases.close().await;
    proxy.resume();

    let told = heard.louder_than_debug();
    let not_released = told
        .iter()
        .find(|event| event.message.starts_with("the lease was not released"));
    assert_eq!(not_released.expect("it is told").within, ["hold"]);
    let not_closed = told
        .iter()
        .find(|event| event.message.starts_with("the database did not answer"));
    assert_eq!(not_closed.expect("it is told").within, ["close"]);
}

#[tokio::test]
async fn waiter_that_cannot_leave_the_line_is_told_as_a_warning() {
    let (db, name) = (TestDb::own("leasehold_events_leave").await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();
    let _held = leases.acquire(&name).ttl(LONG).await.unwrap();
    db.pool
        .execute("alter function leasehold.leave(uuid) rename to left_behind")
        .await
        .unwrap();

    let refused = leases.acquire(&name).wait_at_most(LIMIT).await;

    assert!(refused.is_err());
    eventually(SOON, "it is told", async || {
        heard.told(Level::WARN, "could not leave the queue") == 1
    })
    .await;
}

/// Of a wait: long enough for a first answer, also on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(2);
