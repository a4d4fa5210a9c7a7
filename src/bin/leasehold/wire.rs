//! What the two processes of a `run` tell each other: lines of JSON, over the holder's standard input and output.

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt, Lines};

use crate::clock::Deadline;

/// What the runner tells the holder. Its end is told by the end of the pipe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToHolder {
    /// The first line.
    Acquire(Order),
    /// The command runs, in this process group.
    Started { group: i32 },
    /// It is being ended; the holder need not.
    Ending,
    /// None of its processes is left.
    Ended,
}

/// The lease that is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    /// None: for ever.
    pub(crate) wait: Option<Duration>,
    pub(crate) hold_at_least: Duration,
    pub(crate) hold_at_most: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) holder: String,
    pub(crate) pooler: bool,
}

/// What the holder tells the runner.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToRunner {
    Waiting {
        ahead: u32,
        holder: Option<String>,
        left: Option<Duration>,
        is_pinned: bool,
    },
    /// There will be no lease.
    Refused {
        exit: u8,
        message: String,
    },
    Granted {
        fencing_token: i64,
        until: Deadline,
    },
    /// Renewed: the command may go on until then.
    Until(Deadline),
    /// The grace time begins.
    TimeToEnd,
    Lost {
        cause: String,
    },
}

pub(crate) async fn send(to: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    to.write_all(line.as_bytes()).await?;
    to.flush().await
}

/// None when the other has ended. What makes no sense is an error.
pub(crate) async fn receive<T: DeserializeOwned>(from: &mut Lines<impl AsyncBufRead + Unpin>) -> io::Result<Option<T>> {
    match from.next_line().await? {
        Some(line) => Ok(Some(serde_json::from_str(&line)?)),
        None => Ok(None),
    }
}

/// Cancel safe, as lines are.
pub(crate) fn lines<R: tokio::io::AsyncRead>(from: R) -> Lines<tokio::io::BufReader<R>> {
    tokio::io::BufReader::new(from).lines()
}
