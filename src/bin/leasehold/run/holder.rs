//! The other process of a `run`, as its runner sees it: [`crate::holder`] is what it does.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{BufReader, Lines};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::events::{Event, Events};
use crate::args::{Connection, HOLDER};
use crate::command::{self, Change, this_program};
use crate::connect::{DATABASE_URL, LISTENER_URL};
use crate::wire::{Order, ToHolder, ToRunner, lines, receive, send};

/// The other process, which holds the lease.
pub(super) struct Holder {
    pub(super) pid: Pid,
    to: Option<pipe::Sender>,
    from: Lines<BufReader<pipe::Receiver>>,
    /// It says nothing more.
    pub(super) is_gone: bool,
    /// It has been reaped.
    pub(super) has_ended: bool,
}

impl Holder {
    pub(super) async fn start(connection: &Connection, order: Order) -> io::Result<Self> {
        let mut child = Command::new(this_program()?);
        child
            .arg(HOLDER)
            .args((0..connection.verbose).map(|_| "-v"))
            .args(["--", &order.name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // Where everybody can see arguments, there are no passwords in them.
        let variables = [
            (DATABASE_URL, connection.database_url()),
            (LISTENER_URL, connection.listener_url()),
        ];
        child.envs(variables.into_iter().filter_map(|(name, value)| Some((name, value?))));
        // What stops or interrupts this job is not meant for it.
        let mut child = child.process_group(0).spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let to = pipe::Sender::from_owned_fd(to.expect("it is a pipe").into())?;
        let from = pipe::Receiver::from_owned_fd(from.expect("it is a pipe").into())?;
        let mut holder = Self {
            pid: Pid::from_raw(i32::try_from(child.id()).expect("a process has a number of 31 bits")),
            to: Some(to),
            from: lines(from),
            is_gone: false,
            has_ended: false,
        };
        holder.tell(&ToHolder::Acquire(order)).await;
        Ok(holder)
    }

    /// A holder that is gone is noticed where it is listened to.
    pub(super) async fn tell(&mut self, message: &ToHolder) {
        if let Some(to) = &mut self.to {
            let _ = send(to, message).await;
        }
    }

    /// None when it has ended, or talks nonsense.
    pub(super) async fn receive(&mut self) -> Option<ToRunner> {
        let told = receive(&mut self.from).await.unwrap_or(None);
        self.is_gone = told.is_none();
        told
    }

    /// Nothing of the command is left: lets it release the lease, and waits until it has.
    pub(super) async fn end(mut self, events: &mut Events) {
        self.tell(&ToHolder::Ended).await;
        self.to = None;
        // Somebody may have stopped it.
        let _ = killpg(self.pid, Signal::SIGCONT);
        let ended = async {
            self.look();
            while !self.has_ended {
                if let Event::Child = events.next().await {
                    self.look();
                }
            }
        };
        if timeout(END_WITHIN, ended).await.is_err() {
            let _ = killpg(self.pid, Signal::SIGKILL);
        }
    }

    pub(super) fn look(&mut self) {
        for change in command::changes() {
            self.has_ended |= matches!(change, Change::Ended(pid, _) if pid == self.pid);
        }
    }
}

/// Longer than the database may take to answer, twice.
const END_WITHIN: Duration = Duration::from_secs(12);
