//! A process of an example: the example's own program once more, in another part.

use std::env;
use std::error::Error;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::{Stage, signals};

type Failure = Box<dyn Error + Send + Sync>;

/// A child process that is killed when this is dropped. What it says is printed, a line at a time, and
/// can be waited for.
#[derive(Debug)]
#[must_use = "dropping a player kills it"]
pub struct Player {
    label: String,
    pid: u32,
    child: Child,
    orders: ChildStdin,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Player {
    /// Starts this program again with `arguments`, and `DATABASE_URL` leading to the stage.
    ///
    /// # Errors
    ///
    /// When it could not be started.
    pub fn start(stage: &Stage, label: &str, arguments: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(env::current_exe()?)
            .args(arguments)
            .env("DATABASE_URL", stage.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (heard, lines) = mpsc::unbounded_channel();
        let stdout = child.stdout.take().expect("standard output is piped");
        tokio::spawn(listen(label.to_owned(), stdout, heard));
        Ok(Self {
            label: label.to_owned(),
            pid: child.id().expect("it has not been waited for"),
            orders: child.stdin.take().expect("standard input is piped"),
            child,
            lines,
        })
    }

    /// Returns what the player is called.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Writes a line to its standard input, where it waits while the process stands still.
    ///
    /// # Errors
    ///
    /// When nobody can read it any more.
    pub async fn tell(&mut self, line: &str) -> Result<(), Failure> {
        self.orders.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(())
    }

    /// Waits for the next line that begins with `beginning`, and returns the rest of it.
    ///
    /// # Errors
    ///
    /// When it does not come in time, or the process has ended.
    pub async fn hear(&mut self, beginning: &str) -> Result<String, Failure> {
        let heard = async {
            while let Some(line) = self.lines.recv().await {
                if let Some(rest) = line.strip_prefix(beginning) {
                    return Ok(rest.to_owned());
                }
            }
            Err(format!("{} has ended without a line {beginning:?}", self.label).into())
        };
        match timeout(PATIENCE, heard).await {
            Ok(heard) => heard,
            Err(_) => Err(format!("{} does not say {beginning:?}", self.label).into()),
        }
    }

    /// Waits until it has ended by itself, and returns the lines that were not heard yet.
    ///
    /// # Errors
    ///
    /// When it does not end in time, or not with success.
    pub async fn end(mut self) -> Result<Vec<String>, Failure> {
        let status = self.wait().await?;
        if !status.success() {
            return Err(format!("{} ended with {status}", self.label).into());
        }
        let mut lines = Vec::new();
        while let Some(line) = self.lines.recv().await {
            lines.push(line);
        }
        Ok(lines)
    }

    /// Asks it to end (`SIGTERM`), and waits as [`end`](Self::end) does.
    ///
    /// # Errors
    ///
    /// Those of [`end`](Self::end).
    pub async fn term(self) -> Result<Vec<String>, Failure> {
        signals::term(self.pid);
        self.end().await
    }

    /// Kills it (`SIGKILL`) and waits until it is gone.
    ///
    /// # Errors
    ///
    /// When it had ended by itself.
    pub async fn kill(mut self) -> Result<(), Failure> {
        signals::kill(self.pid);
        let status = self.wait().await?;
        match status.code() {
            None => Ok(()),
            Some(_) => Err(format!("{} had ended before it was killed, with {status}", self.label).into()),
        }
    }

    async fn wait(&mut self) -> Result<ExitStatus, Failure> {
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => Err(format!("{} does not end", self.label).into()),
        }
    }
}

#[expect(clippy::print_stdout, reason = "a play is there to be followed")]
async fn listen(label: String, stdout: ChildStdout, heard: mpsc::UnboundedSender<String>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        println!("  {label:<9} {line}");
        // Whoever does not listen any more has let go of the player.
        let _ = heard.send(line);
    }
}

/// Longer than anything in a play takes.
const PATIENCE: Duration = Duration::from_secs(60);
