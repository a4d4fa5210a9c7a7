//! Rows that somebody else keeps locked: the lease concerned suffers, and nobody else.

use std::time::Duration;

use leasehold::{Error, LossCause, Release};
use leasehold_testkit::eventually;
use sqlx::{AssertSqlSafe, Executor, PgConnection};
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::SOON;
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn row_locked_for_longer_than_the_ttl_costs_that_lease_and_not_its_neighbours() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.builder().ttl(TTL).build().unwrap();
    let stuck = leases.acquire(&name).await.unwrap();
    let mut neighbours = Vec::new();
    for number in 0..8 {
        neighbours.push(leases.acquire(format!("{name}:{number}")).await.unwrap());
    }
    let asker = db.builder().answer_within(TTL / 4).build().unwrap();

    let mut session = locking(&db, FOR_UPDATE, &name).await;
    let asked_while_held = asker.try_acquire(&name).await;
    let lost = timeout(SOON, stuck.lost()).await.unwrap();
    eventually(SOON, "the ttl is over", async || !db.is_held(&name).await).await;
    let asked_when_run_out = timeout(SOON, asker.try_acquire(&name)).await.unwrap();
    let released = timeout(SOON, stuck.release()).await.unwrap();

    assert!(asked_while_held.unwrap().is_none(), "a held name is a plain read");
    assert_eq!(lost.cause, LossCause::Expired);
    assert!(
        matches!(asked_when_run_out, Err(Error::Busy { .. })),
        "{asked_when_run_out:?}"
    );
    assert!(
        matches!(released, Ok(Release::Unknown) | Err(Error::Unanswered { .. })),
        "{released:?}"
    );
    for neighbour in &neighbours {
        neighbour.renew().await.unwrap();
        assert!(neighbour.is_held());
    }

    session.execute("rollback").await.unwrap();
    let next = timeout(SOON, leases.acquire(&name)).await.unwrap().unwrap();
    assert!(next.fencing_token() > lost.fencing_token);
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn renewal_that_finds_the_row_locked_never_revives_a_lease_that_ran_out() {
    for lock in [FOR_UPDATE, UPDATE] {
        let (db, name) = (TestDb::shared().await, unique_name!());
        let lease = db.client().acquire(&name).ttl(TTL / 2).await.unwrap();
        let owner = db.row(&name).await.unwrap().owner.unwrap();

        let mut session = locking(&db, lock, &name).await;
        let renewed_while_locked = timeout(SOON, renew(&db, &name, owner))
            .await
            .expect("no renewal waits for a row");
        timeout(SOON, lease.lost()).await.unwrap();
        eventually(SOON, "the ttl is over", async || !db.is_held(&name).await).await;
        session.execute("rollback").await.unwrap();
        let renewed_late = renew(&db, &name, owner).await;
        let renewed_by_handle = lease.renew().await;

        assert_eq!(renewed_while_locked, "busy");
        assert_eq!(renewed_late, "expired");
        assert!(
            matches!(renewed_by_handle, Err(Error::Lost(_))),
            "{renewed_by_handle:?}"
        );
        assert!(!db.is_held(&name).await);
        let next = db.client().acquire(&name).await.unwrap();
        assert!(next.fencing_token() > lease.fencing_token());
        assert_eq!(renew(&db, &name, owner).await, "superseded");
    }
}

#[tokio::test]
async fn release_that_finds_the_row_locked_is_repeated_until_the_name_is_free() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let lease = db.through(&proxy).client().acquire(&name).ttl(MINUTE).await.unwrap();

    let mut session = locking(&db, FOR_UPDATE, &name).await;
    let first = proxy.wait_for_execute("leasehold.release");
    let releasing = tokio::spawn(lease.release());
    timeout(SOON, first).await.expect("the release is sent");
    let second = proxy.wait_for_execute("leasehold.release");
    timeout(SOON, second).await.expect("the release is sent again");
    let held_meanwhile = db.is_held(&name).await;
    session.execute("rollback").await.unwrap();

    assert_eq!(releasing.await.unwrap().unwrap(), Release::Released);
    assert!(held_meanwhile);
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn name_that_another_session_is_just_inserting_delays_its_own_acquire_alone() {
    for end in ["rollback", "commit"] {
        let (db, name) = (TestDb::shared().await, unique_name!());
        let leases = db.client();
        let asker = db.builder().answer_within(TTL / 2).build().unwrap();

        // Everything up to the end of the transaction has to be done while it is open.
        let mut session = inserting(&db, &name).await;
        let blocked = tokio::spawn(leases.acquire(&name).ttl(MINUTE).wait_at_most(SOON).into_future());
        let neighbours: Vec<_> = (0..16)
            .map(|number| {
                tokio::spawn(
                    leases
                        .acquire(format!("{name}:{number}"))
                        .wait_at_most(SOON)
                        .into_future(),
                )
            })
            .collect();
        let mut granted = Vec::new();
        for neighbour in neighbours {
            granted.push(timeout(SOON, neighbour).await.unwrap().unwrap().unwrap());
        }
        let asked = timeout(SOON, asker.try_acquire(&name)).await.unwrap();
        let is_blocked = !blocked.is_finished();
        session.execute(end).await.unwrap();

        let lease = blocked.await.unwrap().unwrap();
        assert!(is_blocked);
        assert!(matches!(asked, Err(Error::Busy { .. })), "{asked:?}");
        assert!(granted.iter().all(leasehold::Lease::is_held));
        assert_eq!(db.row(&name).await.unwrap().token, lease.fencing_token().get());
        assert_eq!(lease.release().await.unwrap(), Release::Released);
        assert!(!db.is_held(&name).await);
    }
}

#[tokio::test]
async fn several_names_being_inserted_do_not_hold_up_the_rest_of_a_batch() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let mut session = inserting(&db, &format!("{name}:0")).await;
    for number in 1..6 {
        insert(&mut session, &format!("{name}:{number}")).await;
    }

    let acquiring: Vec<_> = (0..24)
        .map(|number| {
            let acquire = leases.acquire(format!("{name}:{number}")).ttl(MINUTE);
            tokio::spawn(acquire.wait_at_most(SOON).into_future())
        })
        .collect();
    eventually(SOON, "whoever can be granted is", async || {
        acquiring.iter().filter(|acquiring| acquiring.is_finished()).count() == 18
    })
    .await;
    session.execute("rollback").await.unwrap();

    for acquiring in acquiring {
        let lease = acquiring.await.unwrap().unwrap();
        assert_eq!(lease.release().await.unwrap(), Release::Released);
    }
}

/// A session with an open transaction that has locked the row.
async fn locking(db: &TestDb, lock: &'static str, name: &str) -> PgConnection {
    let mut session = db.session().await;
    session.execute("begin").await.unwrap();
    let locked = sqlx::query(AssertSqlSafe(lock))
        .bind(name)
        .execute(&mut session)
        .await
        .unwrap();
    assert_eq!(locked.rows_affected(), 1);
    session
}

/// A session with an open transaction that has inserted the row.
async fn inserting(db: &TestDb, name: &str) -> PgConnection {
    let mut session = db.session().await;
    session.execute("begin").await.unwrap();
    insert(&mut session, name).await;
    session
}

async fn insert(session: &mut PgConnection, name: &str) {
    sqlx::query("insert into leasehold.locks (name, fence, acquired_at, expires_at) values ($1, 0, now(), now())")
        .bind(name)
        .execute(session)
        .await
        .unwrap();
}

/// What the database answers to a renewal, with no time-out that would end a wait.
async fn renew(db: &TestDb, name: &str, owner: Uuid) -> String {
    sqlx::query_scalar("select outcome from leasehold.renew(array[$1], array[$2], array[interval '1 minute'])")
        .bind(name)
        .bind(owner)
        .fetch_one(&mut db.session().await)
        .await
        .unwrap()
}

const FOR_UPDATE: &str = "select from leasehold.locks where name = $1 for update";
const UPDATE: &str = "update leasehold.locks set holder = 'nobody' where name = $1";

const TTL: Duration = Duration::from_secs(2);
const MINUTE: Duration = Duration::from_secs(60);
