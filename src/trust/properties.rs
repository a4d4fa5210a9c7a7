//! What holds for every window, every terms and every pause, whatever the numbers.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tokio::time::Instant;

use super::{Moment, Standing, Terms, Window, full_jitter};
use crate::error::Error;

/// Up to two days: beyond every ttl, and within what a monotonic clock can count.
fn durations() -> impl Strategy<Value = Duration> {
    (0..172_800_000_000_u64).prop_map(Duration::from_micros)
}

fn after(moment: Moment, monotonic: Duration, wall: Duration) -> Moment {
    Moment {
        at: moment.at + monotonic,
        wall: moment.wall + wall,
    }
}

fn some_moment() -> Moment {
    Moment {
        at: Instant::now(),
        wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
    }
}

proptest! {
    #[test]
    fn window_never_reaches_beyond_the_ttl_less_the_margin(
        expires_in in durations(),
        margin in durations(),
        limit in proptest::option::of(durations()),
    ) {
        let sent = some_moment();
        let window = Window::new(sent, expires_in, margin).ending_by(limit.map(|limit| sent.at + limit));

        prop_assert!(window.until() <= sent.at + expires_in.saturating_sub(margin));
        if let Some(limit) = limit {
            prop_assert!(window.until() <= sent.at + limit);
        }
    }

    #[test]
    fn nobody_holds_at_or_after_the_end_of_the_window_whatever_the_wall_clock_says(
        expires_in in durations(),
        margin in durations(),
        late in durations(),
        wall in durations(),
    ) {
        let sent = some_moment();
        let window = Window::new(sent, expires_in, margin);
        let end = window.until() - sent.at;

        prop_assert_eq!(window.standing(after(sent, end + late, wall)), Standing::Over);
    }

    #[test]
    fn doubt_and_the_end_are_for_good_while_both_clocks_go_on(
        expires_in in durations(),
        first in (durations(), durations()),
        later in (durations(), durations()),
    ) {
        let sent = some_moment();
        let window = Window::new(sent, expires_in, Duration::ZERO);
        let then = after(sent, first.0, first.1);
        let rank = |standing| match standing {
            Standing::Held => 0,
            Standing::Suspect => 1,
            Standing::Over => 2,
        };

        let (before, now) = (window.standing(then), window.standing(after(then, later.0, later.1)));

        prop_assert!(rank(before) <= rank(now), "{:?}, then {:?}", before, now);
    }

    #[test]
    fn terms_that_are_accepted_leave_room_for_a_second_try_and_the_others_name_an_option(
        ttl in durations(),
        margin in proptest::option::of(durations()),
        renew_every in proptest::option::of(durations()),
    ) {
        match Terms::new(ttl, margin, renew_every) {
            Ok(terms) => {
                prop_assert!(terms.ttl >= Duration::from_millis(100) && terms.ttl <= Duration::from_secs(86_400));
                prop_assert!(terms.margin >= Duration::from_millis(1) && terms.margin <= ttl / 2);
                prop_assert!(terms.renew_every >= Duration::from_millis(10));
                prop_assert!(terms.renew_every + terms.margin <= ttl * 3 / 4);
                // Nothing is changed silently.
                prop_assert!(margin.is_none_or(|given| given == terms.margin));
                prop_assert!(renew_every.is_none_or(|given| given == terms.renew_every));
            }
            Err(Error::InvalidOption { option, .. }) => {
                prop_assert!(["ttl", "margin", "renew_every"].contains(&option));
            }
            Err(other) => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn defaults_fit_every_ttl_in_range(ttl in 100_000..=86_400_000_000_u64) {
        prop_assert!(Terms::new(Duration::from_micros(ttl), None, None).is_ok());
    }

    #[test]
    fn jitter_is_never_beyond_its_ceiling_and_grows_with_the_random_bits(
        base in 0..10_000_000_u64,
        cap in 0..10_000_000_u64,
        attempt in any::<u32>(),
        bits in (any::<u64>(), any::<u64>()),
    ) {
        let (base, cap) = (Duration::from_micros(base), Duration::from_micros(cap));
        let (low, high) = (bits.0.min(bits.1), bits.0.max(bits.1));

        let (less, more) = (full_jitter(base, cap, attempt, low), full_jitter(base, cap, attempt, high));

        prop_assert!(less <= more && more <= cap);
        prop_assert!(more <= base.saturating_mul(1_u32.checked_shl(attempt.min(31)).unwrap_or(u32::MAX)));
    }
}
