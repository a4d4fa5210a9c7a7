//! Acquiring: the options of one acquisition, and asking until there is an answer.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tracing::field::{Empty, display};
use tracing::{Instrument, Span, debug, debug_span, warn};

use crate::belief::Belief;
use crate::client::LeaseClient;
use crate::error::{Error, Operation};
use crate::keeper::Held;
use crate::lane::{Answer, AskFailed, Grant, Lane};
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::{OwnerToken, check_holder};
use crate::queue::{Turn, Watcher};
use crate::signals::{self, Class, Outcome};
use crate::store::{AcquireArgs, Reason};
use crate::trust::{Terms, Window};
use crate::waiting::Waiting;

/// The span of a checked acquisition.
macro_rules! span {
    ($operation:literal, $plan:expr) => {
        debug_span!(
            $operation,
            lease.name = %$plan.args.name,
            lease.owner = %$plan.args.owner,
            lease.fencing_token = Empty
        )
    };
}

/// An acquisition in the making: set its options, then await it.
///
/// Awaiting gives the [`Lease`], or an [`Error`]. [`try_acquire`](Self::try_acquire) asks without
/// waiting, [`hold`](Self::hold) runs a piece of work under the lease.
///
/// # Errors
///
/// Before anything is sent: [`Error::InvalidName`], [`Error::InvalidOption`]. When there was no grant in
/// time: [`Error::WaitTimedOut`] with who is in the way, [`Error::Busy`] when that cannot be told,
/// [`Error::Unanswered`] when the database did not say. [`Error::GrantedTooLate`] when the grant's trust
/// window was over before the answer came. Otherwise [`Error::SchemaMissing`], [`Error::ReadOnly`],
/// [`Error::TokensExhausted`], [`Error::Closed`], or [`Error::Database`] with what the database said.
/// Whatever the error, no grant is left behind once the database has answered.
///
/// # Cancel safety
///
/// Cancel safe: dropped at any point, it leaves no grant and no waiter behind once the database has
/// answered.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(leases: leasehold::LeaseClient) -> Result<(), leasehold::Error> {
/// let lease = leases
///     .acquire("invoice:842")
///     .ttl(Duration::from_secs(30))
///     .wait_at_most(Duration::from_secs(5))
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an acquisition does nothing until it is awaited"]
pub struct Acquire {
    client: LeaseClient,
    name: Result<LockName, Error>,
    ttl: Option<Duration>,
    wait_at_most: Option<Duration>,
    hold_at_least: Duration,
    hold_at_most: Option<Duration>,
    is_manual: bool,
    holder: Option<String>,
    watcher: Option<Watcher>,
    class: Class,
}

impl Acquire {
    pub(crate) fn new(client: LeaseClient, name: &str) -> Self {
        Self {
            client,
            name: LockName::new(name),
            ttl: None,
            wait_at_most: None,
            hold_at_least: Duration::ZERO,
            hold_at_most: None,
            is_manual: false,
            holder: None,
            watcher: None,
            class: "",
        }
    }

    /// How long the database honours the grant without a renewal: 100 ms to 24 h. It bounds how
    /// long a crashed holder delays the next one.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long to wait for a name that somebody holds, first come, first served. Zero asks once,
    /// and never overtakes those who wait. Without it an acquisition waits for ever once the
    /// database has answered for the first time, over a restart of the database too.
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.wait_at_most = Some(wait);
        self
    }

    /// Keeps the name taken for this long from the acquisition on, also when the lease is released
    /// earlier, so that a short job runs once a period: at most 366 days. After a crash the name
    /// is free after the ttl, whatever was asked here.
    pub fn hold_at_least(mut self, hold: Duration) -> Self {
        self.hold_at_least = hold;
        self
    }

    /// Stops renewing so that the lease is lost at the latest this long after the acquisition: more than
    /// zero, and not below [`hold_at_least`](Self::hold_at_least). The name is free when the lease is
    /// dropped, or when its ttl is over.
    pub fn hold_at_most(mut self, hold: Duration) -> Self {
        self.hold_at_most = Some(hold);
        self
    }

    /// Renews only when [`Lease::renew`] is called.
    pub fn manual_renewal(mut self) -> Self {
        self.is_manual = true;
        self
    }

    /// The label for people who look at who holds what: at most 512 bytes without NUL.
    /// `application@host:pid` unless set here or for the client.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Tells `watcher` how the wait goes on: after each answer that is not a grant, and with each heartbeat (see
    /// [`heartbeat_every`](crate::LeaseClientBuilder::heartbeat_every)). It runs on the task that waits and must not
    /// block.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: leasehold::LeaseClient) -> Result<(), leasehold::Error> {
    /// let lease = leases.acquire("reindex").watch(|waiting| println!("{} ahead", waiting.ahead)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(mut self, watcher: impl Fn(&crate::info::Waiting) + Send + Sync + 'static) -> Self {
        self.watcher = Some(Watcher::new(watcher));
        self
    }

    /// The label `class` of the metrics that this acquisition and its lease count in, such as the kind
    /// of work; empty unless set here. They come with the feature `metrics`, and without it this changes
    /// nothing. The name of the lock is never a label: there is no end to names, so let there be an end
    /// to classes.
    pub fn class(mut self, class: &'static str) -> Self {
        self.class = class;
        self
    }

    /// Asks without waiting: `None` when somebody else holds the name, or waits for it.
    ///
    /// # Errors
    ///
    /// Those of [awaiting](Self#errors) but for [`Error::WaitTimedOut`], which is `None` here.
    /// [`Error::Unanswered`] comes after the client's `answer_within`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it leaves no grant behind once the database has answered.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(leases: leasehold::LeaseClient) -> Result<(), leasehold::Error> {
    /// // Once an hour, whoever comes first and however short the job.
    /// let hourly = leases.acquire("digest").hold_at_least(Duration::from_secs(55 * 60));
    /// if let Some(lease) = hourly.try_acquire().await? {
    ///     println!("granted with token {}", lease.fencing_token());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire(self) -> Result<Option<Lease>, Error> {
        let (client, plan) = self.plan()?;
        let span = span!("try_acquire", plan);
        match acquire(&client, plan, Wait::None, span).await {
            Ok(lease) => Ok(Some(lease)),
            Err(Error::WaitTimedOut { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires, runs `work` until it is done or the lease is lost, and releases on every path.
    ///
    /// # Errors
    ///
    /// Those of acquiring, and [`Error::Lost`] when the lease was lost; `work` has been dropped
    /// then. A release that failed is not an error: the lease runs out.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it drops `work` and releases.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: leasehold::LeaseClient) -> Result<(), leasehold::Error> {
    /// let rows = leases.acquire("reindex").hold(async |lease| {
    ///     println!("holding {} with token {}", lease.name(), lease.fencing_token());
    ///     42
    /// }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn hold<T>(self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, Error> {
        let span = debug_span!(
            "hold",
            lease.name = self.name.as_ref().ok().map(display),
            lease.owner = Empty,
            lease.fencing_token = Empty
        );
        let lease = self.into_future().instrument(span.clone()).await?;
        lease.identify(&span);
        let output = lease.run_until_lost(work(&lease)).instrument(span.clone()).await;
        match lease.release().instrument(span.clone()).await {
            // Closing has released it.
            Ok(_) | Err(Error::Closed) => {}
            Err(error) => span.in_scope(|| warn!(%error, "the lease was not released and runs out")),
        }
        Ok(output?)
    }

    /// Checks everything that can be checked before any I/O.
    pub(crate) fn plan(self) -> Result<(LeaseClient, Plan), Error> {
        let options = self.client.options();
        let terms = match self.ttl {
            Some(ttl) => Terms::new(ttl, options.margin, options.renew_every)?,
            None => options.terms,
        };
        if self.hold_at_least > MAX_HOLD {
            return Err(Error::InvalidOption {
                option: "hold_at_least",
                problem: format!("{:?} is more than 366 days", self.hold_at_least),
            });
        }
        if self
            .hold_at_most
            .is_some_and(|most| most.is_zero() || most < self.hold_at_least)
        {
            return Err(Error::InvalidOption {
                option: "hold_at_most",
                problem: "it is zero or less than hold_at_least".into(),
            });
        }
        let holder = match self.holder {
            Some(holder) => {
                check_holder(&holder)?;
                holder.into()
            }
            None => Arc::clone(&options.holder),
        };
        let plan = Plan {
            args: AcquireArgs {
                name: self.name?,
                owner: OwnerToken::random(),
                ttl: terms.ttl,
                holder,
                client: None,
            },
            terms,
            hold_at_least: self.hold_at_least,
            hold_at_most: self.hold_at_most,
            is_manual: self.is_manual,
            watcher: self.watcher,
            class: self.class,
        };
        Ok((self.client, plan))
    }
}

/// Waits for the lease, for as long as [`wait_at_most`](Acquire::wait_at_most) says.
impl IntoFuture for Acquire {
    type Output = Result<Lease, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let wait = match self.wait_at_most {
                None => Wait::ForEver,
                Some(Duration::ZERO) => Wait::None,
                // A deadline beyond the clock is none.
                Some(wait) => Instant::now().checked_add(wait).map_or(Wait::ForEver, Wait::Until),
            };
            let (client, plan) = self.plan()?;
            let span = span!("acquire", plan);
            acquire(&client, plan, wait, span).await
        })
    }
}

/// A checked acquisition.
#[derive(Debug)]
pub(crate) struct Plan {
    args: AcquireArgs,
    terms: Terms,
    hold_at_least: Duration,
    hold_at_most: Option<Duration>,
    is_manual: bool,
    watcher: Option<Watcher>,
    class: Class,
}

#[derive(Debug, Clone, Copy)]
enum Wait {
    /// Asks once, for as long as an answer may take.
    None,
    Until(Instant),
    ForEver,
}

/// Undoes what may still be granted to an acquisition that is given up.
struct Abandon<'a> {
    lane: &'a Lane,
    owner: OwnerToken,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.lane.abandon(self.owner);
    }
}

async fn acquire(client: &LeaseClient, plan: Plan, wait: Wait, span: Span) -> Result<Lease, Error> {
    let asked_at = Instant::now();
    let asked = ask(client, &plan, wait).instrument(span.clone()).await;
    let outcome = match &asked {
        Ok(lease) => {
            span.record("lease.fencing_token", display(lease.fencing_token()));
            Outcome::Granted
        }
        Err(Error::WaitTimedOut { .. }) if matches!(wait, Wait::None) => Outcome::Held,
        Err(Error::WaitTimedOut { .. }) => Outcome::TimedOut,
        // Broken off like one that is dropped.
        Err(Error::Closed) => return asked,
        Err(_) => Outcome::Failed,
    };
    signals::acquired(plan.class, outcome, asked_at.elapsed());
    asked
}

/// Asks until there is an answer.
async fn ask(client: &LeaseClient, plan: &Plan, wait: Wait) -> Result<Lease, Error> {
    let started_at = Instant::now();
    let first_answer_by = started_at + client.options().answer_within;
    let deadline = match wait {
        Wait::None => Some(first_answer_by),
        Wait::Until(deadline) => Some(deadline),
        Wait::ForEver => None,
    };
    let lane = client.lane()?;
    let abandon = Abandon {
        lane,
        owner: plan.args.owner,
    };
    let mut turn = match wait {
        Wait::None => Turn::to_ask_once(),
        Wait::Until(_) | Wait::ForEver => client.queue()?.turn(plan.args.owner, plan.args.name.clone()),
    };
    turn.watched_by(plan.watcher.clone());
    let mut waiting: Option<Waiting> = None;
    loop {
        let limit = match deadline {
            None if turn.known().is_none() && !turn.is_busy() => Some(first_answer_by),
            deadline => deadline,
        };
        let args = AcquireArgs {
            client: turn.asks(),
            ..plan.args.clone()
        };
        let Some(answer) = within(limit, lane.acquire(args)).await else {
            return Err(out_of_time(plan, lane, &turn, started_at));
        };
        match answer {
            Ok(Answer::Granted(grant)) => {
                std::mem::forget(abandon);
                if let Some(took) = turn.granted() {
                    signals::handed_off(plan.class, took);
                }
                if let Some(waiting) = waiting {
                    waiting.granted();
                }
                return adopt(client, plan, grant);
            }
            Ok(Answer::NotGranted(why)) if matches!(wait, Wait::None) && why.reason != Reason::Busy => {
                turn.learn(&why);
                return Err(out_of_time(plan, lane, &turn, started_at));
            }
            Ok(Answer::NotGranted(why)) => {
                if why.reason != Reason::Busy {
                    waiting.get_or_insert_with(|| Waiting::begin(&plan.args.name, plan.args.owner, plan.class, &why));
                }
                turn.after(&why, deadline).await;
            }
            Err(AskFailed::Closed) => return Err(Error::Closed),
            Err(AskFailed::Refused(fault)) => {
                match Error::from_database(Operation::Acquire, &plan.args.name, fault) {
                    // A failover while waiting: the next connection may find the new primary.
                    Error::ReadOnly { .. } if turn.known().is_some() => turn.after_fault(deadline).await,
                    error => return Err(error),
                }
            }
        }
        // It may have been closed meanwhile, which ends every wait.
        client.lane()?;
        if is_over(deadline) {
            return Err(out_of_time(plan, lane, &turn, started_at));
        }
    }
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

async fn within<T>(limit: Option<Instant>, asked: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => timeout_at(limit, asked).await.ok(),
        None => Some(asked.await),
    }
}

fn out_of_time(plan: &Plan, lane: &Lane, turn: &Turn, started_at: Instant) -> Error {
    let name = plan.args.name.clone();
    match turn.known() {
        Some(known) => Error::WaitTimedOut {
            name,
            holder: known.held_by.holder,
            held_since: known.held_by.since,
            pinned: known.is_pinned,
            ahead: known.ahead,
            waited: started_at.elapsed(),
        },
        None if turn.is_busy() => Error::Busy { name },
        None => Error::Unanswered {
            operation: Operation::Acquire,
            name,
            source: lane.last_fault(),
        },
    }
}

/// Takes the grant over. One whose trust window is already over is released, never returned.
fn adopt(client: &LeaseClient, plan: &Plan, grant: Grant) -> Result<Lease, Error> {
    // Of a client that was closed meanwhile, the grant is dropped, which releases it.
    let (lane, keeper) = (client.lane()?.clone(), client.keeper()?.clone());
    let facts = grant.facts();
    let window = Window::new(facts.attempted, facts.expires_in, plan.terms.margin);
    let hold_until = plan
        .hold_at_most
        .and_then(|most| window.attempted_at().checked_add(most));
    let belief = Belief::new(window, hold_until);
    if belief.standing().is_none() {
        let name = facts.args.name.clone();
        warn!(lease.name = %name, lease.owner = %facts.args.owner, "the lease was granted too late and is released");
        return Err(Error::GrantedTooLate { name });
    }
    let facts = grant.accept();
    let held = Held {
        name: facts.args.name,
        owner: facts.args.owner,
        token: facts.token,
        terms: plan.terms,
        belief: Arc::new(belief.counted(plan.class)),
        is_manual: plan.is_manual,
        hold_at_least: plan.hold_at_least,
        class: plan.class,
    };
    debug!(lease.name = %held.name, lease.owner = %held.owner, lease.fencing_token = %held.token, "acquired the lease");
    Ok(Lease::new(held, keeper, lane, client.options().answer_within))
}

const MAX_HOLD: Duration = Duration::from_secs(366 * 24 * 60 * 60);
