//! Keeping clients alive, sweeping the dead, and what is refused.

use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::line::{Form, counting, heartbeat, line, silence, stand, sweep_now};
use crate::support::sql::{acquire_many, grant, run, sessions, sql_state};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn client_row_is_written_once_half_of_its_time_is_over_and_not_per_waiter() {
    let (db, client) = (TestDb::own("queue_sql_half_time").await, Uuid::new_v4());
    let [mut session] = sessions(&db).await;
    let names = [(); 3].map(|()| unique_name!());
    for name in &names {
        grant(&mut session, name, "1 hour").await;
    }
    let register = async |session: &mut PgConnection, form: Form| {
        counting(session, async |session| {
            for name in &names {
                form.stand_for(session, name, client).await;
            }
        })
        .await
    };

    for form in Form::BOTH {
        let first = register(&mut session, form).await;
        let soon = register(&mut session, form).await;
        // The ttl is a minute.
        silence(&mut session, client, -45.0).await;
        let before_half_time = register(&mut session, form).await;
        silence(&mut session, client, -15.0).await;
        let after_half_time = register(&mut session, form).await;
        silence(&mut session, client, 10.0).await;
        let dead = register(&mut session, form).await;

        let written = [first, soon, before_half_time, after_half_time, dead].map(|touched| touched.clients_written);
        // The row is there when the second form begins, and is fresh.
        let expected_first = i64::from(form == Form::One);
        assert_eq!(written, [expected_first, 0, 0, 1, 1], "{form:?}");
    }
}

#[tokio::test]
async fn heartbeat_of_a_thousand_waiters_is_one_statement_and_one_row_written() {
    let (db, client) = (TestDb::own("queue_sql_thousand").await, Uuid::new_v4());
    let [mut session] = sessions(&db).await;
    let names: Vec<_> = (0..1000).map(|number| format!("name {number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let owners = |()| Uuid::new_v4();
    let holders: Vec<_> = vec![(); 1000].into_iter().map(owners).collect();
    let waiters: Vec<_> = vec![(); 1000].into_iter().map(owners).collect();
    acquire_many(&mut session, &names, &holders, "1 hour").await;
    let queued: i64 = sqlx::query_scalar(
        "select count(*) from leasehold.acquire_many($1, $2, array_fill(interval '1 s', array[1000]), null, \
            array_fill($3::uuid, array[1000])) where outcome = 'queued'",
    )
    .bind(&names)
    .bind(&waiters)
    .bind(client)
    .fetch_one(&mut session)
    .await
    .unwrap();

    let mut beats = Vec::new();
    let touched = counting(&mut session, async |session| {
        beats = heartbeat(session, client, &waiters).await;
    })
    .await;

    assert_eq!((queued, beats.len()), (1000, 1000));
    assert!(beats.iter().all(|beat| beat.outcome == "wait" && beat.ahead == Some(0)));
    assert!(
        beats
            .iter()
            .all(|beat| beat.expires_in.is_some() && beat.held_by.is_some())
    );
    assert_eq!((touched.waiters_written, touched.clients_written), (0, 1));
}

#[tokio::test]
async fn heartbeat_says_try_to_the_head_of_a_free_name_and_wait_to_everybody_else() {
    let (db, client) = (TestDb::own("queue_sql_beats").await, Uuid::new_v4());
    let [mut session] = sessions(&db).await;
    let [free, held, run_out] = [(); 3].map(|()| unique_name!());
    let mut waiters = Vec::new();
    let mut grants = Vec::new();
    for name in [&free, &held, &run_out] {
        grants.push(grant(&mut session, name, "1 hour").await);
        stand(&mut session, name).await;
        waiters.push(Form::One.stand_for(&mut session, name, client).await);
        waiters.push(Form::One.stand_for(&mut session, name, client).await);
    }
    crate::support::sql::release(&mut session, &grants[0], "0").await;
    crate::support::sql::run_out(&mut session, &run_out).await;
    let owners: Vec<_> = waiters.iter().map(|waiter| waiter.owner).collect();
    let said = async |session: &mut PgConnection| {
        let beats = heartbeat(session, client, &owners).await;
        let said = beats.into_iter().map(|beat| {
            let holder = (beat.held_by.is_some(), beat.held_since.is_some());
            let expires = beat.expires_in.map(|left| left > 0.0);
            (beat.outcome, beat.ahead.unwrap(), expires, holder)
        });
        said.collect::<Vec<_>>()
    };

    let behind = said(&mut session).await;
    run(
        &mut session,
        &format!("delete from leasehold.waiters where client <> '{client}'"),
    )
    .await;
    let first = said(&mut session).await;

    let row = |outcome: &str, ahead, expires, told| (outcome.to_owned(), ahead, expires, (told, told));
    assert_eq!(
        behind,
        [
            row("wait", 1, None, false),
            row("wait", 2, None, false),
            row("wait", 1, Some(true), true),
            row("wait", 2, Some(true), true),
            row("wait", 1, Some(false), true),
            row("wait", 2, Some(false), true),
        ]
    );
    assert_eq!(
        first,
        [
            row("try", 0, None, false),
            row("wait", 1, None, false),
            row("wait", 0, Some(true), true),
            row("wait", 1, Some(true), true),
            row("try", 0, Some(false), true),
            row("wait", 1, Some(false), true),
        ]
    );
}

#[tokio::test]
async fn sweep_removes_clients_dead_for_a_minute_with_their_waiters_and_nobody_else() {
    let (db, name) = (TestDb::own("queue_sql_sweep").await, unique_name!());
    let [mut session] = sessions(&db).await;
    grant(&mut session, &name, "1 hour").await;
    let mut waiters = Vec::new();
    for dead_for in [-30.0, 61.0, 50.0, 3600.0, -1.0] {
        let waiter = stand(&mut session, &name).await;
        Form::One.stand_for(&mut session, &name, waiter.client).await;
        waiters.push((waiter, dead_for));
    }
    for (waiter, dead_for) in &waiters {
        silence(&mut session, waiter.client, *dead_for).await;
    }

    sweep_now(&mut session).await;

    let kept: Vec<_> = waiters.iter().filter(|(_, dead_for)| *dead_for < 60.0).collect();
    let clients: Vec<Uuid> = sqlx::query_scalar("select client from leasehold.clients")
        .fetch_all(&mut session)
        .await
        .unwrap();
    assert_eq!(clients.len(), 3);
    assert!(kept.iter().all(|(waiter, _)| clients.contains(&waiter.client)));
    let line = line(&mut session, &name).await;
    assert_eq!(line.len(), 6);
    assert!(kept.iter().all(|(waiter, _)| line.contains(&waiter.owner)));
}

#[tokio::test]
async fn client_arguments_out_of_range_are_refused_and_change_nothing() {
    let (db, name) = (TestDb::own("queue_sql_arguments").await, unique_name!());
    let [mut session] = sessions(&db).await;
    grant(&mut session, &name, "1 hour").await;
    let waiter = stand(&mut session, &name).await;
    let state = "select concat((select string_agg(concat(ctid, xmin, c), ',') from leasehold.clients as c), \
        (select string_agg(concat(ctid, xmin, w), ',') from leasehold.waiters as w), \
        (select string_agg(concat(ctid, xmin, l), ',') from leasehold.locks as l))";
    let before: String = sqlx::query_scalar(state).fetch_one(&mut session).await.unwrap();
    let (client, owner) = (Uuid::new_v4(), Uuid::new_v4());
    let calls = [
        format!("leasehold.acquire('{name}', '{owner}', '1 s', null, '{client}', TTL)"),
        format!(
            "leasehold.acquire_many(array['{name}'], array['{owner}'::uuid], array[interval '1 s'], null, \
            array['{client}'::uuid], TTL)"
        ),
        format!("leasehold.heartbeat('{client}', TTL, array['{owner}'::uuid])"),
        format!("leasehold.heartbeat('{}', TTL, '{{}}')", waiter.client),
    ];

    for call in &calls {
        for ttl in ["'99 ms'", "'0'", "'-1 s'", "'1 hour 1 ms'", "'1 day'"] {
            let call = call.replace("TTL", ttl);
            assert_eq!(refused(&mut session, &call).await.as_deref(), Some("LH002"), "{call}");
        }
    }
    for call in [
        "leasehold.heartbeat(null, '1 s', '{}')".to_owned(),
        format!("leasehold.heartbeat(null, '1 s', array['{}'::uuid])", waiter.owner),
    ] {
        assert_eq!(refused(&mut session, &call).await.as_deref(), Some("LH002"), "{call}");
    }
    let after: String = sqlx::query_scalar(state).fetch_one(&mut session).await.unwrap();

    assert_eq!(after, before);
    for call in &calls[..3] {
        for ttl in ["'100 ms'", "'1 hour'", "null"] {
            let call = call.replace("TTL", ttl);
            assert_eq!(refused(&mut session, &call).await, None, "{call}");
        }
    }
    // Without a client its ttl means nothing.
    let call = format!("leasehold.acquire('{name}', '{owner}', '1 s', null, null, '1 day')");
    assert_eq!(refused(&mut session, &call).await, None);
}

#[tokio::test]
async fn view_of_what_is_held_counts_the_live_waiters() {
    let (db, name, other) = (TestDb::shared().await, unique_name!(), unique_name!());
    let [mut session] = sessions(&db).await;
    grant(&mut session, &name, "1 hour").await;
    grant(&mut session, &other, "1 hour").await;
    let count = async |session: &mut PgConnection, name: &str| -> Option<i32> {
        let sql = "select waiters from leasehold.held where name = $1";
        sqlx::query_scalar(sql).bind(name).fetch_one(session).await.unwrap()
    };

    let none = count(&mut session, &name).await;
    let (first, _) = (stand(&mut session, &name).await, stand(&mut session, &name).await);
    let two = count(&mut session, &name).await;
    silence(&mut session, first.client, 1.0).await;
    let one = count(&mut session, &name).await;

    assert_eq!([none, two, one], [Some(0), Some(2), Some(1)]);
    assert_eq!(count(&mut session, &other).await, Some(0));
}

/// The error code of a call; `None` when it succeeds.
async fn refused(session: &mut PgConnection, call: &str) -> Option<String> {
    let sql = AssertSqlSafe(format!("select * from {call}"));
    let answer = sqlx::query(sql).execute(session).await;
    answer.err().map(|error| sql_state(&error))
}
