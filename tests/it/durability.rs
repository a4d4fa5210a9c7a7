//! What was answered is still true after a crash, and no function makes a caller's writes less
//! durable.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::support::quiet::Quiet;
use crate::support::sql::{
    Grant, acquire, acquire_many, ask, break_lease, grant, release, release_many, renew, run, sessions,
};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn no_function_weakens_synchronous_commit_and_grants_strengthen_it() {
    let db = TestDb::shared().await;
    let [mut session, mut holder] = sessions(&db).await;
    let taken = grant(&mut holder, &unique_name!(), "1 hour").await.name;

    for (level, strengthened) in [
        ("on", "on"),
        ("remote_apply", "remote_apply"),
        ("remote_write", "on"),
        ("local", "on"),
        ("off", "on"),
    ] {
        let held = grant(&mut holder, &unique_name!(), "1 hour").await;
        let (name, owner, token) = (&held.name, held.owner, held.token);
        let (names, owners) = (format!("array['{name}']"), format!("array['{owner}'::uuid]"));
        let (new, second) = (unique_name!(), "interval '1 s'");
        for (call, expected) in [
            (format!("leasehold.acquire('{new}', '{owner}', {second})"), strengthened),
            (
                format!("leasehold.acquire_many(array['{new}'], {owners}, array[{second}])"),
                strengthened,
            ),
            (
                format!("leasehold.renew({names}, {owners}, array[{second}])"),
                strengthened,
            ),
            (format!("leasehold.release('{name}', '{owner}', '1 day')"), strengthened),
            (
                format!("leasehold.release_many({names}, {owners}, array[interval '1 day'])"),
                strengthened,
            ),
            (format!("leasehold.break_lease('{name}')"), strengthened),
            (format!("leasehold.acquire('{taken}', '{owner}', {second})"), level),
            (
                format!("leasehold.acquire_many(array['{taken}'], {owners}, array[{second}])"),
                level,
            ),
            (
                format!("leasehold.renew(array['{taken}'], {owners}, array[{second}])"),
                level,
            ),
            (format!("leasehold.release('{name}', '{owner}')"), level),
            (format!("leasehold.release_many({names}, {owners})"), level),
            (format!("leasehold.break_lease('{new}')"), level),
            (format!("leasehold.fence('{name}', {token})"), level),
            ("leasehold.sweep()".to_owned(), level),
        ] {
            run(
                &mut session,
                &format!("begin; set local synchronous_commit = '{level}'"),
            )
            .await;
            let called = sqlx::query(AssertSqlSafe(format!("select * from {call}")));
            called
                .execute(&mut session)
                .await
                .unwrap_or_else(|error| panic!("{call}: {error}"));
            let afterwards: String = sqlx::query_scalar("select current_setting('synchronous_commit')")
                .fetch_one(&mut session)
                .await
                .unwrap();
            run(&mut session, "rollback").await;

            assert_eq!(afterwards, expected, "{call} with {level}");
        }
    }
}

#[tokio::test]
async fn callers_own_writes_beside_a_release_survive_a_crash() {
    let quiet = Quiet::with_database("durable_release").await;
    let [mut session] = sessions(&quiet.db).await;
    run(&mut session, "create table results (id int)").await;
    let held = grant(&mut session, "job", "1 hour").await;

    run(&mut session, "begin; insert into results values (1)").await;
    assert_eq!(release(&mut session, &held, "0").await, "released");
    run(&mut session, "commit").await;
    quiet.crash().await;

    let [mut session] = sessions(&quiet.db).await;
    let results = sqlx::query_scalar::<_, i64>("select count(*) from results");
    assert_eq!(results.fetch_one(&mut session).await.unwrap(), 1);
    assert_eq!(ask(&mut session, "job").await, "granted");
}

/// With `synchronous_commit = off` for all who connect.
#[tokio::test]
async fn what_was_granted_survives_a_crash_whatever_the_role_says_of_commits() {
    let quiet = Quiet::with_database("durable_grants").await;
    let [mut session] = sessions(&quiet.db).await;
    run(&mut session, "create table unprotected (id int)").await;
    run(
        &mut session,
        "alter database durable_grants set synchronous_commit = off",
    )
    .await;
    let mut highest = grant(&mut session, "the first", "1 hour").await.token;
    let hour = Duration::from_secs(3600);

    for last_call in [
        "acquire",
        "acquire_many",
        "acquire of a client",
        "renew",
        "release",
        "release_many",
        "break_lease",
        "acquire",
    ] {
        let (name, owner) = (format!("{last_call} {highest}"), Uuid::new_v4());
        let [mut session] = sessions(&quiet.db).await;
        let (token, expected_of_owner) = match last_call {
            "acquire" => (acquire(&mut session, &name, owner, "1 hour").await.token, "granted"),
            "acquire_many" => {
                let names = [&format!("other {name}"), name.as_str()];
                let answers = acquire_many(&mut session, &names, &[Uuid::new_v4(), owner], "1 hour").await;
                (answers[1].token, "granted")
            }
            "acquire of a client" => {
                let lease = quiet.db.client().acquire(&name).ttl(hour).await.unwrap();
                let token = lease.fencing_token().get();
                // Its release must not come in between.
                std::mem::forget(lease);
                (Some(token), "held")
            }
            _ => {
                let token = acquire(&mut session, &name, owner, "1 minute").await.token;
                let held = Grant {
                    name: name.clone(),
                    owner,
                    token: token.unwrap(),
                };
                let (outcome, expected_of_owner) = match last_call {
                    "renew" => (renew(&mut session, &held, "1 hour").await, "granted"),
                    "release" => (release(&mut session, &held, "1 hour").await, "held"),
                    "release_many" => (release_many(&mut session, &[held], "1 hour").await.remove(0), "held"),
                    _ => (break_lease(&mut session, &name).await.to_string(), "granted"),
                };
                assert!(
                    ["renewed", "held_on", "true"].contains(&outcome.as_str()),
                    "{last_call}: {outcome}"
                );
                (token, expected_of_owner)
            }
        };
        quiet.crash().await;

        let [mut session] = sessions(&quiet.db).await;
        let token = token.expect("it was granted");
        let afterwards = acquire(&mut session, &name, owner, "1 s").await;
        let next = grant(&mut session, &format!("after {name}"), "1 hour").await.token;
        assert!(token > highest && next > token, "{highest} {token} {next}");
        highest = next;
        assert_eq!(afterwards.outcome, expected_of_owner, "{name}: {afterwards:?}");
        if last_call == "break_lease" {
            assert!(afterwards.token > Some(token), "{afterwards:?}");
        } else {
            assert!(afterwards.expires_in > Some(3000.0), "{name}: {afterwards:?}");
        }
    }

    // The crash takes what is not protected, else it proves nothing.
    let mut is_lost = false;
    for id in 0..5 {
        let [mut session] = sessions(&quiet.db).await;
        run(&mut session, &format!("insert into unprotected values ({id})")).await;
        quiet.crash().await;
        let [mut session] = sessions(&quiet.db).await;
        let rows = sqlx::query_scalar::<_, i64>("select count(*) from unprotected where id = $1").bind(id);
        is_lost |= rows.fetch_one(&mut session).await.unwrap() == 0;
        if is_lost {
            break;
        }
    }
    assert!(is_lost, "a crash loses nothing here");
}
