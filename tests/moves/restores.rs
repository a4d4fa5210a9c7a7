//! Backups that are restored, and have forgotten what came after.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::{Backup, Cluster, StopMode, eventually};
use sqlx::PgPool;

use crate::history::{History, LONG, Moved, SHORT, Side, Stale};

/// Grants after the point are forgotten.
pub(crate) async fn to_a_point() -> Moved {
    let archived = Archived::start().await;
    let (mut history, backup, old) = (History::default(), archived.cluster.base_backup().await, &archived.side);
    history.take_grants(&old.leases, 20).await;
    let _forsaken = history.take(&old.leases, "forsaken", SHORT).await;
    archived.sql("select pg_create_restore_point('then')").await;
    let stale = history.take_stale(old, "resource", LONG).await;
    history.take_grants(&old.leases, 50).await;
    archived.archive_all().await;

    let restored = archived
        .restore(
            backup,
            &[("recovery_target_name", "then"), ("recovery_target_action", "promote")],
        )
        .await;

    arrive(&mut history, &Side::of(&restored).await, &stale).await
}

/// Grants that were not archived in time are forgotten.
pub(crate) async fn to_the_end_of_the_archive() -> Moved {
    let archived = Archived::start().await;
    let (mut history, backup, old) = (History::default(), archived.cluster.base_backup().await, &archived.side);
    history.take_grants(&old.leases, 20).await;
    let _forsaken = history.take(&old.leases, "forsaken", SHORT).await;
    archived.archive_all().await;
    let stale = history.take_stale(old, "resource", LONG).await;
    history.take_grants(&old.leases, 50).await;

    let restored = archived.restore(backup, &[]).await;

    arrive(&mut history, &Side::of(&restored).await, &stale).await
}

/// Nothing tells the server, so an operator does. Until then a number may come twice, and the owner
/// token tells the two grants apart.
pub(crate) async fn of_a_volume() -> Moved {
    let mut history = History::default();
    let cluster = Cluster::start().await;
    let old = Side::of(&cluster).await;
    history.take_grants(&old.leases, 20).await;
    let _forsaken = history.take(&old.leases, "forsaken", SHORT).await;
    cluster.stop(StopMode::Fast).await;
    let copy = cluster.data_dir().with_extension("copy");
    copy_volume(cluster.data_dir(), &copy);
    cluster.restart().await;
    let stale = history.take_stale(&old, "resource", LONG).await;
    history.take_grants(&old.leases, 50).await;
    cluster.stop(StopMode::Immediate).await;
    std::fs::remove_dir_all(cluster.data_dir()).expect("it was there");
    copy_volume(&copy, cluster.data_dir());
    cluster.restart().await;
    std::fs::remove_dir_all(copy).expect("it was there");

    // Undetected, by design: the very number of the stale grant is given out again.
    let new = Side::of(&cluster).await;
    let mut unseen = History::default();
    let same_number = loop {
        let lease = unseen.take(&new.leases, "resource", LONG).await;
        if lease.fencing_token() == stale.token {
            break lease;
        }
        assert!(lease.fencing_token() < stale.token, "the numbers were not forgotten");
        lease.release().await.expect("the database answers");
    };
    assert_eq!(
        stale.write(&new.pool).await,
        "refused",
        "the owner token tells them apart"
    );
    same_number.release().await.expect("the database answers");

    sqlx::query("select leasehold.advance_epoch()")
        .execute(&new.pool)
        .await
        .expect("it is allowed");

    arrive(&mut history, &new, &stale).await
}

async fn arrive(history: &mut History, new: &Side, stale: &Stale) -> Moved {
    let mut moved = history.arrive(&new.leases).await;
    let _current = history.take(&new.leases, "resource", LONG).await;
    // Held at the time of the backup: it blocks for its ttl, and no longer.
    let _served = history.take(&new.leases, "forsaken", LONG).await;
    moved.twice = history.twice();
    moved.stale_write = stale.write(&new.pool).await;
    moved
}

fn copy_volume(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status()
        .expect("there is a cp");
    assert!(copied.success());
}

/// A primary with an archive.
struct Archived {
    cluster: Cluster,
    side: Side,
}

impl Archived {
    async fn start() -> Self {
        let cluster = Cluster::builder()
            .setting("archive_mode", "on")
            .setting("archive_command", "mkdir -p ../archive && cp %p ../archive/%f")
            .start()
            .await;
        let side = Side::of(&cluster).await;
        Self { cluster, side }
    }

    async fn sql(&self, sql: &'static str) {
        sqlx::query(sql).execute(&self.side.pool).await.expect(sql);
    }

    /// Everything up to now is in the archive on return.
    async fn archive_all(&self) {
        let pool: &PgPool = &self.side.pool;
        let present = "select pg_walfile_name(pg_switch_wal())";
        let segment: String = sqlx::query_scalar(present).fetch_one(pool).await.expect(present);
        eventually(Duration::from_secs(30), "the segment is archived", async || {
            sqlx::query_scalar::<_, bool>("select coalesce(last_archived_wal >= $1, false) from pg_stat_archiver")
                .bind(&segment)
                .fetch_one(pool)
                .await
                .expect("the server answers")
        })
        .await;
    }

    /// The restored server takes the place of this one, which ends without archiving the rest.
    async fn restore(&self, backup: Backup, target: &[(&str, &str)]) -> Cluster {
        self.cluster.stop(StopMode::Immediate).await;
        let archive = self.cluster.data_dir().with_file_name("archive");
        let restore_command = format!("cp {}/%f %p", archive.display());
        let mut settings = vec![("archive_mode", "off"), ("restore_command", restore_command.as_str())];
        settings.extend(target);
        backup.restore(&settings).await
    }
}
