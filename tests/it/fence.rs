//! The fence: a write that passed it holds off the next grant, and nothing else.
//!
//! The table of row locks, line by line, with the fenced transaction in each isolation level.

use std::time::Duration;

use leasehold_testkit::eventually;
use sqlx::Executor;
use uuid::Uuid;

use crate::support::sql::{
    Isolation, acquire_many, age, ask, begin, break_lease, fence, grant, in_each_isolation, release, renew, run,
    run_out, sessions, sql_state, sweep, until_run_out,
};
use crate::support::{TestDb, unique_name};

in_each_isolation! {
    fenced_writes_share_one_grant
    renewal_passes_an_open_fenced_transaction
    release_passes_at_once_and_the_next_grant_waits
    break_passes_at_once_and_the_next_grant_waits
    grant_of_a_run_out_name_waits_for_the_fenced_transaction
    grant_in_a_batch_waits_for_the_fenced_transaction_alone
    sweep_leaves_a_fenced_row_alone
    token_of_an_earlier_grant_is_refused
    released_held_on_or_broken_lease_is_refused
    wrong_owner_is_refused
    run_out_lease_that_nobody_took_over_still_fences
    fence_stands_in_the_callers_own_statement
}

async fn fenced_writes_share_one_grant(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut first, mut second] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut first, isolation).await;
    begin(&mut second, isolation).await;
    let passed = [fence(&mut first, &held).await, fence(&mut second, &held).await];

    assert_eq!(passed, [Ok(held.token), Ok(held.token)]);
    run(&mut second, "commit").await;
    run(&mut first, "commit").await;
}

async fn renewal_passes_an_open_fenced_transaction(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    fence(&mut writer, &held).await.unwrap();
    let renewed = [
        renew(&mut holder, &held, "30 s").await,
        renew(&mut holder, &held, "30 s").await,
    ];

    assert_eq!(renewed, ["renewed", "renewed"]);
    assert_eq!(fence(&mut writer, &held).await, Ok(held.token));
    run(&mut writer, "commit").await;
}

async fn release_passes_at_once_and_the_next_grant_waits(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    fence(&mut writer, &held).await.unwrap();
    let released = release(&mut holder, &held, "0").await;
    let while_open = ask(&mut next, &name).await;
    run(&mut writer, "commit").await;

    assert_eq!((released.as_str(), while_open.as_str()), ("released", "pinned"));
    assert!(grant(&mut next, &name, "30 s").await.token > held.token);
}

async fn break_passes_at_once_and_the_next_grant_waits(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    fence(&mut writer, &held).await.unwrap();
    let broken = break_lease(&mut next, &name).await;
    let while_open = ask(&mut next, &name).await;
    run(&mut writer, "rollback").await;

    assert_eq!((broken, while_open.as_str()), (true, "pinned"));
    assert!(grant(&mut next, &name, "30 s").await.token > held.token);
}

async fn grant_of_a_run_out_name_waits_for_the_fenced_transaction(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    fence(&mut writer, &held).await.unwrap();
    run_out(&mut holder, &name).await;
    let while_open = ask(&mut next, &name).await;
    run(&mut writer, "commit").await;

    assert_eq!(while_open, "pinned");
    assert!(grant(&mut next, &name, "30 s").await.token > held.token);
}

async fn grant_in_a_batch_waits_for_the_fenced_transaction_alone(isolation: Isolation) {
    let (db, name, other) = (TestDb::shared().await, unique_name!(), unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;
    let owners = [Uuid::new_v4(), Uuid::new_v4()];

    begin(&mut writer, isolation).await;
    fence(&mut writer, &held).await.unwrap();
    release(&mut holder, &held, "0").await;
    let while_open = acquire_many(&mut next, &[&name, &other], &owners, "30 s").await;
    run(&mut writer, "commit").await;
    let afterwards = acquire_many(&mut next, &[&name, &other], &owners, "30 s").await;

    assert_eq!([&while_open[0].outcome, &while_open[1].outcome], ["pinned", "granted"]);
    assert!(afterwards[0].token > Some(held.token));
    assert_eq!(afterwards[1].token, while_open[1].token);
}

async fn sweep_leaves_a_fenced_row_alone(isolation: Isolation) {
    let db = TestDb::own(&format!("fence_sweep_{isolation:?}")).await;
    let [mut holder, mut writer] = sessions(&db).await;
    let held = grant(&mut holder, "pinned", "30 s").await;
    grant(&mut holder, "not pinned", "30 s").await;
    age(&mut holder, "pinned", 90.0).await;
    age(&mut holder, "not pinned", 90.0).await;

    begin(&mut writer, isolation).await;
    fence(&mut writer, &held).await.unwrap();
    let (removed, _) = sweep(&mut holder, 1000).await;
    run(&mut writer, "commit").await;

    assert_eq!(removed, 1);
    assert_eq!(fence(&mut writer, &held).await, Ok(held.token));
}

async fn token_of_an_earlier_grant_is_refused(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let stale = grant(&mut holder, &name, "30 s").await;
    run_out(&mut holder, &name).await;
    let fresh = grant(&mut next, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    let refused = fence(&mut writer, &stale).await;
    run(&mut writer, "rollback").await;

    assert_eq!(refused, Err("LH001".to_owned()));
    assert_eq!(fence(&mut writer, &fresh).await, Ok(fresh.token));
}

async fn released_held_on_or_broken_lease_is_refused(isolation: Isolation) {
    let db = TestDb::shared().await;
    let [mut holder, mut writer] = sessions(&db).await;
    let released = grant(&mut holder, &unique_name!(), "30 s").await;
    let held_on = grant(&mut holder, &unique_name!(), "30 s").await;
    let broken = grant(&mut holder, &unique_name!(), "30 s").await;
    assert_eq!(release(&mut holder, &released, "0").await, "released");
    assert_eq!(release(&mut holder, &held_on, "1 hour").await, "held_on");
    assert!(break_lease(&mut holder, &broken.name).await);

    for ended in [&released, &held_on, &broken] {
        begin(&mut writer, isolation).await;
        let with_owner = fence(&mut writer, ended).await;
        run(&mut writer, "rollback").await;
        begin(&mut writer, isolation).await;
        let by_token_alone = sqlx::query("select leasehold.fence($1, $2)")
            .bind(&ended.name)
            .bind(ended.token)
            .execute(&mut writer)
            .await;
        run(&mut writer, "rollback").await;

        assert_eq!(with_owner, Err("LH001".to_owned()));
        assert_eq!(sql_state(&by_token_alone.unwrap_err()), "LH001");
    }
}

async fn wrong_owner_is_refused(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;
    let mut foreign = held.clone();
    foreign.owner = Uuid::new_v4();

    begin(&mut writer, isolation).await;
    let refused = fence(&mut writer, &foreign).await;
    run(&mut writer, "rollback").await;

    assert_eq!(refused, Err("LH001".to_owned()));
}

async fn run_out_lease_that_nobody_took_over_still_fences(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let held = grant(&mut holder, &name, "100 ms").await;
    until_run_out(&mut holder, &name).await;

    begin(&mut writer, isolation).await;
    let passed = fence(&mut writer, &held).await;
    run(&mut writer, "commit").await;
    grant(&mut next, &name, "30 s").await;
    begin(&mut writer, isolation).await;
    let refused = fence(&mut writer, &held).await;

    assert_eq!(passed, Ok(held.token));
    assert_eq!(refused, Err("LH001".to_owned()));
}

async fn fence_stands_in_the_callers_own_statement(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    run(
        &mut writer,
        "create temporary table invoice (id int primary key, state text, fence bigint)",
    )
    .await;
    run(&mut writer, "insert into invoice values (842, 'draft', 0)").await;
    let update = "update invoice set state = 'final', fence = leasehold.fence($1, $2) where id = 842";
    let stale = grant(&mut holder, &name, "30 s").await;
    release(&mut holder, &stale, "0").await;
    let fresh = grant(&mut next, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    let refused = sqlx::query(update)
        .bind(&name)
        .bind(stale.token)
        .execute(&mut writer)
        .await;
    run(&mut writer, "rollback").await;
    begin(&mut writer, isolation).await;
    let written = sqlx::query(update)
        .bind(&name)
        .bind(fresh.token)
        .execute(&mut writer)
        .await;
    release(&mut next, &fresh, "0").await;
    let while_open = ask(&mut next, &name).await;
    run(&mut writer, "commit").await;

    let invoice: (String, i64) = sqlx::query_as("select state, fence from invoice")
        .fetch_one(&mut writer)
        .await
        .unwrap();
    let refused = refused.unwrap_err();
    assert!(leasehold::is_fenced(&refused), "{refused}");
    assert!(refused.to_string().contains(&name), "{refused}");
    assert_eq!(written.unwrap().rows_affected(), 1);
    assert_eq!(while_open, "pinned");
    assert_eq!(invoice, ("final".to_owned(), fresh.token));
}

#[tokio::test]
async fn fence_refuses_nulls_and_unknown_names() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "30 s").await;

    for (name, token) in [
        (None, Some(held.token)),
        (Some(name.as_str()), None),
        (Some("nobody's"), Some(held.token)),
        (Some(name.as_str()), Some(held.token - 1)),
        (Some(name.as_str()), Some(held.token + 1)),
    ] {
        let refused = sqlx::query("select leasehold.fence($1, $2)").bind(name).bind(token);
        let refused = refused.execute(&mut session).await.unwrap_err();

        assert_eq!(sql_state(&refused), "LH001", "{name:?} {token:?}");
    }
}

#[tokio::test]
async fn fence_lowers_the_idle_limit_of_its_transaction_and_never_raises_it() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let limit = "select setting from pg_settings where name = 'idle_in_transaction_session_timeout'";

    for (before, ttl, within, why) in [
        ("0", "30 s", "30000", "none becomes the ttl"),
        ("1h", "30 s", "30000", "a longer one becomes the ttl"),
        ("10s", "30 s", "10000", "a shorter one stays"),
        ("30s", "30 s", "30000", "an equal one stays"),
        ("1500ms", "1501 ms", "1500", "milliseconds count"),
        ("0", "1 day", "86400000", "the longest ttl fits"),
        ("2d", "1 day", "86400000", "days are days"),
    ] {
        run(
            &mut session,
            &format!("set idle_in_transaction_session_timeout = '{before}'"),
        )
        .await;
        let outside: String = sqlx::query_scalar(limit).fetch_one(&mut session).await.unwrap();
        let held = grant(&mut session, &name, ttl).await;

        begin(&mut session, Isolation::ReadCommitted).await;
        fence(&mut session, &held).await.unwrap();
        let inside: String = sqlx::query_scalar(limit).fetch_one(&mut session).await.unwrap();
        run(&mut session, "commit").await;
        let afterwards: String = sqlx::query_scalar(limit).fetch_one(&mut session).await.unwrap();
        release(&mut session, &held, "0").await;

        assert_eq!((inside.as_str(), &afterwards), (within, &outside), "{why}");
    }
}

#[tokio::test]
async fn session_stopped_in_a_fenced_transaction_is_ended_after_the_ttl() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut stopped, mut next] = sessions(&db).await;
    let held = grant(&mut stopped, &name, "300 ms").await;
    begin(&mut stopped, Isolation::ReadCommitted).await;
    fence(&mut stopped, &held).await.unwrap();

    let fresh = eventually(Duration::from_secs(20), "the name is granted to the next", async || {
        let owner = Uuid::new_v4();
        crate::support::sql::acquire(&mut next, &name, owner, "30 s")
            .await
            .token
    })
    .await;

    assert!(fresh > held.token);
    let ended = stopped.execute("select 1").await.unwrap_err();
    assert!(
        ended
            .as_database_error()
            .is_none_or(|error| error.code().as_deref() == Some("25P03")),
        "{ended}"
    );
}
