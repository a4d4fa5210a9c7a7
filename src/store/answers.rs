//! What the database's answers mean: columns in, outcomes out.
//!
//! It knows no rows, so that it can be tried with whatever columns anybody can think of. An answer
//! that makes no sense is an error, never a guess: what a grant without a token, or with one that no
//! sequence draws, would be fenced by is nobody's to say.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::Error;
use sqlx::postgres::types::PgInterval;

use super::queue::{BeatOutcome, Ticket};
use super::{AcquireOutcome, HeldBy, NotGranted, Reason, ReleaseOutcome, RenewOutcome};
use crate::token::FencingToken;

/// What an acquire is answered with, whatever the outcome.
#[derive(Debug, Clone, Default)]
pub(crate) struct AcquireColumns<'r> {
    pub(crate) outcome: &'r str,
    pub(crate) fencing_token: Option<i64>,
    pub(crate) expires_in: Option<PgInterval>,
    pub(crate) held_by: Option<String>,
    pub(crate) held_since: Option<DateTime<Utc>>,
    pub(crate) ahead: Option<i32>,
    pub(crate) ticket: Option<Ticket>,
}

pub(crate) fn acquired(columns: AcquireColumns<'_>) -> Result<AcquireOutcome, Error> {
    let expires_in = columns.expires_in.as_ref().map(duration);
    let reason = match columns.outcome {
        "granted" => {
            return Ok(AcquireOutcome::Granted {
                token: token(columns.fencing_token)?,
                expires_in: expires_in.ok_or_else(|| missing("granted", "an interval"))?,
            });
        }
        "held" => Reason::Held,
        "queued" => Reason::Queued,
        "pinned" => Reason::Pinned,
        "busy" => Reason::Busy,
        other => return Err(unknown_outcome(other)),
    };
    Ok(AcquireOutcome::NotGranted(NotGranted {
        reason,
        held_by: HeldBy {
            holder: columns.held_by,
            since: columns.held_since,
            expires_in,
        },
        ahead: ahead(columns.ahead),
        ticket: columns.ticket,
    }))
}

pub(crate) fn renewed(outcome: &str, expires_in: Option<&PgInterval>) -> Result<RenewOutcome, Error> {
    Ok(match outcome {
        "renewed" => RenewOutcome::Renewed {
            expires_in: expires_in
                .map(duration)
                .ok_or_else(|| missing("renewed", "an interval"))?,
        },
        "busy" => RenewOutcome::Busy,
        "superseded" => RenewOutcome::Superseded,
        "expired" => RenewOutcome::Expired,
        "gone" => RenewOutcome::Gone,
        other => return Err(unknown_outcome(other)),
    })
}

pub(crate) fn released(outcome: &str) -> Result<ReleaseOutcome, Error> {
    Ok(match outcome {
        "released" => ReleaseOutcome::Released,
        "held_on" => ReleaseOutcome::HeldOn,
        "not_owner" => ReleaseOutcome::NotOwner,
        "busy" => ReleaseOutcome::Busy,
        other => return Err(unknown_outcome(other)),
    })
}

/// None for a waiter that was taken out of line because it was not named.
pub(crate) fn beaten(outcome: &str) -> Result<Option<BeatOutcome>, Error> {
    Ok(match outcome {
        "try" => Some(BeatOutcome::Try),
        "wait" => Some(BeatOutcome::Wait),
        "unknown" => Some(BeatOutcome::Unknown),
        "left" => None,
        other => return Err(unknown_outcome(other)),
    })
}

/// The ticket that a notification carries. Any role may send one to any channel: what is none, or
/// nobody's, says nothing.
pub(crate) fn ticket(payload: &str) -> Option<Ticket> {
    payload.parse().ok()
}

pub(crate) fn ahead(count: Option<i32>) -> u32 {
    count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

pub(crate) fn interval(duration: Duration) -> PgInterval {
    PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(duration.as_micros()).expect("durations are checked to be below 366 days"),
    }
}

/// Lease time has no months; a day of a difference between two timestamps is 86,400 s. What is beyond
/// all clocks is cut down to what can be counted: it must not end the task that reads it.
pub(crate) fn duration(interval: &PgInterval) -> Duration {
    let micros = i128::from(interval.days) * 86_400_000_000 + i128::from(interval.microseconds);
    let counted = micros.clamp(0, i128::from(i64::MAX));
    Duration::from_micros(u64::try_from(counted).expect("it is clamped"))
}

fn token(token: Option<i64>) -> Result<FencingToken, Error> {
    match token {
        Some(token) if token > 0 => Ok(FencingToken::new(token)),
        Some(token) => Err(Error::Decode(
            format!("outcome \"granted\" with fencing token {token}").into(),
        )),
        None => Err(missing("granted", "a fencing token")),
    }
}

fn missing(outcome: &str, what: &str) -> Error {
    Error::Decode(format!("outcome {outcome:?} without {what}").into())
}

fn unknown_outcome(outcome: &str) -> Error {
    let begins: String = outcome.chars().take(64).collect();
    Error::Decode(format!("unknown outcome {begins:?}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_come_and_go_in_seconds() {
        let day = Duration::from_secs(86_400);
        let of = |days, microseconds| PgInterval {
            months: 0,
            days,
            microseconds,
        };

        assert_eq!(duration(&interval(day)), day);
        assert_eq!(duration(&of(1, 1)), day + Duration::from_micros(1));
        assert_eq!(duration(&of(0, -5)), Duration::ZERO);
        assert_eq!(duration(&of(i32::MIN, 0)), Duration::ZERO);
        assert_eq!(
            duration(&of(i32::MAX, i64::MAX)),
            Duration::from_micros(i64::MAX as u64)
        );
    }
}
