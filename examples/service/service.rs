//! The part to copy: every replica serves, the leader schedules as well.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use leasehold::{FencingToken, Lease, LeaseClient};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::Outcome;
use crate::shutdown::told_to_end;

/// How long nobody leads, at most, when the leader dies without a word.
pub const TTL: Duration = Duration::from_secs(3);

/// What this replica is at the moment. To be shown; what may be done only as leader, the lease decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Standby,
    Leader(FencingToken),
    Ending,
}

#[derive(Clone)]
struct Service {
    pool: PgPool,
    role: Arc<watch::Sender<Role>>,
}

/// Serves until the process is told to end, and leads whenever this replica is elected.
pub async fn run(listener: TcpListener, pool: PgPool, name: &str) -> Outcome<()> {
    let told_to_end = told_to_end()?;
    leasehold::migrate(&pool).await?;
    let leases = LeaseClient::builder(pool.clone()).ttl(TTL).build()?;
    let service = Service {
        pool,
        role: Arc::new(watch::Sender::new(Role::Standby)),
    };

    let ending = {
        let (leases, role) = (leases.clone(), Arc::clone(&service.role));
        async move {
            told_to_end.await;
            role.send_replace(Role::Ending);
            // Before the last requests are answered, so that a standby leads at once.
            leases.close().await;
        }
    };
    let serving = axum::serve(listener, routes(service.clone()))
        .with_graceful_shutdown(ending)
        .into_future();
    let leading = leases.lead(name, async |lease| schedule(lease, &service).await);
    // A candidate that can never lead, because the schema is missing for one, ends the service too.
    tokio::try_join!(async { Outcome::Ok(serving.await?) }, async {
        Outcome::Ok(leading.await?)
    })?;
    service.pool.close().await;
    Ok(())
}

fn routes(service: Service) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(service)
}

/// Whether the process is alive, and what it is. It does not ask the database: whoever restarts what is not
/// healthy would restart every replica when that is away.
async fn healthz(State(service): State<Service>) -> String {
    match *service.role.borrow() {
        Role::Standby => "standby\n".to_owned(),
        Role::Leader(token) => format!("leader {token}\n"),
        Role::Ending => "ending\n".to_owned(),
    }
}

/// Whether it can serve requests. A standby can.
async fn readyz(State(service): State<Service>) -> StatusCode {
    let asked = sqlx::query("select 1").execute(&service.pool);
    match timeout(ANSWER_WITHIN, asked).await {
        Ok(Ok(_)) if *service.role.borrow() != Role::Ending => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// What the leader does, over and over. It is dropped the moment the lease is lost; where it fails it ends,
/// and the election goes on: somebody else may do better.
async fn schedule(lease: &Lease, service: &Service) {
    let _leadership = Leadership::begin(lease, &service.role);
    let mut due = interval(EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut outcome = prepare(lease, &service.pool).await;
    while outcome.is_ok() {
        due.tick().await;
        outcome = schedule_once(lease, &service.pool).await;
    }
    eprintln!("does not lead any more: {outcome:?}");
}

/// By the leader, who is alone: nobody else creates it at the same time.
async fn prepare(lease: &Lease, pool: &PgPool) -> Outcome<()> {
    let mut tx = lease.begin(pool).await?;
    sqlx::query("create table if not exists scheduled (number bigserial, fence bigint not null)")
        .execute(&mut *tx)
        .await?;
    Ok(tx.commit().await?)
}

/// In a transaction that is void once somebody else leads, however long this process was stopped.
async fn schedule_once(lease: &Lease, pool: &PgPool) -> Outcome<()> {
    let mut tx = lease.begin(pool).await?;
    sqlx::query("insert into scheduled (fence) values ($1)")
        .bind(lease.fencing_token())
        .execute(&mut *tx)
        .await?;
    Ok(tx.commit().await?)
}

/// Shows that this replica leads, for as long as it lives.
struct Leadership<'a>(&'a watch::Sender<Role>);

impl<'a> Leadership<'a> {
    fn begin(lease: &Lease, role: &'a watch::Sender<Role>) -> Self {
        show(role, Role::Leader(lease.fencing_token()));
        Self(role)
    }
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        show(self.0, Role::Standby);
    }
}

/// Whoever is ending shows nothing else any more.
fn show(role: &watch::Sender<Role>, new: Role) {
    role.send_if_modified(|role| {
        let shows = *role != Role::Ending;
        if shows {
            *role = new;
        }
        shows
    });
}

const EVERY: Duration = Duration::from_millis(100);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
