//! The process that holds the lease of a `run`: the one of the two that talks to the database.
//!
//! ```text
//!   acquiring ──▶ granted ──▶ started ──▶ ended ──▶ released
//!                                │ ╲
//!                                │  ╲── lost: SIGKILL to the group
//!                                └───── the runner is gone: SIGTERM, SIGKILL, and only then released
//! ```
//!
//! The runner ends the command when the lease runs out. This process does the same, at the same time:
//! one of the two may be asleep. What it knows of the command is its process group.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use leasehold::{Error, Lease, LeaseClient, Waiting};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{BufReader, Lines};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::args::Connection;
use crate::clock::{Deadline, come};
use crate::exit::{Exit, Failed};
use crate::wire::{Order, ToHolder, ToRunner, lines, receive, send};

pub(crate) async fn run(connection: &Connection) -> Result<Exit, Failed> {
    outlive_signals().map_err(broken)?;
    let (mut from, mut to) = runner().map_err(|_| Failed::new(Exit::Usage, FOR_RUN_ALONE))?;
    let Some(ToHolder::Acquire(order)) = receive(&mut from).await.map_err(broken)? else {
        return Err(Failed::new(Exit::Usage, FOR_RUN_ALONE));
    };
    let leases = connection.client(connection.pool()?).pooler(order.pooler).build()?;
    let acquired = tokio::select! {
        acquired = acquire(&leases, &order, &mut to) => acquired,
        // Whoever asked is gone, or was interrupted.
        _ = receive::<ToHolder>(&mut from) => {
            leases.close().await;
            return Ok(Exit::Done);
        }
    };
    match acquired {
        Ok(lease) => Holder::new(order, lease, from, to).hold().await.map_err(broken)?,
        Err(refused) => {
            let refusal = ToRunner::Refused {
                exit: refused.exit.code(),
                message: refused.message,
            };
            let _ = send(&mut to, &refusal).await;
        }
    }
    leases.close().await;
    Ok(Exit::Done)
}

/// Standard input and output, which are pipes to the runner.
fn runner() -> io::Result<(Lines<BufReader<pipe::Receiver>>, pipe::Sender)> {
    let (stdin, stdout) = (
        io::stdin().as_fd().try_clone_to_owned()?,
        io::stdout().as_fd().try_clone_to_owned()?,
    );
    Ok((
        lines(pipe::Receiver::from_owned_fd(stdin)?),
        pipe::Sender::from_owned_fd(stdout)?,
    ))
}

async fn acquire(leases: &LeaseClient, order: &Order, to: &mut pipe::Sender) -> Result<Lease, Failed> {
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut acquiring = leases
        .acquire(&order.name)
        .ttl(order.ttl)
        .hold_at_least(order.hold_at_least)
        .holder(&order.holder)
        .watch(move |waiting: &Waiting| drop(tell.send(waiting.clone())));
    if let Some(most) = order.hold_at_most {
        acquiring = acquiring.hold_at_most(most);
    }
    if let Some(wait) = order.wait {
        acquiring = acquiring.wait_at_most(wait);
    }
    let mut acquiring = acquiring.into_future();
    loop {
        tokio::select! {
            acquired = &mut acquiring => return acquired.map_err(|error| refused(order, error)),
            Some(waiting) = told.recv() => {
                let _ = send(to, &ToRunner::Waiting {
                    ahead: waiting.ahead,
                    holder: waiting.holder,
                    left: waiting.expires_in,
                    is_pinned: waiting.is_pinned,
                }).await;
            }
        }
    }
}

fn refused(order: &Order, error: Error) -> Failed {
    match error {
        // Who did not want to wait is not told that he did.
        Error::WaitTimedOut { name, holder, .. } if order.wait == Some(Duration::ZERO) => {
            let by = holder
                .as_deref()
                .unwrap_or("somebody else, or promised to who waits for it");
            Failed::new(Exit::Held, format!("lease {name} is held by {by}"))
        }
        error => error.into(),
    }
}

struct Holder {
    order: Order,
    lease: Lease,
    from: Lines<BufReader<pipe::Receiver>>,
    to: pipe::Sender,
    /// Until when the runner knows that the command may go on.
    until: Deadline,
    group: Option<Pid>,
    ending: Ending,
}

/// How far the end of the command has come that begins a grace time before the lease runs out.
#[derive(Debug, Clone, Copy)]
enum Ending {
    NotYet,
    /// The runner is asleep, unless it answers by then.
    Told {
        by: Deadline,
    },
    Begun,
}

impl Holder {
    fn new(order: Order, lease: Lease, from: Lines<BufReader<pipe::Receiver>>, to: pipe::Sender) -> Self {
        Self {
            until: until(&lease),
            order,
            lease,
            from,
            to,
            group: None,
            ending: Ending::NotYet,
        }
    }

    async fn hold(mut self) -> io::Result<()> {
        let granted = ToRunner::Granted {
            fencing_token: self.lease.fencing_token().get(),
            until: self.until,
        };
        self.tell(&granted).await;
        // How often it looks whether the lease was renewed meanwhile.
        let mut look = interval(self.order.ttl / 30);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let alarm = match self.ending {
                Ending::NotYet => Some(self.until.earlier(self.order.grace)),
                Ending::Told { by } => Some(by),
                Ending::Begun => None,
            };
            tokio::select! {
                biased;
                lost = self.lease.lost() => {
                    self.kill(Signal::SIGKILL);
                    self.tell(&ToRunner::Lost { cause: lost.cause.to_string() }).await;
                    return self.outlive().await;
                }
                told = receive(&mut self.from) => match told? {
                    Some(ToHolder::Started { group }) => self.group = Some(Pid::from_raw(group)),
                    Some(ToHolder::Ending) => self.ending = Ending::Begun,
                    Some(ToHolder::Ended) => return self.release().await,
                    Some(ToHolder::Acquire(_)) => return Err(io::ErrorKind::InvalidData.into()),
                    None => return self.end_orphans().await,
                },
                _ = look.tick() => self.renewed().await,
                () = come(alarm) => match self.ending {
                    Ending::NotYet => self.time_to_end().await,
                    Ending::Told { .. } | Ending::Begun => {
                        self.kill(Signal::SIGTERM);
                        self.ending = Ending::Begun;
                    }
                },
            }
        }
    }

    /// Tells the runner how much longer the command may go on.
    async fn renewed(&mut self) {
        let until = until(&self.lease);
        if until > self.until.later(TELLING) {
            self.until = until;
            self.tell(&ToRunner::Until(until)).await;
        }
    }

    /// Nothing was renewed for so long that the command has to end. The runner sees to it, unless it is asleep.
    async fn time_to_end(&mut self) {
        self.renewed().await;
        if self.until.earlier(self.order.grace).is_over() {
            self.ending = Ending::Told {
                by: Deadline::now().later(AWAKE_WITHIN.min(self.order.grace / 4)),
            };
            self.tell(&ToRunner::TimeToEnd).await;
        }
    }

    /// The lease is lost and the command killed. Waits until the runner has said so, for as long as it is there.
    async fn outlive(mut self) -> io::Result<()> {
        while let Some(told) = receive(&mut self.from).await? {
            match told {
                // It had not heard yet.
                ToHolder::Started { group } => {
                    self.group = Some(Pid::from_raw(group));
                    self.kill(Signal::SIGKILL);
                }
                ToHolder::Ended => break,
                ToHolder::Acquire(_) | ToHolder::Ending => {}
            }
        }
        Ok(())
    }

    /// The runner was killed. The command goes with it, and the name is free only when it has gone.
    async fn end_orphans(self) -> io::Result<()> {
        self.kill(Signal::SIGTERM);
        let grace_until = Deadline::now().later(self.order.grace).min(self.until);
        while self.is_anybody_left() {
            if grace_until.is_over() {
                self.kill(Signal::SIGKILL);
            }
            // There is no waiting for processes that are not one's own.
            sleep(LOOK_EVERY).await;
        }
        self.release().await
    }

    /// The runner waits for the end of this process, which follows.
    async fn release(self) -> io::Result<()> {
        if let Err(error) = self.lease.release().await {
            tracing::warn!(%error, "the lease was not released and runs out");
        }
        Ok(())
    }

    fn kill(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Nobody left is what was wanted.
            let _ = killpg(group, signal);
        }
    }

    fn is_anybody_left(&self) -> bool {
        self.group.is_some_and(|group| killpg(group, None).is_ok())
    }

    /// A runner that is gone is noticed where it is listened to.
    async fn tell(&mut self, message: &ToRunner) {
        let _ = send(&mut self.to, message).await;
    }
}

/// What ends a run is for the runner, who passes it on: whoever stops a whole service signals this process too.
fn outlive_signals() -> io::Result<()> {
    let kinds = [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
    ];
    // Once asked for, a signal is never again what it does by default.
    kinds.into_iter().try_for_each(|kind| signal(kind).map(drop))
}

/// Until when the command may go on. The clock is read first: a process that is stopped in between must not
/// make it longer.
fn until(lease: &Lease) -> Deadline {
    let now = Deadline::now();
    now.later(lease.remaining())
}

fn broken(error: io::Error) -> Failed {
    Failed::new(
        Exit::Lost,
        format!("the two processes of a run do not understand each other: {error}"),
    )
}

const FOR_RUN_ALONE: &str = "this command is for `leasehold run` alone";

/// What is not worth telling.
const TELLING: Duration = Duration::from_millis(1);

/// Whoever is awake answers within this time.
const AWAKE_WITHIN: Duration = Duration::from_millis(100);

const LOOK_EVERY: Duration = Duration::from_millis(10);
