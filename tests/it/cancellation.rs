//! Every async method may be dropped at any point: no name stays held by nobody, no connection
//! of the pool stays in a transaction, and nothing is renewed that nobody holds.

mod everywhere;
mod stage;
mod together;
mod unanswered;

use std::time::Duration;

use leasehold::{Lease, LeaseClient};
use leasehold_testkit::{FaultProxy, eventually};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::cancelled::{Drop, Rng, dropped};
use crate::support::{LONG, SOON, TestDb, unique_name};

/// An operation, and how it is carried out on a name of its own.
macro_rules! dropped_everywhere {
    ($($test:ident: |$stage:ident, $name:ident, $when:ident| $operation:expr;)+) => { $(
        #[tokio::test]
        async fn $test() {
            let $stage = &Stage::set().await;
            for polls in 0..POLLS {
                for $when in [Drop::Pending(polls), Drop::Woken(polls)] {
                    let $name = &$stage.name();
                    $operation;
                }
            }
            $stage.is_clean().await;
        }
    )+ };
}

dropped_everywhere! {
    dropped_acquire_leaves_no_grant: |stage, name, when|
        drop(dropped(when, stage.leases.acquire(name).into_future()).await);

    dropped_acquire_that_waits_leaves_no_grant: |stage, name, when| {
        let held = stage.lease(name).await;
        let waiting = async { tokio::join!(stage.leases.acquire(name).into_future(), held.release()) };
        drop(dropped(when, waiting).await);
    };

    dropped_try_acquire_leaves_no_grant: |stage, name, when|
        drop(dropped(when, stage.leases.try_acquire(name)).await);

    dropped_release_still_releases: |stage, name, when| {
        let lease = stage.lease(name).await;
        drop(dropped(when, lease.release()).await);
    };

    dropped_renew_and_lost_leave_the_lease_as_it_was: |stage, name, when| {
        let lease = stage.lease(name).await;
        drop(dropped(when, lease.renew()).await);
        drop(dropped(when, lease.lost()).await);
        drop(dropped(when, lease.run_until_lost(tokio::task::yield_now())).await);
        assert!(lease.is_held());
        lease.renew().await.unwrap();
    };

    dropped_fence_leaves_the_transaction_to_be_rolled_back: |stage, name, when| {
        let lease = stage.lease(name).await;
        let mut tx = stage.pool.begin().await.unwrap();
        match dropped(when, lease.fence(&mut tx)).await {
            Some(fenced) => {
                fenced.unwrap();
                tx.commit().await.unwrap();
            }
            None => drop(tx),
        }
        stage.no_transaction_is_open().await;
    };

    dropped_begin_leaves_no_transaction: |stage, name, when| {
        let lease = stage.lease(name).await;
        drop(dropped(when, lease.begin(&stage.pool)).await);
        // Looked for each time: whoever takes the connection next would end it unawares.
        stage.no_transaction_is_open().await;
    };

    dropped_hold_releases: |stage, name, when| {
        let work = async |lease: &Lease| lease.renew().await;
        drop(dropped(when, stage.leases.acquire(name).hold(work)).await);
    };

    dropped_lead_releases: |stage, name, when| {
        let work = async |lease: &Lease| lease.renew().await.unwrap();
        drop(dropped(when, stage.leases.lead(name, work)).await);
    };

    dropped_looks_leave_the_pool_as_it_was: |stage, name, when| {
        let _lease = stage.lease(name).await;
        drop(dropped(when, stage.leases.inspect(name)).await);
        drop(dropped(when, stage.leases.held()).await);
        drop(dropped(when, stage.leases.break_lease(name)).await);
    };
}

#[tokio::test]
async fn dropped_close_closes_all_the_same() {
    let stage = Stage::set().await;

    for polls in 1..POLLS {
        for when in [Drop::Pending(polls), Drop::Woken(polls)] {
            let leases = client(&stage.direct, &stage.pool);
            let lease = leases.acquire(stage.name()).await.unwrap();
            let _ = dropped(when, leases.close()).await;
            assert!(leases.try_acquire(stage.name()).await.is_err());
            timeout(SOON, lease.lost()).await.expect("it is lost");
        }
    }

    stage.is_clean().await;
}

#[tokio::test]
async fn dropped_migrate_leaves_nothing_half_done_and_can_be_run_again() {
    let db = TestDb::empty("leasehold_cancelled_migrate").await;
    // Told apart from those who look.
    let migrating = TestDb::with(db.options.clone().application_name("cancelled migrate"));

    let mut was_dropped = 0;
    while dropped(Drop::Pending(was_dropped), leasehold::migrate(&migrating.pool))
        .await
        .is_none()
    {
        was_dropped += 1;
    }
    leasehold::migrate(&db.pool).await.unwrap();

    assert!(was_dropped > 5, "dropped {was_dropped} times");
    let lease = db.client().acquire(unique_name!()).await.unwrap();
    lease.begin(&db.pool).await.unwrap().commit().await.unwrap();
    eventually(
        SOON,
        "the connections of dropped runs are gone, and their locks",
        async || {
            let sql = "select (select count(*) from pg_stat_activity where application_name = 'cancelled migrate')
                        + (select count(*) from pg_locks where locktype = 'advisory' and database =
                              (select oid from pg_database where datname = current_database()))";
            let left: i64 = sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap();
            if left == 0 { Ok(()) } else { Err(left) }
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_operations_dropped_at_random_moments_leave_nothing_behind() {
    let (stage, mut rng) = (Stage::set().await, Rng::new());
    let (mut tasks, mut was_dropped) = (JoinSet::new(), 0);
    let operations = 4000;

    for i in 0..operations {
        let (leases, pool) = (stage.leases.clone(), stage.pool.clone());
        // Some names are contended, most are not.
        let name = match rng.in_range(0..4) {
            0 => format!("{}:contended:{}", stage.names, rng.in_range(0..4)),
            _ => stage.name(),
        };
        let (operation, after) = (rng.in_range(0..7), rng.pause(Duration::from_millis(8)));
        tasks.spawn(async move { timeout(after, operate(leases, pool, name, operation)).await.is_err() });
        if i % 32 == 31 {
            while let Some(done) = tasks.join_next().await {
                was_dropped += usize::from(done.unwrap());
            }
            stage.no_transaction_is_open().await;
        }
    }
    was_dropped += tasks.join_all().await.into_iter().filter(|dropped| *dropped).count();

    assert!(was_dropped > operations / 10, "dropped {was_dropped} times");
    stage.is_clean().await;
}

async fn operate(leases: LeaseClient, pool: PgPool, name: String, operation: u64) {
    match operation {
        0 => drop(leases.try_acquire(&name).await.unwrap()),
        1 => drop(leases.inspect(&name).await.unwrap()),
        2 => drop(leases.held().await.unwrap()),
        3 => drop(leases.acquire(&name).hold(async |lease| lease.renew().await).await),
        _ => {
            let lease = leases.acquire(&name).wait_at_most(SOON).await.unwrap();
            match operation {
                4 => drop(lease.begin(&pool).await.unwrap()),
                5 => lease.renew().await.unwrap(),
                _ => drop(lease.release().await.unwrap()),
            }
        }
    }
}

/// A client that can be overheard, on a small pool whose connections can be told from others.
struct Stage {
    names: String,
    application: String,
    pool: PgPool,
    leases: LeaseClient,
    proxy: FaultProxy,
    direct: TestDb,
}

impl Stage {
    async fn set() -> Self {
        let direct = TestDb::shared().await;
        let proxy = direct.proxy();
        let names = unique_name!();
        let application = uuid::Uuid::new_v4().to_string();
        let behind = direct.through(&proxy).as_application(&application);
        let pool = PgPoolOptions::new()
            .max_connections(POOL)
            .acquire_timeout(LONG)
            .connect_lazy_with(behind.options.clone());
        Self {
            names,
            leases: client(&behind, &pool),
            application,
            pool,
            proxy,
            direct,
        }
    }

    fn name(&self) -> String {
        format!("{}:{}", self.names, uuid::Uuid::new_v4())
    }

    async fn lease(&self, name: &str) -> Lease {
        self.leases.acquire(name).await.unwrap()
    }

    async fn is_clean(&self) {
        self.direct.is_let_go(&self.names).await;
        self.nothing_is_renewed().await;
        self.no_transaction_is_open().await;
        self.pool_is_whole().await;
        self.leases.acquire(self.name()).await.unwrap().release().await.unwrap();
    }

    /// Renewals come every 50 ms while the keeper knows of a lease.
    async fn nothing_is_renewed(&self) {
        let probe = self.lease(&self.name()).await;
        timeout(SOON, self.proxy.wait_for_execute("leasehold.renew("))
            .await
            .expect("the renewal of a lease that is held is overheard");
        probe.release().await.unwrap();

        let renewed = timeout(RENEW_EVERY * 6, self.proxy.wait_for_execute("leasehold.renew(")).await;

        assert!(renewed.is_err(), "something is renewed that nobody holds");
    }

    async fn no_transaction_is_open(&self) {
        let mut looking = PgConnection::connect_with(&self.direct.options).await.unwrap();
        let sql = "select array_agg(state || ': ' || query) from pg_stat_activity
                   where application_name = $1 and state <> 'idle'";
        eventually(SOON, "every connection is idle and none in a transaction", async || {
            let busy: Option<Vec<String>> = sqlx::query_scalar(sql)
                .bind(&self.application)
                .fetch_one(&mut looking)
                .await
                .unwrap();
            busy.map_or(Ok(()), Err)
        })
        .await;
    }

    async fn pool_is_whole(&self) {
        let mut all = Vec::new();
        for _ in 0..POOL {
            let mut connection = self.pool.acquire().await.unwrap();
            sqlx::query("select 1").execute(&mut *connection).await.unwrap();
            all.push(connection);
        }
    }
}

fn client(db: &TestDb, pool: &PgPool) -> LeaseClient {
    let client = db.builder_on(pool).ttl(LONG).renew_every(RENEW_EVERY);
    client.build().unwrap()
}

/// More than any operation needs on a server that answers.
const POLLS: u32 = 12;
const POOL: u32 = 4;
const RENEW_EVERY: Duration = Duration::from_millis(50);
