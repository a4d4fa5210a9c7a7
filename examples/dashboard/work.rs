//! A small application: some of its tasks take leases of their own, some wait for one in turn, some
//! cannot wait, and one has bad luck.

use std::time::Duration;

use leasehold::{Error, LeaseClient};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::Outcome;

/// Its tasks at work, until it is stopped.
pub struct Application {
    tasks: JoinSet<Outcome<()>>,
    clients: [LeaseClient; 2],
}

impl Application {
    pub async fn start(url: &str, round: Duration) -> Outcome<Self> {
        let pool = PgPoolOptions::new().max_connections(8).connect(url).await?;
        leasehold::migrate(&pool).await?;
        // As if in two processes.
        let clients = [LeaseClient::new(pool.clone()), LeaseClient::new(pool.clone())];
        let names = format!("dashboard:{}", uuid::Uuid::new_v4());
        let began_at = Instant::now();

        let mut tasks = JoinSet::new();
        for invoice in 0..INVOICES {
            let (leases, pool) = (clients[invoice % 2].clone(), pool.clone());
            tasks.spawn(settle(leases, pool, format!("{names}:invoice:{invoice}")));
        }
        for reporter in 0..REPORTERS {
            let pace = Pace {
                began_at,
                round,
                begins: f64::from(reporter) / f64::from(2 * REPORTERS),
            };
            let leases = clients[reporter as usize % 2].clone();
            tasks.spawn(report(leases, format!("{names}:report"), pace));
        }
        tasks.spawn(hurry(clients[0].clone(), format!("{names}:report")));
        tasks.spawn(have_bad_luck(clients[1].clone(), pool.clone(), format!("{names}:sync")));
        tasks.spawn(be_in_the_way(pool, format!("{names}:steady")));
        Ok(Self { tasks, clients })
    }

    /// Returns when one of the tasks has failed.
    pub async fn failed(&mut self) -> Outcome<()> {
        match self.tasks.join_next().await {
            Some(ended) => ended?,
            None => Ok(()),
        }
    }

    pub async fn stop(mut self) -> Outcome<()> {
        self.tasks.shutdown().await;
        for client in self.clients {
            client.close().await;
        }
        Ok(())
    }
}

/// When there is more to do, and when less: in each round, those who begin later end earlier.
struct Pace {
    began_at: Instant,
    round: Duration,
    /// As a share of the round.
    begins: f64,
}

impl Pace {
    fn is_at_work(&self) -> bool {
        let share = (self.began_at.elapsed().as_secs_f64() / self.round.as_secs_f64()).fract();
        (self.begins..1.0 - self.begins).contains(&share)
    }
}

/// Has a name of its own, and writes under the fence.
async fn settle(leases: LeaseClient, pool: PgPool, name: String) -> Outcome<()> {
    loop {
        let lease = leases.acquire(&name).class("settle").await?;
        let tx = lease.begin(&pool).await?;
        sleep(BREATH).await;
        tx.commit().await?;
        lease.release().await?;
        sleep(BREATH).await;
    }
}

/// Shares a name with others, and waits for its turn.
async fn report(leases: LeaseClient, name: String, pace: Pace) -> Outcome<()> {
    loop {
        if pace.is_at_work() {
            let lease = leases.acquire(&name).class("report").await?;
            sleep(WORK).await;
            lease.release().await?;
        } else {
            sleep(BREATH).await;
        }
    }
}

/// Asks for the name that is in demand without waiting, and then waits for less than it takes.
async fn hurry(leases: LeaseClient, name: String) -> Outcome<()> {
    loop {
        if let Some(lease) = leases.acquire(&name).class("hurry").try_acquire().await? {
            lease.release().await?;
        }
        match leases.acquire(&name).class("hurry").wait_at_most(WORK).await {
            Ok(lease) => {
                lease.release().await?;
            }
            // Or not even an answer, on a machine that is busy.
            Err(Error::WaitTimedOut { .. } | Error::Unanswered { .. } | Error::Busy { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        sleep(BREATH).await;
    }
}

/// Loses its leases, each in another way.
async fn have_bad_luck(leases: LeaseClient, pool: PgPool, name: String) -> Outcome<()> {
    let sync = || leases.acquire(&name).class("sync");
    loop {
        // An operator breaks it: it learns that from its next renewal.
        let lease = sync().await?;
        leases.break_lease(&name).await?;
        is_lost(lease.renew().await)?;
        let stale = lease.fencing_token();

        // The same; but it comes to write before.
        let lease = sync().await?;
        leases.break_lease(&name).await?;
        is_lost(lease.begin(&pool).await)?;

        // It takes longer than it may.
        let lease = sync().hold_at_most(SHORT).await?;
        lease.lost().await;
        lease.release().await?;

        // It does not renew, and comes to write too late.
        let lease = sync().ttl(SHORT).manual_renewal().await?;
        lease.lost().await;
        is_lost(lease.begin(&pool).await)?;

        // Its client is closed under it.
        let closing = LeaseClient::new(pool.clone());
        let lease = closing.acquire(&name).class("sync").await?;
        closing.close().await;
        lease.lost().await;

        // Another has written since, in a database that knows tokens alone.
        let lease = sync().await?;
        let mut tx = pool.begin().await?;
        lease.fencing_token().admit(&mut tx, &name).await?;
        match stale.admit(&mut tx, &name).await {
            Err(Error::Stale { .. }) => tx.rollback().await?,
            other => return Err(format!("a stale token is admitted: {other:?}").into()),
        }
        lease.release().await?;
        sleep(SHORT).await;
    }
}

fn is_lost<T>(operation: Result<T, Error>) -> Outcome<()> {
    match operation {
        Err(Error::Lost(_)) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("a lost lease goes on".into()),
    }
}

/// Locks the row of somebody's lease now and then, so that it cannot be renewed.
async fn be_in_the_way(pool: PgPool, name: String) -> Outcome<()> {
    let leases = LeaseClient::builder(pool.clone()).renew_every(SHORT / 2).build()?;
    let lease = leases.acquire(&name).class("steady").await?;
    loop {
        sleep(4 * SHORT).await;
        let mut psql = pool.begin().await?;
        sqlx::query("select from leasehold.locks where name = $1 for update")
            .bind(lease.name())
            .execute(&mut *psql)
            .await?;
        sleep(2 * SHORT).await;
        psql.rollback().await?;
    }
}

const INVOICES: usize = 4;
const REPORTERS: u32 = 8;
const BREATH: Duration = Duration::from_millis(50);
const WORK: Duration = Duration::from_millis(15);
const SHORT: Duration = Duration::from_millis(400);
