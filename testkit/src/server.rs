//! One server and what it takes to start, stop and kill it, as blocking calls.
//!
//! Nothing here knows about a runtime: [`crate::cluster`] runs these calls on a thread
//! where they may block, so a server outlives the runtime it was started from.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::guardian::Guardian;
use crate::{ClusterError, StopMode, install, signals};

#[derive(Debug)]
pub(crate) struct Server {
    bin_dir: PathBuf,
    dir: PathBuf,
    data_dir: PathBuf,
    port: Port,
    pid: AtomicU32,
    guardian: Mutex<Guardian>,
}

/// What a server is made from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recipe {
    pub(crate) bin_dir: Option<PathBuf>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Where to copy the data from; a new cluster is made otherwise.
    pub(crate) copy_from: Option<String>,
}

impl Server {
    /// Makes a data directory and starts a server on a free port.
    pub(crate) fn create(recipe: &Recipe) -> Result<Self, ClusterError> {
        Self::prepare(recipe)?.launch()
    }

    /// Makes a data directory.
    pub(crate) fn prepare(recipe: &Recipe) -> Result<Self, ClusterError> {
        let bin_dir = recipe.bin_dir.clone().map_or_else(install::find_bin_dir, Ok)?;
        let mut guardian = Guardian::spawn(&bin_dir, &recipe.environment)?;
        match &recipe.copy_from {
            Some(conninfo) => guardian.copy(conninfo)?,
            None => guardian.initdb()?,
        }
        let dir = guardian.dir().to_owned();
        let server = Self {
            bin_dir,
            data_dir: dir.join("data"),
            dir,
            port: Port::reserve()?,
            pid: AtomicU32::new(0),
            guardian: Mutex::new(guardian),
        };
        server.configure(&recipe.settings)?;
        Ok(server)
    }

    /// Starts it for the first time, on a free port.
    pub(crate) fn launch(mut self) -> Result<Self, ClusterError> {
        // Somebody outside these tests may take the port between the look and the use.
        for _ in 0..PORTS_TRIED {
            self.configure(&[("port".to_owned(), self.port.number.to_string())])?;
            match self.start() {
                Err(StartError::PortTaken) => self.port = Port::reserve()?,
                outcome => return outcome.map(|()| self).map_err(ClusterError::from),
            }
        }
        Err(ClusterError::new(format!("{PORTS_TRIED} ports in a row were taken")))
    }

    /// Makes a copy recover from the archive instead of following the server it was copied from.
    pub(crate) fn recover_from_archive(&self) -> Result<(), ClusterError> {
        fs::rename(
            self.data_dir.join("standby.signal"),
            self.data_dir.join("recovery.signal"),
        )
        .map_err(|error| ClusterError::new(format!("the copy is not one of a running server: {error}")))
    }

    /// Starts the stopped server again, on its data and its port.
    pub(crate) fn start_again(&self) -> Result<(), ClusterError> {
        if !self.processes("").is_empty() {
            return Err(ClusterError::new("the server still runs".to_owned()));
        }
        // The process ids in them may be somebody else's by now, and the server would
        // believe that it still runs.
        let _ = fs::remove_file(self.dir.join(format!(".s.PGSQL.{}.lock", self.port.number)));
        let _ = fs::remove_file(self.data_dir.join("postmaster.pid"));
        let until = Instant::now() + READY_WITHIN;
        loop {
            match self.start() {
                Err(StartError::PortTaken) if Instant::now() < until => thread::sleep(Duration::from_millis(100)),
                outcome => return outcome.map_err(ClusterError::from),
            }
        }
    }

    /// Stops the server; one that is not running stays so.
    pub(crate) fn stop(&self, mode: StopMode) -> Result<(), ClusterError> {
        let pid = self.pid();
        let signal = match mode {
            StopMode::Fast => Signal::INT,
            StopMode::Immediate => Signal::QUIT,
        };
        if pid == 0 {
            return Ok(());
        }
        signals::send(pid, signal);
        signals::cont(pid);
        self.wait_until("the server has stopped", || !signals::is_alive(pid))?;
        self.bury()
    }

    /// Kills the postmaster and waits until its children have noticed.
    pub(crate) fn kill_postmaster(&self) -> Result<(), ClusterError> {
        let pid = self.pid();
        if pid == 0 {
            return Err(ClusterError::new("the server does not run".to_owned()));
        }
        signals::kill(pid);
        self.wait_until("the postmaster is dead", || !signals::is_alive(pid))?;
        let noticed_by = Instant::now() + ORPHANS_NOTICE_WITHIN;
        while !self.processes("").is_empty() && Instant::now() < noticed_by {
            thread::sleep(POLL_EVERY);
        }
        self.bury()
    }

    /// The processes of the server, its postmaster among them, whose title contains `title`.
    pub(crate) fn processes(&self, title: &str) -> Vec<u32> {
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid| self.is_member(*pid, title)).collect()
    }

    /// The postmaster's process id; 0 while the server is stopped.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Acquire)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number
    }

    /// The directory of the socket, the log and the data.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    pub(crate) fn bin_dir(&self) -> &Path {
        &self.bin_dir
    }

    pub(crate) fn log(&self) -> String {
        let log = fs::read(self.dir.join("server.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn start(&self) -> Result<(), StartError> {
        let mut guardian = self.guardian.lock().unwrap_or_else(PoisonError::into_inner);
        let logged_before = self.log().len();
        let pid = guardian.start()?;
        let until = Instant::now() + READY_WITHIN;
        while !self.is_ready(pid) {
            let log = || self.log().get(logged_before..).unwrap_or_default().to_owned();
            if !signals::is_alive(pid) {
                guardian.reap()?;
                let log = log();
                let is_taken = log.contains("Address already in use");
                return Err(if is_taken {
                    StartError::PortTaken
                } else {
                    self.failure("the server did not start", &log).into()
                });
            }
            if Instant::now() > until {
                return Err(self.failure("the server was not ready in time", &log()).into());
            }
            thread::sleep(POLL_EVERY);
        }
        self.pid.store(pid, Ordering::Release);
        Ok(())
    }

    /// The last line of `postmaster.pid` says when connections are welcome.
    fn is_ready(&self, pid: u32) -> bool {
        let Ok(lock_file) = fs::read_to_string(self.data_dir.join("postmaster.pid")) else {
            return false;
        };
        let lines: Vec<&str> = lock_file.lines().map(str::trim).collect();
        lines.first() == Some(&pid.to_string().as_str()) && matches!(lines.get(7), Some(&"ready" | &"standby"))
    }

    /// Waits for an ended server and ends what it left running.
    fn bury(&self) -> Result<(), ClusterError> {
        self.guardian.lock().unwrap_or_else(PoisonError::into_inner).reap()?;
        self.pid.store(0, Ordering::Release);
        for orphan in self.processes("") {
            signals::kill(orphan);
        }
        self.wait_until("the server's processes are gone", || self.processes("").is_empty())
    }

    fn is_member(&self, pid: u32, title: &str) -> bool {
        let is_here = fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|dir| dir == self.data_dir);
        is_here
            && (title.is_empty()
                || fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| String::from_utf8_lossy(&line).contains(title)))
    }

    pub(crate) fn configure(&self, settings: &[(String, String)]) -> Result<(), ClusterError> {
        let written = OpenOptions::new()
            .append(true)
            .open(self.data_dir.join("postgresql.conf"))
            .and_then(|mut file| {
                writeln!(file, "listen_addresses = '127.0.0.1'")?;
                writeln!(file, "unix_socket_directories = '{}'", self.dir.display())?;
                settings
                    .iter()
                    .try_for_each(|(name, value)| writeln!(file, "{name} = '{}'", value.replace('\'', "''")))
            });
        written.map_err(|error| ClusterError::new(format!("could not write the settings: {error}")))
    }

    fn wait_until(&self, what: &str, condition: impl Fn() -> bool) -> Result<(), ClusterError> {
        let until = Instant::now() + STOPPED_WITHIN;
        while !condition() {
            if Instant::now() > until {
                return Err(self.failure(format_args!("not within {STOPPED_WITHIN:?}: {what}"), &self.log()));
            }
            thread::sleep(POLL_EVERY);
        }
        Ok(())
    }

    fn failure(&self, what: impl Display, log: &str) -> ClusterError {
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n");
        ClusterError::new(format!("{what}; the end of its log:\n{tail}"))
    }
}

/// A TCP port that no other cluster of these tests takes, in any process.
///
/// The UDP port of the same number is the token: the kernel gives it to one process
/// and takes it back when that process ends. It outlives a stopped server, so the
/// port is still free when the server starts again.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _reserved: UdpSocket,
}

impl Port {
    pub(crate) fn reserve() -> Result<Self, ClusterError> {
        let span = PORTS.end - PORTS.start;
        let first = u16::try_from(process::id() % u32::from(span)).expect("less than the span");
        let numbers = (0..span).map(|step| PORTS.start + (first + step) % span);
        let is_free = |number| TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok();
        let reserved = numbers.into_iter().find_map(|number| {
            let reserved = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
            is_free(number).then_some(Self {
                number,
                _reserved: reserved,
            })
        });
        reserved.ok_or_else(|| ClusterError::new(format!("no free port in {PORTS:?}")))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

enum StartError {
    PortTaken,
    Failed(ClusterError),
}

impl From<ClusterError> for StartError {
    fn from(error: ClusterError) -> Self {
        Self::Failed(error)
    }
}

impl From<StartError> for ClusterError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::PortTaken => Self::new("the port is taken".to_owned()),
            StartError::Failed(error) => error,
        }
    }
}

/// Below what the kernel hands out by itself, so that no outgoing connection takes the
/// port of a server that is down for a moment.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
const PORTS_TRIED: usize = 20;
const POLL_EVERY: Duration = Duration::from_millis(5);
const READY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);
const ORPHANS_NOTICE_WITHIN: Duration = Duration::from_secs(5);
const LOG_TAIL: usize = 30;
