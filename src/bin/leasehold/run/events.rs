//! What happens to a `run` from outside: signals, and what becomes of its children.

use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// What happens from outside.
pub(super) enum Event {
    /// To be passed on.
    Signal(Signal),
    /// Something has become of a child.
    Child,
}

pub(super) struct Events(mpsc::UnboundedReceiver<Event>);

impl Events {
    pub(super) fn listen() -> io::Result<Self> {
        let (tell, told) = mpsc::unbounded_channel();
        let mut children = signal(SignalKind::child())?;
        let told_of_children = tell.clone();
        tokio::spawn(
            async move { while children.recv().await.is_some() && told_of_children.send(Event::Child).is_ok() {} },
        );
        let ignored = ignored_signals();
        // What this process was told to ignore, by nohup for instance, its command ignores too.
        for passed_on in PASSED_ON
            .into_iter()
            .filter(|signal| ignored & 1 << (*signal as u32 - 1) == 0)
        {
            let mut signals = signal(SignalKind::from_raw(passed_on as i32))?;
            let tell = tell.clone();
            tokio::spawn(async move {
                while signals.recv().await.is_some() && tell.send(Event::Signal(passed_on)).is_ok() {}
            });
        }
        Ok(Self(told))
    }

    pub(super) async fn next(&mut self) -> Event {
        self.0
            .recv()
            .await
            .expect("whoever listens lasts as long as the runtime")
    }
}

/// Those that this process was started to ignore, as far as the system tells: a bit for each.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

const PASSED_ON: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];
