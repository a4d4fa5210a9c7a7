//! Many operations at once on a few names, each dropped at a moment of chance, while the network is slow,
//! cut and silent by turns; and then everything is looked over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Error, FencingToken, Lease, LeaseClient};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::stage::{Stage, nobody_waits};
use crate::support::cancelled::{Drop, Rng, dropped};
use crate::support::{LONG, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_dropped_at_random_beside_each_other_leave_nothing_behind() {
    run_for(Duration::from_secs(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes two minutes: make soak"]
async fn operations_dropped_at_random_for_minutes_leave_nothing_behind() {
    run_for(Duration::from_secs(120)).await;
}

async fn run_for(time: Duration) {
    let (stage, mut rng) = (Stage::set(Duration::ZERO).await, Rng::new());
    let names: Vec<String> = (0..NAMES).map(|_| stage.name()).collect();
    let (granted, until) = (Arc::new(Granted::default()), Instant::now() + time);
    let tally = Arc::new(Tally::default());

    let mut tasks = JoinSet::new();
    for worker in 0..WORKERS {
        // Some on each side of the network.
        let leases = if worker % 3 == 0 { &stage.others } else { &stage.leases };
        let actor = Actor {
            leases: leases.clone(),
            pool: stage.pool.clone(),
            names: names.clone(),
            granted: Arc::clone(&granted),
            tally: Arc::clone(&tally),
            rng: rng.fork(),
        };
        tasks.spawn(actor.act());
    }
    // A busy machine takes longer to come to enough.
    while Instant::now() < until || (!is_enough(&tally, &granted) && Instant::now() < until + LONG) {
        disturb(&stage, &mut rng).await;
    }
    stage.proxy.heal();
    tally.is_over.store(true, Ordering::Relaxed);
    tasks.join_all().await;

    assert!(is_enough(&tally, &granted), "{tally:?}, {}", granted.count());
    for name in &names {
        stage.is_free(name).await;
        nobody_waits(&stage.db, name).await;
    }
    stage.ends_clean().await;
}

fn is_enough(tally: &Tally, granted: &Granted) -> bool {
    let count = |of: &AtomicU32| of.load(Ordering::Relaxed);
    count(&tally.done) > 50 && count(&tally.was_dropped) > 50 && granted.count() > 20
}

/// A fault of the network, and then it is whole again.
async fn disturb(stage: &Stage, rng: &mut Rng) {
    match rng.in_range(0..6) {
        0 => stage.proxy.cut(),
        1 => stage.proxy.reset(),
        2 => stage.proxy.delay(rng.pause(Duration::from_millis(10))),
        3 => stage.proxy.hold_replies(),
        4 => stage.proxy.pause(),
        _ => stage.proxy.hold_replies_after_next_request(),
    }
    sleep(rng.pause(Duration::from_millis(80))).await;
    stage.proxy.heal();
    sleep(rng.pause(Duration::from_millis(120))).await;
}

struct Actor {
    leases: LeaseClient,
    pool: PgPool,
    names: Vec<String>,
    granted: Arc<Granted>,
    tally: Arc<Tally>,
    rng: Rng,
}

#[derive(Debug, Default)]
struct Tally {
    done: AtomicU32,
    was_dropped: AtomicU32,
    is_over: AtomicBool,
}

impl Actor {
    async fn act(mut self) {
        while !self.tally.is_over.load(Ordering::Relaxed) {
            let at = usize::try_from(self.rng.in_range(0..NAMES)).unwrap();
            let (name, operation) = (self.names[at].clone(), self.rng.in_range(0..9));
            let when = match self.rng.in_range(0..4) {
                0 => Drop::Pending(u32::try_from(self.rng.in_range(0..12)).unwrap()),
                1 => Drop::Woken(u32::try_from(self.rng.in_range(0..12)).unwrap()),
                _ => Drop::After(self.rng.pause(Duration::from_millis(60))),
            };
            // A future that waits is polled again by its heartbeat at the latest.
            let operating = tokio::time::timeout(Duration::from_secs(1), dropped(when, self.operate(&name, operation)));
            let counts = match operating.await {
                Ok(Some(())) => &self.tally.done,
                Ok(None) | Err(_) => &self.tally.was_dropped,
            };
            counts.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn operate(&self, name: &str, operation: u64) {
        let work = async |lease: &Lease| {
            self.granted.note(lease);
            let _ = lease.renew().await;
        };
        let lease = match operation {
            0 => return drop(self.leases.inspect(name).await),
            1 => return drop(self.leases.acquire(name).hold(work).await),
            2 => return drop(self.leases.lead(name, work).await),
            3 => self.leases.try_acquire(name).await,
            _ => self.leases.acquire(name).wait_at_most(SOON).await.map(Some),
        };
        let lease = match lease {
            Ok(Some(lease)) => lease,
            // The network is cut again and again.
            Ok(None) | Err(Error::WaitTimedOut { .. } | Error::Unanswered { .. } | Error::Busy { .. }) => return,
            Err(other) => panic!("{other:?}"),
        };
        self.granted.note(&lease);
        match operation {
            3 => {}
            4 => drop(lease.begin(&self.pool).await),
            5 => drop(lease.renew().await),
            6 => sleep(Duration::from_millis(1)).await,
            _ => drop(lease.release().await),
        }
    }
}

/// The last token of each name that a holder has seen.
#[derive(Default)]
struct Granted(Mutex<HashMap<String, (FencingToken, u32)>>);

impl Granted {
    fn note(&self, lease: &Lease) {
        let mut granted = self.0.lock().unwrap();
        if !lease.is_held() {
            return;
        }
        let (last, count) = granted
            .entry(lease.name().to_owned())
            .or_insert((FencingToken::new(0), 0));
        assert!(lease.fencing_token() > *last, "{lease:?} after {last}");
        (*last, *count) = (lease.fencing_token(), *count + 1);
    }

    fn count(&self) -> u32 {
        self.0.lock().unwrap().values().map(|(_, count)| count).sum()
    }
}

const NAMES: u64 = 4;
const WORKERS: u32 = 24;
