//! `FencingToken::admit`: what it returns, and what it does not even send.

use std::error::Error as _;

use leasehold::{Error, FencingToken};

use super::accepted;
use crate::support::sql::{Isolation, begin, sessions};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn lower_token_is_stale_and_equal_and_higher_ones_pass() {
    let (db, resource) = (TestDb::shared().await, unique_name!());
    let admit = async |token| {
        let mut tx = db.pool.begin().await.unwrap();
        FencingToken::new(token).admit(&mut tx, &resource).await?;
        tx.commit().await.unwrap();
        Ok(())
    };

    let passed: [Result<(), Error>; 3] = [admit(41).await, admit(41).await, admit(42).await];
    let refused = admit(41).await.unwrap_err();

    assert!(passed.iter().all(Result::is_ok), "{passed:?}");
    assert_eq!(
        refused.to_string(),
        format!("fencing token 41 is stale for resource {resource:?}")
    );
    assert!(refused.source().is_none());
    let Error::Stale {
        resource: of,
        fencing_token,
        ..
    } = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!((of, fencing_token), (resource, FencingToken::new(41)));
}

#[tokio::test]
async fn admission_holds_with_the_commit_alone() {
    let (db, resource) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;

    let mut tx = db.pool.begin().await.unwrap();
    FencingToken::new(9).admit(&mut tx, &resource).await.unwrap();
    tx.rollback().await.unwrap();
    let rolled_back = accepted(&mut session, &resource).await;
    let mut tx = db.pool.begin().await.unwrap();
    FencingToken::new(8).admit(&mut tx, &resource).await.unwrap();
    tx.commit().await.unwrap();

    assert_eq!(rolled_back, None);
    assert_eq!(accepted(&mut session, &resource).await, Some(8));
}

#[tokio::test]
async fn invalid_resource_is_refused_before_anything_is_sent() {
    let db = TestDb::shared().await;
    let proxy = db.proxy();
    let through = db.through(&proxy);
    let mut tx = through.pool.begin().await.unwrap();
    FencingToken::new(1).admit(&mut tx, unique_name!()).await.unwrap();
    let sent = proxy.bytes_from_client();

    for (resource, problem) in [
        (String::new(), "it is empty"),
        ("x".repeat(513), "it is longer than 512 bytes"),
        ("é".repeat(257), "it is longer than 512 bytes"),
        ("a\0b".to_owned(), "it contains NUL"),
    ] {
        let refused = FencingToken::new(1).admit(&mut tx, &resource).await.unwrap_err();

        assert_eq!(refused.to_string(), format!("invalid resource: {problem}"));
        assert!(matches!(refused, Error::InvalidOption { option: "resource", .. }));
    }
    assert_eq!(proxy.bytes_from_client(), sent);
    // The transaction has seen nothing of it.
    FencingToken::new(1).admit(&mut tx, "x".repeat(512)).await.unwrap();
    assert!(proxy.bytes_from_client() > sent, "the counter counts");
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn database_without_the_schema_says_so() {
    let db = TestDb::empty("admit_no_schema").await;
    let mut tx = db.pool.begin().await.unwrap();

    let refused = FencingToken::new(1).admit(&mut tx, "document:7").await;

    assert!(matches!(refused, Err(Error::SchemaMissing { .. })), "{refused:?}");
}

#[tokio::test]
async fn what_else_the_database_says_comes_with_the_resource_and_the_token() {
    let (db, resource) = (TestDb::shared().await, unique_name!());
    let mut tx = db.pool.begin().await.unwrap();
    begin_again(&mut tx).await;
    let [mut other] = sessions(&db).await;
    super::admit(&mut other, &resource, 5).await.unwrap();

    let refused = FencingToken::new(6).admit(&mut tx, &resource).await.unwrap_err();

    assert_eq!(
        refused.to_string(),
        format!("could not admit fencing token 6 to resource {resource:?}")
    );
    let Error::Admit {
        resource: of,
        fencing_token,
        source,
        ..
    } = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!((of, fencing_token), (resource, FencingToken::new(6)));
    assert_eq!(source.as_database_error().unwrap().code().as_deref(), Some("40001"));
}

/// Turns the transaction into one of repeatable read whose snapshot is taken now.
async fn begin_again(tx: &mut sqlx::PgTransaction<'_>) {
    crate::support::sql::run(tx, "rollback").await;
    begin(tx, Isolation::RepeatableRead).await;
}
