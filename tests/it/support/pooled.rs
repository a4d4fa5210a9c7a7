//! Every client of the shared cluster behind PgBouncer in transaction mode, where
//! `LEASEHOLD_THROUGH=pgbouncer` asks for that.
//!
//! Tests go on to look at the database past it, and their proxies stand in front of it.

use leasehold::{LeaseClient, LeaseClientBuilder};
use leasehold_testkit::{Cluster, FaultProxy, PgBouncer};
use sqlx::ConnectOptions;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::OnceCell;

/// How clients reach a database.
pub(super) struct Pooled {
    pool: PgPool,
    options: PgConnectOptions,
    /// Prepared statements are lost on the way.
    switch: bool,
    /// Past the pooler, which delivers no notifications.
    listener: PgConnectOptions,
}

/// The way to a database of the shared cluster, if not the direct one.
pub(super) async fn asked_for(direct: &PgConnectOptions) -> Option<Pooled> {
    static POOLER: OnceCell<PgBouncer> = OnceCell::const_new();
    let asked_for = std::env::var_os(VARIABLE)?;
    assert_eq!(asked_for, "pgbouncer", "{VARIABLE} names no pooler that there is");
    let pooler = POOLER
        .get_or_init(async || {
            let started = PgBouncer::try_start(Cluster::shared().await, SERVER_SESSIONS).await;
            started.unwrap_or_else(|error| panic!("{error}"))
        })
        .await;
    let options = pooler.options(direct);
    Some(Pooled {
        pool: super::pool(&options),
        options,
        switch: !pooler.keeps_statements(),
        listener: direct.clone(),
    })
}

impl Pooled {
    pub(super) fn having(&self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        let options = change(self.options.clone());
        Self {
            pool: super::pool(&options),
            options,
            listener: change(self.listener.clone()),
            ..*self
        }
    }

    pub(super) fn through(&self, proxy: &FaultProxy) -> Self {
        let options = proxy.options(&self.options);
        Self {
            pool: super::pool(&options),
            options,
            listener: self.listener.clone(),
            ..*self
        }
    }

    pub(super) fn builder(&self) -> LeaseClientBuilder {
        let mut listener = self.listener.to_url_lossy();
        if let Some(application) = self.listener.get_application_name() {
            listener.query_pairs_mut().append_pair("application_name", application);
        }
        LeaseClient::builder(self.pool.clone())
            .pooler(self.switch)
            .listener_url(listener)
    }

    pub(super) fn port(&self) -> u16 {
        self.options.get_port()
    }
}

const VARIABLE: &str = "LEASEHOLD_THROUGH";

/// For each database: fewer than there are clients of it, so that they meet in them.
const SERVER_SESSIONS: u32 = 20;
