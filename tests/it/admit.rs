//! What a resource outside the lock's database has accepted keeps lower tokens out.

mod contention;
mod resources;
mod rust;
mod trigger;
mod trigger_misuse;
mod trigger_race;

use sqlx::PgConnection;

use crate::support::sql::sql_state;

/// The token when it is admitted, else the SQLSTATE.
async fn admit(session: &mut PgConnection, resource: &str, token: impl Into<Option<i64>>) -> Result<i64, String> {
    let admitted = sqlx::query_scalar("select leasehold.admit($1, $2)")
        .bind(resource)
        .bind(token.into());
    admitted.fetch_one(session).await.map_err(|error| sql_state(&error))
}

/// The highest token that the resource has accepted.
async fn accepted(session: &mut PgConnection, resource: &str) -> Option<i64> {
    let sql = "select fence from leasehold.fences where resource = $1";
    sqlx::query_scalar(sql)
        .bind(resource)
        .fetch_optional(session)
        .await
        .expect(sql)
}

fn stale<T>() -> Result<T, String> {
    Err("LH001".to_owned())
}

fn overtaken<T>() -> Result<T, String> {
    Err("40001".to_owned())
}
