//! What the tests share: a database with the schema in it, and names nobody else uses.

pub(crate) mod cancelled;
pub(crate) mod faults;
pub(crate) mod heard;
pub(crate) mod hostile;
pub(crate) mod install;
mod locks;
#[cfg(feature = "metrics")]
pub(crate) mod meter;
pub(crate) mod mutants;
mod pooled;
pub(crate) mod quiet;
pub(crate) mod roles;
pub(crate) mod sql;

use std::net::Ipv4Addr;
use std::time::Duration;

use leasehold::{LeaseClient, LeaseClientBuilder};
use leasehold_testkit::{Cluster, FaultProxy};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::OnceCell;

use pooled::Pooled;

pub(crate) use locks::{LONG, SOON};

/// A database with the schema installed, and a pool of the test's own.
pub(crate) struct TestDb {
    pub(crate) pool: PgPool,
    pub(crate) options: PgConnectOptions,
    /// How clients get here, where that is another way than the pool's.
    pooled: Option<Pooled>,
}

impl TestDb {
    /// The database that most tests share. The pool is this test's own: tests end with their runtime.
    pub(crate) async fn shared() -> Self {
        static OPTIONS: OnceCell<PgConnectOptions> = OnceCell::const_new();
        let options = OPTIONS
            .get_or_init(|| async {
                let options = Cluster::shared().await.create_database("leasehold_tests").await;
                let db = Self::with(options.clone());
                db.install_schema().await;
                options
            })
            .await;
        Self::of_shared_cluster(options.clone()).await
    }

    /// A new database of the shared cluster with the schema in it, for a test that looks at whole
    /// tables or changes settings of the database.
    pub(crate) async fn own(name: &str) -> Self {
        let db = Self::empty(name).await;
        db.install_schema().await;
        db
    }

    /// A new database of the shared cluster without the schema.
    pub(crate) async fn empty(name: &str) -> Self {
        Self::of_shared_cluster(Cluster::shared().await.create_database(name).await).await
    }

    /// Installs the schema; with the mutant that the environment names, when it names one.
    pub(crate) async fn install_schema(&self) {
        leasehold::migrate(&self.pool).await.expect("the schema installs");
        if let Some(mutant) = mutants::wanted() {
            let mut session = self.pool.acquire().await.expect("a session opens");
            let installed = mutants::install(mutant, &mut session).await;
            installed.unwrap_or_else(|error| panic!("{}: {error}", mutants::NOT_INSTALLED));
        }
    }

    /// A new cluster of the test's own, or another way to reach one: through a proxy, as a role.
    pub(crate) fn with(options: PgConnectOptions) -> Self {
        let (pool, pooled) = (pool(&options), None);
        Self { pool, options, pooled }
    }

    /// A database of the shared cluster, whose clients go through a pooler if that is asked for.
    pub(crate) async fn of_shared_cluster(options: PgConnectOptions) -> Self {
        let pooled = pooled::asked_for(&options).await;
        Self {
            pooled,
            ..Self::with(options)
        }
    }

    /// The same database for sessions of another role, name or setting.
    pub(crate) fn having(&self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        let pooled = self.pooled.as_ref().map(|pooled| pooled.having(&change));
        Self {
            pooled,
            ..Self::with(change(self.options.clone()))
        }
    }

    /// This database, reached through a proxy. Where clients go through a pooler, it stands in front of
    /// that, and the test's own sessions go past both.
    pub(crate) fn through(&self, proxy: &FaultProxy) -> Self {
        match &self.pooled {
            Some(pooled) => Self {
                pooled: Some(pooled.through(proxy)),
                ..Self::with(self.options.clone())
            },
            None => Self::with(proxy.options(&self.options)),
        }
    }

    /// A proxy in front of what clients of this database connect to.
    pub(crate) fn proxy(&self) -> FaultProxy {
        let port = self.pooled.as_ref().map_or(self.options.get_port(), Pooled::port);
        FaultProxy::start((Ipv4Addr::LOCALHOST, port).into())
    }

    pub(crate) fn client(&self) -> LeaseClient {
        self.builder().build().expect("the defaults fit each other")
    }

    pub(crate) fn builder(&self) -> LeaseClientBuilder {
        self.builder_on(&self.pool)
    }

    /// On another pool than this database's, unless clients go through a pooler.
    pub(crate) fn builder_on(&self, pool: &PgPool) -> LeaseClientBuilder {
        match &self.pooled {
            Some(pooled) => pooled.builder(),
            None => LeaseClient::builder(pool.clone()),
        }
    }
}

/// A pool as tests have it, for themselves and for their clients.
fn pool(options: &PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(Duration::from_secs(30))
        .connect_lazy_with(options.clone())
}

/// A lock name that no other test uses.
macro_rules! unique_name {
    () => {
        format!("{}:{}", module_path!(), uuid::Uuid::new_v4())
    };
}
pub(crate) use unique_name;
