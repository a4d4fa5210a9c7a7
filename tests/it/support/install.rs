//! The three ways to install the schema, and what the result looks like.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool};
use tokio::process::Command;
use uuid::Uuid;

use super::TestDb;

/// One of the ways that the README names. The last has two, since it is the application's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Migrate,
    Cli,
    CopiedAndRunByCli,
    CopiedAndRunByMigrator,
}

impl Way {
    pub(crate) const ALL: [Self; 4] = [
        Self::Migrate,
        Self::Cli,
        Self::CopiedAndRunByCli,
        Self::CopiedAndRunByMigrator,
    ];

    /// Installs the schema this way. Fails with what was said.
    pub(crate) async fn install(self, db: &TestDb) -> Result<(), String> {
        match self {
            Self::Migrate => leasehold::migrate(&db.pool)
                .await
                .map_err(|error| describe_error(&error)),
            Self::Cli => {
                let files = migrations();
                let config = files.join("sqlx.toml");
                sqlx_cli(db, &["--source".as_ref(), &files, "--config".as_ref(), &config]).await
            }
            Self::CopiedAndRunByCli => {
                let app = AppMigrations::with_ours();
                sqlx_cli(db, &["--source".as_ref(), &app.dir]).await
            }
            Self::CopiedAndRunByMigrator => {
                let app = AppMigrations::with_ours();
                let migrator = Migrator::new(app.dir.as_path()).await.expect("the files are found");
                migrator.run(&db.pool).await.map_err(|error| describe_error(&error))
            }
        }
    }
}

/// An application's own folder of migrations.
#[derive(Debug)]
pub(crate) struct AppMigrations {
    pub(crate) dir: PathBuf,
}

impl AppMigrations {
    /// The application's files alone. Some are older than ours and some are newer.
    pub(crate) fn alone() -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("app-{}", Uuid::new_v4()));
        std::fs::create_dir_all(&dir).expect("the folder can be made");
        for (file, sql) in APP_MIGRATIONS {
            std::fs::write(dir.join(file), sql).expect("the file can be written");
        }
        Self { dir }
    }

    pub(crate) fn with_ours() -> Self {
        let app = Self::alone();
        for file in migration_files() {
            let name = file.file_name().expect("a file has a name");
            std::fs::copy(&file, app.dir.join(name)).expect("the file can be copied");
        }
        app
    }
}

impl Drop for AppMigrations {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Our folder of migrations.
pub(crate) fn migrations() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations")
}

/// Our migrations, oldest first.
pub(crate) fn migration_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(migrations()).expect("the migrations are there");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    let mut files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "sql"))
        .collect();
    files.sort();
    files
}

/// Runs `sqlx migrate run` on the database. Fails with what it said.
pub(crate) async fn sqlx_cli(db: &TestDb, arguments: &[&Path]) -> Result<(), String> {
    let program = sqlx_cli_program();
    let mut command = Command::new(&program);
    command
        .args(["migrate", "run", "--no-dotenv", "--database-url"])
        .arg(db.options.to_url_lossy().as_str())
        .args(arguments)
        // Where no sqlx.toml and no .env lies.
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .env_remove("DATABASE_URL")
        .kill_on_drop(true);
    let Output { status, stdout, stderr } = command.output().await.unwrap_or_else(|error| {
        panic!(
            "sqlx-cli could not be started as {}: {error}. scripts/setup installs it as target/tools/bin/sqlx; \
             LEASEHOLD_SQLX_CLI names another place",
            program.display()
        )
    });
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "{}{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    ))
}

/// The schema as text, to be compared.
pub(crate) async fn describe(db: &TestDb) -> String {
    let mut conn = PgConnection::connect_with(&db.options).await.expect("connects");
    sqlx::query("select pg_catalog.set_config('search_path', '', false)")
        .execute(&mut conn)
        .await
        .expect("sets the path");
    sqlx::query_scalar(include_str!("../schema.sql"))
        .fetch_one(&mut conn)
        .await
        .expect("the schema can be described")
}

/// Runs SQL text, one statement or several.
pub(crate) async fn run(db: &TestDb, sql: &str) {
    let ran = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&db.pool).await;
    ran.unwrap_or_else(|error| panic!("`{sql}` failed: {error}"));
}

/// The error code of a statement; `None` when it succeeds.
pub(crate) async fn sql_code(pool: &PgPool, sql: &str) -> Option<String> {
    let refused = sqlx::query(AssertSqlSafe(sql)).execute(pool).await.err()?;
    Some(refused.as_database_error()?.code()?.into_owned())
}

/// The error with its causes, as an application prints it.
pub(crate) fn describe_error(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(text, ": {error}").expect("text takes text");
        cause = error.source();
    }
    text
}

fn sqlx_cli_program() -> PathBuf {
    if let Some(program) = std::env::var_os("LEASEHOLD_SQLX_CLI") {
        return program.into();
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/sqlx");
    if own.exists() { own } else { "sqlx".into() }
}

const APP_MIGRATIONS: [(&str, &str); 2] = [
    (
        "20200101000000_invoice.sql",
        "create table public.invoice (id bigint primary key, state text);",
    ),
    (
        "20990101000000_note.sql",
        "create table public.note (id bigint primary key);",
    ),
];
