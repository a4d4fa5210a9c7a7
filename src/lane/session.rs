//! One connection of the lane, and what an error on it means.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tracing::{debug, warn};

use crate::error::{is_read_only, sql_state};
use crate::info::Finding;
use crate::store::{self, Backend, Mode};

use super::LaneOptions;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) conn: PgConnection,
    pub(super) mode: Mode,
    id: SessionId,
}

/// Which connection it is, for when it is gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionId {
    /// Counts the lane's connections.
    pub(super) number: u64,
    /// The server process; unknown behind a pooler.
    pub(super) backend: Option<Backend>,
}

impl Session {
    pub(super) async fn connect(
        options: &PgConnectOptions,
        lane: LaneOptions,
        number: u64,
    ) -> Result<Self, sqlx::Error> {
        // The lane's own few statements stay prepared whatever the application chose for its
        // connections: with a cache of none, sqlx would prepare a new one each time and never
        // let go of it.
        let options = options
            .clone()
            .statement_cache_capacity(STATEMENTS)
            .disable_statement_logging();
        let mut conn = PgConnection::connect_with(&options).await?;
        let mut mode = lane.mode();
        let facts = store::session_facts(&mut conn, mode).await?;
        // Read committed is what the protocol is written for.
        mode.wrapped |= facts.isolation != "read committed";
        // A new connection may lead to another server than the last: one that was promoted, restored
        // or copied, and whose sequence has forgotten tokens.
        match store::enter_epoch(&mut conn, mode).await {
            Ok(findings) => {
                for Finding { finding, remedy } in findings {
                    warn!(finding, remedy, "fencing tokens need attention");
                }
            }
            // Whoever asks for a lease is told, should it be in the way of that.
            Err(error) if error.as_database_error().is_some() => debug!(%error, "could not look over the epoch"),
            Err(error) => return Err(error),
        }
        Ok(Self {
            conn,
            mode,
            id: SessionId {
                number,
                backend: facts.backend.filter(|_| !lane.pooler),
            },
        })
    }

    pub(super) fn id(&self) -> SessionId {
        self.id
    }
}

/// What an error says of the connection and the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// The connection is of no more use; whether the statement was carried out is unknown.
    Cut,
    /// The statement was not carried out and may be at the next try.
    Passing,
    /// The statement took too long: the next should do less.
    TooLong,
    /// Nothing like it will be carried out on this connection.
    Hopeless,
    /// This statement was refused.
    Refused,
}

pub(crate) fn severity(error: &sqlx::Error) -> Severity {
    if matches!(
        error,
        sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::Encode(_)
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::RowNotFound
    ) {
        return Severity::Refused;
    }
    let Some(state) = sql_state(error) else {
        return Severity::Cut;
    };
    match state.as_str() {
        // Shut down, crashed, starting, idle too long, no room, a lost link to a server behind.
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "25P03" | "25P04" => Severity::Cut,
        "57014" | "55P03" => Severity::TooLong,
        "40001" | "40P01" | "26000" | "42P05" => Severity::Passing,
        _ if is_read_only(error) => Severity::Hopeless,
        // "cached plan must not change result type", after a migration: the next plan is a new one.
        "0A000" => Severity::Passing,
        "3F000" | "42883" | "42P01" | "42501" => Severity::Hopeless,
        state if state.starts_with("08") => Severity::Cut,
        _ => Severity::Refused,
    }
}

/// No later try with these options will connect either.
pub(crate) fn is_final(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) => true,
        _ => sql_state(error).is_some_and(|state| state.starts_with("28") || state == "3D000" || state == "42501"),
    }
}

const STATEMENTS: usize = 32;
