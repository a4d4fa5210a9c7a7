//! Judges the fenced writes, and what of all that was acknowledged is there.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Invariant, Judge, TICK};
use crate::history::Outcome;

impl Judge<'_> {
    /// I7 and I8.
    pub(super) fn durability(&mut self) {
        let recorded: HashSet<(&str, i64)> = self
            .history
            .audit
            .iter()
            .filter_map(|change| change.grant().map(|new| (new.holder.as_str(), new.fence)))
            .collect();
        let written: HashSet<(&str, i64)> = self
            .history
            .written
            .iter()
            .map(|write| (write.id.as_str(), write.write))
            .collect();
        for one in &self.history.acquisitions {
            if let Some((at, token)) = one.granted
                && !recorded.contains(&(one.id.as_str(), token))
            {
                if self.forgotten_by_failover(one.invoked_at, at) {
                    self.verdict.lost_commits += 1;
                } else {
                    self.broken(
                        Invariant::GrantsDurable,
                        format!(
                            "{}: {} was granted {token}, of which there is no record",
                            one.name, one.id
                        ),
                    );
                }
            }
            for write in &one.writes {
                let is_there = written.contains(&(one.id.as_str(), write.number));
                let what = format!("{}: write {} of {}", one.name, write.number, one.id);
                match write.outcome {
                    Outcome::Acknowledged
                        if !is_there && self.forgotten_by_failover(write.invoked_at, write.answered_at) =>
                    {
                        self.verdict.lost_commits += 1;
                    }
                    Outcome::Acknowledged if !is_there => {
                        self.broken(
                            Invariant::WritesDurable,
                            format!("{what} was acknowledged and is not there"),
                        );
                    }
                    Outcome::Refused | Outcome::Failed if is_there => {
                        self.broken(Invariant::WritesDurable, format!("{what} failed and is there"));
                    }
                    _ => {}
                }
            }
        }
    }

    /// I3, I3s and I10, in the order of the numbers that the protected row gave.
    pub(super) fn writes(&mut self) {
        let mut names: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for write in &self.history.written {
            names.entry(&write.name).or_default().push(write);
        }
        for (name, mut writes) in names {
            writes.sort_by_key(|write| write.number);
            let (mut highest, mut count) = (0, 0);
            for write in writes {
                count += 1;
                if write.number != count {
                    count = write.number;
                    self.broken(
                        Invariant::NoLostUpdate,
                        format!("{name}: write {} has no one before it", write.number),
                    );
                }
                if write.fence < highest {
                    self.broken(
                        Invariant::WritesInOrder,
                        format!("{name}: write {} with {} after {highest}", write.number, write.fence),
                    );
                }
                highest = highest.max(write.fence);
                if write.fence != write.current {
                    self.broken(
                        Invariant::WritesByCurrentGrant,
                        format!(
                            "{name}: {} wrote with {} while {} was current",
                            write.id, write.fence, write.current
                        ),
                    );
                }
            }
        }
        for (name, writes, value) in &self.history.end.registers {
            if writes != value {
                self.broken(
                    Invariant::NoLostUpdate,
                    format!("{name}: {writes} fenced updates, and the value is {value}"),
                );
            }
        }
        // A grant that was let go, and is known to be, writes no more.
        for one in &self.history.acquisitions {
            if let Some((released_at, answer)) = &one.release_answer
                && answer == "released"
                && let Some(write) = one.writes.iter().find(|write| {
                    write.invoked_at >= *released_at
                        && write.outcome == Outcome::Acknowledged
                        && !self.forgotten_by_failover(one.release_sent_at.unwrap_or(*released_at), *released_at)
                })
            {
                self.broken(
                    Invariant::WritesByCurrentGrant,
                    format!("{}: {} wrote ({}) after its release", one.name, one.id, write.number),
                );
            }
        }
    }

    /// I12: a write that was refused although its grant was current from before it was asked until after its answer.
    pub(super) fn refusals(&mut self) {
        let mut spans: HashMap<(&str, i64), (i64, i64)> = HashMap::new();
        for changes in self.by_name().into_values() {
            for pair in changes.windows(2) {
                if let Some(new) = pair[0].new.as_ref().filter(|new| !new.owner.is_empty()) {
                    let span = spans
                        .entry((&new.holder, new.fence))
                        .or_insert((pair[0].up, pair[0].up));
                    span.1 = pair[1].up;
                }
            }
        }
        for one in &self.history.acquisitions {
            let Some((_, token)) = one.granted else { continue };
            let Some((from, to)) = spans.get(&(one.id.as_str(), token)).copied() else {
                continue;
            };
            for write in one.writes.iter().filter(|write| write.outcome == Outcome::Refused) {
                // Nor is it its owner any more once it has let go, even if a failover forgot that.
                let was_lost = one.lost.as_ref().is_some_and(|(at, _)| *at <= write.answered_at)
                    || one.release_sent_at.is_some_and(|sent| sent <= write.answered_at);
                // Or the grant that took its place is one of those that a failover forgot.
                let may_be_forgotten = self.forgotten_by_failover(write.invoked_at, write.answered_at);
                if write.invoked_at > from + TICK && write.answered_at < to && !was_lost && !may_be_forgotten {
                    self.broken(
                        Invariant::OwnerIsNotRefused,
                        format!("{}: write {} of {} was refused", one.name, write.number, one.id),
                    );
                }
            }
        }
    }
}
