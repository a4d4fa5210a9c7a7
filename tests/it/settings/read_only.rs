//! A session that may not write, for two reasons, is told apart from every other failure.

use std::time::Duration;

use leasehold::{Error, Release};
use leasehold_testkit::Cluster;

use super::client_role;
use crate::support::{TestDb, roles, unique_name};

#[tokio::test]
async fn a_read_only_role_gets_the_typed_error_and_may_look() {
    for isolation in ["read committed", "serializable"] {
        let role = format!("read_only_{}", isolation.replace(' ', "_"));
        let settings = [
            ("default_transaction_read_only", "on"),
            ("default_transaction_isolation", isolation),
        ];
        let (role, name) = (client_role(&role, &settings).await, unique_name!());
        let lease = roles::database().await.client().acquire(&name).await.unwrap();

        refused_as_read_only(&role, &unique_name!()).await;

        // Held: to see that, nothing is written.
        assert!(role.client().try_acquire(&name).await.unwrap().is_none());
        assert!(matches!(lease.begin(&role.pool).await, Err(Error::ReadOnly { .. })));
        assert_eq!(role.client().inspect(&name).await.unwrap().unwrap().name, name);
        assert_eq!(lease.release().await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn a_hot_standby_gets_the_typed_error_may_look_and_grants_once_it_is_promoted() {
    let primary = Cluster::start().await;
    let on_primary = TestDb::with(primary.options());
    on_primary.install_schema().await;
    let name = unique_name!();
    let lease = on_primary
        .client()
        .acquire(&name)
        .ttl(Duration::from_secs(86_400))
        .await
        .unwrap();
    let standby = primary.standby("settings").await;
    let on_standby = TestDb::with(standby.options());

    refused_as_read_only(&on_standby, &unique_name!()).await;

    let waiter = on_standby.client();
    let seen = waiter.inspect(&name).await.unwrap().unwrap();
    assert_eq!(seen.fencing_token, lease.fencing_token());
    assert!(matches!(
        lease.begin(&on_standby.pool).await,
        Err(Error::ReadOnly { .. })
    ));
    // The schema is there: up to date, whoever may write.
    leasehold::migrate(&on_standby.pool).await.unwrap();
    // The same client, once the server leads.
    assert!(matches!(waiter.try_acquire("after").await, Err(Error::ReadOnly { .. })));
    standby.promote().await;
    let after = waiter.try_acquire("after").await.unwrap().unwrap();
    assert!(after.fencing_token() > lease.fencing_token());
}

async fn refused_as_read_only(db: &TestDb, name: &str) {
    let leases = db.client();
    for (operation, error) in [
        ("try_acquire", leases.try_acquire(name).await.map(drop).unwrap_err()),
        ("acquire", leases.acquire(name).await.map(drop).unwrap_err()),
        ("again", leases.acquire(name).await.map(drop).unwrap_err()),
        (
            "hold",
            leases.acquire(name).hold(async |_| ()).await.map(drop).unwrap_err(),
        ),
    ] {
        assert!(matches!(error, Error::ReadOnly { .. }), "{operation}: {error:?}");
        assert!(error.to_string().contains("read-only"), "{operation}: {error}");
    }
}
