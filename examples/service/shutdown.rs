//! The part to copy: being told to end, as an orchestrator (SIGTERM) or a person (ctrl-c) does.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Listens from the call on, not only from when it is awaited. What is returned ends when one is told to.
pub fn told_to_end() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
