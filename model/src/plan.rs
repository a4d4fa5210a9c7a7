//! What is run of the protocol as it is: each configuration, with what must hold in it.

use std::sync::Arc;

use crate::invariant::{Counters, Invariant};
use crate::lease::{self, Bounds, Fault, Fences, Leases};
use crate::queue::{self, Queue};
use crate::report::{self, Report};

/// One run of the checker.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) title: &'static str,
    pub(crate) model: Model,
}

#[derive(Debug)]
pub(crate) enum Model {
    Leases(Leases),
    Queue(Queue),
}

impl Run {
    /// Goes through the state space.
    pub(crate) fn report(self) -> Report {
        let title = self.title;
        match self.model {
            Model::Leases(model) => {
                let bounds = bounds_of_leases(&model.bounds);
                let is_variant = model.variant != lease::Variant::AsItIs;
                let (asserted, counted) = (model.asserted.clone(), Arc::clone(&model.counted));
                let checked = &Invariant::OF_LEASES;
                Report::new(
                    title,
                    bounds,
                    is_variant,
                    checked,
                    &asserted,
                    &counted,
                    report::check(model),
                )
            }
            Model::Queue(model) => {
                let bounds = bounds_of_queue(&model);
                let is_variant = model.variant != queue::Variant::AsItIs;
                let asserted = if model.is_asserted {
                    &[Invariant::NobodySleepsOn][..]
                } else {
                    &[]
                };
                let counted = Arc::clone(&model.counted);
                let checked = &[Invariant::NobodySleepsOn];
                Report::new(
                    title,
                    bounds,
                    is_variant,
                    checked,
                    asserted,
                    &counted,
                    report::check(model),
                )
            }
        }
    }
}

/// The protocol as it is.
pub(crate) fn protocol() -> Vec<Run> {
    let mut runs = vec![
        holds("lost messages, fenced transactions", TWICE, Fault::None, ALL),
        holds("a longer ttl", Bounds { ttl: 3, ..TWICE }, Fault::None, ALL),
        holds("one more grant", Bounds { grants: 4, ..TWICE }, Fault::None, ALL),
        holds("three clients", THREE_TWICE, Fault::None, ALL),
        holds("given-up statements, fenced", GHOSTS, Fault::None, ALL),
        holds("given-up statements, two each", GHOSTS_TWICE, Fault::None, ALL),
        holds("given-up statements, three clients", GHOSTS_OF_THREE, Fault::None, ALL),
        holds("crash, last flush or not", TWICE, Fault::Crash, ALL),
        holds("the same, three clients", THREE, Fault::Crash, ALL),
        holds("synchronous standby promoted", FENCED, Fault::SynchronousStandby, ALL),
        holds("lagging standby promoted", FENCED, Fault::LaggingStandby, WHEN_LOST),
        holds("the same, three clients", THREE, Fault::LaggingStandby, WHEN_LOST),
        holds(
            "volume rolled back, epoch advanced",
            FENCED,
            Fault::RollbackAndAdvance,
            WHEN_LOST,
        ),
        holds("volume rolled back, unseen", FENCED, Fault::Rollback, ALWAYS),
        holds("server's clock stepped", FENCED, Fault::ClockStep, WHEN_LOST),
        holds("clients slower than the margin", FENCED, Fault::SlowClients, WHEN_SLOW),
    ];
    runs.extend(waiting());
    runs
}

/// As much of it as a debug build goes through in seconds.
#[cfg(test)]
pub(crate) fn small() -> Vec<Run> {
    let once = Bounds {
        acquisitions: 1,
        grants: 2,
        ..TWICE
    };
    let mut runs = vec![
        holds("once each", once, Fault::None, ALL),
        holds("once each, crash", once, Fault::Crash, ALL),
        holds(
            "once each, lagging standby",
            Bounds {
                fences: Fences::ReadCommitted,
                ..once
            },
            Fault::LaggingStandby,
            WHEN_LOST,
        ),
    ];
    runs.extend([
        waits("three waiters", 3, 1, 1, queue::Fault::None, false, true),
        waits("three waiters, deaths", 3, 1, 1, queue::Fault::Death, true, true),
        waits("three waiters, crash", 3, 1, 1, queue::Fault::Crash, true, true),
    ]);
    runs
}

fn waiting() -> [Run; 5] {
    use queue::Fault::{Crash, Death, None};
    [
        waits("no heartbeat", 3, 2, 1, None, false, true),
        waits("no heartbeat, a longer line", 4, 1, 3, None, false, true),
        waits("deaths, heartbeats", 4, 1, 1, Death, true, true),
        waits("crash, heartbeats", 4, 1, 1, Crash, true, true),
        waits("deaths, no heartbeat", 3, 1, 1, Death, false, false),
    ]
}

fn holds(title: &'static str, bounds: Bounds, fault: Fault, asserted: &[Invariant]) -> Run {
    Run {
        title,
        model: leases(bounds, fault, lease::Variant::AsItIs, asserted),
    }
}

fn waits(
    title: &'static str,
    clients: u8,
    turns: u8,
    leaves: u8,
    fault: queue::Fault,
    heartbeats: bool,
    is_asserted: bool,
) -> Run {
    Run {
        title,
        model: queue(
            clients,
            turns,
            leaves,
            fault,
            heartbeats,
            is_asserted,
            queue::Variant::AsItIs,
        ),
    }
}

pub(crate) fn leases(bounds: Bounds, fault: Fault, variant: lease::Variant, asserted: &[Invariant]) -> Model {
    Model::Leases(Leases {
        bounds,
        fault,
        variant,
        asserted: asserted.to_vec(),
        counted: Arc::new(Counters::default()),
    })
}

pub(crate) fn queue(
    clients: u8,
    turns: u8,
    leaves: u8,
    fault: queue::Fault,
    heartbeats: bool,
    is_asserted: bool,
    variant: queue::Variant,
) -> Model {
    Model::Queue(Queue {
        clients,
        turns,
        leaves,
        fault,
        heartbeats,
        variant,
        is_asserted,
        counted: Arc::new(Counters::default()),
    })
}

fn bounds_of_leases(bounds: &Bounds) -> String {
    let fences = match bounds.fences {
        Fences::None => "no fences",
        Fences::ReadCommitted => "fences rc",
        Fences::RepeatableReadToo => "fences rc rr",
    };
    let ghosts = if bounds.ghosts { ", ghosts" } else { "" };
    format!(
        "{}x{} acquisitions, {} grants, ttl {}-{}, {fences}{ghosts}",
        bounds.clients, bounds.acquisitions, bounds.grants, bounds.ttl, bounds.margin
    )
}

fn bounds_of_queue(model: &Queue) -> String {
    format!("{}x{} turns, {} leave", model.clients, model.turns, model.leaves)
}

/// What holds while no acknowledged commit is lost and the server's clock is not stepped.
const ALL: &[Invariant] = &Invariant::OF_LEASES;

/// What holds when one is: with the epoch, tokens rise there too.
const WHEN_LOST: &[Invariant] = &[
    Invariant::TokensRise,
    Invariant::OwnGrantAlone,
    Invariant::FenceHoldsOff,
    Invariant::StaleWriteRefused,
];

/// What holds when a client's clock falls behind by more than the margin.
const WHEN_SLOW: &[Invariant] = &[
    Invariant::TokensRise,
    Invariant::OwnGrantAlone,
    Invariant::FenceHoldsOff,
    Invariant::StaleWriteRefused,
    Invariant::OneOwner,
];

/// What holds always, on a server too that was set back without a trace.
const ALWAYS: &[Invariant] = &[
    Invariant::OwnGrantAlone,
    Invariant::FenceHoldsOff,
    Invariant::StaleWriteRefused,
];

/// Two clients that acquire twice each.
pub(crate) const TWICE: Bounds = Bounds {
    clients: 2,
    acquisitions: 2,
    grants: 3,
    ttl: 2,
    margin: 1,
    ghosts: false,
    fences: Fences::RepeatableReadToo,
};

/// The same, with fences in read committed alone: a fault ends open transactions anyway.
pub(crate) const FENCED: Bounds = Bounds {
    fences: Fences::ReadCommitted,
    ..TWICE
};

/// Statements that are given up and executed all the same.
pub(crate) const GHOSTS: Bounds = Bounds {
    acquisitions: 1,
    grants: 2,
    ghosts: true,
    ..TWICE
};

const GHOSTS_TWICE: Bounds = Bounds {
    acquisitions: 2,
    grants: 3,
    fences: Fences::None,
    ..GHOSTS
};

const GHOSTS_OF_THREE: Bounds = Bounds {
    clients: 3,
    grants: 3,
    fences: Fences::None,
    ..GHOSTS
};

const THREE: Bounds = Bounds {
    clients: 3,
    acquisitions: 1,
    ..FENCED
};

const THREE_TWICE: Bounds = Bounds { clients: 3, ..FENCED };
