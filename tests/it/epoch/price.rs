//! What it costs an acquire to ask whose history it is: nothing that can be counted. The flush is
//! counted where those of a cycle are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::{ANOTHER_TIMELINE, LAST_TOKEN, Way, number};
use crate::support::TestDb;
use crate::support::quiet::Quiet;
use crate::support::sql::{run, sessions};

#[tokio::test]
async fn uncontended_acquire_reads_the_epoch_once_and_calls_nothing_for_it() {
    let db = TestDb::own("epoch_price").await;

    for (way, looks) in [(Way::Scalar, 1), (Way::Set, 1)] {
        let [mut session] = sessions(&db).await;
        let name = format!("{way:?}");
        run(&mut session, "set track_functions = 'all'").await;
        way.cycle(&mut session, &name).await;

        run(&mut session, "begin").await;
        let (calls, scans) = (counted(&mut session, CALLS).await, counted(&mut session, SCANS).await);
        way.grants(&mut session, &name).await;
        let calls = since(&calls, counted(&mut session, CALLS).await);
        let scans = since(&scans, counted(&mut session, SCANS).await);
        run(&mut session, "commit").await;

        let of_the_epoch = ["enter_epoch", "jump", "present_timeline", "present_system", "check"];
        let called: Vec<_> = of_the_epoch.iter().filter(|name| calls.contains_key(**name)).collect();
        assert!(called.is_empty(), "{way:?}: {calls:?}");
        assert!(
            calls.keys().any(|name| name.starts_with("acquire")),
            "{way:?}: {calls:?}"
        );
        assert_eq!(scans.get("epoch"), Some(&looks), "{way:?}: {scans:?}");
        assert_eq!(scans.get("epoch_history"), None, "{way:?}: {scans:?}");
        if way == Way::Scalar {
            // To look at the row, which is locked and updated where it lies.
            assert_eq!(scans.get("locks"), Some(&1), "{scans:?}");
        }
    }
}

#[tokio::test]
async fn uncontended_acquire_draws_one_token_and_flushes_once() {
    let quiet = Quiet::with_database("epoch_flushes").await;
    let [mut session, mut caller] = sessions(&quiet.db).await;
    Way::Scalar.cycle(&mut caller, "again").await;
    drop(caller);
    let acquires = 100;

    let (before, last) = (
        quiet.flushes(&mut session).await,
        number(&mut session, LAST_TOKEN).await,
    );
    let [mut caller] = sessions(&quiet.db).await;
    for number in 0..acquires {
        Way::Scalar.grants(&mut caller, &format!("once {number}")).await;
    }
    drop(caller);
    let (after, next) = (
        quiet.flushes(&mut session).await,
        number(&mut session, LAST_TOKEN).await,
    );

    assert_eq!(next, last + acquires);
    let flushes = after - before;
    assert!(
        (acquires..acquires + acquires / 10).contains(&flushes),
        "{flushes} flushes"
    );
}

/// The server compiles a plan that it takes to be dear, which costs more than all else together.
#[tokio::test]
async fn acquires_and_jumps_have_no_plan_that_the_server_compiles() {
    let db = TestDb::own("epoch_compiled").await;
    let [mut plain, mut compiling] = sessions(&db).await;
    run(&mut plain, "set jit = off").await;
    run(&mut compiling, "set jit = on").await;

    for (way, fault) in Way::BOTH
        .into_iter()
        .flat_map(|way| [(way, "select"), (way, ANOTHER_TIMELINE)])
    {
        let mut took = [Vec::new(), Vec::new()];
        for _ in 0..9 {
            for (session, took) in [&mut plain, &mut compiling].into_iter().zip(&mut took) {
                // Of a transaction that waits for no disk.
                run(session, "begin").await;
                run(session, fault).await;
                let began_at = Instant::now();
                way.cycle(session, "again").await;
                took.push(began_at.elapsed());
                run(session, "rollback").await;
            }
        }

        let [plain, compiling] = took.map(|took| took.into_iter().min().expect("several were tried"));
        assert!(
            compiling < plain * 3 + Duration::from_millis(15),
            "{way:?} after `{fault}`: {compiling:?}, and {plain:?} where nothing is compiled"
        );
    }
}

async fn counted(session: &mut PgConnection, sql: &str) -> BTreeMap<String, i64> {
    let rows: Vec<(String, i64)> = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .fetch_all(session)
        .await
        .expect("the server counts");
    rows.into_iter().collect()
}

/// What was counted meanwhile. The counters hold what the session has not handed in yet.
fn since(before: &BTreeMap<String, i64>, after: BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let meanwhile = after
        .into_iter()
        .map(|(name, count)| (name.clone(), count - before.get(&name).unwrap_or(&0)));
    meanwhile.filter(|(_, count)| *count > 0).collect()
}

const CALLS: &str = "select funcname::text, calls from pg_stat_xact_user_functions where schemaname = 'leasehold'";
const SCANS: &str = "select relname::text, coalesce(seq_scan, 0) + coalesce(idx_scan, 0) \
    from pg_stat_xact_user_tables where schemaname = 'leasehold'";
