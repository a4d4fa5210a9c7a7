//! Who stands in line, told whatever the database and any role's notifications may say.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::input::Input;
use crate::name::LockName;
use crate::owner::OwnerToken;
use crate::roster::{Roster, Woken};
use crate::store::answers::{ahead, duration, ticket};
use crate::store::{Beat, BeatOutcome, HeldBy, NotGranted, Reason, Ticket};

/// The roster beside a model of it, in any order of answers, heartbeats, wake-ups, leavings and grants:
/// a wake-up reaches the waiter that was last told this ticket and nobody else, one who left passes it on,
/// and nothing wakes the dead.
pub fn line(data: &[u8]) {
    let mut input = Input::new(data);
    let (roster, mut model) = (Roster::default(), Model::default());
    let owners: [OwnerToken; 4] = std::array::from_fn(|_| OwnerToken::random());
    let name = LockName::new("a").expect("it is short");
    while !input.is_empty() {
        let owner = owners[input.choice(owners.len())];
        match input.choice(9) {
            0 if !model.waiting.contains_key(&owner) => {
                roster.add(owner, name.clone());
                if !model.is_closed {
                    model.waiting.insert(owner, None);
                }
            }
            1 => {
                roster.asks(owner);
                assert_eq!(roster.try_at(owner).is_none(), model.waiting.contains_key(&owner));
            }
            2 | 3 => answered(&mut input, &roster, &mut model, owner),
            4 => woken(&mut input, &roster, &mut model, &name),
            5 => {
                let was_there = model.waiting.remove(&owner);
                assert_eq!(roster.left(owner), was_there.is_some());
                if let Some(ticket) = was_there.flatten() {
                    model.free(ticket, owner);
                    model.left.push(ticket);
                }
            }
            6 => {
                let was_there = model.waiting.remove(&owner);
                assert_eq!(roster.granted(owner), was_there.is_some());
                if let Some(ticket) = was_there.flatten() {
                    model.free(ticket, owner);
                }
            }
            7 => beaten(&mut input, &roster, &mut model, owner),
            8 if input.byte() == 0xFF => {
                assert_eq!(roster.close().len(), model.waiting.len());
                model.waiting.clear();
                model.told.clear();
                model.is_closed = true;
            }
            _ => roster.sleeps(owner),
        }
        let mut there = roster.owners();
        let mut expected: Vec<_> = model.waiting.keys().copied().collect();
        there.sort();
        expected.sort();
        assert_eq!(there, expected);
    }
}

#[derive(Default)]
struct Model {
    /// The ticket that each was last told.
    waiting: HashMap<OwnerToken, Option<Ticket>>,
    /// Whose a ticket is: the last who was told it.
    told: HashMap<Ticket, OwnerToken>,
    left: Vec<Ticket>,
    is_closed: bool,
}

impl Model {
    fn free(&mut self, ticket: Ticket, owner: OwnerToken) {
        if self.told.get(&ticket) == Some(&owner) {
            self.told.remove(&ticket);
        }
    }
}

fn answered(input: &mut Input<'_>, roster: &Roster, model: &mut Model, owner: OwnerToken) {
    let answer = NotGranted {
        reason: input.one_of(&[Reason::Held, Reason::Queued, Reason::Pinned, Reason::Busy]),
        held_by: held_by(input),
        ahead: ahead(input.option(|input| i32::from(input.byte() as i8))),
        ticket: input.option(|input| Ticket::from(input.byte() % 8)),
    };
    let before = model.waiting.get(&owner).copied();
    let is_news = before.is_some_and(|before| answer.ticket.is_some() && before != answer.ticket);

    assert_eq!(roster.answered(owner, &answer), is_news, "{answer:?} after {before:?}");

    if is_news && let Some(ticket) = answer.ticket {
        if let Some(old) = before.flatten() {
            model.free(old, owner);
        }
        model.waiting.insert(owner, Some(ticket));
        model.told.insert(ticket, owner);
    }
    if before.is_some() && answer.ahead == 0 && !is_unknown(&answer) && answer.held_by.expires_in.is_some() {
        assert!(roster.try_at(owner).is_some(), "the first asks when the lease runs out");
    }
}

fn is_unknown(answer: &NotGranted) -> bool {
    answer.reason == Reason::Busy && answer.held_by.expires_in.is_none()
}

fn woken(input: &mut Input<'_>, roster: &Roster, model: &mut Model, name: &LockName) {
    let payload = match input.choice(3) {
        0 => input.text(),
        _ => (input.byte() % 8).to_string(),
    };
    let Some(ticket) = ticket(&payload) else { return };
    match (model.told.get(&ticket), roster.wake(ticket)) {
        (Some(owner), Woken::Told) => {
            assert!(roster.try_at(*owner).expect("it was told") <= Instant::now());
        }
        (None, Woken::Left(of)) => assert!(model.left.contains(&ticket) && of == *name),
        (None, Woken::Nobody) => assert!(!model.left.contains(&ticket)),
        (expected, woken) => panic!("{woken:?}, expected {expected:?}"),
    }
}

fn beaten(input: &mut Input<'_>, roster: &Roster, model: &mut Model, owner: OwnerToken) {
    let outcome = input.one_of(&[BeatOutcome::Try, BeatOutcome::Wait, BeatOutcome::Unknown]);
    let beat = Beat {
        owner,
        outcome,
        held_by: held_by(input),
        ahead: u32::from(input.byte()),
    };
    let ticket = model.waiting.get(&owner).copied().flatten();

    let is_overdue = roster.beaten(vec![beat]);

    assert!(!is_overdue || (outcome == BeatOutcome::Try && ticket.is_some()));
    if let Some(ticket) = ticket {
        if outcome != BeatOutcome::Wait {
            assert!(roster.try_at(owner).expect("it was told") <= Instant::now());
        }
        if outcome == BeatOutcome::Unknown {
            model.free(ticket, owner);
            model.waiting.insert(owner, None);
        }
    }
}

fn held_by(input: &mut Input<'_>) -> HeldBy {
    HeldBy {
        holder: None,
        since: None,
        expires_in: input.option(|input| match input.flag() {
            true => Duration::from_millis(u64::from(input.byte())),
            false => duration(&input.interval()),
        }),
    }
}
