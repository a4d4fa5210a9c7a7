//! Who is told, and who is not.

use sqlx::PgConnection;
use uuid::Uuid;

use super::ears::{Ears, told};
use super::line::{Form, Waiter, leave, look, release_of, silence, stand, wake};
use crate::support::sql::{Grant, break_lease, grant, release, release_many, renew, run_out, sessions};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn whatever_frees_the_name_tells_the_first_live_waiter_and_nobody_else() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;

    for what in ["release", "release of a set", "held on", "held on of a set", "break"] {
        let name = unique_name!();
        let held = grant(&mut session, &name, "1 hour").await;
        let waiters = [
            stand(&mut session, &name).await,
            stand(&mut session, &name).await,
            stand(&mut session, &name).await,
        ];
        silence(&mut session, waiters[0].client, 1.0).await;
        let mut ears = Ears::of(&db, &waiters).await;

        end(&mut session, what, &held).await;

        assert_eq!(ears.heard(&mut session).await, [told(waiters[1])], "{what}");
    }
}

#[tokio::test]
async fn release_of_a_set_tells_the_first_of_each_name_that_was_released() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let (mut grants, mut firsts, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let name = unique_name!();
        grants.push(grant(&mut session, &name, "1 hour").await);
        firsts.push(stand(&mut session, &name).await);
        all.extend([firsts[firsts.len() - 1], stand(&mut session, &name).await]);
    }
    grants[2].owner = Uuid::new_v4();
    let mut ears = Ears::of(&db, &all).await;

    let outcomes = release_many(&mut session, &grants, "0").await;

    let mut heard = ears.heard(&mut session).await;
    heard.sort_by_key(|(_, ticket)| *ticket);
    assert_eq!(outcomes, ["released", "released", "not_owner"]);
    assert_eq!(heard, [told(firsts[0]), told(firsts[1])]);
}

#[tokio::test]
async fn leave_of_the_first_tells_the_next_be_the_name_free_or_held_and_leave_of_another_tells_nobody() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;

    for is_held in [false, true] {
        let name = unique_name!();
        let held = grant(&mut session, &name, "1 hour").await;
        let mut waiters = Vec::new();
        for _ in 0..5 {
            waiters.push(stand(&mut session, &name).await);
        }
        if !is_held {
            release(&mut session, &held, "0").await;
        }
        // The second is dead and passed over.
        silence(&mut session, waiters[1].client, 1.0).await;
        let mut ears = Ears::of(&db, &waiters).await;

        assert!(leave(&mut session, waiters[3]).await);
        assert_eq!(ears.heard(&mut session).await, [], "one in the middle");
        assert!(leave(&mut session, waiters[4]).await);
        assert_eq!(ears.heard(&mut session).await, [], "the last");
        assert!(leave(&mut session, waiters[0]).await);
        assert_eq!(ears.heard(&mut session).await, [told(waiters[2])], "the first");
        assert!(leave(&mut session, waiters[2]).await);
        assert_eq!(ears.heard(&mut session).await, [], "nobody alive is left");
    }
}

#[tokio::test]
async fn what_frees_nothing_or_is_told_not_to_wake_tells_nobody() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let name = unique_name!();
    let held = grant(&mut session, &name, "1 hour").await;
    let waiters = [stand(&mut session, &name).await, stand(&mut session, &name).await];
    let stranger = Grant {
        owner: Uuid::new_v4(),
        ..held.clone()
    };
    let mut ears = Ears::of(&db, &waiters).await;

    assert_eq!(renew(&mut session, &held, "1 hour").await, "renewed");
    assert_eq!(release(&mut session, &stranger, "0").await, "not_owner");
    assert_eq!(release_many(&mut session, &[stranger], "0").await, ["not_owner"]);
    assert!(!break_lease(&mut session, &unique_name!()).await);
    for form in Form::BOTH {
        form.ask(&mut session, &name, Uuid::new_v4(), None).await;
        form.look(&mut session, &name, waiters[0]).await;
        form.look(&mut session, &name, waiters[1]).await;
    }
    run_out(&mut session, &name).await;
    assert_eq!(look(&mut session, &name, waiters[0]).await.outcome, "granted");
    for (call, expected) in [
        ("leasehold.release($1, $2, '1 hour', wake => false)", "held_on"),
        (
            "outcome from leasehold.release_many(array[$1], array[$2], wake => false)",
            "not_owner",
        ),
    ] {
        assert_eq!(quietly(&mut session, call, &name, waiters[0].owner).await, expected);
    }
    assert_eq!(ears.heard(&mut session).await, []);

    run_out(&mut session, &name).await;
    assert_eq!(look(&mut session, &name, waiters[1]).await.outcome, "granted");
    let third = stand(&mut session, &name).await;
    let mut ears = Ears::of(&db, &[third]).await;
    let call = "leasehold.release($1, $2, wake => false)";
    assert_eq!(quietly(&mut session, call, &name, waiters[1].owner).await, "released");
    assert_eq!(look(&mut session, &name, third).await.outcome, "granted");
    let fourth = stand(&mut session, &name).await;
    let mut ears_of_fourth = Ears::of(&db, &[fourth]).await;
    let call = "outcome from leasehold.release_many(array[$1], array[$2], wake => false)";
    assert_eq!(quietly(&mut session, call, &name, third.owner).await, "released");

    assert_eq!(ears.heard(&mut session).await, []);
    assert_eq!(ears_of_fourth.heard(&mut session).await, []);
    assert!(wake(&mut session, &name).await);
    assert_eq!(
        ears_of_fourth.heard(&mut session).await,
        [told(fourth)],
        "it can be heard"
    );
}

#[tokio::test]
async fn where_nobody_or_nobody_alive_waits_nobody_is_told() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let other = unique_name!();
    grant(&mut session, &other, "1 hour").await;
    let elsewhere = stand(&mut session, &other).await;

    for what in ["release", "release of a set", "held on", "held on of a set", "break"] {
        for has_dead in [false, true] {
            let name = unique_name!();
            let held = grant(&mut session, &name, "1 hour").await;
            let mut listened = vec![elsewhere];
            if has_dead {
                let dead = stand(&mut session, &name).await;
                silence(&mut session, dead.client, 1.0).await;
                listened.push(dead);
            }
            let mut ears = Ears::of(&db, &listened).await;

            end(&mut session, what, &held).await;

            assert_eq!(ears.heard(&mut session).await, [], "{what}");
            assert!(!wake(&mut session, &name).await);
        }
    }
}

#[tokio::test]
async fn one_client_is_told_of_each_of_its_waiters_on_one_channel() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let (client, names) = (Uuid::new_v4(), [unique_name!(), unique_name!()]);
    let mut waiters = Vec::new();
    let mut grants = Vec::new();
    for name in &names {
        grants.push(grant(&mut session, name, "1 hour").await);
        waiters.push(Form::One.stand_for(&mut session, name, client).await);
    }
    let mut ears = Ears::of(&db, &waiters[..1]).await;

    release(&mut session, &grants[1], "0").await;
    release(&mut session, &grants[0], "0").await;

    assert_eq!(ears.heard(&mut session).await, [told(waiters[1]), told(waiters[0])]);
}

#[tokio::test]
async fn neither_channel_nor_payload_tells_an_owner_token_or_a_client() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "1 hour").await;
    let mut waiters: Vec<Waiter> = Vec::new();
    for _ in 0..4 {
        waiters.push(stand(&mut session, &name).await);
    }
    let mut ears = Ears::of(&db, &waiters).await;

    release(&mut session, &held, "0").await;
    leave(&mut session, waiters[0]).await;
    look(&mut session, &name, waiters[1]).await;
    break_lease(&mut session, &name).await;
    look(&mut session, &name, waiters[2]).await;
    release_of(&mut session, &name, waiters[2]).await;
    let heard = ears.heard_raw(&mut session).await;

    assert_eq!(heard.len(), 4, "{heard:?}");
    let secrets = waiters.iter().flat_map(|waiter| [waiter.owner, waiter.client]);
    for secret in secrets.chain([held.owner]) {
        for (channel, payload) in &heard {
            for text in [channel, payload] {
                let text = text.to_lowercase();
                assert!(!text.contains(&secret.to_string()), "{text}");
                assert!(!text.contains(&secret.simple().to_string()), "{text}");
            }
        }
    }
    for (channel, payload) in heard {
        let digest = channel.strip_prefix("leasehold_").expect("a prefix of our own");
        assert!(digest.len() == 40 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(payload.parse::<i64>().is_ok(), "{payload}");
    }
}

async fn end(session: &mut PgConnection, what: &str, held: &Grant) {
    let many = std::slice::from_ref(held);
    match what {
        "release" => assert_eq!(release(session, held, "0").await, "released"),
        "release of a set" => assert_eq!(release_many(session, many, "0").await, ["released"]),
        "held on" => assert_eq!(release(session, held, "1 day").await, "held_on"),
        "held on of a set" => assert_eq!(release_many(session, many, "1 day").await, ["held_on"]),
        _ => assert!(break_lease(session, &held.name).await),
    }
}

async fn quietly(session: &mut PgConnection, call: &str, name: &str, owner: Uuid) -> String {
    let sql = sqlx::AssertSqlSafe(format!("select {call}"));
    sqlx::query_scalar(sql)
        .bind(name)
        .bind(owner)
        .fetch_one(session)
        .await
        .unwrap_or_else(|error| panic!("{call}: {error}"))
}
