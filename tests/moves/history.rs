//! What was given out, on which side of a move.

use std::collections::HashSet;
use std::time::Duration;

use leasehold::{FencingToken, Lease, LeaseClient};
use leasehold_testkit::Cluster;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use uuid::Uuid;

/// Every token that was ever given out.
#[derive(Debug, Default)]
pub(crate) struct History {
    tokens: HashSet<i64>,
    highest: i64,
    twice: usize,
}

impl History {
    pub(crate) fn record(&mut self, token: i64) {
        self.highest = self.highest.max(token);
        if !self.tokens.insert(token) {
            self.twice += 1;
        }
    }

    /// Acquires and releases names: one again and again, and as many others. A release does not wait
    /// for the disk, so a move may forget the latest; the ttl is short for that.
    pub(crate) async fn take_grants(&mut self, leases: &LeaseClient, count: usize) {
        for number in 0..count {
            for name in ["again".to_owned(), format!("once:{number}")] {
                let lease = leases
                    .acquire(&name)
                    .ttl(SHORT)
                    .wait_at_most(SOON)
                    .await
                    .expect("it is free");
                self.record(lease.fencing_token().into());
                lease.release().await.expect("the database answers");
            }
        }
    }

    /// A grant that is not renewed: where the move is quick, its holder would go on on the other side.
    pub(crate) async fn take(&mut self, leases: &LeaseClient, name: &str, ttl: Duration) -> Lease {
        let lease = leases
            .acquire(name)
            .ttl(ttl)
            .manual_renewal()
            .wait_at_most(SOON)
            .await
            .expect("it comes free");
        self.record(lease.fencing_token().into());
        lease
    }

    /// A grant whose holder does not learn of the move.
    pub(crate) async fn take_stale(&mut self, side: &Side, name: &str, ttl: Duration) -> Stale {
        Stale::of(self.take(&side.leases, name, ttl).await, &side.pool).await
    }

    /// The first grant on the other side, with what came twice up to now.
    pub(crate) async fn arrive(&mut self, leases: &LeaseClient) -> Moved {
        let highest_before = self.highest;
        let first = self.take(leases, "first", LONG).await;
        self.take_grants(leases, 20).await;
        Moved {
            highest_before,
            first_after: first.fencing_token().into(),
            twice: self.twice,
            stale_write: "not tried",
        }
    }

    pub(crate) fn twice(&self) -> usize {
        self.twice
    }
}

/// What a move has led to.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) highest_before: i64,
    pub(crate) first_after: i64,
    pub(crate) twice: usize,
    pub(crate) stale_write: &'static str,
}

impl Moved {
    pub(crate) fn json(&self, name: &str, took: Duration) -> String {
        format!(
            "{{\"move\":\"{name}\", \"highest_before\":{}, \"first_after\":{}, \"twice\":{}, \"stale_write\":\"{}\", \"seconds\":{:.1}}}",
            self.highest_before,
            self.first_after,
            self.twice,
            self.stale_write,
            took.as_secs_f64()
        )
    }

    pub(crate) fn judge(&self, name: &str) {
        assert!(self.first_after > self.highest_before, "{name}: tokens do not rise");
        assert_eq!(self.twice, 0, "{name}: a token was given out twice");
        assert_eq!(self.stale_write, "refused", "{name}: the old holder's write passes");
    }
}

/// The old holder's grant, as it stands in its hands: a `Lease` would know by itself that it is lost,
/// and not ask.
#[derive(Debug)]
pub(crate) struct Stale {
    pub(crate) token: FencingToken,
    name: String,
    owner: Uuid,
    /// Held on to the end.
    _lease: Lease,
}

impl Stale {
    pub(crate) async fn of(lease: Lease, pool: &PgPool) -> Self {
        let name = lease.name().to_string();
        let owner = sqlx::query_scalar("select owner from leasehold.locks where name = $1 and fence = $2")
            .bind(&name)
            .bind(lease.fencing_token())
            .fetch_one(pool)
            .await
            .expect("it is held");
        Self {
            token: lease.fencing_token(),
            name,
            owner,
            _lease: lease,
        }
    }

    /// Its fenced write on the server that `pool` leads to.
    pub(crate) async fn write(&self, pool: &PgPool) -> &'static str {
        let fenced = sqlx::query("select leasehold.fence($1, $2, $3)")
            .bind(&self.name)
            .bind(self.token)
            .bind(self.owner)
            .execute(pool)
            .await;
        match fenced {
            Ok(_) => "accepted",
            Err(error) if leasehold::is_fenced(&error) => "refused",
            Err(error) => panic!("{error:?}"),
        }
    }
}

pub(crate) struct Side {
    pub(crate) pool: PgPool,
    pub(crate) leases: LeaseClient,
}

impl Side {
    /// A cluster's database `postgres`, with the schema as it is there or as it comes with the crate.
    pub(crate) async fn of(cluster: &Cluster) -> Self {
        Self::at(cluster.options()).await
    }

    pub(crate) async fn at(options: PgConnectOptions) -> Self {
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options);
        leasehold::migrate(&pool)
            .await
            .expect("the schema is or comes up to date");
        Self {
            leases: LeaseClient::new(pool.clone()),
            pool,
        }
    }
}

pub(crate) const SOON: Duration = Duration::from_secs(20);
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// Of a lease whose holder does not come along.
pub(crate) const SHORT: Duration = Duration::from_secs(2);
