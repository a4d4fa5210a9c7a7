//! The targets: what each is, how it follows from the figures, and whether it is met.

use serde_json::{Value, json};

use crate::figures::{Figures, Key};
use crate::peers::{etcd, leasehold, redis, table, updates};
use crate::plan::Plan;
use crate::statistics::Spread;
use crate::works::fence::Write;
use crate::works::{SelectOne, cycle, fence, growth, handoff, miss, waiting};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    MoreThan(f64),
    AtMost(f64),
    LessThan(f64),
}

/// One target and what was found; without a value when it was not measured.
#[derive(Debug)]
pub struct Target {
    pub id: &'static str,
    pub what: String,
    pub bound: Bound,
    pub found: Option<Spread>,
}

impl Bound {
    pub fn limit(self) -> f64 {
        match self {
            Self::AtLeast(limit) | Self::MoreThan(limit) | Self::AtMost(limit) | Self::LessThan(limit) => limit,
        }
    }

    pub fn sign(self) -> &'static str {
        match self {
            Self::AtLeast(_) => "≥",
            Self::MoreThan(_) => ">",
            Self::AtMost(_) => "≤",
            Self::LessThan(_) => "<",
        }
    }

    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::MoreThan(limit) => value > limit,
            Self::AtMost(limit) => value <= limit,
            Self::LessThan(limit) => value < limit,
        }
    }
}

impl Target {
    /// `None` when it was not measured.
    pub fn is_met(&self) -> Option<bool> {
        self.found.map(|found| self.bound.is_met_by(found.median))
    }

    pub fn json(&self) -> Value {
        json!({
            "what": self.what,
            "value": self.found.map(|found| found.median),
            "spread": self.found.map(|found| [found.least, found.most]),
            "target": format!("{} {}", self.bound.sign(), self.bound.limit()),
            "met": self.is_met(),
        })
    }
}

/// All targets, in the order of the works.
pub fn judge(figures: &Figures, plan: &Plan) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut target = |id, what: &str, bound, found| {
        targets.push(Target {
            id,
            what: what.to_owned(),
            bound,
            found,
        });
    };

    let cycles = |tasks| Key::new('A', "cycles/s", leasehold::NAME, tasks);
    let cycle_ratio = |tasks, peer| figures.ratio(cycles(tasks), cycles(tasks).peer(peer));
    target(
        "A.1",
        "cycles of 1 task to the yardstick, two durable updates",
        Bound::AtLeast(1.15),
        cycle_ratio(1, updates::NAME),
    );
    target(
        "A.1.redis",
        "cycles of 1 task to Redis with appendfsync always",
        Bound::MoreThan(1.0),
        cycle_ratio(1, redis::ALWAYS),
    );
    target(
        "A.32",
        "cycles of 32 tasks to the yardstick",
        Bound::AtLeast(2.5),
        cycle_ratio(32, updates::NAME),
    );
    target(
        "A.128",
        "cycles of 128 tasks to the yardstick",
        Bound::AtLeast(6.0),
        cycle_ratio(128, updates::NAME),
    );
    target(
        "A.128.redis",
        "cycles of 128 tasks to Redis with appendfsync always",
        Bound::MoreThan(1.0),
        cycle_ratio(128, redis::ALWAYS),
    );
    let to_etcd = cycle::TASKS.map(|tasks| cycle_ratio(tasks as u64, etcd::NAME));
    target(
        "A.etcd",
        "cycles to etcd's, at the number of tasks where that is least",
        Bound::MoreThan(1.0),
        worst(to_etcd, f64::min),
    );

    let line = |measure, line| Key::new('B', measure, leasehold::NAME, line);
    let p50 = line("p50 ms", 64);
    let least = [handoff::UPDATE, handoff::NOTIFY].map(|peer| p50.peer(peer).size(1));
    target(
        "B.p50",
        "hand-off among 64, p50 in ms",
        Bound::AtMost(1.5),
        figures.spread(p50),
    );
    target(
        "B.limit",
        "hand-off p50 to that of a durable update and a notification",
        Bound::AtMost(3.0),
        figures.ratio_to_sum(p50, &least),
    );
    target(
        "B.p99",
        "hand-off p99 to its p50",
        Bound::AtMost(10.0),
        figures.ratio(p50.measure("p99 ms"), p50),
    );
    target(
        "B.turns",
        "turns of who had most to turns of who had least",
        Bound::AtMost(1.1),
        figures.spread(line("most/least turns", 64)),
    );
    let counted = line("statements/hand-off", handoff::COUNTED_LINE as u64);
    target(
        "B.statements",
        "statements a hand-off",
        Bound::AtMost(4.0),
        figures.spread(counted),
    );
    target(
        "B.notifications",
        "notifications a hand-off",
        Bound::AtMost(1.0),
        figures.spread(counted.measure("notifications/hand-off")),
    );
    let polled = line("p50 ms", 2).peer(table::NAME);
    target(
        "B.polling",
        "hand-off p50 of 100 ms polls to ours, 2 waiters",
        Bound::AtLeast(30.0),
        figures.ratio(polled, line("p50 ms", 2)),
    );
    let hot = line("hand-offs/s on hot names", 1);
    target(
        "B.hot",
        "hand-offs a second on 16 hot names to one",
        Bound::AtLeast(8.0),
        figures.ratio(hot.size(handoff::HOT_NAMES as u64), hot),
    );
    let etcd_to_ours = plan.lines.iter().map(|waiters| {
        let ours = line("p50 ms", *waiters as u64);
        figures.ratio(ours.peer(etcd::NAME), ours)
    });
    target(
        "B.etcd",
        "etcd's hand-off p50 to ours, at the line where that is least",
        Bound::MoreThan(1.0),
        worst(etcd_to_ours, f64::min),
    );

    let most_held = plan.held.iter().max().copied().unwrap_or(0) as u64;
    let held = |measure| figures.spread(Key::new('C', measure, leasehold::NAME, most_held));
    target(
        "C.statements",
        &format!("{most_held} leases held, ttl 30 s: statements a second"),
        Bound::AtMost(1.0),
        held("statements/s"),
    );
    target(
        "C.cpu",
        "per cent of a core, client and server",
        Bound::LessThan(2.0),
        held("cpu %"),
    );
    target("C.connections", "connections", Bound::AtMost(1.0), held("connections"));

    let most_waiting = plan.waiters.iter().max().copied().unwrap_or(0) as u64;
    let waiting = |measure| figures.spread(Key::new('D', measure, leasehold::NAME, most_waiting));
    target(
        "D.statements",
        &format!("{most_waiting} waiters: statements a second"),
        Bound::AtMost(1.0),
        waiting("statements/s"),
    );
    target(
        "D.connections",
        "connections",
        Bound::AtMost(2.0),
        waiting("connections"),
    );
    target(
        "D.cpu",
        "per cent of a core, client and server",
        Bound::LessThan(1.0),
        waiting("cpu %"),
    );
    target(
        "D.connect",
        "a bystander's connect, ms, the slowest",
        Bound::LessThan(50.0),
        waiting(waiting::CONNECT),
    );

    let write = |write: Write, tasks| Key::new('E', "p50 ms", write.name(), tasks);
    let inline = |tasks| figures.ratio(write(Write::Inline, tasks), write(Write::Bare, tasks));
    target(
        "E.inline.1",
        "p50 of a write with an inline fence to the bare one, 1 task",
        Bound::AtMost(1.2),
        inline(1),
    );
    target("E.inline.32", "the same, 32 tasks", Bound::AtMost(1.5), inline(32));
    let sent = |write: Write| figures.spread(Key::new('E', fence::STATEMENTS, write.name(), 1));
    let more = sent(Write::FencedTransaction).zip(sent(Write::Transaction));
    let more = more.and_then(|(fenced, bare)| Spread::of([fenced.median - bare.median]));
    target(
        "E.transaction",
        "round trips of begin, lease.fence, update, commit more than without the fence",
        Bound::AtMost(1.0),
        more,
    );

    let misses = |tasks| Key::new('F', miss::MISSES, leasehold::NAME, tasks);
    let select = misses(1).peer(SelectOne::NAME);
    target(
        "F.1",
        "misses of 1 task to `select 1` on one connection",
        Bound::AtLeast(0.9),
        figures.ratio(misses(1), select),
    );
    target(
        "F.32",
        "misses of 32 tasks to `select 1` on one connection",
        Bound::AtLeast(2.0),
        figures.ratio(misses(32), select),
    );

    let (fewest, most) = (
        plan.others.first().copied().unwrap_or(0),
        plan.others.last().copied().unwrap_or(0),
    );
    let growth_key = |measure, others| Key::new('G', measure, leasehold::NAME, others);
    let slowed = growth::RATES.map(|rate| figures.ratio(growth_key(rate, fewest), growth_key(rate, most)));
    let inline = figures.ratio(growth_key(growth::INLINE, most), growth_key(growth::INLINE, fewest));
    let slowed = slowed.into_iter().chain([inline]);
    target(
        "G.rows",
        &format!("what A, E and F take beside {most} other leases to beside {fewest}, the worst"),
        Bound::AtMost(1.2),
        worst(slowed, f64::max),
    );
    let cycled = (plan.cycles / 128 * 128) as u64;
    target(
        "G.size",
        &format!("`locks` with its index after {cycled} cycles, MB"),
        Bound::LessThan(2.0),
        figures.spread(growth_key(growth::SIZE, cycled)),
    );
    let kept = growth_key(growth::KEPT, plan.snapshot.as_secs());
    let peers = [updates::NAME, crate::peers::pglock::KEEPING].map(|peer| figures.ratio(kept, kept.peer(peer)));
    target(
        "G.snapshot",
        "share of the rate that is left beside an open snapshot, to the best peer that keeps a row",
        Bound::AtLeast(1.0),
        worst(peers, f64::min),
    );

    targets
}

/// The one whose median is worst; `None` when one is missing.
fn worst(found: impl IntoIterator<Item = Option<Spread>>, pick: fn(f64, f64) -> f64) -> Option<Spread> {
    let found: Option<Vec<Spread>> = found.into_iter().collect();
    let found = found?;
    let median = found.iter().map(|spread| spread.median).reduce(pick)?;
    found.into_iter().find(|spread| spread.median == median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(records: &[(Key, f64)]) -> Vec<Target> {
        let mut figures = Figures::default();
        for (key, value) in records {
            figures.record(*key, 0, *value);
        }
        judge(&figures, &Plan::whole())
    }

    fn found<'a>(targets: &'a [Target], id: &str) -> &'a Target {
        targets.iter().find(|target| target.id == id).unwrap()
    }

    #[test]
    fn nothing_measured_is_neither_met_nor_missed() {
        let targets = with(&[]);

        assert!(targets.iter().all(|target| target.is_met().is_none()));
        assert!(targets[0].json()["met"].is_null() && targets[0].json()["value"].is_null());
        let mut ids: Vec<_> = targets.iter().map(|target| target.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), targets.len());
    }

    #[test]
    fn bounds_hold_at_their_limit_unless_they_say_otherwise() {
        assert!(Bound::AtLeast(1.0).is_met_by(1.0) && !Bound::AtLeast(1.0).is_met_by(0.99));
        assert!(Bound::AtMost(1.0).is_met_by(1.0) && !Bound::AtMost(1.0).is_met_by(1.01));
        assert!(Bound::MoreThan(1.0).is_met_by(1.01) && !Bound::MoreThan(1.0).is_met_by(1.0));
        assert!(Bound::LessThan(1.0).is_met_by(0.99) && !Bound::LessThan(1.0).is_met_by(1.0));
        assert!(!Bound::AtMost(1.1).is_met_by(f64::INFINITY));
    }

    #[test]
    fn throughput_is_ours_to_theirs_and_latency_theirs_to_ours() {
        let ours = Key::new('A', "cycles/s", leasehold::NAME, 1);
        let handoff = Key::new('B', "p50 ms", leasehold::NAME, 2);

        let targets = with(&[
            (ours, 120.0),
            (ours.peer(updates::NAME), 100.0),
            (ours.peer(redis::ALWAYS), 130.0),
            (handoff, 1.0),
            (handoff.peer(table::NAME), 50.0),
            (handoff.peer(etcd::NAME), 0.7),
            (handoff.size(8), 1.0),
            (handoff.size(8).peer(etcd::NAME), 2.0),
            (handoff.size(64), 1.0),
            (handoff.size(64).peer(etcd::NAME), 2.0),
            (handoff.size(512), 1.0),
            (handoff.size(512).peer(etcd::NAME), 2.0),
        ]);

        assert_eq!(found(&targets, "A.1").found.unwrap().median, 1.2);
        assert_eq!(found(&targets, "A.1").is_met(), Some(true));
        assert_eq!(found(&targets, "A.1.redis").is_met(), Some(false));
        assert_eq!(found(&targets, "B.polling").found.unwrap().median, 50.0);
        assert_eq!(found(&targets, "B.polling").is_met(), Some(true));
        assert_eq!(found(&targets, "B.etcd").found.unwrap().median, 0.7);
        assert_eq!(found(&targets, "B.etcd").is_met(), Some(false));
    }

    #[test]
    fn everywhere_means_the_worst_place_and_every_place() {
        let key = Key::new('A', "cycles/s", leasehold::NAME, 1);
        let mut records: Vec<_> = [(1, 300.0), (8, 90.0), (32, 500.0)]
            .iter()
            .flat_map(|(tasks, rate)| [(key.size(*tasks), *rate), (key.size(*tasks).peer(etcd::NAME), 100.0)])
            .collect();
        assert_eq!(found(&with(&records), "A.etcd").is_met(), None);

        records.extend([(key.size(128), 500.0), (key.size(128).peer(etcd::NAME), 100.0)]);

        let targets = with(&records);
        assert_eq!(found(&targets, "A.etcd").found.unwrap().median, 0.9);
        assert_eq!(found(&targets, "A.etcd").is_met(), Some(false));
    }

    #[test]
    fn growth_is_judged_by_the_work_that_suffers_most() {
        let key = |measure, others| Key::new('G', measure, leasehold::NAME, others);
        let mut records: Vec<_> = growth::RATES
            .iter()
            .flat_map(|rate| [(key(rate, 1), 100.0), (key(rate, 1_000_000), 95.0)])
            .collect();
        records.extend([(key(growth::INLINE, 1), 1.0), (key(growth::INLINE, 1_000_000), 1.3)]);

        let targets = with(&records);

        assert_eq!(found(&targets, "G.rows").found.unwrap().median, 1.3);
        assert_eq!(found(&targets, "G.rows").is_met(), Some(false));
    }

    #[test]
    fn handoff_is_held_against_the_sum_of_what_it_cannot_do_without() {
        let key = Key::new('B', "p50 ms", leasehold::NAME, 64);

        let targets = with(&[
            (key, 1.2),
            (key.peer(handoff::UPDATE).size(1), 0.3),
            (key.peer(handoff::NOTIFY).size(1), 0.1),
        ]);

        assert!((found(&targets, "B.limit").found.unwrap().median - 3.0).abs() < 1e-9);
        assert_eq!(found(&targets, "B.p50").is_met(), Some(true));
    }
}
