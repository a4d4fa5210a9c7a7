//! The roster: who of this client waits for what, and what each has been told.
//!
//! A leaf shared by the waiters themselves, the queue's task and the lane, which reads from it
//! whom a heartbeat stands for at the moment it is sent.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::info::Waiting;
use crate::name::LockName;
use crate::owner::OwnerToken;
use crate::store::{Beat, BeatOutcome, HeldBy, NotGranted, Reason, Ticket};
use crate::trust::{full_jitter, random};

#[derive(Debug, Default)]
pub(crate) struct Roster {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiters: HashMap<OwnerToken, Waiter>,
    by_ticket: HashMap<Ticket, OwnerToken>,
    /// Tickets lately given back, oldest first. A release may have chosen one in the same moment.
    left: VecDeque<(Ticket, LockName, Instant)>,
    is_closed: bool,
}

#[derive(Debug)]
struct Waiter {
    name: LockName,
    ticket: Option<Ticket>,
    /// When to ask again: it has been told to, or the present lease runs out.
    try_at: Option<Instant>,
    known: Option<Known>,
    /// It has asked and now waits to be told.
    is_asleep: bool,
    /// When it was told that its turn has come, which it has not taken yet.
    told_at: Option<Instant>,
    /// Told of every change.
    changed: Arc<Notify>,
}

/// What a waiter knows of the name it waits for.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) held_by: HeldBy,
    pub(crate) ahead: u32,
    pub(crate) is_pinned: bool,
}

impl Known {
    /// What an answer tells. That a row was locked, and not whose it is, tells nothing.
    pub(crate) fn of(answer: &NotGranted) -> Option<Self> {
        let is_known = answer.reason != Reason::Busy || answer.held_by.expires_in.is_some();
        is_known.then(|| Self {
            held_by: answer.held_by.clone(),
            ahead: answer.ahead,
            is_pinned: answer.reason == Reason::Pinned,
        })
    }

    /// The same for the application.
    pub(crate) fn told(&self) -> Waiting {
        Waiting {
            holder: self.held_by.holder.clone(),
            held_since: self.held_by.since,
            expires_in: self.held_by.expires_in,
            is_pinned: self.is_pinned,
            ahead: self.ahead,
        }
    }
}

/// What became of a wake-up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The waiter has been told.
    Told,
    /// It has left, and so the wake-up is for the next in line.
    Left(LockName),
    /// It does not wait any more: it has been granted the name, or never stood here.
    Nobody,
}

impl Roster {
    /// Adds a waiter; false when it is too late for that. The notifier tells of every change.
    pub(crate) fn add(&self, owner: OwnerToken, name: LockName) -> Arc<Notify> {
        let changed = Arc::new(Notify::new());
        let mut state = self.state();
        if !state.is_closed {
            let waiter = Waiter {
                name,
                ticket: None,
                try_at: None,
                known: None,
                is_asleep: false,
                told_at: None,
                changed: Arc::clone(&changed),
            };
            state.waiters.insert(owner, waiter);
        }
        changed
    }

    /// Removes a waiter that was granted the name. False when it was not there any more.
    pub(crate) fn granted(&self, owner: OwnerToken) -> bool {
        self.state().remove(owner).is_some()
    }

    /// Removes a waiter that has given up. False when it was not there any more.
    pub(crate) fn left(&self, owner: OwnerToken) -> bool {
        let mut state = self.state();
        let Some(waiter) = state.remove(owner) else {
            return false;
        };
        let now = Instant::now();
        while state
            .left
            .front()
            .is_some_and(|(.., left_at)| *left_at + REMEMBER_LEFT < now)
        {
            state.left.pop_front();
        }
        if let Some(ticket) = waiter.ticket {
            state.left.push_back((ticket, waiter.name, now));
        }
        true
    }

    /// The waiter is about to ask: what it was told before is done with.
    pub(crate) fn asks(&self, owner: OwnerToken) {
        if let Some(waiter) = self.state().waiters.get_mut(&owner) {
            waiter.try_at = None;
            waiter.is_asleep = false;
        }
    }

    /// The waiter has asked, and waits to be told to ask again.
    pub(crate) fn sleeps(&self, owner: OwnerToken) {
        if let Some(waiter) = self.state().waiters.get_mut(&owner) {
            waiter.is_asleep = true;
        }
    }

    /// Writes down what the database answered. True when the waiter has only now come to stand in
    /// line, so that it must look again: what happened before that, nobody tells it.
    pub(crate) fn answered(&self, owner: OwnerToken, answer: &NotGranted) -> bool {
        let mut state = self.state();
        let Some(waiter) = state.waiters.get_mut(&owner) else {
            return false;
        };
        let is_news = answer.ticket.is_some() && answer.ticket != waiter.ticket;
        // It was told too early, or that was not for this turn.
        if matches!(answer.reason, Reason::Held | Reason::Queued) && waiter.try_at.is_none() {
            waiter.told_at = None;
        }
        if let Some(known) = Known::of(answer) {
            waiter.knows(known);
        }
        if is_news {
            let old = std::mem::replace(&mut waiter.ticket, answer.ticket);
            state.forget(old, owner);
            answer.ticket.map(|ticket| state.by_ticket.insert(ticket, owner));
        }
        is_news
    }

    /// Wakes the waiter with the ticket.
    pub(crate) fn wake(&self, ticket: Ticket) -> Woken {
        let mut state = self.state();
        if let Some(owner) = state.by_ticket.get(&ticket).copied()
            && let Some(waiter) = state.waiters.get_mut(&owner)
        {
            waiter.told_at.get_or_insert_with(Instant::now);
            waiter.try_now();
            return Woken::Told;
        }
        match state.left.iter().find(|(left, ..)| *left == ticket) {
            Some((_, name, _)) => Woken::Left(name.clone()),
            None => Woken::Nobody,
        }
    }

    /// Takes in a heartbeat's answers. True when one of the waiters could have asked and had not
    /// been told: notifications do not come through, or its turn came by another's silence.
    pub(crate) fn beaten(&self, beats: Vec<Beat>) -> bool {
        let mut state = self.state();
        let mut is_overdue = false;
        for beat in beats {
            let Some(waiter) = state.waiters.get_mut(&beat.owner) else {
                continue;
            };
            match beat.outcome {
                // One that has not been answered yet is on its way.
                _ if waiter.ticket.is_none() => {}
                BeatOutcome::Unknown => {
                    let ticket = waiter.ticket.take();
                    waiter.try_now();
                    state.forget(ticket, beat.owner);
                }
                BeatOutcome::Try => {
                    if waiter.is_asleep && waiter.try_at.is_none_or(|at| at > Instant::now()) {
                        is_overdue = true;
                        waiter.told_at.get_or_insert_with(Instant::now);
                    }
                    let is_pinned = waiter.known.as_ref().is_some_and(|known| known.is_pinned);
                    waiter.knows(Known {
                        held_by: beat.held_by,
                        ahead: beat.ahead,
                        is_pinned,
                    });
                    waiter.try_now();
                }
                BeatOutcome::Wait => {
                    waiter.knows(Known {
                        held_by: beat.held_by,
                        ahead: beat.ahead,
                        is_pinned: false,
                    });
                    waiter.changed.notify_one();
                }
            }
        }
        is_overdue
    }

    /// Wakes everybody and lets nobody in. Returns those who stood in line.
    pub(crate) fn close(&self) -> Vec<OwnerToken> {
        let mut state = self.state();
        state.is_closed = true;
        state.by_ticket.clear();
        state
            .waiters
            .drain()
            .map(|(owner, waiter)| {
                waiter.changed.notify_one();
                owner
            })
            .collect()
    }

    /// When the waiter is to ask again. One that is not there any more, at once.
    pub(crate) fn try_at(&self, owner: OwnerToken) -> Option<Instant> {
        let state = self.state();
        match state.waiters.get(&owner) {
            Some(waiter) => waiter.try_at,
            None => Some(Instant::now()),
        }
    }

    /// When the waiter was told that its turn has come, if it was.
    pub(crate) fn told_at(&self, owner: OwnerToken) -> Option<Instant> {
        self.state().waiters.get(&owner)?.told_at
    }

    pub(crate) fn known(&self, owner: OwnerToken) -> Option<Known> {
        self.state().waiters.get(&owner)?.known.clone()
    }

    /// All who wait at this moment.
    pub(crate) fn owners(&self) -> Vec<OwnerToken> {
        self.state().waiters.keys().copied().collect()
    }

    /// Whether anybody stands in line, as far as the database has said.
    pub(crate) fn is_anybody_waiting(&self) -> bool {
        self.state().waiters.values().any(|waiter| waiter.known.is_some())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, owner: OwnerToken) -> Option<Waiter> {
        let waiter = self.waiters.remove(&owner)?;
        self.forget(waiter.ticket, owner);
        Some(waiter)
    }

    /// The ticket is not this waiter's any more. It may be another's: after a crash the numbers begin
    /// anew, and the old ones are heard of for a while yet.
    fn forget(&mut self, ticket: Option<Ticket>, owner: OwnerToken) {
        if let Some(ticket) = ticket
            && self.by_ticket.get(&ticket) == Some(&owner)
        {
            self.by_ticket.remove(&ticket);
        }
    }
}

impl Waiter {
    /// The first in line asks by itself when the present lease runs out: a little late rather than
    /// a little early, which would cost one more question.
    fn knows(&mut self, known: Known) {
        let late = full_jitter(LATE, LATE, 0, random());
        let runs_out = known.held_by.expires_in.filter(|_| known.ahead == 0);
        // What it was told meanwhile is not taken back.
        if self.try_at.is_none_or(|at| at > Instant::now()) {
            self.try_at = runs_out.map(|left| Instant::now() + left + late);
        }
        self.known = Some(known);
    }

    fn try_now(&mut self) {
        self.try_at = Some(Instant::now());
        self.changed.notify_one();
    }
}

const LATE: Duration = Duration::from_millis(4);

/// Longer than any release takes to commit that has chosen a waiter who then left.
const REMEMBER_LEFT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::OwnerToken;

    fn name() -> LockName {
        LockName::new("a").expect("it is short")
    }

    fn queued(ticket: Ticket, ahead: u32, expires_in: Option<Duration>) -> NotGranted {
        NotGranted {
            reason: Reason::Queued,
            held_by: HeldBy {
                expires_in,
                ..HeldBy::default()
            },
            ahead,
            ticket: Some(ticket),
        }
    }

    fn beat(owner: OwnerToken, outcome: BeatOutcome) -> Beat {
        Beat {
            owner,
            outcome,
            held_by: HeldBy::default(),
            ahead: 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_in_line_asks_when_the_lease_runs_out_and_the_others_do_not() {
        let (roster, first, second) = (Roster::default(), OwnerToken::random(), OwnerToken::random());
        roster.add(first, name());
        roster.add(second, name());

        roster.answered(first, &queued(1, 0, Some(Duration::from_secs(3))));
        roster.answered(second, &queued(2, 1, Some(Duration::from_secs(3))));

        let try_at = roster.try_at(first).expect("it is first") - Instant::now();
        assert!(try_at >= Duration::from_secs(3) && try_at <= Duration::from_secs(3) + LATE);
        assert_eq!(roster.try_at(second), None);
    }

    #[test]
    fn waiter_looks_again_once_for_each_ticket() {
        let (roster, owner) = (Roster::default(), OwnerToken::random());
        roster.add(owner, name());

        assert!(roster.answered(owner, &queued(7, 0, None)));
        assert!(!roster.answered(owner, &queued(7, 0, None)));
        roster.beaten(vec![beat(owner, BeatOutcome::Unknown)]);
        // After a crash the numbers begin anew.
        assert!(roster.answered(owner, &queued(7, 0, None)));
        assert!(roster.answered(owner, &queued(8, 0, None)));
        assert_eq!(roster.wake(7), Woken::Nobody);
        assert_eq!(roster.wake(8), Woken::Told);
    }

    #[test]
    fn ticket_that_a_crash_has_given_to_another_is_not_taken_from_him_by_whoever_had_it_before() {
        let roster = Roster::default();
        for goes in [
            &(|old| assert!(roster.left(old))) as &dyn Fn(OwnerToken),
            &|old| assert!(roster.granted(old)),
            &|old| assert!(!roster.beaten(vec![beat(old, BeatOutcome::Unknown)])),
            &|old| assert!(roster.answered(old, &queued(8, 1, None))),
        ] {
            let (old, new) = (OwnerToken::random(), OwnerToken::random());
            roster.add(old, name());
            roster.add(new, name());
            roster.answered(old, &queued(7, 0, None));
            roster.answered(new, &queued(7, 0, None));

            goes(old);

            assert_eq!(roster.wake(7), Woken::Told);
            roster.granted(new);
        }
    }

    #[test]
    fn wake_up_that_comes_while_the_waiter_asks_is_not_forgotten() {
        let (roster, owner) = (Roster::default(), OwnerToken::random());
        roster.add(owner, name());
        roster.answered(owner, &queued(7, 0, None));

        roster.asks(owner);
        roster.wake(7);
        roster.answered(owner, &queued(7, 0, Some(Duration::from_secs(60))));

        assert!(roster.try_at(owner).expect("it was told") <= Instant::now());
    }

    #[test]
    fn turn_counts_from_the_first_wake_up_until_an_answer_says_that_it_is_not_yet() {
        let (roster, owner) = (Roster::default(), OwnerToken::random());
        roster.add(owner, name());
        roster.answered(owner, &queued(7, 0, None));
        assert_eq!(roster.told_at(owner), None);

        roster.wake(7);
        let told_at = roster.told_at(owner);
        roster.asks(owner);
        roster.answered(owner, &NotGranted::busy());
        roster.wake(7);
        assert!(told_at.is_some() && roster.told_at(owner) == told_at);

        roster.asks(owner);
        roster.answered(owner, &queued(7, 0, None));
        assert_eq!(roster.told_at(owner), None);

        roster.sleeps(owner);
        roster.beaten(vec![beat(owner, BeatOutcome::Wait)]);
        assert_eq!(roster.told_at(owner), None);
        roster.beaten(vec![beat(owner, BeatOutcome::Try)]);
        assert!(roster.told_at(owner).is_some());
    }

    #[test]
    fn wake_up_for_one_who_left_is_for_the_next_and_for_one_who_was_granted_for_nobody() {
        let (roster, left, granted) = (Roster::default(), OwnerToken::random(), OwnerToken::random());
        roster.add(left, name());
        roster.add(granted, name());
        roster.answered(left, &queued(1, 0, None));
        roster.answered(granted, &queued(2, 1, None));

        assert!(roster.left(left) && roster.granted(granted));

        assert_eq!(roster.wake(1), Woken::Left(name()));
        assert_eq!(roster.wake(2), Woken::Nobody);
        assert_eq!(roster.wake(3), Woken::Nobody);
        assert!(roster.owners().is_empty());
    }

    #[test]
    fn only_a_waiter_that_was_not_told_before_is_overdue() {
        let (roster, owner) = (Roster::default(), OwnerToken::random());
        roster.add(owner, name());
        assert!(!roster.beaten(vec![beat(owner, BeatOutcome::Try)]), "it is on its way");
        roster.answered(owner, &queued(1, 0, None));
        assert!(
            !roster.beaten(vec![beat(owner, BeatOutcome::Try)]),
            "it is about to look again"
        );
        roster.asks(owner);
        roster.sleeps(owner);

        assert!(roster.beaten(vec![beat(owner, BeatOutcome::Try)]));
        assert!(!roster.beaten(vec![beat(owner, BeatOutcome::Try)]), "it has been told");
        roster.asks(owner);
        roster.wake(1);
        assert!(!roster.beaten(vec![beat(owner, BeatOutcome::Try)]), "it has been told");
        assert!(!roster.beaten(vec![beat(owner, BeatOutcome::Wait)]));
    }

    #[test]
    fn closing_wakes_all_and_lets_nobody_in() {
        let (roster, owner) = (Roster::default(), OwnerToken::random());
        roster.add(owner, name());

        assert_eq!(roster.close(), [owner]);

        assert!(
            roster.try_at(owner).is_some(),
            "it asks, and is told that all is closed"
        );
        roster.add(owner, name());
        assert!(roster.owners().is_empty() && !roster.left(owner));
    }
}
