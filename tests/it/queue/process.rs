//! A process of its own that waits, to be stopped or killed: this test binary once more, which
//! runs one ignored test that does as it is told, a line at a time.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Lease, LeaseClient};
use leasehold_testkit::signals;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::TestDb;

/// A process that waits for one name and holds it. It is gone when dropped.
pub(super) struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    pub(super) fn start(db: &TestDb, name: &str, ttl: Duration, heartbeat_every: Duration) -> Self {
        let application = format!("process-{}", Uuid::new_v4());
        let (port, database) = (db.options.get_port(), db.options.get_database().unwrap());
        let (ttl, heartbeat_every) = (ttl.as_millis(), heartbeat_every.as_millis());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "queue::process::child_process_that_waits",
                "--ignored",
                "--nocapture",
            ])
            .env(
                TERMS,
                format!("{port} {database} {application} {name} {ttl} {heartbeat_every}"),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            orders: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the name; [`granted`](Self::granted) tells when it has come to it.
    pub(super) fn wait(&mut self) {
        self.tell("wait");
    }

    /// The token it was granted, once it is.
    pub(super) fn granted(&mut self) -> i64 {
        let answer = self.answer();
        let token = answer.strip_prefix("granted ").unwrap_or_else(|| panic!("{answer}"));
        token.parse().unwrap()
    }

    /// Has `waiters` waiters come to the name `turns` times each; [`has_done`](Self::has_done)
    /// waits for the last.
    pub(super) fn take_turns(&mut self, waiters: usize, turns: usize) {
        self.tell(&format!("turns {waiters} {turns}"));
    }

    pub(super) fn has_done(&mut self) {
        assert_eq!(self.answer(), "done");
    }

    pub(super) fn is_holding(&mut self) -> bool {
        self.tell("state");
        self.answer() == "held"
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// The next answer. The test harness talks on the same channel, on the same line even.
    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the process has ended");
            if let Some((_, answer)) = line.trim_end().split_once(ANSWER) {
                return answer.to_owned();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        signals::kill(self.pid());
        let _ = self.child.wait();
    }
}

/// The other end of [`Process`].
#[test]
#[ignore = "runs as a child process of the other tests"]
fn child_process_that_waits() {
    let Ok(terms) = std::env::var(TERMS) else { return };
    let terms: Vec<&str> = terms.split_whitespace().collect();
    let [port, database, application, name, ttl, heartbeat_every] = terms[..] else {
        panic!("{terms:?}")
    };
    let options = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port.parse().unwrap())
        .username("postgres")
        .database(database)
        .application_name(application)
        .ssl_mode(PgSslMode::Disable);
    let runtime = Runtime::new().unwrap();
    let _inside = runtime.enter();
    let leases = LeaseClient::builder(PgPoolOptions::new().connect_lazy_with(options))
        .ttl(Duration::from_millis(ttl.parse().unwrap()))
        .heartbeat_every(Duration::from_millis(heartbeat_every.parse().unwrap()))
        .build()
        .unwrap();
    let held: Arc<Mutex<Option<Lease>>> = Arc::default();

    for order in std::io::stdin().lines() {
        match order.unwrap().split(' ').collect::<Vec<_>>()[..] {
            ["wait"] => {
                let (acquire, held) = (leases.acquire(name), Arc::clone(&held));
                runtime.spawn(async move {
                    let lease = acquire.await.unwrap();
                    let token = lease.fencing_token();
                    *held.lock().unwrap() = Some(lease);
                    answer(&format!("granted {token}"));
                });
            }
            ["state"] => {
                let is_held = held.lock().unwrap().as_ref().is_some_and(Lease::is_held);
                answer(if is_held { "held" } else { "not held" });
            }
            ["turns", waiters, turns] => {
                let turns: usize = turns.parse().unwrap();
                let mut tasks = JoinSet::new();
                for _ in 0..waiters.parse().unwrap() {
                    let (leases, name) = (leases.clone(), name.to_owned());
                    tasks.spawn(async move {
                        for _ in 0..turns {
                            leases.acquire(&name).await.unwrap().release().await.unwrap();
                        }
                    });
                }
                runtime.block_on(tasks.join_all());
                answer("done");
            }
            ref other => panic!("no such order: {other:?}"),
        }
    }
}

fn answer(answer: &str) {
    writeln!(std::io::stdout().lock(), "{ANSWER}{answer}").unwrap();
}

const TERMS: &str = "LEASEHOLD_TEST_WAITER";
const ANSWER: &str = "waiter> ";
