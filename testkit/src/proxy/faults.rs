//! What is wrong with the network now.
//!
//! One lock guards all of it, and a chunk is written under that lock, so a change is in
//! force when [`Network::change`] returns. Connections are numbered in the order they
//! were accepted; a fault that hits those open now hits all below the next number.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::requests::Request;

#[derive(Debug)]
pub(super) struct Network {
    faults: Mutex<Faults>,
    changed: Notify,
}

#[derive(Debug)]
pub(super) struct Faults {
    pub(super) upstream: SocketAddr,
    pub(super) requests: Lane,
    pub(super) replies: Lane,
    replies_held_on: HashSet<u64>,
    frozen: HashSet<u64>,
    ended_below: Option<(u64, End)>,
    open: HashSet<u64>,
    next: u64,
    bytes_from_client: u64,
    watches: Vec<Watch>,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) is_held: bool,
    pub(super) latency: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Replies,
}

/// How a connection is ended by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Cut,
    Reset,
}

/// What happens when a request matches.
#[derive(Debug)]
pub(super) enum Then {
    /// Before the request goes on, the replies of its connection are held.
    HoldReplies,
    /// After the request has gone on, somebody hears of it.
    Tell(oneshot::Sender<()>),
}

struct Watch {
    matches: Box<dyn FnMut(&Request<'_>) -> bool + Send>,
    then: Then,
}

/// A connection's place in the books, from accept to end.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) number: u64,
    pub(super) network: Arc<Network>,
}

impl Network {
    pub(super) fn new(upstream: SocketAddr) -> Self {
        let faults = Faults {
            upstream,
            requests: Lane::default(),
            replies: Lane::default(),
            replies_held_on: HashSet::new(),
            frozen: HashSet::new(),
            ended_below: None,
            open: HashSet::new(),
            next: 0,
            bytes_from_client: 0,
            watches: Vec::new(),
        };
        Self {
            faults: Mutex::new(faults),
            changed: Notify::new(),
        }
    }

    /// Changes the faults and wakes everything that waits for it.
    pub(super) fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults());
        self.changed.notify_waiters();
    }

    /// Does `then` for the next request that `matches`.
    pub(super) fn watch(&self, matches: impl FnMut(&Request<'_>) -> bool + Send + 'static, then: Then) {
        self.faults().watches.push(Watch {
            matches: Box::new(matches),
            then,
        });
    }

    pub(super) fn admit(self: &Arc<Self>) -> Admission {
        let mut faults = self.faults();
        let number = faults.next;
        faults.next += 1;
        faults.open.insert(number);
        Admission {
            number,
            network: Arc::clone(self),
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.faults().open.len()
    }

    pub(super) fn accepted(&self) -> u64 {
        self.faults().next
    }

    pub(super) fn bytes_from_client(&self) -> u64 {
        self.faults().bytes_from_client
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks `question` now and after each change, until it has an answer.
    pub(super) async fn when<T>(&self, mut question: impl FnMut(&mut Faults) -> Option<T>) -> T {
        loop {
            // Registered before the question, so that no change falls between the two.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(answer) = question(&mut self.faults()) {
                return answer;
            }
            changed.await;
        }
    }
}

impl Faults {
    pub(super) fn resume(&mut self) {
        self.requests.is_held = false;
        self.replies.is_held = false;
        self.replies_held_on.clear();
        self.watches.retain(|watch| !matches!(watch.then, Then::HoldReplies));
    }

    pub(super) fn freeze_existing(&mut self) {
        self.frozen.extend(&self.open);
    }

    pub(super) fn end_existing(&mut self, end: End) {
        self.ended_below = Some((self.next, end));
        // They count as gone at once, though their tasks are still about to see it.
        self.open.clear();
    }

    pub(super) fn is_held(&self, connection: u64, direction: Direction) -> bool {
        self.frozen.contains(&connection)
            || match direction {
                Direction::Requests => self.requests.is_held,
                Direction::Replies => self.replies.is_held || self.replies_held_on.contains(&connection),
            }
    }

    pub(super) fn end_of(&self, connection: u64) -> Option<End> {
        if self.open.contains(&connection) {
            return None;
        }
        self.ended_below
            .filter(|(below, _)| connection < *below)
            .map(|(_, end)| end)
    }

    pub(super) fn latency(&self, direction: Direction) -> Duration {
        match direction {
            Direction::Requests => self.requests.latency,
            Direction::Replies => self.replies.latency,
        }
    }

    pub(super) fn count(&mut self, sent: usize) {
        self.bytes_from_client += sent as u64;
    }

    /// Applies what was armed for `request`; returns whom to tell once it has gone on.
    pub(super) fn meet(&mut self, connection: u64, request: &Request<'_>) -> Vec<oneshot::Sender<()>> {
        let met = self
            .watches
            .extract_if(.., |watch| (watch.matches)(request))
            .collect::<Vec<_>>();
        let mut to_tell = Vec::new();
        for watch in met {
            match watch.then {
                Then::HoldReplies => drop(self.replies_held_on.insert(connection)),
                Then::Tell(seen) => to_tell.push(seen),
            }
        }
        to_tell
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut faults = self.network.faults();
        faults.open.remove(&self.number);
        faults.frozen.remove(&self.number);
        faults.replies_held_on.remove(&self.number);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Watch")
            .field("then", &self.then)
            .finish_non_exhaustive()
    }
}
