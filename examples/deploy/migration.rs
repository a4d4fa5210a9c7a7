//! The part to copy: the application's migration, done by one of however many replicas start at once.

use std::time::Duration;

use leasehold::{Lease, LeaseClient};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::Outcome;

/// Who has migrated.
pub enum Migrated {
    /// This replica, or the last part of it.
    Here,
    /// Others, before this one's turn.
    Before,
}

/// What there is to do, in this order. A statement that changes rows is repeated until it finds none.
const STEPS: [&str; 3] = [
    "alter table invoice add column currency text",
    "update invoice set currency = 'EUR'
        where id in (select id from invoice where currency is null order by id limit 50)",
    "alter table invoice alter column currency set not null",
];

/// Brings the application's tables up to date, or waits until somebody else has.
pub async fn migrate(leases: &LeaseClient, pool: &PgPool, name: &str) -> Outcome<Migrated> {
    // Most starts find nothing to migrate, and need no lease to see that.
    if steps_done(pool).await? == STEPS.len() {
        return Ok(Migrated::Before);
    }
    let turn = leases.acquire(name).ttl(TTL).wait_at_most(PATIENCE);
    turn.hold(async |lease| migrate_holding(lease, pool).await).await?
}

async fn migrate_holding(lease: &Lease, pool: &PgPool) -> Outcome<Migrated> {
    // Looked at again: whoever had the lease before has done all of it, or as much as it came to do.
    let done = steps_done(pool).await?;
    if done == STEPS.len() {
        return Ok(Migrated::Before);
    }
    let mut tx = lease.begin(pool).await?;
    sqlx::query("create table if not exists migration (number bigserial, step integer, rows bigint, fence bigint)")
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    for step in done..STEPS.len() {
        while take_part_of(step, lease, pool).await? {
            // Leaves room for the release before, which still serves.
            sleep(PAUSE).await;
        }
    }
    Ok(Migrated::Here)
}

/// One transaction, void if the lease has passed on, with the record of it. Tells whether there is more.
async fn take_part_of(step: usize, lease: &Lease, pool: &PgPool) -> Outcome<bool> {
    let mut tx = lease.begin(pool).await?;
    let rows = sqlx::query(STEPS[step]).execute(&mut *tx).await?.rows_affected();
    sqlx::query("insert into migration (step, rows, fence) values ($1, $2, $3)")
        .bind(step as i32)
        .bind(rows as i64)
        .bind(lease.fencing_token())
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(rows > 0)
}

/// A step is over with the transaction that changed no rows.
async fn steps_done(pool: &PgPool) -> Result<usize, sqlx::Error> {
    let has_begun: bool = sqlx::query_scalar("select to_regclass('migration') is not null")
        .fetch_one(pool)
        .await?;
    if !has_begun {
        return Ok(0);
    }
    let done: i64 = sqlx::query_scalar("select count(*) from migration where rows = 0")
        .fetch_one(pool)
        .await?;
    Ok(done as usize)
}

/// How long a migration stands still, at most, when the replica dies that is at it. Half a minute is more
/// usual; it does not bound how long the migration takes.
const TTL: Duration = Duration::from_secs(2);

/// Longer than the migration takes. A replica that cannot wait so long fails to start.
const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(20);
