//! PgBouncer in transaction mode, in front of a cluster.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::guardian::parent_dir;
use crate::server::Port;
use crate::{Cluster, ClusterError, install};

/// A PgBouncer in transaction mode that is gone when dropped, or when this process is.
#[derive(Debug)]
#[must_use = "dropping a PgBouncer stops it"]
pub struct PgBouncer {
    child: Child,
    /// `None` only while dropping: its end is the order to stop.
    lifeline: Option<ChildStdin>,
    port: Port,
    keeps_statements: bool,
}

impl PgBouncer {
    /// Starts one that shares `server_connections` connections to `cluster` per database among
    /// all its clients. The program comes from `LEASEHOLD_PGBOUNCER`, `PATH` or `/usr/sbin`.
    /// From 1.21 on it keeps prepared statements, 200 for each server connection.
    ///
    /// # Errors
    ///
    /// Says what is missing, or what PgBouncer said.
    pub async fn try_start(cluster: &Cluster, server_connections: u32) -> Result<Self, ClusterError> {
        let program = find_program()?;
        let keeps_statements = version(&program)? >= KEEPS_STATEMENTS_SINCE;
        let prepared = if keeps_statements {
            "\nmax_prepared_statements = 200"
        } else {
            ""
        };
        let port = Port::reserve()?;
        let settings = format!(
            "[databases]\n\
            * = host=127.0.0.1 port={}\n\
            [pgbouncer]\n\
            listen_addr = 127.0.0.1\n\
            listen_port = {}\n\
            unix_socket_dir =\n\
            auth_type = trust\n\
            auth_user = postgres\n\
            pool_mode = transaction\n\
            default_pool_size = {server_connections}\n\
            max_client_conn = 1000\n\
            ignore_startup_parameters = extra_float_digits{prepared}",
            cluster.port(),
            port.number(),
        );
        let mut words = install::step_down()?;
        words.extend(["sh".into(), "-c".into(), SCRIPT.into(), "pgbouncer".into()]);
        words.extend([program.into(), parent_dir().into(), settings.into()]);
        let spawned = Command::new(&words[0])
            .args(&words[1..])
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| ClusterError::new(format!("could not run {:?}: {error}", words[0])))?;
        let lifeline = child.stdin.take();
        let mut dir = String::new();
        let stdout = child.stdout.take().expect("standard output is piped");
        let read = BufReader::new(stdout).read_line(&mut dir);
        let bouncer = Self {
            child,
            lifeline,
            port,
            keeps_statements,
        };
        if !matches!(read, Ok(length) if length > 0) {
            return Err(ClusterError::new("the shell that guards PgBouncer ended".to_owned()));
        }
        bouncer.wait_until_ready(Path::new(dir.trim_end())).await?;
        Ok(bouncer)
    }

    /// Returns `options`, which must be for TCP, with PgBouncer as server.
    pub fn options(&self, options: &PgConnectOptions) -> PgConnectOptions {
        options.clone().host("127.0.0.1").port(self.port.number())
    }

    /// Whether a statement prepared by name is found again in whatever server session runs it.
    #[must_use]
    pub fn keeps_statements(&self) -> bool {
        self.keeps_statements
    }

    async fn wait_until_ready(&self, dir: &Path) -> Result<(), ClusterError> {
        let until = Instant::now() + READY_WITHIN;
        while TcpStream::connect(("127.0.0.1", self.port.number())).await.is_err() {
            if Instant::now() > until {
                let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
                return Err(ClusterError::new(format!("PgBouncer was not ready in time:\n{log}")));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = self.child.wait();
    }
}

fn find_program() -> Result<PathBuf, ClusterError> {
    if let Some(chosen) = env::var_os(VARIABLE) {
        return Ok(chosen.into());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|dir| dir.join("pgbouncer"))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            ClusterError::new(format!(
                "no PgBouncer found: neither {VARIABLE}, nor PATH, nor /usr/sbin has it; \
                `apt-get install pgbouncer` or the like brings it"
            ))
        })
}

/// Major and minor, as `PgBouncer 1.18.0` tells them.
fn version(program: &Path) -> Result<(u32, u32), ClusterError> {
    let output = Command::new(program).arg("--version").output();
    let output = output.map_err(|error| ClusterError::new(format!("could not run {}: {error}", program.display())))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut numbers = said
        .trim_start_matches("PgBouncer ")
        .split('.')
        .map_while(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => Ok((major, minor)),
        _ => Err(ClusterError::new(format!(
            "{} tells no version: {said}",
            program.display()
        ))),
    }
}

const KEEPS_STATEMENTS_SINCE: (u32, u32) = (1, 21);
const SCRIPT: &str = include_str!("pgbouncer.sh");
const VARIABLE: &str = "LEASEHOLD_PGBOUNCER";
const READY_WITHIN: Duration = Duration::from_secs(30);
