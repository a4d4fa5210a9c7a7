//! Clusters start, stop, crash, restart, replicate and go.

use leasehold_testkit::{Cluster, CpuHog, FaultProxy, StopMode, eventually, signals};
use sqlx::{Connection, PgConnection};

use crate::{SOON, number};

const COUNT: &str = "select count(*) from entries";

async fn with_entries(entries: i64) -> Cluster {
    let cluster = Cluster::start().await;
    cluster
        .execute(&format!("create table entries as select generate_series(1, {entries})"))
        .await;
    cluster
}

#[tokio::test]
async fn a_cluster_is_reached_by_tcp_socket_and_url_and_leaves_nothing() {
    let cluster = Cluster::builder().setting("max_connections", "37").start().await;
    let (pid, data_dir) = (cluster.server_pid(), cluster.data_dir().to_owned());

    for options in [
        cluster.options(),
        cluster.socket_options(),
        cluster.url().parse().unwrap(),
    ] {
        let mut connection = PgConnection::connect_with(&options).await.unwrap();
        let limit: String = sqlx::query_scalar("show max_connections")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(limit, "37");
        let fsync: String = sqlx::query_scalar("show fsync")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(fsync, "on");
    }
    assert!(signals::is_alive(pid));

    drop(cluster);
    assert!(!signals::is_alive(pid));
    assert!(!data_dir.parent().unwrap().exists());
}

#[tokio::test]
async fn committed_data_outlives_every_way_to_go_down() {
    let cluster = with_entries(3).await;
    let port = cluster.port();

    for mode in [StopMode::Fast, StopMode::Immediate] {
        let pid = cluster.server_pid();
        cluster.stop(mode).await;
        cluster.stop(mode).await;
        assert!(!signals::is_alive(pid));
        assert!(PgConnection::connect_with(&cluster.options()).await.is_err());
        cluster.restart().await;
    }
    cluster.kill_postmaster().await;
    assert!(cluster.processes("").is_empty());
    cluster.restart().await;
    cluster.restart().await;

    assert_eq!(cluster.port(), port);
    assert_eq!(number(&mut cluster.connect().await, COUNT).await.unwrap(), 3);
    assert!(cluster.log().contains("automatic recovery in progress"));
}

#[tokio::test]
async fn a_postmaster_killed_from_outside_can_be_restarted() {
    let cluster = with_entries(3).await;
    let mut session = cluster.connect().await;

    signals::kill(cluster.server_pid());
    eventually(SOON, "the session has noticed", async || session.ping().await.is_err()).await;
    cluster.restart().await;

    assert_eq!(number(&mut cluster.connect().await, COUNT).await.unwrap(), 3);
}

#[tokio::test]
async fn a_killed_cluster_with_a_frozen_backend_restarts_and_a_frozen_one_goes() {
    let cluster = with_entries(3).await;
    let mut session = cluster.connect().await;
    let backend = number(&mut session, "select pg_backend_pid()::bigint").await.unwrap();
    signals::stop(u32::try_from(backend).unwrap());

    cluster.kill_postmaster().await;
    cluster.restart().await;
    assert_eq!(number(&mut cluster.connect().await, COUNT).await.unwrap(), 3);

    let (pid, data_dir) = (cluster.server_pid(), cluster.data_dir().to_owned());
    signals::stop(pid);
    drop(cluster);
    assert!(!signals::is_alive(pid));
    assert!(!data_dir.exists());
}

#[tokio::test]
async fn settings_and_databases_are_there_on_return() {
    let cluster = Cluster::start().await;

    cluster.alter_system("deadlock_timeout", "123ms").await;
    let options = cluster.create_database("it's \"quoted\"").await;

    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    let row: (String, String) = sqlx::query_as("select current_setting('deadlock_timeout'), current_database()::text")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(row, ("123ms".to_owned(), "it's \"quoted\"".to_owned()));
}

#[tokio::test]
async fn a_standby_streams_can_be_held_back_and_takes_over() {
    let primary = with_entries(3).await;
    let standby = primary.standby("second").await;
    eventually(SOON, "the table is there", async || {
        number(&mut standby.connect().await, COUNT)
            .await
            .is_ok_and(|count| count == 3)
    })
    .await;

    let receivers = standby.processes("walreceiver");
    assert_eq!(receivers.len(), 1);
    signals::stop(receivers[0]);
    primary.execute("insert into entries values (4)").await;
    primary.kill_postmaster().await;
    signals::cont(receivers[0]);
    standby.promote().await;

    standby.execute("insert into entries values (5)").await;
    assert!(number(&mut standby.connect().await, COUNT).await.unwrap() >= 4);
}

#[tokio::test]
async fn a_standby_behind_a_paused_proxy_lags_and_an_early_end_of_the_primary_does_not_end_it() {
    let primary = with_entries(3).await;
    let proxy = FaultProxy::start(primary.addr());
    let standby = primary.standby_through("second", proxy.addr()).await;
    eventually(SOON, "the table is there", async || {
        number(&mut standby.connect().await, COUNT).await.is_ok()
    })
    .await;

    proxy.pause();
    primary.execute("insert into entries values (4)").await;
    assert_eq!(number(&mut standby.connect().await, COUNT).await.unwrap(), 3);
    proxy.resume();
    eventually(SOON, "the standby has caught up", async || {
        number(&mut standby.connect().await, COUNT).await.unwrap() == 4
    })
    .await;

    drop(primary);
    standby.promote().await;
    standby.execute("insert into entries values (5)").await;
}

#[tokio::test]
async fn a_missing_installation_is_named() {
    let error = Cluster::builder()
        .bin_dir("/nonexistent")
        .try_start()
        .await
        .unwrap_err();

    assert!(error.to_string().contains("/nonexistent/initdb"), "{error}");
}

#[test]
fn the_shared_cluster_is_one_and_outlives_the_runtime_that_started_it() {
    let pid_from = |_| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let cluster = Cluster::shared().await;
            let limit = "select current_setting('max_connections')::bigint";
            assert_eq!(number(&mut cluster.connect().await, limit).await.unwrap(), 400);
            cluster.server_pid()
        })
    };

    let pids: Vec<u32> = (0..3).map(pid_from).collect();

    assert!(pids.iter().all(|pid| *pid == pids[0] && signals::is_alive(*pid)));
}

#[tokio::test]
async fn clusters_start_side_by_side_under_load() {
    let _hog = CpuHog::start(4);

    let (first, second, third) = tokio::join!(Cluster::start(), Cluster::start(), Cluster::start());

    assert!(first.port() != second.port() && second.port() != third.port() && first.port() != third.port());
}

#[tokio::test]
async fn other_tasks_go_on_while_a_cluster_starts() {
    let ticks = tokio::spawn(async {
        let mut ticks = 0_u32;
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            ticks += 1;
            if ticks == 20 {
                return;
            }
        }
    });

    let _cluster = Cluster::start().await;

    assert!(ticks.is_finished());
}
