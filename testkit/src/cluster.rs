//! Throw-away PostgreSQL clusters.
//!
//! A cluster is real: its own data directory, port and socket, `fsync` on. Its methods
//! may be called from any runtime; none of them leaves anything on the one it ran on.

use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use crate::server::{Recipe, Server};
use crate::{eventually, install, signals};

/// A PostgreSQL cluster that is gone, with all its files, when dropped.
///
/// It is also gone when this process is, however it ended: statics need no drop, and a
/// `SIGKILL` leaves nothing behind.
///
/// The methods panic when they do not succeed, with the end of the server's log where it
/// may tell why; only [`Builder::try_start`] answers with an error.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), sqlx::Error> {
/// use leasehold_testkit::{Cluster, StopMode};
///
/// let cluster = Cluster::builder().setting("max_connections", "300").start().await;
/// let pool = sqlx::PgPool::connect_with(cluster.options()).await?;
/// cluster.stop(StopMode::Immediate).await;
/// cluster.restart().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a cluster stops and deletes it"]
pub struct Cluster {
    server: Arc<Server>,
}

/// Says what kind of cluster to start.
#[derive(Debug, Clone, Default)]
#[must_use = "a builder starts nothing until `start`"]
pub struct Builder {
    recipe: Recipe,
}

/// A copy of a running cluster that has not been started.
#[derive(Debug)]
#[must_use = "a backup is deleted when it is dropped"]
pub struct Backup {
    server: Server,
}

/// How a server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Sessions are ended, open transactions rolled back, and a checkpoint is written.
    Fast,
    /// Everything ends at once, and the next start recovers as after a crash.
    Immediate,
}

/// Why a cluster could not be started or did not do as told.
pub struct ClusterError(String);

impl Cluster {
    /// Starts a new cluster with the server's own settings.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Returns a builder for a new cluster.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the cluster that all tests of this process share, starting it first if need be.
    ///
    /// It takes 400 connections and can have standbys. Do not stop it.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        let builder = Self::builder()
            .setting("max_connections", "400")
            .setting("shared_buffers", "128MB")
            .setting("wal_level", "replica")
            .setting("max_wal_senders", "10")
            .setting("autovacuum", "on");
        SHARED.get_or_init(|| builder.start()).await
    }

    /// Starts a standby that streams from this cluster under `name`.
    ///
    /// It is a cluster of its own, and outlives this one.
    pub async fn standby(&self, name: &str) -> Self {
        self.standby_from(name, Self::builder()).await
    }

    /// Starts a standby of which `builder` says more, such as its environment.
    pub async fn standby_from(&self, name: &str, builder: Builder) -> Self {
        self.start_standby(name, self.addr(), builder).await
    }

    /// Starts a standby that streams from this cluster through `upstream`, such as a
    /// [`FaultProxy`](crate::FaultProxy) in front of it.
    pub async fn standby_through(&self, name: &str, upstream: SocketAddr) -> Self {
        self.start_standby(name, upstream, Self::builder()).await
    }

    async fn start_standby(&self, name: &str, upstream: SocketAddr, builder: Builder) -> Self {
        let (host, port) = (upstream.ip(), upstream.port());
        let mut builder = builder.bin_dir(self.bin_dir());
        builder.recipe.copy_from = Some(format!(
            "host={host} port={port} user=postgres sslmode=disable application_name='{name}'"
        ));
        let standby = builder.start().await;
        eventually(STREAMING_WITHIN, "the standby streams", async || {
            let streaming =
                "select exists (select from pg_stat_replication where application_name = $1 and state = 'streaming')";
            sqlx::query_scalar::<_, bool>(streaming)
                .bind(name)
                .fetch_one(&mut self.connect().await)
                .await
                .expect(streaming)
        })
        .await;
        standby
    }

    /// Takes a base backup, to be restored later.
    pub async fn base_backup(&self) -> Backup {
        let mut recipe = Self::builder().bin_dir(self.bin_dir()).recipe;
        recipe.copy_from = Some(format!(
            "host={} port={} user=postgres sslmode=disable",
            self.addr().ip(),
            self.port()
        ));
        let server = blocking(move || Server::prepare(&recipe)).await;
        Backup {
            server: server.unwrap_or_else(|error| panic!("{error}")),
        }
    }

    /// Returns options that connect over TCP, as superuser `postgres`, to database `postgres`.
    pub fn options(&self) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.port())
            .username("postgres")
            .database("postgres")
            .ssl_mode(PgSslMode::Disable)
    }

    /// Returns options that connect over the Unix socket, where no network fault reaches.
    pub fn socket_options(&self) -> PgConnectOptions {
        self.options().socket(self.server.dir())
    }

    /// Returns what [`options`](Self::options) says, as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres?sslmode=disable", self.addr())
    }

    /// Returns the address the server listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// Returns the port, which stays the same across restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns the data directory.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        self.server.data_dir()
    }

    /// Returns the directory of the server's programs.
    #[must_use]
    pub fn bin_dir(&self) -> &Path {
        self.server.bin_dir()
    }

    /// Returns the postmaster's process id; 0 while the server is stopped.
    #[must_use]
    pub fn server_pid(&self) -> u32 {
        self.server.pid()
    }

    /// Returns the server's processes whose title contains `title`, such as `walreceiver`.
    #[must_use]
    pub fn processes(&self, title: &str) -> Vec<u32> {
        self.server.processes(title)
    }

    /// Returns what the server has logged since the cluster was made.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Opens a connection over the Unix socket.
    pub async fn connect(&self) -> PgConnection {
        let connected = PgConnection::connect_with(&self.socket_options()).await;
        connected.unwrap_or_else(|error| panic!("could not connect to the cluster: {error}"))
    }

    /// Runs `sql`, one statement or several.
    pub async fn execute(&self, sql: &str) {
        let done = sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.connect().await)
            .await;
        done.unwrap_or_else(|error| panic!("`{sql}` failed: {error}"));
    }

    /// Creates an empty database and returns options that connect to it over TCP.
    pub async fn create_database(&self, name: &str) -> PgConnectOptions {
        self.execute(&format!("create database {}", quoted(name, '"'))).await;
        self.options().database(name)
    }

    /// Returns a command that runs `program` as the server's user in the cluster's own directory, which
    /// is the place for what it leaves behind.
    pub fn as_server_user(&self, program: &Path) -> Command {
        let mut words = install::step_down().unwrap_or_else(|error| panic!("{error}"));
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(self.server.dir());
        command
    }

    /// Sets `name` to `value` for the whole cluster and makes the server read it.
    ///
    /// New sessions see it on return, open ones soon after. Some settings wait for
    /// [`restart`](Self::restart).
    pub async fn alter_system(&self, name: &str, value: &str) {
        self.execute(&format!(
            "alter system set {} = {}",
            quoted(name, '"'),
            quoted(value, '\'')
        ))
        .await;
        self.reload().await;
    }

    /// Makes the server read its settings again; new sessions see them on return.
    pub async fn reload(&self) {
        let before = self.settings_read_at().await;
        signals::send(self.server_pid(), Signal::HUP);
        eventually(RELOADED_WITHIN, "the server has read its settings", async || {
            self.settings_read_at().await != before
        })
        .await;
    }

    /// Stops the server; one that is stopped stays so.
    pub async fn stop(&self, mode: StopMode) {
        self.run(move |server| server.stop(mode)).await;
    }

    /// Kills the postmaster and returns once its children have noticed and are gone.
    pub async fn kill_postmaster(&self) {
        self.run(Server::kill_postmaster).await;
    }

    /// Starts the server again on the same data and port, after a fast stop if it runs.
    pub async fn restart(&self) {
        self.run(|server| {
            server.stop(StopMode::Fast)?;
            server.start_again()
        })
        .await;
    }

    /// Makes a standby a primary and returns once it takes writes.
    pub async fn promote(&self) {
        let promote = "select pg_promote(true, 60)";
        let promoted: bool = sqlx::query_scalar(promote)
            .fetch_one(&mut self.connect().await)
            .await
            .expect(promote);
        assert!(promoted, "the standby was not promoted:\n{}", self.log());
    }

    async fn settings_read_at(&self) -> String {
        let sql = "select pg_conf_load_time()::text";
        sqlx::query_scalar(sql)
            .fetch_one(&mut self.connect().await)
            .await
            .expect(sql)
    }

    async fn run(&self, action: impl FnOnce(&Server) -> Result<(), ClusterError> + Send + 'static) {
        let server = Arc::clone(&self.server);
        blocking(move || action(&server))
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Builder {
    /// Sets a server setting, as in `postgresql.conf`; the last value of a name counts.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.recipe.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets an environment variable of the server.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.recipe.environment.push((name.into(), value.into()));
        self
    }

    /// Takes the server's programs from `dir`.
    ///
    /// Without it they come from the directory in `LEASEHOLD_PG_BIN`, else from the newest
    /// major below `/usr/lib/postgresql`, else from `PATH`.
    pub fn bin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.recipe.bin_dir = Some(dir.into());
        self
    }

    /// Starts the cluster and returns once it takes connections.
    ///
    /// # Panics
    ///
    /// When it could not be started.
    pub async fn start(self) -> Cluster {
        self.try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the cluster and returns once it takes connections.
    ///
    /// # Errors
    ///
    /// Says what is missing, or what the server said.
    pub async fn try_start(self) -> Result<Cluster, ClusterError> {
        let server = blocking(move || Server::create(&self.recipe)).await?;
        Ok(Cluster {
            server: Arc::new(server),
        })
    }
}

impl Backup {
    /// Starts it in archive recovery with these settings, a `restore_command` among them, and returns
    /// once it takes writes: name a `recovery_target_action` of `promote` with a target.
    pub async fn restore(self, settings: &[(&str, &str)]) -> Cluster {
        let settings: Vec<_> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let server = blocking(move || {
            self.server.recover_from_archive()?;
            self.server.configure(&settings)?;
            self.server.launch()
        })
        .await;
        let cluster = Cluster {
            server: Arc::new(server.unwrap_or_else(|error| panic!("{error}"))),
        };
        eventually(RECOVERED_WITHIN, "the server has recovered", async || {
            let recovering = "select not pg_is_in_recovery()";
            sqlx::query_scalar::<_, bool>(recovering)
                .fetch_one(&mut cluster.connect().await)
                .await
                .expect(recovering)
        })
        .await;
        cluster
    }
}

impl ClusterError {
    pub(crate) fn new(message: String) -> Self {
        Self(message)
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

// As `unwrap` and a failing `main` show it: for people, line by line.
impl fmt::Debug for ClusterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for ClusterError {}

/// Runs what may block where it does not hold up the caller's other tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work)
        .await
        .expect("the work does not panic, and its runtime waits for it")
}

fn quoted(text: &str, quote: char) -> String {
    format!("{quote}{}{quote}", text.replace(quote, &format!("{quote}{quote}")))
}

const RECOVERED_WITHIN: Duration = Duration::from_secs(60);
const STREAMING_WITHIN: Duration = Duration::from_secs(30);
const RELOADED_WITHIN: Duration = Duration::from_secs(30);
