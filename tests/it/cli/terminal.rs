//! `leasehold run` on a terminal, which util-linux's `script` provides: the command reads it, and the keys that
//! interrupt and stop are its own.

use std::process::Stdio;

use leasehold_testkit::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::{children, leasehold};
use crate::support::{SOON, TestDb, unique_name};

#[tokio::test]
async fn command_reads_the_terminal_and_is_interrupted_by_its_key() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let script =
        "trap 'echo interrupted; exit 5' INT; echo ready; read line; echo got \\$line; while :; do sleep 0.05; done";
    let mut terminal = Terminal::open(&db, &format!("run {name} -- sh -c \"{script}\"; echo ended $?"));
    terminal.shows("ready").await;

    terminal.types("a line\n").await;
    terminal.shows("got a line").await;
    terminal.types("\x03").await;

    terminal.shows("interrupted").await;
    terminal.shows("ended 5").await;
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn terminal_is_the_callers_again_when_the_command_has_ended() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let mut terminal = Terminal::open(&db, &format!("run {name} -- true; read line; echo read $line"));

    terminal.types("more\n").await;

    terminal.shows("read more").await;
}

#[tokio::test]
async fn key_that_stops_stops_the_whole_job_and_the_lease_is_held_on() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let script = "echo ready; read line; echo got $line";
    let mut terminal = Terminal::open_shell(&db);
    terminal
        .types(&format!("$LEASEHOLD run {name} --ttl 2s -- sh -c '{script}'\n"))
        .await;
    terminal.shows("ready\r\n").await;

    terminal.types("\x1a").await;
    terminal.shows("Stopped").await;
    assert!(db.is_held(&name).await);
    terminal.types("fg\n").await;
    terminal.types("a line\n").await;

    terminal.shows("got a line").await;
    terminal.types("exit\n").await;
    eventually(SOON, "it is released", async || !db.is_held(&name).await).await;
}

#[tokio::test]
async fn progress_line_tells_place_and_holder_on_a_terminal_and_is_gone_afterwards() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).holder("somebody").await.unwrap();
    let mut terminal = Terminal::open(&db, &format!("run {name} --wait 1m -- echo done; echo ended $?"));

    terminal.shows("0 ahead, held by somebody").await;
    lease.release().await.unwrap();

    terminal.shows("\r\x1b[Kdone").await;
    terminal.shows("ended 0").await;
}

#[tokio::test]
async fn ls_is_a_table_on_a_terminal_and_a_name_cannot_move_its_cursor() {
    let (db, prefix) = (TestDb::shared().await, uuid::Uuid::new_v4());
    let name = format!("{prefix}:\u{1b}[2J");
    let lease = db.client().acquire(&name).holder("me").await.unwrap();

    let mut terminal = Terminal::open(&db, &format!("ls {prefix}; echo ended $?"));

    terminal.shows("NAME").await;
    terminal.shows("\\u{1b}[2J").await;
    terminal.shows("ended 0").await;
    lease.release().await.unwrap();
}

#[tokio::test]
async fn break_is_carried_out_after_a_yes_and_not_after_anything_else() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).holder("somebody").await.unwrap();

    for (answer, code, is_held) in [("\n", 1, true), ("no\n", 1, true), ("y\n", 0, false)] {
        let mut terminal = Terminal::open(&db, &format!("break {name}; echo ended $?"));
        terminal.shows("held by somebody").await;
        terminal.types(answer).await;
        terminal.shows(&format!("ended {code}")).await;
        assert_eq!(db.is_held(&name).await, is_held, "{answer:?}");
    }
    drop(lease);
}

/// A terminal, and a shell in it.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    screen: ChildStdout,
    /// What it has shown and nobody has looked at yet.
    shown: String,
}

impl Terminal {
    /// With one line for the shell, which begins with the program's arguments.
    fn open(db: &TestDb, line: &str) -> Self {
        Self::of(db, &["-qec", &format!("$LEASEHOLD {line}"), "/dev/null"])
    }

    /// With a shell that has jobs.
    fn open_shell(db: &TestDb) -> Self {
        Self::of(db, &["-qec", "bash --norc -i", "/dev/null"])
    }

    fn of(db: &TestDb, arguments: &[&str]) -> Self {
        let program = leasehold(&db.options);
        let mut script = Command::new("script");
        for (name, value) in program.as_std().get_envs() {
            if let Some(value) = value {
                script.env(name, value);
            }
        }
        let mut script = script
            .args(arguments)
            .env("LEASEHOLD", program.as_std().get_program())
            .env("SHELL", "/bin/sh")
            .env("TERM", "dumb")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("util-linux is there");
        Self {
            keys: script.stdin.take().expect("it is a pipe"),
            screen: script.stdout.take().expect("it is a pipe"),
            script,
            shown: String::new(),
        }
    }

    async fn types(&mut self, keys: &str) {
        self.keys
            .write_all(keys.as_bytes())
            .await
            .expect("the terminal is open");
    }

    /// Waits until this is on the screen, after what was waited for before.
    async fn shows(&mut self, what: &str) {
        let shown = timeout(SOON, async {
            loop {
                if let Some(at) = self.shown.find(what) {
                    self.shown.drain(..at + what.len());
                    return true;
                }
                let mut bytes = [0; 1024];
                match self.screen.read(&mut bytes).await.expect("the terminal is open") {
                    0 => return false,
                    read => self.shown.push_str(&String::from_utf8_lossy(&bytes[..read])),
                }
            }
        });
        let is_shown = shown.await.unwrap_or(false);
        assert!(is_shown, "{what:?} is not in {:?}", self.shown);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let pid = self.script.id();
        pid.iter().flat_map(|pid| children(*pid)).for_each(|child| {
            leasehold_testkit::signals::kill(child);
        });
    }
}
