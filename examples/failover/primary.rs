//! Several hosts, one primary: a pool that is always on the primary, and with it the lease client.
//!
//! sqlx knows no `target_session_attrs`, but a pool's connect options may be changed while it runs, and
//! the lease client follows them. So a task asks all hosts twice a second, and the pool lets go of
//! connections that are older than the latest move. Meant to be copied. After `pg_upgrade`, which counts
//! timelines from one again, start the application anew.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use leasehold::sqlx::{self, Connection};
use tokio::time::{sleep, timeout};

/// Returns a pool on whichever of `hosts` is the primary, now and after every failover, until it is closed.
pub(crate) async fn pool(hosts: Vec<PgConnectOptions>, options: PgPoolOptions) -> PgPool {
    let found = find(&hosts, (0, 0)).await;
    let latest = Latest(Arc::new(Mutex::new((found, None))));
    let [on_acquire, on_release, on_connect] = [latest.clone(), latest.clone(), latest.clone()];
    let pool = options
        // Its pings wait for ever on a server that is gone without a word; those of `check` do not.
        .test_before_acquire(false)
        .before_acquire(move |conn, meta| check(&on_acquire, conn, meta.age))
        .after_release(move |conn, meta| check(&on_release, conn, meta.age))
        // After an error the pool tries again, with the connect options of that time.
        .after_connect(move |conn, _| {
            let (latest, _) = on_connect.get().0;
            Box::pin(async move {
                let is_primary = timeline(conn).await? >= Some(latest);
                is_primary
                    .then_some(())
                    .ok_or_else(|| sqlx::Error::Configuration("not the primary".into()))
            })
        })
        .connect_lazy_with(hosts[found.1].clone());
    tokio::spawn(follow(pool.clone(), hosts, latest));
    pool
}

/// A timeline, and which host is on it.
type Primary = (i64, usize);

/// The primary, and when the pool moved there.
#[derive(Clone)]
struct Latest(Arc<Mutex<(Primary, Option<Instant>)>>);

impl Latest {
    fn get(&self) -> (Primary, Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn follow(pool: PgPool, hosts: Vec<PgConnectOptions>, latest: Latest) {
    while !pool.is_closed() {
        let (current, _) = latest.get();
        let found = find(&hosts, current).await;
        if found != current {
            pool.set_connect_options(hosts[found.1].clone());
            *latest.0.lock().unwrap_or_else(PoisonError::into_inner) = (found, Some(Instant::now()));
        }
        sleep(ASK_EVERY).await;
    }
}

/// The highest timeline is the latest promotion: an old primary that does not know of it yet goes on
/// taking writes.
async fn find(hosts: &[PgConnectOptions], current: Primary) -> Primary {
    let asked = hosts
        .iter()
        .map(|host| tokio::spawn(timeout(ANSWER_WITHIN, ask(host.clone()))));
    let mut primary = current;
    for (host, asked) in asked.collect::<Vec<_>>().into_iter().enumerate() {
        if let Ok(Ok(Ok(Some(timeline)))) = asked.await {
            primary = primary.max((timeline, host));
        }
    }
    primary
}

/// Whether the pool may go on with this connection.
fn check<'c>(latest: &Latest, conn: &'c mut PgConnection, age: Duration) -> Answer<'c> {
    let is_old = latest.get().1.is_some_and(|moved_at| age >= moved_at.elapsed());
    Box::pin(async move {
        match timeout(ANSWER_WITHIN, conn.ping()).await {
            Ok(answer) => answer.map(|()| !is_old),
            Err(_) => Err(sqlx::Error::PoolTimedOut),
        }
    })
}

type Answer<'c> = Pin<Box<dyn Future<Output = Result<bool, sqlx::Error>> + Send + 'c>>;

async fn ask(host: PgConnectOptions) -> Result<Option<i64>, sqlx::Error> {
    let mut conn = PgConnection::connect_with(&host).await?;
    let timeline = timeline(&mut conn).await;
    let _ = conn.close().await;
    timeline
}

/// Which promotion made this server the primary; `None` from a standby.
async fn timeline(conn: &mut PgConnection) -> Result<Option<i64>, sqlx::Error> {
    let timeline = "select case when not pg_is_in_recovery()
        then ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint end";
    sqlx::query_scalar(timeline).fetch_one(conn).await
}

const ASK_EVERY: Duration = Duration::from_millis(500);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
