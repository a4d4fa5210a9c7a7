//! Any server program, such as Redis, in a directory and on ports of its own.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::guardian::parent_dir;
use crate::server::Port;
use crate::{ClusterError, install, signals};

/// A server program that is gone, with its directory, when dropped, or when this process is.
///
/// It runs as an ordinary user in an empty directory, where its standard output goes too.
#[derive(Debug)]
#[must_use = "dropping a daemon stops it"]
pub struct Daemon {
    child: Child,
    /// `None` only while dropping: its end is the order to stop.
    lifeline: Option<ChildStdin>,
    ports: Vec<Port>,
    pid: u32,
}

impl Daemon {
    /// Starts `program`, found on `PATH`, with the arguments that `arguments` gives for as many
    /// `ports`, and returns once the first of them takes connections.
    ///
    /// # Errors
    ///
    /// Says what is missing, or what the program said.
    pub async fn try_start(
        program: &str,
        ports: usize,
        arguments: impl FnOnce(&[u16]) -> Vec<String>,
    ) -> Result<Self, ClusterError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let found = env::split_paths(&path)
            .map(|dir| dir.join(program))
            .find(|path| path.is_file());
        let found = found.ok_or_else(|| ClusterError::new(format!("no {program} found on PATH")))?;
        let ports = (0..ports).map(|_| Port::reserve()).collect::<Result<Vec<_>, _>>()?;
        let numbers: Vec<u16> = ports.iter().map(Port::number).collect();

        let mut words = install::step_down()?;
        words.extend(["sh".into(), "-c".into(), SCRIPT.into(), "daemon".into()]);
        words.extend([parent_dir().into(), found.into()]);
        words.extend(arguments(&numbers).into_iter().map(Into::into));
        let spawned = Command::new(&words[0])
            .args(&words[1..])
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| ClusterError::new(format!("could not run {:?}: {error}", words[0])))?;
        let lifeline = child.stdin.take();
        let stdout = child.stdout.take().expect("standard output is piped");
        let mut answer = String::new();
        let _ = BufReader::new(stdout).read_line(&mut answer);
        let said = answer
            .trim_end()
            .split_once(' ')
            .and_then(|(pid, dir)| Some((pid.parse().ok()?, PathBuf::from(dir))));
        let mut daemon = Self {
            child,
            lifeline,
            ports,
            pid: 0,
        };
        let (pid, dir) =
            said.ok_or_else(|| ClusterError::new(format!("the shell that guards {program} ended: {answer:?}")))?;
        daemon.pid = pid;
        daemon.wait_until_ready(program, &dir).await?;
        Ok(daemon)
    }

    /// Returns the first port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports[0].number()
    }

    /// Returns the program's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    async fn wait_until_ready(&self, program: &str, dir: &Path) -> Result<(), ClusterError> {
        let until = Instant::now() + READY_WITHIN;
        while TcpStream::connect(("127.0.0.1", self.port())).await.is_err() {
            if Instant::now() > until || !signals::is_alive(self.pid) {
                let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
                return Err(ClusterError::new(format!("{program} is not there:\n{log}")));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = self.child.wait();
    }
}

const SCRIPT: &str = include_str!("daemon.sh");
const READY_WITHIN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventually;

    #[tokio::test]
    async fn program_and_directory_are_gone_when_it_is_dropped() {
        let this = env::current_exe().unwrap().display().to_string();
        let arguments = |ports: &[u16]| {
            let port = format!("{PORT}={}", ports[0]);
            vec![
                port,
                this,
                "--ignored".into(),
                "--exact".into(),
                "daemon::tests::serves".into(),
            ]
        };
        let daemon = Daemon::try_start("env", 1, arguments).await.unwrap();
        let (pid, dir) = (
            daemon.pid(),
            fs::read_link(format!("/proc/{}/cwd", daemon.pid())).unwrap(),
        );

        drop(daemon);

        assert!(!dir.exists(), "{} is left", dir.display());
        eventually(Duration::from_secs(5), "the program is gone", async || {
            !signals::is_alive(pid)
        })
        .await;
    }

    #[test]
    #[ignore = "the program of the test above"]
    fn serves() {
        let port: u16 = env::var(PORT).unwrap().parse().unwrap();
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.incoming().for_each(drop);
    }

    #[tokio::test]
    async fn program_that_ends_says_why() {
        let arguments = |_: &[u16]| vec!["-c".into(), "echo no such thing; exit 3".into()];

        let error = Daemon::try_start("sh", 1, arguments).await.unwrap_err();

        assert!(error.to_string().contains("no such thing"), "{error}");
    }

    const PORT: &str = "DAEMON_PORT";
}
