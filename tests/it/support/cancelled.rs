//! Futures that are dropped before they are done, at a point that is chosen.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime};

/// When a future is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Drop {
    /// The moment its nth poll has found it pending.
    Pending(u32),
    /// After its nth poll, once it was woken again: what it waited for has come, and is not taken.
    Woken(u32),
    /// When this long has passed.
    After(Duration),
}

/// Runs `future` and drops it as `when` says. `None` when it was dropped, its output when it was
/// done before.
pub(crate) async fn dropped<T>(when: Drop, future: impl Future<Output = T>) -> Option<T> {
    if let Drop::After(limit) = when {
        return tokio::time::timeout(limit, future).await.ok();
    }
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if matches!(when, Drop::Woken(after) if polls >= after) {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        polls += 1;
        match when {
            Drop::Pending(after) if polls >= after => Poll::Ready(None),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Random numbers, and the seed they came from when the test fails.
pub(crate) struct Rng {
    seed: u64,
    state: u64,
}

impl Rng {
    /// Seeded with `LEASEHOLD_SEED`, else with the time.
    pub(crate) fn new() -> Self {
        let seed = std::env::var("LEASEHOLD_SEED")
            .ok()
            .map(|seed| seed.parse().expect("LEASEHOLD_SEED is a number"))
            .unwrap_or_else(|| {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                u64::try_from(now.expect("it is after 1970").as_nanos() & u128::from(u64::MAX)).expect("masked")
            });
        Self { seed, state: seed | 1 }
    }

    /// SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One for somebody else, who draws from it at his own pace.
    pub(crate) fn fork(&mut self) -> Self {
        let state = self.next() | 1;
        Self { seed: self.seed, state }
    }

    pub(crate) fn in_range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// Up to `most`, and more often little than much.
    pub(crate) fn pause(&mut self, most: Duration) -> Duration {
        let share = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        most.mul_f64(share * share)
    }
}

impl std::ops::Drop for Rng {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to try this again: LEASEHOLD_SEED={}", self.seed);
        }
    }
}
