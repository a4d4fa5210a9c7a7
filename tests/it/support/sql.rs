//! The SQL functions as any client calls them, and sessions to call them in.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_testkit::eventually;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use uuid::Uuid;

use super::TestDb;

/// A grant as its holder knows it.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) name: String,
    pub(crate) owner: Uuid,
    pub(crate) token: i64,
}

/// What `leasehold.acquire` and `leasehold.acquire_many` answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Acquired {
    pub(crate) outcome: String,
    pub(crate) token: Option<i64>,
    pub(crate) expires_in: Option<f64>,
    pub(crate) held_by: Option<String>,
    pub(crate) held_since: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

/// Makes three tests of each function that takes an [`Isolation`].
macro_rules! in_each_isolation {
    ($($check:ident)+) => {$(
        mod $check {
            use crate::support::sql::Isolation;

            #[tokio::test]
            async fn in_read_committed() {
                super::$check(Isolation::ReadCommitted).await;
            }

            #[tokio::test]
            async fn in_repeatable_read() {
                super::$check(Isolation::RepeatableRead).await;
            }

            #[tokio::test]
            async fn in_serializable() {
                super::$check(Isolation::Serializable).await;
            }
        }
    )+};
}
pub(crate) use in_each_isolation;

/// Opens sessions in which no statement hangs: one that waits for a lock for 20 s fails.
pub(crate) async fn sessions<const N: usize>(db: &TestDb) -> [PgConnection; N] {
    let options = db.options.clone().options([("lock_timeout", "20s")]);
    let mut sessions = Vec::with_capacity(N);
    for _ in 0..N {
        sessions.push(PgConnection::connect_with(&options).await.expect("a session opens"));
    }
    sessions.try_into().expect("as many as were opened")
}

/// Begins a transaction whose snapshot, where it has one for all, is taken now.
pub(crate) async fn begin(session: &mut PgConnection, isolation: Isolation) {
    let begin = match isolation {
        Isolation::ReadCommitted => "begin isolation level read committed",
        Isolation::RepeatableRead => "begin isolation level repeatable read",
        Isolation::Serializable => "begin isolation level serializable",
    };
    session.execute(begin).await.expect(begin);
    session.execute("select 1").await.expect("a snapshot is taken");
}

pub(crate) async fn run(session: &mut PgConnection, sql: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await;
    done.unwrap_or_else(|error| panic!("`{sql}` failed: {error}"));
}

pub(crate) async fn acquire(session: &mut PgConnection, name: &str, owner: Uuid, ttl: &str) -> Acquired {
    let sql = "select outcome, fencing_token, extract(epoch from expires_in)::float8, held_by, held_since \
        from leasehold.acquire($1, $2, $3::text::interval, 'the holder')";
    let row = sqlx::query_as(sql).bind(name).bind(owner).bind(ttl).fetch_one(session);
    acquired(row.await.expect(sql))
}

/// The answers in the order of the requests.
pub(crate) async fn acquire_many(
    session: &mut PgConnection,
    names: &[&str],
    owners: &[Uuid],
    ttl: &str,
) -> Vec<Acquired> {
    let sql = "select a.outcome, a.fencing_token, extract(epoch from a.expires_in)::float8, a.held_by, a.held_since \
        from leasehold.acquire_many($1, $2, array_fill($3::text::interval, array[cardinality($1)]), \
            array_fill('the holder'::text, array[cardinality($1)])) as a \
        order by array_position($2, a.owner)";
    let rows = sqlx::query_as(sql)
        .bind(names)
        .bind(owners)
        .bind(ttl)
        .fetch_all(session);
    rows.await.expect(sql).into_iter().map(acquired).collect()
}

/// Acquires a name that must be free.
pub(crate) async fn grant(session: &mut PgConnection, name: &str, ttl: &str) -> Grant {
    let owner = Uuid::new_v4();
    let answer = acquire(session, name, owner, ttl).await;
    assert_eq!(answer.outcome, "granted");
    Grant {
        name: name.to_owned(),
        owner,
        token: answer.token.expect("a grant has a token"),
    }
}

/// The outcome of asking for the name as somebody new.
pub(crate) async fn ask(session: &mut PgConnection, name: &str) -> String {
    acquire(session, name, Uuid::new_v4(), "30 s").await.outcome
}

pub(crate) async fn renew(session: &mut PgConnection, grant: &Grant, ttl: &str) -> String {
    let sql = "select outcome from leasehold.renew(array[$1::text], array[$2], array[$3::text::interval])";
    let outcome = sqlx::query_scalar(sql).bind(&grant.name).bind(grant.owner).bind(ttl);
    outcome.fetch_one(session).await.expect(sql)
}

pub(crate) async fn release(session: &mut PgConnection, grant: &Grant, hold_at_least: &str) -> String {
    let sql = "select leasehold.release($1, $2, $3::text::interval)";
    let outcome = sqlx::query_scalar(sql)
        .bind(&grant.name)
        .bind(grant.owner)
        .bind(hold_at_least);
    outcome.fetch_one(session).await.expect(sql)
}

/// The outcomes in the order of the requests.
pub(crate) async fn release_many(session: &mut PgConnection, grants: &[Grant], hold_at_least: &str) -> Vec<String> {
    let sql = "select r.outcome \
        from leasehold.release_many($1, $2, array_fill($3::text::interval, array[cardinality($1)])) as r \
        order by array_position($2, r.owner)";
    let names: Vec<_> = grants.iter().map(|grant| grant.name.as_str()).collect();
    let owners: Vec<_> = grants.iter().map(|grant| grant.owner).collect();
    let outcomes = sqlx::query_scalar(sql).bind(names).bind(owners).bind(hold_at_least);
    outcomes.fetch_all(session).await.expect(sql)
}

pub(crate) async fn break_lease(session: &mut PgConnection, name: &str) -> bool {
    let sql = "select leasehold.break_lease($1)";
    sqlx::query_scalar(sql).bind(name).fetch_one(session).await.expect(sql)
}

/// One step of the sweep: rows removed, and the seconds to wait before the next step.
pub(crate) async fn sweep(session: &mut PgConnection, batch: i32) -> (i32, f64) {
    let sql = "select removed, extract(epoch from again_in)::float8 from leasehold.sweep($1)";
    sqlx::query_as(sql).bind(batch).fetch_one(session).await.expect(sql)
}

/// The token when the fence lets it pass, else the SQLSTATE.
pub(crate) async fn fence(session: &mut PgConnection, grant: &Grant) -> Result<i64, String> {
    let sql = "select leasehold.fence($1, $2, $3)";
    let passed = sqlx::query_scalar(sql)
        .bind(&grant.name)
        .bind(grant.token)
        .bind(grant.owner);
    passed.fetch_one(session).await.map_err(|error| sql_state(&error))
}

pub(crate) fn sql_state(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(|error| error.code());
    code.unwrap_or_else(|| panic!("not from the database: {error}"))
        .into_owned()
}

/// Makes the lease of `name` run out as if its time had come.
pub(crate) async fn run_out(session: &mut PgConnection, name: &str) {
    let sql = "update leasehold.locks set expires_at = clock_timestamp() where name = $1";
    let touched = sqlx::query(sql).bind(name).execute(session).await.expect(sql);
    assert_eq!(touched.rows_affected(), 1);
}

/// Moves the end of the lease of `name`, or its release, by `seconds` into the past.
pub(crate) async fn age(session: &mut PgConnection, name: &str, seconds: f64) {
    let sql = "update leasehold.locks set expires_at = clock_timestamp() - make_interval(secs => $2) where name = $1";
    let touched = sqlx::query(sql).bind(name).bind(seconds).execute(session).await;
    assert_eq!(touched.expect(sql).rows_affected(), 1);
}

pub(crate) async fn until_run_out(session: &mut PgConnection, name: &str) {
    let sql = "select expired from leasehold.held where name = $1";
    eventually(Duration::from_secs(20), "the lease has run out", async || {
        let expired = sqlx::query_scalar::<_, bool>(sql).bind(name);
        expired.fetch_one(&mut *session).await.expect(sql)
    })
    .await;
}

type Row = (String, Option<i64>, Option<f64>, Option<String>, Option<DateTime<Utc>>);

fn acquired((outcome, token, expires_in, held_by, held_since): Row) -> Acquired {
    Acquired {
        outcome,
        token,
        expires_in,
        held_by,
        held_since,
    }
}
