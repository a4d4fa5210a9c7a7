//! What the reader sees: who did what and when, and under which fencing token.

use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Prints the events of one run, each with the time since the run began.
pub struct Timeline {
    began_at: Instant,
    paint: Paint,
}

/// How an event looks.
#[derive(Clone, Copy)]
pub enum Mark {
    Plain,
    Stopped,
    Continued,
    Good,
    Bad,
}

impl Timeline {
    pub fn begin(title: &str, statement: &str) -> Self {
        let paint = Paint::for_stdout();
        println!("\n{}\n  {statement}\n", paint.with("1", title));
        println!("     time   worker  {:<WIDTH$}  fencing token", "what happens");
        Self {
            began_at: Instant::now(),
            paint,
        }
    }

    pub fn event(&self, worker: &str, mark: Mark, what: impl Display) {
        self.print(worker, mark, &what.to_string(), "");
    }

    pub fn event_with(&self, worker: &str, mark: Mark, token: i64, what: impl Display) {
        self.print(worker, mark, &what.to_string(), &token.to_string());
    }

    /// More about the event before.
    pub fn note(&self, text: &str) {
        println!("{:>22}{}", "", self.paint.with("2", text));
    }

    pub fn elapsed(&self) -> Duration {
        self.began_at.elapsed()
    }

    fn print(&self, worker: &str, mark: Mark, what: &str, token: &str) {
        let (sign, style) = match mark {
            Mark::Plain => (' ', "0"),
            Mark::Stopped => ('‖', "33"),
            Mark::Continued => ('▶', "33"),
            Mark::Good => ('✓', "32"),
            Mark::Bad => ('✗', "31"),
        };
        let lane = if worker == "A" { "A   " } else { "   B" };
        let row = format!("{lane} {sign}  {what:<WIDTH$}  {token}");
        let row = self.paint.with(style, row.trim_end());
        println!("  {:>7.3}   {row}", self.elapsed().as_secs_f64());
    }
}

/// Colours, where somebody looks who wants them.
#[derive(Clone, Copy)]
pub struct Paint(bool);

impl Paint {
    pub fn for_stdout() -> Self {
        Self(std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none())
    }

    pub fn with(self, style: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{style}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

const WIDTH: usize = 60;
