//! Tickets decide: who is granted a name, who is not, and what either way of asking answers.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::line::{Form, Look, Waiter, line, look, release_of, silence, stand, ticket};
use crate::support::sql::{fence, grant, release, run, run_out, sessions};
use crate::support::{TestDb, unique_name};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_are_granted_a_name_in_the_order_of_their_tickets() {
    let (db, name) = (TestDb::own("queue_sql_many").await, unique_name!());
    let [mut holder] = sessions(&db).await;
    let held = grant(&mut holder, &name, "1 hour").await;
    let mut registering = JoinSet::new();
    for number in 0..12 {
        let ([mut session], name) = (sessions(&db).await, name.clone());
        registering.spawn(async move {
            let waiter = Form::BOTH[number % 2].stand(&mut session, &name).await;
            (session, waiter)
        });
    }
    let waiting = registering.join_all().await;
    let granted = Arc::new(Mutex::new(Vec::new()));

    let mut asking = JoinSet::new();
    for (number, (mut session, waiter)) in waiting.into_iter().enumerate() {
        let (name, granted) = (name.clone(), Arc::clone(&granted));
        asking.spawn(async move {
            let form = Form::BOTH[number % 2];
            loop {
                let look = form.look(&mut session, &name, waiter).await;
                if look.outcome == "granted" {
                    granted.lock().await.push((look.token.unwrap(), waiter.ticket));
                    // Whoever saw the name free a moment ago may still be looking why it was not granted.
                    loop {
                        match release_of(&mut session, &name, waiter).await.as_str() {
                            "released" => return,
                            outcome => assert_eq!(outcome, "busy"),
                        }
                    }
                }
            }
        });
    }
    release(&mut holder, &held, "0").await;
    asking.join_all().await;

    let granted = granted.lock().await;
    assert_eq!(granted.len(), 12);
    assert!(granted.is_sorted_by_key(|(token, _)| *token), "{granted:?}");
    assert!(granted.is_sorted_by_key(|(_, ticket)| *ticket), "{granted:?}");
}

#[tokio::test]
async fn ticket_is_kept_however_often_a_waiter_looks() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    grant(&mut session, &name, "1 hour").await;
    let (first, second) = (stand(&mut session, &name).await, stand(&mut session, &name).await);

    for form in Form::BOTH {
        form.look(&mut session, &name, second).await;
        form.look(&mut session, &name, first).await;
    }

    assert!(first.ticket < second.ticket);
    assert_eq!(ticket(&mut session, first.owner).await, Some(first.ticket));
    assert_eq!(ticket(&mut session, second.owner).await, Some(second.ticket));
    assert_eq!(line(&mut session, &name).await, [first.owner, second.owner]);
}

#[tokio::test]
async fn waiters_whose_client_is_dead_are_overtaken_and_counted_by_nobody() {
    let (db, name) = (TestDb::own("queue_sql_dead").await, unique_name!());
    let [mut session] = sessions(&db).await;

    for form in Form::BOTH {
        for asks in [Asks::NoClient, Asks::NewWaiter, Asks::Second] {
            let name = format!("{name} {form:?} {asks:?}");
            let held = grant(&mut session, &name, "1 hour").await;
            let dead = form.stand(&mut session, &name).await;
            silence(&mut session, dead.client, 1.0).await;
            let second = form.stand(&mut session, &name).await;
            let ahead = form.ask(&mut session, &name, Uuid::new_v4(), None).await.ahead;
            let place = form.look(&mut session, &name, second).await.ahead;
            release(&mut session, &held, "0").await;
            if asks != Asks::Second {
                silence(&mut session, second.client, 1.0).await;
            }

            let answer = asks.ask(form, &mut session, &name, &[dead, second]).await;

            assert_eq!((ahead, place), (Some(1), Some(0)), "the second alone");
            assert_eq!(answer.outcome, "granted", "{form:?} {asks:?}");
        }
    }
}

#[tokio::test]
async fn one_and_set_answer_the_same_in_every_state_of_the_name_and_its_queue() {
    let db = TestDb::own("queue_sql_states").await;
    let [mut session, mut other] = sessions(&db).await;

    for (state, has_line, asks, outcome, ahead, told) in STATES {
        let case = format!("{state:?}, line {has_line}, {asks:?}");
        let mut answers = Vec::new();
        for form in Form::BOTH {
            let name = format!("{case} {form:?} {}", Uuid::new_v4());
            let waiters = state.arrange(&mut session, &mut other, &name, has_line).await;

            let answer = asks.ask(form, &mut session, &name, &waiters).await;
            run(&mut other, "rollback").await;

            let mut expected_line: Vec<_> = waiters.iter().map(|waiter| waiter.owner).collect();
            if outcome == "granted" && asks == Asks::Head {
                expected_line.remove(0);
            }
            let line = line(&mut session, &name).await;
            if asks == Asks::NewWaiter && outcome != "granted" {
                assert_eq!(line.len(), expected_line.len() + 1, "{case} {form:?}");
                assert!(line.starts_with(&expected_line), "{case} {form:?}");
            } else {
                assert_eq!(line, expected_line, "{case} {form:?}");
            }
            let acquired_at = "select acquired_at from leasehold.locks where name = $1";
            let acquired_at = sqlx::query_scalar::<_, DateTime<Utc>>(acquired_at).bind(&name);
            let acquired_at = acquired_at.fetch_one(&mut session).await.unwrap();
            let is_since_right = answer.held_since.is_none_or(|since| since == acquired_at);
            assert!(is_since_right, "{case} {form:?}");
            answers.push(answer);
        }

        for answer in &answers {
            assert_eq!((answer.outcome.as_str(), answer.ahead), (outcome, ahead), "{case}");
            assert_eq!(answer.token.is_some(), outcome == "granted", "{case}");
            assert_eq!(answer.held_by.as_deref(), told.holder.then_some("the holder"), "{case}");
            assert_eq!(answer.held_since.is_some(), told.holder, "{case}");
            let ttl = match told.expires {
                _ if outcome == "granted" => 15.0..=30.0,
                true => 3000.0..=3600.0,
                false => {
                    assert_eq!(answer.expires_in, None, "{case}");
                    continue;
                }
            };
            assert!(answer.expires_in.is_some_and(|left| ttl.contains(&left)), "{case}");
        }
    }
}

#[tokio::test]
async fn own_grant_asked_for_again_with_a_client_is_the_same_grant_and_stands_in_no_line() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "1 hour").await;
    stand(&mut session, &name).await;

    for form in Form::BOTH {
        let again = form.ask(&mut session, &name, held.owner, Some(Uuid::new_v4())).await;

        assert_eq!(again.place(), ("granted", None));
        assert_eq!(again.token, Some(held.token));
        assert_eq!(ticket(&mut session, held.owner).await, None);
    }
}

#[tokio::test]
async fn set_puts_the_waiters_of_each_name_in_line_and_grants_what_is_free_of_a_line() {
    let db = TestDb::own("queue_sql_mixed_set").await;
    let [mut session] = sessions(&db).await;
    let [free, held, promised, plain] = [(); 4].map(|()| unique_name!());
    grant(&mut session, &held, "1 hour").await;
    grant(&mut session, &plain, "1 hour").await;
    let gone = grant(&mut session, &promised, "1 hour").await;
    let head = stand(&mut session, &promised).await;
    release(&mut session, &gone, "0").await;
    let (client, owners) = (Uuid::new_v4(), [(); 5].map(|()| Uuid::new_v4()));

    let answers: Vec<(String, Option<i32>)> = sqlx::query_as(
        "select outcome, ahead from leasehold.acquire_many($1, $2, array_fill(interval '30 s', array[5]), null, $3) \
        order by array_position($2, owner)",
    )
    .bind(vec![&*free, &*held, &*held, &*promised, &*plain])
    .bind(owners)
    .bind(vec![Some(client), Some(client), Some(client), Some(client), None])
    .fetch_all(&mut session)
    .await
    .unwrap();

    let answers: Vec<_> = answers
        .iter()
        .map(|(outcome, ahead)| (outcome.as_str(), *ahead))
        .collect();
    assert_eq!(answers[0], ("granted", None));
    assert_eq!(answers[1..3], [("queued", Some(0)), ("queued", Some(1))]);
    assert_eq!(answers[3..], [("queued", Some(1)), ("held", Some(0))]);
    assert_eq!(line(&mut session, &held).await, owners[1..3]);
    assert_eq!(line(&mut session, &promised).await, [head.owner, owners[3]]);
    assert!(line(&mut session, &plain).await.is_empty());
    assert_eq!(look(&mut session, &promised, head).await.outcome, "granted");
}

/// The state of a name when it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has no row.
    New,
    Free,
    Held,
    RunOut,
    /// Let go, with a fenced transaction open.
    Pinned,
    /// Run out, with a fenced transaction open.
    RunOutAndPinned,
    /// Free, and locked by something that passes.
    Locked,
}

impl State {
    /// The waiters are in line before the name comes to be in this state.
    async fn arrange(
        self,
        session: &mut PgConnection,
        other: &mut PgConnection,
        name: &str,
        has_line: bool,
    ) -> Vec<Waiter> {
        let held = grant(session, name, "1 hour").await;
        let mut waiters = Vec::new();
        if has_line {
            waiters.push(stand(session, name).await);
            waiters.push(stand(session, name).await);
        }
        run(other, "begin").await;
        if matches!(self, Self::Pinned | Self::RunOutAndPinned) {
            fence(other, &held).await.expect("it is current");
        }
        match self {
            Self::Held => {}
            Self::RunOut | Self::RunOutAndPinned => run_out(session, name).await,
            Self::New => run(session, &format!("delete from leasehold.locks where name = '{name}'")).await,
            Self::Free | Self::Pinned | Self::Locked => drop(release(session, &held, "0").await),
        }
        if self == Self::Locked {
            let lock = format!("select from leasehold.locks where name = '{name}' for update");
            run(other, &lock).await;
        }
        waiters
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    NoClient,
    NewWaiter,
    Head,
    Second,
}

impl Asks {
    async fn ask(self, form: Form, session: &mut PgConnection, name: &str, line: &[Waiter]) -> Look {
        match self {
            Self::NoClient => form.ask(session, name, Uuid::new_v4(), None).await,
            Self::NewWaiter => form.ask(session, name, Uuid::new_v4(), Some(Uuid::new_v4())).await,
            Self::Head => form.look(session, name, line[0]).await,
            Self::Second => form.look(session, name, line[1]).await,
        }
    }
}

/// What an answer tells of the lease there is: by whom it is held and since when; when it runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    holder: bool,
    expires: bool,
}

const NOTHING: Told = Told {
    holder: false,
    expires: false,
};
const RUN_OUT: Told = Told {
    holder: true,
    expires: false,
};
const LEASE: Told = Told {
    holder: true,
    expires: true,
};

/// State, whether two are in line, who asks, outcome, how many are ahead, what is told.
type Case = (State, bool, Asks, &'static str, Option<i32>, Told);

#[rustfmt::skip]
const STATES: [Case; 42] = [
    (State::New,             false, Asks::NoClient,  "granted", None,    NOTHING),
    (State::New,             false, Asks::NewWaiter, "granted", None,    NOTHING),
    (State::New,             true,  Asks::NoClient,  "held",    Some(2), NOTHING),
    (State::New,             true,  Asks::NewWaiter, "queued",  Some(2), NOTHING),
    (State::New,             true,  Asks::Head,      "granted", None,    NOTHING),
    (State::New,             true,  Asks::Second,    "queued",  Some(1), NOTHING),
    (State::Free,            false, Asks::NoClient,  "granted", None,    NOTHING),
    (State::Free,            false, Asks::NewWaiter, "granted", None,    NOTHING),
    (State::Free,            true,  Asks::NoClient,  "held",    Some(2), NOTHING),
    (State::Free,            true,  Asks::NewWaiter, "queued",  Some(2), NOTHING),
    (State::Free,            true,  Asks::Head,      "granted", None,    NOTHING),
    (State::Free,            true,  Asks::Second,    "queued",  Some(1), NOTHING),
    (State::Held,            false, Asks::NoClient,  "held",    Some(0), LEASE),
    (State::Held,            false, Asks::NewWaiter, "queued",  Some(0), LEASE),
    (State::Held,            true,  Asks::NoClient,  "held",    Some(2), LEASE),
    (State::Held,            true,  Asks::NewWaiter, "queued",  Some(2), LEASE),
    (State::Held,            true,  Asks::Head,      "queued",  Some(0), LEASE),
    (State::Held,            true,  Asks::Second,    "queued",  Some(1), LEASE),
    (State::RunOut,          false, Asks::NoClient,  "granted", None,    NOTHING),
    (State::RunOut,          false, Asks::NewWaiter, "granted", None,    NOTHING),
    (State::RunOut,          true,  Asks::NoClient,  "held",    Some(2), RUN_OUT),
    (State::RunOut,          true,  Asks::NewWaiter, "queued",  Some(2), RUN_OUT),
    (State::RunOut,          true,  Asks::Head,      "granted", None,    NOTHING),
    (State::RunOut,          true,  Asks::Second,    "queued",  Some(1), RUN_OUT),
    (State::Pinned,          false, Asks::NoClient,  "pinned",  Some(0), NOTHING),
    (State::Pinned,          false, Asks::NewWaiter, "pinned",  Some(0), NOTHING),
    (State::Pinned,          true,  Asks::NoClient,  "held",    Some(2), NOTHING),
    (State::Pinned,          true,  Asks::NewWaiter, "queued",  Some(2), NOTHING),
    (State::Pinned,          true,  Asks::Head,      "pinned",  Some(0), NOTHING),
    (State::Pinned,          true,  Asks::Second,    "queued",  Some(1), NOTHING),
    (State::RunOutAndPinned, false, Asks::NoClient,  "pinned",  Some(0), RUN_OUT),
    (State::RunOutAndPinned, false, Asks::NewWaiter, "pinned",  Some(0), RUN_OUT),
    (State::RunOutAndPinned, true,  Asks::NoClient,  "held",    Some(2), RUN_OUT),
    (State::RunOutAndPinned, true,  Asks::NewWaiter, "queued",  Some(2), RUN_OUT),
    (State::RunOutAndPinned, true,  Asks::Head,      "pinned",  Some(0), RUN_OUT),
    (State::RunOutAndPinned, true,  Asks::Second,    "queued",  Some(1), RUN_OUT),
    (State::Locked,          false, Asks::NoClient,  "busy",    Some(0), NOTHING),
    (State::Locked,          false, Asks::NewWaiter, "busy",    Some(0), NOTHING),
    (State::Locked,          true,  Asks::NoClient,  "held",    Some(2), NOTHING),
    (State::Locked,          true,  Asks::NewWaiter, "queued",  Some(2), NOTHING),
    (State::Locked,          true,  Asks::Head,      "busy",    Some(0), NOTHING),
    (State::Locked,          true,  Asks::Second,    "queued",  Some(1), NOTHING),
];
