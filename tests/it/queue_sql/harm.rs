//! What a stranger with the README's client role can do to a queue: nothing.

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::ears::{Ears, told};
use super::line::{Form, heartbeat, leave, line, look, stand};
use crate::support::install::sql_code;
use crate::support::sql::{grant, release, run, sessions};
use crate::support::{SOON, TestDb, roles, unique_name};

#[tokio::test]
async fn client_role_can_neither_read_the_queue_nor_call_what_is_private_to_it() {
    let stranger = roles::login("queue_sql_reader", "leasehold_client", &[]).await;

    for sql in [
        "select * from leasehold.waiters",
        "select * from leasehold.clients",
        "select * from leasehold.live_waiters",
        "delete from leasehold.waiters",
        "update leasehold.clients set expires_at = 'infinity'",
        "truncate leasehold.waiters",
        "select nextval('leasehold.waiters_ticket_seq')",
        "select leasehold.stand_in_line('name', gen_random_uuid(), gen_random_uuid(), '1 s')",
        "select leasehold.keep_client(gen_random_uuid(), '1 s')",
        "select leasehold.check_client_ttl('1 s')",
        "select leasehold.mark_changing('name')",
        "select leasehold.is_changing('name')",
        "select leasehold.mark('name')",
    ] {
        assert_eq!(sql_code(&stranger.pool, sql).await.as_deref(), Some("42501"), "{sql}");
    }
    // What it may call, it can.
    for sql in [
        "select leasehold.leave(gen_random_uuid())",
        "select leasehold.wake('name')",
        "select leasehold.ahead('name', null)",
        "select leasehold.ticket(gen_random_uuid())",
        "select leasehold.channel(gen_random_uuid())",
        "select leasehold.heartbeat(gen_random_uuid(), '1 s', '{}')",
    ] {
        assert_eq!(sql_code(&stranger.pool, sql).await, None, "{sql}");
    }
}

#[tokio::test]
async fn stranger_who_knows_name_ticket_and_channel_can_neither_displace_a_waiter_nor_learn_its_owner() {
    let (db, name) = (roles::database().await, unique_name!());
    let stranger = roles::login("queue_sql_stranger", "leasehold_client", &[]).await;
    let ([mut session], [mut meddling]) = (sessions(&db).await, sessions(&stranger).await);
    let held = grant(&mut session, &name, "1 hour").await;
    let (first, second) = (stand(&mut session, &name).await, stand(&mut session, &name).await);
    let mut ears = Ears::of(&db, &[first, second]).await;
    let channel: String = sqlx::query_scalar("select leasehold.channel($1)")
        .bind(first.client)
        .fetch_one(&mut session)
        .await
        .unwrap();
    let me = Uuid::new_v4();

    let answers = format!(
        "select t::text from leasehold.heartbeat('{me}', '1 s', '{{}}') as t \
        union all select t::text from leasehold.heartbeat('{me}', '1 s', array['{me}'::uuid]) as t \
        union all select t::text from leasehold.held as t where name = '{name}' \
        union all select leasehold.ahead('{name}', {ticket})::text \
        union all select leasehold.ahead('{name}', null)::text \
        union all select leasehold.wake('{name}')::text \
        union all select t::text from leasehold.acquire('{name}', '{me}', '1 s', null, '{me}') as t \
        union all select t::text from leasehold.acquire_many(array['{name}'], array['{me}'::uuid], array[interval '1 s'], null, array['{me}'::uuid]) as t \
        union all select leasehold.leave('{me}')::text \
        union all select leasehold.leave(md5('{channel}')::uuid)::text \
        union all select leasehold.leave('{ticket:032}')::text \
        union all select pg_notify('{channel}', '{ticket}')::text",
        ticket = first.ticket,
    );
    let answers: Vec<Option<String>> = sqlx::query_scalar(AssertSqlSafe(answers))
        .fetch_all(&mut meddling)
        .await
        .unwrap();

    assert_eq!(answers.len(), 11, "{answers:?}");
    for secret in [held.owner, first.owner, first.client, second.owner, second.client] {
        for answer in answers.iter().flatten() {
            assert!(!answer.contains(&secret.to_string()), "{answer}");
        }
    }
    assert_eq!(line(&mut session, &name).await, [first.owner, second.owner]);
    // One wake-up more than there were reasons, for the one it was for.
    let heard = ears.heard(&mut session).await;
    assert!(
        !heard.is_empty() && heard.iter().all(|one| *one == told(first)),
        "{heard:?}"
    );
    assert_eq!(look(&mut session, &name, first).await.place(), ("queued", Some(0)));
    release(&mut session, &held, "0").await;
    assert_eq!(look(&mut session, &name, second).await.place(), ("queued", Some(1)));
    assert_eq!(look(&mut session, &name, first).await.outcome, "granted");
}

#[tokio::test]
async fn heartbeat_of_one_client_does_not_speak_for_the_waiters_of_another() {
    let (db, name) = (TestDb::own("queue_sql_others_beat").await, unique_name!());
    let [mut session] = sessions(&db).await;
    grant(&mut session, &name, "1 hour").await;
    let (first, second) = (stand(&mut session, &name).await, stand(&mut session, &name).await);
    let not_named = stand(&mut session, &name).await;
    let expiry = async |session: &mut sqlx::PgConnection| -> String {
        let sql = "select expires_at::text from leasehold.clients where client = $1";
        sqlx::query_scalar(sql)
            .bind(first.client)
            .fetch_one(session)
            .await
            .unwrap()
    };
    let before = expiry(&mut session).await;

    let beats = heartbeat(&mut session, second.client, &[first.owner, second.owner]).await;

    let said: Vec<_> = beats.iter().map(|beat| (beat.owner, beat.outcome.as_str())).collect();
    assert_eq!(said, [(Some(second.owner), "wait"), (Some(first.owner), "unknown")]);
    assert_eq!(
        line(&mut session, &name).await,
        [first.owner, second.owner, not_named.owner]
    );
    assert_eq!(expiry(&mut session).await, before, "nor keeps it the other alive");
}

#[tokio::test]
async fn owner_that_waits_already_is_not_moved_by_another_client_or_to_another_name() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let (name, other) = (unique_name!(), unique_name!());
    grant(&mut session, &name, "1 hour").await;
    grant(&mut session, &other, "1 hour").await;
    let waiter = stand(&mut session, &name).await;

    for form in Form::BOTH {
        form.ask(&mut session, &name, waiter.owner, Some(Uuid::new_v4())).await;
        form.ask(&mut session, &other, waiter.owner, Some(Uuid::new_v4())).await;
    }

    assert_eq!(line(&mut session, &name).await, [waiter.owner]);
    assert!(line(&mut session, &other).await.is_empty());
    assert!(leave(&mut session, waiter).await);
}

/// Two statements of one owner at once, of which neither sees that the other waits.
#[tokio::test]
async fn owner_that_is_just_put_in_line_is_not_moved_to_another_name() {
    let db = TestDb::shared().await;
    let [mut session, mut second, mut looking] = sessions(&db).await;
    let (name, other) = (unique_name!(), unique_name!());
    grant(&mut looking, &name, "1 hour").await;
    grant(&mut looking, &other, "1 hour").await;
    let blocker: i32 = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(&mut session)
        .await
        .unwrap();
    run(&mut session, "begin").await;
    let waiter = stand(&mut session, &name).await;

    let moving = tokio::spawn({
        let other = other.clone();
        async move {
            let client = Some(Uuid::new_v4());
            Form::One.ask(&mut second, &other, waiter.owner, client).await
        }
    });
    leasehold_testkit::eventually(SOON, "the second statement waits", async || {
        let waits = "select exists (select from pg_stat_activity as a where $1 = any (pg_blocking_pids(a.pid)))";
        let waits = sqlx::query_scalar::<_, bool>(waits)
            .bind(blocker)
            .fetch_one(&mut looking);
        waits.await.unwrap()
    })
    .await;
    run(&mut session, "commit").await;
    moving.await.unwrap();

    assert_eq!(line(&mut session, &name).await, [waiter.owner]);
    assert!(line(&mut session, &other).await.is_empty());
    assert!(leave(&mut session, waiter).await);
}

#[tokio::test]
async fn forged_notifications_do_a_waiting_client_no_harm() {
    let (db, name) = (TestDb::own("queue_sql_forged").await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "1 hour").await;
    let leases = db.client();
    let waiting = tokio::spawn(leases.acquire(&name).wait_at_most(SOON).into_future());
    let channel = "select leasehold.channel(client), ticket from leasehold.waiters where name = $1";
    let (channel, ticket): (String, i64) = leasehold_testkit::eventually(SOON, "it waits", async || {
        let row = sqlx::query_as(channel).bind(&name).fetch_optional(&mut session).await;
        row.unwrap()
    })
    .await;

    for payload in [
        ticket.to_string(),
        "1".into(),
        "-1".into(),
        String::new(),
        "ticket".into(),
        "9".repeat(40),
    ] {
        for _ in 0..20 {
            run(&mut session, &format!("notify {channel}, '{payload}'")).await;
        }
    }
    let next = stand(&mut session, &name).await;
    let is_waiting = !waiting.is_finished();
    let in_line = line(&mut session, &name).await;
    release(&mut session, &held, "0").await;

    assert!(is_waiting);
    assert_eq!((in_line.len(), in_line[1]), (2, next.owner));
    let lease = waiting.await.unwrap().unwrap();
    assert!(lease.fencing_token().get() > held.token);
    lease.release().await.unwrap();
    leases.close().await;
}
