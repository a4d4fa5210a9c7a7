//! What the tests share: a database with the schema in it, and names nobody else uses.

pub(crate) mod cancelled;
pub(crate) mod faults;
pub(crate) mod heard;
pub(crate) mod hostile;
pub(crate) mod install;
mod locks;
pub(crate) mod mutants;
pub(crate) mod quiet;
pub(crate) mod roles;
pub(crate) mod sql;

use std::time::Duration;

use leasehold::{LeaseClient, LeaseClientBuilder};
use leasehold_testkit::Cluster;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::OnceCell;

pub(crate) use locks::{LONG, SOON};

/// A database with the schema installed, and a pool of the test's own.
pub(crate) struct TestDb {
    pub(crate) pool: PgPool,
    pub(crate) options: PgConnectOptions,
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
        Self::with(options.clone())
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
        Self::with(Cluster::shared().await.create_database(name).await)
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
        let pool = PgPoolOptions::new()
            .max_connections(8)
            .acquire_timeout(Duration::from_secs(30))
            .connect_lazy_with(options.clone());
        Self { pool, options }
    }

    pub(crate) fn client(&self) -> LeaseClient {
        LeaseClient::new(self.pool.clone())
    }

    pub(crate) fn builder(&self) -> LeaseClientBuilder {
        LeaseClient::builder(self.pool.clone())
    }
}

/// A lock name that no other test uses.
macro_rules! unique_name {
    () => {
        format!("{}:{}", module_path!(), uuid::Uuid::new_v4())
    };
}
pub(crate) use unique_name;
