//! A client behind a network that can be slow, with others beside it who notice what it leaves behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{FencingToken, Lease, LeaseClient, Release};
use leasehold_testkit::{FaultProxy, eventually};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::{LONG, SOON, TestDb, unique_name};

pub(super) struct Stage {
    pub(super) names: String,
    /// Past the proxy.
    pub(super) db: TestDb,
    pub(super) proxy: FaultProxy,
    /// Of the client under test, and for its fenced transactions.
    pub(super) pool: PgPool,
    pub(super) leases: LeaseClient,
    /// Somebody else.
    pub(super) others: LeaseClient,
    neighbour: JoinHandle<()>,
    turns: Arc<AtomicU64>,
}

impl Stage {
    pub(super) async fn set(latency: Duration) -> Self {
        let db = TestDb::shared().await;
        let (proxy, names) = (db.proxy(), unique_name!());
        let pool = PgPoolOptions::new()
            .max_connections(POOL)
            .acquire_timeout(LONG)
            .connect_lazy_with(proxy.options(&db.options).application_name(&names[names.len() - 36..]));
        let leases = LeaseClient::builder(pool.clone()).ttl(LONG).build().unwrap();
        // Connected before the network is slow.
        leases
            .acquire(format!("{names}:first"))
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        proxy.delay(latency);
        let turns = Arc::default();
        Self {
            others: db.builder().ttl(LONG).build().unwrap(),
            neighbour: tokio::spawn(take_turns(
                leases.clone(),
                format!("{names}:neighbour"),
                Arc::clone(&turns),
            )),
            names,
            db,
            proxy,
            pool,
            leases,
            turns,
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.names, uuid::Uuid::new_v4())
    }

    /// A lease of the client under test.
    pub(super) async fn lease(&self, name: &str) -> Lease {
        self.leases.acquire(name).manual_renewal().await.unwrap()
    }

    /// A lease of somebody else.
    pub(super) async fn theirs(&self, name: &str) -> Lease {
        self.others.acquire(name).manual_renewal().await.unwrap()
    }

    /// Nobody holds the name or stands in line for it: somebody else has it long before a ttl is over, with
    /// a token above all that were granted before.
    pub(super) async fn is_free(&self, name: &str) {
        let before = self.db.lock(name).await.map_or(FencingToken::new(0), |lock| lock.token);
        let next = self.others.acquire(name).wait_at_most(SOON).await;
        let next = next.unwrap_or_else(|error| panic!("something was left behind: {error}"));
        assert!(next.fencing_token() > before);
        assert_eq!(next.release().await.unwrap(), Release::Released);
    }

    /// Nothing is left of all that was dropped: no grant, no waiter, no connection, no task. The client has
    /// served its neighbour all the while.
    pub(super) async fn ends_clean(mut self) {
        let before = self.turns.load(Ordering::Relaxed);
        eventually(SOON, "the neighbour takes turns", async || {
            self.turns.load(Ordering::Relaxed) > before + 1
        })
        .await;
        assert!(!self.neighbour.is_finished(), "the neighbour was never failed");
        self.neighbour.abort();
        let _ = (&mut self.neighbour).await;
        self.db.is_let_go(&self.names).await;
        nobody_waits(&self.db, &self.names).await;
        let sessions = self.sessions().await;
        assert!(
            sessions <= i64::from(POOL) + 2,
            "{sessions} sessions: the pool's, the lane, the listener"
        );

        self.proxy.heal();
        self.leases.close().await;
        self.others.close().await;
        self.pool.close().await;
        eventually(SOON, "every connection is closed", async || {
            match self.sessions().await {
                0 => Ok(()),
                left => Err(left),
            }
        })
        .await;
        self.db.pool.close().await;
        drop((self.leases, self.others, self.pool, self.db));
        eventually(SOON, "every task has ended", async || {
            match Handle::current().metrics().num_alive_tasks() {
                0 => Ok(()),
                left => Err(left),
            }
        })
        .await;
    }

    async fn sessions(&self) -> i64 {
        self.sessions_of(&self.names[self.names.len() - 36..]).await
    }

    /// Looked for before anybody takes a connection from the pool, which would end it unawares.
    pub(super) async fn no_transaction_is_open(&self) {
        // What is on its way to the server is to have come there.
        sleep(Duration::from_millis(10)).await;
        let sql = "select array_agg(query) from pg_stat_activity
                   where application_name = $1 and state like 'idle in transaction%'";
        let application = &self.names[self.names.len() - 36..];
        eventually(SOON, "no transaction is open", async || {
            let open = sqlx::query_scalar(sql).bind(application).fetch_one(&self.db.pool);
            let open: Option<Vec<String>> = open.await.unwrap();
            open.map_or(Ok(()), Err)
        })
        .await;
    }

    pub(super) async fn sessions_of(&self, application: &str) -> i64 {
        let sql = "select count(*) from pg_stat_activity where application_name = $1";
        let count = sqlx::query_scalar(sql).bind(application).fetch_one(&self.db.pool);
        count.await.unwrap()
    }
}

pub(super) async fn nobody_waits(db: &TestDb, names: &str) {
    eventually(SOON, "nobody stands in line", async || {
        let sql = "select count(*) from leasehold.waiters where starts_with(name, $1)";
        let left: i64 = sqlx::query_scalar(sql).bind(names).fetch_one(&db.pool).await.unwrap();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
}

/// Whatever others of the same client drop, this one is served.
async fn take_turns(leases: LeaseClient, name: String, turns: Arc<AtomicU64>) {
    let mut last = FencingToken::new(0);
    loop {
        let lease = leases.acquire(&name).wait_at_most(SOON).await.unwrap();
        assert!(lease.fencing_token() > last);
        last = lease.fencing_token();
        lease.renew().await.unwrap();
        // Unknown when the connection was cut under it.
        assert!(matches!(
            lease.release().await.unwrap(),
            Release::Released | Release::Unknown
        ));
        turns.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(1)).await;
    }
}

pub(super) const POOL: u32 = 4;
