//! Standing in line in SQL: to register, to look, to leave, and what the tables say of it.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::sql::{Grant, release, run};

/// Somebody in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) owner: Uuid,
    pub(super) client: Uuid,
    pub(super) ticket: i64,
}

/// Everything that acquire answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Look {
    pub(super) outcome: String,
    pub(super) token: Option<i64>,
    pub(super) expires_in: Option<f64>,
    pub(super) held_by: Option<String>,
    pub(super) held_since: Option<DateTime<Utc>>,
    pub(super) ahead: Option<i32>,
}

/// What a heartbeat says of a waiter.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Beat {
    pub(super) owner: Option<Uuid>,
    pub(super) ticket: Option<i64>,
    pub(super) outcome: String,
    pub(super) ahead: Option<i32>,
    pub(super) expires_in: Option<f64>,
    pub(super) held_by: Option<String>,
    pub(super) held_since: Option<DateTime<Utc>>,
}

/// The two functions that acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    One,
    Set,
}

impl Form {
    pub(super) const BOTH: [Self; 2] = [Self::One, Self::Set];

    /// Asks for the name; with a client, to stand in line for it.
    pub(super) async fn ask(self, session: &mut PgConnection, name: &str, owner: Uuid, client: Option<Uuid>) -> Look {
        let call = match self {
            Self::One => "acquire($1, $2, '30 s', 'the holder', $3, '1 minute')",
            Self::Set => {
                "acquire_many(array[$1], array[$2], array[interval '30 s'], array['the holder'], array[$3], '1 minute')"
            }
        };
        let sql = format!(
            "select outcome, fencing_token, extract(epoch from expires_in)::float8, held_by, held_since, ahead \
            from leasehold.{call}"
        );
        let row: LookRow = sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(name)
            .bind(owner)
            .bind(client)
            .fetch_one(session)
            .await
            .unwrap_or_else(|error| panic!("{self:?}: {error}"));
        Look {
            outcome: row.0,
            token: row.1,
            expires_in: row.2,
            held_by: row.3,
            held_since: row.4,
            ahead: row.5,
        }
    }

    /// A waiter looks again.
    pub(super) async fn look(self, session: &mut PgConnection, name: &str, waiter: Waiter) -> Look {
        self.ask(session, name, waiter.owner, Some(waiter.client)).await
    }

    /// A waiter of a new client registers, whatever it is answered but granted.
    pub(super) async fn stand(self, session: &mut PgConnection, name: &str) -> Waiter {
        self.stand_for(session, name, Uuid::new_v4()).await
    }

    pub(super) async fn stand_for(self, session: &mut PgConnection, name: &str, client: Uuid) -> Waiter {
        let owner = Uuid::new_v4();
        let answer = self.ask(session, name, owner, Some(client)).await;
        assert_ne!(answer.outcome, "granted", "{answer:?}");
        let ticket = ticket(session, owner).await.expect("it stands in line");
        Waiter { owner, client, ticket }
    }
}

impl Look {
    /// The outcome, and how many are ahead.
    pub(super) fn place(&self) -> (&str, Option<i32>) {
        (&self.outcome, self.ahead)
    }
}

pub(super) async fn look(session: &mut PgConnection, name: &str, waiter: Waiter) -> Look {
    Form::One.look(session, name, waiter).await
}

pub(super) async fn stand(session: &mut PgConnection, name: &str) -> Waiter {
    Form::One.stand(session, name).await
}

/// Releases what the waiter was granted.
pub(super) async fn release_of(session: &mut PgConnection, name: &str, waiter: Waiter) -> String {
    release(session, &grant_of(name, waiter.owner), "0").await
}

/// A grant as far as a release needs to know it.
pub(super) fn grant_of(name: &str, owner: Uuid) -> Grant {
    Grant {
        name: name.to_owned(),
        owner,
        token: 0,
    }
}

pub(super) async fn leave(session: &mut PgConnection, waiter: Waiter) -> bool {
    let sql = "select leasehold.leave($1)";
    sqlx::query_scalar(sql)
        .bind(waiter.owner)
        .fetch_one(session)
        .await
        .expect(sql)
}

pub(super) async fn wake(session: &mut PgConnection, name: &str) -> bool {
    let sql = "select leasehold.wake($1)";
    sqlx::query_scalar(sql).bind(name).fetch_one(session).await.expect(sql)
}

pub(super) async fn ticket(session: &mut PgConnection, owner: Uuid) -> Option<i64> {
    let sql = "select leasehold.ticket($1)";
    sqlx::query_scalar(sql).bind(owner).fetch_one(session).await.expect(sql)
}

/// What is said of each waiter named, in the order of the tickets.
pub(super) async fn heartbeat(session: &mut PgConnection, client: Uuid, owners: &[Uuid]) -> Vec<Beat> {
    let sql = "select owner, ticket, outcome, ahead, extract(epoch from expires_in)::float8, held_by, held_since \
        from leasehold.heartbeat($1, '1 minute', $2) order by ticket nulls last";
    let rows: Vec<BeatRow> = sqlx::query_as(sql)
        .bind(client)
        .bind(owners)
        .fetch_all(session)
        .await
        .expect(sql);
    let beat = |(owner, ticket, outcome, ahead, expires_in, held_by, held_since)| Beat {
        owner,
        ticket,
        outcome,
        ahead,
        expires_in,
        held_by,
        held_since,
    };
    rows.into_iter().map(beat).collect()
}

/// What the client's heartbeat says of the one waiter that it has.
pub(super) async fn beat(session: &mut PgConnection, waiter: Waiter) -> Beat {
    let mut beats = heartbeat(session, waiter.client, &[waiter.owner]).await;
    assert_eq!(beats.len(), 1, "{beats:?}");
    beats.remove(0)
}

/// As if the client had died so long ago.
pub(super) async fn silence(session: &mut PgConnection, client: Uuid, seconds: f64) {
    let sql =
        "update leasehold.clients set expires_at = clock_timestamp() - make_interval(secs => $2) where client = $1";
    let touched = sqlx::query(sql).bind(client).bind(seconds).execute(session).await;
    assert_eq!(touched.expect(sql).rows_affected(), 1);
}

/// Who has a row in the line of the name, dead or alive, in the order of the tickets.
pub(super) async fn line(session: &mut PgConnection, name: &str) -> Vec<Uuid> {
    let sql = "select owner from leasehold.waiters where name = $1 order by ticket";
    sqlx::query_scalar(sql).bind(name).fetch_all(session).await.expect(sql)
}

/// Lets the next sweep come at once, to the start of the table.
pub(super) async fn sweep_now(session: &mut PgConnection) {
    run(
        session,
        "update leasehold.sweeps set next_at = clock_timestamp(), swept_to = ''; select leasehold.sweep()",
    )
    .await;
}

/// Rows written and read of the queue's two tables since this session's counters were last sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Touched {
    pub(super) waiters_written: i64,
    pub(super) clients_written: i64,
    pub(super) scans_of_whole_tables: i64,
    pub(super) rows_read: i64,
}

/// The counters of the transaction that is open.
async fn touched(session: &mut PgConnection) -> Touched {
    let sql = "select \
            (sum(n_tup_ins + n_tup_upd + n_tup_del) filter (where relname = 'waiters'))::int8, \
            (sum(n_tup_ins + n_tup_upd + n_tup_del) filter (where relname = 'clients'))::int8, \
            sum(seq_scan)::int8, \
            sum(coalesce(idx_tup_fetch, 0) + seq_tup_read)::int8 \
        from pg_stat_xact_user_tables where schemaname = 'leasehold' and relname in ('waiters', 'clients')";
    let row: (i64, i64, i64, i64) = sqlx::query_as(sql).fetch_one(session).await.expect(sql);
    Touched {
        waiters_written: row.0,
        clients_written: row.1,
        scans_of_whole_tables: row.2,
        rows_read: row.3,
    }
}

/// What `work` writes and reads of the queue's tables, in one transaction.
pub(super) async fn counting(session: &mut PgConnection, work: impl AsyncFnOnce(&mut PgConnection)) -> Touched {
    run(session, "begin").await;
    let before = touched(session).await;
    work(session).await;
    let after = touched(session).await;
    run(session, "commit").await;
    Touched {
        waiters_written: after.waiters_written - before.waiters_written,
        clients_written: after.clients_written - before.clients_written,
        scans_of_whole_tables: after.scans_of_whole_tables - before.scans_of_whole_tables,
        rows_read: after.rows_read - before.rows_read,
    }
}

type LookRow = (
    String,
    Option<i64>,
    Option<f64>,
    Option<String>,
    Option<DateTime<Utc>>,
    Option<i32>,
);

type BeatRow = (
    Option<Uuid>,
    Option<i64>,
    String,
    Option<i32>,
    Option<f64>,
    Option<String>,
    Option<DateTime<Utc>>,
);
