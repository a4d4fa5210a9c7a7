//! What a client leaves behind when its waits end with it.

use leasehold::Error;
use leasehold_testkit::eventually;

use super::{by_events, in_line, line_is, listens, stand_in_line};
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn close_ends_every_wait_and_leaves_no_waiter_and_no_connection() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let (builder, application) = by_events(&db);
    let leases = builder.build().unwrap();
    let waits: Vec<_> = (0..20)
        .map(|_| tokio::spawn(leases.acquire(&name).into_future()))
        .collect();
    line_is(&db, &name, 20).await;
    eventually(SOON, "it has a lane and a listener", async || {
        db.backends(&application).await.len() == 2
    })
    .await;

    leases.close().await;

    assert_eq!(in_line(&db, &name).await, 0);
    for wait in waits {
        let ended = tokio::time::timeout(SOON, wait).await.expect("the wait ends");
        assert!(matches!(ended.unwrap(), Err(Error::Closed)));
    }
    has_gone(&db, &application).await;
    assert!(matches!(leases.acquire(&name).await, Err(Error::Closed)));
}

#[tokio::test]
async fn client_dropped_after_its_waits_closes_its_connections() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let _held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let (builder, application) = by_events(&db);
    let leases = builder.build().unwrap();
    let waits = stand_in_line(&db, &name, leases.acquire(&name)).await;
    listens(&db, &application).await;

    waits.abort();
    line_is(&db, &name, 0).await;
    assert_eq!(db.backends(&application).await.len(), 2);
    drop(leases);

    has_gone(&db, &application).await;
}

async fn has_gone(db: &TestDb, application: &str) {
    eventually(SOON, "its connections are closed", async || {
        db.backends(application).await.is_empty()
    })
    .await;
}
