//! The keeper: one task per client that renews every lease the client holds.
//!
//! It owns the registry of held leases and is alone in asking for renewals and in signalling
//! what the database answered. [`crate::trust`] decides when; [`crate::lane`] sends.
//!
//! ```text
//!   adopted ──▶ due ──▶ asked ──▶ renewed ──▶ due …
//!                 ▲        │ busy, or no answer: asked again soon
//!                 └────────┘
//!   any of them ──▶ gone: let go, lost, or its window over
//! ```
//!
//! 1. All leases that are due soon are renewed in one statement, so that their number costs
//!    nothing in statements.
//! 2. Renewed, lost, unknown: unknown only runs the clock down.
//! 3. A lease whose [`Belief`] has ended is never asked for again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, warn};

use crate::belief::Belief;
use crate::error::LossCause;
use crate::lane::{Fault, Lane, ReleaseAnswer, RenewAnswer, RenewRequest};
use crate::name::LockName;
use crate::owner::OwnerToken;
use crate::signals::{self, Class};
use crate::store::{ReleaseArgs, RenewArgs, RenewOutcome};
use crate::token::FencingToken;
use crate::trust::{Moment, Standing, Terms, Window, full_jitter, random};

/// Tells the keeper what is held. Works on any thread, inside a runtime or not.
#[derive(Debug, Clone)]
pub(crate) struct Keeper {
    inbox: mpsc::UnboundedSender<Command>,
}

/// A lease as the keeper knows it.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    pub(crate) terms: Terms,
    pub(crate) belief: Arc<Belief>,
    /// Renewed when its holder asks, and not otherwise.
    pub(crate) is_manual: bool,
    pub(crate) hold_at_least: Duration,
    pub(crate) class: Class,
}

#[derive(Debug)]
enum Command {
    Adopt(Held),
    Renew(OwnerToken, oneshot::Sender<()>),
    LetGo(OwnerToken),
    Close(oneshot::Sender<()>),
}

impl Keeper {
    pub(crate) fn start(lane: Lane) -> Self {
        let (inbox, commands) = mpsc::unbounded_channel();
        tokio::spawn(Task::new(lane, commands).run());
        Self { inbox }
    }

    /// Keeps the lease renewed. One that comes too late, after the close, is lost and released.
    pub(crate) fn adopt(&self, held: Held, lane: &Lane) {
        if let Err(mpsc::error::SendError(Command::Adopt(held))) = self.inbox.send(Command::Adopt(held)) {
            held.close(lane);
        }
    }

    /// Renews now. Answered once the database has confirmed it; never, when the lease ends first.
    pub(crate) fn renew(&self, owner: OwnerToken) -> oneshot::Receiver<()> {
        let (reply, renewed) = oneshot::channel();
        let _ = self.inbox.send(Command::Renew(owner, reply));
        renewed
    }

    /// Forgets a lease that is being released.
    pub(crate) fn let_go(&self, owner: OwnerToken) {
        let _ = self.inbox.send(Command::LetGo(owner));
    }

    /// Ends every lease, releases it and ends the task.
    pub(crate) async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.inbox.send(Command::Close(reply)).is_ok() {
            let _ = closed.await;
        }
    }
}

impl Held {
    /// Ends it because the client is closed, and releases it.
    fn close(&self, lane: &Lane) {
        if self.belief.lose(LossCause::Closed) {
            let Self { name, owner, token, .. } = self;
            debug!(lease.name = %name, lease.owner = %owner, lease.fencing_token = %token, "released the lease of a closed client");
            drop(self.release(lane));
        }
    }

    /// What releases it: until when it is worth trying, the ttl tells.
    pub(crate) fn release(&self, lane: &Lane) -> oneshot::Receiver<Result<ReleaseAnswer, Fault>> {
        let args = ReleaseArgs {
            name: self.name.clone(),
            owner: self.owner,
            hold_at_least: self.hold_at_least,
        };
        lane.release(args, Instant::now() + self.terms.ttl)
    }
}

#[derive(Debug)]
struct Task {
    lane: Lane,
    commands: mpsc::UnboundedReceiver<Command>,
    answers: mpsc::UnboundedReceiver<RenewAnswer>,
    answers_to: mpsc::UnboundedSender<RenewAnswer>,
    entries: HashMap<OwnerToken, Entry>,
    wake_at: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    held: Held,
    /// When to ask for the next renewal; `None` while one is asked for.
    due_at: Option<Instant>,
    /// Renewals in a row that were not answered or found the row locked.
    failures: u32,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Task {
    fn new(lane: Lane, commands: mpsc::UnboundedReceiver<Command>) -> Self {
        let (answers_to, answers) = mpsc::unbounded_channel();
        Self {
            lane,
            commands,
            answers,
            answers_to,
            entries: HashMap::new(),
            wake_at: None,
        }
    }

    async fn run(mut self) {
        loop {
            let wake_at = self.wake_at;
            let alarm = async {
                match wake_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // All that has come is heard before anything is asked: a look goes through every
                // lease, and one look for each of ten thousand answers would starve them.
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Close(closed)) => return self.close(closed).await,
                    Some(command) => self.obey(command),
                    // No handle is left, and so no lease that anybody could use.
                    None => return,
                },
                Some(answer) = self.answers.recv() => self.hear(answer),
                () = alarm => self.renew_due(),
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Adopt(held) => {
                let due_at = held
                    .belief
                    .window()
                    .map(|window| window.attempted_at() + held.terms.renew_every);
                let entry = Entry {
                    due_at,
                    failures: 0,
                    waiting: Vec::new(),
                    held,
                };
                self.wake_by(entry.wake_at(Moment::now()));
                self.entries.insert(entry.held.owner, entry);
            }
            Command::Renew(owner, reply) => {
                if let Some(entry) = self.entries.get_mut(&owner) {
                    entry.waiting.push(reply);
                    if entry.due_at.is_some() {
                        let now = Instant::now();
                        entry.due_at = Some(now);
                        self.wake_by(Some(now));
                    }
                }
            }
            Command::LetGo(owner) => {
                if let Some(entry) = self.entries.remove(&owner) {
                    // It may have been lost in the moment before: then that is told first.
                    entry.is_alive(Moment::now());
                }
            }
            Command::Close(_) => unreachable!("run answers it"),
        }
    }

    fn wake_by(&mut self, at: Option<Instant>) {
        self.wake_at = match (self.wake_at, at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Looks at every lease: buries what has ended, and asks in one request for all that is due
    /// or will be soon.
    fn renew_due(&mut self) {
        // Read once for all: to read both clocks is a good part of a look.
        let now = Moment::now();
        self.entries.retain(|_, entry| entry.is_alive(now));
        let any_due = self.entries.values().any(|entry| entry.is_due(now.at, now));
        let mut leases = Vec::new();
        if any_due {
            for entry in self.entries.values_mut() {
                // "Soon" is half a period: leases that were acquired at different times come to be
                // renewed together.
                if entry.is_due(now.at + entry.held.terms.renew_every / 2, now) {
                    entry.due_at = None;
                    leases.push(entry.request(now));
                }
            }
        }
        self.wake_at = None;
        if !leases.is_empty() {
            self.lane.renew(leases, self.answers_to.clone());
        }
        let next = self.entries.values().filter_map(|entry| entry.wake_at(now)).min();
        self.wake_by(next);
    }

    fn hear(&mut self, answer: RenewAnswer) {
        let Some(entry) = self.entries.get_mut(&answer.owner) else {
            return;
        };
        entry.hear(answer.attempted, answer.outcome);
        let now = Moment::now();
        let (is_alive, wake_at) = (entry.is_alive(now), entry.wake_at(now));
        if is_alive {
            self.wake_by(wake_at);
        } else {
            self.entries.remove(&answer.owner);
        }
    }

    async fn close(mut self, closed: oneshot::Sender<()>) {
        // What was adopted before the inbox closes is in it; whoever comes later is refused.
        self.commands.close();
        while let Some(command) = self.commands.recv().await {
            match command {
                Command::Adopt(held) => held.close(&self.lane),
                Command::Close(also) => drop(also.send(())),
                Command::LetGo(owner) => drop(self.entries.remove(&owner)),
                Command::Renew(..) => {}
            }
        }
        for entry in self.entries.values() {
            entry.held.close(&self.lane);
        }
        let _ = closed.send(());
    }
}

impl Entry {
    /// False once its belief has ended; says so, if that is news.
    fn is_alive(&self, now: Moment) -> bool {
        if self.held.belief.standing_at(now).is_some() {
            return true;
        }
        if let Some(cause) = self.held.belief.loss() {
            let Held { name, owner, token, .. } = &self.held;
            error!(lease.name = %name, lease.owner = %owner, lease.fencing_token = %token, %cause, "lost the lease");
        }
        false
    }

    /// Whether it is to be renewed by then.
    fn is_due(&self, by: Instant, now: Moment) -> bool {
        let Some(due_at) = self.due_at else { return false };
        if self.held.is_manual && self.waiting.is_empty() {
            return false;
        }
        // A suspended machine, or a step of the wall clock: only the database can tell.
        due_at <= by || self.held.belief.standing_at(now) == Some(Standing::Suspect)
    }

    fn wake_at(&self, now: Moment) -> Option<Instant> {
        let over_at = self.held.belief.window_at(now)?.until();
        let look_at = now.at + LOOK_EVERY;
        let due_at = match self.due_at {
            Some(due_at) if !self.held.is_manual || !self.waiting.is_empty() => due_at,
            _ => over_at,
        };
        Some(over_at.min(due_at).min(look_at))
    }

    fn request(&self, now: Moment) -> RenewRequest {
        let left = self
            .held
            .belief
            .window_at(now)
            .map_or(Duration::ZERO, |window| window.until() - now.at);
        RenewRequest {
            args: RenewArgs {
                name: self.held.name.clone(),
                owner: self.held.owner,
                ttl: self.held.terms.ttl,
            },
            belief: Arc::clone(&self.held.belief),
            patience: (left / 3).clamp(MIN_PATIENCE, MAX_PATIENCE),
        }
    }

    fn hear(&mut self, attempted: Moment, outcome: Result<RenewOutcome, Fault>) {
        let Held {
            name,
            owner,
            token,
            terms,
            belief,
            ..
        } = &self.held;
        let lost = match outcome {
            Ok(RenewOutcome::Renewed { expires_in }) => {
                if belief.extend(Window::new(attempted, expires_in, terms.margin)) {
                    debug!(lease.name = %name, lease.owner = %owner, lease.fencing_token = %token, "renewed the lease");
                }
                self.failures = 0;
                self.due_at = Some(attempted.at + terms.renew_every);
                for waiting in self.waiting.drain(..) {
                    let _ = waiting.send(());
                }
                return;
            }
            Ok(RenewOutcome::Superseded) => LossCause::Superseded,
            Ok(RenewOutcome::Expired) => LossCause::Expired,
            Ok(RenewOutcome::Gone) => LossCause::Gone,
            Ok(RenewOutcome::Busy) => {
                warn!(lease.name = %name, lease.owner = %owner, lease.fencing_token = %token, "row of the lease is locked, renewal will be retried");
                return self.retry();
            }
            Err(fault) => {
                warn!(lease.name = %name, lease.owner = %owner, lease.fencing_token = %token, error = %fault, "renewal was not answered and will be retried");
                return self.retry();
            }
        };
        belief.lose(lost);
    }

    fn retry(&mut self) {
        signals::renewal_failed(self.held.class);
        let terms = self.held.terms;
        let pause = full_jitter(
            RETRY_BASE,
            (terms.renew_every / 4).min(RETRY_CAP),
            self.failures,
            random(),
        );
        self.failures = self.failures.saturating_add(1);
        self.due_at = Some(Instant::now() + pause);
    }
}

/// How often the wall clock is compared while nothing is due.
const LOOK_EVERY: Duration = Duration::from_millis(500);

const MIN_PATIENCE: Duration = Duration::from_millis(50);
const MAX_PATIENCE: Duration = Duration::from_secs(5);
const RETRY_BASE: Duration = Duration::from_millis(5);
const RETRY_CAP: Duration = Duration::from_millis(500);

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests;
