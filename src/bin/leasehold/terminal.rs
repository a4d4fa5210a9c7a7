//! The terminal: whoever is in its foreground reads it and gets Ctrl-C and Ctrl-Z.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal that this process was started from.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// None without one, for a background job's, and in a pipe, where the terminal is a pager's.
    pub(crate) fn of_foreground() -> Option<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return None;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::fcntl::OFlag::O_NOCTTY.bits())
            .open("/dev/tty")
            .ok()?;
        let terminal = Self(file);
        terminal.is_ours().then_some(terminal)
    }

    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|group| group == getpgrp())
    }

    /// Puts a process group into the foreground. One that has asked for the terminal meanwhile was stopped
    /// for it, and goes on.
    pub(crate) fn give(&self, group: Pid) {
        self.put_into_foreground(group);
        let _ = nix::sys::signal::killpg(group, Signal::SIGCONT);
    }

    /// Unless a shell has taken it from the group before.
    pub(crate) fn take_back(&self, from: Pid) {
        if tcgetpgrp(&self.0).is_ok_and(|group| group == from) {
            self.put_into_foreground(getpgrp());
        }
    }

    /// From the background it takes a blocked SIGTTOU, which would stop this process.
    fn put_into_foreground(&self, group: Pid) {
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        let _ = blocked.thread_block();
        let _ = tcsetpgrp(&self.0, group);
        let _ = blocked.thread_unblock();
    }
}

/// Stops this job as its command was stopped, and returns when it goes on.
pub(crate) fn stop_as(signal: Signal) {
    // Ctrl-Z is a request to the whole job. Who is stopped for reading in the background is to stay so.
    let signal = if signal == Signal::SIGTSTP {
        signal
    } else {
        Signal::SIGSTOP
    };
    let _ = kill(Pid::from_raw(0), signal);
}
