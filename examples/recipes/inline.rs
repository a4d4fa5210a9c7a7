//! A table in the lock's own database: the check stands inside the statement that writes.
//!
//! `leasehold.fence` raises `LH001` unless exactly this grant is current, and nobody else is granted
//! the name until the transaction ends. It is evaluated for each row that is written, so a statement
//! that finds no row checks nothing; `Lease::begin` and `Lease::fence` check first, whatever comes after.

use leasehold::{Lease, is_fenced};
use sqlx::PgPool;

use crate::stage::{Outcome, Stage, expect};

pub async fn run(stage: &Stage) -> Outcome<()> {
    sqlx::raw_sql("create table invoice (id bigint primary key, state text, fence bigint); insert into invoice values (842, 'open')")
        .execute(&stage.pool)
        .await?;
    let (stale, current) = stage.overtaken("invoice:842").await?;

    let refused = finalise(&stale, &stage.pool).await;
    let written = finalise(&current, &stage.pool).await?;

    expect(
        refused.is_err_and(|error| is_fenced(&error)),
        "the stale write is refused",
    )?;
    expect(written, "the current holder's write is accepted")?;
    sqlx::raw_sql("drop table invoice").execute(&stage.pool).await?;
    Ok(())
}

async fn finalise(lease: &Lease, pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query("update invoice set state = 'final', fence = leasehold.fence($1, $2) where id = 842")
        .bind(lease.name())
        .bind(lease.fencing_token())
        .execute(pool)
        .await
        .map(|written| written.rows_affected() == 1)
}
