//! A lease in its holder's hands: its token, the fence, its labels, and how it is let go.

use std::time::Duration;

use chrono::TimeDelta;
use leasehold::{Error, FencingToken, LossCause, Release, is_fenced};
use leasehold_testkit::eventually;
use sqlx::Row;

use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn fencing_tokens_rise_however_the_grant_before_ended() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let mut tokens = Vec::new();

    for _ in 0..3 {
        let released = leases.acquire(&name).await.unwrap();
        tokens.push(released.fencing_token());
        released.release().await.unwrap();

        let dropped = leases.acquire(&name).await.unwrap();
        tokens.push(dropped.fencing_token());
        drop(dropped);

        let broken = leases.acquire(&name).await.unwrap();
        tokens.push(broken.fencing_token());
        assert!(leases.break_lease(&name).await.unwrap());

        tokens.push(db.crashed_holder(&name, Duration::from_millis(100)).await);
    }

    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
}

#[tokio::test]
async fn fencing_token_binds_in_sqlx_and_prints_as_a_number() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).await.unwrap();
    let token = lease.fencing_token();

    let row = sqlx::query("select $1::bigint, $1::text, pg_typeof($1)::text, $2::bigint[]")
        .bind(token)
        .bind([token.get()])
        .fetch_one(&db.pool)
        .await
        .unwrap();

    assert_eq!(row.get::<FencingToken, _>(0), token);
    assert_eq!(row.get::<String, _>(1), token.to_string());
    assert_eq!(row.get::<String, _>(2), "bigint");
    assert_eq!(FencingToken::new(token.to_string().parse().unwrap()), token);
    assert_eq!(db.lock(&name).await.unwrap().token, token);
}

#[tokio::test]
async fn fenced_transaction_holds_off_the_next_grant_until_it_ends() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let lease = leases.acquire(&name).await.unwrap();
    let mut tx = db.pool.begin().await.unwrap();

    lease.fence(&mut tx).await.unwrap();
    assert_eq!(lease.release().await.unwrap(), Release::Released);

    assert!(leases.try_acquire(&name).await.unwrap().is_none());
    tx.commit().await.unwrap();
    assert!(leases.try_acquire(&name).await.unwrap().is_some());
}

#[tokio::test]
async fn begin_gives_a_transaction_that_is_fenced_already() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let lease = leases.acquire(&name).await.unwrap();

    let tx = lease.begin(&db.pool).await.unwrap();
    leases.break_lease(&name).await.unwrap();

    assert!(leases.try_acquire(&name).await.unwrap().is_none());
    tx.rollback().await.unwrap();
    assert!(leases.try_acquire(&name).await.unwrap().is_some());
}

#[tokio::test]
async fn renewals_go_on_beside_a_fenced_transaction_that_outlasts_the_ttl() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    // The transaction must not idle for as long, on a starved machine either.
    let ttl = Duration::from_secs(5);
    let lease = db.client().acquire(&name).ttl(ttl).await.unwrap();
    let first = db.lock(&name).await.unwrap();

    let mut tx = lease.begin(&db.pool).await.unwrap();
    eventually(SOON, "the ttl has passed", async || {
        sqlx::query("select 1").execute(&mut *tx).await.unwrap();
        let lock = db.lock(&name).await.unwrap();
        lock.expires_at > first.expires_at + TimeDelta::from_std(ttl).unwrap()
    })
    .await;

    assert!(lease.is_held());
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn fence_refuses_a_lease_that_has_passed_on_and_the_lease_knows() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let stale = leases.acquire(&name).await.unwrap();
    leases.break_lease(&name).await.unwrap();
    let fresh = leases.acquire(&name).await.unwrap();

    let mut tx = db.pool.begin().await.unwrap();
    let refused = stale.fence(&mut tx).await.unwrap_err();

    let Error::Lost(lost) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(lost.cause, LossCause::Fenced);
    assert_eq!(lost.name.as_str(), name);
    assert_eq!(lost.fencing_token, stale.fencing_token());
    assert!(!stale.is_held());
    assert_eq!(stale.lost().await, lost);
    assert!(matches!(stale.begin(&db.pool).await, Err(Error::Lost(again)) if again == lost));
    fresh.begin(&db.pool).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn begin_refuses_a_lease_that_was_broken() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let lease = leases.acquire(&name).await.unwrap();
    leases.break_lease(&name).await.unwrap();

    let refused = lease.begin(&db.pool).await;

    assert!(matches!(refused, Err(Error::Lost(lost)) if lost.cause == LossCause::Fenced));
    assert!(leases.try_acquire(&name).await.unwrap().is_some());
}

#[tokio::test]
async fn is_fenced_tells_a_stale_token_in_the_callers_own_sql_from_other_errors() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let lease = leases.acquire(&name).await.unwrap();
    let fenced = "select leasehold.fence($1, $2)";

    let current = sqlx::query_scalar::<_, FencingToken>(fenced)
        .bind(&name)
        .bind(lease.fencing_token())
        .fetch_one(&db.pool)
        .await;
    let stale = sqlx::query(fenced)
        .bind(&name)
        .bind(lease.fencing_token().get() - 1)
        .execute(&db.pool)
        .await;
    let broken = sqlx::query("select 1 / 0").execute(&db.pool).await;

    assert_eq!(current.unwrap(), lease.fencing_token());
    assert!(is_fenced(&stale.unwrap_err()));
    assert!(!is_fenced(&broken.unwrap_err()));
    assert!(!is_fenced(&sqlx::Error::PoolClosed));
}

#[tokio::test]
async fn release_tells_whether_the_lease_was_still_ours() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();

    let ours = leases.acquire(&name).await.unwrap().release().await.unwrap();
    let holding = leases
        .acquire(&name)
        .hold_at_least(Duration::from_millis(1))
        .await
        .unwrap();
    eventually(SOON, "a millisecond has passed", async || {
        db.lock(&name).await.unwrap().acquired_at + TimeDelta::milliseconds(1) < chrono_now(&db).await
    })
    .await;
    let held_long_enough = holding.release().await.unwrap();
    let broken = leases.acquire(&name).await.unwrap();
    leases.break_lease(&name).await.unwrap();
    let broken = broken.release().await.unwrap();
    let passed_on = leases.acquire(&name).await.unwrap();
    db.supersede(&name).await;
    let passed_on = passed_on.release().await.unwrap();

    assert_eq!(ours, Release::Released);
    assert_eq!(held_long_enough, Release::Released);
    assert_eq!(broken, Release::NotOwner);
    assert_eq!(passed_on, Release::NotOwner);
    assert!(db.is_held(&name).await, "the other's lease is not touched");
}

#[tokio::test]
async fn hold_at_least_keeps_the_name_taken_after_a_release_until_it_has_passed() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let hold = Duration::from_millis(1500);
    let lease = leases.acquire(&name).ttl(LONG).hold_at_least(hold).await.unwrap();
    let first = db.lock(&name).await.unwrap();

    assert_eq!(lease.release().await.unwrap(), Release::HeldOn);

    assert!(leases.try_acquire(&name).await.unwrap().is_none());
    let next = leases.acquire(&name).wait_at_most(SOON).await.unwrap();
    let second = db.lock(&name).await.unwrap();
    assert!(next.fencing_token() > first.token);
    assert!(second.acquired_at >= first.acquired_at + TimeDelta::from_std(hold).unwrap());
}

#[tokio::test]
async fn hold_at_least_keeps_the_name_taken_after_a_drop_until_it_has_passed() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let hold = Duration::from_millis(1500);
    let lease = leases.acquire(&name).ttl(LONG).hold_at_least(hold).await.unwrap();
    let first = db.lock(&name).await.unwrap();

    drop(lease);

    let _next = leases.acquire(&name).wait_at_most(SOON).await.unwrap();
    let second = db.lock(&name).await.unwrap();
    assert!(second.acquired_at >= first.acquired_at + TimeDelta::from_std(hold).unwrap());
    assert!(second.acquired_at < first.acquired_at + TimeDelta::from_std(LONG).unwrap());
}

#[tokio::test]
async fn token_of_a_lease_held_on_after_its_release_fences_no_more() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).hold_at_least(LONG).await.unwrap();
    let token = lease.fencing_token();
    lease.release().await.unwrap();

    let refused = sqlx::query("select leasehold.fence($1, $2)")
        .bind(&name)
        .bind(token)
        .execute(&db.pool)
        .await;

    assert!(is_fenced(&refused.unwrap_err()));
}

#[tokio::test]
async fn holder_label_is_the_acquisitions_else_the_clients_else_application_host_and_pid() {
    let db = TestDb::shared().await;
    let db = db.as_application("billing");
    let (own, of_client, default) = (unique_name!(), unique_name!(), unique_name!());
    let labelled = db.builder().holder("batch").build().unwrap();

    let _own = labelled.acquire(&own).holder("batch-7").await.unwrap();
    let _of_client = labelled.acquire(&of_client).await.unwrap();
    let _default = db.client().acquire(&default).await.unwrap();

    let holder = async |name| labelled.inspect(name).await.unwrap().unwrap().holder.unwrap();
    assert_eq!(holder(&own).await, "batch-7");
    assert_eq!(holder(&of_client).await, "batch");
    let label = holder(&default).await;
    let host = label
        .strip_prefix("billing@")
        .and_then(|rest| rest.strip_suffix(&format!(":{}", std::process::id())));
    assert!(host.is_some_and(|host| !host.is_empty()), "{label}");
}

#[tokio::test]
async fn inspect_and_held_show_what_is_held_and_nothing_else() {
    let (db, prefix) = (TestDb::shared().await, unique_name!());
    let names = ["c", "a", "b"].map(|end| format!("{prefix}:{end}"));
    let leases = db.client();
    let _a = leases.acquire(&names[1]).ttl(LONG).holder("a").await.unwrap();
    let c = leases.acquire(&names[0]).ttl(LONG).await.unwrap();
    let b = leases.acquire(&names[2]).await.unwrap();

    assert_eq!(b.release().await.unwrap(), Release::Released);

    let held = leases.held().await.unwrap();
    let ours: Vec<_> = held.iter().filter(|info| info.name.starts_with(&prefix)).collect();
    assert_eq!(
        ours.iter().map(|info| &info.name).collect::<Vec<_>>(),
        [&names[1], &names[0]]
    );
    let info = leases.inspect(&names[1]).await.unwrap().unwrap();
    assert_eq!(info.holder.as_deref(), Some("a"));
    assert!(
        info.expires_in <= LONG && info.expires_in > LONG / 2,
        "{:?}",
        info.expires_in
    );
    assert!(!info.is_expired);
    assert_eq!(
        leases.inspect(&names[0]).await.unwrap().unwrap().fencing_token,
        c.fencing_token()
    );
    assert_eq!(leases.inspect(&names[2]).await.unwrap(), None);
    assert_eq!(leases.inspect(unique_name!()).await.unwrap(), None);
}

#[tokio::test]
async fn break_lease_frees_the_name_and_tells_whether_there_was_a_lease() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let never_held = leases.break_lease(&name).await.unwrap();
    let _held = leases.acquire(&name).ttl(LONG).await.unwrap();

    let broken = leases.break_lease(&name).await.unwrap();

    assert!(!never_held);
    assert!(broken);
    assert!(!leases.break_lease(&name).await.unwrap());
    assert!(leases.try_acquire(&name).await.unwrap().is_some());
}

#[tokio::test]
async fn second_acquisition_of_a_held_name_by_the_same_client_waits_like_anyone_elses() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let first = leases.acquire(&name).await.unwrap();

    let again = leases.acquire(&name).wait_at_most(Duration::from_millis(200)).await;

    assert!(matches!(again, Err(Error::WaitTimedOut { .. })), "{again:?}");
    assert!(leases.clone().try_acquire(&name).await.unwrap().is_none());
    assert!(first.is_held());
}

async fn chrono_now(db: &TestDb) -> chrono::DateTime<chrono::Utc> {
    sqlx::query_scalar("select clock_timestamp()")
        .fetch_one(&db.pool)
        .await
        .unwrap()
}
