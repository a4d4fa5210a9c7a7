//! Judges the grants: their record, their tokens, who renews and ends them, who believes in them.

use std::collections::{BTreeMap, HashMap};

use super::{Invariant, Judge, LONGEST_TTL, TICK};
use crate::history::Acquisition;

impl Judge<'_> {
    /// I1, I2, I4, I5, I9 and the sweep, by the record that the database made while rows were locked.
    pub(super) fn record(&mut self) {
        let mut given: HashMap<i64, &str> = HashMap::new();
        for (name, changes) in self.by_name() {
            let mut highest = 0;
            for change in changes {
                if let Some(new) = change.grant() {
                    self.verdict.grants += 1;
                    if new.fence <= highest {
                        self.broken(
                            Invariant::TokensRise,
                            format!("{name}: {} granted {} after {highest}", new.holder, new.fence),
                        );
                    }
                    highest = highest.max(new.fence);
                    if let Some(other) = given.insert(new.fence, &new.holder) {
                        self.broken(
                            Invariant::TokenOnce,
                            format!("{name}: {} given to {other} and {}", new.fence, new.holder),
                        );
                    }
                    if let Some(old) = &change.old
                        && !old.owner.is_empty()
                        && old.expires_at > new.acquired_at
                    {
                        self.broken(
                            Invariant::OneOwner,
                            format!(
                                "{name}: {} granted while {} had {} us left",
                                new.holder,
                                old.holder,
                                old.expires_at - new.acquired_at
                            ),
                        );
                    }
                }
                if let Some((old, new)) = change.renewal() {
                    self.verdict.renewals += u64::from(new.ttl > 0);
                    if new.ttl > 0 && old.expires_at <= new.expires_at - new.ttl {
                        self.broken(
                            Invariant::NoRevival,
                            format!("{name}: {} renewed after it had run out", new.holder),
                        );
                    }
                }
                if let Some(old) = &change.old
                    && change.new.is_none()
                    && !old.owner.is_empty()
                    && old.expires_at > change.at
                {
                    self.broken(
                        Invariant::LiveRowsStay,
                        format!("{name}: the row of {} was deleted", old.holder),
                    );
                }
            }
        }
    }

    /// I1 in real time: whoever asks after a grant was acknowledged gets a higher token, whatever the record has lost.
    pub(super) fn tokens_as_clients_saw_them(&mut self) {
        let mut moments: BTreeMap<&str, Vec<(i64, bool, &Acquisition)>> = BTreeMap::new();
        for one in &self.history.acquisitions {
            if let Some((at, _)) = one.granted {
                let name = moments.entry(&one.name).or_default();
                name.push((one.invoked_at, false, one));
                name.push((at, true, one));
            }
        }
        for (name, mut moments) in moments {
            moments.sort_by_key(|(at, is_end, _)| (*at, *is_end));
            let (mut highest, mut floors) = (0, HashMap::new());
            for (_, is_end, one) in moments {
                let token = one.granted.map_or(0, |(_, token)| token);
                if !is_end {
                    floors.insert(&one.id, highest);
                } else {
                    let floor = floors.get(&one.id).copied().unwrap_or(0);
                    if token <= floor {
                        self.broken(
                            Invariant::TokensRise,
                            format!("{name}: {} was told {token} after {floor} was known", one.id),
                        );
                    }
                    highest = highest.max(token);
                }
            }
        }
    }

    /// I11: nobody was seen to believe after somebody else had been granted the name.
    pub(super) fn beliefs(&mut self) {
        for (name, changes) in self.by_name() {
            let mut last: Option<&Acquisition> = None;
            for change in changes {
                let Some(new) = change.grant() else { continue };
                if let Some(earlier) = last
                    && earlier.id != new.holder
                    && earlier.believed_at >= change.up + TICK
                {
                    let since = earlier.granted.map_or(earlier.invoked_at, |(at, _)| at) - LONGEST_TTL;
                    let is_excused = self
                        .faults("clock")
                        .any(|step| step.to >= since && step.from <= change.up + TICK)
                        || self
                            .faults("promote")
                            .any(|fault| change.up + TICK >= fault.from && change.up <= fault.to + LONGEST_TTL);
                    if is_excused {
                        self.verdict.excused_beliefs += 1;
                    } else {
                        self.broken(
                            Invariant::BeliefEndsFirst,
                            format!(
                                "{name}: {} believed {} us after the grant of {}",
                                earlier.id,
                                earlier.believed_at - change.up,
                                new.holder
                            ),
                        );
                    }
                }
                // Whoever never heard of a grant may be granted the name once more, and believe in that.
                if let Some(one) = self.by_id.get(new.holder.as_str())
                    && one.granted.is_some_and(|(_, token)| token == new.fence)
                    && last.is_none_or(|earlier| one.believed_at > earlier.believed_at)
                {
                    last = Some(one);
                }
            }
        }
    }

    /// I6 and I4: only its own client ends or prolongs a grant, and ends it once.
    pub(super) fn releases(&mut self) {
        for change in &self.history.audit {
            let Some(old) = change.freed() else { continue };
            self.verdict.releases += 1;
            let Some(one) = self.by_id.get(old.holder.as_str()).copied() else {
                continue;
            };
            // What the client itself gave up may be released by it at any time after.
            let given_up = one.granted.is_none_or(|(_, token)| token != old.fence)
                || one.lost.as_ref().is_some_and(|(_, cause)| !is_foreign_loss(cause));
            let is_own = one.release_sent_at.is_some_and(|sent| sent < change.up + TICK);
            if !given_up && !is_own {
                self.broken(
                    Invariant::ReleaseOfOnesOwn,
                    format!("{}: the grant of {} was ended by somebody else", change.name, one.id),
                );
            }
        }
        for one in &self.history.acquisitions {
            for (at, probe, answer) in &one.probes {
                let what = || format!("{}: {} was answered {answer:?} to {probe}", one.name, one.id);
                let may_be_forgotten = self.forgotten_by_failover(one.release_sent_at.unwrap_or(*at), *at);
                match probe.as_str() {
                    "foreign_release" if answer == "released" => self.broken(Invariant::ReleaseOfOnesOwn, what()),
                    "foreign_renewal" if answer == "renewed" => self.broken(Invariant::RenewalKeepsGrant, what()),
                    "second_release" if answer == "released" && !may_be_forgotten => {
                        self.broken(Invariant::ReleaseOfOnesOwn, what());
                    }
                    "renewal_after_release" if answer == "renewed" && !may_be_forgotten => {
                        self.broken(Invariant::NoRevival, what());
                    }
                    _ => {}
                }
            }
        }
    }
}

/// A loss that only somebody else can have brought about.
fn is_foreign_loss(cause: &str) -> bool {
    matches!(cause, "Gone" | "Superseded" | "Fenced")
}
