//! One schema, however often and by how many at once: what is in it, and that it stays.

use std::collections::BTreeSet;
use std::path::Path;

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgPool};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::sequence;
use crate::support::TestDb;
use crate::support::install::{describe, migration_files, run};

/// `LEASEHOLD_WRITE_SCHEMA=1` writes the file anew, for a change that is meant.
#[tokio::test]
async fn schema_is_what_the_file_says() {
    let db = TestDb::own("migrate_described").await;

    let described = describe(&db).await;

    if std::env::var_os("LEASEHOLD_WRITE_SCHEMA").is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/schema.txt");
        std::fs::write(file, &described).unwrap();
        return;
    }
    assert_eq!(
        described,
        include_str!("../schema.txt"),
        "LEASEHOLD_WRITE_SCHEMA=1 accepts the change"
    );
}

#[tokio::test]
async fn each_file_is_a_no_op_the_second_time_all_together_and_by_itself() {
    let db = TestDb::empty("migrate_again").await;
    for file in migration_files() {
        run(&db, &std::fs::read_to_string(file).unwrap()).await;
    }
    let (schema, rows, drawn) = (describe(&db).await, rows(&db).await, sequence(&db).await);
    assert_eq!(schema, include_str!("../schema.txt"));

    for file in migration_files() {
        run(&db, &std::fs::read_to_string(file).unwrap()).await;
    }
    for file in migration_files().into_iter().rev() {
        run(&db, &std::fs::read_to_string(&file).unwrap()).await;

        assert_eq!(describe(&db).await, schema, "after {}", file.display());
    }

    // Not one row written, not even anew.
    assert_eq!(self::rows(&db).await, rows);
    assert_eq!(sequence(&db).await, drawn);
}

/// This test is its own child process: told where, it installs and does nothing else.
#[tokio::test]
async fn any_number_of_processes_install_at_once_on_an_empty_and_on_an_installed_database() {
    if let Ok(url) = std::env::var(INSTALL_HERE) {
        return install_many_times(&url).await;
    }
    let db = TestDb::empty("migrate_at_once").await;
    let myself = std::env::current_exe().unwrap();
    let name = std::thread::current().name().unwrap().to_owned();

    for round in ["empty", "installed"] {
        let mut installing = JoinSet::new();
        for _ in 0..4 {
            let child = Command::new(&myself)
                .args(["--exact", &name])
                .env(INSTALL_HERE, db.options.to_url_lossy().as_str())
                .kill_on_drop(true)
                .output();
            installing.spawn(child);
        }
        for child in installing.join_all().await {
            let child = child.unwrap();
            let said = String::from_utf8_lossy(&child.stdout).into_owned();
            assert!(child.status.success() && said.contains("1 passed"), "{round}: {said}");
        }
        assert_eq!(describe(&db).await, include_str!("../schema.txt"), "{round}");
    }
}

#[tokio::test]
async fn sequence_starts_at_the_microseconds_of_installation_less_2_to_the_40() {
    let db = TestDb::empty("migrate_sequence").await;
    let micros = async || -> i64 {
        let sql = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
        sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap()
    };

    let before = micros().await;
    leasehold::migrate(&db.pool).await.unwrap();
    let after = micros().await;

    let (next, is_called) = sequence(&db).await;
    assert!(!is_called);
    assert!(
        (before..=after).contains(&(next + (1 << 40))),
        "{before} {next} {after}"
    );
    let lease = db.client().try_acquire("first").await.unwrap().unwrap();
    assert_eq!(i64::from(lease.fencing_token()), next);
    let properties: (i64, bool, i64) =
        sqlx::query_as("select seqcache, seqcycle, seqincrement from pg_sequence where seqrelid = 'leasehold.locks_fence_seq'::regclass")
            .fetch_one(&db.pool)
            .await
            .unwrap();
    assert_eq!(properties, (1, false, 1));
}

#[tokio::test]
async fn every_function_has_a_comment_and_every_security_definer_a_pinned_path() {
    let db = TestDb::shared().await;
    let functions = "
        select p.oid::regprocedure::text, obj_description(p.oid, 'pg_proc'), p.prosecdef, p.prosqlbody is not null, p.proconfig
        from pg_proc as p
        where p.pronamespace = 'leasehold'::regnamespace";
    type Function = (String, Option<String>, bool, bool, Option<Vec<String>>);

    let functions: Vec<Function> = sqlx::query_as(functions).fetch_all(&db.pool).await.unwrap();

    assert!(functions.len() > 9);
    for (name, comment, is_definer, is_bound, config) in functions {
        assert!(comment.is_some_and(|text| !text.is_empty()), "{name}");
        let pinned = config.is_some_and(|c| c.iter().any(|set| set == "search_path=pg_catalog, pg_temp"));
        // What is not a security definer may have its names bound when it was created instead.
        assert!(pinned || is_bound && !is_definer, "{name}");
    }
}

#[tokio::test]
async fn files_give_the_callers_search_path_back() {
    let db = TestDb::empty("migrate_path").await;
    let paths = [r#""$user", public"#, r#""we""ird, one", pg_catalog"#, r#""""#];

    for round in ["first time", "again"] {
        for file in migration_files() {
            let sql = std::fs::read_to_string(&file).unwrap();
            for path in paths {
                let mut conn = db.pool.acquire().await.unwrap();
                let set = |is_local| {
                    sqlx::query("select set_config('search_path', $1, $2)")
                        .bind(path)
                        .bind(is_local)
                };
                let now = "select current_setting('search_path')";
                set(false).execute(&mut *conn).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(&*sql)).execute(&mut *conn).await.unwrap();
                let of_session: String = sqlx::query_scalar(now).fetch_one(&mut *conn).await.unwrap();
                sqlx::raw_sql("reset search_path; begin")
                    .execute(&mut *conn)
                    .await
                    .unwrap();
                set(true).execute(&mut *conn).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(&*sql)).execute(&mut *conn).await.unwrap();
                let of_transaction: String = sqlx::query_scalar(now).fetch_one(&mut *conn).await.unwrap();
                sqlx::raw_sql("commit").execute(&mut *conn).await.unwrap();

                assert_eq!(of_session, path, "{} {round}", file.display());
                assert_eq!(of_transaction, path, "{} {round}", file.display());
            }
        }
    }
}

async fn install_many_times(url: &str) {
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy(url).unwrap();
    let mut installing = JoinSet::new();
    for _ in 0..8 {
        let pool: PgPool = pool.clone();
        installing.spawn(async move { leasehold::migrate(&pool).await });
    }
    for installed in installing.join_all().await {
        installed.unwrap();
    }
}

/// Every row in the schema with the place it lies at, which an update changes.
async fn rows(db: &TestDb) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    for table in ["version", "locks", "sweeps"] {
        let sql = format!("select concat(tableoid, ctid, xmin, t) from leasehold.{table} as t");
        let found: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(&db.pool)
            .await
            .unwrap();
        rows.extend(found);
    }
    rows
}

const INSTALL_HERE: &str = "LEASEHOLD_TEST_INSTALL_HERE";
