//! The test kit's own promises, on real servers and real sockets.

mod cluster;
mod guardian;
mod proxy;

use std::time::Duration;

use sqlx::PgConnection;

/// Long enough for a loaded machine; nothing that works comes near it.
const SOON: Duration = Duration::from_secs(30);

/// How long to look for something that must not happen.
const A_WHILE: Duration = Duration::from_millis(150);

async fn number(connection: &mut PgConnection, sql: &'static str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(sql).fetch_one(connection).await
}
