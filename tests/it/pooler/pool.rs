//! What the crate sends on the application's own pool, when that goes through the pooler.

use leasehold::{LeaseClient, Release};
use sqlx::PgPool;

use super::TTL;
use crate::support::TestDb;
use crate::support::faults::pgbouncer;

#[tokio::test]
async fn fences_and_looks_on_the_pool_never_miss_a_prepared_statement() {
    let Some(pgbouncer) = pgbouncer().await else { return };
    let db = TestDb::own("pooler_pool").await;
    let behind = TestDb::with(pgbouncer.options(&db.options));
    let switch = !pgbouncer.keeps_statements();
    let leases = behind.builder().pooler(switch).ttl(TTL).build().unwrap();

    let tasks: Vec<_> = (0..8)
        .map(|number| tokio::spawn(rounds(leases.clone(), behind.pool.clone(), number)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }

    assert!(leases.held().await.unwrap().is_empty());
}

/// Any error ends the test.
async fn rounds(leases: LeaseClient, pool: PgPool, number: usize) {
    let name = format!("own:{number}");
    for _ in 0..20 {
        let lease = leases.acquire(&name).await.unwrap();
        let mut tx = lease.begin(&pool).await.unwrap();
        // As an application must send its own statements where they are not kept.
        let sql = sqlx::query("select count(*) from leasehold.held").persistent(false);
        sql.fetch_one(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        let seen = leases.inspect(&name).await.unwrap().expect("it is held");
        assert_eq!(seen.fencing_token, lease.fencing_token());
        assert!(!leases.held().await.unwrap().is_empty());
        assert!(!leases.break_lease(format!("nobody's:{number}")).await.unwrap());
        assert_eq!(lease.release().await.unwrap(), Release::Released);
    }
}
