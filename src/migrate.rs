//! Installing the schema, from the same files that `sqlx migrate run` reads.

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{Connection, PgConnection, PgPool, SqlSafeStr};
use tracing::{Instrument, debug_span};

use crate::error::Error;
use crate::store;

/// Installs the schema `leasehold`, or brings it up to date.
///
/// Any number of processes may do so at once. A database that is up to date is left alone, which
/// needs no rights but to see `leasehold.version`; so an older release never undoes a newer one.
/// Otherwise the role needs `create` on the database.
///
/// It runs on a connection of its own, made with the pool's options: sqlx guards migrations with
/// a session-level advisory lock, which a failing run would leave behind in the pool. Behind a
/// pooler in transaction mode, give it a pool that connects directly.
///
/// # Errors
///
/// [`Error::Migrate`] with what the database said. Nothing is half installed: each file is one
/// transaction.
///
/// # Cancel safety
///
/// Cancel safe: the file under way is rolled back or carried out as a whole; run it again.
///
/// # Examples
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), leasehold::Error> {
/// leasehold::migrate(&pool).await?;
/// # Ok(())
/// # }
/// ```
pub async fn migrate(pool: &PgPool) -> Result<(), Error> {
    migrated(pool).instrument(debug_span!("migrate")).await
}

async fn migrated(pool: &PgPool) -> Result<(), Error> {
    let mut conn = PgConnection::connect_with(&pool.connect_options())
        .await
        .map_err(failed)?;
    let migrated = bring_up_to_date(&mut conn).await;
    let _ = conn.close().await;
    migrated
}

/// The version of the schema that this release brings: the timestamp of its last migration.
pub const SCHEMA_VERSION: i64 = 20261201000008;

/// The SQL of all migrations, for whoever installs schemas by hand. Run in one session, it leads to the same
/// state as [`migrate`], whatever was installed before.
///
/// # Examples
///
/// ```
/// assert!(leasehold::schema_sql().contains("create schema"));
/// ```
pub fn schema_sql() -> String {
    let files = MIGRATIONS
        .iter()
        .map(|(version, description, sql)| format!("-- {version}_{description}.sql\n\n{}\n", sql.trim_end()));
    files.collect::<Vec<_>>().join("\n")
}

async fn bring_up_to_date(conn: &mut PgConnection) -> Result<(), Error> {
    if store::version(conn).await.map_err(failed)? >= Some(SCHEMA_VERSION) {
        return Ok(());
    }
    // sqlx writes its own statements without schemas: a hostile path would choose what they mean.
    store::pin_search_path(conn).await.map_err(failed)?;
    migrator()
        .run_direct(None, conn, false)
        .await
        .map_err(|source| Error::Migrate { source })
}

fn migrator() -> Migrator {
    let migrations = MIGRATIONS
        .iter()
        .map(|&(version, description, sql)| {
            Migration::new(
                version,
                description.into(),
                MigrationType::Simple,
                sql.into_sql_str(),
                false,
            )
        })
        .collect();
    let mut migrator = Migrator::with_migrations(migrations);
    // Of its own: sqlx refuses a table that holds versions it does not know, the application's.
    migrator.dangerous_set_table_name("leasehold._sqlx_migrations");
    migrator.create_schema("leasehold");
    // Those of a newer release.
    migrator.set_ignore_missing(true);
    migrator
}

fn failed(error: sqlx::Error) -> Error {
    Error::Migrate { source: error.into() }
}

macro_rules! migration {
    ($version:literal, $description:literal) => {
        (
            $version,
            $description,
            include_str!(concat!("../migrations/", $version, "_", $description, ".sql")),
        )
    };
}

const MIGRATIONS: &[(i64, &str, &str)] = &[
    migration!(20261201000001, "schema"),
    migration!(20261201000002, "lease"),
    migration!(20261201000003, "fence"),
    migration!(20261201000004, "operate"),
    migration!(20261201000005, "queue"),
    migration!(20261201000006, "admit"),
    migration!(20261201000007, "epoch"),
    migration!(20261201000008, "quick"),
];

// A release that forgot to say so does not build.
const _: () = assert!(SCHEMA_VERSION == MIGRATIONS[MIGRATIONS.len() - 1].0);
