//! What the crate tells of itself in numbers, through the facade of the crate `metrics`.
//!
//! A leaf. Whoever sees a fact calls the function that is named for it; without the feature `metrics`
//! it does nothing. What goes up and comes down again is a value, counted for as long as it is there,
//! so that no way out forgets it: a dropped future, a panic, a lost lease, a closed client.
//!
//! Labels are few, and known before the program runs. The name of a lock never becomes one: there is no
//! end to them.

use std::time::Duration;

use crate::error::LossCause;

/// What [`Acquire::class`](crate::Acquire::class) was given; empty when it was not called.
pub(crate) type Class = &'static str;

/// How an acquisition ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    Granted,
    /// Somebody else has the name, and it was not to be waited for.
    Held,
    TimedOut,
    Failed,
}

/// Who refuses a stale holder.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Check {
    /// The fence in the lock's database.
    Fence,
    /// The admission in the resource's.
    Admit,
}

/// An acquisition has ended, so long after it first asked.
pub(crate) fn acquired(class: Class, outcome: Outcome, took: Duration) {
    if matches!(outcome, Outcome::TimedOut) {
        count(WAIT_TIMEOUTS, &[("class", class)]);
    }
    let outcome = match outcome {
        Outcome::Granted => "granted",
        Outcome::Held => "held",
        Outcome::TimedOut => "timed_out",
        Outcome::Failed => "failed",
    };
    observe(ACQUIRE_DURATION, &[("class", class), ("outcome", outcome)], took);
}

/// A waiter was granted the name, so long after it was told that its turn had come.
pub(crate) fn handed_off(class: Class, took: Duration) {
    observe(HANDOFF_DURATION, &[("class", class)], took);
}

/// A renewal went unanswered or found the row locked, and will be tried again.
pub(crate) fn renewal_failed(class: Class) {
    count(RENEWAL_FAILURES, &[("class", class)]);
}

/// A stale holder was kept from writing.
pub(crate) fn fenced(class: Class, check: Check) {
    let check = match check {
        Check::Fence => "fence",
        Check::Admit => "admit",
    };
    count(FENCING_REJECTIONS, &[("class", class), ("check", check)]);
}

/// An acquisition that waits: one of the waiters for as long as it is there.
pub(crate) fn waiting(class: Class) -> Counted {
    Counted::begin(WAITERS, class)
}

/// A lease that is held: one of those until it ends, whoever sees that, or its last trace is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    class: Class,
    counted: Counted,
}

impl Holding {
    pub(crate) fn begin(class: Class) -> Self {
        Self {
            class,
            counted: Counted::begin(LEASES_HELD, class),
        }
    }

    pub(crate) fn let_go(&self) {
        self.counted.end();
    }

    pub(crate) fn lost(&self, cause: LossCause) {
        self.counted.end();
        let cause = match cause {
            LossCause::Expired => "expired",
            LossCause::Superseded => "superseded",
            LossCause::Gone => "gone",
            LossCause::Fenced => "fenced",
            LossCause::HeldAtMost => "held_at_most",
            LossCause::Closed => "closed",
        };
        count(LEASES_LOST, &[("class", self.class), ("cause", cause)]);
    }
}

/// Counted in a gauge until it is ended or dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    /// The very gauge that was counted up: a recorder that was installed since knows nothing of it.
    #[cfg(feature = "metrics")]
    gauge: metrics::Gauge,
    #[cfg(feature = "metrics")]
    has_ended: std::sync::atomic::AtomicBool,
}

#[cfg(feature = "metrics")]
impl Counted {
    fn begin(metric: &'static str, class: Class) -> Self {
        let gauge = metrics::gauge!(metric, "class" => class);
        gauge.increment(1.0);
        Self {
            gauge,
            has_ended: false.into(),
        }
    }

    fn end(&self) {
        if !self.has_ended.swap(true, std::sync::atomic::Ordering::AcqRel) {
            self.gauge.decrement(1.0);
        }
    }
}

#[cfg(not(feature = "metrics"))]
impl Counted {
    fn begin(_: &'static str, _: Class) -> Self {
        Self {}
    }

    fn end(&self) {}
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.end();
    }
}

type Label = (&'static str, &'static str);

fn count(metric: &'static str, labels: &[Label]) {
    #[cfg(feature = "metrics")]
    metrics::counter!(metric, labels).increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (metric, labels);
}

fn observe(metric: &'static str, labels: &[Label], took: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(metric, labels).record(took);
    #[cfg(not(feature = "metrics"))]
    let _ = (metric, labels, took);
}

/// Tells the recorder what the numbers mean. Each client does, when it is first asked for a lease: one
/// that was made before the recorder was installed comes in time.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    {
        use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

        describe_histogram!(
            ACQUIRE_DURATION,
            Unit::Seconds,
            "How long acquisitions took from their first question to their end, by outcome."
        );
        describe_histogram!(
            HANDOFF_DURATION,
            Unit::Seconds,
            "How long it took until a waiter who was told that its turn had come was granted the name."
        );
        describe_gauge!(
            WAITERS,
            Unit::Count,
            "Acquisitions that wait for a name somebody else has."
        );
        describe_gauge!(
            LEASES_HELD,
            Unit::Count,
            "Leases that are held: neither let go nor lost."
        );
        describe_counter!(
            WAIT_TIMEOUTS,
            Unit::Count,
            "Waits that came to their limit without a grant."
        );
        describe_counter!(
            RENEWAL_FAILURES,
            Unit::Count,
            "Renewals that went unanswered or found the row locked, and were tried again."
        );
        describe_counter!(
            LEASES_LOST,
            Unit::Count,
            "Leases that ended without a release, by cause."
        );
        describe_counter!(
            FENCING_REJECTIONS,
            Unit::Count,
            "Stale holders that were kept from writing, by the check that refused them."
        );
    }
}

const ACQUIRE_DURATION: &str = "leasehold_acquire_duration_seconds";
const HANDOFF_DURATION: &str = "leasehold_handoff_duration_seconds";
const WAITERS: &str = "leasehold_waiters";
const LEASES_HELD: &str = "leasehold_leases_held";
const WAIT_TIMEOUTS: &str = "leasehold_wait_timeouts_total";
const RENEWAL_FAILURES: &str = "leasehold_renewal_failures_total";
const LEASES_LOST: &str = "leasehold_leases_lost_total";
const FENCING_REJECTIONS: &str = "leasehold_fencing_rejections_total";
