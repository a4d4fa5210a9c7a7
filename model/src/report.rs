//! Runs the checker over one configuration and says in one line what came of it.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::invariant::{Counters, Invariant};

/// What came of one run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) took: Duration,
    /// The invariants that were broken, each with the number of steps of the shortest way found.
    pub(crate) broken: Vec<(&'static str, usize)>,
    /// The shortest way to the first of them.
    pub(crate) steps: Vec<String>,
}

/// Goes through every state, breadth first, until one breaks what is asserted.
pub(crate) fn check<M>(model: M) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: std::hash::Hash + Clone + std::fmt::Debug + PartialEq + Send + Sync,
    M::Action: Clone + PartialEq + std::fmt::Debug + Send + Sync,
{
    let began_at = Instant::now();
    let checker = model
        .checker()
        .threads(THREADS)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();

    let found = checker.discoveries();
    let mut broken: Vec<_> = found
        .iter()
        .map(|(name, path)| (*name, path.clone().into_actions().len()))
        .collect();
    broken.sort_unstable();
    let steps = broken
        .first()
        .map(|(name, _)| {
            found[name]
                .clone()
                .into_actions()
                .iter()
                .map(|step| format!("{step:?}"))
                .collect()
        })
        .unwrap_or_default();

    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: began_at.elapsed(),
        broken,
        steps,
    }
}

/// A run with its verdict, as one line.
#[derive(Debug)]
pub(crate) struct Report {
    title: &'static str,
    bounds: String,
    verdict: String,
    /// The protocol held, or the variant was found.
    pub(crate) is_right: bool,
    pub(crate) outcome: Outcome,
}

impl Report {
    pub(crate) fn new(
        title: &'static str,
        bounds: String,
        is_variant: bool,
        checked: &[Invariant],
        asserted: &[Invariant],
        counted: &Counters,
        outcome: Outcome,
    ) -> Self {
        // What is not asserted must be seen broken, else it was left out without a reason.
        let unseen: Vec<_> = checked
            .iter()
            .copied()
            .filter(|invariant| !asserted.contains(invariant) && counted.get(*invariant) == 0)
            .collect();
        let broken = outcome
            .broken
            .iter()
            .map(|(name, steps)| format!("{name} (in {steps} steps)"))
            .collect::<Vec<_>>()
            .join(", ");
        let (is_right, verdict) = match (is_variant, broken.is_empty()) {
            (true, false) => (true, format!("found: breaks {broken}")),
            (true, true) => (false, format!("NOT FOUND: keeps {}", numbers(asserted))),
            (false, false) => (false, format!("VIOLATED: {broken}")),
            (false, true) if !unseen.is_empty() => (false, format!("NOT SEEN BROKEN: {}", numbers(&unseen))),
            (false, true) => (true, kept(asserted, counted)),
        };
        Self {
            title,
            bounds,
            verdict,
            is_right,
            outcome,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<39} {:<62} {:>8} states {:>3} deep {:>5.1} s  {}",
            self.title,
            self.bounds,
            self.outcome.states,
            self.outcome.depth,
            self.outcome.took.as_secs_f64(),
            self.verdict
        )
    }
}

fn kept(asserted: &[Invariant], counted: &Counters) -> String {
    let broken: Vec<_> = Invariant::ALL
        .into_iter()
        .filter(|invariant| counted.get(*invariant) > 0)
        .map(|invariant| format!("; {} broken in {} states", invariant.number(), counted.get(invariant)))
        .collect();
    let held = if asserted.is_empty() {
        "counted".to_owned()
    } else {
        format!("holds: {}", numbers(asserted))
    };
    held + &broken.concat()
}

fn numbers(invariants: &[Invariant]) -> String {
    let numbers: Vec<_> = invariants
        .iter()
        .map(|invariant| invariant.number().to_string())
        .collect();
    numbers.join(" ")
}

/// As many as the smallest machine has cores.
const THREADS: usize = 2;
