//! What the lane tells the queue in the database: who leaves, whose wake-up is passed on, and who is
//! alive.

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::HeartbeatRequest;
use super::session::Severity;
use super::steps::{BUSY_CAP, patience};
use super::task::{Sent, Task};
use crate::name::LockName;
use crate::owner::OwnerToken;
use crate::store;
use crate::trust::{full_jitter, random};

/// What waits to be told to the queue in the database.
#[derive(Debug, Default)]
pub(super) struct QueueWork {
    /// Who leaves, and until when it is worth saying.
    pub(super) leaves: Vec<(OwnerToken, Instant)>,
    pub(super) wakes: Vec<LockName>,
    pub(super) heartbeat: Option<HeartbeatRequest>,
    pub(super) not_before: Option<Instant>,
}

impl QueueWork {
    pub(super) fn is_empty(&self) -> bool {
        self.leaves.is_empty() && self.wakes.is_empty() && self.heartbeat.is_none()
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.is_empty() && self.not_before.is_none_or(|at| at <= now)
    }

    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now && !self.is_empty())
    }
}

impl Task {
    /// Leaves go before the heartbeat, which would find those who leave not named.
    pub(super) async fn tend_queue(&mut self) {
        if self.queue.leaves.is_empty() && self.queue.wakes.is_empty() {
            self.heartbeat().await;
        } else {
            self.leave().await;
        }
    }

    async fn leave(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        let on = session.id();
        let left = self.queue.leaves.split_off(self.queue.leaves.len().min(MAX_LEAVES));
        let leaves = std::mem::replace(&mut self.queue.leaves, left);
        let wakes = std::mem::take(&mut self.queue.wakes);
        let owners: Vec<_> = leaves.iter().map(|(owner, _)| *owner).collect();

        let sent = self
            .exchange(on, QUEUE_PATIENCE, async move {
                let answer = store::leave(&mut session.conn, session.mode, &owners, &wakes).await;
                (session, answer)
            })
            .await;

        match sent {
            Sent::Answered(()) => {}
            Sent::Refused(_, Severity::Passing | Severity::TooLong) | Sent::Cut(_) => {
                self.queue.leaves.extend(leaves);
                self.queue.not_before = Some(Instant::now() + full_jitter(BUSY_CAP, BUSY_CAP, 0, random()));
            }
            // The heartbeat, or its end, takes them out of line.
            Sent::Refused(fault, _) => warn!(error = %fault, "could not leave the queue"),
        }
    }

    async fn heartbeat(&mut self) {
        let Some(request) = self.queue.heartbeat.take() else {
            return;
        };
        let Some(mut session) = self.session.take() else { return };
        let on = session.id();
        let (client, ping, owners) = (request.client, request.ping, request.roster.owners());

        let sent = self
            .exchange(on, patience(client.ttl), async move {
                let answer = store::heartbeat(&mut session.conn, session.mode, client, &owners, ping).await;
                (session, answer)
            })
            .await;

        let _ = request.reply.send(match sent {
            Sent::Answered(beats) => Ok(beats),
            Sent::Refused(fault, _) | Sent::Cut(fault) => Err(fault),
        });
    }
}

const MAX_LEAVES: usize = 512;

const QUEUE_PATIENCE: Duration = Duration::from_secs(1);
