//! Servers that do not tell whose history they have, as some managed services.

use tracing::Level;

use super::clients::{NOT_LOOKED, warnings};
use super::{Way, jumps};
use crate::support::TestDb;
use crate::support::heard::Heard;
use crate::support::install::run as run_in;
use crate::support::sql::{run, sessions};

#[tokio::test]
async fn server_that_does_not_tell_grants_and_says_so_once_for_each_connection() {
    let db = TestDb::own("epoch_untold").await;
    let [mut session] = sessions(&db).await;
    run(&mut session, UNTOLD).await;

    grants_and_says_so(&db, &db).await;
}

/// The functions exist, and the schema's owner may not call them.
#[tokio::test]
async fn server_that_does_not_let_its_functions_be_called_grants_and_says_so() {
    let db = TestDb::empty("epoch_untold_rights").await;
    run_in(
        &db,
        "create role epoch_untold_owner login; \
         grant create on database epoch_untold_rights to epoch_untold_owner; \
         revoke execute on function pg_walfile_name(pg_lsn), pg_current_wal_lsn(), pg_control_system() from public",
    )
    .await;
    let owner = TestDb::with(db.options.clone().username("epoch_untold_owner"));
    owner.install_schema().await;

    grants_and_says_so(&db, &owner).await;
}

async fn grants_and_says_so(db: &TestDb, as_client: &TestDb) {
    let (heard, _listening) = Heard::listen();
    let [mut session] = sessions(as_client).await;
    let [mut watcher] = sessions(db).await;
    let before = Way::Scalar.cycle(&mut session, "again").await;
    let next = Way::Set.cycle(&mut session, "again").await;
    let found = leasehold::check(&as_client.pool).await.unwrap();

    for connection in 1..=2 {
        let leases = as_client.client();
        for _ in 0..3 {
            let lease = leases.acquire("again").await.unwrap();
            lease.release().await.unwrap();
        }
        leases.close().await;
        let told = warnings(&heard);
        assert_eq!(told.len(), connection, "{told:?}");
        assert_eq!(told.last(), Some(&(found[0].finding.clone(), found[0].remedy.clone())));
    }

    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].finding.starts_with("the server does not tell"), "{found:?}");
    assert!(next[0] > before[0], "{before:?} {next:?}");
    assert!(jumps(&mut watcher).await.is_empty());
    assert_eq!(heard.told(Level::DEBUG, NOT_LOOKED), 0);
}

#[tokio::test]
async fn server_that_does_not_tell_still_notices_a_sequence_that_was_set_back() {
    let db = TestDb::own("epoch_untold_set_back").await;
    let [mut session] = sessions(&db).await;
    run(&mut session, UNTOLD).await;

    for (number, way) in Way::BOTH.into_iter().enumerate() {
        let before = way.cycle(&mut session, "again").await[0];
        run(&mut session, "alter sequence leasehold.locks_fence_seq restart with 1").await;
        let after = way.cycle(&mut session, "again").await[0];

        let told = jumps(&mut session).await;
        assert!(after > before, "{before} {after}");
        assert_eq!(told.len(), number + 1, "{told:?}");
        assert_eq!((&told[number].to_timeline, told[number].to_system), (&None, None));
    }
}

const UNTOLD: &str = "create or replace function leasehold.present_timeline() \
        returns text language sql as 'select null::text'; \
    create or replace function leasehold.present_system() \
        returns bigint language sql as 'select null::bigint'; \
    update leasehold.epoch set timeline = null, system = null";
