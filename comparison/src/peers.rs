//! The peers, each in a file of its own.

pub mod advisory;
pub mod etcd;
pub mod kit;
pub mod leasehold;
pub mod pglock;
pub mod redis;
pub mod table;
pub mod updates;

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::peer::{Outcome, Peer};
use crate::servers::Servers;

/// Everybody. `clients` is how many processes the sessions stand for: each has a client of its own
/// where a peer shares one among its tasks.
pub async fn all(servers: &Servers, clients: usize) -> Outcome<Vec<Box<dyn Peer>>> {
    let options = servers.postgres.options();
    let mut peers = on_postgres(&options, clients).await?;
    if let Some(server) = &servers.redis_always {
        let name = redis::ALWAYS;
        peers.push(Box::new(redis::Redis::connect(name, server.port(), clients).await?));
    }
    if let Some(server) = &servers.redis_defaults {
        let name = redis::DEFAULTS;
        peers.push(Box::new(redis::Redis::connect(name, server.port(), clients).await?));
    }
    if let Some(server) = &servers.etcd {
        peers.push(Box::new(etcd::Etcd::connect(server.port(), clients).await?));
    }
    Ok(peers)
}

/// Those that need no server but PostgreSQL.
pub async fn on_postgres(options: &PgConnectOptions, clients: usize) -> Outcome<Vec<Box<dyn Peer>>> {
    Ok(vec![
        Box::new(updates::Updates::new(options).await?),
        Box::new(leasehold::Leasehold::new(options, clients).await?),
        Box::new(advisory::Advisory::new(options)),
        Box::new(table::Table::new(options).await?),
        Box::new(kit::Kit::new(options, clients).await?),
        Box::new(pglock::PgLock::new(options, false).await?),
    ])
}

/// A pool with a connection for each task, so that nobody waits for one.
pub fn pool(options: &PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(MOST_CONNECTIONS)
        .acquire_timeout(Duration::from_secs(60))
        .connect_lazy_with(options.clone())
}

/// Of the lease tables: long enough that nobody's runs out in a measurement.
pub const TTL: Duration = Duration::from_secs(30);
/// How often the peers look that choose no pace of their own.
pub const POLL_EVERY: Duration = Duration::from_millis(100);
const MOST_CONNECTIONS: u32 = 128;
