//! One process: its workers share a client, and take their turns.

use std::env;
use std::time::Duration;

use leasehold::LeaseClient;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Outcome;
use crate::turn::{Turn, now};

pub const WORKERS: usize = 8;
const TURNS: usize = 3;

/// What a worker does while it is its turn.
const WORK: Duration = Duration::from_millis(12);

pub async fn run(name: &str, process: usize) -> Outcome<()> {
    let leases = LeaseClient::new(PgPool::connect(&env::var("DATABASE_URL")?).await?);
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (leases, name) = (leases.clone(), name.to_owned());
        workers.spawn(async move {
            let mut turns = Vec::new();
            for _ in 0..TURNS {
                let asked_at = now();
                let lease = leases.acquire(&name).await?;
                let granted_at = now();
                sleep(WORK).await;
                let (token, released_at) = (lease.fencing_token().into(), now());
                lease.release().await?;
                turns.push(Turn {
                    process,
                    worker,
                    token,
                    asked_at,
                    granted_at,
                    released_at,
                });
            }
            Ok::<_, leasehold::Error>(turns)
        });
    }
    while let Some(turns) = workers.join_next().await {
        for turn in turns?? {
            println!("{turn}");
        }
    }
    leases.close().await;
    Ok(())
}
