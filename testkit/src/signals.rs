//! Signals to other processes, as faults: stop, continue, kill, terminate.
//!
//! Each answers whether the process was there to receive the signal, since a fault
//! often races with the end of its victim.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Freezes a process (`SIGSTOP`) and returns once it stands still.
///
/// # Panics
///
/// When the process may not be signalled by this user.
pub fn stop(pid: u32) -> bool {
    let sent = send(pid, Signal::STOP);
    let until = Instant::now() + STANDSTILL_WITHIN;
    while sent && state(pid).is_some_and(|state| !matches!(state, 'T' | 't' | 'Z' | 'X')) {
        if Instant::now() > until {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    sent
}

/// Lets a frozen process go on (`SIGCONT`).
///
/// # Panics
///
/// When the process may not be signalled by this user.
pub fn cont(pid: u32) -> bool {
    send(pid, Signal::CONT)
}

/// Kills a process at once (`SIGKILL`), frozen or not.
///
/// # Panics
///
/// When the process may not be signalled by this user.
pub fn kill(pid: u32) -> bool {
    send(pid, Signal::KILL)
}

/// Asks a process to end (`SIGTERM`).
///
/// # Panics
///
/// When the process may not be signalled by this user.
pub fn term(pid: u32) -> bool {
    send(pid, Signal::TERM)
}

/// Has this process killed when the one that started it is gone, however that ended. On Linux alone.
pub fn die_with_parent() {
    #[cfg(target_os = "linux")]
    {
        let asked = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        asked.expect("a process may ask for a signal of its own");
    }
}

/// Whether a process runs; one that has ended but was not waited for does not.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    match state(pid) {
        Some(state) => !matches!(state, 'Z' | 'X'),
        None if fs::exists("/proc/self/stat").unwrap_or(false) => false,
        None => Pid::from_raw(raw(pid)).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH)),
    }
}

pub(crate) fn send(pid: u32, signal: Signal) -> bool {
    let target = Pid::from_raw(raw(pid)).expect("0 is no process");
    match kill_process(target, signal) {
        Ok(()) => true,
        Err(Errno::SRCH) => false,
        Err(error) => panic!("could not signal process {pid}: {error}"),
    }
}

fn raw(pid: u32) -> i32 {
    i32::try_from(pid).expect("a process id fits an i32")
}

/// The state letter in `/proc/<pid>/stat`, which follows the bracketed command name.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

const STANDSTILL_WITHIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_stopped_process_stands_still_until_continued_and_a_killed_one_is_dead() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();

        assert!(stop(pid));
        assert_eq!(state(pid), Some('T'));
        assert!(is_alive(pid));

        assert!(cont(pid));
        assert_ne!(state(pid), Some('T'));

        assert!(kill(pid));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(!is_alive(pid));
        assert!(!kill(pid));
    }

    #[test]
    fn an_ended_process_that_nobody_waited_for_is_not_alive() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();

        term(child.id());
        while state(child.id()) != Some('Z') {
            thread::yield_now();
        }

        assert!(!is_alive(child.id()));
        child.wait().unwrap();
    }
}
