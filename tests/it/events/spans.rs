//! Each operation is a span, with the lease in it as far as it is known.

use leasehold::FencingToken;
use leasehold_testkit::eventually;
use tracing::Level;

use crate::support::heard::{Heard, Opened};
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn every_operation_on_a_lease_is_a_span_with_its_name_owner_and_fencing_token() {
    let (db, names) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();

    let acquired = leases.acquire(format!("{names}:1")).ttl(LONG).await.unwrap();
    let tried = leases.try_acquire(format!("{names}:2")).await.unwrap().unwrap();
    let held = leases.acquire(format!("{names}:3")).ttl(LONG).hold(async |lease| {
        tracing::debug!(target: "leasehold_tests", "worked");
        (
            lease.name().to_owned(),
            lease.fencing_token(),
            owner(&db, lease.name()).await,
        )
    });
    let held = held.await.unwrap();
    let of_acquired = (
        acquired.name().to_owned(),
        acquired.fencing_token(),
        owner(&db, acquired.name()).await,
    );
    let of_tried = (
        tried.name().to_owned(),
        tried.fencing_token(),
        owner(&db, tried.name()).await,
    );
    acquired.renew().await.unwrap();
    acquired.fence(&mut db.pool.begin().await.unwrap()).await.unwrap();
    acquired.begin(&db.pool).await.unwrap().rollback().await.unwrap();
    acquired.release().await.unwrap();

    for (operation, (name, token, owner)) in [
        ("acquire", &of_acquired),
        ("renew", &of_acquired),
        ("fence", &of_acquired),
        ("begin", &of_acquired),
        ("release", &of_acquired),
        ("try_acquire", &of_tried),
        ("hold", &held),
    ] {
        let span = only(&heard, operation, name);
        assert_eq!(span.level, Level::DEBUG);
        assert_eq!(span.fields.get("lease.owner"), Some(owner), "{operation}");
        assert_eq!(
            span.fields.get("lease.fencing_token"),
            Some(&token.to_string()),
            "{operation}"
        );
    }
    let worked = heard.all().into_iter().find(|event| event.message == "worked");
    assert_eq!(worked.unwrap().within, ["hold"]);
}

#[tokio::test]
async fn every_operation_of_a_client_and_on_the_database_is_a_span() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();

    leases.inspect(&name).await.unwrap();
    leases.held().await.unwrap();
    leases.break_lease(&name).await.unwrap();
    leases.lead(&name, async |_| leases.close().await).await.unwrap();
    let mut tx = db.pool.begin().await.unwrap();
    FencingToken::new(7).admit(&mut tx, &name).await.unwrap();
    drop(tx);
    leasehold::check(&db.pool).await.unwrap();
    leasehold::migrate(&db.pool).await.unwrap();

    for operation in ["inspect", "break_lease", "lead", "hold", "acquire"] {
        only(&heard, operation, &name);
    }
    for operation in ["held", "close", "admit", "check", "migrate"] {
        let spans = heard.spans(operation);
        assert_eq!(spans.len(), 1, "{operation}: {spans:?}");
    }
    let admit = heard.spans("admit").remove(0);
    assert_eq!(admit.fields.get("lease.fencing_token"), Some(&"7".to_owned()));
    assert!(admit.fields.get("resource").is_some_and(|told| told.contains(&name)));
}

#[tokio::test]
async fn events_are_told_in_the_span_of_the_operation_that_caused_them() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (heard, _listening) = Heard::listen();
    let leases = db.client();

    leases.acquire(&name).hold(async |_| ()).await.unwrap();
    let lease = leases.try_acquire(&name).await.unwrap().unwrap();
    leases.break_lease(&name).await.unwrap();
    lease.begin(&db.pool).await.unwrap_err();

    for (message, within) in [
        ("acquired the lease", &["hold", "acquire"][..]),
        ("released the lease", &["hold", "release"]),
        ("broke the lease", &["break_lease"]),
        ("the fence refused the lease", &["begin"]),
    ] {
        let told = heard.all().into_iter().find(|event| event.message == message);
        assert_eq!(told.expect(message).within, within, "{message}");
    }
}

#[tokio::test]
async fn operation_that_waits_leaves_its_span_meanwhile() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let (heard, _listening) = Heard::listen();
    let leases = db.client();

    let waiter = tokio::spawn(leases.acquire(&name).into_future());
    eventually(SOON, "it waits", async || {
        assert!(heard.entered().is_empty(), "{:?}", heard.entered());
        heard.told_of(&name, "began to wait") == 1
    })
    .await;

    assert!(!heard.spans("acquire").is_empty());
    assert!(heard.entered().is_empty(), "{:?}", heard.entered());
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    assert!(heard.entered().is_empty(), "{:?}", heard.entered());
}

/// The one span of an operation on a name.
fn only(heard: &Heard, operation: &str, name: &str) -> Opened {
    let mut spans = heard.spans(operation);
    spans.retain(|span| span.fields.get("lease.name").is_some_and(|of| of == name));
    assert_eq!(spans.len(), 1, "{operation} of {name}: {spans:?}");
    spans.remove(0)
}

async fn owner(db: &TestDb, name: &str) -> String {
    let owner = db.row(name).await.and_then(|row| row.owner);
    owner.expect("it is held").to_string()
}
