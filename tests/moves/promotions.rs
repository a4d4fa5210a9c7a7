//! Standbys that are promoted and have not heard of the latest grants.

use std::time::Duration;

use leasehold::{Error, FencingToken};
use leasehold_testkit::{Cluster, FaultProxy, eventually};
use sqlx::PgPool;

use crate::history::{History, LONG, Moved, Side};

/// The old primary goes on beside the new one, and its tokens never win.
pub(crate) async fn with_grants_lost() -> Moved {
    let mut history = History::default();
    let old_cluster = Cluster::start().await;
    let old = Side::of(&old_cluster).await;
    let proxy = FaultProxy::start(old_cluster.addr());
    let new_cluster = old_cluster.standby_through("moves", proxy.addr()).await;
    history.take_grants(&old.leases, 20).await;
    caught_up(&old.pool, &new_cluster).await;
    proxy.pause();
    history.take_grants(&old.leases, 50).await;
    let stale = history.take_stale(&old, "resource", LONG).await;

    new_cluster.promote().await;

    let new = Side::of(&new_cluster).await;
    let mut moved = history.arrive(&new.leases).await;
    let before_the_next_grant = stale.write(&new.pool).await;
    let current = history.take(&new.leases, "resource", LONG).await;
    let after_it = stale.write(&new.pool).await;

    // A resource that knows neither of them, once the new holder has written.
    let third = Side::at(new_cluster.create_database("third").await).await;
    admit(&third.pool, current.fencing_token())
        .await
        .expect("it is the first");
    for _ in 0..100 {
        let late = history.take(&old.leases, "late", LONG).await;
        assert!(i64::from(late.fencing_token()) < moved.first_after);
        let refused = admit(&third.pool, late.fencing_token()).await;
        assert!(matches!(refused, Err(Error::Stale { .. })), "{refused:?}");
        late.release().await.expect("the old primary answers");
    }
    moved.twice = history.twice();
    moved.stale_write = match (before_the_next_grant, after_it) {
        ("refused", "refused") => "refused",
        _ => "accepted",
    };
    moved
}

/// Both come to be timeline 2, and neither knows of the other.
pub(crate) async fn two_of_one_parent() -> Moved {
    let mut history = History::default();
    let parent_cluster = Cluster::start().await;
    let parent = Side::of(&parent_cluster).await;
    let (one, two) = (parent_cluster.standby("one").await, parent_cluster.standby("two").await);
    history.take_grants(&parent.leases, 20).await;
    caught_up(&parent.pool, &one).await;
    caught_up(&parent.pool, &two).await;

    one.promote().await;
    let first = Side::of(&one).await;
    history.take_grants(&first.leases, 50).await;
    let stale = history.take_stale(&first, "resource", LONG).await;
    two.promote().await;
    let second = Side::of(&two).await;

    let timeline = "select left(pg_walfile_name(pg_current_wal_lsn()), 8)";
    for side in [&first, &second] {
        let timeline: String = sqlx::query_scalar(timeline)
            .fetch_one(&side.pool)
            .await
            .expect(timeline);
        assert_eq!(timeline, "00000002");
    }
    let mut moved = history.arrive(&second.leases).await;
    let _current = history.take(&second.leases, "resource", LONG).await;
    moved.twice = history.twice();
    moved.stale_write = stale.write(&second.pool).await;
    moved
}

async fn caught_up(primary: &PgPool, standby: &Cluster) {
    let position: String = sqlx::query_scalar("select pg_current_wal_flush_lsn()::text")
        .fetch_one(primary)
        .await
        .expect("the primary answers");
    eventually(Duration::from_secs(20), "the standby has caught up", async || {
        sqlx::query_scalar::<_, bool>("select pg_last_wal_replay_lsn() >= $1::pg_lsn")
            .bind(&position)
            .fetch_one(&mut standby.connect().await)
            .await
            .expect("the standby answers")
    })
    .await;
}

async fn admit(pool: &PgPool, token: FencingToken) -> Result<(), Error> {
    let mut tx = pool.begin().await.expect("the database answers");
    token.admit(&mut tx, "resource").await?;
    tx.commit().await.expect("the database answers");
    Ok(())
}
