//! Names that stay taken after their release, and who waits for them.

use std::time::Duration;

use leasehold::{Error, Release};
use leasehold_testkit::eventually;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{AT_ONCE, by_events, granted, granted_at, line_is, listens, stand_in_line};
use crate::support::install::run;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn name_held_on_goes_to_the_first_waiter_the_moment_its_time_is_over() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (builder, application) = by_events(&db);
    let leases = builder.build().unwrap();
    let held = leases.acquire(&name).ttl(LONG).hold_at_least(HOLD).await.unwrap();
    let (token, since) = (held.fencing_token(), granted_at(&db, &name).await);
    let waits = stand_in_line(&db, &name, leases.acquire(&name)).await;
    listens(&db, &application).await;

    let released = held.release().await.unwrap();
    let asked = db.client().try_acquire(&name).await.unwrap();
    let held_on = db.lock(&name).await.unwrap();
    let lease = granted(waits).await;

    assert_eq!(released, Release::HeldOn);
    assert!(asked.is_none() && held_on.is_held && held_on.token == token);
    assert_eq!(held_on.expires_at, since + HOLD);
    assert!(lease.fencing_token() > token);
    let after = granted_at(&db, &name).await - since;
    assert!(
        after.to_std().unwrap() >= HOLD && after.to_std().unwrap() < HOLD + LATE,
        "{after}"
    );
}

#[tokio::test]
async fn who_becomes_first_while_a_name_is_held_on_is_served_at_that_moment_too() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let ((builder, application), others) = (by_events(&db), db.client());
    let leases = builder.build().unwrap();
    let held = others.acquire(&name).ttl(LONG).hold_at_least(HOLD).await.unwrap();
    let since = granted_at(&db, &name).await;
    assert_eq!(held.release().await.unwrap(), Release::HeldOn);
    let first = stand_in_line(&db, &name, others.acquire(&name)).await;
    let second = stand_in_line(&db, &name, leases.acquire(&name)).await;
    listens(&db, &application).await;

    first.abort();
    line_is(&db, &name, 1).await;
    let _lease = granted(second).await;

    let after = (granted_at(&db, &name).await - since).to_std().unwrap();
    assert!(after >= HOLD && after < HOLD + LATE, "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_keeps_its_name_while_many_clients_queue_as_fast_as_they_can() {
    let (db, name) = (TestDb::own("queue_siege").await, "besieged");
    run(&db, "alter database queue_siege set track_functions = 'pl'").await;
    let (holders, ttl) = (db.as_application("holder").client(), Duration::from_secs(1));
    let held = holders.acquire(name).ttl(ttl).await.unwrap();
    let started_at = Instant::now();
    let mut clients = JoinSet::new();

    for _ in 0..16 {
        let leases = db.client();
        // As many as keep the client's connection busy.
        for _ in 0..4 {
            let leases = leases.clone();
            clients.spawn(async move {
                let mut waits = 0;
                while started_at.elapsed() < ttl * 4 {
                    let ended = leases.acquire(name).wait_at_most(ttl / 200).await;
                    let is_contention = matches!(
                        ended,
                        Err(Error::WaitTimedOut { .. } | Error::Busy { .. } | Error::Unanswered { .. })
                    );
                    assert!(is_contention, "{ended:?}");
                    waits += 1;
                }
                waits
            });
        }
    }
    let mut not_held = 0;
    let waits = tokio::select! {
        lost = held.lost() => panic!("{lost}"),
        waits = clients.join_all() => waits,
        () = async { loop {
            not_held += u32::from(!held.is_held());
            tokio::time::sleep(ttl / 200).await;
        } } => unreachable!(),
    };

    assert_eq!(not_held, 0);
    assert!(waits.iter().all(|waits| *waits > 20), "{waits:?}");
    assert_eq!(db.lock(name).await.unwrap().token, held.fencing_token());
    assert_eq!(held.release().await.unwrap(), Release::Released);
    line_is(&db, name, 0).await;
    // A session reports what it has called when it ends: one renewal every third of the ttl, and none
    // that found the row locked and went again.
    holders.close().await;
    eventually(SOON, "its sessions are gone", async || {
        db.backends("holder").await.is_empty()
    })
    .await;
    let sql = "select calls from pg_stat_user_functions where schemaname = 'leasehold' and funcname = 'renew'";
    let renewals: i64 = sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap();
    assert!((4..=16).contains(&renewals), "{renewals}");
}

/// Long enough to stand in line before it is over, on a machine that is busy too.
const HOLD: Duration = Duration::from_millis(1500);

const LATE: Duration = Duration::from_millis(AT_ONCE.as_millis() as u64 / 4);
