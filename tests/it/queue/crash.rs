//! Waiters of a server that crashes and comes back.

use std::sync::{Arc, Mutex};

use leasehold_testkit::{Cluster, StopMode};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{granted, line_is, listens, stand_in_line};
use crate::support::{LONG, TestDb};

#[tokio::test]
async fn wait_without_a_limit_outlasts_a_crash_of_the_server() {
    let (cluster, db) = crashing().await;
    let held = db.client().acquire("a").ttl(LONG).await.unwrap();
    let waits = stand_in_line(&db, "a", db.as_application("waiter").client().acquire("a")).await;
    // It has looked again and sleeps.
    listens(&db, "waiter").await;

    cluster.stop(StopMode::Immediate).await;
    cluster.restart().await;
    line_is(&db, "a", 1).await;
    assert!(held.is_held() && !waits.is_finished());
    let token = held.fencing_token();
    held.release().await.unwrap();

    assert!(granted(waits).await.fencing_token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_one_of_200_waiters_is_served_once_after_a_crash_of_the_server() {
    let (cluster, db) = crashing().await;
    let clients: Vec<_> = (0..5)
        .map(|_| db.builder().ttl(LONG).answer_within(LONG).build().unwrap())
        .collect();
    let mut held = Vec::new();
    for name in 0..50_usize {
        held.push(clients[name % 5].acquire(name.to_string()).await.unwrap());
    }
    let tokens: Vec<_> = held.iter().map(leasehold::Lease::fencing_token).collect();
    let served: Arc<Mutex<Vec<_>>> = Arc::default();
    let mut waiters = JoinSet::new();
    for waiter in 0..200_usize {
        let (name, served) = (waiter % 50, Arc::clone(&served));
        let acquire = clients[waiter / 40].acquire(name.to_string());
        waiters.spawn(async move {
            let lease = acquire.await.unwrap();
            served.lock().unwrap().push((name, lease.fencing_token(), waiter));
            lease.release().await.unwrap();
        });
    }
    in_all_lines(&db, 200).await;

    cluster.stop(StopMode::Immediate).await;
    cluster.restart().await;
    // Some names come free while nobody stands in line any more, the others when all do again.
    held.truncate(25);
    in_all_lines(&db, 100).await;
    drop(held);
    let all = timeout(LONG, waiters.join_all()).await;

    all.expect("nobody is left behind");
    let mut served = served.lock().unwrap().clone();
    for (name, token) in tokens.into_iter().enumerate() {
        let of_name = served.iter().filter(|(of, ..)| *of == name);
        let of_name: Vec<_> = of_name.map(|(_, token, _)| *token).collect();
        assert_eq!(of_name.len(), 4);
        assert!(
            of_name[0] > token && of_name.is_sorted_by(|a, b| a < b),
            "{token} {of_name:?}"
        );
    }
    served.sort_by_key(|(.., waiter)| *waiter);
    assert!(served.iter().map(|(.., waiter)| *waiter).eq(0..200));
    in_all_lines(&db, 0).await;
}

async fn crashing() -> (Cluster, TestDb) {
    // What the operating system has been given outlasts a crash of the server.
    let cluster = Cluster::builder().setting("fsync", "off").start().await;
    let db = TestDb::with(cluster.options());
    db.install_schema().await;
    (cluster, db)
}

async fn in_all_lines(db: &TestDb, count: i64) {
    let what = format!("{count} stand in line");
    leasehold_testkit::eventually(LONG, &what, async || {
        let found = sqlx::query_scalar::<_, i64>("select count(*) from leasehold.waiters");
        match found.fetch_one(&db.pool).await {
            Ok(found) if found == count => Ok(()),
            other => Err(other),
        }
    })
    .await;
}
