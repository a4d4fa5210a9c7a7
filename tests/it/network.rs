//! A network that swallows, breaks off, delays or refuses: what it costs, and when a loss is known.

use std::time::Duration;

use leasehold::{Error, LossCause, Release};
use tokio::time::timeout;

use crate::support::heard::Heard;
use crate::support::{SOON, TestDb, unique_name};

#[tokio::test]
async fn holder_behind_a_black_hole_knows_the_loss_before_the_database_may_grant_again() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let leases = db
        .through(&proxy)
        .builder()
        .ttl(LONG)
        .margin(LONG / 2)
        .renew_every(LONG / 5)
        .build()
        .unwrap();
    let lease = leases.acquire(&name).await.unwrap();

    proxy.pause();
    let worked = timeout(SOON, lease.run_until_lost(std::future::pending::<()>()))
        .await
        .unwrap();
    let row = db.row(&name).await.unwrap();

    let lost = worked.unwrap_err();
    assert_eq!(
        (lost.cause, lost.fencing_token),
        (LossCause::Expired, lease.fencing_token())
    );
    assert!(
        row.is_held(),
        "known too late: the lease ran out {} s ago",
        -row.expires_in
    );
    assert_eq!(row.token, lease.fencing_token().get());
    assert!(!lease.is_held());
    assert_eq!(lease.lost().await.cause, LossCause::Expired);

    // Nothing revives it, and letting it go frees what the database may still hold.
    proxy.resume();
    assert!(matches!(lease.renew().await, Err(Error::Lost(_))));
    lease.release().await.unwrap();
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn loss_is_known_in_time_although_requests_still_reach_the_server() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let leases = db
        .through(&proxy)
        .builder()
        .ttl(LONG)
        .margin(LONG / 2)
        .renew_every(LONG / 5)
        .build()
        .unwrap();
    let lease = leases.acquire(&name).await.unwrap();

    proxy.hold_replies();
    let lost = timeout(SOON, lease.lost()).await.unwrap();
    let row = db.row(&name).await.unwrap();

    assert_eq!(lost.cause, LossCause::Expired);
    assert!(
        row.is_held(),
        "known too late: the lease ran out {} s ago",
        -row.expires_in
    );
    proxy.resume();
    lease.release().await.unwrap();
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn frozen_connection_is_given_up_and_replaced_before_the_lease_is_lost() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let lease = db.through(&proxy).client().acquire(&name).ttl(LONG).await.unwrap();

    proxy.freeze_existing();
    let renewed = lease.renew().await;

    renewed.unwrap();
    assert!(lease.is_held());
    assert!(proxy.accepted() > 1);
    let row = db.row(&name).await.unwrap();
    assert!(row.is_held());
    assert_eq!(row.token, lease.fencing_token().get());
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn connection_broken_off_by_reset_is_replaced_and_the_lease_kept() {
    broken_connection_is_replaced(|proxy| proxy.reset()).await;
}

#[tokio::test]
async fn connection_closed_in_order_is_replaced_and_the_lease_kept() {
    broken_connection_is_replaced(|proxy| proxy.cut()).await;
}

async fn broken_connection_is_replaced(break_it: impl Fn(&leasehold_testkit::FaultProxy)) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let leases = db.through(&proxy).client();
    let lease = leases.acquire(&name).ttl(LONG).await.unwrap();

    // At rest, and with a statement under way.
    for round in 0..4 {
        let other = format!("{name}:{round}");
        if round % 2 == 1 {
            proxy.hold_replies_after_execute("leasehold.acquire");
        }
        let asked = proxy.wait_for_execute("leasehold.acquire");
        let acquiring = tokio::spawn(leases.acquire(&other).ttl(LONG).into_future());
        timeout(SOON, asked).await.expect("it is asked for");
        break_it(&proxy);
        let second = acquiring.await.unwrap().unwrap();
        assert_eq!(second.release().await.unwrap(), Release::Released);
        break_it(&proxy);
        lease.renew().await.unwrap();
        assert!(!db.is_held(&other).await);
    }

    assert!(lease.is_held());
    assert_eq!(db.row(&name).await.unwrap().token, lease.fencing_token().get());
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn grant_that_arrives_after_its_window_is_never_returned() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let proxy = db.proxy();
    let leases = db
        .through(&proxy)
        .builder()
        .margin(SHORT / 2)
        .answer_within(SHORT * 20)
        .renew_every(SHORT / 5)
        .build()
        .unwrap();
    let acquire = || leases.acquire(&name).ttl(SHORT).try_acquire();

    // A round trip is longer than the window, which is half of the ttl here, and shorter than the
    // lane's patience: so a prepared statement is answered, on a machine that is not too slow.
    let granted_too_late = async {
        loop {
            proxy.delay(Duration::ZERO);
            assert!(prepared(&leases, &name).await);
            proxy.delay(SHORT * 7 / 20);
            match acquire().await {
                Err(Error::GrantedTooLate { .. }) => break,
                Ok(Some(lease)) => panic!("{lease:?} was returned after its window"),
                // Too late even for an answer.
                Ok(None) | Err(Error::Unanswered { .. } | Error::Busy { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    };

    timeout(SOON, granted_too_late)
        .await
        .expect("an answer is too late and says so");
    assert!(heard.told_of(&name, "the lease was granted too late and is released") > 0);
    db.assert_free_soon(&name).await;
}

#[tokio::test]
async fn delay_above_the_ttl_ends_in_an_error_and_nothing_is_held_afterwards() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let leases = db
        .through(&proxy)
        .builder()
        .answer_within(Duration::from_secs(2))
        .build()
        .unwrap();
    assert!(prepared(&leases, &name).await);

    proxy.delay(Duration::from_millis(700));
    let answer = timeout(SOON, leases.acquire(&name).ttl(MINUTE / 120).try_acquire())
        .await
        .unwrap();
    let dropped = timeout(Duration::from_millis(900), leases.acquire(&name).ttl(MINUTE)).await;

    let lease = answer.as_ref().is_ok_and(Option::is_some);
    assert!(!lease && dropped.is_err(), "{answer:?}, {dropped:?}");
    proxy.heal();
    db.assert_free_soon(&name).await;
    let lease = leases.acquire(&name).ttl(MINUTE).wait_at_most(SOON).await.unwrap();
    assert_eq!(lease.release().await.unwrap(), Release::Released);
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn refused_connections_are_tried_again_until_they_are_accepted() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let leases = db.through(&proxy).builder().answer_within(LONG / 6).build().unwrap();
    let lease = leases.acquire(&name).ttl(MINUTE).await.unwrap();

    proxy.refuse();
    proxy.reset();
    let other = format!("{name}:other");
    let refused = leases.try_acquire(&other).await;
    let waiting = tokio::spawn(leases.acquire(&other).ttl(MINUTE).into_future());
    let renewing = async {
        tokio::time::sleep(LONG / 20).await;
        proxy.accept();
        lease.renew().await
    };
    let (waited, renewed) = tokio::join!(waiting, renewing);

    let Err(Error::Unanswered { source: Some(_), .. }) = refused else {
        panic!("{refused:?}")
    };
    renewed.unwrap();
    assert!(lease.is_held());
    match waited.unwrap() {
        Ok(second) => assert_eq!(second.release().await.unwrap(), Release::Released),
        Err(error) => assert!(matches!(error, Error::Unanswered { .. }), "{error:?}"),
    }
    db.assert_free_soon(&other).await;
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn acquire_dropped_in_a_black_hole_holds_nothing_once_the_database_can_be_reached() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let leases = db.through(&proxy).client();
    let companion = leases.acquire(format!("{name}:companion")).ttl(LONG).await.unwrap();

    // The grant is made, its reply is lost, and the caller goes before the lane knows.
    proxy.hold_replies_after_execute("leasehold.acquire");
    let granted = proxy.wait_for_execute("leasehold.acquire");
    let acquiring = tokio::spawn(leases.acquire(&name).ttl(MINUTE).into_future());
    timeout(SOON, granted).await.expect("it is asked for");
    acquiring.abort();

    leasehold_testkit::eventually(SOON, "the grant is made", async || db.is_held(&name).await).await;
    db.assert_free_soon(&name).await;
    assert!(companion.is_held());
}

/// Makes the client's connection, with its statements prepared.
async fn prepared(leases: &leasehold::LeaseClient, name: &str) -> bool {
    let lease = leases.acquire(name).ttl(MINUTE).await.unwrap();
    lease.release().await.unwrap() == Release::Released
}

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(3);
const MINUTE: Duration = Duration::from_secs(60);
