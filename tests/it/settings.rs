//! Whatever the role's settings, leases work: acquired, renewed past their ttl, fenced, waited
//! for and released. Every role here is a client role of the README, no superuser.

mod isolation;
mod read_only;
mod zone;

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::{Lease, LeaseClient, Release};
use leasehold_testkit::{Cluster, eventually};
use tokio::task::JoinSet;

use crate::support::hostile::hostile_schema;
use crate::support::install::run;
use crate::support::{TestDb, roles, unique_name};

#[tokio::test]
async fn leases_work_under_a_serializable_and_a_repeatable_read_default() {
    let serializable = [("default_transaction_isolation", "serializable")];
    let repeatable_read = [("default_transaction_isolation", "repeatable read")];
    tokio::join!(
        works_under("serializable", &serializable),
        works_under("repeatable_read", &repeatable_read),
    );
}

#[tokio::test]
async fn leases_work_without_synchronous_commit() {
    works_under("no_flush", &[("synchronous_commit", "off")]).await;
}

#[tokio::test]
async fn leases_work_under_a_lock_timeout_of_a_millisecond_and_of_none() {
    tokio::join!(
        works_under("lock_timeout_1", &[("lock_timeout", "1ms")]),
        works_under("lock_timeout_0", &[("lock_timeout", "0")]),
    );
}

#[tokio::test]
async fn leases_work_under_a_statement_timeout_of_100_ms() {
    works_under("statement_timeout", &[("statement_timeout", "100ms")]).await;
}

#[tokio::test]
async fn leases_work_under_all_of_them_at_once() {
    works_under(
        "all",
        &[
            ("default_transaction_isolation", "serializable"),
            ("default_transaction_deferrable", "on"),
            ("synchronous_commit", "local"),
            ("lock_timeout", "1ms"),
            ("statement_timeout", "100ms"),
            ("intervalstyle", "sql_standard"),
            ("bytea_output", "escape"),
            ("standard_conforming_strings", "off"),
        ],
    )
    .await;
}

#[tokio::test]
async fn leases_work_under_a_hostile_search_path() {
    run(&roles::database().await, &hostile_schema()).await;
    let role = client_role("hostile", &[("search_path", "hostile, pg_catalog")]).await;
    let year: i32 = sqlx::query_scalar("select pg_catalog.date_part('year', clock_timestamp())::pg_catalog.int4")
        .fetch_one(&role.pool)
        .await
        .unwrap();
    assert_eq!(year, 1970);

    let name = work(&role).await;

    assert!(role.client().inspect(&name).await.unwrap().is_none());
    assert!(!role.client().held().await.unwrap().iter().any(|held| held.name == name));
}

#[tokio::test]
async fn the_lane_reconnects_unseen_after_each_idle_session_timeout() {
    let role = client_role("idle", &[("idle_session_timeout", "100ms")]).await;
    let (leases, name) = (role.builder().ttl(TTL).build().unwrap(), unique_name!());
    let lease = leases.acquire(&name).await.unwrap();

    let mut sessions = BTreeSet::new();
    eventually(LONG, "three sessions have come and gone", async || {
        let now: Vec<i32> = sqlx::query_scalar("select pid from pg_stat_activity where usename = 'settings_idle'")
            .fetch_all(&roles::database().await.pool)
            .await
            .unwrap();
        sessions.extend(now);
        sessions.len() > 3
    })
    .await;

    assert!(lease.is_held());
    pass_the_ttl(&lease).await;
    lease
        .fence(&mut roles::database().await.pool.begin().await.unwrap())
        .await
        .unwrap();
    assert!(leases.try_acquire(&name).await.unwrap().is_none());
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_pool_without_a_statement_cache_makes_the_lane_prepare_no_more() {
    let role = client_role("uncached", &[("log_min_duration_statement", "0")]).await;
    let role = TestDb::with(role.options.statement_cache_capacity(0));
    let (leases, name) = (role.builder().ttl(TTL).build().unwrap(), unique_name!());
    let cycle = async || {
        let lease = leases.try_acquire(&name).await.unwrap().unwrap();
        assert!(leases.try_acquire(&name).await.unwrap().is_none());
        lease.release().await.unwrap();
    };
    cycle().await;
    let session: i32 = sqlx::query_scalar("select pid from pg_stat_activity where usename = 'settings_uncached'")
        .fetch_one(&roles::database().await.pool)
        .await
        .unwrap();
    // The server logs each step of a statement of this role.
    let server = Cluster::shared().await;
    let steps = |step: &str| {
        let (session, step) = (format!("[{session}]"), format!("ms  {step} "));
        let log = server.log();
        log.lines()
            .filter(|line| line.contains(&session) && line.contains(&step))
            .count()
    };
    let (prepared, bound) = (steps("parse"), steps("bind"));
    assert!(prepared > 0);

    for _ in 0..50 {
        cycle().await;
    }

    assert!(steps("bind") >= bound + 150);
    assert_eq!(steps("parse"), prepared);
    work(&role).await;
}

/// A new login role with these settings beside the README's rights of a client.
async fn client_role(name: &str, settings: &[(&str, &str)]) -> TestDb {
    roles::login(&format!("settings_{name}"), "leasehold_client", settings).await
}

async fn works_under(name: &str, settings: &[(&str, &str)]) {
    let role = client_role(name, settings).await;
    // Not with the role's own statement timeout: this is no statement of the client's.
    let patient = role.options.clone().options([("statement_timeout", "0")]);
    let patient = TestDb::with(patient);
    for (setting, value) in settings.iter().filter(|(setting, _)| *setting != "statement_timeout") {
        let set: String = sqlx::query_scalar("select current_setting($1)")
            .bind(setting)
            .fetch_one(&patient.pool)
            .await
            .unwrap();
        assert_eq!(set, *value, "{setting}");
    }
    work(&role).await;
}

/// Acquires, renews past the ttl, fences, and hands over to a second client that waits.
async fn work(role: &TestDb) -> String {
    let name = unique_name!();
    let client = || -> LeaseClient {
        let builder = role.builder().ttl(TTL).renew_every(Duration::from_millis(100));
        builder.build().unwrap()
    };
    let (first, second) = (client(), client());

    let lease = first.acquire(&name).await.unwrap();
    assert!(second.try_acquire(&name).await.unwrap().is_none());
    pass_the_ttl(&lease).await;
    // The caller's own transaction, whose settings are the caller's business.
    let mut tx = roles::database().await.pool.begin().await.unwrap();
    lease.fence(&mut tx).await.unwrap();
    tx.commit().await.unwrap();

    let mut waiting = JoinSet::new();
    for client in [second, client()] {
        let acquire = client.acquire(&name).wait_at_most(LONG);
        waiting.spawn(async move {
            let lease = acquire.await.unwrap();
            let token = lease.fencing_token();
            assert_eq!(lease.release().await.unwrap(), Release::Released);
            token
        });
    }
    let token = lease.fencing_token();
    assert_eq!(lease.release().await.unwrap(), Release::Released);
    let later: BTreeSet<_> = waiting.join_all().await.into_iter().collect();
    assert_eq!(later.len(), 2);
    assert!(later.iter().all(|later| *later > token));
    name
}

/// Waits until the grant would have run out without its renewals, and sees that it has not.
async fn pass_the_ttl(lease: &Lease) {
    let passed = "
        select clock_timestamp() > acquired_at + ttl and expires_at > clock_timestamp() and fence = $2
        from leasehold.locks
        where name = $1";
    let db = roles::database().await;
    eventually(LONG, "the ttl has passed", async || {
        let passed = sqlx::query_scalar::<_, bool>(passed)
            .bind(lease.name())
            .bind(lease.fencing_token());
        passed.fetch_one(&db.pool).await.unwrap()
    })
    .await;
    assert!(lease.is_held());
}

const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(30);
