//! Installing where it cannot be done, and working where nothing is installed.

use std::time::Duration;

use leasehold::Error;
use leasehold_testkit::{Cluster, eventually};
use sqlx::migrate::MigrateError;
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

use crate::support::TestDb;
use crate::support::hostile::hostile_schema;
use crate::support::install::{describe, describe_error, migration_files, run};

#[tokio::test]
async fn without_the_right_to_create_an_empty_database_says_so_and_an_installed_one_is_fine() {
    let db = TestDb::empty("migrate_rights").await;
    run(
        &db,
        "create role migrate_powerless login;
         create role migrate_usher login;",
    )
    .await;
    let as_role = |role| TestDb::with(db.options.clone().username(role));

    let refused = leasehold::migrate(&as_role("migrate_powerless").pool)
        .await
        .unwrap_err();
    leasehold::migrate(&db.pool).await.unwrap();
    run(
        &db,
        "grant usage on schema leasehold to migrate_usher;
         grant select on leasehold.version to migrate_usher;",
    )
    .await;
    let up_to_date = leasehold::migrate(&as_role("migrate_usher").pool).await;

    let said = describe_error(&refused);
    assert!(matches!(refused, Error::Migrate { .. }), "{said}");
    assert!(said.contains("could not install the schema leasehold"), "{said}");
    assert!(said.contains("permission denied for database migrate_rights"), "{said}");
    up_to_date.unwrap();
}

#[tokio::test]
async fn a_failed_run_installs_nothing_of_its_file_and_leaves_no_advisory_lock_behind() {
    let db = TestDb::empty("migrate_failed").await;
    run(&db, "create schema leasehold; create table leasehold.sweeps ()").await;
    let pids: Vec<i32> = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_all(&db.pool)
        .await
        .unwrap();

    for _ in 0..3 {
        // A lock left behind by the run before would make this one wait for ever.
        let failed = timeout(LONG, leasehold::migrate(&db.pool)).await.unwrap();
        let failed = failed.unwrap_err();

        let Error::Migrate {
            source: MigrateError::ExecuteMigration(_, file),
        } = failed
        else {
            panic!("{failed:?}");
        };
        assert_eq!(file, 20261201000004);
    }

    let of_pool = "select count(*) from pg_locks where locktype = 'advisory' and pid = any ($1)";
    let of_pool: i64 = sqlx::query_scalar(of_pool)
        .bind(pids)
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(of_pool, 0);
    no_advisory_lock(&db).await;
    let version: i64 = sqlx::query_scalar("select max(version) from leasehold.version")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(version, 20261201000003);
    let view: bool = sqlx::query_scalar("select to_regclass('leasehold.held') is not null")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert!(!view);

    run(&db, "drop table leasehold.sweeps").await;
    leasehold::migrate(&db.pool).await.unwrap();
    assert_eq!(describe(&db).await, include_str!("../schema.txt"));
}

#[tokio::test]
async fn a_dropped_run_leaves_no_advisory_lock_behind_and_the_next_one_installs() {
    let db = TestDb::empty("migrate_dropped").await;

    for pause in 0..40 {
        let _ = timeout(Duration::from_millis(pause), leasehold::migrate(&db.pool)).await;
    }

    no_advisory_lock(&db).await;
    leasehold::migrate(&db.pool).await.unwrap();
    assert_eq!(describe(&db).await, include_str!("../schema.txt"));
}

#[tokio::test]
async fn a_hostile_search_path_changes_nothing_of_what_is_installed() {
    for by_hand in [true, false] {
        let name = format!("migrate_hostile_{by_hand}");
        let db = TestDb::empty(&name).await;
        run(&db, &hostile_schema()).await;
        run(
            &db,
            &format!("alter database {name} set search_path = hostile, pg_catalog"),
        )
        .await;
        let hijacked = TestDb::with(db.options.clone());
        let now: i32 = sqlx::query_scalar("select extract(year from clock_timestamp())::int")
            .fetch_one(&hijacked.pool)
            .await
            .unwrap();
        assert_eq!(now, 1970);

        if by_hand {
            for file in migration_files() {
                run(&hijacked, &std::fs::read_to_string(file).unwrap()).await;
            }
        } else {
            leasehold::migrate(&hijacked.pool).await.unwrap();
        }

        assert_eq!(describe(&db).await, include_str!("../schema.txt"), "{by_hand}");
        let foreign = "
            select count(*)
            from pg_depend as d
            where d.refobjid in (
                select oid from pg_proc where pronamespace = 'hostile'::regnamespace
                union all select oid from pg_operator where oprnamespace = 'hostile'::regnamespace
                union all select oid from pg_type where typnamespace = 'hostile'::regnamespace
            ) and d.objid not in (
                select oid from pg_operator where oprnamespace = 'hostile'::regnamespace
                union all select oid from pg_type where typnamespace = 'hostile'::regnamespace
            )";
        let foreign: i64 = sqlx::query_scalar(foreign)
            .fetch_one(&mut connect(&name).await)
            .await
            .unwrap();
        assert_eq!(foreign, 0, "{by_hand}");
    }
}

#[tokio::test]
async fn a_missing_schema_is_an_error_that_names_the_remedy() {
    let db = TestDb::own("migrate_missing").await;
    let leases = db.client();
    let (lease, released) = (
        leases.acquire("fenced").await.unwrap(),
        leases.acquire("released").await.unwrap(),
    );
    run(&db, "drop schema leasehold cascade").await;
    let newcomer = db.client();

    let errors = [
        ("try_acquire", newcomer.try_acquire("a").await.map(drop).unwrap_err()),
        ("acquire", newcomer.acquire("b").await.map(drop).unwrap_err()),
        ("acquire again", leases.acquire("c").await.map(drop).unwrap_err()),
        ("lead", newcomer.lead("d", async |_| ()).await.unwrap_err()),
        ("held", newcomer.held().await.map(drop).unwrap_err()),
        ("inspect", newcomer.inspect("a").await.map(drop).unwrap_err()),
        ("break_lease", newcomer.break_lease("a").await.map(drop).unwrap_err()),
        ("fence", lease.begin(&db.pool).await.map(drop).unwrap_err()),
        ("release", released.release().await.map(drop).unwrap_err()),
    ];

    for (operation, error) in errors {
        assert!(matches!(error, Error::SchemaMissing { .. }), "{operation}: {error:?}");
        assert!(error.to_string().contains("leasehold::migrate(&pool)"), "{operation}");
    }
}

async fn no_advisory_lock(db: &TestDb) {
    let locks = "select count(*) from pg_locks as l join pg_database as d on d.oid = l.database
        where l.locktype = 'advisory' and d.datname = current_database()";
    eventually(LONG, "no advisory lock is left", async || {
        sqlx::query_scalar::<_, i64>(locks).fetch_one(&db.pool).await.unwrap() == 0
    })
    .await;
}

/// A session whose path is not the database's.
async fn connect(database: &str) -> PgConnection {
    let options = Cluster::shared().await.options().database(database);
    let options = options.options([("search_path", "pg_catalog")]);
    PgConnection::connect_with(&options).await.unwrap()
}

const LONG: Duration = Duration::from_secs(30);
