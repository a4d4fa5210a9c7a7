//! `leasehold run`: a command that runs while a lease is held.
//!
//! Two processes, so that the command ends in time although one of them is stopped:
//!
//! ```text
//!   runner ── starts, signals, reaps ──▶ command
//!     │  ▲                                  ▲
//!     ▼  │ lines of JSON                    │ signals, when the runner sleeps or is gone
//!   holder ── acquires, renews, releases ───┘
//! ```
//!
//! 1. The command runs between the grant and [`Run::until`], which the holder moves with each renewal. That is
//!    the end of the lease's trust window, by a clock that both processes read.
//! 2. A grace time before it, the command gets SIGTERM; at its end SIGKILL. A lease that is lost at once, broken
//!    by an operator for instance, leaves no grace.
//! 3. The lease is released when nothing of the command is left, never before.

mod events;
mod holder;
mod progress;

use std::ffi::OsString;
use std::io;
use std::process;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::timeout;

use self::events::{Event, Events};
use self::holder::Holder;
use self::progress::Progress;
use crate::args::{Connection, RunArgs, Wait};
use crate::clock::{Deadline, come};
use crate::command::{self, Change, Command};
use crate::exit::{Exit, Failed};
use crate::wire::{Order, ToHolder, ToRunner};

pub(crate) async fn run(connection: &Connection, args: RunArgs) -> Result<Exit, Failed> {
    let order = order(connection, &args)?;
    let mut events = Events::listen().map_err(failed)?;
    command::adopt_orphans();
    let mut holder = Holder::start(connection, order.clone()).await.map_err(failed)?;
    let outcome = match wait(&mut holder, &mut events, &args).await {
        Ok(Waited::Granted(granted)) => under(granted, &order, &args.command, &mut holder, &mut events).await,
        Ok(Waited::Interrupted(by)) => Ok(Exit::Signal(by as i32)),
        Err(failed) => Err(failed),
    };
    holder.end(&mut events).await;
    outcome
}

/// Runs the command under a lease.
async fn under(
    granted: Granted,
    order: &Order,
    command: &[OsString],
    holder: &mut Holder,
    events: &mut Events,
) -> Result<Exit, Failed> {
    let lost = |cause: &str| Failed::new(Exit::Lost, format!("the lease {} was lost: {cause}", order.name));
    let environment = [
        ("LEASEHOLD_NAME", order.name.clone()),
        ("LEASEHOLD_FENCING_TOKEN", granted.fencing_token.to_string()),
    ];
    let started = Command::start(command, &environment).map_err(failed)?;
    if let Some(exit) = stopped(&started, holder, events).await {
        return Ok(exit);
    }
    // This process may have been stopped meanwhile.
    if granted.until.earlier(order.grace).is_over() {
        started.signal(Signal::SIGKILL);
        return Err(lost("it was granted too late to be of use"));
    }
    let group = started.group().as_raw();
    holder.tell(&ToHolder::Started { group }).await;
    started.go();
    let run = Run {
        command: started,
        until: granted.until,
        allowed_until: order.hold_at_most.map(|most| Deadline::now().later(most)),
        grace: order.grace,
        stage: Stage::Running,
        lost: None,
        exit: None,
    };
    match run.until_its_end(holder, events).await {
        (Some(cause), _) => Err(lost(&cause)),
        (None, exit) => Ok(exit),
    }
}

/// Waits until what is to become the command has stopped. Returns what it ended with, if it did.
async fn stopped(command: &Command, holder: &mut Holder, events: &mut Events) -> Option<Exit> {
    let mut interrupted = None;
    loop {
        for change in command::changes() {
            match change {
                Change::Stopped(pid, _) if pid == command.group() => return None,
                Change::Ended(pid, exit) if pid == command.group() => return Some(interrupted.unwrap_or(exit)),
                Change::Ended(pid, _) if pid == holder.pid => holder.has_ended = true,
                Change::Ended(..) | Change::Stopped(..) => {}
            }
        }
        match events.next().await {
            Event::Signal(signal) if ends(signal) => {
                interrupted = Some(Exit::Signal(signal as i32));
                command.signal(Signal::SIGKILL);
            }
            Event::Signal(_) | Event::Child => {}
        }
    }
}

/// The running command, and how far its end has come.
struct Run {
    command: Command,
    /// Nothing of the command runs any more by then.
    until: Deadline,
    /// The command may not take longer, renewed or not.
    allowed_until: Option<Deadline>,
    grace: Duration,
    stage: Stage,
    /// Why it was ended.
    lost: Option<String>,
    /// What the command itself ended with; others of it may be left.
    exit: Option<Exit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// It was told to end, and is killed then.
    Ending {
        kill_at: Deadline,
    },
    Killed,
}

impl Run {
    /// Returns when nothing of the command is left: why it was ended, if it was, and what it ended with.
    async fn until_its_end(mut self, holder: &mut Holder, events: &mut Events) -> (Option<String>, Exit) {
        loop {
            let alarm = match self.stage {
                Stage::Running => Some(self.until.earlier(self.grace)),
                Stage::Ending { kill_at } => Some(kill_at),
                // Those that are not this process's children end without a word.
                Stage::Killed => self.exit.map(|_| Deadline::now().later(LOOK_EVERY)),
            };
            tokio::select! {
                biased;
                () = come(alarm) => self.alarm(holder).await,
                told = holder.receive(), if !holder.is_gone => self.hear(told, holder).await,
                event = events.next() => match event {
                    Event::Signal(signal) => self.command.signal(signal),
                    Event::Child => self.look(holder),
                },
            }
            if let Some(exit) = self.exit
                && !self.command.is_anybody_left()
            {
                self.command.ended();
                return (self.lost, exit);
            }
        }
    }

    async fn alarm(&mut self, holder: &mut Holder) {
        match self.stage {
            Stage::Running => self.run_out(holder).await,
            Stage::Ending { .. } | Stage::Killed => self.kill(),
        }
    }

    async fn hear(&mut self, told: Option<ToRunner>, holder: &mut Holder) {
        match told {
            // What has begun to end is not held up.
            Some(ToRunner::Until(until)) => self.until = self.until.max(until),
            Some(ToRunner::TimeToEnd) => self.run_out(holder).await,
            Some(ToRunner::Lost { cause }) => {
                self.lose(&cause);
                self.kill();
            }
            // Nobody renews it any more, and nobody releases it.
            None => self.end(HOLDER_HAS_ENDED, holder).await,
            Some(_) => {}
        }
    }

    /// The lease will be over when the grace time is, unless this process was stopped and has to hear first
    /// what it was told meanwhile.
    async fn run_out(&mut self, holder: &mut Holder) {
        while let Ok(told) = timeout(AT_ONCE, holder.receive()).await {
            match told {
                Some(ToRunner::Until(until)) => self.until = self.until.max(until),
                Some(ToRunner::Lost { cause }) => {
                    self.lose(&cause);
                    return self.kill();
                }
                Some(_) => {}
                None => return self.end(HOLDER_HAS_ENDED, holder).await,
            }
        }
        if !self.until.earlier(self.grace).is_over() {
            return;
        }
        let is_allowed = |until: Deadline| !until.earlier(self.grace + ABOUT).is_over();
        let cause = match self.allowed_until {
            Some(until) if !is_allowed(until) => "it was held for as long as was allowed",
            _ => "it was not renewed in time",
        };
        self.end(cause, holder).await;
    }

    /// The first cause is the one to tell.
    fn lose(&mut self, cause: &str) {
        if self.exit.is_none() {
            self.lost.get_or_insert_with(|| cause.to_owned());
        }
    }

    /// Looks what has become of whom.
    fn look(&mut self, holder: &mut Holder) {
        for change in command::changes() {
            match change {
                Change::Ended(pid, _) if pid == holder.pid => holder.has_ended = true,
                Change::Ended(pid, exit) if pid == self.command.group() => self.left(exit),
                Change::Stopped(pid, by) if pid == self.command.group() => self.command.stopped(by),
                Change::Ended(..) | Change::Stopped(..) => {}
            }
        }
    }

    /// The command has ended. What it leaves behind is told to, and must not outlast the lease either.
    fn left(&mut self, exit: Exit) {
        self.exit = Some(exit);
        if self.stage == Stage::Running && self.command.is_anybody_left() {
            self.terminate();
        }
    }

    async fn end(&mut self, cause: &str, holder: &mut Holder) {
        self.lose(cause);
        if self.stage == Stage::Running {
            self.terminate();
        }
        holder.tell(&ToHolder::Ending).await;
    }

    /// SIGTERM now, SIGKILL after the grace time or with the end of the lease, whichever comes first.
    fn terminate(&mut self) {
        self.command.signal_all(Signal::SIGTERM);
        // Who is stopped gets it too.
        self.command.signal_all(Signal::SIGCONT);
        let kill_at = Deadline::now().later(self.grace).min(self.until);
        self.stage = Stage::Ending { kill_at };
    }

    fn kill(&mut self) {
        self.command.signal_all(Signal::SIGKILL);
        self.stage = Stage::Killed;
    }
}

enum Waited {
    Granted(Granted),
    Interrupted(Signal),
}

struct Granted {
    fencing_token: i64,
    until: Deadline,
}

/// Waits for the grant, which a signal ends.
async fn wait(holder: &mut Holder, events: &mut Events, args: &RunArgs) -> Result<Waited, Failed> {
    let mut progress = Progress::new(args);
    loop {
        tokio::select! {
            told = holder.receive() => match told {
                Some(ToRunner::Waiting { ahead, holder, left, is_pinned }) => {
                    progress.tell(ahead, holder.as_deref(), left, is_pinned);
                }
                Some(ToRunner::Granted { fencing_token, until }) => {
                    return Ok(Waited::Granted(Granted { fencing_token, until }));
                }
                Some(ToRunner::Refused { exit, message }) => {
                    return Err(Failed::new(Exit::Child(exit), message));
                }
                Some(_) => {}
                None => return Err(Failed::new(Exit::Unavailable, "the process that holds the lease has ended")),
            },
            event = events.next() => match event {
                Event::Signal(signal) if ends(signal) => return Ok(Waited::Interrupted(signal)),
                Event::Signal(_) => {}
                // A holder that has ended is noticed where it is listened to.
                Event::Child => holder.look(),
            },
        }
    }
}

fn order(connection: &Connection, args: &RunArgs) -> Result<Order, Failed> {
    let grace = args.grace.unwrap_or_else(|| GRACE.min(args.ttl / 4));
    if grace > args.ttl / 2 {
        let problem = format!("invalid grace: {grace:?} is more than half of the ttl");
        return Err(Failed::new(Exit::Usage, problem));
    }
    let command = std::path::Path::new(args.command.first().expect("the command line asks for one"));
    let holder = args.holder.clone().unwrap_or_else(|| {
        let command = command.file_name().unwrap_or(command.as_os_str()).to_string_lossy();
        let host = hostname::get().map_or_else(|_| "unknown".into(), |host| host.to_string_lossy().into_owned());
        format!("{command}@{host}:{}", process::id())
    });
    Ok(Order {
        name: args.name.clone(),
        ttl: args.ttl,
        wait: match args.wait {
            Wait::AtMost(wait) => Some(wait),
            Wait::ForEver => None,
        },
        hold_at_least: args.hold_at_least,
        hold_at_most: args.hold_at_most,
        grace,
        holder,
        pooler: connection.pooler,
    })
}

/// Whether a signal ends whoever does not know it.
fn ends(signal: Signal) -> bool {
    !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2)
}

fn failed(error: io::Error) -> Failed {
    Failed::new(Exit::Unavailable, error.to_string())
}

const HOLDER_HAS_ENDED: &str = "the process that renews it has ended";

/// Unless it is a quarter of the ttl or more.
const GRACE: Duration = Duration::from_secs(5);

/// What was said before is heard within this time.
const AT_ONCE: Duration = Duration::from_millis(5);

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What two processes take to tell each other.
const ABOUT: Duration = Duration::from_millis(100);
