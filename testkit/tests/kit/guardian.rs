//! Nothing outlives the test process, however it ends.

use std::env;
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use leasehold_testkit::{Cluster, eventually, signals};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::time::sleep;

use crate::{A_WHILE, SOON};

const HOLD: &str = "LEASEHOLD_TESTKIT_HOLD";
const MARK: &str = "victim holds: ";

/// A process of its own that starts a cluster.
struct Victim {
    process: Child,
    says: Lines<BufReader<ChildStdout>>,
}

/// What a victim says about its cluster.
struct Held {
    server_pid: u32,
    dir: PathBuf,
}

impl Victim {
    fn start(hold: &str, parent_dir: &Path) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "guardian::victim", "--ignored", "--nocapture"]);
        command.env(HOLD, hold).env("TMPDIR", parent_dir).process_group(0);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, says }
    }

    fn held(&mut self) -> Held {
        let told = self
            .says
            .find_map(|line| line.unwrap().split_once(MARK).map(|(_, told)| told.to_owned()));
        let told = told.expect("the victim tells about its cluster");
        let (server_pid, dir) = told.split_once(' ').unwrap();
        Held {
            server_pid: server_pid.parse().unwrap(),
            dir: dir.into(),
        }
    }

    /// Waits for its end, which closes its standard input and so comes in any case.
    fn end(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }
}

impl Held {
    async fn assert_is_gone(self) {
        eventually(SOON, "the server is gone", async || !signals::is_alive(self.server_pid)).await;
        eventually(SOON, "the directory is gone", async || !self.dir.exists()).await;
    }
}

#[tokio::test]
#[ignore = "a process for the tests below"]
async fn victim() {
    let tell = |cluster: &Cluster| {
        let dir = cluster.data_dir().parent().unwrap().display();
        writeln!(io::stdout(), "{MARK}{} {dir}", cluster.server_pid()).unwrap();
    };
    match env::var(HOLD).unwrap_or_default().as_str() {
        "cluster" => {
            let cluster = Cluster::start().await;
            tell(&cluster);
            linger();
        }
        "dead server" => {
            let cluster = Cluster::start().await;
            tell(&cluster);
            signals::kill(cluster.server_pid());
            linger();
        }
        "shared" => tell(Cluster::shared().await),
        _ => {}
    }
}

/// Waits to be killed, yet not beyond the end of the test.
fn linger() {
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

#[tokio::test]
async fn a_killed_process_leaves_nothing() {
    let mut victim = Victim::start("cluster", &env::temp_dir());
    let held = victim.held();
    assert!(held.dir.exists() && signals::is_alive(held.server_pid));

    signals::kill(victim.process.id());

    assert_eq!(victim.end().signal(), Some(9));
    held.assert_is_gone().await;
}

#[tokio::test]
async fn a_process_killed_at_any_moment_of_a_start_leaves_nothing() {
    for step in 0..8 {
        let parent_dir = env::temp_dir().join(format!("lhk-{}-{step}", std::process::id()));
        fs::create_dir(&parent_dir).unwrap();
        fs::set_permissions(&parent_dir, Permissions::from_mode(0o777)).unwrap();
        let is_empty = || fs::read_dir(&parent_dir).unwrap().next().is_none();
        let mut victim = Victim::start("cluster", &parent_dir);

        eventually(SOON, "it has begun", async || !is_empty()).await;
        sleep(step * Duration::from_millis(120)).await;
        signals::kill(victim.process.id());

        assert_eq!(victim.end().signal(), Some(9));
        eventually(SOON, "the directory is gone", async || is_empty()).await;
        sleep(A_WHILE).await;
        assert!(is_empty());
        assert_eq!(processes_below(&parent_dir), Vec::<PathBuf>::new());
        fs::remove_dir(&parent_dir).unwrap();
    }
}

#[tokio::test]
async fn a_process_that_ends_with_a_shared_cluster_leaves_nothing() {
    let mut victim = Victim::start("shared", &env::temp_dir());
    let held = victim.held();

    assert!(victim.end().success());
    held.assert_is_gone().await;
}

#[tokio::test]
async fn a_signal_to_the_whole_process_group_leaves_nothing() {
    let mut victim = Victim::start("cluster", &env::temp_dir());
    let held = victim.held();

    // Not an interrupt: whoever starts the tests in the background has them ignore it.
    let group = Pid::from_raw(i32::try_from(victim.process.id()).unwrap()).unwrap();
    kill_process_group(group, Signal::TERM).unwrap();

    assert_eq!(victim.end().signal(), Some(15));
    held.assert_is_gone().await;
}

#[tokio::test]
async fn a_process_killed_after_its_postmaster_leaves_nothing() {
    let mut victim = Victim::start("dead server", &env::temp_dir());
    let held = victim.held();

    signals::kill(victim.process.id());

    assert_eq!(victim.end().signal(), Some(9));
    held.assert_is_gone().await;
}

fn processes_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc")
        .unwrap()
        .map(|entry| entry.unwrap().path().join("cwd"));
    entries
        .filter(|cwd| fs::read_link(cwd).is_ok_and(|cwd| cwd.starts_with(dir)))
        .collect()
}
