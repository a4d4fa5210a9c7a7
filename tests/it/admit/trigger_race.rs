//! `leasehold.reject_stale` where several update one row at once: who waits compares with what the
//! other has left.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use leasehold_testkit::eventually;
use sqlx::{AssertSqlSafe, Executor, PgConnection};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{overtaken, stale};
use crate::support::sql::{Isolation, begin, in_each_isolation, run, sessions, sql_state};
use crate::support::{SOON, TestDb};

in_each_isolation! {
    update_that_waited_compares_with_what_the_other_left
    update_that_waited_for_a_rollback_compares_with_what_was_there
    many_writers_never_take_the_column_down
}

async fn update_that_waited_compares_with_what_the_other_left(isolation: Isolation) {
    let db = TestDb::shared().await;
    let [mut first, mut second, mut third] = sessions(&db).await;
    let table = guarded(&mut first).await;

    for (token, in_read_committed) in [(42, stale()), (43, Ok(())), (44, Ok(()))] {
        run(
            &mut third,
            &format!("truncate {table}; insert into {table} values (41)"),
        )
        .await;
        let answer = behind(&mut first, &mut second, &mut third, isolation, &table, token, "commit").await;

        let expected = if isolation == Isolation::ReadCommitted {
            in_read_committed
        } else {
            overtaken()
        };
        assert_eq!(answer, expected, "{token}");
    }
    run(&mut first, &format!("drop table {table}")).await;
}

async fn update_that_waited_for_a_rollback_compares_with_what_was_there(isolation: Isolation) {
    let db = TestDb::shared().await;
    let [mut first, mut second, mut third] = sessions(&db).await;
    let table = guarded(&mut first).await;

    for (token, expected) in [(40, stale()), (41, Ok(())), (42, Ok(()))] {
        let answer = behind(
            &mut first,
            &mut second,
            &mut third,
            isolation,
            &table,
            token,
            "rollback",
        )
        .await;

        assert_eq!(answer, expected, "{token}");
    }
    run(&mut first, &format!("drop table {table}")).await;
}

async fn many_writers_never_take_the_column_down(isolation: Isolation) {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let table = guarded(&mut session).await;
    // Written by a trigger that comes after ours, under the row's lock.
    run(
        &mut session,
        &format!(
            "create table {table}_journal (id bigserial primary key, fence bigint);
             create function {table}_note() returns trigger language plpgsql as $$
             begin
                 insert into {table}_journal (fence) values (new.fence);
                 return new;
             end $$;
             create trigger note before update on {table} for each row execute function {table}_note()"
        ),
    )
    .await;

    let (grants, mut writers) = (Arc::new(AtomicI64::new(0)), JoinSet::new());
    for writer in sessions::<12>(&db).await {
        writers.spawn(write(writer, isolation, table.clone(), Arc::clone(&grants)));
    }
    let refused: usize = writers.join_all().await.into_iter().sum();

    let journal = format!("select fence from {table}_journal order by id");
    let journal: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(journal))
        .fetch_all(&mut session)
        .await
        .unwrap();
    assert!(journal.is_sorted(), "{journal:?}");
    assert!(journal.len() > 5 && refused > 0, "{refused} were refused: {journal:?}");
    run(
        &mut session,
        &format!("drop table {table}, {table}_journal; drop function {table}_note"),
    )
    .await;
}

/// How many of its updates were refused.
async fn write(mut session: PgConnection, isolation: Isolation, table: String, grants: Arc<AtomicI64>) -> usize {
    let mut refused = 0;
    for _ in 0..6 {
        let random = i64::from(Uuid::new_v4().into_bytes()[0]);
        let token = 41 + grants.fetch_add(1, Ordering::Relaxed) / 4 + random % 4;
        loop {
            begin(&mut session, isolation).await;
            let mut updated = update(&mut session, &table, token).await;
            if updated.is_ok() {
                let committed = session.execute("commit").await;
                updated = committed.map(drop).map_err(|error| sql_state(&error));
            } else {
                run(&mut session, "rollback").await;
            }
            match updated.as_ref().map_err(String::as_str) {
                Ok(()) => break,
                Err("LH001") => break refused += 1,
                Err("40001") => {}
                Err(other) => panic!("{other} for {token}"),
            }
        }
    }
    refused
}

/// The answer to an update with `token` that has waited for one with 43 to come to its end.
async fn behind(
    first: &mut PgConnection,
    second: &mut PgConnection,
    third: &mut PgConnection,
    isolation: Isolation,
    table: &str,
    token: i64,
    end: &str,
) -> Result<(), String> {
    begin(first, isolation).await;
    update(first, table, 43).await.unwrap();
    begin(second, isolation).await;
    let waiting: i32 = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(&mut *second)
        .await
        .unwrap();
    let end_the_first = async {
        let sql = "select cardinality(pg_blocking_pids($1)) = 1";
        eventually(SOON, "the second waits for the first", async || {
            let blocked = sqlx::query_scalar::<_, bool>(sql).bind(waiting);
            blocked.fetch_one(&mut *third).await.unwrap()
        })
        .await;
        run(first, end).await;
    };
    let (answer, ()) = tokio::join!(update(&mut *second, table, token), end_the_first);
    run(second, "rollback").await;
    answer
}

async fn update(session: &mut PgConnection, table: &str, token: i64) -> Result<(), String> {
    let update = format!("update {table} set fence = $1");
    let updated = sqlx::query(AssertSqlSafe(update)).bind(token).execute(session).await;
    updated.map(drop).map_err(|error| sql_state(&error))
}

/// A guarded table of its own with one row, whose token is 41.
async fn guarded(session: &mut PgConnection) -> String {
    let table = format!("guarded_{}", Uuid::new_v4().simple());
    run(
        session,
        &format!(
            "create table {table} (fence bigint);
             insert into {table} values (41);
             create trigger guard before update on {table}
                 for each row execute function leasehold.reject_stale('fence')"
        ),
    )
    .await;
    table
}
