//! Many connections that admit to one resource at once: the database's own record of what they wrote
//! never goes back.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::{PgConnection, Row};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{accepted, admit};
use crate::support::TestDb;
use crate::support::sql::{Isolation, begin, in_each_isolation, run, sessions, sql_state};

in_each_isolation! {
    lower_token_never_commits_after_a_higher_one
}

async fn lower_token_never_commits_after_a_higher_one(isolation: Isolation) {
    let db = TestDb::own(&format!("admit_contention_{isolation:?}").to_lowercase()).await;
    let [mut session] = sessions(&db).await;
    run(
        &mut session,
        "create sequence number; create table written (number bigint primary key, token bigint)",
    )
    .await;

    let (grants, mut writers) = (Arc::new(AtomicI64::new(0)), JoinSet::new());
    for writer in sessions::<WRITERS>(&db).await {
        writers.spawn(write(writer, isolation, Arc::clone(&grants)));
    }
    let outcomes: Vec<Outcome> = writers.join_all().await.into_iter().flatten().collect();

    // The number is drawn under the lock of the admission: their order is that of the commits.
    let rows = sqlx::query("select token from written order by number");
    let rows = rows.fetch_all(&mut session).await.unwrap();
    let tokens: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let written = outcomes.iter().filter(|outcome| **outcome == Outcome::Written).count();
    let distinct = tokens.iter().collect::<HashSet<_>>().len();
    assert!(tokens.is_sorted(), "{tokens:?}");
    assert_eq!(tokens.len(), written);
    assert_eq!(accepted(&mut session, RESOURCE).await, tokens.last().copied());
    // Neither of these would be worth much alone.
    assert!(distinct > 5, "too few tokens wrote: {tokens:?}");
    assert!(distinct < tokens.len(), "no token wrote twice: {tokens:?}");
    assert!(written < outcomes.len(), "none was refused: {tokens:?}");
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Written,
    Refused,
}

/// Admits and writes a few times, with tokens that rise over time and are now and then too old.
async fn write(mut session: PgConnection, isolation: Isolation, grants: Arc<AtomicI64>) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for _ in 0..ROUNDS {
        let random = i64::from(Uuid::new_v4().into_bytes()[0]);
        let token = grants.fetch_add(1, Ordering::Relaxed) / 4 + random % 4;
        outcomes.push(until_decided(&mut session, isolation, token).await);
    }
    outcomes
}

/// Tries again, as a caller would, when the database could not put the transactions in order.
async fn until_decided(session: &mut PgConnection, isolation: Isolation, token: i64) -> Outcome {
    loop {
        begin(session, isolation).await;
        let done = write_once(session, token).await;
        let Err(state) = done else { return Outcome::Written };
        run(session, "rollback").await;
        match state.as_str() {
            "LH001" => return Outcome::Refused,
            "40001" | "40P01" => {}
            other => panic!("{other} for {token}"),
        }
    }
}

async fn write_once(session: &mut PgConnection, token: i64) -> Result<(), String> {
    admit(session, RESOURCE, token).await?;
    let write = "insert into written select nextval('number'), $1";
    for statement in [sqlx::query(write).bind(token), sqlx::query("commit")] {
        statement
            .execute(&mut *session)
            .await
            .map_err(|error| sql_state(&error))?;
    }
    Ok(())
}

const RESOURCE: &str = "journal";
const WRITERS: usize = 32;
const ROUNDS: usize = 4;
