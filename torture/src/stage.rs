//! The stage: the server with its record, its clock, and reading it all at the end.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_testkit::{Builder, Cluster};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::Outcome;
use crate::history::{Audit, End, Row, Written};
use crate::mutant::Mutant;

/// The server's clock, which can be stepped while the server runs. Absent without libfaketime.
#[derive(Debug)]
pub struct Clock {
    file: PathBuf,
    library: PathBuf,
}

impl Clock {
    pub fn find(dir: &Path) -> Option<Self> {
        let library = fs::read_dir("/usr/lib")
            .ok()?
            .flatten()
            .map(|entry| entry.path().join("faketime/libfaketime.so.1"))
            .find(|path| path.exists())?;
        let clock = Self {
            file: dir.join("clock"),
            library,
        };
        clock.step(0).ok()?;
        Some(clock)
    }

    /// Sets it so many milliseconds beside the true time.
    pub fn step(&self, milliseconds: i64) -> std::io::Result<()> {
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{:+.3}\n", milliseconds as f64 / 1000.0))?;
        fs::rename(next, &self.file)
    }

    fn preload(&self, builder: Builder) -> Builder {
        builder
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1")
    }
}

/// A server that keeps this time; the standbys beside the first one too.
pub fn server(clock: Option<&Clock>) -> Builder {
    let builder = Cluster::builder();
    match clock {
        Some(clock) => clock.preload(builder),
        None => builder,
    }
}

pub async fn set_up(clock: Option<&Clock>, mutant: Option<&Mutant>) -> Outcome<Cluster> {
    let cluster = server(clock)
        .setting("max_connections", "200")
        .setting("shared_buffers", "64MB")
        .setting("wal_level", "replica")
        .setting("max_wal_senders", "5")
        .setting("wal_keep_size", "1GB")
        .setting("autovacuum", "on")
        .try_start()
        .await?;
    let pool = PgPoolOptions::new().max_connections(1).connect(&cluster.url()).await?;
    leasehold::migrate(&pool).await?;
    sqlx::raw_sql(include_str!("stage.sql")).execute(&pool).await?;
    if let Some(mutant) = mutant {
        mutant.install(&pool).await?;
    }
    pool.close().await;
    Ok(cluster)
}

pub async fn audit(connection: &mut PgConnection) -> Outcome<Vec<Audit>> {
    let side = |which: &str| {
        format!(
            "({which}).name is not null, coalesce(({which}).owner::text, ''), coalesce(({which}).holder, ''), \
             coalesce(({which}).fence, 0), {}, {}, coalesce((extract(epoch from ({which}).ttl) * 1000000)::bigint, 0)",
            micros(&format!("({which}).acquired_at")),
            micros(&format!("({which}).expires_at")),
        )
    };
    let sql = format!(
        "select number, up, at, name, overtaken::bigint, {}, {} from torture.audit order by number",
        side("old"),
        side("new")
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(connection).await?;
    let read = |row: &sqlx::postgres::PgRow, first: usize| {
        row.get::<bool, _>(first).then(|| Row {
            owner: row.get(first + 1),
            holder: row.get(first + 2),
            fence: row.get(first + 3),
            acquired_at: row.get(first + 4),
            expires_at: row.get(first + 5),
            ttl: row.get(first + 6),
        })
    };
    Ok(rows
        .iter()
        .map(|row| Audit {
            number: row.get(0),
            up: row.get(1),
            at: row.get(2),
            name: row.get(3),
            overtaken: row.get(4),
            old: read(row, 5),
            new: read(row, 12),
        })
        .collect())
}

pub async fn written(connection: &mut PgConnection) -> Outcome<Vec<Written>> {
    let sql = "select name, number, fence, current, id, write from torture.written order by name, number";
    let rows = sqlx::query_as::<_, (String, i64, i64, i64, String, i64)>(sql)
        .fetch_all(connection)
        .await?;
    Ok(rows
        .into_iter()
        .map(|(name, number, fence, current, id, write)| Written {
            name,
            number,
            fence,
            current,
            id,
            write,
        })
        .collect())
}

pub async fn end(connection: &mut PgConnection) -> Outcome<End> {
    let counts = "
        select
            (select count(*) from leasehold.locks where owner is not null and expires_at > clock_timestamp()),
            (select count(*) from leasehold.live_waiters),
            (select count(*) from leasehold.locks where expires_at < clock_timestamp() - interval '4 minutes'),
            (select count(*) from leasehold.clients where expires_at < clock_timestamp() - interval '4 minutes'),
            number, value from torture.control";
    let (held, waiting, old_rows, old_clients, number, value) =
        sqlx::query_as(counts).fetch_one(&mut *connection).await?;
    let registers = sqlx::query_as("select name, number, value from torture.registers")
        .fetch_all(connection)
        .await?;
    Ok(End {
        held,
        waiting,
        old_rows,
        old_clients,
        control: (number, value),
        registers,
        unclosed: Vec::new(),
    })
}

fn micros(at: &str) -> String {
    format!("coalesce((extract(epoch from {at}) * 1000000)::bigint, 0)")
}
