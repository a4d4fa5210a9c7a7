//! What a client does with another history when it connects, and what it tells.

use leasehold::LeaseClient;
use leasehold_testkit::FaultProxy;
use tracing::Level;

use super::{ANOTHER_SYSTEM, ANOTHER_TIMELINE, jumps, number};
use crate::support::faults::pgbouncer;
use crate::support::heard::Heard;
use crate::support::sql::{ask, grant, run, sessions};
use crate::support::{SOON, TestDb};

#[tokio::test]
async fn first_connection_to_another_server_jumps_though_nothing_is_granted() {
    let db = TestDb::own("epoch_connects").await;
    let (heard, _listening) = Heard::listen();
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, "held", "1 hour").await;
    run(&mut session, ANOTHER_SYSTEM).await;
    let leases = db.client();

    let asked = leases.try_acquire("held").await.unwrap();
    let told = jumps(&mut session).await;
    let lease = leases.try_acquire("free").await.unwrap().unwrap();
    assert!(leases.try_acquire("held").await.unwrap().is_none());

    assert!(asked.is_none());
    let [jump] = &told[..] else { panic!("{told:?}") };
    assert!(jump.reason.starts_with("another system identifier"), "{jump:?}");
    assert_eq!(jump.from_system, Some(42));
    assert_ne!(jump.to_system, Some(42));
    assert!(jump.to_token > held.token && lease.fencing_token().get() > jump.to_token);
    assert_eq!(jumps(&mut session).await.len(), 1);
    assert_eq!(
        warnings(&heard),
        [(
            "the tokens belong to the history of another server".to_owned(),
            ADVANCE.to_owned()
        )]
    );
}

#[tokio::test]
async fn client_tells_of_another_timeline_and_jumps() {
    let db = TestDb::own("epoch_connects_timeline").await;
    let (heard, _listening) = Heard::listen();
    let [mut session] = sessions(&db).await;
    run(&mut session, ANOTHER_TIMELINE).await;

    let lease = db.client().try_acquire("free").await.unwrap().unwrap();

    let told = jumps(&mut session).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(lease.fencing_token().get() > told[0].to_token);
    assert_eq!(
        warnings(&heard),
        [(
            "the tokens belong to the history of another timeline".to_owned(),
            ADVANCE.to_owned()
        )]
    );
}

#[tokio::test]
async fn client_that_finds_nothing_tells_nothing() {
    let db = TestDb::own("epoch_connects_home").await;
    let (heard, _listening) = Heard::listen();

    let lease = db.client().try_acquire("free").await.unwrap().unwrap();

    assert!(lease.is_held());
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.all());
    assert_eq!(heard.told(Level::DEBUG, NOT_LOOKED), 0);
    let [mut session] = sessions(&db).await;
    assert!(jumps(&mut session).await.is_empty());
}

#[tokio::test]
async fn each_new_connection_of_a_client_looks_whose_history_it_has_come_to() {
    let db = TestDb::own("epoch_reconnects").await;
    let proxy = db.proxy();

    looks_on_each_connection(&db, &proxy, db.through(&proxy).client()).await;
}

#[tokio::test]
async fn each_new_connection_through_a_pooler_looks_whose_history_it_has_come_to() {
    let Some(pgbouncer) = pgbouncer().await else { return };
    let db = TestDb::own("epoch_pooler").await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], pgbouncer.options(&db.options).get_port()).into());
    let behind = TestDb::with(proxy.options(&db.options));
    let leases = behind.builder().pooler(!pgbouncer.keeps_statements()).build().unwrap();

    looks_on_each_connection(&db, &proxy, leases).await;
}

async fn looks_on_each_connection(db: &TestDb, proxy: &FaultProxy, leases: LeaseClient) {
    let (heard, _listening) = Heard::listen();
    let [mut session] = sessions(db).await;
    grant(&mut session, "held", "1 hour").await;
    let mut highest = leases.acquire("again").await.unwrap().fencing_token().get();

    for round in 1..=3 {
        run(&mut session, ANOTHER_SYSTEM).await;
        // One connection asks once.
        assert!(leases.try_acquire("held").await.unwrap().is_none());
        assert_eq!(jumps(&mut session).await.len(), round - 1);
        proxy.cut();
        assert!(leases.try_acquire("held").await.unwrap().is_none());
        let told = jumps(&mut session).await;
        let token = leases
            .acquire("again")
            .wait_at_most(SOON)
            .await
            .unwrap()
            .fencing_token()
            .get();

        assert_eq!(told.len(), round, "{told:?}");
        assert!(token > told[round - 1].to_token && token > highest);
        assert_eq!(heard.told(Level::WARN, ATTENTION), round);
        assert_eq!(heard.told(Level::DEBUG, NOT_LOOKED), 0);
        highest = token;
    }
}

#[tokio::test]
async fn client_is_served_beside_somebody_who_keeps_the_epoch_locked() {
    let db = TestDb::own("epoch_locked").await;
    let (heard, _listening) = Heard::listen();
    let [mut session, mut other] = sessions(&db).await;
    run(&mut other, "begin; select from leasehold.epoch for update").await;

    let lease = db.client().try_acquire("free").await.unwrap();
    run(&mut other, "commit").await;

    assert!(lease.is_some());
    assert!(jumps(&mut session).await.is_empty());
    assert!(heard.louder_than_debug().is_empty(), "{:?}", heard.all());
}

#[tokio::test]
async fn callers_of_sql_alone_are_told_of_another_server_by_the_check() {
    let db = TestDb::own("epoch_sql_only").await;
    let [mut session] = sessions(&db).await;
    run(&mut session, ANOTHER_SYSTEM).await;

    let finding = "select count(*) from leasehold.check() where finding like '%history of another server'";
    let before = number(&mut session, finding).await;
    assert_eq!(ask(&mut session, "named").await, "granted");
    let still = number(&mut session, finding).await;
    let entered: bool = sqlx::query_scalar("select leasehold.enter_epoch()")
        .fetch_one(&mut session)
        .await
        .unwrap();

    assert_eq!((before, still, entered), (1, 1, true));
    assert_eq!(number(&mut session, "select count(*) from leasehold.check()").await, 0);
}

/// What needs attention, and the remedies.
pub(super) fn warnings(heard: &Heard) -> Vec<(String, String)> {
    let events = heard.louder_than_debug();
    let told = events.into_iter().map(|event| {
        assert_eq!((event.level, &*event.message), (Level::WARN, ATTENTION), "{event:?}");
        let field = |name| {
            event
                .fields
                .get(name)
                .map(|text: &String| text.trim_matches('"').to_owned())
        };
        (
            field("finding").expect("it is told"),
            field("remedy").expect("it is told"),
        )
    });
    told.collect()
}

const ATTENTION: &str = "fencing tokens need attention";
pub(super) const NOT_LOOKED: &str = "could not look over the epoch";
const ADVANCE: &str = "select leasehold.advance_epoch()";
