//! What can go wrong, and the loss of a lease, which has a type of its own.

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::name::LockName;
use crate::token::FencingToken;

/// Why an operation did not do what was asked.
///
/// That somebody else holds the name is an answer, not an error: `try_acquire` gives `Ok(None)`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is empty, longer than 512 bytes or contains NUL. Nothing was sent.
    #[error("invalid lock name {name:?}: {problem}")]
    InvalidName {
        /// The name, or how it begins.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },

    /// An option is out of range or does not fit the others. Nothing was sent.
    #[error("invalid {option}: {problem}")]
    InvalidOption {
        /// The method that set the option, or the argument.
        option: &'static str,
        /// What is wrong with it.
        problem: String,
    },

    /// `wait_at_most` passed and somebody else still holds the name, or comes first. What is told of
    /// that is what the latest answer told, at most a heartbeat earlier.
    #[error("waited {waited:?} for lease {name}{}{}", held_by(.holder), line(*.ahead))]
    WaitTimedOut {
        /// What was waited for.
        name: LockName,
        /// The label of its holder, where he gave one.
        holder: Option<String>,
        /// Since when he has held it, by the database's clock.
        held_since: Option<DateTime<Utc>>,
        /// Whether the lease has ended and an open fenced transaction keeps the name taken.
        pinned: bool,
        /// How many waiters stood in line before this one.
        ahead: u32,
        /// How long was waited.
        waited: std::time::Duration,
    },

    /// The lease is no longer ours.
    #[error(transparent)]
    Lost(#[from] LeaseLost),

    /// The grant came so late that its trust window was over. It was released again.
    #[error("lease {name} was granted too late to be of use")]
    GrantedTooLate {
        /// What was acquired.
        name: LockName,
    },

    /// Another session keeps the row of the lock locked, by something other than this crate's
    /// functions. Who holds the name cannot be told.
    #[error("the row of lock {name} is locked by another session")]
    Busy {
        /// The lock.
        name: LockName,
    },

    /// The database gave no answer in time. Whatever was asked is undone as soon as it can be
    /// reached, or at the latest after the ttl.
    #[error("no answer from the database to {operation} lease {name}")]
    Unanswered {
        /// What was asked.
        operation: Operation,
        /// Of which lock.
        name: LockName,
        /// What the connection last complained of.
        source: Option<Arc<sqlx::Error>>,
    },

    /// The database refused, or could not be reached.
    #[error("could not {operation} lease {name}")]
    Database {
        /// What was asked.
        operation: Operation,
        /// Of which lock.
        name: LockName,
        /// What the database or the connection said.
        source: Arc<sqlx::Error>,
    },

    /// The held leases could not be listed.
    #[error("could not list the held leases")]
    List {
        /// What the database or the connection said.
        source: sqlx::Error,
    },

    /// The resource has accepted a higher fencing token: somebody else has taken over since.
    #[error("fencing token {fencing_token} is stale for resource {resource:?}")]
    Stale {
        /// What was to be written.
        resource: String,
        /// The token that was refused.
        fencing_token: FencingToken,
    },

    /// The resource's database refused, or could not be reached.
    #[error("could not admit fencing token {fencing_token} to resource {resource:?}")]
    Admit {
        /// What was to be written.
        resource: String,
        /// The token.
        fencing_token: FencingToken,
        /// What the database or the connection said.
        source: sqlx::Error,
    },

    /// The token sequence has come to the end of `bigint`, and nothing is granted any more.
    #[error("no fencing token is left for lease {name}: see leasehold::check")]
    TokensExhausted {
        /// What was to be granted.
        name: LockName,
        /// What the database said.
        source: Arc<sqlx::Error>,
    },

    /// What fencing tokens depend on could not be looked over.
    #[error("could not check the schema leasehold")]
    Check {
        /// What the database or the connection said.
        source: sqlx::Error,
    },

    /// The schema `leasehold` is missing or older than this crate.
    #[error("the schema leasehold is missing or out of date: run leasehold::migrate(&pool) or its migrations")]
    SchemaMissing {
        /// What the database said.
        source: Arc<sqlx::Error>,
    },

    /// The session is read-only: a standby, or `default_transaction_read_only`.
    #[error("the database is read-only: a lease needs the primary and a role that may write")]
    ReadOnly {
        /// What the database said.
        source: Arc<sqlx::Error>,
    },

    /// The client was closed.
    #[error("the lease client is closed")]
    Closed,

    /// The schema could not be installed.
    #[error("could not install the schema leasehold")]
    Migrate {
        /// What the database or the migrator said.
        source: sqlx::migrate::MigrateError,
    },
}

impl Error {
    pub(crate) fn list(source: sqlx::Error) -> Self {
        match sql_state(&source).as_deref() {
            Some("3F000" | "42883" | "42P01") => Self::SchemaMissing { source: source.into() },
            _ => Self::List { source },
        }
    }

    /// Sorts a refusal of the database into the error that names its remedy.
    pub(crate) fn from_database(operation: Operation, name: &LockName, source: Arc<sqlx::Error>) -> Self {
        match sql_state(&source).as_deref() {
            Some("3F000" | "42883" | "42P01") => Self::SchemaMissing { source },
            _ if is_read_only(&source) => Self::ReadOnly { source },
            Some("2200H") => Self::TokensExhausted {
                name: name.clone(),
                source,
            },
            _ => Self::Database {
                operation,
                name: name.clone(),
                source,
            },
        }
    }
}

/// What was asked of the database, for messages: "could not acquire lease …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// To be granted the lease.
    Acquire,
    /// To keep it.
    Renew,
    /// To let it go.
    Release,
    /// To make a transaction conditional on it.
    Fence,
    /// To read who holds it.
    Inspect,
    /// To end it whoever holds it.
    Break,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Fence => "fence",
            Self::Inspect => "inspect",
            Self::Break => "break",
        })
    }
}

/// A grant ended without our release.
///
/// It travels alone, so that "did I lose the lease, or did the database fail?" is a question of
/// type: [`Lease::run_until_lost`](crate::Lease::run_until_lost) returns it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("lease {name} with fencing token {fencing_token} was lost: {cause}")]
#[non_exhaustive]
pub struct LeaseLost {
    /// What was held.
    pub name: LockName,
    /// The token of the grant that ended.
    pub fencing_token: FencingToken,
    /// How it ended.
    pub cause: LossCause,
}

/// How a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// No renewal was confirmed before the trust window ended, or the database answered that the
    /// ttl had run out.
    Expired,
    /// The database has granted the name to somebody else.
    Superseded,
    /// The grant is no longer in the database: broken by an operator, or swept after it ran out.
    Gone,
    /// The database refused the fencing token.
    Fenced,
    /// `hold_at_most` has passed.
    HeldAtMost,
    /// The client was closed, which released the lease.
    Closed,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "no renewal in time",
            Self::Superseded => "granted to another owner",
            Self::Gone => "no longer in the database",
            Self::Fenced => "the database refused its fencing token",
            Self::HeldAtMost => "held for as long as was allowed",
            Self::Closed => "the client was closed",
        })
    }
}

/// Whether the caller's own SQL was refused because a fencing token is not the current one: the
/// error `LH001` that `leasehold.fence`, `leasehold.admit` and the trigger `leasehold.reject_stale`
/// raise inside a statement.
///
/// # Examples
///
/// ```no_run
/// # async fn example(lease: leasehold::Lease, pool: sqlx::PgPool) -> Result<(), sqlx::Error> {
/// let written = sqlx::query("update invoice set state = 'final', fence = leasehold.fence($1, $2) where id = 842")
///     .bind("invoice:842")
///     .bind(lease.fencing_token())
///     .execute(&pool)
///     .await;
/// match written {
///     Err(error) if leasehold::is_fenced(&error) => println!("somebody else has taken over"),
///     other => println!("{} rows", other?.rows_affected()),
/// }
/// # Ok(())
/// # }
/// ```
pub fn is_fenced(error: &sqlx::Error) -> bool {
    sql_state(error).as_deref() == Some("LH001")
}

pub(crate) fn sql_state(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// A standby, or a session that may not write. A standby answers with one of three codes,
/// whichever of its limits is met first; one of them is also that of a plan that a migration has
/// overtaken.
pub(crate) fn is_read_only(error: &sqlx::Error) -> bool {
    match sql_state(error).as_deref() {
        Some("25006" | "55000") => true,
        Some("0A000") => error
            .as_database_error()
            .is_some_and(|error| !error.message().contains("cached plan")),
        _ => false,
    }
}

fn line(ahead: u32) -> String {
    match ahead {
        0 => String::new(),
        ahead => format!(", {ahead} ahead"),
    }
}

fn held_by(holder: &Option<String>) -> String {
    match holder {
        Some(holder) => format!(", held by {holder}"),
        None => String::new(),
    }
}
