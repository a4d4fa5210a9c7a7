//! The queue as a model: waiters, whoever lets the name go, and the notifications between them.
//!
//! Here a statement is not one step: other sessions see nothing of it until it commits, and each of
//! its parts sees what is committed when that part begins, as in read committed. There is no clock:
//! a lease lasts as long as its holder likes, and a dead one's runs out some time.
//!
//! Without deaths there is no heartbeat either: no wake-up may be lost that it would have to mend.

mod steps;
mod symmetry;

use std::sync::Arc;

use stateright::{Model, Property};

use crate::invariant::{Counters, Invariant};

/// One configuration of the model.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) clients: u8,
    /// How often each asks for the name.
    pub(crate) turns: u8,
    /// How many waiters in all give up.
    pub(crate) leaves: u8,
    pub(crate) fault: Fault,
    /// Whether clients send heartbeats.
    pub(crate) heartbeats: bool,
    pub(crate) variant: Variant,
    /// Whether it must hold that nobody sleeps on; else it is counted.
    pub(crate) is_asserted: bool,
    pub(crate) counted: Arc<Counters>,
}

/// What befalls them, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A holder or a waiter dies.
    Death,
    /// The server crashes, and the line is empty.
    Crash,
}

/// The queue, or what it could have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    AsItIs,
    SleepsWithoutLooking,
    ReleaseWithoutMark,
    LeaveWithoutMark,
    RowBeforeMark,
    WakeForgotten,
    LeaveTellsNobody,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// Who has the name, as committed.
    owner: Option<u8>,
    /// Whose uncommitted statement has locked its row.
    locked_by: Option<u8>,
    /// `leasehold.waiters`, as committed: the ticket and the client, in the order of the tickets.
    line: Vec<(u8, u8)>,
    last_ticket: u8,
    clients: Vec<Client>,
    /// Notifications on their way: the ticket and the client.
    told: Vec<(u8, u8)>,
    /// `leasehold.wake`, on its way: a notification was for somebody who had left.
    passes: u8,
    leaves: u8,
    faults: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Client {
    turns: u8,
    /// The ticket it knows it has. What it has been told for another is not for it.
    ticket: Option<u8>,
    /// Tickets that it gave back.
    left: Vec<u8>,
    /// It has been told to ask again, since it last asked.
    is_told: bool,
    /// The client's row has not run out.
    is_alive: bool,
    at: Stage,
}

/// How far a client is in what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Out,
    /// `leasehold.acquire`, about to look at the queue. One that does not wait never stands in line.
    Asks {
        waits: bool,
    },
    /// It has looked; about to lock the row if that is free and promised to nobody ahead.
    Locks {
        waits: bool,
        is_promised: bool,
    },
    /// It has locked the row; about to commit the grant.
    Granted,
    /// It has not; about to look for its ticket, and for the mark.
    LooksForMark {
        row: Option<bool>,
    },
    /// About to read the row.
    ReadsRow {
        place: Option<u8>,
        is_changing: bool,
    },
    /// It has put itself in line; about to commit.
    Queues {
        ticket: u8,
    },
    /// Committed; the answer is on its way.
    Queued {
        ticket: u8,
    },
    Asleep,
    /// `leasehold.leave`, about to look who is next; the queue is marked.
    Leaves {
        ticket: Option<u8>,
    },
    /// It has looked; about to commit.
    Left {
        ticket: u8,
        next: Option<(u8, u8)>,
    },
    Holds,
    /// `leasehold.release`: the row is locked, the queue marked; about to look for waiters.
    Releases,
    /// It has looked; about to commit.
    Released {
        next: Option<(u8, u8)>,
    },
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Ask {
        client: u8,
        waits: bool,
    },
    /// The next part of the statement under way, or what follows from its answer.
    Go(u8),
    Wake(u8),
    Release(u8),
    Leave(u8),
    Deliver(usize),
    PassOn,
    Heartbeat(u8),
    Die(u8),
    /// A dead holder's lease runs out, or a dead client's row.
    RunOut(u8),
    Crash,
}

impl Model for Queue {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            turns: self.turns,
            ticket: None,
            left: Vec::new(),
            is_told: false,
            is_alive: true,
            at: Stage::Out,
        };
        vec![State {
            owner: None,
            locked_by: None,
            line: Vec::new(),
            last_ticket: 0,
            clients: vec![client; usize::from(self.clients)],
            told: Vec::new(),
            passes: 0,
            leaves: self.leaves,
            faults: u8::from(self.fault != Fault::None),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend((0..state.told.len()).map(Action::Deliver));
        if state.passes > 0 {
            actions.push(Action::PassOn);
        }
        if state.faults > 0 && self.fault == Fault::Crash {
            actions.push(Action::Crash);
        }
        for (index, client) in state.clients.iter().enumerate() {
            let index = index as u8;
            let may_die = state.faults > 0 && self.fault == Fault::Death;
            match client.at {
                Stage::Out if client.turns > 0 => {
                    actions.extend([true, false].map(|waits| Action::Ask { client: index, waits }));
                }
                Stage::Out => {}
                Stage::Asleep => {
                    if client.is_told {
                        actions.push(Action::Wake(index));
                    } else if self.heartbeats && state.is_due(index) {
                        actions.push(Action::Heartbeat(index));
                    }
                    if state.leaves > 0 {
                        actions.push(Action::Leave(index));
                    }
                    if may_die {
                        actions.push(Action::Die(index));
                    }
                }
                Stage::Holds => {
                    actions.push(Action::Release(index));
                    if may_die {
                        actions.push(Action::Die(index));
                    }
                }
                Stage::Dead => {
                    if client.is_alive || state.owner == Some(index) {
                        actions.push(Action::RunOut(index));
                    }
                }
                _ => actions.push(Action::Go(index)),
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        next.normalise();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(Invariant::NobodySleepsOn.name(), nobody_sleeps_on)]
    }
}

fn nobody_sleeps_on(model: &Queue, state: &State) -> bool {
    if !state.somebody_sleeps_on(model.heartbeats) {
        return true;
    }
    if !model.is_asserted {
        model.counted.count(Invariant::NobodySleepsOn);
    }
    !model.is_asserted
}

impl State {
    /// Whether somebody sleeps although the name is free, and nothing is on its way or under way
    /// that could change it.
    fn somebody_sleeps_on(&self, heartbeats: bool) -> bool {
        let is_quiet = |client: &Client| match client.at {
            Stage::Out => true,
            Stage::Asleep => !client.is_told,
            Stage::Dead => !client.is_alive || !heartbeats,
            _ => false,
        };
        let sleeps = |client: &Client| client.at == Stage::Asleep;
        let is_mended = |index: usize| heartbeats && self.is_due(index as u8);
        self.owner.is_none()
            && self.told.is_empty()
            && self.passes == 0
            && self.clients.iter().all(is_quiet)
            && self.clients.iter().any(sleeps)
            && !(0..self.clients.len()).any(|index| sleeps(&self.clients[index]) && is_mended(index))
    }

    /// What `leasehold.heartbeat` finds: the sleeper could ask, or has lost its place.
    fn is_due(&self, index: u8) -> bool {
        match self.line.iter().find(|(_, client)| *client == index) {
            Some((ticket, _)) => self.owner.is_none() && self.ahead(*ticket) == 0,
            None => true,
        }
    }

    /// `leasehold.ahead`.
    fn ahead(&self, ticket: u8) -> u8 {
        self.live().filter(|(other, _)| *other < ticket).count() as u8
    }

    /// `leasehold.live_waiters`.
    fn live(&self) -> impl Iterator<Item = (u8, u8)> + '_ {
        let is_alive = |client: u8| self.clients[usize::from(client)].is_alive;
        self.line.iter().copied().filter(move |(_, client)| is_alive(*client))
    }
}
