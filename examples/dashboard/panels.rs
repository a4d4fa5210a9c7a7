//! What the panels show: the queries of `grafana.json`, computed from scrapes.

use std::collections::BTreeMap;

use crate::Outcome;
use crate::scrape::Scrape;

/// A panel of the dashboard.
pub struct Panel {
    pub title: &'static str,
    pub shows: Shows,
}

#[derive(Debug, Clone, Copy)]
pub enum Shows {
    /// A gauge, as it is.
    Now(&'static str, By),
    /// A counter's rate.
    Rate(&'static str, By),
    /// Median and 99th percentile of a histogram, of those of its series that have the label.
    Quantiles(&'static str, Option<(&'static str, &'static str)>),
}

/// The label whose values have a line each.
type By = &'static str;

/// Points of a line: seconds since the beginning, and the value.
pub type Line = Vec<(f64, f64)>;

impl Panel {
    pub fn lines(&self, scrapes: &[Scrape]) -> BTreeMap<String, Line> {
        let mut lines: BTreeMap<String, Line> = BTreeMap::new();
        for (number, scrape) in scrapes.iter().enumerate() {
            let since = scrapes[..number]
                .iter()
                .find(|earlier| scrape.at - earlier.at <= WINDOW);
            for (legend, value) in self.values(since, scrape) {
                lines.entry(legend).or_default().push((scrape.at, value));
            }
        }
        lines
    }

    fn values(&self, since: Option<&Scrape>, now: &Scrape) -> BTreeMap<String, f64> {
        match self.shows {
            Shows::Now(metric, by) => now.by(metric, by),
            Shows::Rate(metric, by) => since.map(|since| rates(since, now, metric, by)).unwrap_or_default(),
            Shows::Quantiles(metric, with) => {
                let samples = since.map(|since| samples(since, now, metric, with)).unwrap_or_default();
                let quantiles = [("median", 0.5), ("99 %", 0.99)];
                let values = quantiles.map(|(legend, share)| Some((legend.to_owned(), quantile(&samples, share)?)));
                values.into_iter().flatten().collect()
            }
        }
    }
}

/// Every panel has to show something, every loss and refusal that there was, and nothing may still be
/// counted after the end.
pub fn check(scrapes: &[Scrape], after: &Scrape) -> Outcome<()> {
    for panel in PANELS {
        let lines = panel.lines(scrapes);
        if !lines.values().flatten().any(|(_, value)| *value > 0.0) {
            return Err(format!("{:?} shows nothing", panel.title).into());
        }
        if let Shows::Now(metric, by) = panel.shows
            && after.by(metric, by).values().any(|value| *value != 0.0)
        {
            return Err(format!("{:?} after the end: {:?}", panel.title, after.by(metric, by)).into());
        }
    }
    for (metric, by, all) in [(LOST, "cause", &CAUSES[..]), (REJECTIONS, "check", &CHECKS)] {
        let told = after.by(metric, by);
        if told.keys().ne(all) {
            return Err(format!("{metric} knows {told:?}, and {all:?} there were").into());
        }
    }
    Ok(())
}

fn rates(since: &Scrape, now: &Scrape, metric: &str, by: By) -> BTreeMap<String, f64> {
    let before = since.by(metric, by);
    let rate = |(legend, value): (String, f64)| {
        let more = value - before.get(&legend).unwrap_or(&0.0);
        (legend, more / (now.at - since.at))
    };
    now.by(metric, by).into_iter().map(rate).collect()
}

/// How many samples have come at or below each bound.
fn samples(since: &Scrape, now: &Scrape, metric: &str, with: Option<(&str, &str)>) -> Vec<(f64, f64)> {
    let before = since.buckets(metric, with);
    let more = |(bound, count): (f64, f64)| {
        let before = before.iter().find(|(of, _)| *of == bound);
        (bound, count - before.map_or(0.0, |(_, count)| *count))
    };
    now.buckets(metric, with).into_iter().map(more).collect()
}

/// As Prometheus estimates it: evenly spread within a bucket.
fn quantile(buckets: &[(f64, f64)], share: f64) -> Option<f64> {
    let (_, all) = buckets.last().copied().filter(|(_, all)| *all > 0.0)?;
    let (mut lower, mut below) = (0.0, 0.0);
    for &(bound, count) in buckets {
        if count >= share * all {
            let within = (share * all - below) / (count - below);
            return Some(if bound.is_finite() {
                lower + (bound - lower) * within
            } else {
                lower
            });
        }
        (lower, below) = (bound, count);
    }
    None
}

/// Over how many seconds rates and quantiles are taken.
pub const WINDOW: f64 = 5.0;

const ACQUIRE: &str = "leasehold_acquire_duration_seconds";
const LOST: &str = "leasehold_leases_lost_total";
const REJECTIONS: &str = "leasehold_fencing_rejections_total";

/// What happens to the application's leases.
const CAUSES: [&str; 5] = ["closed", "expired", "fenced", "gone", "held_at_most"];
const CHECKS: [&str; 2] = ["admit", "fence"];

pub const PANELS: [Panel; 9] = [
    Panel {
        title: "Acquisitions a second, by outcome",
        shows: Shows::Rate("leasehold_acquire_duration_seconds_count", "outcome"),
    },
    Panel {
        title: "Time to a grant",
        shows: Shows::Quantiles(ACQUIRE, Some(("outcome", "granted"))),
    },
    Panel {
        title: "Hand-off",
        shows: Shows::Quantiles("leasehold_handoff_duration_seconds", None),
    },
    Panel {
        title: "Waiters, by class",
        shows: Shows::Now("leasehold_waiters", "class"),
    },
    Panel {
        title: "Leases held, by class",
        shows: Shows::Now("leasehold_leases_held", "class"),
    },
    Panel {
        title: "Waits timed out a second, by class",
        shows: Shows::Rate("leasehold_wait_timeouts_total", "class"),
    },
    Panel {
        title: "Renewals failed a second, by class",
        shows: Shows::Rate("leasehold_renewal_failures_total", "class"),
    },
    Panel {
        title: "Leases lost a second, by cause",
        shows: Shows::Rate(LOST, "cause"),
    },
    Panel {
        title: "Stale holders refused a second, by check",
        shows: Shows::Rate(REJECTIONS, "check"),
    },
];

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn panels_are_those_of_the_dashboard_and_ask_for_the_same_metrics() {
        let dashboard: Value = serde_json::from_str(include_str!("grafana.json")).unwrap();
        let theirs = dashboard["panels"].as_array().unwrap();

        assert_eq!(theirs.len(), PANELS.len());
        for (ours, theirs) in PANELS.iter().zip(theirs) {
            assert_eq!(theirs["title"], ours.title);
            let asked = match ours.shows {
                Shows::Now(metric, by) => format!("sum by ({by}) ({metric}{{"),
                Shows::Rate(metric, by) => format!("sum by ({by}) (rate({metric}{{"),
                Shows::Quantiles(metric, _) => format!("sum by (le) (rate({metric}_bucket{{"),
            };
            for target in theirs["targets"].as_array().unwrap() {
                let expr = target["expr"].as_str().unwrap();
                assert!(expr.contains(&asked), "{expr}");
                if let Shows::Quantiles(_, Some((label, value))) = ours.shows {
                    assert!(expr.contains(&format!("{label}=\"{value}\"")), "{expr}");
                }
            }
        }
    }

    #[test]
    fn quantiles_are_spread_within_the_bucket_they_fall_into() {
        let buckets = [(1.0, 0.0), (2.0, 10.0), (4.0, 20.0), (f64::INFINITY, 20.0)];

        assert_eq!(quantile(&buckets, 0.25), Some(1.5));
        assert_eq!(quantile(&buckets, 0.75), Some(3.0));
        assert_eq!(quantile(&[(1.0, 0.0), (f64::INFINITY, 3.0)], 0.5), Some(1.0));
        assert_eq!(quantile(&[(1.0, 0.0)], 0.5), None);
    }
}
