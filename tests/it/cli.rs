//! The command `leasehold`, as scripts and people start it: real processes, signals, terminals and networks.

mod check;
mod faults;
mod operate;
mod run;
mod soak;
mod terminal;

use std::fs;
use std::process::{Output, Stdio};
use std::time::Duration;

use leasehold_testkit::{eventually, signals};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::support::{SOON, TestDb};

/// The program, which learns where the database is from its environment alone.
fn leasehold(at: &PgConnectOptions) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command
        .env("DATABASE_URL", at.to_url_lossy().as_str())
        .env_remove("LEASEHOLD_LISTENER_URL")
        .kill_on_drop(true);
    command
}

/// Runs it to its end.
async fn output(command: &mut Command) -> Output {
    timeout(SOON * 2, command.stdin(Stdio::null()).output())
        .await
        .expect("it ends")
        .expect("it starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text")
}

/// A `leasehold run` whose command is a shell script that has begun.
struct Running {
    runner: Child,
    /// Of the command.
    pid: u32,
    token: i64,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts the script and waits until it runs.
    async fn start(at: &PgConnectOptions, name: &str, options: &[&str], script: &str) -> Self {
        Self::try_start(at, name, options, script)
            .await
            .expect("the script runs")
    }

    /// None when it ended without running the script.
    async fn try_start(at: &PgConnectOptions, name: &str, options: &[&str], script: &str) -> Option<Self> {
        let script = format!("echo $$ $LEASEHOLD_FENCING_TOKEN\n{script}");
        let mut runner = leasehold(at)
            .args(["run", name])
            .args(options)
            .args(["--", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdin = runner.stdin.take();
        let mut stdout = BufReader::new(runner.stdout.take().expect("it is a pipe")).lines();
        let first = timeout(SOON, stdout.next_line())
            .await
            .expect("it begins")
            .expect("it is text");
        let (pid, token) = first?
            .split_once(' ')
            .map(|(pid, token)| (pid.parse(), token.parse()))?;
        Some(Self {
            runner,
            pid: pid.expect("it is a number"),
            token: token.expect("it is a number"),
            stdin,
            stdout,
        })
    }

    fn runner(&self) -> u32 {
        self.runner.id().expect("it was not waited for")
    }

    /// The process that holds the lease.
    fn holder(&self) -> u32 {
        self.try_holder().expect("there is one")
    }

    fn try_holder(&self) -> Option<u32> {
        let is_holder = |pid: &u32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&arguments).contains("hold-for-run")
        };
        children(self.runner()).into_iter().find(is_holder)
    }

    async fn line(&mut self) -> String {
        let line = timeout(SOON, self.stdout.next_line()).await.expect("it says something");
        line.expect("it is text").expect("it goes on")
    }

    /// Waits for the end: the exit code and what was said on standard error.
    async fn end(mut self) -> (i32, String) {
        drop(self.stdin.take());
        let ended = timeout(SOON * 2, self.runner.wait_with_output()).await;
        let output = ended.expect("it ends").expect("it can be waited for");
        (
            output.status.code().expect("it was not killed"),
            text(&output.stderr).to_owned(),
        )
    }
}

fn children(of: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A zombie does nothing any more.
fn is_running(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    signals::is_alive(pid) && !matches!(state, None | Some('Z' | 'X'))
}

async fn ends(pid: u32, what: &str) {
    eventually(SOON, what, async || !is_running(pid)).await;
}

impl TestDb {
    async fn waiters(&self, name: &str) -> i64 {
        sqlx::query_scalar("select count(*) from leasehold.waiters where name = $1")
            .bind(name)
            .fetch_one(&self.pool)
            .await
            .expect("the queue can be read")
    }
}

/// Of the faults' runs.
const TTL: Duration = Duration::from_secs(2);
