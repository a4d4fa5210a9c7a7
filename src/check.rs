//! Looking over what fencing tokens depend on in the database.

use sqlx::PgPool;
use tracing::{Instrument, debug_span};

use crate::error::{Error, sql_state};
use crate::info::Finding;
use crate::store;

/// Looks over the token sequence (`cache 1`, `no cycle`, never set back) and whether this server is the
/// one whose history the tokens belong to. Nothing found: an empty list.
///
/// A client does the same each time it connects, and logs a warning for each finding.
///
/// # Errors
///
/// [`Error::SchemaMissing`], or [`Error::Check`] with what the pool or the database said.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
///
/// # Examples
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), leasehold::Error> {
/// for found in leasehold::check(&pool).await? {
///     eprintln!("{}; remedy: {}", found.finding, found.remedy);
/// }
/// # Ok(())
/// # }
/// ```
pub async fn check(pool: &PgPool) -> Result<Vec<Finding>, Error> {
    store::check(pool)
        .instrument(debug_span!("check"))
        .await
        .map_err(|source| match sql_state(&source).as_deref() {
            Some("3F000" | "42883" | "42P01") => Error::SchemaMissing { source: source.into() },
            _ => Error::Check { source },
        })
}
