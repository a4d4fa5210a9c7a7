//! Every async operation, dropped at every point at which it awaits, until it is done before it is
//! dropped; and at random moments; each on a fast and on a slow network. What the documentation says
//! under "Cancel safety" is looked for after every drop.

use std::time::Duration;

use leasehold::{Error, FencingToken, Lease, LeaseClient, LossCause};
use leasehold_testkit::eventually;
use sqlx::postgres::PgPoolOptions;
use tokio::time::{sleep, timeout};

use super::stage::{POOL, Stage, nobody_waits};
use crate::support::cancelled::{Drop, Rng, dropped};
use crate::support::{LONG, SOON};

/// An operation that tells whether it was done before it was dropped.
macro_rules! dropped_at_every_await {
    ($($test:ident: |$stage:ident, $name:ident, $when:ident| $operation:expr;)+) => { $(
        #[tokio::test]
        async fn $test() {
            let mut rng = Rng::new();
            for latency in LATENCIES {
                let stage = Stage::set(latency).await;
                let mut polls = 0;
                loop {
                    let mut done = 0;
                    for $when in [Drop::Pending(polls), Drop::Woken(polls)] {
                        let ($stage, $name) = (&stage, &stage.name());
                        done += u32::from($operation);
                        stage.is_free($name).await;
                    }
                    if done == 2 {
                        break;
                    }
                    polls += 1;
                    assert!(polls < MOST_POLLS, "it is never done");
                }
                assert!(polls > 0, "it was dropped before it was done");
                for _ in 0..MOMENTS {
                    let $when = Drop::After(rng.pause(latency * 8 + Duration::from_millis(4)));
                    let ($stage, $name) = (&stage, &stage.name());
                    let _ = $operation;
                    stage.is_free($name).await;
                }
                stage.ends_clean().await;
            }
        }
    )+ };
}

dropped_at_every_await! {
    acquire_of_a_free_name_leaves_no_grant: |stage, name, when|
        dropped(when, stage.leases.acquire(name).into_future()).await.is_some();

    acquire_that_waits_in_vain_leaves_no_waiter: |stage, name, when| {
        let theirs = stage.theirs(name).await;
        let wait = stage.leases.acquire(name).wait_at_most(Duration::from_millis(20));
        let outcome = dropped(when, wait.into_future()).await;
        nobody_waits(&stage.db, name).await;
        assert!(theirs.is_held());
        outcome.is_some_and(|outcome| outcome.is_err())
    };

    acquire_that_is_handed_the_name_leaves_no_grant_and_no_waiter: |stage, name, when| {
        let theirs = stage.theirs(name).await;
        let handing = tokio::spawn(async move {
            sleep(Duration::from_millis(3)).await;
            theirs.release().await
        });
        let outcome = dropped(when, stage.leases.acquire(name).into_future()).await;
        let is_done = outcome.is_some();
        drop(outcome);
        handing.await.unwrap().unwrap();
        nobody_waits(&stage.db, name).await;
        is_done
    };

    try_acquire_leaves_no_grant: |stage, name, when|
        dropped(when, stage.leases.try_acquire(name)).await.is_some();

    try_acquire_of_a_held_name_changes_nothing: |stage, name, when| {
        let theirs = stage.theirs(name).await;
        let outcome = dropped(when, stage.leases.try_acquire(name)).await;
        assert!(theirs.is_held() && stage.db.is_held(name).await);
        outcome.is_some_and(|outcome| outcome.unwrap().is_none())
    };

    release_still_releases: |stage, name, when| {
        let lease = stage.lease(name).await;
        dropped(when, lease.release()).await.is_some()
    };

    renew_leaves_the_lease_to_be_renewed_again: |stage, name, when| {
        let lease = stage.lease(name).await;
        let outcome = dropped(when, lease.renew()).await;
        assert!(lease.is_held());
        lease.renew().await.unwrap();
        outcome.is_some()
    };

    lost_and_run_until_lost_tell_again_what_was_not_heard: |stage, name, when| {
        let lease = stage.lease(name).await;
        let telling = async {
            let (lost, _) = tokio::join!(lease.run_until_lost(lease.lost()), async {
                assert!(stage.others.break_lease(name).await.unwrap());
                lease.renew().await.unwrap_err()
            });
            lost.unwrap_err()
        };
        let outcome = dropped(when, telling).await;
        let is_broken = outcome.is_some();
        if let Some(lost) = outcome {
            assert_eq!(lease.lost().await, lost);
        } else if let Err(error) = lease.renew().await {
            // Broken, although nobody has heard of it.
            assert!(matches!(error, Error::Lost(lost) if lost.cause == LossCause::Gone));
            assert!(!stage.db.is_held(name).await);
        }
        is_broken
    };

    fence_leaves_a_transaction_that_is_rolled_back_when_it_is_dropped: |stage, name, when| {
        let lease = stage.lease(name).await;
        let mut tx = stage.pool.begin().await.unwrap();
        let is_done = dropped(when, lease.fence(&mut tx)).await.is_some();
        drop(tx);
        stage.no_transaction_is_open().await;
        is_done
    };

    begin_leaves_no_transaction: |stage, name, when| {
        let lease = stage.lease(name).await;
        let is_done = dropped(when, lease.begin(&stage.pool)).await.is_some();
        stage.no_transaction_is_open().await;
        is_done
    };

    hold_drops_the_work_and_releases: |stage, name, when| {
        let work = async |lease: &Lease| lease.begin(&stage.pool).await.unwrap().commit().await;
        let is_done = dropped(when, stage.leases.acquire(name).hold(work)).await.is_some();
        stage.no_transaction_is_open().await;
        is_done
    };

    lead_drops_the_work_and_releases: |stage, name, when| {
        let work = async |lease: &Lease| lease.renew().await.unwrap();
        // It stands again and again: one turn is enough.
        let is_enough = matches!(when, Drop::Pending(12..) | Drop::Woken(12..));
        is_enough || dropped(when, stage.leases.lead(name, work)).await.is_some()
    };

    close_closes_once_it_was_polled: |stage, name, when| {
        let application = &name[name.len() - 36..];
        let options = stage.pool.connect_options().as_ref().clone().application_name(application);
        let pool = PgPoolOptions::new().connect_lazy_with(options);
        let leases = LeaseClient::builder(pool).ttl(LONG).build().unwrap();
        let lease = leases.acquire(name).manual_renewal().await.unwrap();
        let outcome = dropped(when, leases.close()).await;
        // Alone of them all, this one was never polled.
        if !matches!(when, Drop::Woken(0)) {
            assert!(matches!(leases.try_acquire(name).await, Err(Error::Closed)));
            timeout(SOON, lease.lost()).await.expect("it is lost");
            eventually(SOON, "its connection is closed", async || stage.sessions_of(application).await == 0).await;
        }
        outcome.is_some()
    };

    inspect_held_and_check_leave_the_pool_whole: |stage, name, when| {
        let lease = stage.lease(name).await;
        let looking = async {
            stage.leases.inspect(name).await.unwrap().unwrap();
            stage.leases.held().await.unwrap();
            leasehold::check(&stage.pool).await.unwrap();
        };
        let outcome = dropped(when, looking).await;
        assert!(lease.is_held());
        is_whole(stage).await;
        outcome.is_some()
    };

    break_lease_is_carried_out_as_a_whole_or_not_at_all: |stage, name, when| {
        let lease = stage.lease(name).await;
        let outcome = dropped(when, stage.leases.break_lease(name)).await;
        is_whole(stage).await;
        assert!(outcome.is_none() || !stage.db.is_held(name).await);
        // Its holder learns which.
        let is_kept = lease.renew().await.is_ok();
        assert_eq!(is_kept, stage.db.is_held(name).await);
        outcome.is_some()
    };

    admit_leaves_no_mark_of_a_transaction_that_is_dropped: |stage, name, when| {
        let (high, low) = (FencingToken::new(42), FencingToken::new(41));
        let mut tx = stage.pool.begin().await.unwrap();
        let outcome = dropped(when, high.admit(&mut tx, name)).await;
        drop(tx);
        let mut tx = stage.db.pool.begin().await.unwrap();
        low.admit(&mut tx, name).await.unwrap();
        outcome.is_some()
    };
}

/// Each of the pool's connections can be had, and is in no transaction.
async fn is_whole(stage: &Stage) {
    let (mut all, mut pids) = (Vec::new(), Vec::<i32>::new());
    for _ in 0..POOL {
        let mut connection = stage.pool.acquire().await.unwrap();
        let pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *connection);
        pids.push(pid.await.unwrap());
        all.push(connection);
    }
    eventually(SOON, "no connection is in a transaction", async || {
        let sql = "select count(*) from pg_stat_activity where pid = any($1) and state <> 'idle'";
        let busy: i64 = sqlx::query_scalar(sql)
            .bind(&pids)
            .fetch_one(&stage.db.pool)
            .await
            .unwrap();
        busy == 0
    })
    .await;
}

const LATENCIES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(2)];
const MOST_POLLS: u32 = 100;
const MOMENTS: u32 = 16;
