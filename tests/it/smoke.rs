//! The way from an empty database to a fenced write, in one piece.

use std::time::Duration;

use leasehold::Release;

use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn newcomer_installs_acquires_writes_fenced_and_releases() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();

    let lease = leases.acquire(&name).ttl(Duration::from_secs(10)).await.unwrap();
    let mut tx = lease.begin(&db.pool).await.unwrap();
    sqlx::query("select 1").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();

    let seen = leases.inspect(&name).await.unwrap().unwrap();
    assert_eq!(seen.fencing_token, lease.fencing_token());
    assert!(leases.try_acquire(&name).await.unwrap().is_none());
    assert_eq!(lease.release().await.unwrap(), Release::Released);
    assert!(leases.try_acquire(&name).await.unwrap().is_some());
}
