//! Advancing the epoch by hand, and who may.

use tracing::Level;

use super::clients::NOT_LOOKED;
use super::{ANOTHER_TIMELINE, STRIDE, Way, jumps, number};
use crate::support::heard::Heard;
use crate::support::install::sql_code;
use crate::support::sql::{run, sessions};
use crate::support::{TestDb, roles};

#[tokio::test]
async fn advanced_epoch_jumps_each_time_and_tells_what_the_next_token_is_above_of() {
    let db = TestDb::own("epoch_by_hand").await;
    let [mut session] = sessions(&db).await;
    let mut highest = Way::Scalar.cycle(&mut session, "again").await[0];

    for round in 1..=3 {
        let above = number(&mut session, "select leasehold.advance_epoch()").await;
        let told = jumps(&mut session).await;
        let next = Way::BOTH[round % 2].cycle(&mut session, "again").await;

        assert!(above >= highest + STRIDE, "{above} after {highest}");
        assert_eq!(next.iter().min(), Some(&(above + 1)));
        assert_eq!((told.len(), told[round - 1].to_token), (round, above));
        assert_eq!(told[round - 1].reason, "an operator asked for it");
        assert_eq!(told[round - 1].from_token, highest);
        highest = *next.iter().max().unwrap();
    }
}

#[tokio::test]
async fn only_the_role_of_operators_advances_the_epoch_and_reads_its_history() {
    let client = roles::login("epoch_client", "leasehold_client", &[]).await;
    let operator = roles::login("epoch_operator", "leasehold_operator", &[]).await;
    let stranger = roles::login("epoch_stranger", "", &[]).await;

    for (call, client_may) in [
        ("select leasehold.advance_epoch()", false),
        ("select * from leasehold.epoch", false),
        ("select * from leasehold.epoch_history", false),
        ("select * from leasehold.check()", true),
        ("select leasehold.enter_epoch()", true),
    ] {
        let refused = Some("42501");
        assert_eq!(sql_code(&operator.pool, call).await, None, "{call}");
        let of_client = sql_code(&client.pool, call).await;
        assert_eq!(of_client.as_deref(), refused.filter(|_| !client_may), "{call}");
        assert_eq!(sql_code(&stranger.pool, call).await.as_deref(), refused, "{call}");
    }
    for call in [
        "select leasehold.jump('by hand', 1)",
        "select leasehold.present_timeline()",
        "select leasehold.present_system()",
        "update leasehold.epoch set floor = 1",
        "delete from leasehold.epoch_history",
        "select setval('leasehold.locks_fence_seq', 1)",
    ] {
        for db in [&client, &operator] {
            assert_eq!(sql_code(&db.pool, call).await.as_deref(), Some("42501"), "{call}");
        }
    }
}

#[tokio::test]
async fn client_with_the_granted_rights_alone_looks_over_the_epoch_and_jumps() {
    let all = roles::own("epoch_roles").await;
    let client = roles::login("epoch_jumper", "leasehold_client", &[]).await;
    let db = TestDb::with(client.options.database("epoch_roles"));
    let (heard, _listening) = Heard::listen();
    let [mut session] = sessions(&all).await;
    run(&mut session, ANOTHER_TIMELINE).await;

    let lease = db.client().try_acquire("epoch of a role").await.unwrap().unwrap();

    let told = jumps(&mut session).await;
    let [jump] = &told[..] else { panic!("{told:?}") };
    assert_eq!(jump.from_timeline.as_deref(), Some("FFFFFFF0"));
    assert!(lease.fencing_token().get() > jump.to_token);
    assert_eq!(heard.told(Level::DEBUG, NOT_LOOKED), 0);
}
