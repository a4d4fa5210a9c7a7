//! The servers of a run, started by it and gone with it.

use std::process::Command;

use leasehold_testkit::{Cluster, Daemon};

use crate::peer::Outcome;

pub struct Servers {
    /// With the server's own durability: `fsync` and `synchronous_commit` on.
    pub postgres: Cluster,
    /// As durable, counting statements and calls, for what is counted and not timed.
    pub counting: Cluster,
    pub redis_always: Option<Daemon>,
    pub redis_defaults: Option<Daemon>,
    pub etcd: Option<Daemon>,
    /// What runs, and what does not run here and why.
    pub notes: Vec<String>,
}

impl Servers {
    pub async fn start() -> Outcome<Self> {
        let postgres = Cluster::builder().setting("max_connections", "800").try_start().await?;
        let counting = Cluster::builder()
            .setting("max_connections", "300")
            .setting("shared_preload_libraries", "pg_stat_statements")
            .setting("pg_stat_statements.save", "off")
            .setting("track_functions", "pl")
            .try_start()
            .await?;
        counting.execute("create extension pg_stat_statements").await;

        let mut notes = vec![version(&postgres.bin_dir().join("postgres").display().to_string())];
        let mut or_note = |name: &str, started: Result<Daemon, _>| {
            started
                .inspect(|_| notes.push(version(name)))
                .inspect_err(|error| notes.push(format!("without {name}: {error}")))
                .ok()
        };
        let redis_always = or_note(
            "redis-server",
            redis(&["--appendonly", "yes", "--appendfsync", "always"]).await,
        );
        let redis_defaults = or_note("redis-server", redis(&[]).await);
        let etcd = or_note("etcd", etcd().await);
        notes.dedup();
        Ok(Self {
            postgres,
            counting,
            redis_always,
            redis_defaults,
            etcd,
            notes,
        })
    }
}

async fn redis(settings: &[&str]) -> Result<Daemon, leasehold_testkit::ClusterError> {
    Daemon::try_start("redis-server", 1, |ports| {
        let mut arguments = vec!["--bind".to_owned(), "127.0.0.1".to_owned()];
        arguments.extend(["--port".to_owned(), ports[0].to_string()]);
        arguments.extend(settings.iter().map(|setting| (*setting).to_owned()));
        arguments
    })
    .await
}

async fn etcd() -> Result<Daemon, leasehold_testkit::ClusterError> {
    Daemon::try_start("etcd", 2, |ports| {
        let [clients, peers] = [ports[0], ports[1]].map(|port| format!("http://127.0.0.1:{port}"));
        [
            ("--name", "one"),
            ("--data-dir", "data"),
            ("--listen-client-urls", &clients),
            ("--advertise-client-urls", &clients),
            ("--listen-peer-urls", &peers),
            ("--initial-advertise-peer-urls", &peers),
            ("--initial-cluster", &format!("one={peers}")),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value.to_owned()])
        .collect()
    })
    .await
}

/// The first line of what a program says of itself.
fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    said.unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}
