//! `wait_at_most` is honoured whatever the network and the server do, and a wait without a limit
//! goes on all the while.
//!
//! Each test has two waiters in line when its fault begins. Where only the lane is hit, the first is
//! told meanwhile that its turn has come, and asks in vain.

use std::time::Duration;

use leasehold::{Error, Lease, LeaseClient};
use leasehold_testkit::{Cluster, FaultProxy, StopMode, eventually, signals};
use sqlx::Executor;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use super::{QUICK_BEAT, Waiting, asleep, listening, url};
use crate::support::sql::{Grant, fence, grant, release, run};
use crate::support::{SOON, TestDb, unique_name};

#[tokio::test]
async fn deadline_is_kept_while_the_network_swallows_everything() {
    let scene = Scene::of(TestDb::shared().await).await;
    let waits = scene.two_waits().await;

    scene.proxy.pause();
    scene.release(&waits.endless.holder).await;
    let refused = waits.limited.ends_in_time().await;
    assert!(!waits.endless.waiter.is_finished());
    scene.proxy.heal();

    assert!(matches!(refused, Error::WaitTimedOut { .. }), "{refused:?}");
    waits.endless.served().await;
}

#[tokio::test]
async fn deadline_is_kept_while_connections_are_broken_off() {
    let scene = Scene::of(TestDb::shared().await).await;
    let waits = scene.two_waits().await;

    let breaks_off = async {
        loop {
            scene.proxy.reset();
            tokio::time::sleep(LIMIT / 30).await;
            scene.proxy.cut();
            tokio::time::sleep(LIMIT / 30).await;
        }
    };
    let refused = tokio::select! {
        refused = waits.limited.ends_in_time() => refused,
        () = breaks_off => unreachable!("it goes on for ever"),
    };

    assert!(matches!(refused, Error::WaitTimedOut { .. }), "{refused:?}");
    assert!(scene.proxy.accepted() > 2, "the fault has hit");
    scene.serves(waits.endless).await;
}

#[tokio::test]
async fn deadline_is_kept_while_connections_are_refused() {
    let scene = Scene::of(TestDb::shared().await).await;
    let waits = scene.two_waits().await;

    scene.proxy.refuse();
    scene.proxy.reset();
    scene.release(&waits.endless.holder).await;
    let refused = waits.limited.ends_in_time().await;
    assert!(!waits.endless.waiter.is_finished());
    scene.proxy.heal();

    assert!(matches!(refused, Error::WaitTimedOut { .. }), "{refused:?}");
    waits.endless.served().await;
}

#[tokio::test]
async fn deadline_is_kept_while_every_packet_is_late() {
    let scene = Scene::of(TestDb::shared().await).await;
    let waits = scene.two_waits().await;

    // An answer takes longer than is left.
    scene.proxy.delay(LIMIT / 2);
    scene.release(&waits.endless.holder).await;
    let refused = waits.limited.ends_in_time().await;
    assert!(!waits.endless.waiter.is_finished());
    scene.proxy.heal();

    assert!(matches!(refused, Error::WaitTimedOut { .. }), "{refused:?}");
    waits.endless.served().await;
}

#[tokio::test]
async fn deadline_is_kept_while_the_server_stands_still_and_while_it_is_down() {
    let cluster = Cluster::start().await;
    let db = TestDb::with(cluster.options());
    db.install_schema().await;
    db.pool.close().await;
    let scene = Scene::of(TestDb::with(cluster.options())).await;

    let waits = scene.two_waits().await;
    let mut server = cluster.processes("postgres");
    server.retain(|pid| *pid != cluster.server_pid());
    server.insert(0, cluster.server_pid());
    assert!(server.iter().filter(|pid| signals::stop(**pid)).count() > 3);
    let stopped = waits.limited.ends_in_time().await;
    for pid in server {
        signals::cont(pid);
    }
    scene.serves(waits.endless).await;

    let waits = scene.two_waits().await;
    cluster.stop(StopMode::Immediate).await;
    let down = waits.limited.ends_in_time().await;
    cluster.restart().await;
    scene.serves(waits.endless).await;

    for refused in [stopped, down] {
        assert!(matches!(refused, Error::WaitTimedOut { .. }), "{refused:?}");
    }
}

#[tokio::test]
async fn deadline_is_kept_while_somebody_locks_the_row() {
    let scene = Scene::of(TestDb::shared().await).await;
    let waits = scene.two_waits().await;
    let mut psql = scene.db.session().await;

    // The lease ends meanwhile, so that both ask again and again.
    let lock = format!(
        "update leasehold.locks set expires_at = clock_timestamp() + interval '50 ms' where name = '{name}'; \
        commit; begin; select from leasehold.locks where name = '{name}' for update",
        name = scene.name
    );
    run(&mut psql, &lock).await;
    let refused = waits.limited.ends_in_time().await;
    assert!(!waits.endless.waiter.is_finished());
    psql.execute("rollback").await.unwrap();

    assert!(matches!(refused, Error::WaitTimedOut { .. }), "{refused:?}");
    waits.endless.served().await;
}

#[tokio::test]
async fn deadline_is_kept_while_a_fenced_transaction_pins_the_name() {
    let scene = Scene::of(TestDb::shared().await).await;
    let waits = scene.two_waits().await;
    let mut writer = scene.db.session().await;

    writer.execute("begin").await.unwrap();
    fence(&mut writer, &waits.endless.holder).await.unwrap();
    scene.release(&waits.endless.holder).await;
    let refused = waits.limited.ends_in_time().await;
    assert!(!waits.endless.waiter.is_finished());
    writer.execute("commit").await.unwrap();

    assert!(
        matches!(refused, Error::WaitTimedOut { pinned: true, .. }),
        "{refused:?}"
    );
    waits.endless.served().await;
}

#[tokio::test]
async fn deadline_is_kept_while_the_table_of_the_waiters_is_locked() {
    let scene = Scene::of(TestDb::own("wakeups_table_lock").await).await;
    let waits = scene.two_waits().await;
    let mut psql = scene.db.session().await;

    run(
        &mut psql,
        "begin; lock table leasehold.waiters in access exclusive mode",
    )
    .await;
    let refused = waits.limited.ends_in_time().await;
    psql.execute("rollback").await.unwrap();

    assert!(matches!(refused, Error::WaitTimedOut { .. }), "{refused:?}");
    scene.serves(waits.endless).await;
}

#[tokio::test]
async fn deadline_is_kept_while_the_pool_is_exhausted() {
    let db = TestDb::shared().await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(db.options.clone())
        .await
        .unwrap();
    let mut taken = pool.acquire().await.unwrap();
    let application = format!("wakeups-{}", Uuid::new_v4());
    let leases = LeaseClient::builder(pool.clone())
        .listener_url(format!("{}&application_name={application}", url(&db)))
        .heartbeat_every(QUICK_BEAT)
        .build()
        .unwrap();
    let scene = Scene {
        leases,
        application,
        ..Scene::of(db).await
    };
    let waits = scene.two_waits().await;

    let refused = waits.limited.ends_in_time().await;

    assert!(matches!(refused, Error::WaitTimedOut { .. }), "{refused:?}");
    scene.serves(waits.endless).await;
    assert_eq!((pool.size(), pool.num_idle()), (1, 0));
    taken.execute("select 1").await.unwrap();
}

/// A client whose lane is behind a proxy, and the database without it.
struct Scene {
    db: TestDb,
    proxy: FaultProxy,
    /// The listener's.
    application: String,
    leases: LeaseClient,
    name: String,
}

struct Waits {
    limited: Limited,
    endless: Endless,
}

/// A wait with a deadline.
struct Limited {
    deadline: Instant,
    /// What it ended with, and by how much too late.
    waiter: JoinHandle<(Result<Lease, Error>, Duration)>,
    /// How late a mere sleep is on this machine.
    sleeper: JoinHandle<Duration>,
}

/// A wait without one, and the lease that is waited for.
struct Endless {
    holder: Grant,
    waiter: JoinHandle<Result<Lease, Error>>,
}

impl Scene {
    async fn of(db: TestDb) -> Self {
        let (proxy, application) = (db.proxy(), format!("wakeups-{}", Uuid::new_v4()));
        let leases = db
            .through(&proxy)
            .builder()
            .listener_url(format!("{}&application_name={application}", url(&db)))
            .heartbeat_every(QUICK_BEAT)
            // A wait that goes on outlasts it.
            .answer_within(LIMIT * 2 / 3)
            .build()
            .unwrap();
        Self {
            leases,
            db,
            proxy,
            application,
            name: unique_name!(),
        }
    }

    async fn two_waits(&self) -> Waits {
        self.listens().await;
        let mut holder = self.db.session().await;
        let holder = grant(&mut holder, &self.name, "1 minute").await;

        let deadline = Instant::now() + LIMIT;
        let limited = self.leases.acquire(&self.name).wait_at_most(LIMIT).into_future();
        let limited = Limited {
            deadline,
            waiter: tokio::spawn(async move { (limited.await, deadline.elapsed()) }),
            sleeper: tokio::spawn(async move {
                sleep_until(deadline).await;
                deadline.elapsed()
            }),
        };
        asleep(&self.db, &self.leases, &self.name, 1).await;
        let waiter = tokio::spawn(self.leases.acquire(&self.name).into_future());
        asleep(&self.db, &self.leases, &self.name, 2).await;
        assert!(Instant::now() < deadline, "both are in line in time");
        let endless = Endless { holder, waiter };
        Waits { limited, endless }
    }

    /// Makes the client listen, as somebody waits for something else.
    async fn listens(&self) {
        let waiting = Waiting::begin(&self.db, &self.leases).await;
        eventually(SOON, "the client listens", async || {
            !listening(&self.db, &self.application).await.is_empty()
        })
        .await;
        waiting.hand_off().await;
    }

    async fn release(&self, holder: &Grant) {
        assert_eq!(release(&mut self.db.session().await, holder, "0").await, "released");
    }

    /// Asserts that the wait has gone on, and ends with the lease once that is released.
    async fn serves(&self, endless: Endless) {
        assert!(!endless.waiter.is_finished());
        self.release(&endless.holder).await;
        endless.served().await;
    }
}

impl Endless {
    async fn served(self) {
        let served = timeout(SOON, self.waiter).await.expect("it is served");
        let lease = served.unwrap().unwrap();
        assert!(lease.fencing_token().get() > self.holder.token);
        lease.release().await.unwrap();
    }
}

impl Limited {
    /// Returns the error, which came at the deadline.
    async fn ends_in_time(self) -> Error {
        assert!(
            !self.waiter.is_finished(),
            "{:?} before its time",
            self.deadline.duration_since(Instant::now())
        );
        let (ended, late) = timeout(SOON, self.waiter).await.expect("it ends").unwrap();
        let sleeper = timeout(SOON, self.sleeper).await.expect("it ends").unwrap();
        assert!(
            late < sleeper + Duration::from_millis(50),
            "{late:?} after the deadline, when a mere sleep was {sleeper:?} late"
        );
        ended.unwrap_err()
    }
}

const LIMIT: Duration = Duration::from_millis(2_000);
