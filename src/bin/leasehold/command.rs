//! The command of a `run`: a process group of its own, and whatever else comes to descend from it.
//!
//! It is started in two steps, so that there is no moment in which it runs and only this process knows of it:
//! first as a process of this program, which stops itself; and when that was told to whom it concerns, it goes
//! on and becomes the command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::args::STARTER;
use crate::exit::{Exit, Failed};
use crate::terminal::Terminal;

/// The running command.
#[derive(Debug)]
pub(crate) struct Command {
    group: Pid,
    /// This process's other children: the holder, and whatever it had before it became this program.
    others: Vec<Pid>,
    terminal: Option<Terminal>,
}

/// What became of one of this process's children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Ended(Pid, Exit),
    Stopped(Pid, Signal),
}

impl Command {
    /// Starts what is to become the command. It stops at once, which [`changes`] tells.
    pub(crate) fn start(command: &[OsString], environment: &[(&str, String)]) -> io::Result<Self> {
        let (terminal, others) = (Terminal::of_foreground(), children());
        let child = process::Command::new(this_program()?)
            .args([STARTER, &process::id().to_string(), "--"])
            .args(command)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .spawn()?;
        let group = Pid::from_raw(i32::try_from(child.id()).expect("a process has a number of 31 bits"));
        Ok(Self {
            group,
            others,
            terminal,
        })
    }

    /// Lets it become the command, in the foreground where this process is.
    pub(crate) fn go(&self) {
        match &self.terminal {
            Some(terminal) => terminal.give(self.group),
            None => self.signal(Signal::SIGCONT),
        }
    }

    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Signals the command and all of its group, or what is left of it.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }

    /// Signals its group, and what has left the group and lost its parent.
    pub(crate) fn signal_all(&self, signal: Signal) {
        self.signal(signal);
        for orphan in self.orphans() {
            let _ = kill(orphan, signal);
        }
    }

    /// Whether anybody is left of either.
    pub(crate) fn is_anybody_left(&self) -> bool {
        killpg(self.group, None).is_ok() || self.orphans().next().is_some()
    }

    fn orphans(&self) -> impl Iterator<Item = Pid> {
        children()
            .into_iter()
            .filter(|child| *child != self.group && !self.others.contains(child))
    }

    /// It was stopped, by Ctrl-Z or for reading in the background: so stops this job, until somebody continues it.
    pub(crate) fn stopped(&mut self, by: Signal) {
        if !matches!(by, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU) {
            return;
        }
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.group);
        }
        crate::terminal::stop_as(by);
        if self.terminal.is_none() {
            self.terminal = Terminal::of_foreground();
        }
        match self.terminal.as_ref().filter(|terminal| terminal.is_ours()) {
            Some(terminal) => terminal.give(self.group),
            None => self.signal(Signal::SIGCONT),
        }
    }

    /// Nobody of it is left.
    pub(crate) fn ended(self) {
        if let Some(terminal) = self.terminal {
            terminal.take_back(self.group);
        }
    }
}

/// Lets the descendants whose parents end become this process's children, where the system can do that.
pub(crate) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

/// What became of this process's children since the last time.
pub(crate) fn changes() -> impl Iterator<Item = Change> {
    std::iter::from_fn(|| {
        loop {
            return match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Exited(pid, code)) => Some(Change::Ended(
                    pid,
                    Exit::Child(u8::try_from(code & 0xff).expect("it is 8 bits")),
                )),
                Ok(WaitStatus::Signaled(pid, signal, _)) => Some(Change::Ended(pid, Exit::Signal(signal as i32))),
                Ok(WaitStatus::Stopped(pid, signal)) => Some(Change::Stopped(pid, signal)),
                Err(Errno::EINTR) => continue,
                _ => None,
            };
        }
    })
}

/// This process's children, as far as the system tells.
fn children() -> Vec<Pid> {
    let listed = std::fs::read_to_string(format!("/proc/self/task/{0}/children", process::id()));
    let listed = listed.unwrap_or_default();
    listed
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .map(Pid::from_raw)
        .collect()
}

/// In the started process: waits to be let go, and becomes the command. Returns why it did not.
pub(crate) fn become_command(runner: i32, command: &[OsString]) -> Failed {
    // A runner that ends meanwhile leaves a stopped group behind, which the system hangs up on.
    let _ = kill(Pid::this(), Signal::SIGSTOP);
    if Pid::parent() != Pid::from_raw(runner) {
        return Failed::new(Exit::Lost, "whoever started the command has ended");
    }
    let (program, arguments) = command.split_first().expect("the command line asks for one");
    let error = process::Command::new(program).args(arguments).exec();
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::NotRunnable,
    };
    Failed::new(exit, format!("{}: {error}", program.display()))
}

/// Also after the file was replaced by a newer one.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() {
        Ok(link.to_owned())
    } else {
        std::env::current_exe()
    }
}
