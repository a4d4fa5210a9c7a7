//! Every way leads to the same schema, from an empty database and after any other way.

use std::path::Path;

use sqlx::migrate::Migrator;

use super::{sequence, upgrade_to_a_release_to_come};
use crate::support::TestDb;
use crate::support::install::{AppMigrations, Way, describe, migrations, run, sqlx_cli};

#[tokio::test]
async fn every_way_after_any_other_leads_to_the_same_schema_and_leaves_the_sequence_alone() {
    let expected = include_str!("../schema.txt");

    for (number, order) in orders().into_iter().enumerate() {
        let db = TestDb::empty(&format!("migrate_order_{number}")).await;
        let mut started_at = None;
        for way in order {
            way.install(&db)
                .await
                .unwrap_or_else(|said| panic!("{way:?} of {order:?}: {said}"));

            assert_eq!(describe(&db).await, expected, "after {way:?} of {order:?}");
            let sequence = sequence(&db).await;
            assert_eq!(
                *started_at.get_or_insert(sequence),
                sequence,
                "after {way:?} of {order:?}"
            );
        }
    }
}

#[tokio::test]
async fn sqlx_cli_installs_beside_the_migrations_of_an_application() {
    let db = TestDb::empty("migrate_beside").await;
    let app = AppMigrations::alone();
    let of_app = async || sqlx_cli(&db, &["--source".as_ref(), &app.dir]).await;

    of_app().await.unwrap();
    Way::Cli.install(&db).await.unwrap();
    of_app().await.unwrap();
    Migrator::new(app.dir.as_path())
        .await
        .unwrap()
        .run(&db.pool)
        .await
        .unwrap();
    Way::Cli.install(&db).await.unwrap();
    Way::Migrate.install(&db).await.unwrap();

    assert_eq!(
        listed(&db, "public._sqlx_migrations").await,
        [20200101000000, 20990101000000]
    );
    assert_eq!(
        listed(&db, "leasehold._sqlx_migrations").await,
        listed(&db, "leasehold.version").await
    );
    assert!(db.client().try_acquire("beside").await.unwrap().is_some());
}

#[tokio::test]
async fn files_copied_into_an_applications_folder_are_run_in_its_order() {
    for way in [Way::CopiedAndRunByCli, Way::CopiedAndRunByMigrator] {
        let db = TestDb::empty(&format!("migrate_copied_{way:?}")).await;

        way.install(&db).await.unwrap();

        let mut versions = listed(&db, "leasehold.version").await;
        versions.insert(0, 20200101000000);
        versions.push(20990101000000);
        assert_eq!(listed(&db, "public._sqlx_migrations").await, versions, "{way:?}");
        assert!(db.client().try_acquire("copied").await.unwrap().is_some());
    }
}

#[tokio::test]
async fn an_older_copy_after_a_newer_release_puts_no_function_back_and_restarts_no_sequence() {
    for way in Way::ALL {
        let db = TestDb::own(&format!("migrate_older_{way:?}")).await;
        upgrade_to_a_release_to_come(&db).await;
        // So that every file is run again, and not only looked up in a list.
        run(&db, "drop table leasehold._sqlx_migrations").await;
        let (schema, drawn) = (describe(&db).await, sequence(&db).await);
        assert_ne!(schema, include_str!("../schema.txt"));

        way.install(&db).await.unwrap_or_else(|said| panic!("{way:?}: {said}"));

        assert_eq!(describe(&db).await, schema, "{way:?}");
        assert_eq!(sequence(&db).await, drawn, "{way:?}");
    }
}

#[tokio::test]
async fn an_older_copy_meets_the_list_of_a_newer_release_and_changes_nothing() {
    let db = TestDb::own("migrate_older_listed").await;
    upgrade_to_a_release_to_come(&db).await;
    run(
        &db,
        "insert into leasehold._sqlx_migrations (version, description, success, checksum, execution_time)
         values (20980101000000, 'to come', true, '', 0)",
    )
    .await;
    let (schema, drawn) = (describe(&db).await, sequence(&db).await);
    let (files, config) = (migrations(), migrations().join("sqlx.toml"));
    let older: [&Path; 4] = ["--source".as_ref(), &files, "--config".as_ref(), &config];

    leasehold::migrate(&db.pool).await.unwrap();
    // sqlx-cli itself says that the files are older, unless told not to mind.
    let refused = sqlx_cli(&db, &older).await.unwrap_err();
    let mut unminding = older.to_vec();
    unminding.push("--ignore-missing".as_ref());
    sqlx_cli(&db, &unminding).await.unwrap();

    assert!(refused.contains("20980101000000"), "{refused}");
    assert_eq!(describe(&db).await, schema);
    assert_eq!(sequence(&db).await, drawn);
}

/// All orders of the three ways, and both runners of the third.
fn orders() -> Vec<[Way; 3]> {
    let mut orders = Vec::new();
    for copied in [Way::CopiedAndRunByCli, Way::CopiedAndRunByMigrator] {
        let ways = [Way::Migrate, Way::Cli, copied];
        for first in 0..3 {
            for second in (0..3).filter(|second| *second != first) {
                orders.push([ways[first], ways[second], ways[3 - first - second]]);
            }
        }
    }
    orders
}

async fn listed(db: &TestDb, table: &str) -> Vec<i64> {
    let sql = format!("select version from {table} order by version");
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .fetch_all(&db.pool)
        .await
        .unwrap()
}
