//! What holds of the heartbeat, whatever its period and however slowly it is answered.

use proptest::prelude::*;
use sqlx::postgres::PgPoolOptions;

use super::*;
use crate::lane::Request;
use crate::store::HeldBy;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn heartbeats_come_once_a_period_or_once_the_last_is_answered_and_end_with_the_last_waiter(
        every in 100..=300_000_u64,
        answers in proptest::collection::vec(0..3000_u64, 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime can be had").block_on(async move {
            let (lane, mut requests) = Lane::scripted();
            let every = Duration::from_millis(every);
            let options = QueueOptions {
                wakeup: Wakeup::Poll,
                listen_at: None,
                is_pooled: false,
                heartbeat_every: every,
            };
            let pool = PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new_without_pgpass());
            let queue = Queue::start(lane, pool, options);
            // Two may be missed.
            prop_assert_eq!(queue.client.ttl, every * 3);

            let mut turn = queue.turn(OwnerToken::random(), LockName::new("a").expect("it is short"));
            turn.asks();
            prop_assert!(turn.learn(&queued()));
            let mut last = Instant::now();
            let mut slow = Duration::ZERO;
            for share in answers {
                let Some(Request::Heartbeat(heartbeat)) = requests.recv().await else {
                    panic!("a heartbeat was expected");
                };
                let (now, expected) = (Instant::now(), last + every.max(slow));
                // The paused clock moves by whole milliseconds.
                prop_assert!(now >= expected && now <= expected + Duration::from_millis(2), "{:?}", now - last);
                (last, slow) = (now, every * u32::try_from(share).expect("it is small") / 1000);
                tokio::time::sleep(slow).await;
                prop_assert!(requests.try_recv().is_err(), "the last one is not answered yet");
                drop(heartbeat);
            }

            drop(turn);
            let mut late = 0;
            while let Ok(Some(request)) = tokio::time::timeout(every * 10, requests.recv()).await {
                late += u32::from(matches!(request, Request::Heartbeat(_)));
            }
            prop_assert_eq!(late, 0, "nobody waits");
            Ok(())
        })?;
    }
}

fn queued() -> NotGranted {
    NotGranted {
        reason: Reason::Queued,
        held_by: HeldBy::default(),
        ahead: 1,
        ticket: Some(7),
    }
}
