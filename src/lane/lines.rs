//! The lines in which requests wait: oldest first, each with its own time to go again.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::name::LockName;
use crate::trust::{full_jitter, random};

use super::{AcquireRequest, ReleaseRequest};

/// A request in line.
#[derive(Debug)]
pub(super) struct Waiting<R> {
    pub(super) request: R,
    /// An earlier try was not answered: it may have been carried out.
    pub(super) unanswered: bool,
    /// The largest batch it may ride in: less after each refused one, so that a bad request ends
    /// up by itself and fails alone.
    batch_at_most: usize,
    attempt: u32,
    not_before: Option<Instant>,
}

impl<R> Waiting<R> {
    pub(super) fn new(request: R) -> Self {
        Self {
            request,
            unanswered: false,
            batch_at_most: usize::MAX,
            attempt: 0,
            not_before: None,
        }
    }

    /// Was in a batch of `refused`, which was refused for one of them.
    pub(super) fn in_half_of(mut self, refused: usize) -> Self {
        self.batch_at_most = (refused / 2).max(1);
        self
    }

    pub(super) fn unanswered(mut self) -> Self {
        self.unanswered = true;
        self
    }

    /// Goes again after a backoff with full jitter, from a millisecond up to `cap`.
    pub(super) fn later(mut self, cap: Duration) -> Self {
        self.not_before = Some(Instant::now() + full_jitter(BACKOFF_BASE, cap, self.attempt, random()));
        self.attempt = self.attempt.saturating_add(1);
        self
    }

    fn is_due(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }
}

/// Requests of one kind, oldest first.
#[derive(Debug)]
pub(super) struct Line<R> {
    waiting: VecDeque<Waiting<R>>,
}

impl<R> Default for Line<R> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
        }
    }
}

impl<R: Named> Line<R> {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, waiting: Waiting<R>) {
        self.waiting.push_back(waiting);
    }

    /// Puts a batch back where it came from.
    pub(super) fn push_front(&mut self, batch: impl DoubleEndedIterator<Item = Waiting<R>>) {
        for waiting in batch.rev() {
            self.waiting.push_front(waiting);
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.waiting.iter().any(|waiting| waiting.is_due(now))
    }

    /// When the next request is due that is not due yet.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.waiting
            .iter()
            .filter_map(|waiting| waiting.not_before)
            .filter(|at| *at > now)
            .min()
    }

    /// The next batch: what is due, oldest first, at most `cap`. One request per name, so that whoever
    /// was woken does not wait for the longer statement of those who come to stand in line; of a long
    /// line several, which would each wait for all the others. Those who do not wait are no burden.
    pub(super) fn take_batch(&mut self, now: Instant, cap: usize) -> Vec<Waiting<R>> {
        let mut batch: Vec<Waiting<R>> = Vec::new();
        let mut names = HashSet::new();
        let mut left = VecDeque::new();
        let is_long = self.waiting.len() > LONG;
        let mut most = cap;
        while let Some(waiting) = self.waiting.pop_front() {
            if batch.len() >= most {
                left.push_back(waiting);
                break;
            }
            let fits = waiting.is_due(now)
                && batch.len() < waiting.batch_at_most
                && (is_long || waiting.request.asks_once() || names.insert(waiting.request.name().clone()));
            if fits {
                most = most.min(waiting.batch_at_most);
                batch.push(waiting);
            } else {
                left.push_back(waiting);
            }
        }
        left.append(&mut self.waiting);
        self.waiting = left;
        batch
    }

    /// Takes out what `unwanted` says yes to.
    pub(super) fn extract(&mut self, mut unwanted: impl FnMut(&R) -> bool) -> Vec<Waiting<R>> {
        let mut out = Vec::new();
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            if unwanted(&waiting.request) {
                out.push(waiting);
            } else {
                self.waiting.push_back(waiting);
            }
        }
        out
    }
}

pub(super) trait Named {
    fn name(&self) -> &LockName;

    /// Whether it asks without standing in line.
    fn asks_once(&self) -> bool {
        false
    }
}

impl Named for AcquireRequest {
    fn name(&self) -> &LockName {
        &self.args.name
    }

    fn asks_once(&self) -> bool {
        self.args.client.is_none()
    }
}

impl Named for ReleaseRequest {
    fn name(&self) -> &LockName {
        &self.args.name
    }
}

/// From how many requests on a line takes several for one name at a time.
const LONG: usize = 32;

const BACKOFF_BASE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    impl Named for LockName {
        fn name(&self) -> &LockName {
            self
        }
    }

    #[test]
    fn a_bad_request_ends_up_alone_after_few_batches_and_its_neighbours_go_together() {
        let names = |count: u32| (0..count).map(|number| LockName::new(format!("{number}")).expect("it is short"));
        for bad in names(256) {
            let mut line = Line::default();
            names(256).for_each(|name| line.push(Waiting::new(name)));

            let (mut batches, mut granted, mut refused) = (0, 0, 0);
            while !line.is_empty() {
                let batch = line.take_batch(Instant::now(), 256);
                batches += 1;
                match batch.len() {
                    len if batch.iter().all(|waiting| waiting.request != bad) => granted += len,
                    1 => refused += 1,
                    len => line.push_front(batch.into_iter().map(|waiting| waiting.in_half_of(len))),
                }
            }

            assert_eq!((granted, refused), (255, 1), "{bad}");
            assert!(batches <= 17, "{bad}: {batches}");
        }
    }
}
