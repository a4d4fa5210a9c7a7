//! A cluster in which nothing happens by itself, for tests that count what happens or that crash
//! the server. It belongs to one test at a time.

use std::ops::Deref;
use std::time::Duration;

use leasehold_testkit::{Cluster, StopMode, eventually};
use sqlx::PgConnection;
use tokio::sync::{Mutex, MutexGuard};

use super::TestDb;
use super::sql::sessions;

/// The cluster, with a new database of the test's own.
pub(crate) struct Quiet {
    cluster: MutexGuard<'static, Option<Cluster>>,
    pub(crate) db: TestDb,
}

impl Quiet {
    pub(crate) async fn with_database(name: &str) -> Self {
        static CLUSTER: Mutex<Option<Cluster>> = Mutex::const_new(None);
        let mut guard = CLUSTER.lock().await;
        let cluster = match guard.take() {
            Some(cluster) => cluster,
            None => start().await,
        };
        if cluster.server_pid() == 0 {
            cluster.restart().await;
        }
        let db = TestDb::with(cluster.create_database(name).await);
        db.install_schema().await;
        db.pool.close().await;
        let db = TestDb::with(db.options);
        *guard = Some(cluster);
        let quiet = Self { cluster: guard, db };
        // The sweep of a client writes.
        quiet
            .execute("update leasehold.sweeps set next_at = clock_timestamp() + interval '1 day'")
            .await;
        quiet
    }

    /// Stops the server as a crash would and starts it again.
    pub(crate) async fn crash(&self) {
        self.stop(StopMode::Immediate).await;
        self.restart().await;
    }

    pub(crate) async fn execute(&self, sql: &str) {
        let [mut session] = sessions(&self.db).await;
        super::sql::run(&mut session, sql).await;
    }

    /// How often the log of the server was flushed since its statistics began, once all sessions
    /// but `session` have ended and reported theirs.
    pub(crate) async fn flushes(&self, session: &mut PgConnection) -> i64 {
        let others = "select count(*) from pg_stat_activity \
            where backend_type = 'client backend' and pid <> pg_backend_pid()";
        eventually(Duration::from_secs(20), "the other sessions have ended", async || {
            let others = sqlx::query_scalar::<_, i64>(others).fetch_one(&mut *session).await;
            others.expect("sessions are counted") == 0
        })
        .await;
        let version = "select current_setting('server_version_num')::int";
        let version: i32 = sqlx::query_scalar(version)
            .fetch_one(&mut *session)
            .await
            .expect(version);
        let flushes = if version < 180_000 {
            "select wal_sync from pg_stat_wal"
        } else {
            "select sum(fsyncs)::int8 from pg_stat_io where object = 'wal'"
        };
        sqlx::query_scalar(flushes).fetch_one(session).await.expect(flushes)
    }
}

impl Deref for Quiet {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster.as_ref().expect("it was put there when this was made")
    }
}

async fn start() -> Cluster {
    Cluster::builder()
        .setting("wal_level", "minimal")
        .setting("max_wal_senders", "0")
        .setting("autovacuum", "off")
        .setting("max_prepared_transactions", "4")
        .setting("checkpoint_timeout", "1h")
        .setting("max_wal_size", "2GB")
        .setting("wal_writer_delay", "10s")
        .setting("wal_writer_flush_after", "100MB")
        .start()
        .await
}
