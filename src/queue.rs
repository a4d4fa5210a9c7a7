//! Waiting for a name that somebody else holds.
//!
//! Until the queue in the database exists, waiting is asking again: after a backoff with full
//! jitter that grows to a bound, or when the present lease runs out, whichever is sooner.
//! Whoever waits knows nothing of this: it asks for its [`Turn`] to ask again.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::trust::{full_jitter, random};

/// One waiter's place: when to ask again.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    held: u32,
    busy: u32,
}

impl Turn {
    /// Waits to ask again for a name that is held for `expires_in` more, or pinned.
    pub(crate) async fn after_held(&mut self, expires_in: Option<Duration>, deadline: Option<Instant>) {
        self.busy = 0;
        let pause = full_jitter(HELD_BASE, HELD_CAP, self.held, random());
        self.held = self.held.saturating_add(1);
        // A little late rather than a little early: early costs one more question.
        let runs_out = expires_in.map(|left| left + full_jitter(BUSY_BASE, BUSY_CAP, 2, random()));
        pause_for(runs_out.map_or(pause, |runs_out| pause.min(runs_out)), deadline).await;
    }

    /// Waits to ask again for a name whose row was locked by something that passes in a moment.
    pub(crate) async fn after_busy(&mut self, deadline: Option<Instant>) {
        let pause = full_jitter(BUSY_BASE, BUSY_CAP, self.busy, random());
        self.busy = self.busy.saturating_add(1);
        pause_for(pause, deadline).await;
    }
}

async fn pause_for(pause: Duration, deadline: Option<Instant>) {
    let until = Instant::now() + pause;
    sleep_until(deadline.map_or(until, |deadline| deadline.min(until))).await;
}

const HELD_BASE: Duration = Duration::from_millis(10);
const HELD_CAP: Duration = Duration::from_millis(500);
const BUSY_BASE: Duration = Duration::from_millis(1);
const BUSY_CAP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waiting_never_outlasts_the_deadline_or_the_bound() {
        let mut turn = Turn::default();
        for _ in 0..50 {
            let asked_at = Instant::now();
            turn.after_held(Some(Duration::from_secs(60)), None).await;
            assert!(asked_at.elapsed() <= HELD_CAP + Duration::from_millis(1));
        }

        let deadline = Instant::now() + Duration::from_millis(3);
        turn.after_held(None, Some(deadline)).await;

        assert!(Instant::now() <= deadline + Duration::from_millis(1));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_soon_after_the_present_lease_runs_out() {
        let mut turn = Turn { held: 30, busy: 0 };
        let asked_at = Instant::now();

        turn.after_held(Some(Duration::ZERO), None).await;

        assert!(asked_at.elapsed() <= BUSY_CAP);
    }
}
