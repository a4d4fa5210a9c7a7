//! The fence for a resource whose database is not the lock's.

use sqlx::PgTransaction;
use tracing::{Instrument, debug_span, warn};

use crate::error::{Error, is_fenced, sql_state};
use crate::name::complaint;
use crate::signals::{self, Check};
use crate::store;
use crate::token::FencingToken;

impl FencingToken {
    /// Makes the rest of `tx` conditional on no higher token having been admitted to `resource`, and
    /// keeps lower ones out for good: the fence for a resource whose database is not the lock's.
    ///
    /// That database needs the schema too ([`migrate`](crate::migrate())). The same token is admitted
    /// again. Until `tx` ends no other token is admitted to the resource, and a rollback leaves no
    /// mark. What a resource is called is the caller's choice: 1 to 512 bytes without NUL, often the
    /// lease's name.
    ///
    /// It compares numbers, and so it refuses the former holder from the new holder's first admission
    /// on, not from the grant on.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] when a higher token was admitted before; [`Error::InvalidOption`] before
    /// anything is sent; [`Error::Admit`] with what the database said: `40001` in repeatable read and
    /// serializable when another token was admitted since the transaction's snapshot. Roll `tx` back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. After the future is dropped, `tx` is good only for rollback, which dropping
    /// `tx` does.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: leasehold::Lease, archive: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = archive.begin().await?;
    /// lease.fencing_token().admit(&mut tx, "document:7").await?;
    /// sqlx::query("update document set body = 'new' where id = 7").execute(&mut *tx).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn admit(self, tx: &mut PgTransaction<'_>, resource: impl AsRef<str>) -> Result<(), Error> {
        let resource = resource.as_ref();
        if let Some(problem) = complaint(resource) {
            return Err(Error::InvalidOption {
                option: "resource",
                problem: problem.into(),
            });
        }
        let span = debug_span!("admit", resource, lease.fencing_token = %self);
        let admitted = store::admit(tx, resource, self).instrument(span.clone()).await;
        admitted.map_err(|source| {
            let resource = resource.to_owned();
            match sql_state(&source).as_deref() {
                _ if is_fenced(&source) => {
                    span.in_scope(
                        || warn!(resource, lease.fencing_token = %self, "the resource refused the fencing token"),
                    );
                    signals::fenced("", Check::Admit);
                    Error::Stale {
                        resource,
                        fencing_token: self,
                    }
                }
                Some("3F000" | "42883" | "42P01") => Error::SchemaMissing { source: source.into() },
                _ => Error::Admit {
                    resource,
                    fencing_token: self,
                    source,
                },
            }
        })
    }
}
