//! Calls inside a caller's transaction: terms are counted from the call, not from the beginning of
//! the transaction, and the caller's settings are as they were afterwards.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::sql::{acquire, acquire_many, fence, grant, release, renew, run, sessions};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn terms_are_counted_from_the_call_and_not_from_the_beginning_of_the_transaction() {
    let db = TestDb::shared().await;
    let [mut session, mut granting] = sessions(&db).await;

    for call in ["acquire", "acquire_many", "renew"] {
        let held = grant(&mut granting, &unique_name!(), "30 s").await;
        let mut name = unique_name!();
        run(&mut session, "begin").await;
        run(
            &mut session,
            "create temp table call on commit drop as select clock_timestamp() as began_at",
        )
        .await;

        match call {
            "acquire" => drop(acquire(&mut session, &name, Uuid::new_v4(), "30 s").await),
            "acquire_many" => drop(acquire_many(&mut session, &[&name], &[Uuid::new_v4()], "30 s").await),
            _ => {
                assert_eq!(renew(&mut session, &held, "30 s").await, "renewed");
                name = held.name;
            }
        }

        let is_whole = "select l.expires_at >= c.began_at + interval '30 s' from leasehold.locks as l, call as c where l.name = $1";
        let is_whole = sqlx::query_scalar::<_, bool>(is_whole)
            .bind(&name)
            .fetch_one(&mut session)
            .await;
        run(&mut session, "commit").await;
        assert!(is_whole.unwrap(), "{call} grants less than it answers");
    }
}

#[tokio::test]
async fn settings_of_the_session_are_as_they_were_once_the_transaction_has_ended() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    for set in [
        "set synchronous_commit = off",
        "set idle_in_transaction_session_timeout = 0",
        "set lock_timeout = '7s'",
    ] {
        run(&mut session, set).await;
    }
    let before = settings(&mut session).await;

    let held = grant(&mut session, &unique_name!(), "30 s").await;
    acquire_many(&mut session, &[&unique_name!()], &[Uuid::new_v4()], "30 s").await;
    assert_eq!(renew(&mut session, &held, "30 s").await, "renewed");
    assert_eq!(fence(&mut session, &held).await, Ok(held.token));
    assert_eq!(release(&mut session, &held, "1 hour").await, "held_on");

    assert_eq!(settings(&mut session).await, before);
}

async fn settings(session: &mut PgConnection) -> (String, String, String) {
    let sql = "select current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout'), \
        current_setting('lock_timeout')";
    sqlx::query_as(sql).fetch_one(session).await.unwrap()
}
