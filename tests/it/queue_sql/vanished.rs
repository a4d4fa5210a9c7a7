//! Waiters whose row or whose client is gone: after a crash, a sweep, or a long silence.

use super::ears::{Ears, told};
use super::line::{Form, beat, heartbeat, line, look, silence, stand, sweep_now};
use crate::support::quiet::Quiet;
use crate::support::sql::{grant, release, run, sessions};
use crate::support::{SOON, TestDb, unique_name};

#[tokio::test]
async fn waiters_whose_rows_a_crash_took_are_unknown_and_queue_again() {
    let quiet = Quiet::with_database("queue_sql_crash").await;
    let [mut session] = sessions(&quiet.db).await;
    let held = grant(&mut session, "job", "1 hour").await;
    let (first, second) = (stand(&mut session, "job").await, stand(&mut session, "job").await);

    quiet.crash().await;
    let [mut session] = sessions(&quiet.db).await;
    let beats = [beat(&mut session, first).await, beat(&mut session, second).await];
    let again = [
        look(&mut session, "job", second).await,
        look(&mut session, "job", first).await,
    ];
    release(&mut session, &held, "0").await;

    for said in beats {
        assert_eq!(
            (said.outcome.as_str(), said.ticket, said.ahead),
            ("unknown", None, None)
        );
    }
    assert_eq!(again[0].place(), ("queued", Some(0)), "the lease is still held");
    assert_eq!(
        again[1].place(),
        ("queued", Some(1)),
        "in the order in which they came back"
    );
    assert_eq!(line(&mut session, "job").await, [second.owner, first.owner]);
    assert_eq!(look(&mut session, "job", second).await.outcome, "granted");
}

#[tokio::test]
async fn waiter_whose_client_was_swept_is_unknown_and_queues_again_at_the_end() {
    let (db, name) = (TestDb::own("queue_sql_swept").await, unique_name!());
    let [mut session] = sessions(&db).await;
    grant(&mut session, &name, "1 hour").await;
    let (dead, alive) = (stand(&mut session, &name).await, stand(&mut session, &name).await);
    silence(&mut session, dead.client, 61.0).await;

    sweep_now(&mut session).await;
    let said = beat(&mut session, dead).await;
    let again = look(&mut session, &name, dead).await;

    assert_eq!((said.outcome.as_str(), said.ticket), ("unknown", None));
    assert_eq!(again.place(), ("queued", Some(1)));
    assert_eq!(line(&mut session, &name).await, [alive.owner, dead.owner]);
}

#[tokio::test]
async fn silent_client_is_passed_over_and_has_its_place_again_when_it_comes_back_in_time() {
    let db = TestDb::own("queue_sql_silent").await;
    let [mut session] = sessions(&db).await;

    for form in Form::BOTH {
        let name = unique_name!();
        let held = grant(&mut session, &name, "1 hour").await;
        let (silent, next) = (
            form.stand(&mut session, &name).await,
            form.stand(&mut session, &name).await,
        );
        let mut ears = Ears::of(&db, &[silent, next]).await;
        silence(&mut session, silent.client, 0.001).await;

        let passed_over = form.look(&mut session, &name, next).await;
        release(&mut session, &held, "0").await;
        let heard = ears.heard(&mut session).await;
        let of_next = beat(&mut session, next).await;
        // Back by its heartbeat, before the other has asked.
        let back = beat(&mut session, silent).await;
        let too_late = form.look(&mut session, &name, next).await;
        let granted = form.look(&mut session, &name, silent).await;

        assert_eq!(passed_over.place(), ("queued", Some(0)));
        assert_eq!(heard, [told(next)]);
        assert_eq!((of_next.outcome.as_str(), of_next.ahead), ("try", Some(0)));
        assert_eq!(
            (back.outcome.as_str(), back.ticket, back.ahead),
            ("try", Some(silent.ticket), Some(0))
        );
        assert_eq!(too_late.place(), ("queued", Some(1)));
        assert_eq!(granted.outcome, "granted");
    }
}

#[tokio::test]
async fn client_is_alive_for_its_ttl_and_not_longer() {
    let (db, name) = (TestDb::own("queue_sql_client_ttl").await, unique_name!());
    let [mut session] = sessions(&db).await;
    grant(&mut session, &name, "1 hour").await;
    let sql = "select outcome from leasehold.acquire($1, gen_random_uuid(), '30 s', null, gen_random_uuid(), '200 ms')";
    let outcome: String = sqlx::query_scalar(sql)
        .bind(&name)
        .fetch_one(&mut session)
        .await
        .unwrap();
    let next = stand(&mut session, &name).await;
    let of_the_client: f64 = sqlx::query_scalar(
        "select extract(epoch from expires_at - clock_timestamp())::float8 from leasehold.clients order by expires_at",
    )
    .fetch_one(&mut session)
    .await
    .unwrap();

    leasehold_testkit::eventually(SOON, "the silent client is passed over", async || {
        look(&mut session, &name, next).await.ahead == Some(0)
    })
    .await;

    assert_eq!(outcome, "queued");
    assert!(of_the_client <= 0.2, "{of_the_client}");
    assert_eq!(line(&mut session, &name).await.len(), 2, "its row is left to the sweep");
}

#[tokio::test]
async fn client_that_is_back_while_a_sweep_is_under_way_is_not_lost_half() {
    let (db, name) = (TestDb::own("queue_sql_sweep_meets_beat").await, unique_name!());
    let [mut session, mut sweeping, mut beating] = sessions(&db).await;
    grant(&mut session, &name, "1 hour").await;
    let waiter = stand(&mut session, &name).await;

    // The heartbeat is first: the sweep leaves the client to it.
    silence(&mut session, waiter.client, 61.0).await;
    run(&mut beating, "begin").await;
    assert_eq!(beat(&mut beating, waiter).await.outcome, "wait");
    sweep_now(&mut sweeping).await;
    run(&mut beating, "commit").await;
    let after_the_beat = line(&mut session, &name).await;
    let said = beat(&mut session, waiter).await.outcome;

    // The sweep is first: the heartbeat waits for its end, and finds nothing.
    silence(&mut session, waiter.client, 61.0).await;
    run(&mut sweeping, "begin").await;
    sweep_now(&mut sweeping).await;
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(&mut beating)
        .await
        .unwrap();
    let late = tokio::spawn(async move { heartbeat(&mut beating, waiter.client, &[waiter.owner]).await });
    leasehold_testkit::eventually(SOON, "the heartbeat waits for the sweep", async || {
        let blocked = sqlx::query_scalar::<_, bool>("select cardinality(pg_blocking_pids($1)) > 0").bind(pid);
        blocked.fetch_one(&mut session).await.unwrap()
    })
    .await;
    run(&mut sweeping, "commit").await;
    let late = late.await.unwrap();

    assert_eq!(after_the_beat, [waiter.owner]);
    assert_eq!(said, "wait");
    assert_eq!(late.len(), 1);
    assert_eq!(late[0].outcome, "unknown");
    assert_eq!(look(&mut session, &name, waiter).await.place(), ("queued", Some(0)));
}
