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
    /// Was in a batch that was refused: goes by itself, so that a bad request fails alone.
    alone: bool,
    attempt: u32,
    not_before: Option<Instant>,
}

impl<R> Waiting<R> {
    pub(super) fn new(request: R) -> Self {
        Self {
            request,
            unanswered: false,
            alone: false,
            attempt: 0,
            not_before: None,
        }
    }

    pub(super) fn by_itself(mut self) -> Self {
        self.alone = true;
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

    /// The next batch: what is due, oldest first, one request per name, at most `cap`.
    pub(super) fn take_batch(&mut self, now: Instant, cap: usize) -> Vec<Waiting<R>> {
        let mut batch: Vec<Waiting<R>> = Vec::new();
        let mut names = HashSet::new();
        let mut left = VecDeque::new();
        while let Some(waiting) = self.waiting.pop_front() {
            if batch.len() >= cap || batch.first().is_some_and(|first| first.alone) {
                left.push_back(waiting);
                break;
            }
            let fits = waiting.is_due(now)
                && (!waiting.alone || batch.is_empty())
                && names.insert(waiting.request.name().clone());
            if fits {
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
}

impl Named for AcquireRequest {
    fn name(&self) -> &LockName {
        &self.args.name
    }
}

impl Named for ReleaseRequest {
    fn name(&self) -> &LockName {
        &self.args.name
    }
}

const BACKOFF_BASE: Duration = Duration::from_millis(1);
