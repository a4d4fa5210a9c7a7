//! Waiting for a name that somebody else holds: first come, first served, across processes.
//!
//! The line stands in the database. A waiter asks with its client, which puts it in line, and
//! looks again once that is committed: only then it may sleep, because whoever lets the name go
//! afterwards sees it and tells it. Asleep it holds no connection and no snapshot. What wakes it:
//!
//! - a notification to its client, when it is first in line and the name has come free;
//! - the end of the present lease, for the first in line: its holder may be dead;
//! - the client's heartbeat (see [`task`]), when it finds either without a notification.
//!
//! Whoever waits knows nothing of this: it asks for its [`Turn`] to ask again. A [`Turn`] that is
//! dropped leaves the line.

mod listener;
#[cfg(test)]
mod properties;
mod task;

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tracing::debug;
use uuid::Uuid;

use crate::info::Waiting;
use crate::lane::Lane;
use crate::name::LockName;
use crate::owner::OwnerToken;
use crate::roster::{Known, Roster};
use crate::store::{ClientArgs, NotGranted, Reason};
use crate::trust::{full_jitter, random};

/// How waiters learn that their turn has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wakeup {
    /// By notifications, which come at once: the client opens one connection of its own for them
    /// at the first wait and closes it when nobody has waited for a while. Where they do not come
    /// through, waiters are woken by the heartbeat, after one warning.
    #[default]
    Notify,
    /// By the heartbeat alone, without that connection.
    Poll,
}

/// Puts waiters in line.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    inbox: mpsc::UnboundedSender<task::Command>,
    roster: Arc<Roster>,
    lane: Lane,
    client: ClientArgs,
}

/// How a client waits.
#[derive(Clone)]
pub(crate) struct QueueOptions {
    pub(crate) wakeup: Wakeup,
    /// Where to listen, if not where the pool connects.
    pub(crate) listen_at: Option<PgConnectOptions>,
    /// The pool goes through a pooler, which would listen in the client's place.
    pub(crate) is_pooled: bool,
    pub(crate) heartbeat_every: Duration,
}

impl Queue {
    pub(crate) fn start(lane: Lane, pool: PgPool, options: QueueOptions) -> Self {
        let (inbox, commands) = mpsc::unbounded_channel();
        let queue = Self {
            inbox,
            roster: Arc::default(),
            client: ClientArgs {
                id: Uuid::new_v4(),
                ttl: options.heartbeat_every * HEARTBEATS_PER_TTL,
            },
            lane,
        };
        tokio::spawn(task::Task::new(&queue, pool, options, commands).run());
        queue
    }

    pub(crate) fn turn(&self, owner: OwnerToken, name: LockName) -> Turn {
        let changed = self.roster.add(owner, name.clone());
        Turn {
            place: Some(Place {
                queue: self.clone(),
                name,
                owner,
                changed,
                was_sent: false,
            }),
            ..Turn::to_ask_once()
        }
    }

    /// Takes everybody out of line; their turns end at once.
    pub(crate) fn close(&self) {
        for owner in self.roster.close() {
            self.lane.leave(owner, self.client.ttl);
        }
        let _ = self.inbox.send(task::Command::Close);
    }
}

/// One acquisition's turn: when to ask again, and what is known until then.
#[derive(Debug)]
pub(crate) struct Turn {
    place: Option<Place>,
    known: Option<Known>,
    watcher: Option<Watcher>,
    is_busy: bool,
    busy: u32,
    faults: u32,
}

/// Whom to tell how a wait goes on.
#[derive(Clone)]
pub(crate) struct Watcher(Arc<dyn Fn(&Waiting) + Send + Sync>);

/// A place in line, left when it is dropped.
#[derive(Debug)]
struct Place {
    queue: Queue,
    name: LockName,
    owner: OwnerToken,
    changed: Arc<Notify>,
    was_sent: bool,
}

impl Turn {
    /// Of one that does not stand in line.
    pub(crate) fn to_ask_once() -> Self {
        Self {
            place: None,
            known: None,
            watcher: None,
            is_busy: false,
            busy: 0,
            faults: 0,
        }
    }

    /// Whom to tell how the wait goes on.
    pub(crate) fn watched_by(&mut self, watcher: Option<Watcher>) {
        self.watcher = watcher;
    }

    /// Whom to ask for, so that it stands in line when it is not granted.
    pub(crate) fn asks(&mut self) -> Option<ClientArgs> {
        let place = self.place.as_mut()?;
        place.was_sent = true;
        place.queue.roster.asks(place.owner);
        Some(place.queue.client)
    }

    /// The wait is over: the name is granted, and the grant took the waiter out of line. Returns how long
    /// ago it was told that its turn had come, if it was.
    pub(crate) fn granted(mut self) -> Option<Duration> {
        let place = self.place.as_mut()?;
        place.was_sent = false;
        let told_at = place.queue.roster.told_at(place.owner);
        place.queue.roster.granted(place.owner);
        told_at.map(|told_at| told_at.elapsed())
    }

    /// Waits to ask again after this answer.
    pub(crate) async fn after(&mut self, answer: &NotGranted, deadline: Option<Instant>) {
        self.faults = 0;
        let is_news = self.learn(answer);
        match (answer.reason, &self.place) {
            (Reason::Held | Reason::Queued, Some(place)) => {
                self.busy = 0;
                if !is_news {
                    place.sleep(deadline, self.watcher.as_ref()).await;
                }
            }
            // What keeps it taken ends without telling anybody.
            _ => {
                let pause = full_jitter(BUSY_BASE, BUSY_CAP, self.busy, random());
                self.busy = self.busy.saturating_add(1);
                pause_for(pause, deadline).await;
            }
        }
    }

    /// Waits to ask again after an error that may pass.
    pub(crate) async fn after_fault(&mut self, deadline: Option<Instant>) {
        let pause = full_jitter(FAULT_BASE, FAULT_CAP, self.faults, random());
        self.faults = self.faults.saturating_add(1);
        pause_for(pause, deadline).await;
    }

    /// Takes in an answer. True when the waiter has only now come to stand in line.
    pub(crate) fn learn(&mut self, answer: &NotGranted) -> bool {
        let known = Known::of(answer);
        self.is_busy |= known.is_none();
        self.known = known.or(self.known.take());
        tell(self.watcher.as_ref(), self.known.as_ref());
        let Some(place) = &self.place else { return false };
        let is_news = place.queue.roster.answered(place.owner, answer);
        if is_news {
            let _ = place.queue.inbox.send(task::Command::Arrived);
        }
        is_news
    }

    /// Who has the name and how many are ahead, as far as answers and heartbeats have told.
    pub(crate) fn known(&self) -> Option<Known> {
        let heard = self
            .place
            .as_ref()
            .and_then(|place| place.queue.roster.known(place.owner));
        heard.or_else(|| self.known.clone())
    }

    /// The name was found locked by something that says nothing about its holder.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }
}

impl Place {
    /// Waits until it is told to ask again, or the deadline has come.
    async fn sleep(&self, deadline: Option<Instant>, watcher: Option<&Watcher>) {
        let roster = &self.queue.roster;
        roster.sleeps(self.owner);
        loop {
            let until = [roster.try_at(self.owner), deadline].into_iter().flatten().min();
            if until.is_some_and(|until| until <= Instant::now()) {
                break;
            }
            tokio::select! {
                () = self.changed.notified() => tell(watcher, roster.known(self.owner).as_ref()),
                () = alarm(until) => break,
            }
        }
        if deadline.is_none_or(|deadline| deadline > Instant::now()) {
            debug!(lease.name = %self.name, lease.owner = %self.owner, "woken to ask again");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.queue.roster.left(self.owner) && self.was_sent {
            self.queue.lane.leave(self.owner, self.queue.client.ttl);
        }
    }
}

impl Watcher {
    pub(crate) fn new(watcher: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        Self(Arc::new(watcher))
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

fn tell(watcher: Option<&Watcher>, known: Option<&Known>) {
    if let (Some(Watcher(watcher)), Some(known)) = (watcher, known) {
        watcher(&known.told());
    }
}

async fn pause_for(pause: Duration, deadline: Option<Instant>) {
    let until = Instant::now() + pause;
    sleep_until(deadline.map_or(until, |deadline| deadline.min(until))).await;
}

async fn alarm(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl std::fmt::Debug for QueueOptions {
    /// Without the listener's options, which hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueOptions")
            .field("wakeup", &self.wakeup)
            .field("is_pooled", &self.is_pooled)
            .field("heartbeat_every", &self.heartbeat_every)
            .finish_non_exhaustive()
    }
}

/// A dead client's waiters are passed over after its ttl: two heartbeats may be missed.
const HEARTBEATS_PER_TTL: u32 = 3;

const BUSY_BASE: Duration = Duration::from_millis(1);
const BUSY_CAP: Duration = Duration::from_millis(50);
const FAULT_BASE: Duration = Duration::from_millis(10);
const FAULT_CAP: Duration = Duration::from_millis(500);
