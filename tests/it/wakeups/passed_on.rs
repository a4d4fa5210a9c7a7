//! A wake-up for a waiter that has just left is for the next in line.

use leasehold::LeaseClient;
use leasehold_testkit::eventually;
use sqlx::Executor;
use tokio::time::{Instant, timeout};

use super::{AT_ONCE, NO_BEAT, Waiting, asleep, listening, waiters};
use crate::support::sql::release;
use crate::support::{SOON, TestDb};

#[tokio::test]
async fn release_that_has_chosen_a_waiter_who_then_leaves_serves_the_next_at_once() {
    let Line {
        db,
        mut first,
        next,
        name,
        _clients,
    } = Line::of_two().await;

    first.holder.execute("begin").await.unwrap();
    assert_eq!(release(&mut first.holder, &first.grant, "0").await, "released");
    first.waiter.abort();
    eventually(SOON, "the first has left", async || waiters(&db, &name).await == 1).await;
    assert!(!next.is_finished());
    let released_at = Instant::now();
    first.holder.execute("commit").await.unwrap();
    let lease = timeout(SOON, next).await.expect("the next is served");

    let took = released_at.elapsed();
    assert!(took < AT_ONCE, "{took:?}");
    lease.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn notification_that_finds_its_waiter_gone_is_passed_on_to_the_next() {
    let Line {
        db,
        mut first,
        next,
        name,
        _clients,
    } = Line::of_two().await;
    let sql = "select ticket, leasehold.channel(client) from leasehold.waiters where name = $1 order by ticket limit 1";
    let (ticket, channel): (i64, String) = sqlx::query_as(sql).bind(&name).fetch_one(&db.pool).await.unwrap();
    first.waiter.abort();
    eventually(SOON, "the first has left", async || waiters(&db, &name).await == 1).await;

    // As a release does it whose mark nobody has seen.
    let freed_at = Instant::now();
    let sql = "select leasehold.release($1, $2, wake => false), pg_notify($3, $4)";
    let freed = sqlx::query_scalar(sql).bind(&name).bind(first.grant.owner);
    let freed = freed.bind(&channel).bind(ticket.to_string());
    let freed: String = freed.fetch_one(&mut first.holder).await.unwrap();
    assert_eq!(freed, "released");
    let lease = timeout(SOON, next).await.expect("the next is served");

    let took = freed_at.elapsed();
    assert!(took < AT_ONCE, "{took:?}");
    lease.unwrap().unwrap().release().await.unwrap();
}

/// Two clients that no heartbeat helps and that listen: the first in line is of the one, the next
/// of the other.
struct Line {
    db: TestDb,
    first: Waiting,
    next: tokio::task::JoinHandle<Result<leasehold::Lease, leasehold::Error>>,
    name: String,
    _clients: [LeaseClient; 2],
}

impl Line {
    async fn of_two() -> Self {
        let (db, application) = (TestDb::shared().await, format!("wakeups-{}", uuid::Uuid::new_v4()));
        let client = || {
            let builder = db.as_application(&application).builder();
            builder.heartbeat_every(NO_BEAT).build().unwrap()
        };
        let clients = [client(), client()];
        let first = Waiting::begin(&db, &clients[0]).await;
        let name = first.grant.name.clone();
        let next = tokio::spawn(clients[1].acquire(&name).into_future());
        asleep(&db, &clients[1], &name, 2).await;
        eventually(SOON, "both listen", async || {
            listening(&db, &application).await.len() == 2
        })
        .await;
        // What a listener is late for, one heartbeat finds; here it is over.
        for client in &clients {
            asleep(&db, client, &name, 2).await;
        }
        Self {
            db,
            first,
            next,
            name,
            _clients: clients,
        }
    }
}
