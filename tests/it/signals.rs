//! What the crate tells of itself in numbers. The documentation and the dashboard name the same ones.
//!
//! Each test and its client run on one thread, on which a recorder of the test's own listens.

mod acquisitions;
mod gauges;
mod losses;

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::{Error, Lease, LeaseClient, LossCause};
use leasehold_testkit::eventually;
use serde_json::Value;
use sqlx::PgTransaction;
use tokio::task::JoinHandle;

use crate::support::meter::Meter;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn every_number_is_told_described_documented_and_on_the_dashboard() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let meter = Meter::new();
    let _listening = meter.listen();
    let leases = db.builder().ttl(LONG).renew_every(EAGER).build().unwrap();

    let lease = leases.acquire(&name).class("told").await.unwrap();
    let locked = lock_row(&db, &name).await;
    eventually(SOON, "a renewal fails", async || {
        meter.value(RENEWAL_FAILURES, &[("class", "told")]) > 0.0
    })
    .await;
    locked.rollback().await.unwrap();
    let waited = leases.acquire(&name).wait_at_most(LIMIT).await;
    assert!(matches!(waited, Err(Error::WaitTimedOut { .. })), "{waited:?}");
    let waiter = waiter(&leases, &name, &meter, "waits").await;
    asleep(&leases, &name).await;
    lease.release().await.unwrap();
    let lease = waiter.await.unwrap().unwrap();
    leases.break_lease(&name).await.unwrap();
    assert_eq!(lease.lost().await.cause, LossCause::Gone);
    assert!(lease.begin(&db.pool).await.is_err());

    for (series, told) in meter.all() {
        let unit = if series.metric.ends_with("_seconds") {
            "seconds"
        } else {
            "count"
        };
        assert_eq!(told.unit, Some(unit), "{series:?}");
        assert!(told.description.ends_with('.'), "{series:?}");
        let known = ["class", "outcome", "cause", "check"];
        assert!(
            series.labels.keys().all(|label| known.contains(&&**label)),
            "{series:?}"
        );
    }
    assert_eq!(meter.metrics(), documented());
    assert_eq!(meter.metrics(), on_the_dashboard());
}

/// In the table of the README.
fn documented() -> BTreeSet<String> {
    let rows = README.lines().filter_map(|line| line.strip_prefix("| `leasehold_"));
    rows.map(|row| format!("leasehold_{}", row.split('`').next().unwrap_or_default()))
        .collect()
}

/// Asked for by its panels.
fn on_the_dashboard() -> BTreeSet<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.map(|target| target["expr"].as_str().expect("it asks for something"));
    queries.flat_map(names).collect()
}

/// The names of this crate's metrics in a query, without what a histogram adds.
fn names(query: &str) -> Vec<String> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("leasehold_"));
    ours.map(|word| {
        let added = ["_bucket", "_sum", "_count"];
        let name = added.iter().find_map(|added| word.strip_suffix(added));
        name.unwrap_or(word).to_owned()
    })
    .collect()
}

/// Locks the row of a lock as nothing of this crate does.
async fn lock_row(db: &TestDb, name: &str) -> PgTransaction<'static> {
    let mut psql = db.pool.begin().await.unwrap();
    let sql = "select from leasehold.locks where name = $1 for update";
    sqlx::query(sql).bind(name).execute(&mut *psql).await.expect(sql);
    psql
}

/// Somebody who has begun to wait, the only one of that class.
async fn waiter(
    leases: &LeaseClient,
    name: &str,
    meter: &Meter,
    class: &'static str,
) -> JoinHandle<Result<Lease, Error>> {
    let waiter = tokio::spawn(leases.acquire(name).ttl(LONG).class(class).into_future());
    eventually(SOON, "it waits", async || {
        meter.value(WAITERS, &[("class", class)]) == 1.0
    })
    .await;
    waiter
}

/// Waits until those who wait have taken their second look: they asked before this does.
async fn asleep(leases: &LeaseClient, name: &str) {
    for _ in 0..3 {
        assert!(leases.try_acquire(name).await.unwrap().is_none());
    }
}

const README: &str = include_str!("../../README.md");
const DASHBOARD: &str = include_str!("../../examples/dashboard/grafana.json");

const ACQUIRE: &str = "leasehold_acquire_duration_seconds";
const HANDOFF: &str = "leasehold_handoff_duration_seconds";
const WAITERS: &str = "leasehold_waiters";
const HELD: &str = "leasehold_leases_held";
const TIMEOUTS: &str = "leasehold_wait_timeouts_total";
const RENEWAL_FAILURES: &str = "leasehold_renewal_failures_total";
const LOST: &str = "leasehold_leases_lost_total";
const REJECTIONS: &str = "leasehold_fencing_rejections_total";

const EAGER: Duration = Duration::from_millis(50);

/// Of a wait: long enough for a first answer, also on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(2);
