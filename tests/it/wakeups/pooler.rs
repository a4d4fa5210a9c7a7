//! PgBouncer in transaction mode takes a `listen` and delivers nothing.

use std::time::Duration;

use leasehold_testkit::{Cluster, FaultProxy, PgBouncer, eventually};
use tokio::time::Instant;

use super::{NO_BEAT, QUICK_BEAT, Waiting, hand_off, recoveries, url, warnings};
use crate::support::faults::pgbouncer;
use crate::support::heard::Heard;
use crate::support::{SOON, TestDb};

#[tokio::test]
async fn waiters_behind_a_pooler_are_served_by_the_heartbeat_after_one_warning() {
    let Some(pgbouncer) = pgbouncer().await else { return };
    let (heard, _listening) = Heard::listen();
    let db = TestDb::shared().await;
    let proxy = proxy(&pgbouncer, &db);
    let behind = TestDb::with(proxy.options(&db.options)).builder().pooler(true);
    let leases = behind.heartbeat_every(QUICK_BEAT).build().unwrap();

    for _ in 0..2 {
        let mut waiting = Vec::new();
        for _ in 0..3 {
            waiting.push(Waiting::begin(&db, &leases).await);
        }
        for waiting in waiting {
            let took = waiting.hand_off().await;
            assert!(took < QUICK_BEAT * 10, "{took:?}");
        }
    }

    assert_eq!(warnings(&heard), 1);
    assert_eq!(heard.louder_than_debug().len(), 1, "{:?}", heard.louder_than_debug());
    assert_eq!(proxy.accepted(), 1, "there is the lane and nothing else");
}

#[tokio::test]
async fn waiters_behind_a_pooler_are_notified_through_a_listener_url_past_it() {
    let Some(pgbouncer) = pgbouncer().await else { return };
    let (heard, _listening) = Heard::listen();
    let db = TestDb::shared().await;
    let (to_pooler, to_server) = (
        proxy(&pgbouncer, &db),
        FaultProxy::start(Cluster::shared().await.addr()),
    );
    let behind = TestDb::with(to_pooler.options(&db.options))
        .builder()
        .pooler(!pgbouncer.keeps_statements());
    let leases = behind
        .listener_url(url(&TestDb::with(to_server.options(&db.options))))
        .heartbeat_every(NO_BEAT)
        .build()
        .unwrap();

    for _ in 0..5 {
        let took = hand_off(&db, &leases).await;
        assert!(took < Duration::from_secs(1), "{took:?}");
    }

    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
    assert_eq!((to_pooler.accepted(), to_server.accepted()), (1, 1));
}

#[tokio::test]
async fn listener_behind_a_pooler_is_found_out_to_be_deaf_and_tried_again_now_and_then() {
    let Some(pgbouncer) = pgbouncer().await else { return };
    let (heard, _listening) = Heard::listen();
    let db = TestDb::shared().await;
    let to_pooler = proxy(&pgbouncer, &db);
    let leases = TestDb::with(db.options.clone())
        .builder()
        .listener_url(url(&TestDb::with(to_pooler.options(&db.options))))
        .heartbeat_every(QUICK_BEAT)
        .build()
        .unwrap();
    let began_at = Instant::now();

    // Nobody has come to harm by then.
    let waiting = Waiting::begin(&db, &leases).await;
    eventually(SOON, "the listener is given up", async || warnings(&heard) > 0).await;
    let mut longest = waiting.hand_off().await;
    eventually(SOON, "it is opened again", async || {
        longest = longest.max(hand_off(&db, &leases).await);
        to_pooler.accepted() > 1
    })
    .await;

    assert!(longest < QUICK_BEAT * 10, "{longest:?}");
    assert_eq!((warnings(&heard), recoveries(&heard)), (1, 0));
    assert_eq!(heard.louder_than_debug().len(), 1, "{:?}", heard.louder_than_debug());
    // Each is listened to for two seconds before it is given up.
    assert!(to_pooler.accepted() <= 1 + began_at.elapsed().as_secs() / 2);
}

fn proxy(pgbouncer: &PgBouncer, db: &TestDb) -> FaultProxy {
    FaultProxy::start(([127, 0, 0, 1], pgbouncer.options(&db.options).get_port()).into())
}
