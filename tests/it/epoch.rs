//! Tokens go on rising where the sequence has forgotten what it gave out, and people are told.
//!
//! Neither the timeline nor the system identifier can differ within one cluster: here the row of the
//! epoch is changed by hand instead. `make moves` makes the real moves.

mod clients;
mod findings;
mod jumps;
mod lost_rows;
mod operator;
mod price;
mod races;
mod top;
mod untold;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::support::sql::{Acquired, Grant, acquire, acquire_many, run};

/// The two functions that draw tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Scalar,
    Set,
}

impl Way {
    const BOTH: [Self; 2] = [Self::Scalar, Self::Set];

    /// Asks for the name, and for two more where several may be asked for. The first answer is the name's.
    async fn ask(self, session: &mut PgConnection, name: &str) -> Vec<(Grant, Acquired)> {
        let names = [name.to_owned(), format!("{name}, second"), format!("{name}, third")];
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let owners = [(); 3].map(|()| Uuid::new_v4());
        let answers = match self {
            Self::Scalar => vec![acquire(session, name, owners[0], "1 minute").await],
            Self::Set => acquire_many(session, &names, &owners, "1 minute").await,
        };
        let grants = names.iter().zip(owners).map(|(name, owner)| (*name, owner));
        grants
            .zip(answers)
            .map(|((name, owner), answer)| {
                let grant = Grant {
                    name: name.to_owned(),
                    owner,
                    token: answer.token.unwrap_or_default(),
                };
                (grant, answer)
            })
            .collect()
    }

    /// Is granted what it asks for.
    async fn grants(self, session: &mut PgConnection, name: &str) -> Vec<Grant> {
        let answers = self.ask(session, name).await;
        answers
            .into_iter()
            .map(|(grant, answer)| {
                assert_eq!(answer.outcome, "granted", "{answer:?}");
                grant
            })
            .collect()
    }

    /// Is granted what it asks for, and lets it go. The tokens, that of the name first.
    async fn cycle(self, session: &mut PgConnection, name: &str) -> Vec<i64> {
        let grants = self.grants(session, name).await;
        for grant in &grants {
            assert_eq!(crate::support::sql::release(session, grant, "0").await, "released");
        }
        grants.iter().map(|grant| grant.token).collect()
    }
}

/// A row of `leasehold.epoch_history`.
#[derive(Debug, Clone)]
struct Jump {
    reason: String,
    from_timeline: Option<String>,
    to_timeline: Option<String>,
    from_system: Option<i64>,
    to_system: Option<i64>,
    from_token: i64,
    to_token: i64,
    /// In seconds.
    age: f64,
}

async fn jumps(session: &mut PgConnection) -> Vec<Jump> {
    let sql = "select reason, from_timeline, to_timeline, from_system, to_system, from_token, to_token, \
        extract(epoch from clock_timestamp() - entered_at)::float8 as age \
        from leasehold.epoch_history order by id";
    let rows = sqlx::query(sql).fetch_all(session).await.expect(sql);
    rows.iter()
        .map(|row| Jump {
            reason: row.get(0),
            from_timeline: row.get(1),
            to_timeline: row.get(2),
            from_system: row.get(3),
            to_system: row.get(4),
            from_token: row.get(5),
            to_token: row.get(6),
            age: row.get(7),
        })
        .collect()
}

/// The sequence, the epoch and the rows as a new installation has them.
async fn install_anew(session: &mut PgConnection) {
    let sql = "delete from leasehold.locks; \
        delete from leasehold.epoch; \
        delete from leasehold.epoch_history; \
        alter sequence leasehold.locks_fence_seq no cycle; \
        select setval('leasehold.locks_fence_seq', \
            floor(extract(epoch from clock_timestamp()) * 1000000)::bigint - (1::bigint << 40), false); \
        insert into leasehold.epoch (timeline, system, floor) \
        select leasehold.present_timeline(), leasehold.present_system(), s.last_value \
        from leasehold.locks_fence_seq as s";
    run(session, sql).await;
}

/// The value of one number that SQL tells.
async fn number(session: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .fetch_one(session)
        .await
        .unwrap_or_else(|error| panic!("`{sql}` failed: {error}"))
}

const ANOTHER_TIMELINE: &str = "update leasehold.epoch set timeline = 'FFFFFFF0'";
const ANOTHER_SYSTEM: &str = "update leasehold.epoch set system = 42";
const LAST_TOKEN: &str = "select last_value from leasehold.locks_fence_seq";
const PRESENT_MICROSECONDS: &str = "select floor(extract(epoch from clock_timestamp()) * 1000000)::bigint";
const STRIDE: i64 = 1 << 26;
