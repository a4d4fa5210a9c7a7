//! The checker: reads a whole history and judges every invariant that can be judged from outside.
//!
//! Pure: it asks nobody and waits for nothing. What the promise leaves open (belief in the shadow of
//! a stepped clock or of lost commits, commits lost to an asynchronous failover) it counts and does not judge.

use std::collections::{BTreeMap, HashMap};

use crate::clock::{MS, SECOND};
use crate::history::{Acquisition, Audit, Fault, History};

mod grants;
#[cfg(test)]
mod tests;
mod waiting;
mod writes;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    TokensRise,
    OneOwner,
    WritesInOrder,
    WritesByCurrentGrant,
    RenewalKeepsGrant,
    NoRevival,
    ReleaseOfOnesOwn,
    GrantsDurable,
    WritesDurable,
    TokenOnce,
    NoLostUpdate,
    BeliefEndsFirst,
    OwnerIsNotRefused,
    WokenPromptly,
    WaitersServed,
    InOrderOfArrival,
    LiveRowsStay,
    NothingLeft,
}

/// Every invariant with the number that the documents give it.
pub const INVARIANTS: [(Invariant, &str, &str); 18] = [
    (Invariant::TokensRise, "I1", "tokens rise in grant order"),
    (
        Invariant::OneOwner,
        "I2",
        "one owner at a time, by the database's clock",
    ),
    (Invariant::WritesInOrder, "I3", "fenced writes in token order"),
    (
        Invariant::WritesByCurrentGrant,
        "I3s",
        "fenced writes by the current grant only",
    ),
    (
        Invariant::RenewalKeepsGrant,
        "I4",
        "renewal of one's own only, owner and token kept",
    ),
    (Invariant::NoRevival, "I5", "no renewal of what has run out"),
    (Invariant::ReleaseOfOnesOwn, "I6", "release of one's own only, and once"),
    (Invariant::GrantsDurable, "I7", "acknowledged grants are in the record"),
    (
        Invariant::WritesDurable,
        "I8",
        "acknowledged writes are there, failed ones are not",
    ),
    (Invariant::TokenOnce, "I9", "a token is given once"),
    (Invariant::NoLostUpdate, "I10", "no fenced update is lost"),
    (Invariant::BeliefEndsFirst, "I11", "belief ends before another grant"),
    (Invariant::OwnerIsNotRefused, "I12", "the current owner is not refused"),
    (Invariant::WokenPromptly, "I13", "the next in line is woken promptly"),
    (Invariant::WaitersServed, "I14", "waiters are served after the faults"),
    (
        Invariant::InOrderOfArrival,
        "I14f",
        "waiters are served in order of arrival",
    ),
    (Invariant::LiveRowsStay, "I15", "sweeping takes no live row"),
    (Invariant::NothingLeft, "I15e", "nothing is left at the end"),
];

#[derive(Debug, Default)]
pub struct Verdict {
    pub violations: Vec<(Invariant, String)>,
    pub grants: u64,
    pub renewals: u64,
    pub releases: u64,
    /// Overlaps of belief where the promise does not hold: a stepped clock, lost commits.
    pub excused_beliefs: u64,
    /// Acknowledged grants and writes that an asynchronous failover forgot.
    pub lost_commits: u64,
    pub overtakings: u64,
    pub handoffs: usize,
    pub handoff_median_ms: f64,
    pub longest_wait_after_fault_ms: f64,
}

impl Verdict {
    pub fn count(&self, invariant: Invariant) -> usize {
        self.violations.iter().filter(|(which, _)| *which == invariant).count()
    }
}

/// The hundredth of a second within which the audit's time lies.
const TICK: i64 = 10 * MS;
/// How long before a failover an acknowledged commit may be forgotten by it: after a crash of the primary the standby
/// takes up to five seconds to ask again.
const REPLICATION_LAG: i64 = 12 * SECOND;
const LONGEST_TTL: i64 = 3 * SECOND;

pub fn judge(history: &History) -> Verdict {
    let mut judge = Judge {
        history,
        by_id: history.acquisitions.iter().map(|one| (one.id.as_str(), one)).collect(),
        verdict: Verdict::default(),
    };
    judge.record();
    judge.tokens_as_clients_saw_them();
    judge.durability();
    judge.writes();
    judge.beliefs();
    judge.releases();
    judge.refusals();
    judge.waiting();
    judge.order_of_arrival();
    judge.end();
    judge.verdict.violations.sort_by_key(|(invariant, _)| *invariant);
    judge.verdict
}

struct Judge<'a> {
    history: &'a History,
    by_id: HashMap<&'a str, &'a Acquisition>,
    verdict: Verdict,
}

impl<'a> Judge<'a> {
    fn broken(&mut self, invariant: Invariant, evidence: String) {
        self.verdict.violations.push((invariant, evidence));
    }

    fn faults(&self, kind: &'a str) -> impl Iterator<Item = &'a Fault> {
        self.history.faults.iter().filter(move |fault| fault.kind == kind)
    }

    /// Whether what was committed between these moments may be gone. An answer may be read long after it
    /// was given: its client was stopped, or the network slow.
    fn forgotten_by_failover(&self, asked_at: i64, answered_at: i64) -> bool {
        self.faults("promote")
            .any(|fault| answered_at >= fault.from - REPLICATION_LAG && asked_at <= fault.to)
    }

    fn by_name(&self) -> BTreeMap<&'a str, Vec<&'a Audit>> {
        let mut names: BTreeMap<&str, Vec<&Audit>> = BTreeMap::new();
        for change in &self.history.audit {
            names.entry(&change.name).or_default().push(change);
        }
        for changes in names.values_mut() {
            changes.sort_by_key(|change| change.number);
        }
        names
    }
}
