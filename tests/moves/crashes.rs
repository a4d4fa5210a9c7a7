//! The server ends the moment after a grant was returned, again and again.

use leasehold_testkit::{Cluster, StopMode};

use crate::history::{History, LONG, Moved, SHORT, Side};

const CRASHES: usize = 200;

pub(crate) async fn shut_down() -> Moved {
    after_each_grant(async |cluster| cluster.stop(StopMode::Immediate).await).await
}

pub(crate) async fn killed() -> Moved {
    after_each_grant(async |cluster| cluster.kill_postmaster().await).await
}

/// Every other time as a role that does not wait for the disk by itself.
async fn after_each_grant(crash: impl AsyncFn(&Cluster)) -> Moved {
    let mut history = History::default();
    let cluster = Cluster::start().await;
    Side::of(&cluster).await.leases.close().await;
    cluster.execute("create role hasty superuser login").await;
    cluster.execute("alter role hasty set synchronous_commit = off").await;
    let mut stale = None;
    for number in 0..CRASHES {
        let role = if number % 2 == 0 { "postgres" } else { "hasty" };
        let side = Side::at(cluster.options().username(role)).await;
        let name = format!("crash:{}", number % 10);
        let lease = history.take_stale(&side, &name, SHORT).await;

        crash(&cluster).await;

        cluster.restart().await;
        stale = Some((lease, name));
    }
    let (stale, name) = stale.expect("there were crashes");
    let side = Side::of(&cluster).await;
    let mut moved = history.arrive(&side.leases).await;
    let _current = history.take(&side.leases, &name, LONG).await;
    moved.twice = history.twice();
    moved.stale_write = stale.write(&side.pool).await;
    moved
}
