//! Hundreds of hand-offs that no heartbeat helps: a wake-up that is lost would take half a minute.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_testkit::CpuHog;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::NO_BEAT;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_hand_a_name_to_and_fro_without_a_wake_up_lost() {
    let slowest = hand_to_and_fro(1).await;

    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_with_eight_waiters_each_hand_a_name_on_without_a_wake_up_lost() {
    let slowest = hand_to_and_fro(8).await;

    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_lost_on_a_machine_that_is_busy() {
    let _load = CpuHog::start(2);

    let slowest = hand_to_and_fro(1).await;

    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

/// Two clients with so many waiters each acquire and release one name until it was handed on often
/// enough. Returns the longest time from a release to the next grant.
async fn hand_to_and_fro(waiters: usize) -> Duration {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let state = Arc::new(Mutex::new(State::default()));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let leases = db.builder().ttl(LONG).heartbeat_every(NO_BEAT).build().unwrap();
        for _ in 0..waiters {
            let (pool, leases, name, state) = (db.pool.clone(), leases.clone(), name.clone(), state.clone());
            tasks.spawn(async move {
                while !state.lock().unwrap().is_over() {
                    let lease = leases.acquire(&name).await.unwrap();
                    let waits = state.lock().unwrap().count_grant();
                    if waits {
                        // To be told. Else the release comes while others are about to stand in line.
                        until_somebody_waits(&pool, &name).await;
                    }
                    state.lock().unwrap().released_at = Some(Instant::now());
                    lease.release().await.unwrap();
                }
            });
        }
    }
    timeout(SOON * 2, async {
        while tasks.join_next().await.transpose().unwrap().is_some() {}
    })
    .await
    .expect("no wake-up is lost for good");
    let state = state.lock().unwrap();
    state.slowest
}

#[derive(Default)]
struct State {
    hand_offs: u32,
    released_at: Option<Instant>,
    slowest: Duration,
}

impl State {
    fn is_over(&self) -> bool {
        self.hand_offs >= HAND_OFFS
    }

    /// Counts a grant. True for every other, as long as somebody will come to wait.
    fn count_grant(&mut self) -> bool {
        if let Some(released_at) = self.released_at {
            self.slowest = self.slowest.max(released_at.elapsed());
            self.hand_offs += 1;
        }
        self.hand_offs.is_multiple_of(2) && !self.is_over()
    }
}

async fn until_somebody_waits(pool: &PgPool, name: &str) {
    let sql = "select exists (select from leasehold.waiters where name = $1)";
    while !sqlx::query_scalar::<_, bool>(sql)
        .bind(name)
        .fetch_one(pool)
        .await
        .expect(sql)
    {}
}

const HAND_OFFS: u32 = 300;
