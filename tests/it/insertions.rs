//! Names that are new to the table, while another session is just inserting them: the one place where
//! an acquire may wait.

use leasehold_testkit::eventually;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::sql::{acquire, acquire_many, ask, grant, release, run, sessions};
use crate::support::{SOON, TestDb, unique_name};

/// Whoever had drawn before it waits would be overtaken.
#[tokio::test]
async fn token_is_drawn_after_the_wait_for_another_sessions_insert() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut inserting, mut waiting, mut looking] = sessions(&db).await;
    run(&mut inserting, "begin").await;
    let blocker = pid(&mut inserting).await;
    let first = grant(&mut inserting, &name, "30 s").await;

    let acquiring = tokio::spawn({
        let name = name.clone();
        async move { grant(&mut waiting, &name, "30 s").await }
    });
    until_waited_for(&mut looking, blocker, 1).await;
    assert_eq!(release(&mut inserting, &first, "0").await, "released");
    let second = grant(&mut inserting, &name, "30 s").await;
    assert_eq!(release(&mut inserting, &second, "0").await, "released");
    run(&mut inserting, "commit").await;
    let last = acquiring.await.unwrap();

    assert!(
        first.token < second.token && second.token < last.token,
        "{first:?} {second:?} {last:?}"
    );
}

/// Each inserts its names in the same order, whatever the order of the call.
#[tokio::test]
async fn sets_that_insert_the_same_names_in_opposite_orders_do_not_deadlock() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut inserting, mut one, mut other, mut looking] = sessions(&db).await;
    let names = ["a", "m", "z"].map(|place| format!("{place} {name}"));
    run(&mut inserting, "begin").await;
    acquire(&mut inserting, &names[1], Uuid::new_v4(), "30 s").await;
    let [blocker, first] = [pid(&mut inserting).await, pid(&mut one).await];

    let descending = tokio::spawn({
        let names = names.clone();
        async move { outcomes(&mut one, &[&names[2], &names[1], &names[0]]).await }
    });
    until_waited_for(&mut looking, blocker, 1).await;
    let ascending = tokio::spawn({
        let names = names.clone();
        async move { outcomes(&mut other, &[&names[0], &names[1], &names[2]]).await }
    });
    // For the first, which has inserted the least name; for the blocker, where it has not.
    eventually(SOON, "both wait", async || {
        waiting_for(&mut looking, blocker).await + waiting_for(&mut looking, first).await >= 2
    })
    .await;
    run(&mut inserting, "rollback").await;

    assert_eq!(descending.await.unwrap(), ["granted"; 3]);
    assert_eq!(ascending.await.unwrap(), ["held"; 3]);
}

#[tokio::test]
async fn wait_ends_with_the_callers_lock_timeout_which_the_call_gives_back() {
    let (db, name, other) = (TestDb::shared().await, unique_name!(), unique_name!());
    let [mut session, mut inserting] = sessions(&db).await;
    run(&mut session, "set lock_timeout = '50ms'").await;
    run(&mut inserting, "begin").await;
    acquire(&mut inserting, &name, Uuid::new_v4(), "30 s").await;

    let one = ask(&mut session, &name).await;
    run(&mut session, "begin").await;
    let set = outcomes(&mut session, &[&name, &other]).await;
    let afterwards = sqlx::query_scalar::<_, String>("select current_setting('lock_timeout')");
    let afterwards = afterwards.fetch_one(&mut session).await.unwrap();
    run(&mut session, "commit").await;
    run(&mut inserting, "rollback").await;

    assert_eq!(one, "busy");
    assert_eq!(set, ["busy", "granted"]);
    assert_eq!(afterwards, "50ms");
}

async fn outcomes(session: &mut PgConnection, names: &[&str]) -> Vec<String> {
    let owners: Vec<Uuid> = names.iter().map(|_| Uuid::new_v4()).collect();
    let answers = acquire_many(session, names, &owners, "30 s").await;
    answers.into_iter().map(|answer| answer.outcome).collect()
}

async fn pid(session: &mut PgConnection) -> i32 {
    let pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(session);
    pid.await.unwrap()
}

async fn until_waited_for(looking: &mut PgConnection, blocker: i32, sessions: i64) {
    eventually(SOON, "a session waits for the insert", async || {
        waiting_for(looking, blocker).await >= sessions
    })
    .await;
}

/// How many sessions wait for the one.
async fn waiting_for(looking: &mut PgConnection, blocker: i32) -> i64 {
    let sql = "select count(*) from pg_stat_activity as a where $1 = any (pg_blocking_pids(a.pid))";
    let waiting = sqlx::query_scalar(sql).bind(blocker).fetch_one(looking);
    waiting.await.unwrap()
}
