//! One turn of one worker, as it travels from a process to the one that watches.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Outcome;

/// Times are seconds since 1970, by the clock that all processes of one machine share.
#[derive(Debug, Clone)]
pub struct Turn {
    pub process: usize,
    pub worker: usize,
    pub token: i64,
    pub asked_at: f64,
    pub granted_at: f64,
    pub released_at: f64,
}

pub fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the clock is past 1970").as_secs_f64()
}

/// Nobody holds what another holds, and nobody who came clearly later goes first.
pub fn check(turns: &[Turn]) -> Outcome<()> {
    for pair in turns.windows(2) {
        let [first, next] = pair else { continue };
        if next.token <= first.token || next.granted_at < first.released_at {
            return Err(format!("two holders at a time: {first:?} and {next:?}").into());
        }
    }
    for (number, turn) in turns.iter().enumerate() {
        // To ask takes a moment. Whoever asked that much later stood in line behind.
        let overtaken = turns[number..]
            .iter()
            .find(|later| later.asked_at + MOMENT < turn.asked_at);
        if let Some(overtaken) = overtaken {
            return Err(format!("{turn:?} overtook {overtaken:?}").into());
        }
    }
    Ok(())
}

/// Longer than any question takes to reach the database, shorter than the wait it leads to.
const MOMENT: f64 = 0.25;

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            process,
            worker,
            token,
            asked_at,
            granted_at,
            released_at,
        } = self;
        write!(
            f,
            "{process} {worker} {token} {asked_at:.6} {granted_at:.6} {released_at:.6}"
        )
    }
}

impl FromStr for Turn {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let [process, worker, token, asked_at, granted_at, released_at] = line.split(' ').collect::<Vec<_>>()[..]
        else {
            return Err(format!("not a turn: {line:?}").into());
        };
        Ok(Self {
            process: process.parse()?,
            worker: worker.parse()?,
            token: token.parse()?,
            asked_at: asked_at.parse()?,
            granted_at: granted_at.parse()?,
            released_at: released_at.parse()?,
        })
    }
}
