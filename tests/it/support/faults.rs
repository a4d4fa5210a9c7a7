//! Faults, and what the database says of a name while they last.

use leasehold_testkit::{Cluster, PgBouncer, eventually};
use sqlx::{Connection, PgConnection, Row as _};
use uuid::Uuid;

use super::{SOON, TestDb};

/// The row of a lock, by the database's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) owner: Option<Uuid>,
    pub(crate) token: i64,
    /// In seconds; negative once it has run out.
    pub(crate) expires_in: f64,
}

impl Row {
    pub(crate) fn is_held(&self) -> bool {
        self.owner.is_some() && self.expires_in > 0.0
    }
}

impl TestDb {
    /// This database, reached by sessions that bear a name of their own.
    pub(crate) fn as_application(&self, application: &str) -> Self {
        self.having(|options| options.application_name(application))
    }

    /// The server processes of an application's sessions.
    pub(crate) async fn backends(&self, application: &str) -> Vec<i32> {
        sqlx::query_scalar("select pid from pg_stat_activity where application_name = $1 order by backend_start")
            .bind(application)
            .fetch_all(&self.pool)
            .await
            .expect("the server tells its sessions")
    }

    /// The one session of an application that holds nothing but a lane.
    pub(crate) async fn lane_backend(&self, application: &str) -> i32 {
        match self.backends(application).await[..] {
            [backend] => backend,
            ref others => panic!("{application} has the sessions {others:?}"),
        }
    }

    /// A session of the test's own, outside every pool.
    pub(crate) async fn session(&self) -> PgConnection {
        PgConnection::connect_with(&self.options)
            .await
            .expect("the database takes connections")
    }

    pub(crate) async fn row(&self, name: &str) -> Option<Row> {
        let row = sqlx::query(
            "select owner, fence, extract(epoch from expires_at - clock_timestamp())::float8
            from leasehold.locks where name = $1",
        )
        .bind(name)
        .fetch_optional(&self.pool)
        .await
        .expect("the schema is installed")?;
        Some(Row {
            owner: row.get(0),
            token: row.get(1),
            expires_in: row.get(2),
        })
    }

    /// Asserts that `name` is free before a ttl of a minute could have made it so.
    pub(crate) async fn assert_free_soon(&self, name: &str) {
        eventually(SOON, &format!("nobody holds {name}"), async || {
            !self.is_held(name).await
        })
        .await;
    }
}

/// PgBouncer in front of the shared cluster, with two server sessions for each database. `None` only
/// where somebody has said that there shall be none.
pub(crate) async fn pgbouncer() -> Option<PgBouncer> {
    if std::env::var_os("LEASEHOLD_SKIP_PGBOUNCER").is_some() {
        return None;
    }
    let started = PgBouncer::try_start(Cluster::shared().await, 2).await;
    Some(started.unwrap_or_else(|error| panic!("{error}\n(LEASEHOLD_SKIP_PGBOUNCER=1 leaves these tests out)")))
}
