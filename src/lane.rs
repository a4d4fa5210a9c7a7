//! The lane: the client's one connection for lease statements, and the task that owns it.
//!
//! Callers hand requests in and wait for answers; whatever has gathered while a statement was
//! under way goes out together in the next one. A dropped future therefore never drops a
//! statement, a full pool never costs a lease, and time-outs, reconnects and retries live here
//! alone:
//!
//! ```text
//!   connecting ──▶ ready ──▶ statement under way ──▶ ready
//!       ▲                            │ cut, or no answer in time
//!       └────────────────────────────┘ (requests go back in line; every one is repeatable)
//! ```
//!
//! 1. Renewals go first; releases, acquires and the queue take turns; the sweep goes last.
//! 2. A batch takes what is due, oldest first, one request per name unless many wait or it waits
//!    for nothing. It never waits to fill up, but lets those run first who were just answered.
//! 3. One bad request never fails its neighbours: a refused batch is sent again in halves.
//! 4. A statement is never cancelled. Under synchronous replication a cancel turns the wait into
//!    a success that only the primary knows of.
//! 5. What a given-up connection may still commit (see [`ghosts`]) is undone until it cannot.
//! 6. At most two given-up connections at work at a time; until one ends, nothing that waits for
//!    a flush is sent.
//!
//! What a lease means is left to [`crate::keeper`], who waits for a name to [`crate::queue`].

mod ghosts;
mod lines;
mod queue;
mod session;
mod steps;
mod task;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::belief::Belief;
use crate::name::LockName;
use crate::owner::OwnerToken;
use crate::roster::Roster;
use crate::store::{AcquireArgs, Beat, ClientArgs, Mode, NotGranted, ReleaseArgs, RenewArgs, RenewOutcome};
use crate::token::FencingToken;
use crate::trust::Moment;

#[cfg(any(test, fuzzing))]
pub(crate) use session::{Severity, is_final, severity};

pub(crate) type Fault = Arc<sqlx::Error>;

/// Hands requests to the lane. The lane ends when the last handle is gone and all is answered.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    inbox: mpsc::UnboundedSender<Request>,
    last_fault: Arc<Mutex<Option<Fault>>>,
    options: LaneOptions,
}

/// How the lane sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneOptions {
    /// The connection goes through a pooler in transaction mode.
    pub(crate) pooler: bool,
}

impl LaneOptions {
    pub(crate) fn mode(self) -> Mode {
        Mode {
            prepared: !self.pooler,
            wrapped: self.pooler,
        }
    }
}

impl Lane {
    /// Starts the task. The connection is made when the first request comes.
    pub(crate) fn start(pool: PgPool, options: LaneOptions) -> Self {
        let (inbox, requests) = mpsc::unbounded_channel();
        let last_fault = Arc::default();
        let lane = Self {
            inbox,
            last_fault,
            options,
        };
        tokio::spawn(task::Task::new(pool, options, requests, &lane).run());
        lane
    }

    /// A lane that sends nothing: a test reads what would be sent, and answers.
    #[cfg(test)]
    pub(crate) fn scripted() -> (Self, mpsc::UnboundedReceiver<Request>) {
        let (inbox, requests) = mpsc::unbounded_channel();
        let last_fault = Arc::default();
        let options = LaneOptions { pooler: false };
        let lane = Self {
            inbox,
            last_fault,
            options,
        };
        (lane, requests)
    }

    /// Asks once. The answer may be `Busy`; the caller asks again.
    pub(crate) async fn acquire(&self, args: AcquireArgs) -> Result<Answer, AskFailed> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Acquire(AcquireRequest { args, reply });
        self.inbox.send(request).map_err(|_| AskFailed::Closed)?;
        answer.await.unwrap_or(Err(AskFailed::Closed))
    }

    /// Renews those of the leases that are still believed in when the statement leaves.
    pub(crate) fn renew(&self, leases: Vec<RenewRequest>, answers: mpsc::UnboundedSender<RenewAnswer>) {
        let _ = self.inbox.send(Request::Renew { leases, answers });
    }

    /// Releases, again and again until it is answered or `until` has passed. Sent now: dropping
    /// the receiver changes nothing.
    pub(crate) fn release(&self, args: ReleaseArgs, until: Instant) -> oneshot::Receiver<Result<ReleaseAnswer, Fault>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.inbox.send(Request::Release(ReleaseRequest {
            args,
            until,
            wakes: true,
            reply: Some(reply),
        }));
        answer
    }

    /// Nobody wants this acquisition any more. Undoes what may still be granted to it.
    pub(crate) fn abandon(&self, owner: OwnerToken) {
        let _ = self.inbox.send(Request::Abandon(owner));
    }

    /// Takes a waiter out of line, in time or not at all: without its client's heartbeat it is
    /// passed over after `client_ttl`, and the next heartbeat does not name it.
    pub(crate) fn leave(&self, owner: OwnerToken, client_ttl: Duration) {
        let until = Instant::now() + client_ttl;
        let _ = self.inbox.send(Request::Leave { owner, until });
    }

    /// Passes a wake-up on to the first in line.
    pub(crate) fn wake(&self, name: LockName) {
        let _ = self.inbox.send(Request::Wake(name));
    }

    /// Keeps alive whoever is on the roster when the statement leaves.
    pub(crate) fn heartbeat(
        &self,
        client: ClientArgs,
        roster: Arc<Roster>,
        ping: bool,
    ) -> oneshot::Receiver<Result<Vec<Beat>, Fault>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.inbox.send(Request::Heartbeat(HeartbeatRequest {
            client,
            roster,
            ping,
            reply,
        }));
        answer
    }

    /// Answers what has been asked and closes the connection. Nothing is granted any more.
    pub(crate) async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.inbox.send(Request::Close(reply)).is_ok() {
            let _ = closed.await;
        }
    }

    /// How statements are sent where the pool leads.
    pub(crate) fn mode(&self) -> Mode {
        self.options.mode()
    }

    /// What the connection last complained of, while it is down.
    pub(crate) fn last_fault(&self) -> Option<Fault> {
        self.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the lane answers to an acquire.
#[derive(Debug)]
pub(crate) enum Answer {
    Granted(Grant),
    NotGranted(NotGranted),
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum AskFailed {
    Closed,
    Refused(Fault),
}

/// A grant on its way to its owner. Dropped before it is accepted, it is released.
#[derive(Debug)]
pub(crate) struct Grant {
    facts: Option<GrantFacts>,
    inbox: mpsc::WeakUnboundedSender<Request>,
}

#[derive(Debug, Clone)]
pub(crate) struct GrantFacts {
    pub(crate) args: AcquireArgs,
    pub(crate) token: FencingToken,
    pub(crate) attempted: Moment,
    pub(crate) expires_in: Duration,
}

impl Grant {
    pub(crate) fn facts(&self) -> &GrantFacts {
        self.facts.as_ref().expect("a grant is accepted once")
    }

    pub(crate) fn accept(mut self) -> GrantFacts {
        self.facts.take().expect("a grant is accepted once")
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let (Some(facts), Some(inbox)) = (self.facts.take(), self.inbox.upgrade()) {
            let _ = inbox.send(Request::Release(facts.into_release()));
        }
    }
}

impl GrantFacts {
    fn into_release(self) -> ReleaseRequest {
        ReleaseRequest::unasked(self.args.name, self.args.owner, self.args.ttl)
    }
}

/// A lease to renew, if it is still believed in by then.
#[derive(Debug, Clone)]
pub(crate) struct RenewRequest {
    pub(crate) args: RenewArgs,
    pub(crate) belief: Arc<Belief>,
    /// After how long without an answer the connection is given up.
    pub(crate) patience: Duration,
}

#[derive(Debug)]
pub(crate) struct RenewAnswer {
    pub(crate) owner: OwnerToken,
    /// When the statement left.
    pub(crate) attempted: Moment,
    pub(crate) outcome: Result<RenewOutcome, Fault>,
}

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseAnswer {
    Released,
    HeldOn,
    NotOwner,
    /// An earlier try was not answered and the lease is not ours now, or no try was.
    Unknown,
}

#[derive(Debug)]
pub(crate) enum Request {
    Acquire(AcquireRequest),
    Renew {
        leases: Vec<RenewRequest>,
        answers: mpsc::UnboundedSender<RenewAnswer>,
    },
    Release(ReleaseRequest),
    Abandon(OwnerToken),
    Leave {
        owner: OwnerToken,
        until: Instant,
    },
    Wake(LockName),
    Heartbeat(HeartbeatRequest),
    Close(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(crate) struct AcquireRequest {
    args: AcquireArgs,
    reply: oneshot::Sender<Result<Answer, AskFailed>>,
}

#[derive(Debug)]
pub(crate) struct HeartbeatRequest {
    client: ClientArgs,
    roster: Arc<Roster>,
    ping: bool,
    reply: oneshot::Sender<Result<Vec<Beat>, Fault>>,
}

#[derive(Debug)]
pub(crate) struct ReleaseRequest {
    pub(crate) args: ReleaseArgs,
    until: Instant,
    /// Whether it tells the first in line. Not after the server has refused to take that in.
    wakes: bool,
    reply: Option<oneshot::Sender<Result<ReleaseAnswer, Fault>>>,
}

impl ReleaseRequest {
    /// One that nobody waits for.
    fn unasked(name: LockName, owner: OwnerToken, ttl: Duration) -> Self {
        Self {
            args: ReleaseArgs {
                name,
                owner,
                hold_at_least: Duration::ZERO,
            },
            until: Instant::now() + ttl,
            wakes: true,
            reply: None,
        }
    }

    fn answer(&mut self, answer: Result<ReleaseAnswer, Fault>) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(answer);
        }
    }
}
