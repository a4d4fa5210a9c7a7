//! Judges the waiters, and what is left when all is over.

use std::collections::HashMap;

use super::{Invariant, Judge};
use crate::clock::{MS, SECOND};
use crate::history::origin;

impl Judge<'_> {
    /// I13 and I14, and how long it took after each fault until somebody was granted something.
    pub(super) fn waiting(&mut self) {
        let history = self.history;
        let latest: HashMap<&str, i64> = history.acquisitions.iter().fold(HashMap::new(), |mut latest, one| {
            let (process, incarnation) = origin(&one.id);
            let known = latest.entry(process).or_insert(incarnation);
            *known = incarnation.max(*known);
            latest
        });
        for one in &history.acquisitions {
            let (process, incarnation) = origin(&one.id);
            if latest.get(process) != Some(&incarnation) || one.wait_ms * MS < SERVED_WITHIN {
                continue;
            }
            let from = one.invoked_at.max(history.calm_from);
            let answered = one
                .granted
                .map(|(at, _)| at)
                .or(one.refused.as_ref().map(|(at, _)| *at));
            let waited = answered.unwrap_or(history.ended_at) - from;
            if waited > SERVED_WITHIN {
                self.broken(
                    Invariant::WaitersServed,
                    format!("{}: {} waited {} ms after the faults", one.name, one.id, waited / MS),
                );
            }
        }

        let mut gaps = Vec::new();
        for changes in self.by_name().into_values() {
            for pair in changes.windows(2) {
                let (Some(freed), Some(new)) = (pair[0].freed(), pair[1].grant()) else {
                    continue;
                };
                let Some(next) = self.by_id.get(new.holder.as_str()) else {
                    continue;
                };
                // Those that poll, by their heartbeat, are served at its pace.
                let is_told = origin(&next.id).0 != crate::client::POLLS;
                let stood_in_line = next.wait_ms > 0 && next.invoked_at < pair[0].up - 50 * MS;
                if freed.holder != new.holder && is_told && stood_in_line && pair[0].up > history.calm_from + SECOND {
                    gaps.push(pair[1].up - pair[0].up);
                }
            }
        }
        gaps.sort_unstable();
        self.verdict.handoffs = gaps.len();
        if let Some(median) = gaps.get(gaps.len() / 2).copied() {
            self.verdict.handoff_median_ms = median as f64 / MS as f64;
            if gaps.len() >= 10 && median > MEDIAN_HANDOFF {
                self.broken(
                    Invariant::WokenPromptly,
                    format!("half of {} hand-offs took more than {} ms", gaps.len(), median / MS),
                );
            }
        }

        let mut grants: Vec<i64> = history
            .audit
            .iter()
            .filter(|a| a.grant().is_some())
            .map(|a| a.up)
            .collect();
        grants.sort_unstable();
        let after = |at: i64| grants.get(grants.partition_point(|up| *up < at)).map(|up| up - at);
        let longest = history.faults.iter().filter_map(|fault| after(fault.to)).max();
        self.verdict.longest_wait_after_fault_ms = longest.unwrap_or(0) as f64 / MS as f64;
    }

    /// First come, first served. Who came just before a grant may not be seen by it, as long as its own commit takes;
    /// and a client that was taken for dead may come back at the very moment of a grant: a few are allowed for.
    pub(super) fn order_of_arrival(&mut self) {
        let overtakings = self
            .history
            .audit
            .iter()
            .filter(|change| change.overtaken > STOOD_FOR_MS)
            .count() as u64;
        self.verdict.overtakings = overtakings;
        if overtakings > 3 + self.verdict.grants / 500 {
            self.broken(
                Invariant::InOrderOfArrival,
                format!("{overtakings} of {} grants overtook somebody", self.verdict.grants),
            );
        }
    }

    pub(super) fn end(&mut self) {
        let end = &self.history.end;
        for (what, count) in [
            ("leases are held", end.held),
            ("waiters stand in line", end.waiting),
            ("rows of names let go long ago are there", end.old_rows),
            ("rows of clients dead for long are there", end.old_clients),
        ] {
            if count > 0 {
                self.broken(Invariant::NothingLeft, format!("{count} {what} at the end"));
            }
        }
        for process in &end.unclosed {
            self.broken(Invariant::NothingLeft, format!("process {process} did not close"));
        }
        for line in self.history.unread.iter().take(3) {
            self.broken(
                Invariant::NothingLeft,
                format!("a line of a client is not understood: {line:?}"),
            );
        }
    }
}

/// A waiter that was alive all the time is served by then, once the faults are over.
const SERVED_WITHIN: i64 = 12 * SECOND;
const MEDIAN_HANDOFF: i64 = 150 * MS;
/// Who has stood in line for so long is seen by everybody.
const STOOD_FOR_MS: i64 = 1500;
