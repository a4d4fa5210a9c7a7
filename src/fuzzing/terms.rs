//! The ttl and what follows from it.

use std::time::Duration;

use super::input::Input;
use crate::belief::Belief;
use crate::error::Error;
use crate::store::answers::{duration, interval};
use crate::trust::{Moment, Terms, Window};

/// Terms are accepted if and only if the documentation says so, and then `leasehold.complaint` takes
/// the ttl; the first option that does not fit is named, with what it was. As an interval and back a
/// ttl loses its nanoseconds and nothing else. No window is longer than the ttl less the margin.
pub fn terms(data: &[u8]) {
    let mut input = Input::new(data);
    let ttl = input.duration_near(&[ms(100), SECOND, DAY, Duration::MAX]);
    let edges = [ms(1), ms(10), ttl / 10, ttl / 3, ttl / 2, ttl - ttl / 3, Duration::MAX];
    let margin = input.option(|input| input.duration_near(&edges));
    let beside = margin.unwrap_or((ttl / 10).min(SECOND));
    let most = (ttl.min(DAY) * 3 / 4).saturating_sub(beside);
    let renew_every = input.option(|input| input.duration_near(&[ms(10), ttl / 3, most, most, Duration::MAX]));

    let wrong = wrong(ttl, margin, renew_every);
    match (Terms::new(ttl, margin, renew_every), wrong) {
        (Ok(terms), None) => {
            assert_eq!(terms.ttl, ttl);
            assert_eq!(margin.unwrap_or(terms.margin), terms.margin);
            assert_eq!(renew_every.unwrap_or(terms.renew_every), terms.renew_every);
            let sent = interval(ttl);
            assert_eq!((sent.months, sent.days), (0, 0));
            assert!((100_000..=86_400_000_000).contains(&sent.microseconds), "{sent:?}");
            assert_eq!(
                duration(&sent),
                ttl - Duration::from_nanos(u64::from(ttl.subsec_nanos() % 1000))
            );
            windows(&mut input, terms);
        }
        (Err(error), Some((wrong, value))) => {
            let message = error.to_string();
            let Error::InvalidOption { option, problem } = error else {
                panic!("{error:?}");
            };
            assert_eq!(option, wrong, "{problem}");
            assert!(message.contains(&format!("{value:?}")), "{message}");
        }
        (outcome, wrong) => panic!("{outcome:?} for {ttl:?}, {margin:?}, {renew_every:?}, expected {wrong:?}"),
    }
}

/// Whatever interval a server answers with.
fn windows(input: &mut Input<'_>, terms: Terms) {
    let (sent, answered) = (Moment::now(), input.interval());
    let expires_in = duration(&answered);
    let micros = i128::from(answered.days) * 86_400_000_000 + i128::from(answered.microseconds);
    if answered.months == 0 {
        assert!(
            i128::try_from(expires_in.as_micros()).expect("it fits") <= micros.max(0),
            "{answered:?}"
        );
    }
    if (0..=86_400_000_000).contains(&micros) {
        assert_eq!(i128::try_from(expires_in.as_micros()).expect("it fits"), micros);
    }

    let window = Window::new(sent, expires_in, terms.margin);
    let belief = Belief::new(window, None);

    assert!(window.until() <= sent.at + expires_in.saturating_sub(terms.margin));
    assert_eq!(belief.standing().is_some(), belief.loss().is_none());
    assert!(expires_in > terms.margin || belief.standing().is_none());
}

/// The limits of the documentation, in nanoseconds.
fn wrong(ttl: Duration, margin: Option<Duration>, renew_every: Option<Duration>) -> Option<(&'static str, Duration)> {
    const MS: u128 = 1_000_000;
    let (ttl_ns, day_ns) = (ttl.as_nanos(), 86_400_000 * MS);
    if ttl_ns < 100 * MS || ttl_ns > day_ns {
        return Some(("ttl", ttl));
    }
    let margin_ns = margin.map_or((ttl_ns / 10).min(1000 * MS), |margin| margin.as_nanos());
    if let Some(margin) = margin
        && (margin_ns < MS || margin_ns > ttl_ns / 2)
    {
        return Some(("margin", margin));
    }
    let every_ns = renew_every.map_or(ttl_ns / 3, |every| every.as_nanos());
    let fits = every_ns >= 10 * MS && every_ns + margin_ns <= ttl_ns * 3 / 4;
    // What is not given is a third.
    (!fits).then(|| ("renew_every", renew_every.unwrap_or(ttl / 3)))
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
