//! What the endpoint answers, as Prometheus sees it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Outcome;

/// One answer.
#[derive(Debug)]
pub struct Scrape {
    /// Seconds since the beginning.
    pub at: f64,
    series: Vec<Series>,
}

#[derive(Debug)]
struct Series {
    metric: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Scrape {
    pub async fn of(address: SocketAddr, at: Duration) -> Outcome<Self> {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let Some((_, body)) = answer.split_once("\r\n\r\n").filter(|(head, _)| head.contains(" 200 ")) else {
            return Err(format!("the endpoint answers {answer:?}").into());
        };
        Ok(Self {
            at: at.as_secs_f64(),
            series: body.lines().filter_map(series).collect(),
        })
    }

    /// The values of a metric, summed by a label.
    pub fn by(&self, metric: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for series in self.series.iter().filter(|series| series.metric == metric) {
            let value = series.labels.get(label).cloned().unwrap_or_default();
            *sums.entry(value).or_insert(0.0) += series.value;
        }
        sums
    }

    /// How many samples a histogram has at or below each bound, in rising order; of those series alone
    /// that carry the label, when one is given.
    pub fn buckets(&self, metric: &str, with: Option<(&str, &str)>) -> Vec<(f64, f64)> {
        let bucket = format!("{metric}_bucket");
        let mut counts: Vec<(f64, f64)> = Vec::new();
        for series in self.series.iter().filter(|series| series.metric == bucket) {
            let is_asked_for = with.is_none_or(|(label, value)| series.labels.get(label).is_some_and(|of| of == value));
            let bound = series.labels.get("le").and_then(|bound| bound.parse().ok());
            let Some(bound) = bound.filter(|_| is_asked_for) else {
                continue;
            };
            match counts.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, count)) => *count += series.value,
                None => counts.push((bound, series.value)),
            }
        }
        counts.sort_by(|one, other| one.0.total_cmp(&other.0));
        counts
    }
}

/// A line that is neither empty nor a comment. No label of this crate has a quote or a comma in it.
fn series(line: &str) -> Option<Series> {
    let (key, value) = line.trim().rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let (metric, labels) = match key.split_once('{') {
        Some((metric, labels)) => (metric, labels.trim_end_matches('}')),
        None => (key, ""),
    };
    let labels = labels.split(',').filter_map(|label| {
        let (name, value) = label.split_once('=')?;
        Some((name.to_owned(), value.trim_matches('"').to_owned()))
    });
    Some(Series {
        metric: metric.to_owned(),
        labels: labels.collect(),
        value: value.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_taken_apart_into_metric_labels_and_value() {
        let read = series("a_bucket{class=\"\",le=\"+Inf\"} 3").unwrap();

        assert_eq!((&*read.metric, read.value), ("a_bucket", 3.0));
        assert_eq!(read.labels["class"], "");
        assert_eq!(read.labels["le"].parse(), Ok(f64::INFINITY));
        assert!(series("# TYPE a histogram").is_none() && series("").is_none());
        assert_eq!(series("b 0.5").unwrap().value, 0.5);
    }
}
