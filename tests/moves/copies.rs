//! Copies to another server, which carry the rows and not always the sequence.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::{Cluster, StopMode, eventually};

use crate::history::{History, LONG, Moved, SHORT, Side, Stale};

/// Grants after the dump are forgotten.
pub(crate) async fn by_dump() -> Moved {
    let mut history = History::default();
    let (old_cluster, new_cluster) = (Cluster::start().await, Cluster::start().await);
    let old = Side::of(&old_cluster).await;
    history.take_grants(&old.leases, 20).await;
    let _forsaken = history.take(&old.leases, "forsaken", SHORT).await;

    dump(&old_cluster, &new_cluster, &[]);
    let stale = history.take_stale(&old, "resource", LONG).await;
    history.take_grants(&old.leases, 50).await;
    old_cluster.stop(StopMode::Fast).await;

    arrive(&mut history, &Side::of(&new_cluster).await, &stale).await
}

/// The rows are replicated until the cut-over; the sequence and the epoch are not.
pub(crate) async fn by_logical_replication() -> Moved {
    let mut history = History::default();
    let old_cluster = Cluster::builder().setting("wal_level", "logical").start().await;
    let new_cluster = Cluster::start().await;
    let old = Side::of(&old_cluster).await;
    history.take_grants(&old.leases, 20).await;
    dump(&old_cluster, &new_cluster, &["--schema-only"]);
    old_cluster
        .execute("create publication moves for table leasehold.locks, leasehold.fences")
        .await;
    new_cluster
        .execute(&format!(
            "create subscription moves connection 'host=127.0.0.1 port={} user=postgres dbname=postgres' publication moves",
            old_cluster.port()
        ))
        .await;
    history.take_grants(&old.leases, 50).await;
    let _forsaken = history.take(&old.leases, "forsaken", SHORT).await;
    let stale = history.take_stale(&old, "resource", Duration::from_secs(5)).await;
    eventually(Duration::from_secs(30), "the rows have come over", async || {
        let present = "select exists (select from leasehold.locks where name = 'resource' and owner is not null)";
        sqlx::query_scalar::<_, bool>(present)
            .fetch_one(&mut new_cluster.connect().await)
            .await
            .expect(present)
    })
    .await;
    old_cluster.stop(StopMode::Immediate).await;
    for step in [
        "alter subscription moves disable",
        "alter subscription moves set (slot_name = none)",
        "drop subscription moves",
        // The schema's versions are rows too, and say that it needs no installing.
        "insert into leasehold.version (version) select 20261201000000 + n from generate_series(1, 7) as n",
    ] {
        new_cluster.execute(step).await;
    }

    arrive(&mut history, &Side::of(&new_cluster).await, &stale).await
}

/// To the newest major there is from the oldest, which may be the same.
pub(crate) async fn by_upgrade() -> Moved {
    let mut history = History::default();
    let majors = majors();
    let [from, .., to] = &majors[..] else {
        unreachable!("a server was found before")
    };
    let old_cluster = Cluster::builder().bin_dir(from).start().await;
    let new_cluster = Cluster::builder().bin_dir(to).start().await;
    let old = Side::of(&old_cluster).await;
    history.take_grants(&old.leases, 50).await;
    let _forsaken = history.take(&old.leases, "forsaken", SHORT).await;
    let stale = history.take_stale(&old, "resource", SHORT).await;
    old_cluster.stop(StopMode::Fast).await;
    new_cluster.stop(StopMode::Fast).await;

    let upgraded = new_cluster
        .as_server_user(&to.join("pg_upgrade"))
        .arg("--old-bindir")
        .arg(from)
        .arg("--new-bindir")
        .arg(to)
        .arg("--old-datadir")
        .arg(old_cluster.data_dir())
        .arg("--new-datadir")
        .arg(new_cluster.data_dir())
        .args(["--username", "postgres", "--socketdir"])
        .arg(
            new_cluster
                .data_dir()
                .parent()
                .expect("it lies in a directory of its own"),
        )
        .output()
        .expect("there is a pg_upgrade");
    assert!(
        upgraded.status.success(),
        "{}",
        String::from_utf8_lossy(&upgraded.stdout)
    );
    new_cluster.restart().await;

    arrive(&mut history, &Side::of(&new_cluster).await, &stale).await
}

async fn arrive(history: &mut History, new: &Side, stale: &Stale) -> Moved {
    let mut moved = history.arrive(&new.leases).await;
    let _current = history.take(&new.leases, "resource", LONG).await;
    // Held at the time of the copy: it blocks for its ttl, and no longer.
    let _served = history.take(&new.leases, "forsaken", LONG).await;
    moved.twice = history.twice();
    moved.stale_write = stale.write(&new.pool).await;
    moved
}

fn dump(from: &Cluster, to: &Cluster, options: &[&str]) {
    let program = |name: &str| from.bin_dir().join(name);
    let dumped = Command::new(program("pg_dump"))
        .args(["--schema", "leasehold"])
        .args(options)
        .arg(from.url())
        .output()
        .expect("there is a pg_dump");
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    let file = to.data_dir().with_file_name("dump.sql");
    std::fs::write(&file, dumped.stdout).expect("the cluster's directory takes it");
    let restored = Command::new(program("psql"))
        .args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--file"])
        .arg(file)
        .arg(to.url())
        .output()
        .expect("there is a psql");
    assert!(
        restored.status.success(),
        "{}",
        String::from_utf8_lossy(&restored.stderr)
    );
}

/// The directories of all majors that there are, oldest first; twice the one, if it is alone.
fn majors() -> Vec<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut majors: Vec<(u32, PathBuf)> = installed
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let bin = entry.path().join("bin");
            let major = entry.file_name().to_str()?.parse().ok()?;
            (major >= 14 && bin.join("pg_upgrade").exists()).then_some((major, bin))
        })
        .collect();
    majors.sort();
    let mut dirs: Vec<PathBuf> = majors.into_iter().map(|(_, dir)| dir).collect();
    if let [only] = &dirs[..] {
        dirs.push(only.clone());
    }
    dirs
}
