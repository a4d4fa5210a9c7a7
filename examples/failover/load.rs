//! The clients: each has a pool and a lease client of its own, and workers that wait, try, hold for long,
//! oversleep and write under the fence, and go on by themselves whatever happens to the servers.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold::sqlx::postgres::{PgArguments, PgConnectOptions, PgPool, PgPoolOptions, Postgres};
use leasehold::sqlx::query::Query;
use leasehold::{Error, FencingToken, Lease, LeaseClient, is_fenced, sqlx};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::history::{Grant, History};
use crate::primary;

#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    clients: Vec<Arc<Client>>,
    workers: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Shared {
    history: Mutex<History>,
    is_over: AtomicBool,
    writes: AtomicI64,
    late: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Client {
    number: usize,
    pool: PgPool,
    leases: LeaseClient,
    shared: Arc<Shared>,
}

impl Load {
    pub async fn start(hosts: &[PgConnectOptions]) -> Result<Self, Error> {
        let shared = Arc::<Shared>::default();
        let mut workers = JoinSet::new();
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let options = PgPoolOptions::new()
                .max_connections(4)
                .acquire_timeout(Duration::from_secs(3));
            let pool = primary::pool(hosts.to_vec(), options).await;
            let leases = LeaseClient::builder(pool.clone())
                .ttl(TTL)
                .answer_within(Duration::from_secs(2))
                .build()?;
            let client = Arc::new(Client {
                number,
                pool,
                leases,
                shared: Arc::clone(&shared),
            });
            for hot in 0..HOT_NAMES {
                workers.spawn(wait(Arc::clone(&client), format!("hot:{hot}")));
            }
            workers.spawn(try_again(Arc::clone(&client)));
            workers.spawn(hold(Arc::clone(&client), format!("long:{number}")));
            workers.spawn(oversleep(Arc::clone(&client), "slept".to_owned()));
            clients.push(client);
        }
        Ok(Self {
            shared,
            clients,
            workers,
        })
    }

    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.shared.history()
    }

    /// Ends the clients and returns what they were told.
    pub async fn stop(mut self) -> History {
        self.shared.is_over.store(true, Ordering::Release);
        while let Some(ended) = self.workers.join_next().await {
            ended.expect("workers do not panic");
        }
        let mut late = std::mem::take(&mut *self.shared.late.lock().unwrap_or_else(PoisonError::into_inner));
        while let Some(ended) = late.join_next().await {
            ended.expect("late writers do not panic");
        }
        for client in &self.clients {
            client.leases.close().await;
            client.pool.close().await;
        }
        std::mem::take(&mut *self.shared.history())
    }
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

/// Stands in line for a name that all clients want.
async fn wait(client: Arc<Client>, name: String) {
    while !client.shared.is_over() {
        let asked_at = Instant::now();
        match client.leases.acquire(&name).wait_at_most(Duration::from_secs(5)).await {
            Ok(lease) => turn(&client, lease, asked_at).await,
            // In the middle of a failover: read-only, or nobody there.
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Takes names that nobody else wants, one after another.
async fn try_again(client: Arc<Client>) {
    for name in (0..).map(|number| format!("free:{}:{}", client.number, number % 8)) {
        if client.shared.is_over() {
            return;
        }
        let asked_at = Instant::now();
        match client.leases.try_acquire(&name).await {
            Ok(Some(lease)) => turn(&client, lease, asked_at).await,
            Ok(None) | Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn turn(client: &Arc<Client>, lease: Lease, asked_at: Instant) {
    let grant = client.granted(&lease, asked_at);
    let is_written = client.write(&lease).await;
    if !client.still_believes(&lease, grant) || !is_written {
        client.write_late(&lease, Duration::ZERO);
    }
    let _ = lease.release().await;
}

/// Holds a name through whatever comes, for as long as it can.
async fn hold(client: Arc<Client>, name: String) {
    let asking = client.leases.acquire(&name).ttl(LONG_TTL).into_future();
    let asked_at = Instant::now();
    let lease = match timeout(LONG_TTL, asking).await {
        Ok(Ok(lease)) => lease,
        other => panic!("{name} is free, and the servers are well: {other:?}"),
    };
    let grant = client.granted(&lease, asked_at);
    client.shared.history().kept.0 += 1;
    while !client.shared.is_over() && client.still_believes(&lease, grant) {
        client.write(&lease).await;
        sleep(PAUSE).await;
    }
    // Renewed by the server that leads now, or the client would not believe: make sure of it.
    if lease.is_held()
        && timeout(Duration::from_secs(5), lease.renew())
            .await
            .is_ok_and(|renewed| renewed.is_ok())
    {
        client.shared.history().kept.1 += 1;
    } else {
        client.write_late(&lease, Duration::ZERO);
    }
}

/// Sleeps through its lease, so that the name passes on, and then writes.
async fn oversleep(client: Arc<Client>, name: String) {
    while !client.shared.is_over() {
        let asked_at = Instant::now();
        let asking = client.leases.acquire(&name).ttl(SLEPT_TTL).manual_renewal();
        match asking.wait_at_most(Duration::from_secs(5)).await {
            Ok(lease) => {
                client.granted(&lease, asked_at);
                client.write_late(&lease, SLEPT_TTL + TTL / 4);
                sleep(SLEPT_TTL).await;
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

impl Client {
    fn granted(&self, lease: &Lease, asked_at: Instant) -> usize {
        let granted_at = Instant::now();
        let mut history = self.shared.history();
        history.grants.push(Grant {
            client: self.number,
            name: lease.name().to_string(),
            token: lease.fencing_token().into(),
            asked_at,
            granted_at,
            believed_until: granted_at,
        });
        history.grants.len() - 1
    }

    fn still_believes(&self, lease: &Lease, grant: usize) -> bool {
        let now = Instant::now();
        let believes = lease.is_held();
        if believes {
            self.shared.history().grants[grant].believed_until = now;
        }
        believes
    }

    /// A fenced write; whether it was answered. One that was not is given up, and may have been carried out.
    async fn write(&self, lease: &Lease) -> bool {
        let id = self.next_write();
        let writing = async {
            let mut tx = lease.begin(&self.pool).await.ok()?;
            write(lease.name().to_string(), lease.fencing_token(), id)
                .execute(&mut *tx)
                .await
                .ok()?;
            tx.commit().await.ok()
        };
        let is_written = timeout(PATIENCE, writing).await == Ok(Some(()));
        if is_written {
            self.shared.history().writes.push(id);
        }
        is_written
    }

    /// What a holder writes that does not know of its loss, again and again until it is answered: the
    /// fence has to refuse it, if the name has passed on.
    fn write_late(self: &Arc<Self>, lease: &Lease, after: Duration) {
        let (client, name, token) = (Arc::clone(self), lease.name().to_string(), lease.fencing_token());
        let writing = async move {
            sleep(after).await;
            while !client.shared.is_over() {
                match client.write_once_late(&name, token).await {
                    Some(Ok(id)) => return client.shared.history().writes.push(id),
                    Some(Err(error)) if is_fenced(&error) => return client.shared.history().refused += 1,
                    _ => sleep(PAUSE * 10).await,
                }
            }
        };
        self.shared
            .late
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .spawn(writing);
    }

    async fn write_once_late(&self, name: &str, token: FencingToken) -> Option<Result<i64, sqlx::Error>> {
        let id = self.next_write();
        let writing = async {
            let mut tx = self.pool.begin().await?;
            let fence = sqlx::query("select leasehold.fence($1, $2)").bind(name).bind(token);
            fence.execute(&mut *tx).await?;
            write(name.to_owned(), token, id).execute(&mut *tx).await?;
            tx.commit().await
        };
        let written = timeout(PATIENCE, writing).await.ok()?;
        Some(written.map(|()| id))
    }

    fn next_write(&self) -> i64 {
        self.shared.writes.fetch_add(1, Ordering::Relaxed)
    }
}

fn write(name: String, token: FencingToken, id: i64) -> Query<'static, Postgres, PgArguments> {
    sqlx::query("select failover.write($1, $2, $3)")
        .bind(name)
        .bind(token)
        .bind(id)
}

const CLIENTS: usize = 4;
const HOT_NAMES: usize = 2;
const TTL: Duration = Duration::from_secs(4);
/// Of a name that is free only when its ttl is over.
const SLEPT_TTL: Duration = Duration::from_secs(1);
const LONG_TTL: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
