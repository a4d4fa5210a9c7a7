//! A waiter that registers and looks while something else is under way that frees the name.

use sqlx::PgConnection;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::ears::{Ears, told};
use super::line::{Form, Waiter, line, look, release_of, stand, ticket};
use crate::support::sql::{Grant, break_lease, fence, grant, release, release_many, renew, run, run_out, sessions};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn waiter_that_registers_for_a_free_name_with_somebody_ahead_is_served_once_that_one_has_gone() {
    let db = TestDb::own("queue_sql_free_but_promised").await;
    let [mut session, mut late] = sessions(&db).await;

    for form in Form::BOTH {
        for (head_leaves, expected) in [(false, "released"), (true, "left")] {
            let name = unique_name!();
            let held = grant(&mut session, &name, "1 hour").await;
            let head = form.stand(&mut session, &name).await;
            release(&mut session, &held, "0").await;

            let waiter = form.stand(&mut late, &name).await;
            let mut ears = Ears::of(&db, &[head, waiter]).await;
            let second_look = form.look(&mut late, &name, waiter).await;
            let gone = if head_leaves {
                assert!(super::line::leave(&mut session, head).await);
                "left".to_owned()
            } else {
                assert_eq!(form.look(&mut session, &name, head).await.outcome, "granted");
                assert_eq!(form.look(&mut late, &name, waiter).await.place(), ("queued", Some(0)));
                release_of(&mut session, &name, head).await
            };

            assert_eq!(second_look.place(), ("queued", Some(1)));
            assert_eq!(second_look.expires_in, None, "nobody holds it");
            assert_eq!(gone, expected);
            assert_eq!(ears.heard(&mut session).await, [told(waiter)]);
            assert_eq!(form.look(&mut late, &name, waiter).await.outcome, "granted");
            assert!(
                line(&mut session, &name).await.is_empty(),
                "a grant takes its waiter out of line"
            );
        }
    }
}

#[tokio::test]
async fn look_beside_an_uncommitted_release_that_has_not_seen_the_waiter_is_busy_and_tells_who_holds_it() {
    let db = TestDb::own("queue_sql_release_under_way").await;
    let [mut ending, mut waiting] = sessions(&db).await;

    for form in Form::BOTH {
        for end in End::ALL {
            let name = unique_name!();
            let held = grant(&mut ending, &name, "1 hour").await;
            run(&mut ending, "begin").await;
            end.run(&mut ending, &held).await;

            let (owner, client) = (Uuid::new_v4(), Uuid::new_v4());
            let first = form.ask(&mut waiting, &name, owner, Some(client)).await;
            let ticket = ticket(&mut waiting, owner).await.unwrap();
            let waiter = Waiter { owner, client, ticket };
            let mut ears = Ears::of(&db, &[waiter]).await;
            let second = form.look(&mut waiting, &name, waiter).await;
            let third = form.look(&mut waiting, &name, waiter).await;
            run(&mut ending, "commit").await;
            let heard = ears.heard(&mut ending).await;
            let after = form.look(&mut waiting, &name, waiter).await;

            assert_eq!(first.place(), ("queued", Some(0)), "it looks again whatever there is");
            for look in [second, third] {
                assert_eq!(look.place(), ("busy", Some(0)), "{form:?} {end:?}");
                assert!(look.expires_in.is_some_and(|left| left > 3500.0), "{form:?} {end:?}");
                assert_eq!(look.held_by.as_deref(), Some("the holder"), "{form:?} {end:?}");
                assert!(look.held_since.is_some(), "{form:?} {end:?}");
            }
            assert_eq!(heard, [], "{end:?} had looked for waiters before there was one");
            assert_eq!(after.outcome, end.leaves_it(), "{form:?} {end:?}");
        }
    }
}

#[tokio::test]
async fn waiter_is_not_asked_to_look_again_by_a_release_that_was_rolled_back() {
    let db = TestDb::own("queue_sql_rolled_back").await;
    let [mut ending, mut waiting] = sessions(&db).await;

    for end in End::ALL {
        let name = unique_name!();
        let held = grant(&mut ending, &name, "1 hour").await;
        let waiter = stand(&mut waiting, &name).await;
        let mut ears = Ears::of(&db, &[waiter]).await;

        run(&mut ending, "begin").await;
        end.run(&mut ending, &held).await;
        let during = look(&mut waiting, &name, waiter).await;
        run(&mut ending, "rollback").await;
        let after = look(&mut waiting, &name, waiter).await;

        assert_eq!(
            (during.outcome.as_str(), after.outcome.as_str()),
            ("busy", "queued"),
            "{end:?}"
        );
        assert_eq!(ears.heard(&mut ending).await, [], "{end:?}");
    }
}

#[tokio::test]
async fn look_beside_what_frees_nothing_is_queued() {
    let db = TestDb::own("queue_sql_frees_nothing").await;
    let [mut other, mut waiting] = sessions(&db).await;

    for form in Form::BOTH {
        for beside in ["a fenced transaction", "a renewal", "another waiter", "a try"] {
            let name = unique_name!();
            let held = grant(&mut other, &name, "1 hour").await;
            let waiter = form.stand(&mut waiting, &name).await;

            run(&mut other, "begin").await;
            match beside {
                "a fenced transaction" => assert!(fence(&mut other, &held).await.is_ok()),
                "a renewal" => assert_eq!(renew(&mut other, &held, "1 hour").await, "renewed"),
                "another waiter" => drop(form.stand(&mut other, &name).await),
                _ => assert_eq!(form.ask(&mut other, &name, Uuid::new_v4(), None).await.outcome, "held"),
            }
            let look = form.look(&mut waiting, &name, waiter).await;
            run(&mut other, "commit").await;

            assert_eq!(look.place(), ("queued", Some(0)), "{form:?} beside {beside}");
        }
    }
}

#[tokio::test]
async fn second_in_line_sleeps_beside_the_uncommitted_grant_of_the_first_and_is_told_of_its_end() {
    let db = TestDb::own("queue_sql_grant_under_way").await;
    let [mut first, mut second] = sessions(&db).await;

    for form in Form::BOTH {
        let name = unique_name!();
        let held = grant(&mut first, &name, "1 hour").await;
        let head = form.stand(&mut first, &name).await;
        let waiter = form.stand(&mut second, &name).await;
        let mut ears = Ears::of(&db, &[head, waiter]).await;
        release(&mut first, &held, "0").await;

        run(&mut first, "begin").await;
        assert_eq!(form.look(&mut first, &name, head).await.outcome, "granted");
        let during = form.look(&mut second, &name, waiter).await;
        run(&mut first, "commit").await;
        let after = form.look(&mut second, &name, waiter).await;
        release_of(&mut first, &name, head).await;

        assert_eq!(during.place(), ("queued", Some(1)), "{form:?}");
        assert_eq!(after.place(), ("queued", Some(0)), "{form:?}");
        assert_eq!(ears.heard(&mut first).await, [told(head), told(waiter)]);
        assert_eq!(form.look(&mut second, &name, waiter).await.outcome, "granted");
    }
}

#[tokio::test]
async fn latecomer_that_is_refused_a_promised_name_keeps_nothing_of_it_locked() {
    let db = TestDb::own("queue_sql_refused_latecomer").await;
    let [mut session, mut late] = sessions(&db).await;

    for form in Form::BOTH {
        let name = unique_name!();
        let held = grant(&mut session, &name, "1 hour").await;
        let head = form.stand(&mut session, &name).await;
        release(&mut session, &held, "0").await;

        run(&mut late, "begin").await;
        let refused = form.ask(&mut late, &name, Uuid::new_v4(), None).await;
        let granted = form.look(&mut session, &name, head).await;
        run(&mut late, "rollback").await;

        assert_eq!(refused.place(), ("held", Some(1)), "{form:?}");
        assert_eq!(granted.outcome, "granted", "{form:?}");
    }
}

#[tokio::test]
async fn whoever_looks_at_the_queue_has_not_locked_the_row_yet() {
    let db = TestDb::own("queue_sql_look_then_lock").await;
    let [mut session, mut blocker, mut latecomer] = sessions(&db).await;
    let name = unique_name!();
    let held = grant(&mut session, &name, "1 hour").await;
    stand(&mut session, &name).await;
    release(&mut session, &held, "0").await;
    let latecomer_pid = pid(&mut latecomer).await;

    // The latecomer is stopped where it looks at the queue.
    run(
        &mut blocker,
        "begin; lock table leasehold.waiters in access exclusive mode",
    )
    .await;
    let asked = tokio::spawn({
        let name = name.clone();
        async move { Form::One.ask(&mut latecomer, &name, Uuid::new_v4(), None).await }
    });
    until_blocked(&mut session, latecomer_pid).await;
    let free_rows: i64 = sqlx::query_scalar(
        "select count(*) from (select from leasehold.locks where name = $1 for update skip locked) as l",
    )
    .bind(&name)
    .fetch_one(&mut session)
    .await
    .unwrap();
    run(&mut blocker, "commit").await;

    assert_eq!(
        free_rows, 1,
        "the latecomer is in the way of the one who was just woken"
    );
    assert_eq!(asked.await.unwrap().place(), ("held", Some(1)));
}

/// One is always in line behind the head, so nobody ever sees the queue empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latecomers_who_look_at_once_never_make_the_acquire_of_the_woken_head_fail() {
    let (db, name) = (TestDb::own("queue_sql_latecomers").await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "1 hour").await;
    let mut head = stand(&mut session, &name).await;
    let mut next = stand(&mut session, &name).await;
    let (done, stop) = tokio::sync::watch::channel(false);
    let mut latecomers = JoinSet::new();
    for number in 0..4 {
        let ([mut session], name, stop) = (sessions(&db).await, name.clone(), stop.clone());
        let form = Form::BOTH[number % 2];
        latecomers.spawn(async move {
            loop {
                let look = form.ask(&mut session, &name, Uuid::new_v4(), None).await;
                assert_eq!(look.outcome, "held", "{look:?}");
                if *stop.borrow() {
                    return;
                }
            }
        });
    }

    release(&mut session, &held, "0").await;
    for round in 0..150 {
        let form = Form::BOTH[round % 2];
        let look = form.look(&mut session, &name, head).await;
        assert_eq!(look.outcome, "granted", "round {round}: {look:?}");
        let last = form.stand(&mut session, &name).await;
        assert_eq!(release_of(&mut session, &name, head).await, "released");
        (head, next) = (next, last);
    }
    done.send(true).unwrap();
    latecomers.join_all().await;
}

#[tokio::test]
async fn stranger_who_keeps_the_mark_for_itself_holds_up_nobody() {
    let db = TestDb::own("queue_sql_mark_taken").await;
    let [mut stranger, mut session, mut waiting] = sessions(&db).await;
    // Notifications of all databases wait for one another, so not less.
    run(&mut session, "set lock_timeout = '5s'").await;

    for mode in ["", "_shared"] {
        for end in End::ALL {
            let name = unique_name!();
            let held = grant(&mut session, &name, "1 hour").await;
            let waiter = stand(&mut waiting, &name).await;
            let mut ears = Ears::of(&db, &[waiter]).await;
            run(
                &mut stranger,
                &format!("select pg_advisory_lock{mode}(leasehold.mark('{name}'))"),
            )
            .await;

            let before = look(&mut waiting, &name, waiter).await;
            end.run(&mut session, &held).await;
            let after = look(&mut waiting, &name, waiter).await;
            run(&mut stranger, "select pg_advisory_unlock_all()").await;

            assert_eq!(
                before.outcome, "busy",
                "it does not sleep while it might miss a release"
            );
            let expected = if end == End::HeldOn { "busy" } else { "granted" };
            assert_eq!(after.outcome, expected, "{end:?}");
            assert_eq!(ears.heard(&mut session).await, [told(waiter)], "{end:?}");
        }
    }
}

#[tokio::test]
async fn head_is_granted_a_lease_that_ran_out_without_being_told() {
    let db = TestDb::own("queue_sql_ran_out").await;
    let [mut session] = sessions(&db).await;

    for form in Form::BOTH {
        let name = unique_name!();
        grant(&mut session, &name, "1 hour").await;
        let head = form.stand(&mut session, &name).await;
        let second = form.stand(&mut session, &name).await;
        run_out(&mut session, &name).await;

        let of_second = form.look(&mut session, &name, second).await;
        let of_head = form.look(&mut session, &name, head).await;

        assert_eq!(of_second.place(), ("queued", Some(1)));
        assert_eq!(
            (of_second.expires_in, of_second.held_by.as_deref()),
            (None, Some("the holder"))
        );
        assert_eq!(of_head.outcome, "granted");
    }
}

/// Between the two questions of an acquire, whether the name is free and whether it is pinned, it
/// may have been granted.
#[tokio::test]
async fn to_ask_whether_a_name_is_pinned_does_not_lock_a_lease_that_was_granted_meanwhile() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut asking] = sessions(&db).await;
    let held = grant(&mut holder, &name, "1 hour").await;

    run(&mut asking, "begin").await;
    let is_pinned: bool = sqlx::query_scalar("select leasehold.pinned($1)")
        .bind(&name)
        .fetch_one(&mut asking)
        .await
        .unwrap();
    let outcomes = [
        renew(&mut holder, &held, "1 hour").await,
        release(&mut holder, &held, "0").await,
    ];
    run(&mut asking, "rollback").await;

    assert!(!is_pinned);
    assert_eq!(outcomes, ["renewed", "released"]);
}

/// What ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Release,
    ReleaseMany,
    Break,
    HeldOn,
}

impl End {
    const ALL: [Self; 4] = [Self::Release, Self::ReleaseMany, Self::Break, Self::HeldOn];

    async fn run(self, session: &mut PgConnection, held: &Grant) {
        match self {
            Self::Release => assert_eq!(release(session, held, "0").await, "released"),
            Self::ReleaseMany => {
                let outcomes = release_many(session, std::slice::from_ref(held), "0").await;
                assert_eq!(outcomes, ["released"]);
            }
            Self::Break => assert!(break_lease(session, &held.name).await),
            Self::HeldOn => assert_eq!(release(session, held, "1 day").await, "held_on"),
        }
    }

    /// How the first in line finds the name afterwards.
    fn leaves_it(self) -> &'static str {
        if self == Self::HeldOn { "queued" } else { "granted" }
    }
}

async fn pid(session: &mut PgConnection) -> i32 {
    let sql = "select pg_backend_pid()";
    sqlx::query_scalar(sql).fetch_one(session).await.expect(sql)
}

async fn until_blocked(session: &mut PgConnection, pid: i32) {
    let sql = "select cardinality(pg_blocking_pids($1)) > 0";
    leasehold_testkit::eventually(crate::support::SOON, "the session is blocked", async || {
        let is_blocked = sqlx::query_scalar::<_, bool>(sql).bind(pid);
        is_blocked.fetch_one(&mut *session).await.expect(sql)
    })
    .await;
}
