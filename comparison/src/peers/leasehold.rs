//! This crate. Sessions share clients, as tasks share a process: one connection each.

use leasehold::{Lease, LeaseClient, Release};
use sqlx::postgres::PgConnectOptions;

use crate::peer::{Outcome, Peer, Pending, Session};
use crate::peers::pool;

pub const NAME: &str = "leasehold";

pub struct Leasehold {
    clients: Vec<LeaseClient>,
}

impl Leasehold {
    pub async fn new(options: &PgConnectOptions, clients: usize) -> Outcome<Self> {
        let pool = pool(options);
        leasehold::migrate(&pool).await?;
        Ok(Self {
            clients: (0..clients).map(|_| LeaseClient::new(pool.clone())).collect(),
        })
    }
}

impl Peer for Leasehold {
    fn name(&self) -> &'static str {
        NAME
    }

    fn session(&self, number: usize) -> Pending<'_, Box<dyn Session>> {
        let client = self.clients[number % self.clients.len()].clone();
        Box::pin(async move { Ok(Box::new(Task { client, lease: None }) as Box<dyn Session>) })
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async {
            for client in &self.clients {
                client.close().await;
            }
            Ok(())
        })
    }
}

struct Task {
    client: LeaseClient,
    lease: Option<Lease>,
}

impl Session for Task {
    fn acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            self.lease = Some(self.client.acquire(name).await?);
            Ok(())
        })
    }

    fn try_acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, bool> {
        Box::pin(async move {
            self.lease = self.client.try_acquire(name).await?;
            Ok(self.lease.is_some())
        })
    }

    fn release(&mut self) -> Pending<'_, ()> {
        let lease = self.lease.take();
        Box::pin(async move {
            match lease.ok_or("nothing is held")?.release().await? {
                Release::Released => Ok(()),
                other => Err(format!("released as {other:?}").into()),
            }
        })
    }
}
