//! The protocol of the Go library pglock, statement by statement: record version numbers from a
//! sequence, serializable transactions, a heartbeat for each lock, and one lease duration of sleep
//! between two looks at a name that is held.
//!
//! Its favour where there is a choice: leases of 1 s instead of 20, with heartbeats every 250 ms,
//! since they are also how often it looks and how long it sleeps after a serialization failure; the
//! isolation level in the `begin` instead of a statement of its own; the first heartbeat one period
//! after the acquisition instead of at once.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::peer::{Outcome, Peer, Pending, Session};
use crate::peers::pool;

pub const NAME: &str = "pglock's protocol";
pub const KEEPING: &str = "pglock's protocol, keeping rows";

pub struct PgLock {
    pool: PgPool,
    keeps_rows: bool,
}

impl PgLock {
    /// It deletes a released lock's row unless it is told to keep it.
    pub async fn new(options: &PgConnectOptions, keeps_rows: bool) -> Outcome<Self> {
        let pool = pool(options);
        sqlx::raw_sql(SCHEMA).execute(&pool).await?;
        Ok(Self { pool, keeps_rows })
    }
}

impl Peer for PgLock {
    fn name(&self) -> &'static str {
        if self.keeps_rows { KEEPING } else { NAME }
    }

    fn session(&self, _number: usize) -> Pending<'_, Box<dyn Session>> {
        let lock = Lock {
            pool: self.pool.clone(),
            keeps_rows: self.keeps_rows,
            seen: 0,
            held: None,
        };
        Box::pin(async move { Ok(Box::new(lock) as Box<dyn Session>) })
    }

    fn is_polling(&self) -> bool {
        true
    }
}

struct Lock {
    pool: PgPool,
    keeps_rows: bool,
    /// The version seen last: it may be taken over when it has not changed for a lease duration.
    seen: i64,
    held: Option<Held>,
}

struct Held {
    name: String,
    version: Arc<Mutex<i64>>,
    heartbeat: JoinHandle<()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl Lock {
    async fn look(&mut self, name: &str) -> Outcome<bool> {
        loop {
            match self.store_acquire(name).await {
                Err(error) if is_serialization_failure(&error) => sleep(HEARTBEAT_EVERY).await,
                // Deleted between the two statements: pglock fails here, and its caller asks again.
                Err(sqlx::Error::RowNotFound) => self.seen = 0,
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Whether it is ours now.
    async fn store_acquire(&mut self, name: &str) -> Result<bool, sqlx::Error> {
        let version = next_version(&self.pool).await?;
        let mut tx = self.pool.begin_with(BEGIN).await?;
        sqlx::query(
            "insert into pglock.locks (name, record_version_number, data, owner)
             values ($1, $2, $3, $6)
             on conflict (name) do update
             set record_version_number = $2, data = case when $5 then $3 else locks.data end, owner = $6
             where locks.record_version_number is null or locks.record_version_number = $4",
        )
        .bind(name)
        .bind(version)
        .bind(None::<Vec<u8>>)
        .bind(self.seen)
        .bind(false)
        .bind("owner")
        .execute(&mut *tx)
        .await?;
        let (actual, _data, _owner): (i64, Option<Vec<u8>>, String) =
            sqlx::query_as("select record_version_number, data, owner from pglock.locks where name = $1 for update")
                .bind(name)
                .fetch_one(&mut *tx)
                .await?;
        self.seen = actual;
        if actual != version {
            tx.rollback().await?;
            return Ok(false);
        }
        tx.commit().await?;
        let current = Arc::new(Mutex::new(version));
        self.held = Some(Held {
            name: name.to_owned(),
            version: Arc::clone(&current),
            heartbeat: tokio::spawn(heartbeat(self.pool.clone(), name.to_owned(), current)),
        });
        Ok(true)
    }

    async fn store_release(&self, name: &str, version: i64) -> Result<bool, sqlx::Error> {
        let mut tx = self.pool.begin_with(BEGIN).await?;
        let released = sqlx::query(
            "update pglock.locks set record_version_number = null where name = $1 and record_version_number = $2",
        )
        .bind(name)
        .bind(version)
        .execute(&mut *tx)
        .await?;
        if released.rows_affected() == 0 {
            tx.rollback().await?;
            return Ok(false);
        }
        if !self.keeps_rows {
            sqlx::query("delete from pglock.locks where name = $1 and record_version_number is null")
                .bind(name)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(true)
    }
}

impl Session for Lock {
    fn acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            self.seen = 0;
            while !self.look(name).await? {
                sleep(LEASE).await;
            }
            Ok(())
        })
    }

    /// A lock that fails if it is held, and has seen no version before.
    fn try_acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, bool> {
        Box::pin(async move {
            self.seen = 0;
            self.look(name).await
        })
    }

    fn release(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            let held = self.held.take().ok_or("nothing is held")?;
            // The heartbeat is over before the release begins, and does not begin another.
            let version = held.version.lock().await;
            held.heartbeat.abort();
            let version = *version;
            loop {
                match self.store_release(&held.name, version).await {
                    Err(error) if is_serialization_failure(&error) => sleep(HEARTBEAT_EVERY).await,
                    Ok(true) => return Ok(()),
                    Ok(false) => return Err("the lock was already released".into()),
                    Err(error) => return Err(error.into()),
                }
            }
        })
    }
}

async fn heartbeat(pool: PgPool, name: String, version: Arc<Mutex<i64>>) {
    loop {
        sleep(HEARTBEAT_EVERY).await;
        let mut version = version.lock().await;
        match store_heartbeat(&pool, &name, *version).await {
            Ok(Some(next)) => *version = next,
            Err(error) if is_serialization_failure(&error) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

async fn store_heartbeat(pool: &PgPool, name: &str, version: i64) -> Result<Option<i64>, sqlx::Error> {
    let next = next_version(pool).await?;
    let mut tx = pool.begin_with(BEGIN).await?;
    let beaten = sqlx::query(
        "update pglock.locks set record_version_number = $3 where name = $1 and record_version_number = $2",
    )
    .bind(name)
    .bind(version)
    .bind(next)
    .execute(&mut *tx)
    .await?;
    if beaten.rows_affected() == 0 {
        tx.rollback().await?;
        return Ok(None);
    }
    tx.commit().await?;
    Ok(Some(next))
}

async fn next_version(pool: &PgPool) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select nextval('pglock.locks_rvn')")
        .fetch_one(pool)
        .await
}

fn is_serialization_failure(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.code().as_deref() == Some("40001"))
}

const SCHEMA: &str = "
    create schema if not exists pglock;
    create table if not exists pglock.locks (
        name character varying(255) primary key,
        record_version_number bigint,
        data bytea,
        owner character varying(255)
    );
    create sequence if not exists pglock.locks_rvn cycle owned by pglock.locks.record_version_number;";
const BEGIN: &str = "begin isolation level serializable";
const LEASE: Duration = Duration::from_secs(1);
const HEARTBEAT_EVERY: Duration = Duration::from_millis(250);
