//! sqlx's advisory lock: a session's, gone with its connection, neither durable nor fenced.

use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgConnectOptions};
use sqlx::{Connection, Either, PgConnection};

use crate::peer::{Outcome, Peer, Pending, Session};

pub const NAME: &str = "advisory lock";

pub struct Advisory {
    options: PgConnectOptions,
}

impl Advisory {
    pub fn new(options: &PgConnectOptions) -> Self {
        Self {
            options: options.clone(),
        }
    }
}

impl Peer for Advisory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn session(&self, _number: usize) -> Pending<'_, Box<dyn Session>> {
        Box::pin(async {
            let connection = PgConnection::connect_with(&self.options).await?;
            Ok(Box::new(Locker::Free(connection)) as Box<dyn Session>)
        })
    }

    /// A waiter is a blocked server session; hundreds of them keep the server in its deadlock check.
    fn waiters_at_most(&self) -> usize {
        64
    }
}

enum Locker {
    Free(PgConnection),
    Holding(PgAdvisoryLockGuard<PgConnection>),
    /// An operation failed or was dropped: the connection went with it.
    Gone,
}

impl Locker {
    fn take(&mut self) -> Outcome<PgConnection> {
        match std::mem::replace(self, Self::Gone) {
            Self::Free(connection) => Ok(connection),
            _ => Err("the session holds a lock or is gone".into()),
        }
    }
}

impl Session for Locker {
    fn acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            *self = Self::Holding(PgAdvisoryLock::new(name).acquire(self.take()?).await?);
            Ok(())
        })
    }

    fn try_acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, bool> {
        Box::pin(async move {
            match PgAdvisoryLock::new(name).try_acquire(self.take()?).await? {
                Either::Left(guard) => *self = Self::Holding(guard),
                Either::Right(connection) => *self = Self::Free(connection),
            }
            Ok(matches!(self, Self::Holding(_)))
        })
    }

    fn release(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            let Self::Holding(guard) = std::mem::replace(self, Self::Gone) else {
                return Err("nothing is held".into());
            };
            *self = Self::Free(guard.release_now().await?);
            Ok(())
        })
    }
}
