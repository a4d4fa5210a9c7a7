//! A listener that is lost or hears nothing is replaced, and the heartbeat serves meanwhile.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use leasehold_testkit::{FaultProxy, eventually};
use tokio::time::Instant;
use uuid::Uuid;

use super::{QUICK_BEAT, SLOW_BEAT, Waiting, hand_off, is_notified, listening, recoveries, url, warnings};
use crate::support::heard::Heard;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn terminated_listener_is_replaced_and_hand_offs_are_notified_again() {
    let (heard, _listening) = Heard::listen();
    let (db, application) = (TestDb::shared().await, format!("wakeups-{}", Uuid::new_v4()));
    let lane = db.proxy();
    let leases = db
        .through(&lane)
        .builder()
        .listener_url(format!("{}&application_name={application}", url(&db)))
        .heartbeat_every(SLOW_BEAT)
        .build()
        .unwrap();
    let waiting = Waiting::begin(&db, &leases).await;
    let first = eventually(SOON, "it listens", async || listening(&db, &application).await.pop()).await;

    let ended: bool = sqlx::query_scalar("select pg_terminate_backend($1, 10000)")
        .bind(first)
        .fetch_one(&db.pool)
        .await
        .unwrap();

    assert!(ended);
    let second = eventually(SOON, "it listens again", async || {
        listening(&db, &application).await.pop()
    });
    assert_ne!(second.await, first);
    eventually(SOON, "it is told that it hears", async || recoveries(&heard) == 1).await;
    waiting.hand_off().await;
    eventually(SOON, "a hand-off is notified", async || {
        is_notified(&db, &leases, &lane).await
    })
    .await;
    assert_eq!((warnings(&heard), recoveries(&heard)), (1, 1));
    assert_eq!(lane.accepted(), 1);
}

#[tokio::test]
async fn refused_listener_leaves_waiters_to_the_heartbeat_until_the_network_is_back() {
    let (heard, _listening) = Heard::listen();
    let scene = Scene::with_beat(SLOW_BEAT).await;
    scene.is_notified_again().await;

    scene.ear.refuse();
    scene.ear.cut();
    let notified = scene.is_notified().await;
    let warned = (warnings(&heard), recoveries(&heard));
    scene.ear.accept();
    eventually(SOON, "notifications come through again", async || {
        // Somebody has to wait for that.
        hand_off(&scene.db, &scene.leases).await;
        recoveries(&heard) > 0
    })
    .await;

    assert!(!notified, "the fault has hit");
    assert_eq!(warned, (1, 0));
    scene.is_notified_again().await;
    assert_eq!((warnings(&heard), recoveries(&heard)), (1, 1));
    assert_eq!(heard.louder_than_debug().len(), 2, "{:?}", heard.louder_than_debug());
    assert_eq!(scene.lane.accepted(), 1);
}

#[tokio::test]
async fn listener_that_is_broken_off_at_once_is_tried_again_ever_more_rarely() {
    let (heard, _listening) = Heard::listen();
    let scene = Scene::with_beat(QUICK_BEAT).await;
    hand_off(&scene.db, &scene.leases).await;
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let nowhere = nobody.local_addr().unwrap();
    drop(nobody);
    let (before, began_at) = (scene.ear.accepted(), Instant::now());

    scene.ear.redirect(nowhere);
    scene.ear.reset();
    while began_at.elapsed() < Duration::from_secs(3) {
        let took = hand_off(&scene.db, &scene.leases).await;
        assert!(took < QUICK_BEAT * 10, "{took:?}");
    }

    let attempts = scene.ear.accepted() - before;
    assert!((1..=12).contains(&attempts), "{attempts} attempts");
    assert_eq!((warnings(&heard), recoveries(&heard)), (1, 0));
    assert_eq!(heard.louder_than_debug().len(), 1, "{:?}", heard.louder_than_debug());
}

#[tokio::test]
async fn listener_in_a_black_hole_is_found_out_and_replaced_and_the_lane_goes_on() {
    let (heard, _listening) = Heard::listen();
    let scene = Scene::with_beat(SLOW_BEAT).await;
    let kept = scene.leases.acquire(unique_name!()).ttl(LONG).await.unwrap();
    scene.is_notified_again().await;

    scene.ear.freeze_existing();
    let notified = scene.is_notified().await;
    eventually(SOON, "the listener is replaced", async || {
        hand_off(&scene.db, &scene.leases).await;
        recoveries(&heard) > 0
    })
    .await;

    assert!(!notified, "the fault has hit");
    scene.is_notified_again().await;
    assert_eq!((warnings(&heard), recoveries(&heard)), (1, 1));
    assert_eq!((scene.ear.accepted(), scene.lane.accepted()), (2, 1));
    kept.renew().await.unwrap();
    assert!(kept.is_held());
}

#[tokio::test]
async fn listener_that_has_heard_its_ping_is_kept_however_quiet_it_is_afterwards() {
    let (heard, _listening) = Heard::listen();
    let db = TestDb::shared().await;
    let ear = db.proxy();
    let mut waiting = Vec::new();
    for _ in 0..CLIENTS {
        let leases = db.builder().listener_url(url(&db.through(&ear)));
        let leases = leases.heartbeat_every(QUICK_BEAT).build().unwrap();
        waiting.push(Waiting::begin(&db, &leases).await);
    }

    // Longer than a ping may take.
    tokio::time::sleep(Duration::from_millis(2500)).await;

    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
    assert_eq!(ear.accepted(), CLIENTS);
    for waiting in waiting {
        waiting.hand_off().await;
    }
}

/// A client whose lane and whose listener each go through a proxy of their own.
struct Scene {
    db: TestDb,
    lane: FaultProxy,
    ear: FaultProxy,
    leases: leasehold::LeaseClient,
}

impl Scene {
    async fn with_beat(every: Duration) -> Self {
        let db = TestDb::shared().await;
        let (lane, ear) = (db.proxy(), db.proxy());
        let leases = db.through(&lane).builder();
        let leases = leases.listener_url(url(&db.through(&ear))).heartbeat_every(every);
        Self {
            leases: leases.build().unwrap(),
            db,
            lane,
            ear,
        }
    }

    async fn is_notified(&self) -> bool {
        is_notified(&self.db, &self.leases, &self.lane).await
    }

    async fn is_notified_again(&self) {
        eventually(SOON, "a hand-off is notified", async || self.is_notified().await).await;
    }
}

const CLIENTS: u64 = 12;
