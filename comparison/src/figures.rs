//! All that was measured: a value for each work, measure, peer, size and round.

use std::collections::BTreeMap;

use crate::peer::{Fault, Outcome};
use crate::statistics::{Spread, quantile, sorted};

/// What a value is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The letter of the work.
    pub work: char,
    pub measure: &'static str,
    pub peer: &'static str,
    /// Tasks, waiters, leases or rows.
    pub size: u64,
}

#[derive(Debug, Default)]
pub struct Figures {
    /// By round.
    values: BTreeMap<Key, BTreeMap<u32, f64>>,
    /// Milliseconds of all rounds, for a picture of their distribution.
    latencies: BTreeMap<Key, Vec<f64>>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

impl Key {
    pub fn new(work: char, measure: &'static str, peer: &'static str, size: u64) -> Self {
        Self {
            work,
            measure,
            peer,
            size,
        }
    }

    pub fn measure(self, measure: &'static str) -> Self {
        Self { measure, ..self }
    }

    pub fn peer(self, peer: &'static str) -> Self {
        Self { peer, ..self }
    }

    pub fn size(self, size: u64) -> Self {
        Self { size, ..self }
    }
}

impl Figures {
    pub fn record(&mut self, key: Key, round: u32, value: f64) {
        self.values.entry(key).or_default().insert(round, value);
    }

    /// Records the median and the 99th percentile of a round's latencies, in milliseconds.
    pub fn record_latencies(&mut self, key: Key, round: u32, milliseconds: Vec<f64>) {
        let sorted = sorted(milliseconds);
        for (measure, share) in [("p50 ms", 0.5), ("p99 ms", 0.99)] {
            if let Some(value) = quantile(&sorted, share) {
                self.record(key.measure(measure), round, value);
            }
        }
        self.latencies.entry(key).or_default().extend(sorted);
    }

    /// What was measured; a failure is noted, and the run goes on without that value.
    pub fn or_note<T>(&mut self, key: Key, round: u32, measured: Outcome<T>) -> Option<T> {
        let Key { work, peer, size, .. } = key;
        let note = |error: &Fault| {
            self.notes
                .push(format!("{work}, {peer}, {size}, round {}: {error}", round + 1))
        };
        measured.inspect_err(note).ok()
    }

    /// The median of the rounds.
    pub fn spread(&self, key: Key) -> Option<Spread> {
        Spread::of(self.values.get(&key)?.values().copied())
    }

    /// The median of the ratios, each of two values of one round.
    pub fn ratio(&self, of: Key, to: Key) -> Option<Spread> {
        self.ratio_to_sum(of, &[to])
    }

    /// As [`ratio`](Self::ratio), to the sum of several.
    pub fn ratio_to_sum(&self, of: Key, to: &[Key]) -> Option<Spread> {
        let of = self.values.get(&of)?;
        let to: Option<Vec<_>> = to.iter().map(|key| self.values.get(key)).collect();
        let to = to?;
        let ratios = of.iter().filter_map(|(round, value)| {
            let sum: Option<f64> = to.iter().map(|values| values.get(round)).sum();
            Some(value / sum?).filter(|ratio| !ratio.is_nan())
        });
        Spread::of(ratios)
    }

    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.values.keys().copied()
    }

    pub fn rounds(&self, key: Key) -> impl Iterator<Item = (u32, f64)> {
        self.values
            .get(&key)
            .into_iter()
            .flatten()
            .map(|(round, value)| (*round, *value))
    }

    pub fn latencies(&self) -> impl Iterator<Item = (Key, &[f64])> {
        self.latencies.iter().map(|(key, sample)| (*key, sample.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_taken_within_a_round_before_the_median_over_rounds() {
        let (ours, theirs) = (Key::new('A', "rate", "ours", 1), Key::new('A', "rate", "theirs", 1));
        let mut figures = Figures::default();
        // The machine was slow for both in the second round, and only one was measured in the fourth.
        for (round, our, their) in [(0, 20.0, 10.0), (1, 3.0, 1.0), (2, 40.0, 10.0)] {
            figures.record(ours, round, our);
            figures.record(theirs, round, their);
        }
        figures.record(ours, 3, 1000.0);

        let ratio = figures.ratio(ours, theirs).unwrap();

        assert_eq!((ratio.least, ratio.median, ratio.most), (2.0, 3.0, 4.0));
        assert_eq!(figures.ratio(ours, theirs.size(2)), None);
    }

    #[test]
    fn ratio_to_a_sum_needs_every_part_of_it_in_the_same_round() {
        let key = Key::new('B', "p50 ms", "ours", 64);
        let (one, two) = (key.peer("one"), key.peer("two"));
        let mut figures = Figures::default();
        for (round, value) in [(0, 9.0), (1, 8.0)] {
            figures.record(key, round, value);
            figures.record(one, round, 1.0);
        }
        figures.record(two, 0, 2.0);

        assert_eq!(figures.ratio_to_sum(key, &[one, two]).unwrap().median, 3.0);
        assert_eq!(figures.ratio_to_sum(key, &[one, two]).unwrap().most, 3.0);
    }

    #[test]
    fn failure_is_noted_and_leaves_no_value() {
        let key = Key::new('A', "rate", "theirs", 8);
        let mut figures = Figures::default();

        assert_eq!(figures.or_note(key, 1, Ok(5)), Some(5));
        assert_eq!(figures.or_note::<u32>(key, 1, Err("it broke".into())), None);

        assert_eq!(figures.notes, ["A, theirs, 8, round 2: it broke"]);
    }

    #[test]
    fn latencies_leave_their_quantiles_and_themselves() {
        let key = Key::new('B', "", "ours", 2);
        let mut figures = Figures::default();

        figures.record_latencies(key, 0, (1..=200).rev().map(f64::from).collect());

        assert_eq!(figures.spread(key.measure("p50 ms")).unwrap().median, 100.0);
        assert_eq!(figures.spread(key.measure("p99 ms")).unwrap().median, 198.0);
        assert_eq!(figures.latencies().next().unwrap().1.len(), 200);
    }
}
