//! The lease as a model: clients, messages, the server and what befalls it, for one name.
//!
//! A statement is one atomic step of [`database`], but where a variant takes its parts asunder. In
//! between, messages are lost, clients pause, time goes on. [`steps`] has what each step does.

mod client;
mod database;
mod steps;
mod symmetry;

use std::sync::Arc;

use stateright::{Model, Property};

use crate::invariant::{Broken, Counters, Invariant};
use client::{Call, Client, Fenced, Request};
use database::{Database, Owner};

/// One configuration of the model.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(crate) bounds: Bounds,
    pub(crate) fault: Fault,
    pub(crate) variant: Variant,
    /// What must hold. The others of [`Invariant::OF_LEASES`] are counted, unless it is a variant.
    pub(crate) asserted: Vec<Invariant>,
    pub(crate) counted: Arc<Counters>,
}

/// Everything else is unbounded, time too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) clients: u8,
    /// Acquisitions by each client, each with an owner token of its own.
    pub(crate) acquisitions: u8,
    /// Grants in all: one owner token may be granted the name again after it ran out.
    pub(crate) grants: u8,
    /// In ticks, as is the margin of the trust window.
    pub(crate) ttl: i8,
    pub(crate) margin: i8,
    /// Given-up statements, which may be executed later: none, or one per client.
    pub(crate) ghosts: bool,
    /// Fenced transactions: none, in read committed, or in repeatable read too.
    pub(crate) fences: Fences,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fences {
    None,
    ReadCommitted,
    RepeatableReadToo,
}

/// What befalls the server, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A crash, with or without the last flush: what did not wait for one is lost.
    Crash,
    /// A step of the clock, forward or back, by one tick.
    ClockStep,
    /// The promotion of a standby that has any earlier state.
    LaggingStandby,
    /// The promotion of a standby that grants and renewals wait for.
    SynchronousStandby,
    /// A volume rolled back to any earlier state, which cannot be seen.
    Rollback,
    /// The same, and the operator calls `leasehold.advance_epoch()`.
    RollbackAndAdvance,
    /// None to the server: the clients' clocks may fall behind by a tick more than the margin.
    SlowClients,
}

/// The protocol, or what it could have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    AsItIs,
    TokenBeforeLock,
    GrantWithoutForUpdate,
    PlainSelectFence,
    FenceAtLeast,
    FenceWithoutOwner,
    ReleaseWithoutOwner,
    RenewWithoutOwner,
    RenewRevives,
    WindowFromReply,
    BeliefUntilReleased,
    LateAnswerRevives,
    NoEpoch,
    GrantWithoutFlush,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    database: Database,
    /// What a crash leaves.
    flushed: Database,
    /// What a standby or a backup has.
    copy: Database,
    /// Faults still to come.
    faults: u8,
    clients: Vec<Client>,

    /// Who was promised the name for how long, by whatever server.
    promised: Vec<(Owner, i8)>,
    /// How many grants there were, on whatever server, and the highest token among them.
    grants: u8,
    highest: u8,
    broken: Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    StepClock(i8),
    Sweep,
    Crash {
        is_flushed: bool,
    },
    Replicate,
    Fail,

    Acquire(usize),
    Renew(usize),
    Release(usize),
    /// The token of an acquire under way, before its row is locked: a variant.
    Draw(usize),
    Execute(usize),
    ExecuteGhost(usize),
    LoseRequest(usize),
    GiveUp(usize),
    LoseAnswer(usize),
    /// How far the client's clock falls behind in the window that begins.
    Receive(usize, i8),
    Retry(usize),
    Abandon(usize),
    Forget(usize),

    BeginFenced(usize),
    Fence(usize),
    EndFenced(usize),
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            acquisitions: self.bounds.acquisitions,
            ..Client::default()
        };
        vec![State {
            database: Database::default(),
            flushed: Database::default(),
            copy: Database::default(),
            faults: u8::from(self.fault != Fault::None),
            clients: vec![client; usize::from(self.bounds.clients)],
            promised: Vec::new(),
            grants: 0,
            highest: 0,
            broken: Broken::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Tick, Action::Sweep]);
        if state.faults > 0 {
            match self.fault {
                Fault::None | Fault::SlowClients => {}
                Fault::Crash => actions.extend([true, false].map(|is_flushed| Action::Crash { is_flushed })),
                Fault::ClockStep => actions.extend([1, -1].map(Action::StepClock)),
                Fault::SynchronousStandby | Fault::LaggingStandby | Fault::Rollback | Fault::RollbackAndAdvance => {
                    actions.extend([Action::Replicate, Action::Fail])
                }
            }
        }
        for (index, client) in state.clients.iter().enumerate() {
            self.calls(index, client, actions);
            self.fences(index, client, actions);
            if client.ghost.is_some() {
                actions.push(Action::ExecuteGhost(index));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.broken = Broken::default();
        self.step(&mut next, action)?;
        self.judge(&mut next);
        next.normalise();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all = [
            Property::always(Invariant::TokensRise.name(), holds::<0>),
            Property::always(Invariant::OwnGrantAlone.name(), holds::<1>),
            Property::always(Invariant::FenceHoldsOff.name(), holds::<2>),
            Property::always(Invariant::StaleWriteRefused.name(), holds::<3>),
            Property::always(Invariant::OneOwner.name(), holds::<4>),
            Property::always(Invariant::BeliefEndsFirst.name(), holds::<5>),
        ];
        Invariant::OF_LEASES
            .into_iter()
            .zip(all)
            .filter(|(invariant, _)| self.variant == Variant::AsItIs || self.asserted.contains(invariant))
            .map(|(_, property)| property)
            .collect()
    }
}

impl Leases {
    /// What a client may do next with its lane and its lease.
    fn calls(&self, index: usize, client: &Client, actions: &mut Vec<Action>) {
        match client.call {
            Call::None if client.owner == 0 && client.acquisitions > 0 => actions.push(Action::Acquire(index)),
            Call::None if client.held().is_some() => actions.extend([Action::Renew(index), Action::Release(index)]),
            // Lost, or let go. An application that has not noticed may have a transaction open.
            Call::None if client.owner != 0 && client.fenced == Fenced::None => actions.push(Action::Forget(index)),
            Call::None => {}
            Call::Sent { request, drawn, .. } => {
                let draws_now = self.variant == Variant::TokenBeforeLock && request == Request::Acquire && drawn == 0;
                actions.push(if draws_now {
                    Action::Draw(index)
                } else {
                    Action::Execute(index)
                });
                actions.push(Action::LoseRequest(index));
                if self.bounds.ghosts && client.ghost.is_none() {
                    actions.push(Action::GiveUp(index));
                }
            }
            Call::Answered { .. } => {
                actions.push(Action::LoseAnswer(index));
                actions.extend((0..=self.most_lag()).map(|lag| Action::Receive(index, lag)));
            }
            Call::Unanswered(_) => actions.extend([Action::Retry(index), Action::Abandon(index)]),
        }
    }

    /// How far a client's clock may fall behind in one window.
    fn most_lag(&self) -> i8 {
        self.bounds.margin + i8::from(self.fault == Fault::SlowClients)
    }

    fn fences(&self, index: usize, client: &Client, actions: &mut Vec<Action>) {
        match client.fenced {
            Fenced::None if client.lease.is_some() && self.bounds.fences != Fences::None => {
                actions.push(Action::Fence(index));
                if self.bounds.fences == Fences::RepeatableReadToo {
                    actions.push(Action::BeginFenced(index));
                }
            }
            Fenced::None => {}
            Fenced::Begun { .. } => actions.extend([Action::Fence(index), Action::EndFenced(index)]),
            Fenced::Passed { .. } => actions.push(Action::EndFenced(index)),
        }
    }
}

/// Whether the step into this state has kept the invariant. What is not asserted is counted.
fn holds<const INDEX: usize>(model: &Leases, state: &State) -> bool {
    let invariant = Invariant::OF_LEASES[INDEX];
    if !state.broken.has(invariant) {
        return true;
    }
    if model.asserted.contains(&invariant) {
        return false;
    }
    model.counted.count(invariant);
    true
}
