//! The client: what an application makes once and asks for leases.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::time::{Instant, sleep, timeout};
use tracing::{Instrument, debug, debug_span, warn};

use crate::acquire::Acquire;
use crate::error::{Error, Operation};
use crate::info::LeaseInfo;
use crate::keeper::Keeper;
use crate::lane::{Lane, LaneOptions};
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::{check_holder, default_holder};
use crate::queue::{Queue, QueueOptions, Wakeup};
use crate::signals;
use crate::store::{self, Mode};
use crate::trust::{Terms, full_jitter, random};

/// Acquires leases. One per process is enough; clones share it.
///
/// Every lease statement goes through **one connection of the client's own**, made from the
/// pool's connect options when the first lease is asked for, so that a full pool never costs a
/// lease. Only [`inspect`](Self::inspect), [`held`](Self::held) and
/// [`break_lease`](Self::break_lease) use the pool.
///
/// The client follows its pool: when that is given options which lead to another server
/// (`Pool::set_connect_options`), as after a failover, so do the connections of the client.
///
/// Its tasks run on the tokio runtime in which the first lease was asked for, and end with it: whoever
/// asks afterwards gets [`Error::Closed`].
///
/// # Panics
///
/// Asking for the first lease outside a tokio runtime panics, as `tokio::spawn` does.
///
/// # Examples
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), leasehold::Error> {
/// let leases = leasehold::LeaseClient::new(pool);
/// let Some(lease) = leases.try_acquire("nightly-report").await? else { return Ok(()) };
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LeaseClient {
    shared: Arc<Shared>,
}

struct Shared {
    pool: PgPool,
    options: Options,
    lane_options: LaneOptions,
    queue_options: QueueOptions,
    is_closed: AtomicBool,
    tasks: OnceLock<Tasks>,
}

struct Tasks {
    lane: Lane,
    keeper: Keeper,
    queue: Queue,
}

/// What every acquisition of a client starts from.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) terms: Terms,
    pub(crate) margin: Option<Duration>,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) holder: Arc<str>,
    pub(crate) answer_within: Duration,
}

impl LeaseClient {
    /// A client with the defaults of [`builder`](Self::builder).
    pub fn new(pool: PgPool) -> Self {
        Self::builder(pool).build().expect("the defaults fit each other")
    }

    /// Starts from defaults: a ttl of 30 s, renewed every third of it, a margin of a tenth of it
    /// (at most a second), answers within 5 s, a heartbeat a second while somebody waits.
    pub fn builder(pool: PgPool) -> LeaseClientBuilder {
        LeaseClientBuilder {
            pool,
            ttl: Duration::from_secs(30),
            margin: None,
            renew_every: None,
            holder: None,
            answer_within: Duration::from_secs(5),
            pooler: false,
            wakeup: Wakeup::default(),
            listener_url: None,
            heartbeat_every: Duration::from_secs(1),
        }
    }

    /// Asks for a lease without waiting: `None` when somebody else holds it.
    ///
    /// # Errors
    ///
    /// See [`Acquire::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it leaves no grant behind once the database has answered.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn write_report() {}
    /// # async fn example(leases: leasehold::LeaseClient) -> Result<(), Box<dyn std::error::Error>> {
    /// let Some(lease) = leases.try_acquire("nightly-report").await? else {
    ///     return Ok(()); // somebody else is at it
    /// };
    /// lease.run_until_lost(write_report()).await?;
    /// lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire(&self, name: impl AsRef<str>) -> Result<Option<Lease>, Error> {
        self.acquire(name).try_acquire().await
    }

    /// Asks for a lease: set options, then await it. It waits for a name that somebody else holds.
    ///
    /// Not re-entrant: a second acquisition of a name that this client holds waits like anyone
    /// else's. A name that is not one is refused when the acquisition is awaited.
    pub fn acquire(&self, name: impl AsRef<str>) -> Acquire {
        Acquire::new(self.clone(), name.as_ref())
    }

    /// Stands for election to `name` again and again until the client is closed: runs `work`
    /// whenever it is the leader, drops it when the lease is lost, and stands again. When `work`
    /// ends by itself the lease is released first, so that others have their chance.
    ///
    /// Errors of the database are waited out and logged.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] at once, [`Error::SchemaMissing`] and whatever else no waiting mends.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it drops `work` and releases.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: leasehold::LeaseClient) -> Result<(), leasehold::Error> {
    /// leases.lead("scheduler", async |lease| {
    ///     println!("leading with token {}", lease.fencing_token());
    ///     std::future::pending::<()>().await
    /// }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lead(&self, name: impl AsRef<str>, work: impl AsyncFnOnce(&Lease) + Clone) -> Result<(), Error> {
        let name = LockName::new(name)?;
        let span = debug_span!("lead", lease.name = %name);
        let mut failures = 0;
        loop {
            let stood_at = Instant::now();
            match self.acquire(&name).hold(work.clone()).instrument(span.clone()).await {
                Ok(()) | Err(Error::Lost(_)) => failures = 0,
                Err(Error::Closed) => return Ok(()),
                Err(
                    error @ (Error::InvalidName { .. } | Error::InvalidOption { .. } | Error::SchemaMissing { .. }),
                ) => {
                    return Err(error);
                }
                Err(error) => {
                    warn!(lease.name = %name, %error, "could not stand for election, will again");
                    failures += 1;
                }
            }
            if self.shared.is_closed.load(Ordering::Acquire) {
                return Ok(());
            }
            // Whoever led for a moment only, or failed, lets the others go first.
            let pause = full_jitter(STAND_BASE, STAND_CAP, failures, random());
            sleep(pause.saturating_sub(stood_at.elapsed())).await;
        }
    }

    /// Who holds `name`, if anybody does: a lease that has run out too, until somebody else is granted the
    /// name or it is swept. It works on a standby as well.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] before anything is sent; [`Error::SchemaMissing`]; otherwise
    /// [`Error::Database`] with what the pool or the database said.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: leasehold::LeaseClient) -> Result<(), leasehold::Error> {
    /// if let Some(held) = leases.inspect("invoice:842").await? {
    ///     println!("{:?} since {}, for another {:?}", held.holder, held.held_since, held.expires_in);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Option<LeaseInfo>, Error> {
        let name = LockName::new(name)?;
        let span = debug_span!("inspect", lease.name = %name);
        let held = self.look(Some(name.clone())).instrument(span).await;
        let held = held.map_err(|error| Error::from_database(Operation::Inspect, &name, error.into()))?;
        Ok(held.into_iter().next())
    }

    /// All held leases, by name. It works on a standby as well.
    ///
    /// # Errors
    ///
    /// [`Error::SchemaMissing`]; otherwise [`Error::List`] with what the pool or the database said.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: leasehold::LeaseClient) -> Result<(), leasehold::Error> {
    /// for held in leases.held().await? {
    ///     println!("{} {} {:?}", held.name, held.fencing_token, held.holder);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn held(&self) -> Result<Vec<LeaseInfo>, Error> {
        self.look(None)
            .instrument(debug_span!("held"))
            .await
            .map_err(Error::list)
    }

    /// Ends the lease of `name` whoever holds it, and tells whether there was one. Its holder
    /// learns of it at his next renewal, and is fenced out at once.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] before anything is sent; [`Error::SchemaMissing`]; [`Error::ReadOnly`];
    /// otherwise [`Error::Database`] with what the pool or the database said. It needs the operator's
    /// rights: without them that is `permission denied for function break_lease`.
    ///
    /// # Cancel safety
    ///
    /// Once sent, it may be carried out although the future was dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: leasehold::LeaseClient) -> Result<(), leasehold::Error> {
    /// if leases.break_lease("invoice:842").await? {
    ///     println!("its holder is fenced out");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn break_lease(&self, name: impl AsRef<str>) -> Result<bool, Error> {
        let name = LockName::new(name)?;
        let (shared, asked) = (Arc::clone(&self.shared), name.clone());
        let mode = shared.lane_options.mode();
        let broken = seen_through(mode, async move {
            store::break_lease(&mut *shared.pool.acquire().await?, mode, &asked).await
        });
        let span = debug_span!("break_lease", lease.name = %name);
        match broken.instrument(span.clone()).await {
            Ok(was_held) => {
                span.in_scope(|| debug!(lease.name = %name, was_held, "broke the lease"));
                Ok(was_held)
            }
            Err(error) => Err(Error::from_database(Operation::Break, &name, error.into())),
        }
    }

    /// Ends the client: releases every lease it holds (each is lost with
    /// [`LossCause::Closed`](crate::LossCause::Closed)), waits for the answers and closes its
    /// connection. Whoever acquires afterwards gets [`Error::Closed`].
    ///
    /// Where the database does not answer within `answer_within`, it returns all the same; the
    /// leases run out.
    ///
    /// Call it before the process ends: without it, leases that were not released run out after their
    /// ttl.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the client closes although the future was dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn serve(leases: &leasehold::LeaseClient) {}
    /// # async fn example(leases: leasehold::LeaseClient) {
    /// serve(&leases).await;
    /// leases.close().await;
    /// # }
    /// ```
    pub async fn close(&self) {
        self.shared.is_closed.store(true, Ordering::Release);
        let Some(tasks) = self.shared.tasks.get() else {
            return;
        };
        let span = debug_span!("close");
        span.in_scope(|| tasks.queue.close());
        let (lane, keeper) = (tasks.lane.clone(), tasks.keeper.clone());
        let closing = async move {
            keeper.close().await;
            lane.close().await;
        };
        let closing = tokio::spawn(closing.instrument(span.clone()));
        if timeout(self.shared.options.answer_within, closing).await.is_err() {
            span.in_scope(|| {
                warn!("the database did not answer in time to close: leases that were not released run out");
            });
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(crate) fn lane(&self) -> Result<&Lane, Error> {
        Ok(&self.tasks()?.lane)
    }

    pub(crate) fn keeper(&self) -> Result<&Keeper, Error> {
        Ok(&self.tasks()?.keeper)
    }

    async fn look(&self, name: Option<LockName>) -> Result<Vec<LeaseInfo>, sqlx::Error> {
        let shared = Arc::clone(&self.shared);
        let mode = shared.lane_options.mode();
        seen_through(mode, async move {
            store::held(&mut *shared.pool.acquire().await?, mode, name.as_ref()).await
        })
        .await
    }

    pub(crate) fn queue(&self) -> Result<&Queue, Error> {
        Ok(&self.tasks()?.queue)
    }

    fn tasks(&self) -> Result<&Tasks, Error> {
        if self.shared.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(self.shared.tasks.get_or_init(|| {
            let Shared {
                pool,
                lane_options,
                queue_options,
                ..
            } = &*self.shared;
            signals::describe();
            let lane = Lane::start(pool.clone(), *lane_options);
            Tasks {
                keeper: Keeper::start(lane.clone()),
                queue: Queue::start(lane.clone(), pool.clone(), queue_options.clone()),
                lane,
            }
        }))
    }
}

impl fmt::Debug for LeaseClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseClient")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

/// The options of a client. The guide has a chapter on [choosing](crate::guide::ttl) the durations.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(pool: sqlx::PgPool) -> Result<(), leasehold::Error> {
/// let leases = leasehold::LeaseClient::builder(pool)
///     .ttl(Duration::from_secs(45))
///     .holder("billing, worker 7")
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct LeaseClientBuilder {
    pool: PgPool,
    ttl: Duration,
    margin: Option<Duration>,
    renew_every: Option<Duration>,
    holder: Option<String>,
    answer_within: Duration,
    pooler: bool,
    wakeup: Wakeup,
    listener_url: Option<String>,
    heartbeat_every: Duration,
}

impl LeaseClientBuilder {
    /// How long the database honours a grant without a renewal, unless an acquisition says
    /// otherwise: 100 ms to 24 h, 30 s unless set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long before the ttl the trust window ends: 1 ms to half of the ttl; a tenth of it, at most
    /// 1 s, unless set. It covers the difference in rate between the two clocks, and the time a holder
    /// takes to stop.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// How long after a renewal the next one is sent: 10 ms or more, and with the margin at most
    /// three quarters of the ttl; a third of it unless set.
    pub fn renew_every(mut self, period: Duration) -> Self {
        self.renew_every = Some(period);
        self
    }

    /// The label for people, unless an acquisition says otherwise: at most 512 bytes without NUL,
    /// `application@host:pid` when not set.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// How long an answer of the database may take: for asking without waiting, for the first
    /// answer of a wait, for a release and for closing. More than zero, at most 1 h; 5 s unless set.
    pub fn answer_within(mut self, limit: Duration) -> Self {
        self.answer_within = limit;
        self
    }

    /// The pool goes through a pooler in transaction mode, such as PgBouncer: statements are sent
    /// unnamed, each in a transaction of its own, at the price of two more round trips, and so is a
    /// [`fence`](crate::Lease::fence) in the transaction it is called in. Not needed with PgBouncer
    /// 1.21 or newer and its `max_prepared_statements`. Notifications need a
    /// [`listener_url`](Self::listener_url) either way.
    pub fn pooler(mut self, pooler: bool) -> Self {
        self.pooler = pooler;
        self
    }

    /// How waiters learn that their turn has come: by notifications unless set here.
    pub fn wakeup(mut self, wakeup: Wakeup) -> Self {
        self.wakeup = wakeup;
        self
    }

    /// Where to listen for notifications, if not where the pool connects: a `postgres://` URL of
    /// the server itself, for a pool that goes through a pooler in transaction mode, which takes a
    /// `listen` and delivers nothing.
    pub fn listener_url(mut self, url: impl Into<String>) -> Self {
        self.listener_url = Some(url.into());
        self
    }

    /// How often the client says that its waiters are alive, in one statement for all of them,
    /// while there are any: 100 ms to 5 min, 1 s unless set. A client that has been silent for three of these
    /// periods is passed over. Where notifications do not come through, waiters are woken at this
    /// pace.
    pub fn heartbeat_every(mut self, period: Duration) -> Self {
        self.heartbeat_every = period;
        self
    }

    /// Checks the options. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] names the option that is out of range.
    pub fn build(self) -> Result<LeaseClient, Error> {
        let terms = Terms::new(self.ttl, self.margin, self.renew_every)?;
        if self.answer_within.is_zero() || self.answer_within > MAX_ANSWER_WITHIN {
            return Err(Error::InvalidOption {
                option: "answer_within",
                problem: format!("{:?} is not between 1 ns and 1 h", self.answer_within),
            });
        }
        let holder = match self.holder {
            Some(holder) => {
                check_holder(&holder)?;
                holder
            }
            None => default_holder(&self.pool.connect_options()),
        };
        if !(MIN_HEARTBEAT..=MAX_HEARTBEAT).contains(&self.heartbeat_every) {
            return Err(Error::InvalidOption {
                option: "heartbeat_every",
                problem: format!("{:?} is not between 100 ms and 5 min", self.heartbeat_every),
            });
        }
        let listen_at = self.listener_url.as_deref().map(parse_listener_url).transpose()?;
        Ok(LeaseClient {
            shared: Arc::new(Shared {
                options: Options {
                    terms,
                    margin: self.margin,
                    renew_every: self.renew_every,
                    holder: holder.into(),
                    answer_within: self.answer_within,
                },
                lane_options: LaneOptions { pooler: self.pooler },
                queue_options: QueueOptions {
                    wakeup: self.wakeup,
                    listen_at,
                    is_pooled: self.pooler,
                    heartbeat_every: self.heartbeat_every,
                },
                pool: self.pool,
                is_closed: AtomicBool::new(false),
                tasks: OnceLock::new(),
            }),
        })
    }
}

impl fmt::Debug for LeaseClientBuilder {
    /// Without the pool and the listener's URL, which hold passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseClientBuilder")
            .field("ttl", &self.ttl)
            .field("margin", &self.margin)
            .field("renew_every", &self.renew_every)
            .field("holder", &self.holder)
            .field("answer_within", &self.answer_within)
            .field("pooler", &self.pooler)
            .field("wakeup", &self.wakeup)
            .field("heartbeat_every", &self.heartbeat_every)
            .finish_non_exhaustive()
    }
}

/// sqlx takes the URL of whatever else for a server's, by its host alone. Of what it says of a bad
/// one, the values that it quotes are left out: a password may hold what looks like one of them.
pub(crate) fn parse_listener_url(url: &str) -> Result<PgConnectOptions, Error> {
    let invalid = |problem| Error::InvalidOption {
        option: "listener_url",
        problem,
    };
    match url.split_once("://") {
        Some(("postgres" | "postgresql", _)) => url
            .parse()
            .map_err(|error: sqlx::Error| invalid(unquoted(&error.to_string()))),
        _ => Err(invalid("it does not begin with postgres:// or postgresql://".into())),
    }
}

fn unquoted(message: &str) -> String {
    match (message.find('"'), message.rfind('"')) {
        (Some(open), Some(close)) if open < close => format!("{}…{}", &message[..open], &message[close + 1..]),
        _ => message.to_owned(),
    }
}

/// Carries a statement on the application's pool to its end where it is wrapped in a transaction: dropped
/// in between, the connection would go back to the pool with the transaction open.
async fn seen_through<T: Send + 'static>(
    mode: Mode,
    statement: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
) -> Result<T, sqlx::Error> {
    if !mode.wrapped {
        return statement.await;
    }
    let ended = tokio::spawn(statement).await;
    ended.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

const MAX_ANSWER_WITHIN: Duration = Duration::from_secs(60 * 60);
const MIN_HEARTBEAT: Duration = Duration::from_millis(100);
const MAX_HEARTBEAT: Duration = Duration::from_secs(5 * 60);
const STAND_BASE: Duration = Duration::from_millis(250);
const STAND_CAP: Duration = Duration::from_secs(5);
