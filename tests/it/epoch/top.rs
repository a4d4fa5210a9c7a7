//! The end of bigint: nothing is granted any more, and all else goes on.

use leasehold::{Error, Release};
use leasehold_testkit::eventually;

use super::{ANOTHER_TIMELINE, LAST_TOKEN, Way, jumps, number};
use crate::support::sql::{Acquired, acquire_many, run, sessions};
use crate::support::{LONG, SOON, TestDb};

#[tokio::test]
async fn acquires_fail_when_tokens_are_used_up_and_nothing_else_does() {
    let db = TestDb::own("epoch_top").await;
    let [mut session] = sessions(&db).await;
    let leases = db.client();
    let lease = leases.acquire("held").ttl(LONG).manual_renewal().await.unwrap();
    let expires_at = db.lock("held").await.unwrap().expires_at;
    run(
        &mut session,
        "select setval('leasehold.locks_fence_seq', 9223372036854775806)",
    )
    .await;

    let last = leases.acquire("last").await.unwrap().fencing_token().get();
    let scalar = leases.try_acquire("invoice:842").await;
    let waiting = leases.acquire("invoice:843").wait_at_most(SOON).await;
    let batch = tokio::join!(
        leases.try_acquire("batch 1"),
        leases.try_acquire("batch 2"),
        leases.try_acquire("batch 3")
    );
    lease.renew().await.unwrap();
    lease.begin(&db.pool).await.unwrap().commit().await.unwrap();
    let asked = leases.try_acquire("held").await.unwrap();
    let renewed_until = db.lock("held").await.unwrap().expires_at;
    let held = db.held_count("").await;

    assert_eq!(last, i64::MAX);
    for (name, failed) in [
        ("invoice:842", scalar.map(drop)),
        ("invoice:843", waiting.map(drop)),
        ("batch 1", batch.0.map(drop)),
        ("batch 2", batch.1.map(drop)),
        ("batch 3", batch.2.map(drop)),
    ] {
        let error = failed.unwrap_err();
        assert!(
            matches!(&error, Error::TokensExhausted { name: of, .. } if of.as_str() == name),
            "{error:?}"
        );
        assert!(error.to_string().contains(name), "{error}");
        assert!(!db.is_held(name).await);
    }
    assert!(asked.is_none() && lease.is_held() && renewed_until > expires_at);
    eventually(SOON, "the last is let go", async || !db.is_held("last").await).await;
    assert!((1..=2).contains(&held), "{held} are held");
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn jump_that_would_go_past_the_end_is_refused_and_leaves_all_as_it_was() {
    let db = TestDb::own("epoch_past_the_top").await;
    let [mut session] = sessions(&db).await;

    // Drawing a token to look at is no harm.
    for (way, fault) in Way::BOTH.into_iter().flat_map(|way| {
        [
            "select setval('leasehold.locks_fence_seq', 9223372036854775807 - 67108864)",
            "insert into leasehold.locks (name, fence, acquired_at, expires_at) \
             values ('copied', 9223372036854775000, now(), now())",
        ]
        .map(|fault| (way, fault))
    }) {
        super::install_anew(&mut session).await;
        run(&mut session, fault).await;
        run(&mut session, ANOTHER_TIMELINE).await;
        let before = number(&mut session, LAST_TOKEN).await;

        let call = match way {
            Way::Scalar => "select * from leasehold.acquire('named', gen_random_uuid(), '1 minute')",
            Way::Set => {
                "select * from leasehold.acquire_many(array['named'], array[gen_random_uuid()], array[interval '1 s'])"
            }
        };
        let refused = crate::support::install::sql_code(&db.pool, call).await;
        let failed = db.client().try_acquire("invoice:842").await;
        let by_hand = crate::support::install::sql_code(&db.pool, "select leasehold.advance_epoch()").await;

        let case = format!("{way:?} {fault}");
        assert_eq!(refused.as_deref(), Some("2200H"), "{case}");
        assert!(
            matches!(failed, Err(Error::TokensExhausted { .. })),
            "{case}: {failed:?}"
        );
        assert_eq!(by_hand.as_deref(), Some("2200H"), "{case}");
        assert!(jumps(&mut session).await.is_empty(), "{case}");
        assert!(number(&mut session, LAST_TOKEN).await <= before + 3, "{case}");
        assert_eq!(
            number(
                &mut session,
                "select count(*) from leasehold.epoch where timeline = 'FFFFFFF0'"
            )
            .await,
            1
        );
        assert_eq!(db.held_count("").await, 0, "{case}");
    }
}

#[tokio::test]
async fn row_with_a_token_near_the_end_takes_nothing_from_its_neighbours() {
    let db = TestDb::own("epoch_poisoned").await;
    let [mut session] = sessions(&db).await;
    run(
        &mut session,
        "insert into leasehold.locks (name, fence, acquired_at, expires_at) \
        values ('poisoned', 9223372036854775807, now(), now())",
    )
    .await;
    let leases = db.client();
    // A statement under way, so that the next go together.
    let (first, poisoned, second, third) = tokio::join!(
        leases.try_acquire("first"),
        leases.try_acquire("poisoned"),
        leases.try_acquire("second"),
        leases.try_acquire("third")
    );
    let alone = crate::support::install::sql_code(
        &db.pool,
        "select * from leasehold.acquire('poisoned', gen_random_uuid(), '1 s')",
    )
    .await;
    let neighbours: Vec<Acquired> = acquire_many(
        &mut session,
        &["fourth", "fifth"],
        &[uuid::Uuid::new_v4(), uuid::Uuid::new_v4()],
        "1 minute",
    )
    .await;

    for granted in [first, second, third] {
        assert!(granted.unwrap().is_some());
    }
    assert!(
        matches!(&poisoned, Err(Error::TokensExhausted { name, .. }) if name.as_str() == "poisoned"),
        "{poisoned:?}"
    );
    assert_eq!(alone.as_deref(), Some("2200H"));
    assert!(
        neighbours.iter().all(|answer| answer.outcome == "granted"),
        "{neighbours:?}"
    );
    assert!(jumps(&mut session).await.is_empty());
    assert!(!db.is_held("poisoned").await);
}
