//! What holds of the schedule, whatever the terms and however a lease's renewals fare.

use proptest::prelude::*;
use tokio::time::advance;

use super::*;
use crate::lane::Request;

/// Terms of short leases above all, for which every cap and floor comes to bear.
fn terms() -> impl Strategy<Value = Terms> {
    let ttl = prop_oneof![4 => 100..3_000_u64, 2 => 100..30_000_u64, 1 => 100..=86_400_000_u64];
    (ttl, 0..1000_u64, 0..1000_u64).prop_filter_map("they fit", |(ttl, margin, renew_every)| {
        let of = |share| Duration::from_millis(ttl * share / 1000);
        Terms::new(Duration::from_millis(ttl), Some(of(margin / 2)), Some(of(renew_every))).ok()
    })
}

#[derive(Debug, Clone, Copy)]
enum Fares {
    /// Confirmed after this share of what was left of the window, in thousandths.
    Renewed(u32),
    Busy,
    Unanswered,
}

fn fares() -> impl Strategy<Value = Fares> {
    prop_oneof![
        2 => (0..1000_u32).prop_map(Fares::Renewed),
        1 => Just(Fares::Busy),
        2 => Just(Fares::Unanswered),
    ]
}

fn paused<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime can be had").block_on(test)
}

fn entry(terms: Terms, age: Duration) -> Entry {
    let mut window = Window::new(Moment::now(), terms.ttl, terms.margin);
    let adopted_at = window.attempted_at() - age.min(Duration::from_secs(1));
    if age.is_zero() {
        window = window.ending_by(None);
    }
    Entry {
        due_at: Some(adopted_at + terms.renew_every),
        failures: 0,
        waiting: Vec::new(),
        held: Held {
            name: LockName::new("invoice:842").expect("it is short"),
            owner: OwnerToken::random(),
            token: FencingToken::new(41),
            terms,
            belief: Arc::new(Belief::new(window, None)),
            is_manual: false,
            hold_at_least: Duration::ZERO,
            class: "",
        },
    }
}

proptest! {
    #[test]
    fn renewals_are_asked_for_in_time_and_again_after_a_bounded_pause(
        terms in terms(),
        fares in proptest::collection::vec(fares(), 1..60),
    ) {
        paused(async move {
            let mut entry = entry(terms, Duration::ZERO);
            let most = (terms.renew_every / 4).min(Duration::from_millis(500));
            for fares in fares {
                let (now, due_at) = (Instant::now(), entry.due_at.expect("it is not under way"));
                let Some(window) = entry.held.belief.window() else {
                    // Over, and nobody is asked any more.
                    prop_assert!(!entry.is_alive(Moment::now()) && entry.wake_at(Moment::now()).is_none());
                    return Ok(());
                };
                // Looked at no later than it is due, and than the window ends.
                let wake_at = entry.wake_at(Moment::now()).expect("it is held");
                prop_assert!(wake_at <= due_at.max(now) && wake_at <= window.until());
                prop_assert!(wake_at <= now + Duration::from_millis(500));
                prop_assert_eq!(wake_at, due_at.min(window.until()).min(now + Duration::from_millis(500)));
                advance(due_at.saturating_duration_since(now)).await;
                if entry.held.belief.window().is_none() {
                    prop_assert!(due_at >= window.until(), "asked in time");
                    return Ok(());
                }
                let attempted = Moment::now();
                let asked_at = attempted.at;
                prop_assert!(entry.is_due(asked_at, attempted));
                prop_assert!(due_at <= now || !entry.is_due(asked_at - Duration::from_millis(1), attempted));

                let left = window.until() - asked_at;
                let patience = entry.request(attempted).patience;
                prop_assert!(patience <= (left / 3).max(Duration::from_millis(50)) && patience <= Duration::from_secs(5));
                prop_assert!(patience >= (left / 3).min(Duration::from_secs(5)));
                entry.due_at = None;
                prop_assert!(!entry.is_due(asked_at, attempted), "it is under way");
                match fares {
                    Fares::Renewed(share) => {
                        advance((left * share / 1000).min(patience)).await;
                        let is_in_time = entry.held.belief.standing().is_some();
                        entry.hear(attempted, Ok(RenewOutcome::Renewed { expires_in: terms.ttl }));
                        if is_in_time {
                            let until = entry.held.belief.window().expect("it is held").until();
                            prop_assert_eq!(until, attempted.at + terms.ttl - terms.margin);
                            // Counted from when it was asked for, with a quarter of the ttl left to try again.
                            let due_at = entry.due_at.expect("it is answered");
                            prop_assert_eq!(due_at, attempted.at + terms.renew_every);
                            prop_assert!(until - due_at >= terms.ttl / 4 - Duration::from_nanos(1));
                            prop_assert_eq!(entry.failures, 0);
                        }
                    }
                    Fares::Busy | Fares::Unanswered => {
                        let failures = entry.failures;
                        let outcome = match fares {
                            Fares::Busy => Ok(RenewOutcome::Busy),
                            _ => Err(Arc::new(sqlx::Error::WorkerCrashed)),
                        };
                        entry.hear(attempted, outcome);
                        let pause = entry.due_at.expect("it is answered") - Instant::now();
                        let ceiling = Duration::from_millis(5) * 2_u32.pow(failures.min(20));
                        prop_assert!(pause <= most && pause <= ceiling, "{:?} after {} failures", pause, failures);
                        prop_assert_eq!(entry.failures, failures + 1);
                        prop_assert_eq!(entry.held.belief.window().expect("nothing has passed").until(), window.until());
                    }
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn one_request_takes_all_that_is_due_within_half_a_period_when_one_is_due_and_none_otherwise(
        all in proptest::collection::vec((terms(), 0..1000_u64), 1..20),
        pass in 0..20_000_u64,
    ) {
        paused(async move {
            let (lane, mut requests) = Lane::scripted();
            let (_inbox, commands) = mpsc::unbounded_channel();
            let mut task = Task::new(lane, commands);
            for (terms, age) in all {
                let entry = entry(terms, Duration::from_millis(age));
                task.entries.insert(entry.held.owner, entry);
            }
            advance(Duration::from_millis(pass)).await;
            let now = Instant::now();
            let alive = || task.entries.values().filter(|entry| entry.held.belief.loss().is_none());
            let due_in = |entry: &Entry, most: Duration| entry.due_at.expect("none is under way") <= now + most;
            let mut expected: Vec<_> = alive()
                .filter(|entry| due_in(entry, entry.held.terms.renew_every / 2))
                .map(|entry| entry.held.owner)
                .collect();
            if !alive().any(|entry| due_in(entry, Duration::ZERO)) {
                expected.clear();
            }

            task.renew_due();

            let mut asked = Vec::new();
            while let Ok(Request::Renew { leases, .. }) = requests.try_recv() {
                prop_assert!(asked.is_empty(), "in one request");
                asked = leases.iter().map(|lease| lease.args.owner).collect();
            }
            expected.sort();
            asked.sort();
            prop_assert_eq!(asked, expected);
            // It looks again when the next is due, and at every window's end.
            let now = Moment::now();
            let next = task.entries.values().filter_map(|entry| entry.wake_at(now)).min();
            prop_assert_eq!(task.wake_at, next);
            prop_assert!(task.entries.values().all(|entry| entry.held.belief.loss().is_none()), "what is lost is buried");
            Ok(())
        })?;
    }
}
