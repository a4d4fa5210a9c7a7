//! What the recipes play on: the lock's database, another one, and a holder who has been overtaken.

use std::error::Error;

use leasehold::{Lease, LeaseClient};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, PgPool};

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

pub struct Stage {
    /// The lock's database.
    pub pool: PgPool,
    pub leases: LeaseClient,
    /// Another one.
    pub elsewhere: PgPool,
    elsewhere_is: String,
}

impl Stage {
    pub async fn set(url: &str) -> Outcome<Self> {
        let pool = PgPool::connect(url).await?;
        leasehold::migrate(&pool).await?;
        let elsewhere_is = format!("recipes_{}", uuid::Uuid::new_v4().simple());
        sqlx::raw_sql(AssertSqlSafe(format!("create database {elsewhere_is}")))
            .execute(&pool)
            .await?;
        let options = url.parse::<PgConnectOptions>()?.database(&elsewhere_is);
        Ok(Self {
            leases: LeaseClient::new(pool.clone()),
            pool,
            elsewhere: PgPool::connect_with(options).await?,
            elsewhere_is,
        })
    }

    /// Two holders of one name, one after the other. The first has been overtaken, as a paused process
    /// is, and does not know it yet: here an operator broke its lease.
    pub async fn overtaken(&self, name: &str) -> Outcome<(Lease, Lease)> {
        let stale = self.leases.acquire(name).await?;
        self.leases.break_lease(name).await?;
        let current = self.leases.acquire(name).await?;
        Ok((stale, current))
    }

    pub async fn clear(self) -> Outcome<()> {
        self.leases.close().await;
        self.elsewhere.close().await;
        sqlx::raw_sql(AssertSqlSafe(format!("drop database {}", self.elsewhere_is)))
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}

/// A recipe's step did what it says.
pub fn expect(happened: bool, what: &str) -> Outcome<()> {
    match happened {
        true => Ok(()),
        false => Err(format!("this did not happen: {what}").into()),
    }
}
