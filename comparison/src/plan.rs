//! How much of everything is measured: the whole, or a first look.

use std::env;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lap::Window;
use crate::peer::Outcome;

#[derive(Debug, Clone)]
pub struct Plan {
    pub is_quick: bool,
    /// The letters of the works; empty for all.
    pub only: String,
    pub seed: u64,
    pub rounds: u32,
    /// Of what takes long by itself: held leases and idle waiters.
    pub slow_rounds: u32,
    /// A lap of cycles, misses or writes.
    pub lap: Window,
    /// How long turns are taken.
    pub turns: Duration,
    /// The lengths of a line: for those that are told, and for those that look again and again.
    pub lines: &'static [usize],
    pub polled_lines: &'static [usize],
    /// How many leases are held, and for how long they are watched: a renewal period or more.
    pub held: &'static [usize],
    pub held_for: Duration,
    pub waiters: &'static [usize],
    pub waiting_for: Duration,
    /// Rows of other leases.
    pub others: &'static [u64],
    pub cycles: usize,
    pub snapshot: Duration,
}

impl Plan {
    /// From the environment: `QUICK`, `ONLY` with letters, `SEED`.
    pub fn from_environment() -> Outcome<Self> {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let mut plan = match set("QUICK") {
            Some(quick) if quick != "0" => Self::quick(),
            _ => Self::whole(),
        };
        plan.only = set("ONLY").unwrap_or_default().to_uppercase();
        plan.seed = match set("SEED") {
            Some(seed) => seed.parse()?,
            None => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        };
        Ok(plan)
    }

    pub fn includes(&self, work: char) -> bool {
        self.only.is_empty() || self.only.contains(work)
    }

    pub fn whole() -> Self {
        Self {
            is_quick: false,
            only: String::new(),
            seed: 0,
            rounds: 5,
            slow_rounds: 3,
            lap: window(500, 2000),
            turns: Duration::from_secs(5),
            lines: &[2, 8, 64, 512],
            polled_lines: &[2, 8, 64, 512],
            held: &[1000, 10_000],
            held_for: Duration::from_secs(30),
            waiters: &[10, 100, 1000],
            waiting_for: Duration::from_secs(10),
            others: &[1, 10_000, 1_000_000],
            cycles: 1_000_000,
            snapshot: Duration::from_secs(60),
        }
    }

    fn quick() -> Self {
        Self {
            is_quick: true,
            rounds: 3,
            slow_rounds: 1,
            lap: window(100, 250),
            turns: Duration::from_millis(700),
            polled_lines: &[2],
            held: &[10_000],
            held_for: Duration::from_secs(10),
            waiters: &[1000],
            waiting_for: Duration::from_secs(4),
            others: &[1, 10_000, 1_000_000],
            cycles: 20_000,
            snapshot: Duration::from_secs(6),
            ..Self::whole()
        }
    }
}

fn window(warm_up: u64, counted: u64) -> Window {
    Window {
        warm_up: Duration::from_millis(warm_up),
        counted: Duration::from_millis(counted),
    }
}
