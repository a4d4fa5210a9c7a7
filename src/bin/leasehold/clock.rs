//! The clock that two processes of a machine share and that goes on while it is suspended.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

/// A point in time, for every process of this machine until it starts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Deadline(Duration);

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
// Elsewhere this one goes on while the machine is suspended.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

impl Deadline {
    pub(crate) fn now() -> Self {
        Self(clock_gettime(CLOCK).expect("there is such a clock").into())
    }

    pub(crate) fn later(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }

    pub(crate) fn earlier(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }

    pub(crate) fn is_over(self) -> bool {
        self <= Self::now()
    }

    /// Waits until then. Timers stand still while a machine is suspended, so it looks now and then.
    pub(crate) async fn come(self) {
        while let Some(left) = self.0.checked_sub(Self::now().0).filter(|left| !left.is_zero()) {
            sleep(left.min(LOOK_EVERY)).await;
        }
    }
}

/// Never, without one.
pub(crate) async fn come(at: Option<Deadline>) {
    match at {
        Some(at) => at.come().await,
        None => std::future::pending().await,
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn comes_at_its_time_and_at_once_when_that_is_over() {
        let begun_at = std::time::Instant::now();

        Deadline::now().later(Duration::from_millis(30)).come().await;
        assert!(begun_at.elapsed() >= Duration::from_millis(30));

        Deadline::now().earlier(Duration::from_secs(1)).come().await;
        assert!(begun_at.elapsed() < Duration::from_secs(1));
    }
}
