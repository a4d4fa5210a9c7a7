//! The lock of the crate `distributed`, a lease table too: an upsert on acquire, a delete on
//! release, a look every 50 ms, no renewal. Tasks of one manager queue in its memory, so only one of
//! each asks the database.

use std::sync::Arc;

use distributed::lock::{Lock, LockManager};
use distributed::{PostgresLock, PostgresLockManager};
use sqlx::postgres::PgConnectOptions;

use crate::peer::{Outcome, Peer, Pending, Session};
use crate::peers::{TTL, pool};

pub const NAME: &str = "distributed 4.12";

pub struct Kit {
    managers: Vec<PostgresLockManager>,
}

impl Kit {
    pub async fn new(options: &PgConnectOptions, clients: usize) -> Outcome<Self> {
        let pool = pool(options);
        PostgresLockManager::migrate(&pool).await?;
        let manager = || PostgresLockManager::new(pool.clone()).with_lease_ttl(TTL);
        Ok(Self {
            managers: (0..clients).map(|_| manager()).collect(),
        })
    }
}

impl Peer for Kit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn session(&self, number: usize) -> Pending<'_, Box<dyn Session>> {
        let manager = self.managers[number % self.managers.len()].clone();
        Box::pin(async move { Ok(Box::new(Task { manager, lock: None }) as Box<dyn Session>) })
    }

    fn is_polling(&self) -> bool {
        true
    }
}

struct Task {
    manager: PostgresLockManager,
    lock: Option<Arc<PostgresLock>>,
}

impl Session for Task {
    fn acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let lock = self.manager.get_lock(name)?;
            lock.lock().await?;
            self.lock = Some(lock);
            Ok(())
        })
    }

    fn try_acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, bool> {
        Box::pin(async move {
            let lock = self.manager.get_lock(name)?;
            let taken = lock.try_lock().await?;
            self.lock = taken.then_some(lock);
            Ok(taken)
        })
    }

    fn release(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            let lock = self.lock.take().ok_or("nothing is held")?;
            Ok(lock.unlock().await?)
        })
    }
}
