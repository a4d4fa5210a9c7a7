//! The guardian: a shell that owns one server and its directory.
//!
//! It reads orders from a pipe that only this process can write to. The pipe closes when
//! this process lets go of it or is gone, killed or not, and then the guardian stops the
//! server and deletes the directory. It has a process group of its own, so the
//! terminal's Ctrl-C does not reach it.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::{ClusterError, install};

#[derive(Debug)]
pub(crate) struct Guardian {
    child: Child,
    /// `None` only while dropping.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    dir: PathBuf,
}

impl Guardian {
    pub(crate) fn spawn(bin_dir: &Path, environment: &[(OsString, OsString)]) -> Result<Self, ClusterError> {
        let mut words = install::step_down()?;
        // Only for what runs as the server's user: a library to preload would set itself up as root.
        words.push("env".into());
        words.extend(environment.iter().map(|(name, value)| {
            let mut setting = name.clone();
            setting.push("=");
            setting.push(value);
            setting
        }));
        words.extend(["sh".into(), "-c".into(), SCRIPT.into(), "guardian".into()]);
        words.extend([bin_dir.into(), parent_dir().into()]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).process_group(0).current_dir("/");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Messages are read here; and nothing meant for another server may steer this one.
        command.env("LC_ALL", "C");
        for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }

        let spawned = command.spawn();
        let mut child = spawned.map_err(|error| ClusterError::new(format!("could not run {:?}: {error}", words[0])))?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut guardian = Self {
            child,
            orders,
            answers,
            dir: PathBuf::new(),
        };
        let dir = PathBuf::from(guardian.answer()?);
        // Processes are told apart by their working directory, which the kernel gives
        // with symbolic links resolved.
        guardian.dir = dir.canonicalize().unwrap_or(dir);
        Ok(guardian)
    }

    /// The directory that goes when the guardian does.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the data directory of a new cluster.
    pub(crate) fn initdb(&mut self) -> Result<(), ClusterError> {
        self.set_up("initdb")
    }

    /// Makes the data directory a copy of the one behind `conninfo`, to start as a standby.
    pub(crate) fn copy(&mut self, conninfo: &str) -> Result<(), ClusterError> {
        self.set_up(&format!("copy {conninfo}"))
    }

    /// Starts the server and returns its process id.
    pub(crate) fn start(&mut self) -> Result<u32, ClusterError> {
        let answer = self.order("start")?;
        answer
            .parse()
            .map_err(|_| ClusterError::new(format!("the guardian started {answer:?}")))
    }

    /// Waits for the ended server, so that its process id is free.
    pub(crate) fn reap(&mut self) -> Result<(), ClusterError> {
        self.order("reap").map(drop)
    }

    fn set_up(&mut self, order: &str) -> Result<(), ClusterError> {
        let status = self.order(order)?;
        if status == "0" {
            return Ok(());
        }
        let log = std::fs::read_to_string(self.dir.join("setup.log")).unwrap_or_default();
        Err(ClusterError::new(format!(
            "`{order}` ended with status {status}:\n{log}"
        )))
    }

    fn order(&mut self, order: &str) -> Result<String, ClusterError> {
        let orders = self.orders.as_mut().expect("orders end with the guardian");
        let sent = orders.write_all(format!("{order}\n").as_bytes());
        sent.map_err(|error| ClusterError::new(format!("the guardian is gone: {error}")))?;
        self.answer()
    }

    fn answer(&mut self) -> Result<String, ClusterError> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        if matches!(read, Ok(length) if length > 0) {
            return Ok(line.trim_end().to_owned());
        }
        let mut complaint = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut complaint);
        }
        Err(ClusterError::new(format!(
            "the guardian ended: {}",
            complaint.trim_end()
        )))
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.orders.take());
        // Bounded by the guardian itself, which kills what does not stop.
        let _ = self.child.wait();
    }
}

/// Where clusters live: short, as the path of a Unix socket has to fit 107 bytes.
pub(crate) fn parent_dir() -> PathBuf {
    let dir = env::temp_dir();
    if dir.as_os_str().len() <= LONGEST_PARENT {
        dir
    } else {
        PathBuf::from("/tmp")
    }
}

const SCRIPT: &str = include_str!("guardian.sh");
const LONGEST_PARENT: usize = 107 - "/lh-XXXXXX/.s.PGSQL.12345".len();
