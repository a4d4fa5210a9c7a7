//! The task that keeps a client's waiters in line and tells them what it hears.
//!
//! ```text
//!   nobody waits ──▶ somebody waits: heartbeats, listener opened ──▶ nobody waits
//!        ▲                                                                │ a quiet while:
//!        └──────────────── listener closed ◀──────────────────────────────┘
//!
//!   listener: closed ──▶ opening ──▶ listening ──▶ heard
//!                ▲           │           │ ping unheard (deaf)    │ error
//!                └───────────┴───────────┴──────── backoff ◀──────┘
//! ```
//!
//! 1. One heartbeat per period for all waiters together, none while nobody waits. It keeps them in
//!    line and finds what no notification told.
//! 2. A listener is believed only once it has heard: it is pinged when it begins to listen, and
//!    whenever a heartbeat finds a waiter that should have been woken. Nothing else would show that
//!    its packets are swallowed, or that a pooler listens in its place.
//! 3. A listener whose server the pool has left is replaced with the next heartbeat.
//! 4. Without a listener waiters are woken by the heartbeat. That is said once.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::listener::{Heard, Listener};
use super::{Queue, QueueOptions, Wakeup, alarm};
use crate::lane::{Fault, Lane};
use crate::place::is_same_place;
use crate::roster::{Roster, Woken};
use crate::store::{Beat, ClientArgs, ticket};
use crate::trust::{full_jitter, random};

#[derive(Debug)]
pub(super) enum Command {
    /// Somebody has come to stand in line.
    Arrived,
    Close,
}

type Beats = oneshot::Receiver<Result<Vec<Beat>, Fault>>;

#[derive(Debug)]
pub(super) struct Task {
    lane: Lane,
    roster: Arc<Roster>,
    client: ClientArgs,
    pool: PgPool,
    options: QueueOptions,
    commands: mpsc::UnboundedReceiver<Command>,
    heard: mpsc::UnboundedReceiver<(u64, Heard)>,
    heard_to: mpsc::UnboundedSender<(u64, Heard)>,

    /// The heartbeat under way, and whether it pings.
    beats: Option<(Beats, bool)>,
    beat_at: Option<Instant>,

    /// Whether there is to be a listener while somebody waits.
    listens: bool,
    listener: Option<Listener>,
    listeners: u64,
    /// What the latest was opened with.
    opened_with: Option<PgConnectOptions>,
    /// When to open the next one.
    open_at: Instant,
    /// When to close it, since nobody waits.
    close_at: Option<Instant>,
    /// Pings with the next heartbeat.
    is_to_ping: bool,
    /// The listener has heard something since the last ping was sent, which it may hear before the
    /// heartbeat is answered.
    has_heard: bool,
    /// The listener is deaf unless it has heard a ping by then.
    hear_by: Option<Instant>,
    /// Listeners in a row that have not heard.
    failures: u32,
    has_warned: bool,
}

impl Task {
    pub(super) fn new(
        queue: &Queue,
        pool: PgPool,
        options: QueueOptions,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let (heard_to, heard) = mpsc::unbounded_channel();
        let listens = options.wakeup == Wakeup::Notify && (options.listen_at.is_some() || !options.is_pooled);
        Self {
            lane: queue.lane.clone(),
            roster: Arc::clone(&queue.roster),
            client: queue.client,
            pool,
            options,
            commands,
            heard,
            heard_to,
            beats: None,
            beat_at: None,
            listens,
            listener: None,
            listeners: 0,
            opened_with: None,
            open_at: Instant::now(),
            close_at: None,
            is_to_ping: false,
            has_heard: false,
            hear_by: None,
            failures: 0,
            has_warned: false,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let next = [self.beat_due(), self.open_due(), self.close_at, self.hear_by];
            tokio::select! {
                // What was heard counts before an alarm that has become due meanwhile.
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Arrived) => self.arrived(),
                    Some(Command::Close) | None => return,
                },
                Some((number, heard)) = self.heard.recv() => self.hear(number, heard),
                beats = answered(&mut self.beats) => self.beaten(beats),
                () = alarm(next.into_iter().flatten().min()) => self.tick(),
            }
        }
    }

    fn beat_due(&self) -> Option<Instant> {
        self.beat_at.filter(|_| self.beats.is_none())
    }

    fn open_due(&self) -> Option<Instant> {
        let is_wanted = self.listens && self.beat_at.is_some() && self.listener.is_none();
        is_wanted.then_some(self.open_at)
    }

    fn arrived(&mut self) {
        self.close_at = None;
        if !self.listens && self.options.wakeup == Wakeup::Notify {
            self.warn("the pool goes through a pooler, and there is no listener_url");
        }
        if self.beat_at.is_none() {
            self.beat_at = Some(Instant::now() + self.options.heartbeat_every);
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_over(self.beat_due()) {
            self.beat(now);
        }
        if is_over(self.hear_by) {
            self.deaf("a notification to itself was not heard");
        }
        if is_over(self.open_due()) {
            self.open();
        }
        if is_over(self.close_at) {
            self.close_at = None;
            self.listener = None;
            self.hear_by = None;
            debug!("nobody waits, stopped listening");
        }
    }

    fn beat(&mut self, now: Instant) {
        if !self.roster.is_anybody_waiting() {
            self.beat_at = None;
            self.close_at = self.listener.is_some().then(|| now + QUIET);
            return;
        }
        self.follow_pool();
        let ping = std::mem::take(&mut self.is_to_ping);
        self.has_heard &= !ping;
        let beats = self.lane.heartbeat(self.client, Arc::clone(&self.roster), ping);
        self.beats = Some((beats, ping));
        self.beat_at = Some(now + self.options.heartbeat_every);
    }

    fn beaten(&mut self, (beats, pinged): (Option<Vec<Beat>>, bool)) {
        let is_overdue = beats.is_some_and(|beats| {
            if pinged && self.listener.is_some() && !self.has_heard {
                self.hear_by = Some(Instant::now() + HEAR_WITHIN);
            }
            self.roster.beaten(beats)
        });
        self.is_to_ping |= is_overdue && self.hear_by.is_none();
    }

    fn open(&mut self) {
        self.listeners += 1;
        let options = self.listen_at();
        self.opened_with = Some(options.clone());
        self.listener = Some(Listener::open(
            options,
            self.client.id,
            self.listeners,
            self.heard_to.clone(),
        ));
    }

    fn listen_at(&self) -> PgConnectOptions {
        let chosen = self.options.listen_at.clone();
        chosen.unwrap_or_else(|| (*self.pool.connect_options()).clone())
    }

    /// Leaves a server that the pool has left: nobody tells anything there any more.
    fn follow_pool(&mut self) {
        let has_left = |at: &PgConnectOptions| !is_same_place(at, &self.listen_at());
        if self.listener.is_some() && self.opened_with.as_ref().is_some_and(has_left) {
            debug!("the pool connects elsewhere now, listener follows");
            self.listener = None;
            self.hear_by = None;
            self.open_at = Instant::now();
        }
    }

    fn hear(&mut self, number: u64, heard: Heard) {
        // The last words of one that was replaced.
        if self
            .listener
            .as_ref()
            .is_none_or(|listener| listener.number() != number)
        {
            return;
        }
        match heard {
            // What was told before it listened, the heartbeat finds.
            Heard::Listening => {
                self.is_to_ping = true;
                self.beat_at = self.beat_at.map(|_| Instant::now());
            }
            Heard::Told(payload) => {
                self.heard_something();
                if let Some(ticket) = ticket(&payload)
                    && let Woken::Left(name) = self.roster.wake(ticket)
                {
                    self.lane.wake(name);
                }
            }
            Heard::Ended(error) => self.deaf(&error.to_string()),
        }
    }

    fn heard_something(&mut self) {
        self.has_heard = true;
        self.hear_by = None;
        self.failures = 0;
        if std::mem::take(&mut self.has_warned) {
            info!("notifications come through again");
        }
    }

    /// Gives the listener up; another is opened after a backoff with full jitter.
    fn deaf(&mut self, problem: &str) {
        self.listener = None;
        self.hear_by = None;
        self.is_to_ping = false;
        self.open_at = Instant::now() + REOPEN_BASE + full_jitter(REOPEN_BASE, REOPEN_CAP, self.failures, random());
        self.failures = self.failures.saturating_add(1);
        self.warn(problem);
    }

    fn warn(&mut self, problem: &str) {
        if std::mem::replace(&mut self.has_warned, true) {
            debug!(problem, "still no notifications");
        } else {
            warn!(
                problem,
                "notifications do not come through: waiters are woken by the heartbeat"
            );
        }
    }
}

/// What a heartbeat under way has answered, if anything; never, without one.
async fn answered(beats: &mut Option<(Beats, bool)>) -> (Option<Vec<Beat>>, bool) {
    let Some((answer, pinged)) = beats else {
        return std::future::pending().await;
    };
    let heard = answer.await.ok().and_then(Result::ok);
    let pinged = *pinged;
    *beats = None;
    (heard, pinged)
}

/// How long after the last wait the listener's connection is kept.
const QUIET: Duration = Duration::from_secs(30);

/// How long a notification to oneself may take.
const HEAR_WITHIN: Duration = Duration::from_secs(2);

const REOPEN_BASE: Duration = Duration::from_millis(100);
const REOPEN_CAP: Duration = Duration::from_secs(60);
