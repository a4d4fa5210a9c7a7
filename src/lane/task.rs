//! The task that owns the lane's connection: what waits, what goes next, and how it is sent.
//!
//! What each statement's answer means is told in [`super::steps`].

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgPool};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, warn};

use super::ghosts::Ghosts;
use super::lines::{Line, Waiting};
use super::queue::QueueWork;
use super::session::{Session, SessionId, Severity, is_final, severity};
use super::steps::MAX_PATIENCE;
use super::{
    AcquireRequest, AskFailed, Fault, Lane, LaneOptions, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest,
    Request,
};
use crate::error::is_read_only;
use crate::place::{has_left, leaves};
use crate::trust::{full_jitter, random};

#[derive(Debug)]
pub(super) struct Task {
    pool: PgPool,
    options: LaneOptions,
    inbox: mpsc::UnboundedReceiver<Request>,
    /// Whether a request may still come.
    is_open: bool,
    pub(super) weak_inbox: mpsc::WeakUnboundedSender<Request>,
    last_fault: Arc<Mutex<Option<Fault>>>,

    pub(super) renewals: Vec<(RenewRequest, mpsc::UnboundedSender<RenewAnswer>)>,
    pub(super) acquires: Line<AcquireRequest>,
    pub(super) releases: Line<ReleaseRequest>,
    pub(super) queue: QueueWork,
    /// Nothing is granted any more. Releases are still sent, and the connection made again for a
    /// late one: a grant may be on its way to somebody who can but let it go.
    pub(super) is_closing: bool,
    closers: Vec<tokio::sync::oneshot::Sender<()>>,

    pub(super) session: Option<Session>,
    /// What it was made with: the pool's options, read afresh each time, so that rotated credentials
    /// work.
    options_of_session: Arc<PgConnectOptions>,
    sessions: u64,
    pub(super) ghosts: Ghosts,
    /// Failed tries to connect, or statements cut off, since the last answer.
    failures: u32,
    connect_at: Instant,
    pub(super) probe_at: Instant,
    pub(super) sweep_at: Option<Instant>,
    /// Halves the batches once for each statement that took too long.
    shrink: u32,
    /// Answers since then; enough of them double the batches again.
    answers: u32,
    /// What went last of those that take turns.
    last: Turn,
}

/// What came back from a statement.
pub(super) enum Sent<T> {
    Answered(T),
    Refused(Fault, Severity),
    /// The connection is gone, and nobody knows whether the statement was carried out.
    Cut(Fault),
}

enum Step {
    Connect,
    Probe,
    Renew,
    Turn(Turn),
    Sweep,
    WaitUntil(Option<Instant>),
}

/// Those that take turns, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Release,
    Queue,
    Acquire,
}

impl Turn {
    /// The order in which those are asked that come after this one.
    fn others_first(self) -> [Self; 3] {
        match self {
            Self::Release => [Self::Queue, Self::Acquire, Self::Release],
            Self::Queue => [Self::Acquire, Self::Release, Self::Queue],
            Self::Acquire => [Self::Release, Self::Queue, Self::Acquire],
        }
    }
}

impl Task {
    pub(super) fn new(
        pool: PgPool,
        options: LaneOptions,
        inbox: mpsc::UnboundedReceiver<Request>,
        lane: &Lane,
    ) -> Self {
        let now = Instant::now();
        Self {
            options,
            inbox,
            is_open: true,
            weak_inbox: lane.inbox.downgrade(),
            last_fault: Arc::clone(&lane.last_fault),
            renewals: Vec::new(),
            acquires: Line::default(),
            releases: Line::default(),
            queue: QueueWork::default(),
            is_closing: false,
            closers: Vec::new(),
            session: None,
            options_of_session: pool.connect_options(),
            sessions: 0,
            ghosts: Ghosts::default(),
            failures: 0,
            connect_at: now,
            probe_at: now,
            sweep_at: None,
            shrink: 0,
            answers: 0,
            last: Turn::Acquire,
            pool,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            self.gather().await;
            self.drop_unwanted();
            self.follow_pool();
            if self.is_idle() && (self.is_closing || !self.is_open) {
                self.part().await;
                if !self.is_open {
                    break;
                }
            }
            match self.next_step() {
                Step::Connect => self.connect().await,
                Step::Probe => self.probe().await,
                Step::Renew => self.renew().await,
                Step::Turn(Turn::Release) => self.release().await,
                Step::Turn(Turn::Queue) => self.tend_queue().await,
                Step::Turn(Turn::Acquire) => self.acquire().await,
                Step::Sweep => self.sweep().await,
                Step::WaitUntil(at) => self.wait_until(at).await,
            }
        }
    }

    /// Takes in what has come. Whoever was just answered may ask for the next thing, and has only to run
    /// for that: one statement for all of them, instead of one for the first and another for the rest.
    async fn gather(&mut self) {
        self.take_all();
        for _ in 0..MOST_ROUNDS {
            // A renewal waits for nobody.
            if !self.renewals.is_empty() {
                break;
            }
            yield_now().await;
            if !self.take_all() {
                break;
            }
        }
    }

    /// Whether there was anything.
    fn take_all(&mut self) -> bool {
        let mut has_come = false;
        while self.is_open {
            match self.inbox.try_recv() {
                Ok(request) => {
                    has_come = true;
                    self.take(request);
                }
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => self.is_open = false,
            }
        }
        has_come
    }

    /// Leaves a server that the pool has left: the old primary after a failover, which may well go on.
    fn follow_pool(&mut self) {
        if self.session.is_some() && has_left(&self.pool, &self.options_of_session) {
            debug!("the pool connects elsewhere now, lane follows");
            self.session = None;
            self.connect_at = Instant::now();
        }
    }

    /// Returns once the pool has left the server that the lane is on, or connects to.
    fn pool_leaves(&self) -> impl Future<Output = ()> + use<> {
        leaves(self.pool.clone(), Arc::clone(&self.options_of_session))
    }

    /// Closes the connection, and tells those who have asked for it.
    async fn part(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = timeout(GOODBYE, session.conn.close()).await;
        }
        for closer in self.closers.drain(..) {
            let _ = closer.send(());
        }
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Acquire(request) => self.acquires.push(Waiting::new(request)),
            Request::Renew { leases, answers } => {
                self.renewals
                    .extend(leases.into_iter().map(|lease| (lease, answers.clone())));
            }
            Request::Release(request) => self.releases.push(Waiting::new(request)),
            Request::Abandon(owner) => {
                if let Some((name, ttl)) = self.ghosts.asked_for(owner) {
                    self.releases
                        .push(Waiting::new(ReleaseRequest::unasked(name, owner, ttl)));
                }
            }
            Request::Leave { owner, until } => self.queue.leaves.push((owner, until)),
            Request::Wake(name) => self.queue.wakes.push(name),
            Request::Heartbeat(request) => self.queue.heartbeat = Some(request),
            Request::Close(closer) => {
                self.is_closing = true;
                self.closers.push(closer);
            }
        }
    }

    /// What nobody wants any more, or what came too late, is not sent.
    fn drop_unwanted(&mut self) {
        // A lost grant is never renewed again.
        self.renewals
            .retain(|(renewal, answers)| renewal.belief.standing().is_some() && !answers.is_closed());
        let is_closing = self.is_closing;
        for waiting in self.acquires.extract(|request| is_closing || request.reply.is_closed()) {
            self.undo_acquire(waiting.request);
        }
        let now = Instant::now();
        for mut waiting in self.releases.extract(|request| request.until <= now) {
            waiting.request.answer(Ok(ReleaseAnswer::Unknown));
        }
        self.queue.leaves.retain(|(_, until)| *until > now);
        self.queue
            .heartbeat
            .take_if(|request| is_closing || request.reply.is_closed());
    }

    /// Nobody is to be granted this acquire; a try of it that was never answered may yet be.
    fn undo_acquire(&mut self, request: AcquireRequest) {
        let AcquireRequest { args, reply } = request;
        let _ = reply.send(Err(AskFailed::Closed));
        if self.ghosts.asked_for(args.owner).is_some() {
            let release = ReleaseRequest::unasked(args.name, args.owner, args.ttl);
            self.releases.push(Waiting::new(release));
        }
    }

    fn is_idle(&self) -> bool {
        self.renewals.is_empty() && self.acquires.is_empty() && self.releases.is_empty() && self.queue.is_empty()
    }

    fn next_step(&mut self) -> Step {
        let now = Instant::now();
        let acquire = self.acquires.is_due(now);
        let release = self.releases.is_due(now);
        let queue = self.queue.is_due(now);
        let waiting = acquire || release || queue || !self.renewals.is_empty();
        if self.session.is_none() {
            return match waiting {
                true if self.connect_at <= now => Step::Connect,
                true => Step::WaitUntil(Some(self.connect_at)),
                false => Step::WaitUntil(self.next_due(&[])),
            };
        }
        if self.probe_at <= now && !self.ghosts.is_empty() {
            return Step::Probe;
        }
        let flushes = !self.ghosts.is_stalled();
        if flushes && !self.renewals.is_empty() {
            return Step::Renew;
        }
        let is_due = |turn: &Turn| match turn {
            Turn::Release => release,
            Turn::Queue => queue,
            Turn::Acquire => acquire && flushes,
        };
        if let Some(turn) = self.last.others_first().into_iter().find(is_due) {
            self.last = turn;
            return Step::Turn(turn);
        }
        if self.sweep_at.is_some_and(|at| at <= now) {
            return Step::Sweep;
        }
        let probe_at = (!self.ghosts.is_empty()).then_some(self.probe_at);
        Step::WaitUntil(self.next_due(&[probe_at, self.sweep_at]))
    }

    /// When something is due that is not due yet.
    fn next_due(&self, others: &[Option<Instant>]) -> Option<Instant> {
        let now = Instant::now();
        let lines = [
            self.acquires.next_due(now),
            self.releases.next_due(now),
            self.queue.next_due(now),
        ];
        lines.iter().chain(others).copied().flatten().min()
    }

    async fn wait_until(&mut self, at: Option<Instant>) {
        let alarm = async {
            match at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            request = self.inbox.recv(), if self.is_open => self.received(request),
            () = alarm => {}
        }
    }

    fn received(&mut self, request: Option<Request>) {
        match request {
            Some(request) => self.take(request),
            None => self.is_open = false,
        }
    }

    async fn connect(&mut self) {
        let patience = self
            .renewal_patience()
            .unwrap_or(MAX_PATIENCE)
            .clamp(MIN_CONNECT, MAX_PATIENCE);
        self.sessions += 1;
        self.options_of_session = self.pool.connect_options();
        let options = Arc::clone(&self.options_of_session);
        let attempt = Session::connect(&options, self.options, self.sessions);
        let attempt = tokio::select! {
            attempt = timeout(patience, attempt) => attempt,
            () = self.pool_leaves() => return self.failed(left("connecting")),
        };
        let fault = match attempt {
            Ok(Ok(session)) => {
                debug!(connection = ?session.id(), "lane connected");
                self.session = Some(session);
                self.probe_at = Instant::now();
                self.sweep_at
                    .get_or_insert_with(|| Instant::now() + full_jitter(SWEEP_EVERY, SWEEP_EVERY, 0, random()));
                return;
            }
            Ok(Err(fault)) => Arc::new(fault),
            Err(_) => timed_out("connecting"),
        };
        if is_final(&fault) {
            for waiting in self.acquires.extract(|_| true) {
                let _ = waiting.request.reply.send(Err(AskFailed::Refused(Arc::clone(&fault))));
            }
        }
        self.failed(fault);
    }

    fn failed(&mut self, fault: Fault) {
        let pause = full_jitter(RECONNECT_BASE, RECONNECT_CAP, self.failures, random());
        // The first reconnect goes at once: a restarted server or an idle time-out is common.
        let is_elsewhere = has_left(&self.pool, &self.options_of_session);
        let at_once = self.failures == 0 || is_elsewhere;
        self.connect_at = Instant::now() + if at_once { Duration::ZERO } else { pause };
        self.failures = self.failures.saturating_add(1);
        warn!(error = %fault, failures = self.failures, "lane lost its connection, reconnecting");
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    /// Sends one statement and goes on taking requests meanwhile. A renewal that comes in cannot
    /// wait for longer than its own patience, so it shortens this one's.
    pub(super) async fn exchange<T>(
        &mut self,
        on: SessionId,
        patience: Duration,
        statement: impl Future<Output = (Session, Result<T, sqlx::Error>)>,
    ) -> Sent<T> {
        let mut limit = Instant::now() + patience;
        let mut statement = pin!(statement);
        let mut pool_leaves = pin!(self.pool_leaves());
        let mut alarm = pin!(sleep_until(limit));
        let answered = loop {
            tokio::select! {
                biased;
                answered = &mut statement => break Ok(answered),
                request = self.inbox.recv(), if self.is_open => {
                    self.received(request);
                    if let Some(patience) = self.renewal_patience() {
                        limit = limit.min(Instant::now() + patience);
                        alarm.as_mut().reset(limit);
                    }
                }
                () = &mut alarm => break Err(timed_out("waiting for an answer")),
                // It may never be answered there, and what is answered there no longer counts.
                () = &mut pool_leaves => break Err(left("waiting for an answer")),
            }
        };
        let (session, answer) = match answered {
            Ok(answered) => answered,
            Err(fault) => {
                self.ghosts.give_up(on);
                self.failed(Arc::clone(&fault));
                return Sent::Cut(fault);
            }
        };
        let fault = match answer {
            Ok(answer) => {
                self.session = Some(session);
                self.answers = self.answers.saturating_add(1);
                if self.answers >= GROW_AFTER {
                    self.answers = 0;
                    self.shrink = self.shrink.saturating_sub(1);
                }
                if std::mem::take(&mut self.failures) > 0 {
                    *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
                return Sent::Answered(answer);
            }
            Err(fault) => Arc::new(fault),
        };
        match severity(&fault) {
            Severity::Cut => {
                self.ghosts.give_up(on);
                self.failed(Arc::clone(&fault));
                Sent::Cut(fault)
            }
            severity => {
                if severity == Severity::TooLong {
                    self.shrink = (self.shrink + 1).min(MAX_SHRINK);
                    self.answers = 0;
                }
                // A read-only server may be a demoted primary: the next connection may lead on.
                if !is_read_only(&fault) {
                    self.session = Some(session);
                }
                Sent::Refused(fault, severity)
            }
        }
    }

    fn renewal_patience(&self) -> Option<Duration> {
        self.renewals.iter().map(|(renewal, _)| renewal.patience).min()
    }

    pub(super) fn cap(&self, most: usize) -> usize {
        (most >> self.shrink).max(1)
    }
}

fn timed_out(what: &str) -> Fault {
    fault(std::io::ErrorKind::TimedOut, format!("no answer in time while {what}"))
}

fn left(what: &str) -> Fault {
    fault(
        std::io::ErrorKind::ConnectionAborted,
        format!("the pool has left the server while {what}"),
    )
}

fn fault(kind: std::io::ErrorKind, message: String) -> Fault {
    Arc::new(sqlx::Error::Io(std::io::Error::new(kind, message)))
}

/// How often the lane steps back for others at most before it sends: each of them has to wait for an
/// answer before it asks again, so there is seldom a third.
const MOST_ROUNDS: usize = 4;

const MAX_SHRINK: u32 = 14;
const GROW_AFTER: u32 = 100;

const MIN_CONNECT: Duration = Duration::from_millis(250);
const RECONNECT_BASE: Duration = Duration::from_millis(20);
const RECONNECT_CAP: Duration = Duration::from_secs(1);
const GOODBYE: Duration = Duration::from_secs(1);

pub(super) const SWEEP_EVERY: Duration = Duration::from_secs(60);
