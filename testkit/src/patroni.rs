//! Two nodes under a real manager: Patroni, with an etcd of its own.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::guardian::parent_dir;
use crate::server::Port;
use crate::{ClusterError, install, signals};

/// Two nodes that Patroni manages. They are gone, with all their files, when dropped, or when this
/// process is.
///
/// The time after which the manager takes a leader for dead is its least, 20 s.
#[derive(Debug)]
#[must_use = "dropping it stops and deletes both nodes"]
pub struct Patroni {
    child: Child,
    /// `None` only while dropping: its end is the order to stop.
    lifeline: Option<ChildStdin>,
    dir: PathBuf,
    nodes: [Node; 2],
    is_synchronous: bool,
    _etcd: [Port; 2],
}

#[derive(Debug)]
struct Node {
    name: &'static str,
    server: Port,
    api: Port,
    manager: u32,
}

impl Patroni {
    /// Starts both nodes and returns once one leads and the other streams from it, and is its
    /// synchronous standby where commits are to wait for one.
    ///
    /// `tools` is a directory with the program `etcd`, and Patroni in its directory `packages`.
    ///
    /// # Errors
    ///
    /// Says what is missing, or what they said.
    pub async fn try_start(tools: &Path, is_synchronous: bool) -> Result<Self, ClusterError> {
        let (bin_dir, python) = (install::find_bin_dir()?, find_python()?);
        let etcd_ports = [Port::reserve()?, Port::reserve()?];
        let node = |name| {
            let (server, api) = (Port::reserve()?, Port::reserve()?);
            Ok::<_, ClusterError>(Node {
                name,
                server,
                api,
                manager: 0,
            })
        };
        let nodes = [node("one")?, node("two")?];
        let mut words = install::step_down()?;
        words.extend(["sh".into(), "-c".into(), SCRIPT.into(), "patroni".into()]);
        words.extend([python.into(), parent_dir().into()]);
        words.extend(etcd_ports.iter().map(|port| OsString::from(url(port))));
        words.extend(
            nodes
                .iter()
                .map(|node| node.settings(&bin_dir, &etcd_ports[0], is_synchronous).into()),
        );
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).env("LC_ALL", "C");
        for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }
        let spawned = command.spawn();
        let mut child = spawned.map_err(|error| ClusterError::new(format!("could not run {:?}: {error}", words[0])))?;
        let mut answers = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut patroni = Self {
            lifeline: child.stdin.take(),
            child,
            dir: PathBuf::new(),
            nodes,
            is_synchronous,
            _etcd: etcd_ports,
        };
        let dir = PathBuf::from(line(&mut answers)?);
        patroni.dir = dir.canonicalize().unwrap_or(dir);
        patroni.bring(tools)?;
        let lifeline = patroni.lifeline.as_mut().expect("it is not dropped yet");
        let ordered = lifeline.write_all(b"start\n");
        ordered.map_err(|error| ClusterError::new(format!("the shell that guards Patroni ended: {error}")))?;
        for node in &mut patroni.nodes {
            let pid = line(&mut answers)?;
            node.manager = pid
                .parse()
                .map_err(|_| ClusterError::new(format!("{pid:?} is no process id")))?;
        }
        patroni.wait_until_ready().await?;
        Ok(patroni)
    }

    /// Returns options that connect to each node over TCP, as superuser, to database `postgres`.
    #[must_use]
    pub fn options(&self) -> [PgConnectOptions; 2] {
        self.nodes.each_ref().map(|node| {
            PgConnectOptions::new_without_pgpass()
                .host("127.0.0.1")
                .port(node.server.number())
                .username("postgres")
                .database("postgres")
                .ssl_mode(PgSslMode::Disable)
        })
    }

    /// Returns the node that says that it leads, and which the others take for the leader.
    pub async fn leader(&self) -> Option<usize> {
        for node in 0..self.nodes.len() {
            if self.is_leader(node).await {
                return Some(node);
            }
        }
        None
    }

    /// Whether this node says that it leads.
    pub async fn is_leader(&self, node: usize) -> bool {
        self.ask(node, "GET /primary", "").await == Some(200)
    }

    /// Asks the manager to hand leadership over to the other node; returns once it has agreed or not.
    pub async fn switch_over(&self, leader: usize) -> bool {
        let [from, to] = [leader, 1 - leader].map(|node| self.nodes[node].name);
        let order = format!("{{\"leader\":\"{from}\",\"candidate\":\"{to}\"}}");
        self.ask(leader, "POST /switchover", &order).await == Some(200)
    }

    /// Returns the process id of a node's manager.
    #[must_use]
    pub fn manager_pid(&self, node: usize) -> u32 {
        self.nodes[node].manager
    }

    /// Returns the processes of a node's server whose title contains `title`.
    #[must_use]
    pub fn processes(&self, node: usize, title: &str) -> Vec<u32> {
        let data_dir = self.dir.join(self.nodes[node].name);
        let processes = fs::read_dir("/proc").into_iter().flatten();
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|dir| dir == data_dir))
            .filter(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).contains(title)
            })
            .collect()
    }

    /// Kills a node, its manager and its server, at once.
    pub fn kill(&self, node: usize) {
        self.signal(node, signals::kill);
    }

    /// Freezes a node, its manager and its server: its kernel goes on taking packets in.
    pub fn freeze(&self, node: usize) {
        self.signal(node, signals::stop);
    }

    /// Lets a frozen node go on.
    pub fn thaw(&self, node: usize) {
        self.signal(node, signals::cont);
    }

    /// Returns the end of what a node's manager and server have said.
    #[must_use]
    pub fn log(&self, node: usize) -> String {
        let log = fs::read(self.dir.join(format!("{}.log", self.nodes[node].name))).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n")
    }

    /// Copied, since the server's user may not be able to look where they lie; and his, since it is he
    /// who deletes them.
    fn bring(&self, tools: &Path) -> Result<(), ClusterError> {
        let here = self.dir.join("tools");
        let mut copy = Command::new("cp");
        copy.args(["--recursive", "--preserve=mode,timestamps"])
            .args([tools, &here]);
        let mut give = Command::new("chown");
        give.arg("--recursive").arg("--reference").args([&self.dir, &here]);
        for command in [&mut copy, &mut give] {
            if !command.status().is_ok_and(|status| status.success()) {
                return Err(ClusterError::new(format!(
                    "could not copy {}: {command:?}",
                    tools.display()
                )));
            }
        }
        Ok(())
    }

    /// The manager first, which would start a dead server again.
    fn signal(&self, node: usize, send: fn(u32) -> bool) {
        send(self.manager_pid(node));
        self.processes(node, "").into_iter().for_each(|pid| {
            send(pid);
        });
    }

    async fn wait_until_ready(&self) -> Result<(), ClusterError> {
        let until = Instant::now() + READY_WITHIN;
        let standby = if self.is_synchronous {
            "GET /sync"
        } else {
            "GET /replica?replication_state=streaming"
        };
        loop {
            if let Some(leader) = self.leader().await
                && self.ask(1 - leader, standby, "").await == Some(200)
            {
                return Ok(());
            }
            if Instant::now() > until {
                let [one, two] = [self.log(0), self.log(1)];
                return Err(ClusterError::new(format!(
                    "Patroni was not ready in time:\n{one}\n\n{two}"
                )));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The status that a node's manager answers, if it does.
    async fn ask(&self, node: usize, what: &str, body: &str) -> Option<u16> {
        let port = self.nodes[node].api.number();
        let limit = if body.is_empty() { ANSWER_WITHIN } else { READY_WITHIN };
        let answer = timeout(limit, async {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
            let request = format!("{what} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            Some(answer)
        });
        answer.await.ok()??.split(' ').nth(1)?.parse().ok()
    }
}

impl Node {
    fn settings(&self, bin_dir: &Path, etcd: &Port, is_synchronous: bool) -> String {
        let (name, server, api) = (self.name, self.server.number(), self.api.number());
        let (bin_dir, etcd) = (bin_dir.display(), etcd.number());
        format!(
            "scope: leasehold\n\
            name: {name}\n\
            restapi: {{listen: '127.0.0.1:{api}', connect_address: '127.0.0.1:{api}'}}\n\
            etcd3: {{host: '127.0.0.1:{etcd}'}}\n\
            bootstrap:\n\
            \x20 dcs:\n\
            \x20   ttl: 20\n\
            \x20   loop_wait: 2\n\
            \x20   retry_timeout: 3\n\
            \x20   synchronous_mode: {is_synchronous}\n\
            \x20   postgresql: {{use_pg_rewind: true, parameters: {{wal_log_hints: 'on'}}}}\n\
            \x20 initdb: [{{encoding: UTF8}}, {{locale: C}}, {{auth: trust}}, no-sync]\n\
            postgresql:\n\
            \x20 listen: '127.0.0.1:{server}'\n\
            \x20 connect_address: '127.0.0.1:{server}'\n\
            \x20 data_dir: '@dir@/{name}'\n\
            \x20 bin_dir: '{bin_dir}'\n\
            \x20 pgpass: '@dir@/{name}.pgpass'\n\
            \x20 authentication: {{superuser: {{username: postgres}}, replication: {{username: postgres}}}}\n\
            \x20 parameters: {{unix_socket_directories: '@dir@'}}\n\
            \x20 pg_hba: ['local all all trust', 'host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust']\n\
            \x20 basebackup: [{{checkpoint: fast}}, no-sync]"
        )
    }
}

impl Drop for Patroni {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = self.child.wait();
    }
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

fn line(answers: &mut BufReader<ChildStdout>) -> Result<String, ClusterError> {
    let mut line = String::new();
    match answers.read_line(&mut line) {
        Ok(length) if length > 0 => Ok(line.trim_end().to_owned()),
        _ => Err(ClusterError::new("the shell that guards Patroni ended".to_owned())),
    }
}

/// The system's own, which every user may run; else the first on `PATH`.
fn find_python() -> Result<PathBuf, ClusterError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = [PathBuf::from("/usr/bin")].into_iter().chain(env::split_paths(&path));
    let mut found = found.map(|dir| dir.join("python3")).filter(|python| python.is_file());
    found
        .next()
        .ok_or_else(|| ClusterError::new("no python3 found".to_owned()))
}

const SCRIPT: &str = include_str!("patroni.sh");
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOG_TAIL: usize = 30;
