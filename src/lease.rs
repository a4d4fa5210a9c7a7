//! A held lease: the handle its holder works with.
//!
//! It owns nothing but handles. What is held is the keeper's to know and the database's to decide;
//! what is believed of it stands in [`crate::belief`].

use std::fmt;
use std::time::Duration;

use sqlx::{PgPool, PgTransaction};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tracing::field::display;
use tracing::{Instrument, Span, debug, debug_span, warn};

use crate::error::{Error, LeaseLost, LossCause, Operation, is_fenced};
use crate::keeper::{Held, Keeper};
use crate::lane::{Fault, Lane, ReleaseAnswer};
use crate::signals::{self, Check};
use crate::store::{self, Mode};
use crate::token::FencingToken;

/// The span of an operation on a held lease.
macro_rules! span {
    ($operation:literal, $held:expr) => {
        debug_span!(
            $operation,
            lease.name = %$held.name,
            lease.owner = %$held.owner,
            lease.fencing_token = %$held.token
        )
    };
}

/// A lease that this process holds, renewed in the background until it is dropped or released.
///
/// Dropping it releases it: from any thread, inside a runtime or not, while unwinding too,
/// without blocking. Outside a runtime the release is sent by the client's own task; where that
/// has ended with its runtime, the lease runs out after its ttl. A leaked lease
/// ([`std::mem::forget`]) is renewed until [`hold_at_most`](crate::Acquire::hold_at_most),
/// [`LeaseClient::close`](crate::LeaseClient::close) or the end of the process.
///
/// Four things tell that it was lost, each enough by itself: [`lost`](Self::lost),
/// [`is_held`](Self::is_held), [`run_until_lost`](Self::run_until_lost) and the fence.
/// Only the fence is proof against a process that is stopped between looking and writing.
#[must_use = "dropping a lease releases it"]
pub struct Lease {
    held: Held,
    keeper: Keeper,
    lane: Lane,
    answer_within: Duration,
    is_released: bool,
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// It was still ours; the name is free.
    Released,
    /// It was still ours; the name stays taken until `hold_at_least` has passed.
    HeldOn,
    /// It was not ours any more: run out and granted to another, broken or swept.
    NotOwner,
    /// An earlier try went unanswered, so it cannot be told. The name is free by now, or at the
    /// latest after the ttl.
    Unknown,
}

impl Lease {
    pub(crate) fn new(held: Held, keeper: Keeper, lane: Lane, answer_within: Duration) -> Self {
        keeper.adopt(held.clone(), &lane);
        Self {
            held,
            keeper,
            lane,
            answer_within,
            is_released: false,
        }
    }

    /// What is held.
    pub fn name(&self) -> &str {
        self.held.name.as_str()
    }

    /// The number of this grant, to be checked where the write happens.
    pub fn fencing_token(&self) -> FencingToken {
        self.held.token
    }

    /// Whether this process may still act on the grant: inside the trust window by the monotonic
    /// clock, and not past it by the wall clock.
    ///
    /// False for a moment after the machine was suspended or the wall clock stepped ahead; a
    /// renewal then confirms or refuses it. Once [`lost`](Self::lost) has fired it stays false.
    pub fn is_held(&self) -> bool {
        self.held.belief.is_held()
    }

    /// How long this process may act on the grant without a further renewal; zero when it is not
    /// held.
    pub fn remaining(&self) -> Duration {
        match self.held.belief.window() {
            Some(window) if self.is_held() => window.until().saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        }
    }

    /// Waits until the lease is lost.
    ///
    /// It fires when a renewal is refused, and no later than the trust window ends, whatever the
    /// network does; that is before the database may grant the name to anyone else.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn next_page() -> Option<u32> { None }
    /// # async fn example(lease: leasehold::Lease) -> Result<(), Box<dyn std::error::Error>> {
    /// loop {
    ///     tokio::select! {
    ///         biased;
    ///         lost = lease.lost() => return Err(lost.into()),
    ///         page = next_page() => if page.is_none() { break },
    ///     }
    /// }
    /// lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> LeaseLost {
        let cause = self.held.belief.lost().await;
        self.lost_by(cause)
    }

    /// Runs `work` until it is done or the lease is lost, whichever comes first. A loss is seen
    /// first when both are there.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`] the moment the lease is lost; `work` has been dropped then.
    ///
    /// # Cancel safety
    ///
    /// As `work` is: it is dropped with this future. The lease goes on.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn rebuild() {}
    /// # async fn example(lease: leasehold::Lease) -> Result<(), leasehold::LeaseLost> {
    /// lease.run_until_lost(rebuild()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_until_lost<F: Future>(&self, work: F) -> Result<F::Output, LeaseLost> {
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            output = work => Ok(output),
        }
    }

    /// Renews the lease now, asking again until the database has confirmed it. For leases that
    /// were acquired with [`manual_renewal`](crate::Acquire::manual_renewal); the others need it
    /// only to be sure.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lease is lost, at the latest when its trust window ends;
    /// [`Error::Closed`] when the client's runtime has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that has been sent may still be carried out.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn step() {}
    /// # async fn example(leases: leasehold::LeaseClient) -> Result<(), leasehold::Error> {
    /// let lease = leases.acquire("reindex").manual_renewal().await?;
    /// for _ in 0..10 {
    ///     step().await;
    ///     lease.renew().await?; // a step that hangs costs the lease
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn renew(&self) -> Result<(), Error> {
        let renewed = async {
            let renewed = self.keeper.renew(self.held.owner);
            tokio::select! {
                biased;
                lost = self.lost() => Err(lost.into()),
                renewed = renewed => match renewed {
                    Ok(()) => Ok(()),
                    // The keeper has forgotten it: it is lost, or the client's runtime is gone.
                    Err(_) => match self.held.belief.loss() {
                        Some(cause) => Err(self.lost_by(cause).into()),
                        None => Err(Error::Closed),
                    },
                },
            }
        };
        renewed.instrument(span!("renew", self.held)).await
    }

    /// Makes the rest of `tx` conditional on this lease.
    ///
    /// After `Ok`, nobody else is granted the lease until `tx` commits or rolls back; renewals go
    /// on meanwhile. Call it first in the transaction. It also lowers
    /// `idle_in_transaction_session_timeout` to the ttl for this transaction, so that a stopped
    /// process does not keep the name taken for ever.
    ///
    /// Under repeatable read and serializable the check is made on the transaction's snapshot: a
    /// takeover since then fails with `40001`, the holder's own release since then is not seen.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lease has ended or passed on. [`Error::SchemaMissing`],
    /// [`Error::ReadOnly`] or [`Error::Database`] when the statement failed. Roll `tx` back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. After the future is dropped, `tx` is good only for rollback, which dropping
    /// `tx` does.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: leasehold::Lease, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = pool.begin().await?;
    /// lease.fence(&mut tx).await?;
    /// sqlx::query("update invoice set settled = true").execute(&mut *tx).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn fence(&self, tx: &mut PgTransaction<'_>) -> Result<(), Error> {
        let fenced = fence(&self.held, self.lane.mode(), tx);
        fenced.instrument(span!("fence", self.held)).await
    }

    /// Begins a transaction on `pool` and fences it: see [`fence`](Self::fence).
    ///
    /// # Errors
    ///
    /// Those of [`fence`](Self::fence), and [`Error::Database`] when the pool had no connection.
    ///
    /// # Panics
    ///
    /// Where a callback of the pool panics.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, although sqlx's `begin` alone is not: both run in a task of their own, which
    /// rolls back when nobody takes the transaction from it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: leasehold::Lease, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = lease.begin(&pool).await?;
    /// sqlx::query("update invoice set settled = true").execute(&mut *tx).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn begin(&self, pool: &PgPool) -> Result<PgTransaction<'static>, Error> {
        let (held, mode, pool) = (self.held.clone(), self.lane.mode(), pool.clone());
        let span = span!("begin", held);
        let begun = async move {
            let mut tx = pool.begin().await.map_err(|error| Error::Database {
                operation: Operation::Fence,
                name: held.name.clone(),
                source: error.into(),
            })?;
            fence(&held, mode, &mut tx).await?;
            Ok(tx)
        };
        match tokio::spawn(begun.instrument(span)).await {
            Ok(begun) => begun,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Error::Closed),
            },
        }
    }

    /// Releases the lease and tells whether it was still ours.
    ///
    /// [`is_held`](Self::is_held) is false from the moment the release is sent.
    ///
    /// # Errors
    ///
    /// [`Error::Unanswered`] when the database gave no answer in time (the client goes on trying
    /// until the ttl is over), [`Error::Database`] when it refused, [`Error::Closed`] when closing the
    /// client has released it or its runtime has ended.
    ///
    /// # Cancel safety
    ///
    /// A dropped release still releases.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: leasehold::Lease) -> Result<(), leasehold::Error> {
    /// use leasehold::Release;
    ///
    /// match lease.release().await? {
    ///     Release::Released | Release::HeldOn => {}
    ///     Release::NotOwner => println!("it had been lost"),
    ///     other => println!("{other:?}: free at the latest after the ttl"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(mut self) -> Result<Release, Error> {
        let span = span!("release", self.held);
        let Some(answer) = span.in_scope(|| self.send_release()) else {
            return Err(Error::Closed);
        };
        match timeout(self.answer_within, answer).instrument(span).await {
            Ok(Ok(Ok(answer))) => Ok(answer.into()),
            Ok(Ok(Err(fault))) => Err(Error::from_database(Operation::Release, &self.held.name, fault)),
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(Error::Unanswered {
                operation: Operation::Release,
                name: self.held.name.clone(),
                source: self.lane.last_fault(),
            }),
        }
    }

    /// Stops believing, then sends the release. `None` when there is nothing to release.
    fn send_release(&mut self) -> Option<oneshot::Receiver<Result<ReleaseAnswer, Fault>>> {
        if std::mem::replace(&mut self.is_released, true) {
            return None;
        }
        self.held.belief.let_go();
        self.keeper.let_go(self.held.owner);
        match self.held.belief.loss() {
            Some(LossCause::Closed) => None,
            // It may have been lost on this side alone: the database is told all the same.
            _ => {
                let Held { name, owner, token, .. } = &self.held;
                debug!(lease.name = %name, lease.owner = %owner, lease.fencing_token = %token, "released the lease");
                Some(self.held.release(&self.lane))
            }
        }
    }

    fn lost_by(&self, cause: LossCause) -> LeaseLost {
        lost(&self.held, cause)
    }

    /// Writes down in a span whose grant it has come to be about.
    pub(crate) fn identify(&self, span: &Span) {
        span.record("lease.owner", display(self.held.owner))
            .record("lease.fencing_token", display(self.held.token));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.send_release());
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.held.name)
            .field("fencing_token", &self.held.token)
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

impl From<ReleaseAnswer> for Release {
    fn from(answer: ReleaseAnswer) -> Self {
        match answer {
            ReleaseAnswer::Released => Self::Released,
            ReleaseAnswer::HeldOn => Self::HeldOn,
            ReleaseAnswer::NotOwner => Self::NotOwner,
            ReleaseAnswer::Unknown => Self::Unknown,
        }
    }
}

async fn fence(held: &Held, mode: Mode, tx: &mut PgTransaction<'_>) -> Result<(), Error> {
    if let Some(cause) = held.belief.loss() {
        return Err(refused(held, cause).into());
    }
    let Err(fault) = store::fence(tx, &held.name, held.token, held.owner, mode.prepared).await else {
        return Ok(());
    };
    if is_fenced(&fault) {
        held.belief.lose(LossCause::Fenced);
        return Err(refused(held, held.belief.loss().unwrap_or(LossCause::Fenced)).into());
    }
    Err(Error::from_database(Operation::Fence, &held.name, fault.into()))
}

/// Tells of a holder that was kept from writing.
fn refused(held: &Held, cause: LossCause) -> LeaseLost {
    let Held { name, owner, token, .. } = held;
    warn!(lease.name = %name, lease.owner = %owner, lease.fencing_token = %token, %cause, "the fence refused the lease");
    signals::fenced(held.class, Check::Fence);
    lost(held, cause)
}

fn lost(held: &Held, cause: LossCause) -> LeaseLost {
    LeaseLost {
        name: held.name.clone(),
        fencing_token: held.token,
        cause,
    }
}
