//! A failover: the pool is led to another server, and everything of the client's goes along.
//!
//! The old primary goes on, which is the worst of it: nothing but the pool tells that it was left.

#[path = "../../examples/failover/primary.rs"]
mod primary;

use std::time::Duration;

use leasehold::{LeaseClient, Release};
use leasehold_testkit::{Cluster, eventually, signals};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::time::{Instant, timeout};

use crate::support::{SOON, TestDb, unique_name};

#[tokio::test]
async fn lane_leaves_the_old_primary_when_the_pool_does() {
    let pair = Pair::start("lane").await;
    let leases = pair.application.client();
    let kept = leases.acquire("kept").await.unwrap();
    let let_go = leases.acquire("let go").await.unwrap();

    pair.fail_over().await;
    let after = leases.acquire("after").await.unwrap();
    kept.renew().await.unwrap();
    let released = let_go.release().await.unwrap();

    assert!(after.fencing_token() > kept.fencing_token());
    assert_eq!(pair.new.row("after").await.unwrap().token, after.fencing_token().get());
    assert!(pair.old.row("after").await.is_none());
    assert_eq!(released, Release::Released);
    assert!(!pair.new.is_held("let go").await);
    // Renewed where it counts, and no longer on the old primary.
    let (there, here) = (pair.old.row("kept").await.unwrap(), pair.new.row("kept").await.unwrap());
    assert!(here.expires_in > there.expires_in, "{here:?}, {there:?}");
}

#[tokio::test]
async fn waiter_and_its_listener_leave_the_old_primary_when_the_pool_does() {
    let pair = Pair::start("waiter").await;
    let held = pair.application.client().acquire("name").await.unwrap();
    let leases = pair.application.client();
    let turn = tokio::spawn(leases.acquire("name").into_future());
    eventually(SOON, "it listens on the old primary", async || {
        listens(&pair.old.pool).await
    })
    .await;

    pair.fail_over().await;
    eventually(SOON, "it listens on the new primary", async || {
        listens(&pair.new.pool).await
    })
    .await;
    eventually(SOON, "it no longer does on the old one", async || {
        !listens(&pair.old.pool).await
    })
    .await;
    // By a client that has gone along as well.
    held.release().await.unwrap();

    let lease = timeout(SOON, turn).await.unwrap().unwrap().unwrap();
    assert_eq!(pair.new.row("name").await.unwrap().token, lease.fencing_token().get());
}

#[tokio::test]
async fn lane_gives_up_a_server_that_says_nothing_when_the_pool_leaves_it() {
    let pair = Pair::start("silent").await;
    let leases = pair.application.builder().answer_within(SOON).build().unwrap();
    let kept = leases.acquire("kept").ttl(MINUTE).await.unwrap();

    // One statement is under way, and whoever asks next finds nobody to connect to.
    let standby = pair.freeze_primary();
    let acquiring = tokio::spawn(leases.acquire("under way").ttl(MINUTE).into_future());
    standby.promote().await;
    let left_at = Instant::now();
    pair.lead_over();
    let lease = timeout(SOON, acquiring).await.unwrap().unwrap().unwrap();
    let took = left_at.elapsed();

    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(lease.fencing_token() > kept.fencing_token());
    assert_eq!(
        pair.new.row("under way").await.unwrap().token,
        lease.fencing_token().get()
    );
    kept.renew().await.unwrap();
}

#[tokio::test]
async fn new_credentials_alone_do_not_cost_the_lane_its_connection() {
    let shared = TestDb::shared().await;
    let db = shared.as_application("rotated");
    let leases = db.client();
    let lease = leases.acquire(unique_name!()).await.unwrap();
    let before = shared.lane_backend("rotated").await;

    db.pool.set_connect_options(db.options.clone().password("new"));
    lease.renew().await.unwrap();

    assert_eq!(shared.lane_backend("rotated").await, before);
}

#[tokio::test]
async fn recipe_leads_pool_and_client_to_the_new_primary_and_never_back() {
    let pair = Pair::start("recipe").await;
    let hosts = vec![pair.standby.options(), pair.primary.options()];
    let options = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(5));
    let pool = primary::pool(hosts, options).await;
    let leases = LeaseClient::builder(pool.clone())
        .ttl(Duration::from_secs(60))
        .build()
        .unwrap();
    let before = leases.try_acquire("before").await.unwrap().unwrap();
    before.begin(&pool).await.unwrap().rollback().await.unwrap();
    assert_eq!(port(&pool).await, pair.primary.port());

    // With a transaction under way.
    let under_way = before.begin(&pool).await.unwrap();
    let frozen = pair.primary.processes("");
    frozen.iter().for_each(|pid| assert!(signals::stop(*pid)));
    drop(under_way);
    pair.standby.promote().await;
    let promoted_at = Instant::now();
    let after = eventually(SOON, "the new primary is found", async || {
        leases.try_acquire("after").await
    })
    .await
    .unwrap();
    eventually(SOON, "so it is by the pool", async || {
        let tx = after.begin(&pool).await;
        tx.map(drop)
    })
    .await;
    let took = promoted_at.elapsed();

    assert!(after.fencing_token() > before.fencing_token());
    assert_eq!(port(&pool).await, pair.standby.port());
    // The lease that was held goes on: the standby had it.
    before.renew().await.unwrap();
    assert!(took < Duration::from_secs(15), "{took:?}");

    // The old primary is back, takes writes and does not know.
    frozen.iter().for_each(|pid| assert!(signals::cont(*pid)));
    // Of these eight may be the test's own.
    let asked = "select sessions from pg_stat_database where datname = 'postgres'";
    let asked = async || {
        sqlx::query_scalar::<_, i64>(asked)
            .fetch_one(&pair.old.pool)
            .await
            .unwrap()
    };
    let asked_before = asked().await;
    eventually(SOON, "the recipe has asked the old primary a few times", async || {
        asked().await > asked_before + 8
    })
    .await;
    for _ in 0..6 {
        assert_eq!(port(&pool).await, pair.standby.port());
    }
    let _later = leases.acquire("later").await.unwrap();
    assert!(pair.old.row("later").await.is_none());
    pool.close().await;
}

/// A primary with a standby that is to take its place.
struct Pair {
    application: TestDb,
    old: TestDb,
    new: TestDb,
    standby: Cluster,
    primary: Cluster,
}

impl Pair {
    async fn start(application: &str) -> Self {
        let primary = Cluster::builder().setting("max_wal_senders", "4").start().await;
        let old = TestDb::with(primary.options());
        leasehold::migrate(&old.pool).await.unwrap();
        let standby = primary.standby("failover").await;
        Self {
            application: old.as_application(application),
            old,
            new: TestDb::with(standby.options()),
            standby,
            primary,
        }
    }

    /// The standby is promoted and the application's pool led there; the old primary goes on.
    async fn fail_over(&self) {
        let position: String = sqlx::query_scalar("select pg_current_wal_lsn()::text")
            .fetch_one(&self.old.pool)
            .await
            .unwrap();
        eventually(SOON, "the standby has caught up", async || {
            sqlx::query_scalar::<_, bool>("select pg_last_wal_replay_lsn() >= $1::pg_lsn")
                .bind(&position)
                .fetch_one(&self.new.pool)
                .await
                .unwrap()
        })
        .await;
        self.standby.promote().await;
        self.lead_over();
    }

    fn lead_over(&self) {
        let options = self.application.options.clone().port(self.standby.port());
        self.application.pool.set_connect_options(options);
    }

    /// The primary answers nothing any more, and its kernel takes everything in. Returns the standby.
    fn freeze_primary(&self) -> &Cluster {
        for pid in self.primary.processes("") {
            assert!(signals::stop(pid));
        }
        &self.standby
    }
}

/// Whether somebody listens there.
async fn listens(pool: &PgPool) -> bool {
    sqlx::query_scalar(
        "select exists (select from pg_stat_activity where application_name = 'waiter' and query ilike 'listen %')",
    )
    .fetch_one(pool)
    .await
    .unwrap()
}

async fn port(pool: &PgPool) -> u16 {
    let port: i32 = sqlx::query_scalar("select inet_server_port()")
        .fetch_one(pool)
        .await
        .unwrap();
    u16::try_from(port).unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);
