//! The keeper on a paused clock, with a lane whose answers are written by hand.

use tokio::time::{advance, timeout};

use super::*;
use crate::lane::Request;

#[tokio::test(start_paused = true)]
async fn confirmed_renewals_keep_a_lease_for_as_long_as_they_come() {
    let (keeper, mut lane) = scripted();
    let (held, adopted_at) = (keeper.adopt_one(), Instant::now());

    for nth in 1..=20 {
        let asked = lane.asked().await;
        assert_eq!(adopted_at.elapsed().as_secs(), nth * RENEW_EVERY.as_secs());
        asked.answer_all(renewed());
    }
    keeper.settled().await;

    assert!(held.belief.is_held());
    assert_eq!(held.belief.window().unwrap().until(), Instant::now() + TTL - MARGIN);
}

#[tokio::test(start_paused = true)]
async fn answer_that_a_lease_is_no_longer_ours_loses_it_at_once() {
    for (outcome, cause) in [
        (RenewOutcome::Gone, LossCause::Gone),
        (RenewOutcome::Superseded, LossCause::Superseded),
        (RenewOutcome::Expired, LossCause::Expired),
    ] {
        let (keeper, mut lane) = scripted();
        let held = keeper.adopt_one();
        let asked = lane.asked().await;
        let answered_at = Instant::now();

        asked.answer_all(Ok(outcome));

        assert_eq!(held.belief.lost().await, cause);
        assert_eq!(answered_at.elapsed(), Duration::ZERO);
        lane.asked_no_more().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_and_busy_renewals_are_tried_again_until_the_window_ends() {
    for outcome in [Err(fault()), Ok(RenewOutcome::Busy)] {
        let (keeper, mut lane) = scripted();
        let (held, adopted_at) = (keeper.adopt_one(), Instant::now());
        let mut tries = 0;

        let cause = loop {
            tokio::select! {
                biased;
                cause = held.belief.lost() => break cause,
                asked = lane.asked() => {
                    asked.answer_all(outcome.clone());
                    tries += 1;
                }
            }
        };

        assert_eq!(cause, LossCause::Expired);
        assert_lost_when_the_window_ends(adopted_at);
        // Never more than half a second apart.
        assert!((12..500).contains(&tries), "tried {tries} times");
        lane.asked_no_more().await;
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_that_is_confirmed_after_failures_keeps_the_lease() {
    let (keeper, mut lane) = scripted();
    let held = keeper.adopt_one();

    for _ in 0..3 {
        lane.asked().await.answer_all(Err(fault()));
    }
    lane.asked().await.answer_all(renewed());
    let renewed_at = Instant::now();
    keeper.settled().await;

    assert_eq!(held.belief.window().unwrap().until(), renewed_at + TTL - MARGIN);
    let asked = lane.asked().await;
    assert!(renewed_at.elapsed() >= RENEW_EVERY, "back to the regular pace");
    asked.answer_all(renewed());
}

#[tokio::test(start_paused = true)]
async fn renewal_that_is_never_answered_loses_the_lease_when_its_window_ends_and_not_later() {
    let (keeper, mut lane) = scripted();
    let (held, adopted_at) = (keeper.adopt_one(), Instant::now());
    let unanswered = lane.asked().await;

    let cause = held.belief.lost().await;

    assert_eq!(cause, LossCause::Expired);
    assert_lost_when_the_window_ends(adopted_at);
    unanswered.answer_all(renewed());
    keeper.settled().await;
    assert!(!held.belief.is_held(), "a late answer does not revive it");
    lane.asked_no_more().await;
}

#[tokio::test(start_paused = true)]
async fn slow_answer_is_counted_from_when_the_request_left() {
    let (keeper, mut lane) = scripted();
    let held = keeper.adopt_one();
    let asked = lane.asked().await;
    let left_at = Instant::now();

    advance(Duration::from_secs(2)).await;
    asked.answer_all(renewed());
    keeper.settled().await;

    assert_eq!(held.belief.window().unwrap().until(), left_at + TTL - MARGIN);
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_due_soon_are_renewed_in_one_request() {
    let (keeper, mut lane) = scripted();
    let mut early = Vec::new();
    for _ in 0..10 {
        early.push(keeper.adopt_one());
        advance(RENEW_EVERY / 20 - Duration::from_millis(1)).await;
    }
    let late = keeper.adopt_one();
    let due_later = keeper.adopt(due_in(RENEW_EVERY * 3 / 2));

    let asked = lane.asked().await;

    let owners = asked.owners();
    assert_eq!(owners.len(), 11);
    assert!(early.iter().chain([&late]).all(|held| owners.contains(&held.owner)));
    assert!(!owners.contains(&due_later.owner));
}

#[tokio::test(start_paused = true)]
async fn all_that_has_come_is_heard_before_anything_is_asked() {
    let (keeper, mut lane) = scripted();
    let overdue: Vec<_> = (0..100).map(|_| due_in(RENEW_EVERY)).collect();
    advance(RENEW_EVERY * 2).await;

    for held in &overdue {
        keeper.adopt(held.clone());
    }

    assert_eq!(lane.asked().await.owners().len(), overdue.len());
}

#[tokio::test(start_paused = true)]
async fn one_lost_lease_does_not_take_its_neighbours_along() {
    let (keeper, mut lane) = scripted();
    let (lost, kept, busy) = (keeper.adopt_one(), keeper.adopt_one(), keeper.adopt_one());

    let asked = lane.asked().await;
    asked.answer(&lost, Ok(RenewOutcome::Gone));
    asked.answer(&kept, renewed());
    asked.answer(&busy, Ok(RenewOutcome::Busy));
    drop(asked);
    let retried = lane.asked().await;

    assert_eq!(retried.owners(), [busy.owner]);
    assert_eq!(lost.belief.loss(), Some(LossCause::Gone));
    assert!(kept.belief.is_held() && busy.belief.is_held());
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_let_go_is_not_asked_for_again() {
    let (keeper, mut lane) = scripted();
    let held = keeper.adopt_one();
    lane.asked().await.answer_all(renewed());
    keeper.settled().await;

    held.belief.let_go();
    keeper.keeper.let_go(held.owner);

    lane.asked_no_more().await;
}

#[tokio::test(start_paused = true)]
async fn manual_lease_is_renewed_once_for_each_time_it_is_asked_for() {
    let (keeper, mut lane) = scripted();
    let held = keeper.adopt(Held {
        is_manual: true,
        ..due_in(RENEW_EVERY)
    });
    assert!(timeout(TTL / 2, lane.asked()).await.is_err(), "nobody has asked");

    let confirmed = keeper.keeper.renew(held.owner);
    lane.asked().await.answer_all(renewed());
    confirmed.await.unwrap();

    let renewed_at = Instant::now();
    assert_eq!(held.belief.window().unwrap().until(), renewed_at + TTL - MARGIN);
    assert!(timeout(TTL / 2, lane.asked()).await.is_err(), "nobody has asked again");
    assert_eq!(held.belief.lost().await, LossCause::Expired);
    assert_lost_when_the_window_ends(renewed_at);
}

#[tokio::test(start_paused = true)]
async fn renewals_that_many_ask_for_at_once_go_in_one_request() {
    let (keeper, mut lane) = scripted();
    let manual = || Held {
        is_manual: true,
        ..due_in(RENEW_EVERY)
    };
    let held: Vec<_> = (0..100).map(|_| keeper.adopt(manual())).collect();

    let _confirmed: Vec<_> = held.iter().map(|held| keeper.keeper.renew(held.owner)).collect();

    assert_eq!(lane.asked().await.owners().len(), held.len());
}

#[tokio::test(start_paused = true)]
async fn close_loses_and_releases_what_is_held_and_what_comes_later() {
    let (keeper, mut lane) = scripted();
    let (held, let_go) = (keeper.adopt_one(), keeper.adopt_one());
    let_go.belief.let_go();
    keeper.keeper.let_go(let_go.owner);

    keeper.keeper.close().await;
    let late = keeper.adopt_one();

    for closed in [&held, &late] {
        assert_eq!(closed.belief.loss(), Some(LossCause::Closed));
        let Some(Request::Release(release)) = lane.requests.recv().await else {
            panic!("a release was expected");
        };
        assert_eq!(release.args.owner, closed.owner);
    }
    assert_eq!(let_go.belief.loss(), None);
    lane.asked_no_more().await;
}

fn scripted() -> (ScriptedKeeper, ScriptedLane) {
    let (lane, requests) = Lane::scripted();
    let keeper = Keeper::start(lane.clone());
    (ScriptedKeeper { keeper, lane }, ScriptedLane { requests })
}

struct ScriptedKeeper {
    keeper: Keeper,
    lane: Lane,
}

impl ScriptedKeeper {
    fn adopt_one(&self) -> Held {
        self.adopt(due_in(RENEW_EVERY))
    }

    fn adopt(&self, held: Held) -> Held {
        self.keeper.adopt(held.clone(), &self.lane);
        held
    }

    /// Until the keeper has nothing left to do at this moment.
    async fn settled(&self) {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
}

struct ScriptedLane {
    requests: mpsc::UnboundedReceiver<Request>,
}

impl ScriptedLane {
    /// The next request, which must be for renewals.
    async fn asked(&mut self) -> Asked {
        match self.requests.recv().await {
            Some(Request::Renew { leases, answers }) => Asked {
                leases,
                answers,
                attempted: Moment::now(),
            },
            other => panic!("a renewal was expected: {other:?}"),
        }
    }

    async fn asked_no_more(&mut self) {
        let asked = timeout(TTL * 10, self.requests.recv()).await;
        assert!(asked.is_err(), "asked for again: {asked:?}");
    }
}

struct Asked {
    leases: Vec<RenewRequest>,
    answers: mpsc::UnboundedSender<RenewAnswer>,
    attempted: Moment,
}

impl Asked {
    fn owners(&self) -> Vec<OwnerToken> {
        self.leases.iter().map(|lease| lease.args.owner).collect()
    }

    fn answer(&self, held: &Held, outcome: Result<RenewOutcome, Fault>) {
        assert!(self.owners().contains(&held.owner));
        self.send(held.owner, outcome);
    }

    fn answer_all(self, outcome: Result<RenewOutcome, Fault>) {
        for owner in self.owners() {
            self.send(owner, outcome.clone());
        }
    }

    fn send(&self, owner: OwnerToken, outcome: Result<RenewOutcome, Fault>) {
        let answer = RenewAnswer {
            owner,
            attempted: self.attempted,
            outcome,
        };
        self.answers.send(answer).expect("the keeper listens");
    }
}

/// A lease that was just granted, to be renewed after `renew_every`.
fn due_in(renew_every: Duration) -> Held {
    let terms = Terms::new(TTL, Some(MARGIN), Some(renew_every)).unwrap();
    Held {
        name: LockName::new("invoice:842").unwrap(),
        owner: OwnerToken::random(),
        token: FencingToken::new(41),
        terms,
        belief: Arc::new(Belief::new(Window::new(Moment::now(), TTL, MARGIN), None)),
        is_manual: false,
        hold_at_least: Duration::ZERO,
        class: "",
    }
}

fn assert_lost_when_the_window_ends(granted_at: Instant) {
    let after = granted_at.elapsed();
    // The paused clock moves by whole milliseconds.
    assert!(
        after >= TTL - MARGIN && after <= TTL - MARGIN + Duration::from_millis(2),
        "{after:?}"
    );
}

fn renewed() -> Result<RenewOutcome, Fault> {
    Ok(RenewOutcome::Renewed { expires_in: TTL })
}

fn fault() -> Fault {
    Arc::new(sqlx::Error::WorkerCrashed)
}

const TTL: Duration = Duration::from_secs(9);
const MARGIN: Duration = Duration::from_millis(100);
const RENEW_EVERY: Duration = Duration::from_secs(3);
