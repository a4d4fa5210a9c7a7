//! A client process: workers that use the crate, workers that speak SQL, and an ear for the nemesis.
//!
//! It reads commands from its standard input: `exhaust MS` takes every connection of the application's
//! pool for so long, `stop` ends the workers and closes the client.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{LeaseClient, Wakeup};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::dice::Dice;
use crate::journal::Journal;
use crate::{speaker, worker};

/// The process whose waiters are woken by their heartbeat alone.
pub const POLLS: &str = "p1";

const WORKERS: u64 = 5;
const SPEAKERS: u64 = 2;

/// What the workers of a process share.
#[derive(Debug)]
pub struct Process {
    pub tag: String,
    pub leases: LeaseClient,
    pub pool: PgPool,
    pub journal: Journal,
    pub stopped: AtomicBool,
    pub hot_names: u64,
    numbers: AtomicU64,
}

impl Process {
    /// A fresh id: the acquisition's in the history, and the holder of its lease.
    pub fn id(&self, worker: u64) -> String {
        format!("{}.{worker}.{}", self.tag, self.numbers.fetch_add(1, Ordering::Relaxed))
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits until the process is told to stop.
    pub async fn stop(&self) {
        while !self.is_stopped() {
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn name(&self, dice: &mut Dice) -> String {
        match dice.percent(70) {
            true => format!("hot-{}", dice.between(1, self.hot_names)),
            false => format!("cold-{}", dice.between(1, 300)),
        }
    }
}

/// `--client TAG URL HISTORY SEED HOT_NAMES`
pub async fn run(arguments: &[String]) -> Outcome<()> {
    let [tag, url, history, seed, hot_names] = arguments else {
        return Err("a client needs its tag, the server, its history, a seed and a number of names".into());
    };
    let seed: u64 = seed.parse()?;
    let pool = PgPoolOptions::new()
        .max_connections((WORKERS + SPEAKERS) as u32 + 3)
        .acquire_timeout(Duration::from_secs(2))
        .connect_lazy(url)?;
    let polls = tag.starts_with(POLLS);
    let leases = LeaseClient::builder(pool.clone())
        .ttl(Duration::from_secs(1))
        .answer_within(Duration::from_secs(3))
        .wakeup(if polls { Wakeup::Poll } else { Wakeup::default() })
        .heartbeat_every(Duration::from_millis(if polls { 200 } else { 1000 }))
        .build()?;
    let process = Arc::new(Process {
        tag: tag.clone(),
        leases: leases.clone(),
        pool,
        journal: Journal::open(Path::new(history))?,
        stopped: AtomicBool::new(false),
        hot_names: hot_names.parse()?,
        numbers: AtomicU64::new(0),
    });

    let mut tasks = JoinSet::new();
    for number in 0..WORKERS {
        tasks.spawn(worker::run(Arc::clone(&process), number, Dice::new(seed, number)));
    }
    for number in WORKERS..WORKERS + SPEAKERS {
        tasks.spawn(speaker::run(Arc::clone(&process), number, Dice::new(seed, number)));
    }
    let mut commands = commands();
    while let Some(command) = commands.recv().await {
        match command.split_once(' ') {
            Some(("exhaust", milliseconds)) => {
                let (pool, held_for) = (process.pool.clone(), Duration::from_millis(milliseconds.parse()?));
                tokio::spawn(exhaust(pool, held_for));
            }
            _ => break,
        }
    }
    process.stopped.store(true, Ordering::Release);
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    leases.close().await;
    Ok(())
}

/// The lines of standard input, until it ends.
fn commands() -> mpsc::UnboundedReceiver<String> {
    let (hear, heard) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for command in std::io::stdin().lines().map_while(Result::ok) {
            if hear.send(command).is_err() {
                break;
            }
        }
    });
    heard
}

async fn exhaust(pool: PgPool, held_for: Duration) {
    let most = pool.options().get_max_connections();
    let mut taken = JoinSet::new();
    for _ in 0..most {
        let pool = pool.clone();
        taken.spawn(async move {
            if let Ok(connection) = pool.acquire().await {
                sleep(held_for).await;
                drop(connection);
            }
        });
    }
    taken.join_all().await;
}
