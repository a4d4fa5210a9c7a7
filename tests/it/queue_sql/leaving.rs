//! A waiter that leaves while something else is under way.

use uuid::Uuid;

use super::ears::{Ears, told};
use super::line::{Form, Waiter, beat, heartbeat, leave, line, look, stand, ticket, wake};
use crate::support::sql::{grant, release, run, sessions};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn head_that_leaves_while_the_release_that_chose_it_is_uncommitted_passes_the_turn_on() {
    let db = TestDb::own("queue_sql_chosen_head_leaves").await;
    let [mut releasing, mut leaving, mut waiting] = sessions(&db).await;

    for form in Form::BOTH {
        let name = unique_name!();
        let held = grant(&mut releasing, &name, "1 hour").await;
        let head = form.stand(&mut leaving, &name).await;
        let next = form.stand(&mut waiting, &name).await;
        let mut ears = Ears::of(&db, &[head, next]).await;

        run(&mut releasing, "begin").await;
        release(&mut releasing, &held, "0").await;
        assert!(leave(&mut leaving, head).await);
        let heard_of_the_leave = ears.heard(&mut leaving).await;
        let woken_too_early = form.look(&mut waiting, &name, next).await;
        run(&mut releasing, "commit").await;
        let heard_of_the_release = ears.heard(&mut leaving).await;
        let after = form.look(&mut waiting, &name, next).await;

        assert_eq!(heard_of_the_leave, [told(next)]);
        assert_eq!(woken_too_early.place(), ("busy", Some(0)), "it must not sleep");
        assert!(woken_too_early.expires_in.is_some());
        assert_eq!(heard_of_the_release, [told(head)], "it was chosen before it left");
        assert_eq!(after.outcome, "granted");
    }
}

#[tokio::test]
async fn head_whose_leave_is_uncommitted_when_the_release_chooses_it_is_told_and_hands_on() {
    let db = TestDb::own("queue_sql_leaving_head_chosen").await;
    let [mut releasing, mut leaving, mut waiting] = sessions(&db).await;
    let name = unique_name!();
    let held = grant(&mut releasing, &name, "1 hour").await;
    let head = stand(&mut leaving, &name).await;

    run(&mut leaving, "begin").await;
    assert!(leave(&mut leaving, head).await);
    let next = stand(&mut waiting, &name).await;
    let mut ears = Ears::of(&db, &[head, next]).await;
    release(&mut releasing, &held, "0").await;
    let before = look(&mut waiting, &name, next).await;
    run(&mut leaving, "commit").await;
    let heard = ears.heard(&mut releasing).await;

    assert_eq!(before.place(), ("busy", Some(1)), "neither has told it");
    assert_eq!(heard, [told(head)]);
    // What the client of one who has left does when it is told.
    assert!(wake(&mut leaving, &name).await);
    assert_eq!(ears.heard(&mut releasing).await, [told(next)]);
    assert_eq!(look(&mut waiting, &name, next).await.outcome, "granted");
}

#[tokio::test]
async fn look_beside_the_uncommitted_leave_of_the_one_ahead_is_busy() {
    let db = TestDb::own("queue_sql_leave_under_way").await;
    let [mut leaving, mut waiting] = sessions(&db).await;

    for form in Form::BOTH {
        for is_held in [false, true] {
            let name = unique_name!();
            let held = grant(&mut leaving, &name, "1 hour").await;
            let head = form.stand(&mut leaving, &name).await;
            if !is_held {
                release(&mut leaving, &held, "0").await;
            }

            run(&mut leaving, "begin").await;
            assert!(leave(&mut leaving, head).await);
            let waiter = form.stand(&mut waiting, &name).await;
            let mut ears = Ears::of(&db, &[head, waiter]).await;
            let second = form.look(&mut waiting, &name, waiter).await;
            run(&mut leaving, "commit").await;
            let after = form.look(&mut waiting, &name, waiter).await;

            assert_eq!(second.place(), ("busy", Some(1)), "{form:?}");
            assert_eq!(second.expires_in.is_some(), is_held);
            assert_eq!(second.held_by.is_some(), is_held);
            assert_eq!(
                ears.heard(&mut leaving).await,
                [],
                "nobody stood behind it when it left"
            );
            assert_eq!(after.outcome, if is_held { "queued" } else { "granted" });
        }
    }
}

#[tokio::test]
async fn two_ahead_who_leave_at_once_lose_nobody_behind_them() {
    let db = TestDb::own("queue_sql_two_leave").await;
    let [mut one, mut other, mut waiting] = sessions(&db).await;

    for (first_commits_first, third_comes_late) in [(true, false), (false, false), (true, true), (false, true)] {
        let name = unique_name!();
        let held = grant(&mut one, &name, "1 hour").await;
        let (first, second) = (stand(&mut one, &name).await, stand(&mut other, &name).await);
        let early = if third_comes_late {
            None
        } else {
            Some(stand(&mut waiting, &name).await)
        };
        release(&mut one, &held, "0").await;

        run(&mut one, "begin").await;
        run(&mut other, "begin").await;
        assert!(leave(&mut one, first).await && leave(&mut other, second).await);
        let third = match early {
            Some(third) => third,
            None => stand(&mut waiting, &name).await,
        };
        let mut ears = Ears::of(&db, &[first, second, third]).await;
        let order = if first_commits_first {
            [&mut one, &mut other]
        } else {
            [&mut other, &mut one]
        };
        for session in order {
            run(session, "commit").await;
        }

        // Of the two one was told, or its leave told the third: who is told hands on.
        assert_eq!(ears.heard(&mut one).await, [told(second)]);
        assert!(wake(&mut other, &name).await);
        assert_eq!(ears.heard(&mut one).await, [told(third)]);
        let of_third = beat(&mut waiting, third).await;
        assert_eq!((of_third.outcome.as_str(), of_third.ahead), ("try", Some(0)));
        assert_eq!(look(&mut waiting, &name, third).await.outcome, "granted");
    }
}

#[tokio::test]
async fn late_acquire_overtaken_by_its_leave_is_taken_out_by_the_heartbeat_and_the_next_is_told() {
    let db = TestDb::own("queue_sql_late_acquire").await;
    let [mut session] = sessions(&db).await;
    let (name, other) = (unique_name!(), unique_name!());
    grant(&mut session, &name, "1 hour").await;
    grant(&mut session, &other, "1 hour").await;
    let client = Uuid::new_v4();
    let named = Form::One.stand_for(&mut session, &other, client).await;
    let mut late = Waiter {
        owner: Uuid::new_v4(),
        client,
        ticket: 0,
    };

    assert!(!leave(&mut session, late).await);
    assert_eq!(look(&mut session, &name, late).await.place(), ("queued", Some(0)));
    late.ticket = ticket(&mut session, late.owner).await.unwrap();
    let next = stand(&mut session, &name).await;
    let mut ears = Ears::of(&db, &[late, next]).await;
    let beats = heartbeat(&mut session, client, &[named.owner]).await;

    let said: Vec<_> = beats
        .iter()
        .map(|beat| (beat.owner, beat.ticket, beat.outcome.as_str()))
        .collect();
    assert_eq!(
        said,
        [
            (Some(named.owner), Some(named.ticket), "wait"),
            (None, Some(late.ticket), "left"),
        ]
    );
    assert_eq!(ears.heard(&mut session).await, [told(next)]);
    assert_eq!(line(&mut session, &name).await, [next.owner]);
    assert_eq!(line(&mut session, &other).await, [named.owner]);
}

#[tokio::test]
async fn leave_is_answered_true_once_and_false_for_whoever_does_not_stand_in_line() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "1 hour").await;
    let waiter = stand(&mut session, &name).await;
    let holder = Waiter {
        owner: held.owner,
        ..waiter
    };

    let answers = [
        leave(&mut session, holder).await,
        leave(&mut session, waiter).await,
        leave(&mut session, waiter).await,
    ];

    assert_eq!(answers, [false, true, false]);
    assert!(line(&mut session, &name).await.is_empty());
}
