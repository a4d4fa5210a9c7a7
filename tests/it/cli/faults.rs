//! `leasehold run` when something fails: nothing of the command runs any more when the name is granted to another.

use std::time::Duration;

use leasehold_testkit::{Cluster, StopMode, eventually, signals};
use tokio::time::{Instant, sleep};

use super::{Running, TTL, ends, is_running};
use crate::support::{SOON, TestDb, unique_name};

/// A command that does not listen.
const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.05; done";

const SHORT: [&str; 4] = ["--ttl", "2s", "--grace", "400ms"];

#[tokio::test]
async fn command_ends_before_the_next_grant_while_the_network_swallows_everything() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let mut running = Running::start(
        &proxy.options(&db.options),
        &name,
        &SHORT,
        "trap 'echo term; exit 0' TERM; while :; do sleep 0.05; done",
    )
    .await;
    let pid = running.pid;

    proxy.pause();
    let next = db.client().acquire(&name).await.unwrap();

    assert!(!is_running(pid));
    assert!(next.fencing_token().get() > running.token);
    assert_eq!(running.line().await, "term");
    proxy.resume();
    let (code, said) = running.end().await;
    assert_eq!(code, 123, "{said}");
    assert!(said.contains("not renewed in time"), "{said}");
}

#[tokio::test]
async fn command_that_ignores_sigterm_is_killed_before_the_next_grant() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    let running = Running::start(&proxy.options(&db.options), &name, &SHORT, STUBBORN).await;
    let pid = running.pid;

    proxy.pause();
    let next = db.client().acquire(&name).await.unwrap();

    assert!(!is_running(pid));
    assert!(next.is_held());
    proxy.resume();
    assert_eq!(running.end().await.0, 123);
}

#[tokio::test]
async fn stopped_holder_is_stood_in_for_by_the_runner() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let running = Running::start(&db.options, &name, &SHORT, STUBBORN).await;
    let (pid, holder) = (running.pid, running.holder());

    assert!(signals::stop(holder));
    let next = db.client().acquire(&name).await.unwrap();

    assert!(!is_running(pid));
    assert!(next.is_held());
    // The runner lets it go on by itself, so that nothing is left.
    assert_eq!(running.end().await.0, 123);
    ends(holder, "the holder is gone").await;
}

#[tokio::test]
async fn stopped_runner_costs_nothing_while_its_holder_renews() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let running = Running::start(&db.options, &name, &SHORT, "read line; exit 0").await;

    assert!(signals::stop(running.runner()));
    let other = db.client().acquire(&name).wait_at_most(TTL * 2).await;

    assert!(other.is_err(), "it is held on");
    assert!(is_running(running.pid));
    assert!(signals::cont(running.runner()));
    assert_eq!(running.end().await, (0, String::new()));
}

#[tokio::test]
async fn stopped_runner_is_stood_in_for_by_the_holder_when_the_network_fails() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let proxy = db.proxy();
    for (script, is_told) in [
        ("trap 'echo term; exit 0' TERM; while :; do sleep 0.05; done", true),
        (STUBBORN, false),
    ] {
        let mut running = Running::start(&proxy.options(&db.options), &name, &SHORT, script).await;
        let pid = running.pid;

        assert!(signals::stop(running.runner()));
        proxy.pause();
        let next = db.client().acquire(&name).await.unwrap();

        assert!(!is_running(pid), "{script}");
        if is_told {
            assert_eq!(running.line().await, "term");
        }
        assert!(signals::cont(running.runner()));
        proxy.resume();
        assert_eq!(running.end().await.0, 123, "{script}");
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn killed_runner_takes_the_command_with_it_and_the_name_is_free_at_once() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    for script in ["read line; sleep 1000", STUBBORN] {
        let running = Running::start(&db.options, &name, &["--ttl", "1m", "--grace", "300ms"], script).await;
        let (pid, holder) = (running.pid, running.holder());

        assert!(signals::kill(running.runner()));
        let next = db.client().acquire(&name).wait_at_most(SOON).await.unwrap();

        assert!(!is_running(pid), "{script}");
        ends(holder, "the holder is gone").await;
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn killed_holder_ends_the_command_long_before_the_ttl() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let running = Running::start(&db.options, &name, &["--ttl", "1m", "--grace", "300ms"], STUBBORN).await;
    let (pid, begun_at) = (running.pid, Instant::now());

    assert!(signals::kill(running.holder()));
    let (code, said) = running.end().await;

    assert_eq!(code, 123);
    assert!(said.contains("the process that renews it has ended"), "{said}");
    assert!(!is_running(pid) && begun_at.elapsed() < Duration::from_secs(10));
    assert!(db.is_held(&name).await, "nobody has released it; it runs out");
}

#[tokio::test]
async fn broken_lease_kills_the_command_without_a_grace() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let running = Running::start(&db.options, &name, &SHORT, STUBBORN).await;
    let pid = running.pid;

    assert!(db.client().break_lease(&name).await.unwrap());
    let (code, said) = running.end().await;

    assert_eq!(code, 123);
    assert!(said.contains("no longer in the database"), "{said}");
    assert!(!is_running(pid));
}

#[tokio::test]
async fn command_outlives_a_restart_of_the_server() {
    let cluster = Cluster::start().await;
    let (db, name) = (TestDb::with(cluster.create_database("restarted").await), unique_name!());
    db.install_schema().await;
    let running = Running::start(&db.options, &name, &["--ttl", "20s"], "read line; exit 0").await;

    cluster.stop(StopMode::Immediate).await;
    sleep(Duration::from_millis(300)).await;
    cluster.restart().await;
    eventually(SOON, "the lease is renewed on the new server", async || {
        let row = sqlx::query_scalar::<_, f64>(
            "select extract(epoch from expires_at - acquired_at)::float8 from leasehold.locks where name = $1",
        );
        row.bind(&name)
            .fetch_one(&db.pool)
            .await
            .is_ok_and(|seconds| seconds > 21.0)
    })
    .await;

    let (code, said) = running.end().await;
    assert_eq!(code, 0, "{said}");
    assert!(!db.is_held(&name).await);
}
