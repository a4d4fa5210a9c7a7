//! The plans that the functions keep, made in a session that knew the queue's tables empty.

use sqlx::PgConnection;
use uuid::Uuid;

use super::line::{Form, Touched, Waiter, counting, heartbeat, leave, look, release_of, stand, wake};
use crate::support::TestDb;
use crate::support::sql::{Grant, break_lease, grant, release, release_many, run, sessions};

#[tokio::test]
async fn plans_made_while_nobody_waits_read_few_rows_when_tens_of_thousands_wait_for_other_names() {
    let db = TestDb::own("queue_sql_plans").await;
    let [mut session, mut others] = sessions(&db).await;
    run(&mut session, "set plan_cache_mode = force_generic_plan").await;
    // From here on the planner knows that both are empty.
    run(&mut others, "vacuum analyze leasehold.waiters, leasehold.clients").await;
    // Each by itself first: called by another, a function is planned with the settings of that one.
    for call in [
        "wake('by itself')",
        "ahead('by itself', null)",
        "ticket(gen_random_uuid())",
        "leave(gen_random_uuid())",
        "keep_client(gen_random_uuid(), '1 s')",
        "stand_in_line('by itself', gen_random_uuid(), gen_random_uuid(), '1 s')",
        "heartbeat(gen_random_uuid(), '1 s', array[gen_random_uuid()])",
    ] {
        run(&mut session, &format!("select leasehold.{call}")).await;
    }
    run(&mut session, "select count(waiters) from leasehold.held").await;
    for _ in 0..10 {
        for form in Form::BOTH {
            cycle(&mut session, form).await;
        }
    }

    // Without an analyze, which would let plans be made again.
    run(
        &mut others,
        "insert into leasehold.clients (client, expires_at) \
            select md5(n::text)::uuid, clock_timestamp() + interval '1 hour' from generate_series(1, 20000) as n; \
        insert into leasehold.waiters (name, owner, client) \
            select 'other ' || n % 5000, gen_random_uuid(), md5(n::text)::uuid from generate_series(1, 20000) as n; \
        insert into leasehold.waiters (name, owner, client) \
            select 'gone ' || n % 10, gen_random_uuid(), gen_random_uuid() from generate_series(1, 20000) as n; \
        delete from leasehold.waiters where name like 'gone %'",
    )
    .await;
    for form in Form::BOTH {
        let touched = counting(&mut session, async |session| cycle(session, form).await).await;

        assert_eq!(touched.scans_of_whole_tables, 0, "{form:?} {touched:?}");
        assert!(touched.rows_read < ROWS_OF_A_CYCLE, "{form:?} {touched:?}");
        assert!(touched.waiters_written > 0, "{form:?} the counter does not count");
    }
    let by_a_scan: Touched = counting(&mut session, async |session| {
        run(session, "select count(*) from leasehold.waiters").await;
    })
    .await;
    assert_eq!(by_a_scan.scans_of_whole_tables, 1, "the counter counts");
    assert!(by_a_scan.rows_read >= 20_000);
}

/// Every function that reads the queue.
async fn cycle(session: &mut PgConnection, form: Form) {
    let name = "cycled";
    let held = grant(session, name, "1 hour").await;
    let first = form.stand(session, name).await;
    let (second, third) = (form.stand(session, name).await, stand(session, name).await);
    form.ask(session, name, Uuid::new_v4(), None).await;
    form.look(session, name, second).await;
    let beats = heartbeat(session, third.client, &[third.owner]).await;
    assert_eq!(beats.len(), 1);
    release_in(form, session, &held).await;
    assert!(wake(session, name).await);
    assert_eq!(form.look(session, name, first).await.outcome, "granted");
    assert!(leave(session, second).await);
    assert!(break_lease(session, name).await);
    assert_eq!(look(session, name, third).await.outcome, "granted");
    let waiters = "select waiters from leasehold.held where name = $1";
    let waiters: Option<i32> = sqlx::query_scalar(waiters)
        .bind(name)
        .fetch_one(&mut *session)
        .await
        .unwrap();
    assert_eq!(waiters, Some(0));
    let late = Waiter {
        owner: Uuid::new_v4(),
        ..third
    };
    look(session, name, late).await;
    let left = heartbeat(session, third.client, &[]).await;
    assert_eq!(left.len(), 1);
    release_of(session, name, third).await;
}

async fn release_in(form: Form, session: &mut PgConnection, held: &Grant) {
    match form {
        Form::One => drop(release(session, held, "0").await),
        Form::Set => drop(release_many(session, std::slice::from_ref(held), "0").await),
    }
}

/// Each of some twenty calls reads the few rows of its own line a few times.
const ROWS_OF_A_CYCLE: i64 = 400;
