//! What the crate tells in numbers. A test and its client run on one thread, on which its own recorder
//! listens, so that no other test's numbers are among them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use metrics::LocalRecorderGuard;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// A recorder and what it has recorded.
pub(crate) struct Meter {
    recorder: DebuggingRecorder,
    snapshotter: Snapshotter,
    seen: RefCell<BTreeMap<Series, Told>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Series {
    pub(crate) metric: String,
    pub(crate) labels: BTreeMap<String, String>,
}

/// What was told under one set of labels.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// Of a counter or a gauge.
    pub(crate) value: f64,
    /// Of a histogram.
    pub(crate) samples: Vec<f64>,
    pub(crate) unit: Option<&'static str>,
    pub(crate) description: String,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let recorder = DebuggingRecorder::new();
        Self {
            snapshotter: recorder.snapshotter(),
            recorder,
            seen: RefCell::default(),
        }
    }

    /// Records what this thread tells, until the guard is dropped.
    pub(crate) fn listen(&self) -> LocalRecorderGuard<'_> {
        metrics::set_default_local_recorder(&self.recorder)
    }

    /// A counter or a gauge; zero before it was first told.
    pub(crate) fn value(&self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        self.get(metric, labels).unwrap_or_default().value
    }

    pub(crate) fn samples(&self, metric: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        self.get(metric, labels).unwrap_or_default().samples
    }

    /// Whether anything was told under these labels.
    pub(crate) fn told(&self, metric: &str, labels: &[(&str, &str)]) -> bool {
        self.get(metric, labels).is_some()
    }

    /// All that was told until now.
    pub(crate) fn all(&self) -> BTreeMap<Series, Told> {
        let mut seen = self.seen.borrow_mut();
        for (key, unit, description, value) in self.snapshotter.snapshot().into_vec() {
            let (_, key) = key.into_parts();
            let labels = key
                .labels()
                .map(|label| (label.key().to_owned(), label.value().to_owned()));
            let series = Series {
                metric: key.name().to_owned(),
                labels: labels.collect(),
            };
            let told = seen.entry(series).or_default();
            told.unit = unit.map(|unit| unit.as_str());
            told.description = description.map(|told| (*told).to_owned()).unwrap_or_default();
            // A snapshot begins where the last one ended.
            match value {
                DebugValue::Counter(more) => told.value += more as f64,
                DebugValue::Gauge(more) => told.value += more.into_inner(),
                DebugValue::Histogram(samples) => told.samples.extend(samples.iter().map(|sample| sample.into_inner())),
            }
        }
        seen.clone()
    }

    pub(crate) fn metrics(&self) -> BTreeSet<String> {
        self.all().into_keys().map(|series| series.metric).collect()
    }

    fn get(&self, metric: &str, labels: &[(&str, &str)]) -> Option<Told> {
        let labels = labels
            .iter()
            .map(|&(label, value)| (label.to_owned(), value.to_owned()));
        let series = Series {
            metric: metric.to_owned(),
            labels: labels.collect(),
        };
        self.all().remove(&series)
    }
}
