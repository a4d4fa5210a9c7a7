//! What the queue costs those who do not need it.

use sqlx::PgConnection;
use uuid::Uuid;

use super::line::{Form, counting, grant_of, stand};
use crate::support::quiet::Quiet;
use crate::support::sql::{acquire_many, grant, release, release_many, run, sessions, sql_state};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn uncontended_cycle_touches_neither_waiters_nor_clients() {
    let db = TestDb::own("queue_sql_uncontended").await;
    let [mut session] = sessions(&db).await;
    let elsewhere = grant(&mut session, "elsewhere", "1 hour").await;
    stand(&mut session, "elsewhere").await;

    for form in Form::BOTH {
        for client in [None, Some(Uuid::new_v4())] {
            let touched = counting(&mut session, async |session| cycle(session, form, client).await).await;

            assert_eq!((touched.waiters_written, touched.clients_written), (0, 0), "{form:?}");
            assert_eq!(touched.rows_read, 0, "{form:?}");
        }
    }
    let with_a_waiter = counting(&mut session, async |session| {
        stand(session, "elsewhere").await;
        release(session, &elsewhere, "0").await;
    })
    .await;
    assert_eq!(
        (with_a_waiter.waiters_written, with_a_waiter.clients_written),
        (1, 1),
        "the counter counts"
    );
}

#[tokio::test]
async fn uncontended_cycle_sends_no_notification() {
    let quiet = Quiet::with_database("queue_sql_silent_cycle").await;
    let [mut session] = sessions(&quiet.db).await;
    let elsewhere = grant(&mut session, "elsewhere", "1 hour").await;
    stand(&mut session, "elsewhere").await;
    // Only a transaction that has sent no notification can be prepared.
    let prepare = "prepare transaction 'cycle'";

    for form in Form::BOTH {
        for client in [None, Some(Uuid::new_v4())] {
            run(&mut session, "begin").await;
            cycle(&mut session, form, client).await;
            run(&mut session, prepare).await;
            run(&mut session, "commit prepared 'cycle'").await;
        }
    }
    run(&mut session, "begin").await;
    release(&mut session, &elsewhere, "0").await;
    let refused = sqlx::raw_sql(prepare).execute(&mut session).await.unwrap_err();

    assert_eq!(sql_state(&refused), "0A000", "{refused}");
}

#[tokio::test]
async fn uncontended_cycle_is_flushed_once_for_the_grant_and_once_for_the_release() {
    let quiet = Quiet::with_database("queue_sql_flushes").await;
    let [mut counter] = sessions(&quiet.db).await;
    let cycles = 100;

    let mut counts = Vec::new();
    for form in Form::BOTH {
        let before = quiet.flushes(&mut counter).await;
        let [mut session] = sessions(&quiet.db).await;
        for _ in 0..cycles {
            if form == Form::One {
                let held = grant(&mut session, "cycled", "30 s").await;
                assert_eq!(release(&mut session, &held, "0").await, "released");
            } else {
                let (names, owners) = (["a", "b", "c"], [(); 3].map(|()| Uuid::new_v4()));
                acquire_many(&mut session, &names, &owners, "30 s").await;
                let grants = names
                    .iter()
                    .zip(owners)
                    .map(|(name, owner)| crate::support::sql::Grant {
                        name: (*name).to_owned(),
                        owner,
                        token: 0,
                    });
                release_many(&mut session, &grants.collect::<Vec<_>>(), "0").await;
            }
        }
        drop(session);
        counts.push(quiet.flushes(&mut counter).await - before);
    }

    // The server flushes by itself now and then.
    for flushes in &counts {
        assert!((2 * cycles..2 * cycles + cycles / 5).contains(flushes), "{counts:?}");
    }
}

#[tokio::test]
async fn miss_on_a_name_with_a_queue_and_the_second_look_of_a_waiter_write_nothing() {
    let (db, name) = (TestDb::own("queue_sql_miss").await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "1 hour").await;
    let waiters = [stand(&mut session, &name).await, stand(&mut session, &name).await];

    for is_free in [false, true] {
        if is_free {
            release(&mut session, &held, "0").await;
        }
        for form in Form::BOTH {
            run(&mut session, "begin").await;
            let miss = form.ask(&mut session, &name, Uuid::new_v4(), None).await;
            let looks = if is_free {
                vec![form.look(&mut session, &name, waiters[1]).await]
            } else {
                vec![
                    form.look(&mut session, &name, waiters[0]).await,
                    form.look(&mut session, &name, waiters[1]).await,
                ]
            };
            let xid: Option<String> = sqlx::query_scalar("select pg_current_xact_id_if_assigned()::text")
                .fetch_one(&mut session)
                .await
                .unwrap();
            let locked: i64 = sqlx::query_scalar(
                "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'",
            )
            .fetch_one(&mut session)
            .await
            .unwrap();
            run(&mut session, "commit").await;

            assert_eq!(miss.place(), ("held", Some(2)), "{form:?}");
            assert!(looks.iter().all(|look| look.outcome == "queued"), "{looks:?}");
            assert_eq!(xid, None, "{form:?}");
            assert_eq!(locked, 0, "the look gives the mark back at once");
        }
    }
}

/// Acquires a free name, for a client or none, and releases it.
async fn cycle(session: &mut PgConnection, form: Form, client: Option<Uuid>) {
    let (name, owner) = (format!("cycled {form:?}"), Uuid::new_v4());
    assert_eq!(form.ask(session, &name, owner, client).await.outcome, "granted");
    let held = grant_of(&name, owner);
    match form {
        Form::One => assert_eq!(release(session, &held, "0").await, "released"),
        Form::Set => assert_eq!(release_many(session, &[held], "0").await, ["released"]),
    }
}

/// The lock table of the server has room for some 6,400 locks of all sessions.
#[tokio::test]
async fn thousands_of_names_that_change_in_one_transaction_take_sixty_four_locks() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;

    run(&mut session, "begin").await;
    run(
        &mut session,
        "select leasehold.mark_changing('many:' || n) from generate_series(1, 5000) as n",
    )
    .await;
    let held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
    let held: i64 = sqlx::query_scalar(held).fetch_one(&mut session).await.unwrap();
    run(&mut session, "rollback").await;

    assert_eq!(held, 64);
}
