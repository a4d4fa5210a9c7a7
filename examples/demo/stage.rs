//! Where the story plays: one document in a schema of its own, and the name of its lock.

use std::env;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use crate::Outcome;

/// Everything a worker has to know, too.
pub struct Stage {
    pub lock_name: String,
    pub document: i32,
    url: String,
    schema: String,
}

impl Stage {
    /// Names nobody else uses, so that the demo runs beside anything on a shared database.
    pub fn new(url: String) -> Outcome<Self> {
        Self::of(url, std::process::id().to_string())
    }

    /// The stage of the demo that started this worker.
    pub fn from_env() -> Outcome<Self> {
        Self::of(env::var(URL)?, env::var(DOCUMENT)?)
    }

    fn of(url: String, document: String) -> Outcome<Self> {
        Ok(Self {
            lock_name: format!("demo:document:{document}"),
            document: document.parse()?,
            url,
            schema: format!("leasehold_demo_{document}"),
        })
    }

    pub fn to_env(&self) -> [(&'static str, String); 2] {
        [(URL, self.url.clone()), (DOCUMENT, self.document.to_string())]
    }

    pub async fn connect(&self) -> Outcome<PgPool> {
        let options: PgConnectOptions = self.url.parse()?;
        let options = options.options([("search_path", &self.schema)]);
        // A pool tries again for half a minute and does not say why; one connection does at once.
        PgConnection::connect_with(&options).await?.close().await?;
        Ok(PgPoolOptions::new().max_connections(2).connect_with(options).await?)
    }

    pub async fn set(&self, pool: &PgPool) -> Outcome<()> {
        let schema = format!("create schema {}", self.schema);
        sqlx::query(AssertSqlSafe(schema)).execute(pool).await?;
        sqlx::query("create table document (id integer primary key, body text not null, fence bigint)")
            .execute(pool)
            .await?;
        Ok(())
    }

    pub async fn clear(&self, pool: &PgPool) -> Outcome<()> {
        let schema = format!("drop schema if exists {} cascade", self.schema);
        sqlx::query(AssertSqlSafe(schema)).execute(pool).await?;
        Ok(())
    }

    pub async fn write_first_draft(&self, pool: &PgPool) -> Outcome<()> {
        sqlx::query("insert into document values ($1, 'first draft') on conflict (id) do update set body = excluded.body, fence = null")
            .bind(self.document)
            .execute(pool)
            .await?;
        Ok(())
    }

    /// The text of the document and the fencing token it was last written with.
    pub async fn read(&self, pool: &PgPool) -> Outcome<(String, Option<i64>)> {
        Ok(sqlx::query_as("select body, fence from document where id = $1")
            .bind(self.document)
            .fetch_one(pool)
            .await?)
    }
}

const URL: &str = "DATABASE_URL";
const DOCUMENT: &str = "LEASEHOLD_DEMO_DOCUMENT";
