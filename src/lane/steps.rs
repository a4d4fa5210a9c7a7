//! The steps of the lane's task: one statement each, and what its answer means to those who asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use super::lines::Waiting;
use super::session::{Session, SessionId, Severity};
use super::task::{SWEEP_EVERY, Sent, Task};
use super::{AcquireRequest, Answer, AskFailed, Grant, GrantFacts, ReleaseAnswer, ReleaseRequest, RenewAnswer};
use crate::error::{is_read_only, sql_state};
use crate::owner::OwnerToken;
use crate::store::{self, AcquireOutcome, AcquireOutcomes, NotGranted, ReleaseOutcome, RenewOutcome};
use crate::trust::{Moment, full_jitter, random};

impl Task {
    pub(super) async fn renew(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        let on = session.id();
        let cap = self.cap(MAX_RENEWALS).min(self.renewals.len());
        let batch: Vec<_> = self.renewals.drain(..cap).collect();
        let args: Vec<_> = batch.iter().map(|(renewal, _)| renewal.args.clone()).collect();
        let patience = batch
            .iter()
            .map(|(renewal, _)| renewal.patience)
            .min()
            .unwrap_or(MIN_PATIENCE);

        let attempted = Moment::now();
        let sent = self
            .exchange(on, patience, async move {
                let answer = store::renew(&mut session.conn, session.mode, &args).await;
                (session, answer)
            })
            .await;

        let outcomes: HashMap<_, _> = match sent {
            Sent::Answered(outcomes) => outcomes
                .into_iter()
                .map(|(owner, outcome)| (owner, Ok(outcome)))
                .collect(),
            Sent::Refused(fault, _) | Sent::Cut(fault) => batch
                .iter()
                .map(|(renewal, _)| (renewal.args.owner, Err(Arc::clone(&fault))))
                .collect(),
        };
        for (renewal, answers) in batch {
            let owner = renewal.args.owner;
            let outcome = outcomes.get(&owner).cloned().unwrap_or(Ok(RenewOutcome::Busy));
            let _ = answers.send(RenewAnswer {
                owner,
                attempted,
                outcome,
            });
        }
    }

    pub(super) async fn acquire(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        let on = session.id();
        let batch = self.acquires.take_batch(Instant::now(), self.cap(MAX_ACQUIRES));
        let args: Vec<_> = batch.iter().map(|waiting| waiting.request.args.clone()).collect();
        let patience = patience(args.iter().map(|args| args.ttl).min().unwrap_or(MAX_PATIENCE));

        let attempted = Moment::now();
        let sent = self
            .exchange(on, patience, async move {
                let answer = acquire(&mut session, &args).await;
                (session, answer)
            })
            .await;

        match sent {
            Sent::Answered(Answers { answers, unsure }) => {
                let mut answers: HashMap<_, _> = answers.into_iter().collect();
                for waiting in batch {
                    let owner = waiting.request.args.owner;
                    let answer = answers
                        .remove(&owner)
                        .unwrap_or_else(|| AcquireOutcome::NotGranted(NotGranted::busy()));
                    if unsure.contains(&owner) {
                        self.answer_unsure(on, waiting.request);
                    } else {
                        self.answer_acquire(waiting.request, attempted, answer);
                    }
                }
            }
            Sent::Refused(_, Severity::Passing | Severity::TooLong) => {
                batch
                    .into_iter()
                    .for_each(|waiting| self.acquires.push(waiting.later(BUSY_CAP)));
            }
            Sent::Refused(_, Severity::Refused) if batch.len() > 1 => {
                let refused = batch.len();
                self.acquires
                    .push_front(batch.into_iter().map(|waiting| waiting.in_half_of(refused)));
            }
            Sent::Refused(fault, _) => {
                // What answers in words that nobody understands has carried out the statement.
                let may_be_granted = fault.as_database_error().is_none();
                for waiting in batch {
                    let AcquireRequest { args, reply } = waiting.request;
                    if may_be_granted {
                        let release = ReleaseRequest::unasked(args.name, args.owner, args.ttl);
                        self.releases.push(Waiting::new(release));
                    }
                    let _ = reply.send(Err(AskFailed::Refused(Arc::clone(&fault))));
                }
            }
            Sent::Cut(_) => {
                for waiting in batch {
                    self.ghosts.haunt(on, &waiting.request.args);
                    self.acquires.push(waiting);
                }
            }
        }
    }

    fn answer_acquire(&mut self, request: AcquireRequest, attempted: Moment, answer: AcquireOutcome) {
        let answer = match answer {
            AcquireOutcome::Granted { .. } if self.is_closing => {
                let AcquireRequest { args, reply } = request;
                let release = ReleaseRequest::unasked(args.name, args.owner, args.ttl);
                self.releases.push(Waiting::new(release));
                let _ = reply.send(Err(AskFailed::Closed));
                return;
            }
            AcquireOutcome::Granted { token, expires_in } => Answer::Granted(Grant {
                facts: Some(GrantFacts {
                    args: request.args,
                    token,
                    attempted,
                    expires_in,
                }),
                inbox: self.weak_inbox.clone(),
            }),
            AcquireOutcome::NotGranted(why) => Answer::NotGranted(why),
        };
        if let Err(Ok(Answer::Granted(grant))) = request.reply.send(Ok(answer)) {
            // Not left to its destructor: the inbox may be closed by now.
            self.releases.push(Waiting::new(grant.accept().into_release()));
        }
    }

    /// It is asked for again; or, once nobody wants it any more, let go.
    fn answer_unsure(&mut self, on: SessionId, request: AcquireRequest) {
        self.ghosts.haunt(on, &request.args);
        let (name, owner, ttl) = (request.args.name.clone(), request.args.owner, request.args.ttl);
        let busy = Answer::NotGranted(NotGranted::busy());
        if request.reply.send(Ok(busy)).is_err() {
            self.releases
                .push(Waiting::new(ReleaseRequest::unasked(name, owner, ttl)));
        }
    }

    pub(super) async fn release(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        let on = session.id();
        let now = Instant::now();
        let batch = self.releases.take_batch(now, self.cap(MAX_RELEASES));
        let args: Vec<_> = batch.iter().map(|waiting| waiting.request.args.clone()).collect();
        let wake = batch.iter().all(|waiting| waiting.request.wakes);
        let shortest = batch.iter().map(|waiting| waiting.request.until - now).min();

        let sent = self
            .exchange(on, patience(shortest.unwrap_or(MAX_PATIENCE)), async move {
                let answer = match &args[..] {
                    [one] => store::release(&mut session.conn, session.mode, one, wake).await,
                    many => store::release_many(&mut session.conn, session.mode, many, wake).await,
                };
                (session, answer)
            })
            .await;

        match sent {
            Sent::Answered(answers) => {
                let answers: HashMap<_, _> = answers.into_iter().collect();
                for waiting in batch {
                    let answer = answers
                        .get(&waiting.request.args.owner)
                        .copied()
                        .unwrap_or(ReleaseOutcome::Busy);
                    self.answer_release(waiting, answer);
                }
            }
            Sent::Refused(_, Severity::Passing | Severity::TooLong) => {
                batch
                    .into_iter()
                    .for_each(|waiting| self.releases.push(waiting.later(BUSY_CAP)));
            }
            Sent::Refused(fault, _) if wake && is_queue_full(&fault) => {
                warn!(error = %fault, "notifications are not taken in, releasing without: waiters are woken by their heartbeat");
                self.releases.push_front(batch.into_iter().map(|mut waiting| {
                    waiting.request.wakes = false;
                    waiting
                }));
            }
            Sent::Refused(_, Severity::Refused) if batch.len() > 1 => {
                let refused = batch.len();
                self.releases
                    .push_front(batch.into_iter().map(|waiting| waiting.in_half_of(refused)));
            }
            Sent::Refused(fault, _) if is_read_only(&fault) => {
                batch
                    .into_iter()
                    .for_each(|waiting| self.releases.push(waiting.later(BUSY_CAP)));
            }
            Sent::Refused(fault, _) => {
                for mut waiting in batch {
                    waiting.request.answer(Err(Arc::clone(&fault)));
                }
            }
            Sent::Cut(_) => {
                batch
                    .into_iter()
                    .for_each(|waiting| self.releases.push(waiting.unanswered()));
            }
        }
    }

    fn answer_release(&mut self, mut waiting: Waiting<ReleaseRequest>, answer: ReleaseOutcome) {
        let answer = match answer {
            ReleaseOutcome::Busy => return self.releases.push(waiting.later(BUSY_CAP)),
            ReleaseOutcome::Released => ReleaseAnswer::Released,
            ReleaseOutcome::HeldOn => ReleaseAnswer::HeldOn,
            // An earlier try, or the acquire itself, may have been carried out meanwhile.
            ReleaseOutcome::NotOwner if waiting.unanswered => ReleaseAnswer::Unknown,
            ReleaseOutcome::NotOwner => ReleaseAnswer::NotOwner,
        };
        waiting.request.answer(Ok(answer));
        // An old statement may still grant the name to this owner: until it cannot, or the ttl is
        // over, the release goes again.
        if self.ghosts.haunts(waiting.request.args.owner) {
            waiting.request.args.hold_at_least = Duration::ZERO;
            self.releases.push(waiting.later(HAUNTED_CAP));
        }
    }

    /// Asks the server which given-up connections it still has.
    pub(super) async fn probe(&mut self) {
        self.probe_at = Instant::now() + PROBE_EVERY;
        let backends = self.ghosts.backends();
        if backends.is_empty() {
            return;
        }
        let Some(mut session) = self.session.take() else { return };
        let on = session.id();
        let sent = self
            .exchange(on, MAX_PATIENCE, async move {
                let answer = store::end_idle_backends(&mut session.conn, session.mode, &backends).await;
                (session, answer)
            })
            .await;
        match sent {
            Sent::Answered(present) => self.ghosts.probed(&present),
            Sent::Refused(fault, _) => warn!(error = %fault, "could not ask for given-up connections"),
            Sent::Cut(_) => {}
        }
    }

    pub(super) async fn sweep(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        let on = session.id();
        let sent = self
            .exchange(on, MAX_PATIENCE, async move {
                let answer = store::sweep(&mut session.conn, session.mode).await;
                (session, answer)
            })
            .await;
        let again_in = match sent {
            Sent::Answered(swept) => {
                debug!(removed = swept.removed, "swept");
                match swept.again_in {
                    Duration::ZERO => SWEEP_PAUSE,
                    // Not all clients at once.
                    again_in => again_in + full_jitter(SWEEP_PAUSE * 100, SWEEP_PAUSE * 100, 0, random()),
                }
            }
            Sent::Refused(..) | Sent::Cut(_) => SWEEP_EVERY,
        };
        self.sweep_at = Some(Instant::now() + again_in);
    }
}

struct Answers {
    answers: Vec<(OwnerToken, AcquireOutcome)>,
    /// Granted by the primary, and perhaps by it alone.
    unsure: Vec<OwnerToken>,
}

/// Asks for a batch, and makes sure of what was granted.
async fn acquire(session: &mut Session, args: &[store::AcquireArgs]) -> Result<Answers, sqlx::Error> {
    let Session { conn, mode, .. } = session;
    let AcquireOutcomes { answers, replicated } = match args {
        [one] => store::acquire(conn, *mode, one).await?,
        many => store::acquire_many(conn, *mode, many).await?,
    };
    // A cancel during the wait for a synchronous standby is answered as success, with a grant that
    // only the primary has. A renewal waits for the same standby and is behind the grant in the
    // log, so that its success vouches for both.
    let granted: Vec<_> = answers
        .iter()
        .filter(|(_, answer)| replicated && matches!(answer, AcquireOutcome::Granted { .. }))
        .filter_map(|(owner, _)| args.iter().find(|args| args.owner == *owner))
        .map(|args| store::RenewArgs {
            name: args.name.clone(),
            owner: args.owner,
            ttl: args.ttl,
        })
        .collect();
    let mut unsure = Vec::new();
    if !granted.is_empty() {
        let confirmed: HashMap<_, _> = store::renew(conn, *mode, &granted).await?.into_iter().collect();
        unsure.extend(
            granted
                .iter()
                .map(|args| args.owner)
                .filter(|owner| !matches!(confirmed.get(owner), Some(RenewOutcome::Renewed { .. }))),
        );
    }
    Ok(Answers { answers, unsure })
}

/// The server's queue of notifications is full: a listener somewhere lies idle in a transaction.
fn is_queue_full(fault: &sqlx::Error) -> bool {
    sql_state(fault).as_deref() == Some("54000")
}

/// How long an answer may take: a fraction of what rides on it.
pub(super) fn patience(ttl: Duration) -> Duration {
    (ttl / 3).clamp(MIN_PATIENCE, MAX_PATIENCE)
}

pub(super) const MAX_PATIENCE: Duration = Duration::from_secs(5);
const MIN_PATIENCE: Duration = Duration::from_millis(100);

// Batches, so capped that a statement takes a small part of the shortest window that rides on it.
const MAX_RENEWALS: usize = 10_000;
const MAX_ACQUIRES: usize = 256;
const MAX_RELEASES: usize = 512;

/// A row that somebody has locked, or a statement that may pass at the next try.
pub(super) const BUSY_CAP: Duration = Duration::from_millis(50);
/// A release that is repeated because an old acquire may still be carried out.
const HAUNTED_CAP: Duration = Duration::from_millis(500);
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// Between two steps of one sweep, so that leases go first.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);
