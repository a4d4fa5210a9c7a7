//! What the check finds, and that each remedy mends it.

use leasehold::{Error, Finding};
use leasehold_testkit::Cluster;

use super::clients::warnings;
use super::{ANOTHER_SYSTEM, ANOTHER_TIMELINE, Way, install_anew};
use crate::support::TestDb;
use crate::support::heard::Heard;
use crate::support::sql::{run, sessions};

#[tokio::test]
async fn each_fault_is_found_alone_and_mended_by_its_remedy() {
    let db = TestDb::own("epoch_findings").await;
    let [mut session] = sessions(&db).await;
    assert_eq!(leasehold::check(&db.pool).await.unwrap(), []);

    for (fault, finding, remedy) in [
        (
            "alter sequence leasehold.locks_fence_seq cache 50",
            "cache 50",
            "cache 1",
        ),
        (
            "alter sequence leasehold.locks_fence_seq cycle",
            "begins anew at its end",
            "no cycle",
        ),
        (
            "alter sequence leasehold.locks_fence_seq increment by 2",
            "steps of 2",
            "increment by 1",
        ),
        (
            "alter sequence leasehold.locks_fence_seq increment by -1",
            "steps of -1",
            "increment by 1",
        ),
        (
            "alter sequence leasehold.locks_fence_seq maxvalue 9000000000000000",
            "ends at 9000000000000000",
            "no maxvalue",
        ),
        (
            "alter sequence leasehold.locks_fence_seq restart with 1",
            "set back to 1",
            ADVANCE,
        ),
        ("delete from leasehold.epoch", "there is no epoch", ADVANCE),
        (ANOTHER_TIMELINE, "another timeline", ADVANCE),
        (ANOTHER_SYSTEM, "another server", ADVANCE),
    ] {
        install_anew(&mut session).await;
        let before = Way::Set.cycle(&mut session, "again").await;
        run(&mut session, fault).await;

        let found = leasehold::check(&db.pool).await.unwrap();
        let in_sql = "select finding, remedy from leasehold.check()";
        let in_sql: Vec<(String, String)> = sqlx::query_as(in_sql).fetch_all(&db.pool).await.unwrap();
        let [
            Finding {
                finding: told,
                remedy: cure,
                ..
            },
        ] = &found[..]
        else {
            panic!("{fault}: {found:?}")
        };
        run(&mut session, cure).await;
        let left = leasehold::check(&db.pool).await.unwrap();
        let after = Way::Set.cycle(&mut session, "again").await;

        assert!(told.contains(finding) && cure.contains(remedy), "{fault}: {found:?}");
        assert_eq!(in_sql, [(told.clone(), cure.clone())], "{fault}");
        assert_eq!(left, [], "{fault}");
        assert!(after[0] > before[0], "{fault}: {before:?} {after:?}");
    }
}

#[tokio::test]
async fn several_faults_are_all_found_and_told_by_a_client_once_for_each_connection() {
    let db = TestDb::own("epoch_findings_told").await;
    let (heard, _listening) = Heard::listen();
    let [mut session] = sessions(&db).await;
    run(&mut session, "alter sequence leasehold.locks_fence_seq cache 50 cycle").await;

    let leases = db.client();
    for number in 0..3 {
        assert!(leases.try_acquire(format!("{number}")).await.unwrap().is_some());
    }
    let told = warnings(&heard);
    assert!(db.client().try_acquire("of another client").await.unwrap().is_some());

    let found = leasehold::check(&db.pool).await.unwrap();
    let found: Vec<_> = found.into_iter().map(|found| (found.finding, found.remedy)).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told, found);
    assert_eq!(warnings(&heard), [&told[..], &told[..]].concat());
}

#[tokio::test]
async fn check_works_on_a_hot_standby() {
    let primary = Cluster::start().await;
    let db = TestDb::with(primary.options());
    db.install_schema().await;
    let standby = primary.standby("checked").await;
    let beside = TestDb::with(standby.options());

    let nothing = leasehold::check(&beside.pool).await.unwrap();
    primary
        .execute("alter sequence leasehold.locks_fence_seq cache 50")
        .await;
    let found = leasehold_testkit::eventually(crate::support::SOON, "the standby has it", async || {
        let found = leasehold::check(&beside.pool).await.unwrap();
        (!found.is_empty()).then_some(found)
    })
    .await;

    assert_eq!(nothing, []);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].finding.contains("cache 50"), "{found:?}");
}

#[tokio::test]
async fn check_without_the_schema_or_of_an_older_one_says_that_it_is_missing() {
    let (empty, older) = (
        TestDb::empty("epoch_no_schema").await,
        TestDb::own("epoch_older_schema").await,
    );
    let [mut session] = sessions(&older).await;
    run(&mut session, "drop function leasehold.check()").await;

    for db in [empty, older] {
        let checked = leasehold::check(&db.pool).await;
        assert!(matches!(checked, Err(Error::SchemaMissing { .. })), "{checked:?}");
    }
}

#[tokio::test]
async fn check_of_a_closed_pool_or_without_the_right_to_it_says_what_went_wrong() {
    let db = TestDb::own("epoch_closed_pool").await;
    let [mut session] = sessions(&db).await;
    run(&mut session, "create role epoch_nobody login").await;
    db.pool.close().await;
    let nobody = TestDb::with(db.options.clone().username("epoch_nobody"));

    let closed = leasehold::check(&db.pool).await;
    let refused = leasehold::check(&nobody.pool).await;

    assert!(
        matches!(
            &closed,
            Err(Error::Check {
                source: sqlx::Error::PoolClosed
            })
        ),
        "{closed:?}"
    );
    let code = match &refused {
        Err(Error::Check { source }) => source.as_database_error().and_then(|error| error.code()),
        other => panic!("{other:?}"),
    };
    assert_eq!(code.as_deref(), Some("42501"));
}

const ADVANCE: &str = "select leasehold.advance_epoch()";
