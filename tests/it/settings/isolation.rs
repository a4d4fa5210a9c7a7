//! What a default isolation other than read committed costs: nothing but the wrapping.

use std::time::Duration;

use leasehold::Release;
use leasehold_testkit::eventually;
use sqlx::PgTransaction;
use tokio::task::JoinSet;

use crate::support::TestDb;
use crate::support::install::run;

#[tokio::test]
async fn eight_tasks_on_distinct_names_fail_no_more_statement_under_serializable_than_under_read_committed() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let name = format!("settings_{}", isolation.replace(' ', "_"));
        let db = TestDb::own(&name).await;
        run(
            &db,
            &format!("alter database {name} set default_transaction_isolation = '{isolation}'"),
        )
        .await;
        let before = transactions(&db).await;

        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            // A client each, so that their statements do not go out together.
            let leases = TestDb::of_shared_cluster(db.options.clone()).await.client();
            tasks.spawn(async move {
                for _ in 0..CYCLES {
                    let lease = leases.try_acquire(format!("task {task}")).await.unwrap().unwrap();
                    assert_eq!(lease.release().await.unwrap(), Release::Released);
                }
                leases.close().await;
            });
        }
        tasks.join_all().await;

        // A session tells its counts when it ends.
        let statements = 2 * TASKS * CYCLES;
        let counted = eventually(Duration::from_secs(30), "the sessions have told", async || {
            let now = transactions(&db).await;
            let counted = (now.0 - before.0, now.1 - before.1);
            (counted.0 >= statements).then_some(counted)
        })
        .await;
        let (committed, rolled_back) = counted;
        assert_eq!(rolled_back, 0, "{isolation}");
        // Beside connecting and looking, no statement went twice.
        assert!(committed < statements + statements / 2, "{isolation}: {committed}");
    }
}

/// So it is the wrapping that the test above proves, and not a kinder server.
#[tokio::test]
async fn two_grants_of_distinct_names_at_once_fail_with_40001_under_serializable_itself() {
    let db = TestDb::own("settings_unwrapped").await;
    let _held = db.client().acquire("held").await.unwrap();
    let mut sessions = [db.pool.begin().await.unwrap(), db.pool.begin().await.unwrap()];
    let ask = async |tx: &mut PgTransaction<'_>, name: &str| -> String {
        let acquire = "select outcome from leasehold.acquire($1, gen_random_uuid(), '10 seconds')";
        sqlx::query_scalar(acquire)
            .bind(name)
            .fetch_one(&mut **tx)
            .await
            .unwrap()
    };

    // Both look before either is granted anything.
    for tx in &mut sessions {
        let serializable = sqlx::raw_sql("set transaction isolation level serializable");
        serializable.execute(&mut **tx).await.unwrap();
        assert_eq!(ask(tx, "held").await, "held");
    }
    for (tx, name) in sessions.iter_mut().zip(["one", "other"]) {
        assert_eq!(ask(tx, name).await, "granted");
    }
    let [first, second] = sessions;
    first.commit().await.unwrap();
    let refused = second.commit().await.unwrap_err();

    let code = refused.as_database_error().and_then(|error| error.code());
    assert_eq!(code.as_deref(), Some("40001"));
}

/// Committed and rolled back so far. Looking is one more.
async fn transactions(db: &TestDb) -> (i64, i64) {
    sqlx::query_as("select xact_commit, xact_rollback from pg_stat_database where datname = current_database()")
        .fetch_one(&db.pool)
        .await
        .unwrap()
}

const TASKS: i64 = 8;
const CYCLES: i64 = 25;
