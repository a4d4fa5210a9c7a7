//! How long this process may act on a grant, when it renews, and how it backs off.
//!
//! Pure: every instant is passed in. The trust window is counted from *before* the request left
//! and ends a margin before the database's ttl does, so a slow answer only shortens it. It runs
//! on the monotonic clock; the wall clock can only cast doubt (it runs on while a machine is
//! suspended, which the monotonic clock of Linux does not show).

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::error::Error;

/// One point in time on both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    wall: SystemTime,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}

/// How long, from when, a grant may be acted on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    attempted: Moment,
    until: Instant,
}

/// What the clocks say of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Both clocks are inside the window.
    Held,
    /// The wall clock is past it, the monotonic clock is not: the machine was suspended, or the
    /// wall clock was stepped. Only an answer from the database can tell.
    Suspect,
    /// The window is over.
    Over,
}

impl Window {
    /// The window of a request that left at `attempted` and was answered with `expires_in`.
    pub(crate) fn new(attempted: Moment, expires_in: Duration, margin: Duration) -> Self {
        Self {
            attempted,
            until: attempted.at + expires_in.saturating_sub(margin),
        }
    }

    pub(crate) fn ending_by(self, limit: Option<Instant>) -> Self {
        Self {
            until: limit.map_or(self.until, |limit| limit.min(self.until)),
            ..self
        }
    }

    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    pub(crate) fn attempted_at(&self) -> Instant {
        self.attempted.at
    }

    pub(crate) fn standing(&self, now: Moment) -> Standing {
        if now.at >= self.until {
            return Standing::Over;
        }
        let length = self.until - self.attempted.at;
        match now.wall.duration_since(self.attempted.wall) {
            Ok(elapsed) if elapsed >= length => Standing::Suspect,
            _ => Standing::Held,
        }
    }
}

/// The ttl of a lease with what follows from it, checked against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) margin: Duration,
    pub(crate) renew_every: Duration,
}

impl Terms {
    /// What is not given follows from the ttl: a margin of a tenth, at most a second; a renewal
    /// every third.
    pub(crate) fn new(ttl: Duration, margin: Option<Duration>, renew_every: Option<Duration>) -> Result<Self, Error> {
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return Err(Error::InvalidOption {
                option: "ttl",
                problem: format!("{ttl:?} is not between 100 ms and 24 h"),
            });
        }
        let terms = Self {
            ttl,
            margin: margin.unwrap_or((ttl / 10).min(Duration::from_secs(1))),
            renew_every: renew_every.unwrap_or(ttl / 3),
        };
        if terms.margin < Duration::from_millis(1) || terms.margin > ttl / 2 {
            return Err(Error::InvalidOption {
                option: "margin",
                problem: format!("{:?} is not between 1 ms and half of the ttl, {ttl:?}", terms.margin),
            });
        }
        if terms.renew_every < MIN_RENEW_EVERY || terms.renew_every.saturating_add(terms.margin) > ttl * 3 / 4 {
            return Err(Error::InvalidOption {
                option: "renew_every",
                problem: format!(
                    "{:?} is not between 10 ms and what three quarters of the ttl, {ttl:?}, leave beside the margin, {:?}",
                    terms.renew_every, terms.margin
                ),
            });
        }
        Ok(terms)
    }
}

/// Full jitter, after "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): anything
/// from nothing to a ceiling that doubles with each attempt. `random` is uniform over `u64`.
pub(crate) fn full_jitter(base: Duration, cap: Duration, attempt: u32, random: u64) -> Duration {
    let ceiling = base
        .saturating_mul(1_u32.checked_shl(attempt.min(31)).unwrap_or(u32::MAX))
        .min(cap);
    let share = (random >> 11) as f64 / (1_u64 << 53) as f64;
    ceiling.mul_f64(share)
}

/// Random bits for jitter. Of a random UUID, the half without version bits, less the variant's two.
pub(crate) fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1 << 2
}

const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const MIN_RENEW_EVERY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn after(moment: Moment, monotonic: Duration, wall: Duration) -> Moment {
        Moment {
            at: moment.at + monotonic,
            wall: moment.wall + wall,
        }
    }

    #[test]
    fn window_ends_a_margin_before_the_ttl_counted_from_the_attempt() {
        let sent = Moment::now();
        let window = Window::new(sent, ms(1000), ms(100));

        assert_eq!(window.until(), sent.at + ms(900));
        assert_eq!(window.standing(after(sent, ms(899), ms(899))), Standing::Held);
        assert_eq!(window.standing(after(sent, ms(900), ms(900))), Standing::Over);
    }

    #[test]
    fn wall_clock_that_ran_ahead_casts_doubt_and_one_that_ran_back_does_not() {
        let sent = Moment::now();
        let window = Window::new(sent, ms(1000), ms(100));

        assert_eq!(window.standing(after(sent, ms(10), ms(900))), Standing::Suspect);
        assert_eq!(window.standing(after(sent, ms(10), ms(800))), Standing::Held);
        let stepped_back = Moment {
            at: sent.at + ms(10),
            wall: sent.wall - ms(5000),
        };
        assert_eq!(window.standing(stepped_back), Standing::Held);
    }

    #[test]
    fn window_is_cut_by_an_earlier_limit_only() {
        let sent = Moment::now();
        let window = Window::new(sent, ms(1000), ms(100));

        assert_eq!(window.ending_by(Some(sent.at + ms(200))).until(), sent.at + ms(200));
        assert_eq!(window.ending_by(Some(sent.at + ms(2000))).until(), sent.at + ms(900));
        assert_eq!(window.ending_by(None).until(), sent.at + ms(900));
    }

    #[test]
    fn ttl_lies_between_100_ms_and_24_h() {
        let day = Duration::from_secs(86_400);
        for (ttl, valid) in [
            (Duration::ZERO, false),
            (Duration::from_nanos(1), false),
            (ms(99), false),
            (ms(100), true),
            (day, true),
            (day + Duration::from_nanos(1), false),
            (Duration::MAX, false),
        ] {
            assert_eq!(Terms::new(ttl, None, None).is_ok(), valid, "{ttl:?}");
        }
    }

    #[test]
    fn margin_and_renewals_must_fit_the_ttl() {
        assert!(Terms::new(ms(1000), Some(ms(600)), None).is_err());
        assert!(Terms::new(ms(1000), Some(Duration::ZERO), None).is_err());
        assert!(Terms::new(ms(1000), None, Some(ms(700))).is_err());
        assert!(Terms::new(ms(1000), None, Some(ms(1))).is_err());
        assert!(Terms::new(ms(1000), None, Some(Duration::MAX)).is_err());
        assert!(Terms::new(ms(1000), Some(ms(50)), Some(ms(500))).is_ok());
    }

    #[test]
    fn jitter_stays_below_a_ceiling_that_doubles_up_to_the_cap() {
        for attempt in 0..64 {
            let ceiling = full_jitter(ms(1), ms(50), attempt, u64::MAX);
            assert!(ceiling <= ms(50).min(ms(1 << attempt.min(10))));
            assert_eq!(full_jitter(ms(1), ms(50), attempt, 0), Duration::ZERO);
        }
        assert!(full_jitter(ms(1), ms(50), 63, u64::MAX) > ms(49));
    }
}
