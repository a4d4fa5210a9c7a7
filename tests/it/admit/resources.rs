//! `leasehold.admit` in SQL: what passes, what is refused, what is kept, and for how long it locks.

use std::time::Duration;

use leasehold_testkit::eventually;
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::time::timeout;

use super::{accepted, admit, overtaken, stale};
use crate::support::install::{self, sql_code};
use crate::support::sql::{Isolation, begin, in_each_isolation, run, sessions};
use crate::support::{SOON, TestDb, roles, unique_name};

in_each_isolation! {
    lower_token_is_refused_and_equal_and_higher_ones_pass
    rolled_back_admission_leaves_no_mark
    second_admission_of_a_resource_waits_for_the_first_ones_transaction
    admission_after_anothers_commit_is_refused_to_an_older_snapshot
}

async fn lower_token_is_refused_and_equal_and_higher_ones_pass(isolation: Isolation) {
    let (db, resource) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let mut answers = Vec::new();

    for token in [41, 41, 40, 42, 41, i64::MIN, i64::MAX, 42, i64::MAX] {
        begin(&mut session, isolation).await;
        let answer = admit(&mut session, &resource, token).await;
        run(&mut session, if answer.is_ok() { "commit" } else { "rollback" }).await;
        answers.push(answer);
    }

    let (last, refused) = (i64::MAX, stale());
    let expected = [
        Ok(41),
        Ok(41),
        refused.clone(),
        Ok(42),
        refused.clone(),
        refused.clone(),
        Ok(last),
        refused,
        Ok(last),
    ];
    assert_eq!(answers, expected);
    assert_eq!(accepted(&mut session, &resource).await, Some(last));
}

async fn rolled_back_admission_leaves_no_mark(isolation: Isolation) {
    let (db, resource, new) = (TestDb::shared().await, unique_name!(), unique_name!());
    let [mut session] = sessions(&db).await;
    admit(&mut session, &resource, 10).await.unwrap();

    begin(&mut session, isolation).await;
    assert_eq!(admit(&mut session, &resource, 20).await, Ok(20));
    assert_eq!(admit(&mut session, &new, 20).await, Ok(20));
    run(&mut session, "rollback").await;
    begin(&mut session, isolation).await;
    run(&mut session, "savepoint s").await;
    assert_eq!(admit(&mut session, &resource, 30).await, Ok(30));
    assert_eq!(admit(&mut session, &resource, 29).await, stale());
    run(&mut session, "rollback to savepoint s").await;
    assert_eq!(admit(&mut session, &resource, 11).await, Ok(11));
    run(&mut session, "commit").await;

    assert_eq!(accepted(&mut session, &resource).await, Some(11));
    assert_eq!(accepted(&mut session, &new).await, None);
}

async fn second_admission_of_a_resource_waits_for_the_first_ones_transaction(isolation: Isolation) {
    let db = TestDb::shared().await;
    // The first admission that a resource sees, and a later one.
    for mark in [None, Some(1)] {
        let (resource, other) = (unique_name!(), unique_name!());
        let [mut first, mut second, mut third] = sessions(&db).await;
        if let Some(token) = mark {
            admit(&mut first, &resource, token).await.unwrap();
        }

        begin(&mut first, isolation).await;
        admit(&mut first, &resource, 5).await.unwrap();
        begin(&mut second, isolation).await;
        let behind = backend(&mut second).await;
        let mut waiting = std::pin::pin!(admit(&mut second, &resource, 6));
        let waits = timeout(SOON, async {
            tokio::select! {
                answer = &mut waiting => panic!("it did not wait: {answer:?}"),
                () = is_blocked_by(&mut third, behind) => {}
            }
        });
        waits.await.expect("the second waits for the first");
        let elsewhere = admit(&mut third, &other, 1).await;
        run(&mut first, "commit").await;
        let answer = waiting.await;

        assert_eq!(elsewhere, Ok(1));
        if isolation == Isolation::ReadCommitted {
            assert_eq!(answer, Ok(6));
        } else {
            assert_eq!(answer, overtaken());
        }
    }
}

/// Whatever the token: what the other wrote under its admission is not in the snapshot either.
async fn admission_after_anothers_commit_is_refused_to_an_older_snapshot(isolation: Isolation) {
    let db = TestDb::shared().await;
    let [mut writer, mut other] = sessions(&db).await;

    for mark in [None, Some(1)] {
        for token in [4, 5, 6] {
            let resource = unique_name!();
            if let Some(token) = mark {
                admit(&mut other, &resource, token).await.unwrap();
            }

            begin(&mut writer, isolation).await;
            admit(&mut other, &resource, 5).await.unwrap();
            let answer = admit(&mut writer, &resource, token).await;
            run(&mut writer, if answer.is_ok() { "commit" } else { "rollback" }).await;

            let expected = match isolation {
                Isolation::ReadCommitted if token < 5 => stale(),
                Isolation::ReadCommitted => Ok(token),
                Isolation::RepeatableRead | Isolation::Serializable => overtaken(),
            };
            assert_eq!(answer, expected, "{token} after {mark:?}");
        }
    }
}

#[tokio::test]
async fn null_token_is_refused_and_leaves_no_mark() {
    let (db, resource, new) = (TestDb::shared().await, unique_name!(), unique_name!());
    let [mut session] = sessions(&db).await;
    admit(&mut session, &resource, 1).await.unwrap();

    let refused = [
        admit(&mut session, &resource, None).await,
        admit(&mut session, &new, None).await,
    ];

    assert_eq!(refused, [stale(), stale()]);
    assert_eq!(accepted(&mut session, &resource).await, Some(1));
    assert_eq!(accepted(&mut session, &new).await, None);
}

#[tokio::test]
async fn refusal_names_the_resource_and_the_token_and_what_to_do() {
    let (db, resource) = (TestDb::shared().await, "an odd resource's name");
    let [mut session] = sessions(&db).await;
    admit(&mut session, resource, 42).await.unwrap();

    let refused = sqlx::query("select leasehold.admit($1, 41)").bind(resource);
    let refused = refused.execute(&mut session).await.unwrap_err();

    let refused = refused.as_database_error().unwrap().downcast_ref::<PgDatabaseError>();
    assert_eq!(
        refused.message(),
        "fencing token 41 is stale for resource 'an odd resource''s name'"
    );
    assert_eq!(refused.hint(), Some("Roll back and acquire the lease again."));
}

#[tokio::test]
async fn resource_of_no_bytes_or_too_many_or_none_is_an_argument_out_of_range() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let long = "x".repeat(513);
    // 257 characters, 514 bytes.
    let wide = "é".repeat(257);

    for resource in [None, Some(""), Some(long.as_str()), Some(wide.as_str())] {
        let refused = sqlx::query("select leasehold.admit($1, 1)").bind(resource);
        let refused = refused.execute(&mut session).await.unwrap_err();
        let refused = refused.as_database_error().unwrap().downcast_ref::<PgDatabaseError>();

        assert_eq!(refused.code(), "LH002", "{resource:?}");
        assert_eq!(refused.hint(), Some("A resource has 1 to 512 bytes."));
    }
}

#[tokio::test]
async fn resources_are_kept_byte_for_byte_and_differ_when_their_bytes_do() {
    let db = TestDb::own("admit_bytes").await;
    let [mut session] = sessions(&db).await;
    let resources = [
        "x".repeat(512),
        "é".repeat(256),
        "🦀".repeat(128),
        " ".to_owned(),
        "  ".to_owned(),
        "a".to_owned(),
        "A".to_owned(),
        "a ".to_owned(),
        "é".to_owned(),
        "e\u{301}".to_owned(),
        "\u{feff}a".to_owned(),
        "a\u{200b}".to_owned(),
        "\u{202e}a".to_owned(),
        "\u{10ffff}\u{1}\n\t\\'\"$1%s".to_owned(),
    ];

    for (resource, token) in resources.iter().zip(1..) {
        assert_eq!(admit(&mut session, resource, token).await, Ok(token), "{resource:?}");
    }

    let kept = sqlx::query("select resource, fence from leasehold.fences order by fence");
    let kept = kept.fetch_all(&mut session).await.unwrap();
    let kept: Vec<(String, i64)> = kept.iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected: Vec<(String, i64)> = resources.into_iter().zip(1..).collect();
    assert_eq!(kept, expected);
}

#[tokio::test]
async fn role_with_execute_on_admit_alone_admits_and_can_neither_read_nor_write_what_is_kept() {
    let role = roles::login("admit_only", "", &[]).await;
    let resource = unique_name!();
    let owner = roles::database().await;
    assert_eq!(
        sql_code(&role.pool, "select leasehold.admit('resource', 1)")
            .await
            .as_deref(),
        Some("42501"),
        "nobody may before it is granted"
    );
    install::run(
        &owner,
        "grant usage on schema leasehold to admit_only;
         grant execute on function leasehold.admit(text, bigint) to admit_only",
    )
    .await;
    let mut session = role.session().await;

    let mut tx = session.begin().await.unwrap();
    let in_rust = leasehold::FencingToken::new(2).admit(&mut tx, &resource).await;
    tx.commit().await.unwrap();
    let in_sql = [
        admit(&mut session, &resource, 3).await,
        admit(&mut session, &resource, 1).await,
    ];

    assert!(in_rust.is_ok(), "{in_rust:?}");
    assert_eq!(in_sql, [Ok(3), stale()]);
    for sql in [
        "select from leasehold.fences",
        "select fence from leasehold.fences",
        "insert into leasehold.fences values ('mine', 1)",
        "update leasehold.fences set fence = 0",
        "delete from leasehold.fences",
        "truncate leasehold.fences",
        "select leasehold.fence('mine', 1)",
    ] {
        assert_eq!(sql_code(&role.pool, sql).await.as_deref(), Some("42501"), "{sql}");
    }
}

#[tokio::test]
async fn admission_is_not_hijacked_by_what_the_callers_search_path_has_in_front() {
    let (db, resource) = (TestDb::own("admit_hostile").await, unique_name!());
    install::run(&db, &crate::support::hostile::hostile_schema()).await;
    let [mut session] = sessions(&db).await;
    run(&mut session, "set search_path = hostile, pg_catalog, leasehold").await;

    let answers = [
        admit(&mut session, &resource, 2).await,
        admit(&mut session, &resource, 1).await,
        admit(&mut session, &resource, 3).await,
    ];

    assert_eq!(answers, [Ok(2), stale(), Ok(3)]);
}

async fn backend(session: &mut PgConnection) -> i32 {
    sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(session)
        .await
        .unwrap()
}

/// Waits until the server process waits for a lock of another.
async fn is_blocked_by(session: &mut PgConnection, backend: i32) {
    let sql = "select cardinality(pg_blocking_pids($1)) = 1";
    eventually(SOON + Duration::from_secs(1), "it waits for another", async || {
        sqlx::query_scalar::<_, bool>(AssertSqlSafe(sql))
            .bind(backend)
            .fetch_one(&mut *session)
            .await
            .expect(sql)
    })
    .await;
}
