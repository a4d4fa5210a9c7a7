//! Leases that end with a piece of work, with a leadership or with the client.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Error, FencingToken, LeaseClient, LossCause};
use leasehold_testkit::eventually;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn hold_returns_the_value_of_the_work_and_releases() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();

    let token = leases
        .acquire(&name)
        .ttl(LONG)
        .hold(async |lease| {
            assert!(db.is_held(&name).await);
            lease.fencing_token()
        })
        .await
        .unwrap();

    assert!(!db.is_held(&name).await);
    assert_eq!(db.lock(&name).await.unwrap().token, token);
}

#[tokio::test]
async fn hold_releases_when_the_work_fails() {
    let (db, name) = (TestDb::shared().await, unique_name!());

    let held = db
        .client()
        .acquire(&name)
        .ttl(LONG)
        .hold(async |_| "x".parse::<u8>())
        .await;

    assert!(held.unwrap().is_err());
    assert!(!db.is_held(&name).await);
}

#[tokio::test]
async fn hold_releases_when_the_work_panics() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let acquire = db.client().acquire(&name).ttl(LONG);

    let held = tokio::spawn(async move { acquire.hold(async |_| panic!("as the test wants")).await }).await;

    assert!(held.unwrap_err().is_panic());
    db.is_let_go(&name).await;
}

#[tokio::test]
async fn hold_drops_the_work_when_the_lease_is_lost() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = eager(&db);
    let (dropped_with_the_work, mut work_lives) = oneshot::channel::<()>();

    let held = leases.acquire(&name).hold(async |_| {
        let _held = dropped_with_the_work;
        leases.break_lease(&name).await.unwrap();
        std::future::pending::<()>().await
    });
    let held = tokio::time::timeout(SOON, held).await.expect("the loss ends it");

    assert!(matches!(held, Err(Error::Lost(lost)) if lost.cause == LossCause::Gone));
    assert_eq!(work_lives.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert!(leases.try_acquire(&name).await.unwrap().is_some());
}

#[tokio::test]
async fn hold_that_is_dropped_drops_the_work_and_releases() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (begun, has_begun) = oneshot::channel();
    let (dropped_with_the_work, mut work_lives) = oneshot::channel::<()>();

    let holding = db.client().acquire(&name).ttl(LONG).hold(async |_| {
        let _held = dropped_with_the_work;
        begun.send(()).unwrap();
        std::future::pending::<()>().await
    });
    tokio::select! {
        _ = holding => panic!("the work does not end"),
        begun = has_begun => begun.unwrap(),
    }

    assert_eq!(work_lives.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    db.is_let_go(&name).await;
}

#[tokio::test]
async fn hold_and_lead_run_in_spawned_tasks() {
    let (db, held, led) = (TestDb::shared().await, unique_name!(), unique_name!());
    let leases = db.client();

    let acquire = leases.acquire(&held);
    let holding = tokio::spawn(async move {
        acquire
            .hold(async |lease| {
                tokio::task::yield_now().await;
                lease.fencing_token()
            })
            .await
    });
    let leader = {
        let (leases, led) = (leases.clone(), led.clone());
        tokio::spawn(async move { leases.lead(led, async |lease| drop(lease.lost().await)).await })
    };

    holding.await.unwrap().unwrap();
    eventually(SOON, "it leads", async || db.is_held(&led).await).await;
    leases.close().await;
    leader.await.unwrap().unwrap();
}

#[tokio::test]
async fn leader_stands_again_after_a_loss_and_after_its_work_has_ended() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = eager(&db);
    let terms = Mutex::new(Vec::new());

    let leading = leases.lead(&name, async |lease| {
        let term = {
            let mut terms = terms.lock().unwrap();
            terms.push(lease.fencing_token());
            terms.len()
        };
        match term {
            // Lost under the work, which would never end.
            1 => {
                leases.break_lease(&name).await.unwrap();
                std::future::pending().await
            }
            2 => {}
            _ => leases.close().await,
        }
    });
    let led = tokio::time::timeout(SOON, leading).await.expect("closing ends it");

    led.unwrap();
    let terms = terms.into_inner().unwrap();
    assert_eq!(terms.len(), 3);
    assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
    db.is_let_go(&name).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_candidates_never_lead_at_once_and_both_come_to_lead() {
    let (db, name) = (TestDb::own("leasehold_candidates").await, unique_name!());
    sqlx::raw_sql("create table terms (id bigserial primary key, candidate int, fence bigint)")
        .execute(&db.pool)
        .await
        .unwrap();
    let leading = Arc::new(AtomicU32::new(0));
    let candidates: Vec<_> = [1, 2]
        .map(|candidate| {
            let leases = db.client();
            let (pool, leading, name) = (db.pool.clone(), Arc::clone(&leading), name.clone());
            let standing = tokio::spawn({
                let leases = leases.clone();
                async move {
                    leases
                        .lead(name, async move |lease| {
                            assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "nobody else leads");
                            for _ in 0..5 {
                                let mut tx = lease.begin(&pool).await.unwrap();
                                sqlx::query("insert into terms (candidate, fence) values ($1, $2)")
                                    .bind(candidate)
                                    .bind(lease.fencing_token())
                                    .execute(&mut *tx)
                                    .await
                                    .unwrap();
                                tx.commit().await.unwrap();
                            }
                            leading.fetch_sub(1, Ordering::SeqCst);
                        })
                        .await
                }
            });
            (leases, standing)
        })
        .into();

    eventually(LONG, "each has led twice", async || {
        let sql = "select coalesce(min(terms), 0) from (values (1), (2)) as c (candidate)
                   cross join lateral
                       (select count(distinct fence) from terms as t where t.candidate = c.candidate) as n (terms)";
        let fewest: i64 = sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap();
        if fewest >= 2 { Ok(()) } else { Err(fewest) }
    })
    .await;

    for (leases, standing) in candidates {
        leases.close().await;
        standing.await.expect("nobody led beside another").unwrap();
    }
    let fences: Vec<FencingToken> = sqlx::query_scalar("select fence from terms order by id")
        .fetch_all(&db.pool)
        .await
        .unwrap();
    assert!(fences.is_sorted(), "{fences:?}");
}

#[tokio::test]
async fn lead_refuses_an_invalid_name_at_once() {
    let db = TestDb::shared().await;

    let led = db.client().lead("", async |_| ()).await;

    assert!(matches!(led, Err(Error::InvalidName { .. })));
}

#[tokio::test]
async fn close_loses_and_releases_every_lease_of_all_clones() {
    let (db, names) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let clone = leases.clone();
    let mut held = Vec::new();
    for i in 0..20 {
        let client = if i % 2 == 0 { &leases } else { &clone };
        held.push(client.acquire(format!("{names}:{i}")).ttl(LONG).await.unwrap());
    }

    clone.close().await;

    assert_eq!(db.held_count(&names).await, 0);
    for lease in held {
        assert_eq!(lease.lost().await.cause, LossCause::Closed);
        assert!(!lease.is_held());
        assert!(matches!(lease.release().await, Err(Error::Closed)));
    }
    for client in [&leases, &clone] {
        assert!(matches!(client.try_acquire(&names).await, Err(Error::Closed)));
        assert!(matches!(client.acquire(&names).await, Err(Error::Closed)));
        client.close().await;
    }
}

#[tokio::test]
async fn closed_client_closes_its_connection_and_clones_had_but_one() {
    let (direct, name) = (TestDb::shared().await, unique_name!());
    let proxy = direct.proxy();
    let leases = direct.through(&proxy).client();

    let _a = leases.acquire(format!("{name}:a")).await.unwrap();
    let _b = leases.clone().acquire(format!("{name}:b")).await.unwrap();
    let connections = proxy.connections();
    leases.close().await;

    assert_eq!(connections, 1);
    eventually(SOON, "the connection is closed", async || proxy.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_leaves_nothing_behind_of_acquisitions_under_way() {
    let (db, names) = (TestDb::shared().await, unique_name!());
    let rounds = 60;

    for round in 0..rounds {
        let leases = db.client();
        let asking: Vec<_> = (0..16)
            .map(|i| tokio::spawn(leases.acquire(format!("{names}:{round}:{i}")).ttl(LONG).into_future()))
            .collect();
        // Later in each round, so that acquisitions are met at every stage.
        tokio::time::sleep(Duration::from_micros(100 * round)).await;
        leases.close().await;

        for asked in asking {
            match asked.await.unwrap() {
                Ok(lease) => assert_eq!(lease.lost().await.cause, LossCause::Closed),
                Err(error) => assert!(matches!(error, Error::Closed), "{error:?}"),
            }
        }
    }

    db.is_let_go(&names).await;
}

#[tokio::test]
async fn close_is_bounded_when_the_database_does_not_answer() {
    let (direct, name) = (TestDb::shared().await, unique_name!());
    let proxy = direct.proxy();
    let leases = direct
        .through(&proxy)
        .builder()
        .answer_within(Duration::from_millis(500))
        .build()
        .unwrap();
    let lease = leases.acquire(&name).ttl(LONG).await.unwrap();

    proxy.pause();
    let closed = tokio::time::timeout(SOON, leases.close()).await;

    assert!(closed.is_ok(), "it returns");
    assert_eq!(lease.lost().await.cause, LossCause::Closed);
    assert!(matches!(leases.try_acquire(&name).await, Err(Error::Closed)));
    proxy.resume();
    direct.is_let_go(&name).await;
}

#[tokio::test]
async fn close_ends_a_wait_without_a_limit_although_the_database_does_not_answer() {
    let (direct, name) = (TestDb::shared().await, unique_name!());
    let _held = direct.client().acquire(&name).ttl(LONG).await.unwrap();
    let proxy = direct.proxy();
    let leases = direct
        .through(&proxy)
        .builder()
        .answer_within(Duration::from_millis(500))
        .build()
        .unwrap();
    assert!(leases.try_acquire(&name).await.unwrap().is_none());
    // Answered once, it waits without a limit.
    let asked_again = proxy.wait_for_executes("leasehold.acquire", 2);
    let waiter = tokio::spawn(leases.acquire(&name).into_future());
    tokio::time::timeout(SOON, asked_again).await.expect("it asks again");

    proxy.pause();
    leases.close().await;

    let ended = tokio::time::timeout(SOON, waiter).await.expect("the wait ends");
    assert!(matches!(ended.unwrap(), Err(Error::Closed)));
}

#[tokio::test]
async fn client_that_never_asked_for_a_lease_closes_at_once() {
    let (direct, name) = (TestDb::shared().await, unique_name!());
    let proxy = direct.proxy();
    let leases = direct.through(&proxy).client();
    let asked_at = Instant::now();

    leases.close().await;

    assert!(asked_at.elapsed() < SOON);
    assert_eq!(proxy.accepted(), 0);
    assert!(matches!(leases.try_acquire(&name).await, Err(Error::Closed)));
}

/// A client whose renewals come every 50 ms, under a ttl that nothing outlasts.
fn eager(db: &TestDb) -> LeaseClient {
    db.builder()
        .ttl(LONG)
        .renew_every(Duration::from_millis(50))
        .build()
        .unwrap()
}
