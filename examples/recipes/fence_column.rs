//! A table with a fence column of its own: a trigger refuses every lower token, whoever writes.
//!
//! The table needs the function `leasehold.reject_stale` in its database, and nothing else of ours.
//! What the trigger cannot see is a writer that leaves the column alone. So let nobody update the table
//! directly: writers get a function that takes the token, and the rights to that alone.

use leasehold::{FencingToken, is_fenced};
use sqlx::PgPool;

use crate::stage::{Outcome, Stage, expect};

const TABLE: &str = "
    create schema guarded;
    create table guarded.setting (key text primary key, value text not null, fence bigint not null);

    create trigger reject_stale
        before update on guarded.setting
        for each row execute function leasehold.reject_stale('fence');

    -- The one way to write: it cannot leave the column alone. Grant execute on it, and no update.
    create function guarded.put(key text, value text, fence bigint) returns void
        language sql security definer set search_path = pg_catalog, pg_temp
    begin atomic
        insert into guarded.setting as s (key, value, fence)
        values (put.key, put.value, put.fence)
        on conflict (key) do update set value = excluded.value, fence = excluded.fence;
    end;";

pub async fn run(stage: &Stage) -> Outcome<()> {
    sqlx::raw_sql(TABLE).execute(&stage.pool).await?;
    let (stale, current) = stage.overtaken("setting:colour").await?;

    put(&stage.pool, "green", current.fencing_token()).await?;
    let refused = put(&stage.pool, "red", stale.fencing_token()).await;
    put(&stage.pool, "blue", current.fencing_token()).await?;

    expect(
        refused.is_err_and(|error| is_fenced(&error)),
        "the stale write is refused",
    )?;
    let value: String = sqlx::query_scalar("select value from guarded.setting")
        .fetch_one(&stage.pool)
        .await?;
    expect(value == "blue", "the current holder's value stands")?;
    sqlx::raw_sql("drop schema guarded cascade")
        .execute(&stage.pool)
        .await?;
    Ok(())
}

async fn put(pool: &PgPool, value: &str, token: FencingToken) -> Result<(), sqlx::Error> {
    sqlx::query("select guarded.put('colour', $1, $2)")
        .bind(value)
        .bind(token)
        .execute(pool)
        .await?;
    Ok(())
}
