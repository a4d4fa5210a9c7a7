//! Where an example shows itself: a schema of its own, on the database of `DATABASE_URL` or on a
//! throw-away cluster.

use std::env;
use std::error::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::signal::unix::{SignalKind, signal};

use crate::Cluster;

type Failure = Box<dyn Error + Send + Sync>;

/// A schema that is gone when the play is over, in a database that others may use too.
#[derive(Debug)]
pub struct Stage {
    options: PgConnectOptions,
    url: String,
    schema: String,
    /// Gone when this is.
    _cluster: Option<Cluster>,
}

impl Stage {
    /// Sets a stage, runs `play` on it until it is done or this process is told to end, and clears it
    /// away, whatever happened.
    ///
    /// # Errors
    ///
    /// What kept the stage from being set or cleared, or what `play` said.
    pub async fn play(name: &str, play: impl AsyncFnOnce(&Self) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let stage = Self::set(name).await?;
        let played = tokio::select! {
            played = play(&stage) => played,
            _ = interrupt.recv() => Err("interrupted".into()),
            _ = terminate.recv() => Err("terminated".into()),
        };
        let cleared = stage.clear().await;
        played.and(cleared)
    }

    /// Where to connect; this stage's schema comes first in the search path there.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The schema, a name that nobody else uses.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    async fn set(name: &str) -> Result<Self, Failure> {
        let (cluster, url) = match env::var("DATABASE_URL") {
            Ok(url) => (None, url),
            Err(_) => {
                let cluster = Cluster::builder().try_start().await?;
                let url = cluster.url();
                (Some(cluster), url)
            }
        };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let schema = format!("{name}_{}", since_1970.as_micros());
        let more = if url.contains('?') { '&' } else { '?' };
        let stage = Self {
            options: url.parse()?,
            url: format!("{url}{more}options=-csearch_path%3D{schema}"),
            schema,
            _cluster: cluster,
        };
        stage.execute(format!("create schema {}", stage.schema)).await?;
        Ok(stage)
    }

    async fn clear(self) -> Result<(), Failure> {
        self.execute(format!("drop schema {} cascade", self.schema)).await
    }

    async fn execute(&self, sql: String) -> Result<(), Failure> {
        // Not a pool, which tries again for half a minute and does not say why.
        let mut connection = PgConnection::connect_with(&self.options).await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }
}
