//! The pictures: throughput, the distribution of hand-offs, what holding and waiting cost.

use std::collections::{BTreeMap, BTreeSet};

use crate::figures::Figures;
use crate::peers::leasehold;
use crate::report::chart::{Axis, Chart, Line};
use crate::statistics::quantile;
use crate::works::handoff;

pub fn draw(figures: &Figures) -> Vec<(&'static str, String)> {
    let charts = [
        ("throughput.svg", throughput(figures)),
        ("handoff.svg", handoffs(figures)),
        (
            "held.svg",
            cost(figures, 'C', "What held leases cost", "leases held, ttl 30 s"),
        ),
        (
            "waiting.svg",
            cost(figures, 'D', "What waiters cost", "waiters in line for one name"),
        ),
    ];
    let drawn = charts.into_iter().filter(|(_, chart)| !chart.lines.is_empty());
    drawn.map(|(name, chart)| (name, chart.draw())).collect()
}

fn throughput(figures: &Figures) -> Chart {
    Chart {
        title: "Acquire and release, nobody else wanting the name",
        subtitle: "cycles a second by tasks, medians of the rounds",
        x: logarithmic("tasks"),
        y: logarithmic("cycles/s"),
        lines: lines(figures, 'A', "cycles/s"),
    }
}

/// How many hand-offs took at most so long.
fn handoffs(figures: &Figures) -> Chart {
    let mut lines: Vec<Line> = figures
        .latencies()
        .filter(|(key, _)| key.work == 'B' && key.size == handoff::COUNTED_LINE as u64)
        .map(|(key, sample)| {
            let sorted = crate::statistics::sorted(sample.iter().copied());
            let points = (1..=200).filter_map(|half_per_cent| {
                let share = f64::from(half_per_cent) / 200.0;
                Some((quantile(&sorted, share)?, share * 100.0))
            });
            Line {
                name: key.peer,
                points: points.collect(),
            }
        })
        .collect();
    ours_first(&mut lines);
    Chart {
        title: "From the release to the next holder, 64 waiters on one name",
        subtitle: "share of the hand-offs that took at most so long, all rounds",
        x: logarithmic("milliseconds"),
        y: Axis {
            title: "% of hand-offs",
            is_logarithmic: false,
        },
        lines,
    }
}

fn cost(figures: &Figures, work: char, title: &'static str, x: &'static str) -> Chart {
    Chart {
        title,
        subtitle: "per cent of one core, client and server together, medians of the rounds",
        x: logarithmic(x),
        y: logarithmic("% of a core"),
        lines: lines(figures, work, "cpu %"),
    }
}

/// A line for each peer, over sizes above 0.
fn lines(figures: &Figures, work: char, measure: &str) -> Vec<Line> {
    let mut by_peer: BTreeMap<&'static str, Vec<(f64, f64)>> = BTreeMap::new();
    let keys: BTreeSet<_> = figures.keys().filter(|key| key.size > 0).collect();
    for key in keys {
        if let Some(found) = figures
            .spread(key)
            .filter(|_| (key.work, key.measure) == (work, measure))
        {
            by_peer
                .entry(key.peer)
                .or_default()
                .push((key.size as f64, found.median));
        }
    }
    let mut lines: Vec<_> = by_peer
        .into_iter()
        .map(|(name, points)| Line { name, points })
        .collect();
    ours_first(&mut lines);
    lines
}

fn ours_first(lines: &mut [Line]) {
    lines.sort_by_key(|line| line.name != leasehold::NAME);
}

fn logarithmic(title: &'static str) -> Axis {
    Axis {
        title,
        is_logarithmic: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Key;

    #[test]
    fn each_work_that_was_measured_has_its_picture_and_ours_is_the_first_line() {
        let mut figures = Figures::default();
        assert!(draw(&figures).is_empty());

        for peer in ["a peer", leasehold::NAME] {
            figures.record(Key::new('A', "cycles/s", peer, 1), 0, 100.0);
            figures.record(Key::new('C', "cpu %", peer, 1000), 0, 0.5);
            figures.record_latencies(Key::new('B', "", peer, 64), 0, vec![0.5, 1.0, 2.0]);
        }

        let names: Vec<_> = draw(&figures).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["throughput.svg", "handoff.svg", "held.svg"]);
        assert_eq!(throughput(&figures).lines[0].name, leasehold::NAME);
        assert_eq!(handoffs(&figures).lines[0].points.len(), 200);
    }
}
