//! The client processes as the nemesis sees them: started, told, stopped, killed and started again.

use std::env;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use leasehold_testkit::signals;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::Outcome;

#[derive(Debug)]
pub struct Client {
    pub process: String,
    pub url: String,
    incarnation: u64,
    seed: u64,
    hot_names: u64,
    dir: PathBuf,
    child: Child,
}

impl Client {
    pub fn start(process: String, url: String, seed: u64, hot_names: u64, dir: PathBuf) -> Outcome<Self> {
        let child = spawn(&process, &url, 1, seed, hot_names, &dir)?;
        Ok(Self {
            process,
            url,
            incarnation: 1,
            seed,
            hot_names,
            dir,
            child,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it was not waited for")
    }

    /// Kills it, and starts it anew.
    pub async fn kill_and_restart(&mut self) -> Outcome<()> {
        signals::kill(self.pid());
        self.child.wait().await?;
        self.incarnation += 1;
        self.child = spawn(
            &self.process,
            &self.url,
            self.incarnation,
            self.seed,
            self.hot_names,
            &self.dir,
        )?;
        Ok(())
    }

    pub async fn tell(&mut self, command: &str) {
        if let Some(ear) = self.child.stdin.as_mut() {
            // One that has died is noticed when it is to close.
            let _ = ear.write_all(format!("{command}\n").as_bytes()).await;
        }
    }

    /// Whether it ended by itself, in time and well, after it was told to.
    pub async fn has_closed(mut self) -> bool {
        let ended = timeout(Duration::from_secs(15), self.child.wait()).await;
        matches!(ended, Ok(Ok(status)) if status.success())
    }
}

fn spawn(
    process: &str,
    url: &str,
    incarnation: u64,
    seed: u64,
    hot_names: u64,
    dir: &std::path::Path,
) -> Outcome<Child> {
    let tag = format!("{process}.{incarnation}");
    let history = dir.join(format!("{tag}.history"));
    let child = Command::new(env::current_exe()?)
        .args(["--client", &tag, url])
        .arg(history)
        .args([(seed ^ (incarnation << 32)).to_string(), hot_names.to_string()])
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}
