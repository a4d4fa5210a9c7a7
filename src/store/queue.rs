//! The queue's part of the SQL.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Error, Row};
use uuid::Uuid;

use super::answers::{ahead, beaten, duration, interval};
use super::{HeldBy, Mode, fetch};
use crate::name::LockName;
use crate::owner::OwnerToken;

/// A waiter's place in the line of its name.
pub(crate) type Ticket = i64;

/// Who waits: a client stands for all waiters of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientArgs {
    pub(crate) id: Uuid,
    /// For how long its waiters count without a heartbeat.
    pub(crate) ttl: Duration,
}

/// What a heartbeat tells of one waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) owner: OwnerToken,
    pub(crate) outcome: BeatOutcome,
    pub(crate) held_by: HeldBy,
    pub(crate) ahead: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BeatOutcome {
    /// It is first in line and the name is free.
    Try,
    Wait,
    /// It does not stand in line: a crash or a stop has removed it.
    Unknown,
}

/// Keeps the client and its waiters alive. With `ping`, its own listener is told too, unless the
/// server's queue of notifications is almost full: a notification would undo the heartbeat.
pub(crate) async fn heartbeat(
    conn: &mut PgConnection,
    mode: Mode,
    client: ClientArgs,
    owners: &[OwnerToken],
    ping: bool,
) -> Result<Vec<Beat>, Error> {
    let query = sqlx::query(HEARTBEAT)
        .bind(client.id)
        .bind(interval(client.ttl))
        .bind(owners.iter().map(|owner| owner.uuid()).collect::<Vec<_>>())
        .bind(ping);
    let rows = fetch(conn, mode, query).await?;
    rows.iter().filter_map(|row| beat(row).transpose()).collect()
}

/// Takes waiters out of line, and passes on the wake-ups of those who have left before.
pub(crate) async fn leave(
    conn: &mut PgConnection,
    mode: Mode,
    owners: &[OwnerToken],
    wake: &[LockName],
) -> Result<(), Error> {
    let query = sqlx::query(LEAVE)
        .bind(owners.iter().map(|owner| owner.uuid()).collect::<Vec<_>>())
        .bind(wake.iter().map(LockName::as_str).collect::<Vec<_>>());
    fetch(conn, mode, query).await?;
    Ok(())
}

/// Where a client is told. Asked in the simple protocol, which goes through every pooler.
pub(crate) async fn channel(conn: &mut PgConnection, client: Uuid) -> Result<String, Error> {
    // A UUID is written with hexadecimal digits and dashes alone.
    let query = AssertSqlSafe(format!("select leasehold.channel('{client}')"));
    sqlx::raw_sql(query).fetch_one(conn).await?.try_get(0)
}

/// None for a waiter that was taken out of line because it was not named.
fn beat(row: &PgRow) -> Result<Option<Beat>, Error> {
    let Some(outcome) = beaten(row.try_get(1)?)? else {
        return Ok(None);
    };
    Ok(Some(Beat {
        owner: row.try_get::<Uuid, _>(0)?.into(),
        outcome,
        ahead: ahead(row.try_get(2)?),
        held_by: HeldBy {
            expires_in: row.try_get::<Option<PgInterval>, _>(3)?.as_ref().map(duration),
            holder: row.try_get(4)?,
            since: row.try_get(5)?,
        },
    }))
}

// Nothing in the queue outlives a crash, so nothing of it waits for the disk.
const HEARTBEAT: &str = "\
    select h.owner, h.outcome, h.ahead, h.expires_in, h.held_by, h.held_since, \
        case when $4 and pg_catalog.pg_notification_queue_usage() < 0.9 \
            then pg_catalog.pg_notify(leasehold.channel($1), '') end \
    from leasehold.heartbeat(\
        case when pg_catalog.set_config('lock_timeout', '100ms', true) is not null \
            and pg_catalog.set_config('synchronous_commit', 'off', true) is not null then $1 end, \
        $2, $3) as h";

const LEAVE: &str = "\
    select l.outcome, w.outcome \
    from pg_catalog.set_config('lock_timeout', '100ms', true) as s (bound) \
        cross join pg_catalog.set_config('synchronous_commit', 'off', true) as f (flush) \
        cross join lateral (\
            select pg_catalog.count(leasehold.leave(o.owner)) from pg_catalog.unnest(\
                case when s.bound is not null and f.flush is not null then $1 end) as o (owner)) as l (outcome) \
        cross join lateral (\
            select pg_catalog.count(leasehold.wake(n.name)) from pg_catalog.unnest(\
                case when s.bound is not null and f.flush is not null then $2 end) as n (name)) as w (outcome)";
