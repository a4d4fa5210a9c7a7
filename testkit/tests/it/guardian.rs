//! Nothing outlives the test process, however it ends.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use leasehold_testkit::{Cluster, eventually, signals};

use crate::SOON;

const HOLD: &str = "LEASEHOLD_TESTKIT_HOLD";

/// A process of its own that has started a cluster.
struct Victim {
    process: Child,
    server_pid: u32,
    dir: PathBuf,
}

impl Victim {
    fn start(hold: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            "guardian::victim",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        let mut process = command
            .env(HOLD, hold)
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let told = lines
            .into_iter()
            .find_map(|line| line.split_once("victim ").map(|(_, told)| told.to_owned()));
        let told = told.expect("the victim tells about its cluster");
        let (server_pid, dir) = told.split_once(' ').unwrap();
        Self {
            process,
            server_pid: server_pid.parse().unwrap(),
            dir: dir.into(),
        }
    }

    async fn assert_leaves_nothing(mut self) {
        self.process.wait().unwrap();
        eventually(SOON, "the server is gone", async || !signals::is_alive(self.server_pid)).await;
        eventually(SOON, "the directory is gone", async || !self.dir.exists()).await;
    }
}

#[tokio::test]
#[ignore = "a process for the tests below"]
async fn victim() {
    let tell = |cluster: &Cluster| {
        let dir = cluster.data_dir().parent().unwrap().display();
        writeln!(io::stdout(), "victim {} {dir}", cluster.server_pid()).unwrap();
    };
    match env::var(HOLD).unwrap_or_default().as_str() {
        "local" => {
            let cluster = Cluster::start().await;
            tell(&cluster);
            std::future::pending::<()>().await;
        }
        "killed" => {
            let cluster = Cluster::start().await;
            tell(&cluster);
            signals::kill(cluster.server_pid());
            std::future::pending::<()>().await;
        }
        "shared" => tell(Cluster::shared().await),
        _ => {}
    }
}

#[tokio::test]
async fn a_killed_process_leaves_nothing() {
    let victim = Victim::start("local");
    assert!(victim.dir.exists() && signals::is_alive(victim.server_pid));

    signals::kill(victim.process.id());

    victim.assert_leaves_nothing().await;
}

#[tokio::test]
async fn a_process_that_ends_with_a_shared_cluster_leaves_nothing() {
    Victim::start("shared").assert_leaves_nothing().await;
}

#[tokio::test]
async fn an_interrupt_to_the_process_group_leaves_nothing() {
    let victim = Victim::start("local");

    let group = format!("-{}", victim.process.id());
    assert!(
        Command::new("kill")
            .args(["-INT", "--", &group])
            .status()
            .unwrap()
            .success()
    );

    victim.assert_leaves_nothing().await;
}

#[tokio::test]
async fn a_process_killed_after_its_postmaster_leaves_nothing() {
    let victim = Victim::start("killed");

    signals::kill(victim.process.id());

    victim.assert_leaves_nothing().await;
}
