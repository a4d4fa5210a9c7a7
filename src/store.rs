//! The only SQL in Rust: one function per SQL function, plain data back.
//!
//! Every name is written with its schema, operators too, so that a hostile `search_path` changes
//! nothing. What must be set for one statement alone is set inside it with
//! `set_config(…, true)`, in an argument of our function or a row that it depends on, so that the
//! setting comes first. Nothing is ever set on the lane's session, which a pooler leaks or refuses.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::types::PgInterval;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Error, Executor, Postgres, Row};
use uuid::Uuid;

use crate::info::{Finding, LeaseInfo};
use crate::name::LockName;
use crate::owner::OwnerToken;
use crate::token::FencingToken;

pub(crate) mod answers;
mod queue;

pub(crate) use answers::ticket;
pub(crate) use queue::{Beat, BeatOutcome, ClientArgs, Ticket, channel, heartbeat, leave};

use answers::{AcquireColumns, duration, interval};

type PgQuery<'q> = Query<'q, Postgres, sqlx::postgres::PgArguments>;

/// How statements are sent on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mode {
    /// Kept prepared under a name. A pooler in transaction mode may not find the name again.
    pub(crate) prepared: bool,
    /// Wrapped in a read committed transaction of its own.
    pub(crate) wrapped: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct AcquireArgs {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerToken,
    pub(crate) ttl: Duration,
    pub(crate) holder: Arc<str>,
    /// Given one, it stands in line when it is not granted.
    pub(crate) client: Option<ClientArgs>,
}

/// What the database answered to an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AcquireOutcome {
    Granted { token: FencingToken, expires_in: Duration },
    NotGranted(NotGranted),
}

/// Why not, and what is in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotGranted {
    pub(crate) reason: Reason,
    pub(crate) held_by: HeldBy,
    /// Waiters ahead of this one; of one that does not stand in line, all of them.
    pub(crate) ahead: u32,
    /// Of one that stands in line.
    pub(crate) ticket: Option<Ticket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Held by another, or promised to a waiter.
    Held,
    /// The same for one that stands in line: it will be woken.
    Queued,
    /// Free or run out, but an open fenced transaction holds the row.
    Pinned,
    /// Locked, or the queue is changing, by something that passes in a moment.
    Busy,
}

impl NotGranted {
    /// Of a name that nothing is known of but that it cannot be had at the moment.
    pub(crate) fn busy() -> Self {
        Self {
            reason: Reason::Busy,
            held_by: HeldBy::default(),
            ahead: 0,
            ticket: None,
        }
    }
}

/// Who stands in the way, as far as the database knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HeldBy {
    pub(crate) holder: Option<String>,
    pub(crate) since: Option<DateTime<Utc>>,
    pub(crate) expires_in: Option<Duration>,
}

/// The answers to a batch of acquires.
#[derive(Debug)]
pub(crate) struct AcquireOutcomes {
    pub(crate) answers: Vec<(OwnerToken, AcquireOutcome)>,
    /// Whether commits wait for a synchronous standby. A cancelled wait looks like success.
    pub(crate) replicated: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct RenewArgs {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerToken,
    pub(crate) ttl: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewOutcome {
    Renewed { expires_in: Duration },
    Busy,
    Superseded,
    Expired,
    Gone,
}

#[derive(Debug, Clone)]
pub(crate) struct ReleaseArgs {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerToken,
    pub(crate) hold_at_least: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    HeldOn,
    NotOwner,
    Busy,
}

/// One step of the sweep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Swept {
    pub(crate) removed: i32,
    pub(crate) again_in: Duration,
}

/// What a new connection tells of itself.
#[derive(Debug, Clone)]
pub(crate) struct SessionFacts {
    /// None where it is a pooler's, which lends it to one client after another.
    pub(crate) backend: Option<Backend>,
    pub(crate) isolation: String,
}

/// A server process, told apart from a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) pid: i32,
    pub(crate) started_at: Option<DateTime<Utc>>,
}

pub(crate) async fn acquire(conn: &mut PgConnection, mode: Mode, args: &AcquireArgs) -> Result<AcquireOutcomes, Error> {
    let query = sqlx::query(ACQUIRE)
        .bind(args.name.as_str())
        .bind(args.owner.uuid())
        .bind(interval(args.ttl))
        .bind(&*args.holder)
        .bind(args.client.map(|client| client.id))
        .bind(args.client.map(|client| interval(client.ttl)));
    acquired(&fetch(conn, mode, query).await?)
}

pub(crate) async fn acquire_many(
    conn: &mut PgConnection,
    mode: Mode,
    args: &[AcquireArgs],
) -> Result<AcquireOutcomes, Error> {
    let query = sqlx::query(ACQUIRE_MANY)
        .bind(args.iter().map(|a| a.name.as_str()).collect::<Vec<_>>())
        .bind(args.iter().map(|a| a.owner.uuid()).collect::<Vec<_>>())
        .bind(args.iter().map(|a| interval(a.ttl)).collect::<Vec<_>>())
        .bind(args.iter().map(|a| &*a.holder).collect::<Vec<_>>())
        .bind(
            args.iter()
                .map(|a| a.client.map(|client| client.id))
                .collect::<Vec<_>>(),
        )
        .bind(args.iter().find_map(|a| a.client).map(|client| interval(client.ttl)));
    acquired(&fetch(conn, mode, query).await?)
}

pub(crate) async fn renew(
    conn: &mut PgConnection,
    mode: Mode,
    args: &[RenewArgs],
) -> Result<Vec<(OwnerToken, RenewOutcome)>, Error> {
    let query = sqlx::query(RENEW)
        .bind(args.iter().map(|a| a.name.as_str()).collect::<Vec<_>>())
        .bind(args.iter().map(|a| a.owner.uuid()).collect::<Vec<_>>())
        .bind(args.iter().map(|a| interval(a.ttl)).collect::<Vec<_>>());
    fetch(conn, mode, query).await?.iter().map(renewed).collect()
}

/// With `wake`, the first in line is told.
pub(crate) async fn release(
    conn: &mut PgConnection,
    mode: Mode,
    args: &ReleaseArgs,
    wake: bool,
) -> Result<Vec<(OwnerToken, ReleaseOutcome)>, Error> {
    let query = sqlx::query(RELEASE)
        .bind(args.name.as_str())
        .bind(args.owner.uuid())
        .bind(interval(args.hold_at_least))
        .bind(wake);
    fetch(conn, mode, query).await?.iter().map(released).collect()
}

pub(crate) async fn release_many(
    conn: &mut PgConnection,
    mode: Mode,
    args: &[ReleaseArgs],
    wake: bool,
) -> Result<Vec<(OwnerToken, ReleaseOutcome)>, Error> {
    let query = sqlx::query(RELEASE_MANY)
        .bind(args.iter().map(|a| a.name.as_str()).collect::<Vec<_>>())
        .bind(args.iter().map(|a| a.owner.uuid()).collect::<Vec<_>>())
        .bind(args.iter().map(|a| interval(a.hold_at_least)).collect::<Vec<_>>())
        .bind(wake);
    fetch(conn, mode, query).await?.iter().map(released).collect()
}

pub(crate) async fn sweep(conn: &mut PgConnection, mode: Mode) -> Result<Swept, Error> {
    let rows = fetch(conn, mode, sqlx::query(SWEEP)).await?;
    let row = rows.first().ok_or(Error::RowNotFound)?;
    Ok(Swept {
        removed: row.try_get(0)?,
        again_in: duration(&row.try_get(1)?),
    })
}

pub(crate) async fn session_facts(conn: &mut PgConnection, mode: Mode) -> Result<SessionFacts, Error> {
    let rows = fetch(conn, mode, sqlx::query(SESSION_FACTS)).await?;
    let row = rows.first().ok_or(Error::RowNotFound)?;
    let backend = Backend {
        pid: row.try_get(0)?,
        started_at: row.try_get(1)?,
    };
    Ok(SessionFacts {
        backend: row.try_get::<bool, _>(3)?.then_some(backend),
        isolation: row.try_get(2)?,
    })
}

/// Which of the backends there still are, and whether each is at work. One that idles is ended:
/// its client has given it up, and a statement that reached it late must not run.
pub(crate) async fn end_idle_backends(
    conn: &mut PgConnection,
    mode: Mode,
    backends: &[Backend],
) -> Result<Vec<(Backend, bool)>, Error> {
    let query = sqlx::query(END_IDLE_BACKENDS)
        .bind(backends.iter().map(|b| b.pid).collect::<Vec<_>>())
        .bind(backends.iter().map(|b| b.started_at).collect::<Vec<_>>());
    fetch(conn, mode, query)
        .await?
        .iter()
        .map(|row| {
            let backend = Backend {
                pid: row.try_get(0)?,
                started_at: row.try_get(1)?,
            };
            Ok((backend, row.try_get(2)?))
        })
        .collect()
}

pub(crate) async fn fence(
    conn: &mut PgConnection,
    name: &LockName,
    token: FencingToken,
    owner: OwnerToken,
    prepared: bool,
) -> Result<(), Error> {
    sqlx::query(FENCE)
        .persistent(prepared)
        .bind(name.as_str())
        .bind(token)
        .bind(owner.uuid())
        .execute(conn)
        .await?;
    Ok(())
}

pub(crate) async fn admit(conn: &mut PgConnection, resource: &str, token: FencingToken) -> Result<(), Error> {
    sqlx::query(ADMIT).bind(resource).bind(token).execute(conn).await?;
    Ok(())
}

pub(crate) async fn check<'c>(executor: impl Executor<'c, Database = Postgres>) -> Result<Vec<Finding>, Error> {
    // Seldom asked, so it is not prepared, and goes through every pooler.
    sqlx::query(CHECK)
        .persistent(false)
        .fetch_all(executor)
        .await?
        .iter()
        .map(found)
        .collect()
}

/// Looks over what tokens depend on, and lets them jump where this server is not the one whose
/// history they belong to.
pub(crate) async fn enter_epoch(conn: &mut PgConnection, mode: Mode) -> Result<Vec<Finding>, Error> {
    fetch(conn, mode, sqlx::query(ENTER_EPOCH))
        .await?
        .iter()
        .map(found)
        .collect()
}

fn found(row: &PgRow) -> Result<Finding, Error> {
    Ok(Finding {
        finding: row.try_get(0)?,
        remedy: row.try_get(1)?,
    })
}

pub(crate) async fn break_lease(conn: &mut PgConnection, mode: Mode, name: &LockName) -> Result<bool, Error> {
    let rows = fetch(conn, mode, sqlx::query(BREAK_LEASE).bind(name.as_str())).await?;
    rows.first().ok_or(Error::RowNotFound)?.try_get(0)
}

/// The held leases: of one name, or all in order of their names.
pub(crate) async fn held(
    conn: &mut PgConnection,
    mode: Mode,
    name: Option<&LockName>,
) -> Result<Vec<LeaseInfo>, Error> {
    fetch(conn, mode, sqlx::query(HELD).bind(name.map(LockName::as_str)))
        .await?
        .iter()
        .map(|row| {
            Ok(LeaseInfo {
                name: row.try_get(0)?,
                holder: row.try_get(1)?,
                fencing_token: row.try_get(2)?,
                held_since: row.try_get(3)?,
                expires_in: duration(&row.try_get(4)?),
                is_expired: row.try_get(5)?,
                waiters: row
                    .try_get::<Option<i32>, _>(6)?
                    .map(|waiters| answers::ahead(Some(waiters))),
            })
        })
        .collect()
}

/// The highest migration that is in. `None`: there is no schema, or this role may not see it.
pub(crate) async fn version(conn: &mut PgConnection) -> Result<Option<i64>, Error> {
    let present: bool = sqlx::query("select pg_catalog.to_regclass('leasehold.version') is not null")
        .fetch_one(&mut *conn)
        .await?
        .try_get(0)?;
    if !present {
        return Ok(None);
    }
    sqlx::query("select pg_catalog.max(v.version) from leasehold.version as v")
        .fetch_one(conn)
        .await?
        .try_get(0)
}

/// For the whole session, so only where that one is our own and about to end.
pub(crate) async fn pin_search_path(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)")
        .execute(conn)
        .await?;
    Ok(())
}

/// Sends one statement the way the connection needs it. On an error inside the wrapping
/// transaction that one is rolled back; when even this fails the connection is of no more use.
async fn fetch(conn: &mut PgConnection, mode: Mode, query: PgQuery<'_>) -> Result<Vec<PgRow>, Error> {
    let query = query.persistent(mode.prepared);
    if !mode.wrapped {
        return query.fetch_all(conn).await;
    }
    conn.execute("begin isolation level read committed").await?;
    match query.fetch_all(&mut *conn).await {
        Ok(rows) => {
            conn.execute("commit").await?;
            Ok(rows)
        }
        Err(refused) => {
            conn.execute("rollback").await?;
            Err(refused)
        }
    }
}

fn acquired(rows: &[PgRow]) -> Result<AcquireOutcomes, Error> {
    let mut batch = AcquireOutcomes {
        answers: Vec::with_capacity(rows.len()),
        replicated: false,
    };
    for row in rows {
        let outcome = answers::acquired(AcquireColumns {
            outcome: row.try_get(1)?,
            fencing_token: row.try_get(2)?,
            expires_in: row.try_get(3)?,
            held_by: row.try_get(4)?,
            held_since: row.try_get(5)?,
            ahead: row.try_get(7)?,
            ticket: row.try_get(8)?,
        })?;
        batch.answers.push((row.try_get::<Uuid, _>(0)?.into(), outcome));
        batch.replicated |= !row.try_get::<&str, _>(6)?.is_empty();
    }
    Ok(batch)
}

fn renewed(row: &PgRow) -> Result<(OwnerToken, RenewOutcome), Error> {
    let expires_in: Option<PgInterval> = row.try_get(2)?;
    let outcome = answers::renewed(row.try_get(1)?, expires_in.as_ref())?;
    Ok((row.try_get::<Uuid, _>(0)?.into(), outcome))
}

fn released(row: &PgRow) -> Result<(OwnerToken, ReleaseOutcome), Error> {
    let outcome = answers::released(row.try_get(1)?)?;
    Ok((row.try_get::<Uuid, _>(0)?.into(), outcome))
}

// The bound on the few waits that are left: another session's uncommitted insert of the same
// name, and locks of the whole table. A statement that grants nothing does not wait for the disk.
const ACQUIRE: &str = "\
    select $2, a.outcome, a.fencing_token, a.expires_in, a.held_by, a.held_since, \
        pg_catalog.current_setting('synchronous_standby_names'), a.ahead, \
        case when a.ahead is not null and $5 is not null then leasehold.ticket($2) end, \
        case when a.ahead is not null then pg_catalog.set_config('synchronous_commit', 'off', true) end \
    from leasehold.acquire(\
        case when pg_catalog.set_config('lock_timeout', '100ms', true) is not null then $1 end, \
        $2, $3, $4, $5, $6) as a";

const ACQUIRE_MANY: &str = "\
    select a.owner, a.outcome, a.fencing_token, a.expires_in, a.held_by, a.held_since, \
        pg_catalog.current_setting('synchronous_standby_names'), a.ahead, \
        case when a.ahead is not null and $6 is not null then leasehold.ticket(a.owner) end, \
        case when pg_catalog.bool_and(a.ahead is not null) over () \
            then pg_catalog.set_config('synchronous_commit', 'off', true) end \
    from leasehold.acquire_many(\
        case when pg_catalog.set_config('lock_timeout', '100ms', true) is not null then $1 end, \
        $2, $3, $4, $5, $6) as a";

const RENEW: &str = "\
    select r.owner, r.outcome, r.expires_in \
    from leasehold.renew(\
        case when pg_catalog.set_config('lock_timeout', '100ms', true) is not null then $1 end, $2, $3) as r";

// A release that is lost in a crash costs a ttl of waiting, no more: it does not wait for the
// disk. Where it must (held_on), the function puts that back.
const RELEASE: &str = "\
    select $2, leasehold.release(\
        case when pg_catalog.set_config('lock_timeout', '100ms', true) is not null \
            and pg_catalog.set_config('synchronous_commit', 'off', true) is not null then $1 end, \
        $2, $3, $4)";

const RELEASE_MANY: &str = "\
    select r.owner, r.outcome \
    from leasehold.release_many(\
        case when pg_catalog.set_config('lock_timeout', '100ms', true) is not null \
            and pg_catalog.set_config('synchronous_commit', 'off', true) is not null then $1 end, \
        $2, $3, $4) as r";

const SWEEP: &str = "\
    select w.removed, w.again_in \
    from leasehold.sweep(\
        case when pg_catalog.set_config('lock_timeout', '100ms', true) is not null \
            and pg_catalog.set_config('synchronous_commit', 'off', true) is not null then 1000 end) as w";

// The last column asks whether this very statement is prepared under the name that sqlx gave it: a pooler
// that keeps prepared statements for its clients gives them names of its own. Should sqlx choose other
// names one day, every session is taken for a pooler's, which costs a ttl where one breaks.
const SESSION_FACTS: &str = "\
    select pg_catalog.pg_backend_pid(), \
        (select a.backend_start from pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) as a), \
        pg_catalog.current_setting('default_transaction_isolation'), \
        exists (select from pg_catalog.pg_prepared_statement() as p where pg_catalog.starts_with(p.name, 'sqlx_s_'))";

// An unnest of several arrays cannot be written with its schema; rows from can.
const END_IDLE_BACKENDS: &str = "\
    select a.pid, a.backend_start, \
        case when a.state operator(pg_catalog.=) 'idle' then not pg_catalog.pg_terminate_backend(a.pid) else true end \
    from rows from (pg_catalog.unnest($1::pg_catalog.int4[]), pg_catalog.unnest($2::pg_catalog.timestamptz[])) \
            as b (pid, backend_start) \
        cross join lateral pg_catalog.pg_stat_get_activity(b.pid) as a \
    where a.backend_start operator(pg_catalog.=) b.backend_start";

const FENCE: &str = "select leasehold.fence($1, $2, $3)";

const ADMIT: &str = "select leasehold.admit($1, $2)";

const CHECK: &str = "select c.finding, c.remedy from leasehold.check() as c";

const ENTER_EPOCH: &str = "\
    select c.finding, c.remedy, leasehold.enter_epoch() \
    from pg_catalog.set_config('lock_timeout', '100ms', true) as s (bound) \
        cross join lateral leasehold.check() as c \
    where s.bound is not null";

const BREAK_LEASE: &str = "select leasehold.break_lease($1)";

const HELD: &str = "\
    select h.name, h.holder, h.fencing_token, h.held_since, h.expires_in, h.expired, h.waiters \
    from leasehold.held as h \
    where $1::pg_catalog.text is null or h.name operator(pg_catalog.=) $1 \
    order by h.name using operator(pg_catalog.<)";
