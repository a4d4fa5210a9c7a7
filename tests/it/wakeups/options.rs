//! The options of waking: what they refuse, what they do not show, and doing without a listener.

use std::time::Duration;

use leasehold::{Error, LeaseClient, LeaseClientBuilder, Wakeup};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::{QUICK_BEAT, Waiting};
use crate::support::TestDb;
use crate::support::heard::Heard;

#[tokio::test]
async fn polling_opens_no_listener_and_serves_at_the_pace_of_the_heartbeat() {
    let (heard, _listening) = Heard::listen();
    let db = TestDb::shared().await;
    let proxy = db.proxy();
    let leases = db.through(&proxy).builder().wakeup(Wakeup::Poll);
    let leases = leases.heartbeat_every(QUICK_BEAT).build().unwrap();

    for _ in 0..2 {
        let (one, other) = (Waiting::begin(&db, &leases).await, Waiting::begin(&db, &leases).await);
        for waiting in [one, other] {
            let took = waiting.hand_off().await;
            assert!(took < QUICK_BEAT * 10, "{took:?}");
        }
    }

    assert_eq!(proxy.accepted(), 1, "there is the lane and nothing else");
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.louder_than_debug());
}

#[tokio::test]
async fn heartbeat_out_of_range_is_refused_by_name() {
    let out_of_range = [
        Duration::ZERO,
        Duration::from_millis(99),
        Duration::from_secs(300) + Duration::from_nanos(1),
        Duration::MAX,
    ];

    for every in out_of_range {
        let refused = builder().heartbeat_every(every).build();
        assert_eq!(refused_option(refused).0, "heartbeat_every", "{every:?}");
    }
    for every in [Duration::from_millis(100), Duration::from_secs(300)] {
        assert!(builder().heartbeat_every(every).build().is_ok(), "{every:?}");
    }
}

#[tokio::test]
async fn listener_url_that_is_none_is_refused_by_name_and_not_shown() {
    for url in [
        "",
        "not a url",
        "host=localhost user=app",
        "mysql://app:s3cret@db/app",
        "postgres://app:s3cret@db:99999/app",
        "postgres://app:s3cret@db/app?sslmode=none",
    ] {
        let refused = builder().listener_url(url).build();
        let (option, shown) = refused_option(refused);
        assert_eq!(option, "listener_url", "{url}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    for url in ["postgres://app:s3cret@db/app", "postgresql://db"] {
        assert!(builder().listener_url(url).build().is_ok(), "{url}");
    }
}

#[tokio::test]
async fn neither_builder_nor_client_shows_a_password() {
    let builder = || builder().listener_url("postgres://app:s3cret@db/app");

    let shown = [
        format!("{:?}", builder()),
        format!("{:#?}", builder()),
        format!("{:?}", builder().build().unwrap()),
        format!("{:?}", builder().build().unwrap().acquire("a")),
    ];

    for shown in shown {
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}

/// Of a pool that never connects: what is checked is checked before any I/O.
fn builder() -> LeaseClientBuilder {
    let options = PgConnectOptions::new_without_pgpass();
    let nowhere = options.host("192.0.2.1").username("app").password("s3cret-pool");
    LeaseClient::builder(PgPoolOptions::new().connect_lazy_with(nowhere))
}

fn refused_option(built: Result<LeaseClient, Error>) -> (&'static str, String) {
    match built {
        Err(error @ Error::InvalidOption { option, .. }) => (option, format!("{error} {error:?}")),
        other => panic!("{other:?}"),
    }
}
