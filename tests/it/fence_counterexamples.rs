//! What looks like the fence and is not.
//!
//! Each check runs on the real statements, which pass, and on the simpler ones that somebody may
//! be tempted to put in their place, which do not.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::support::sql::{
    Grant, Isolation, acquire, begin, grant, in_each_isolation, release, renew, run, run_out, sessions,
};
use crate::support::{TestDb, unique_name};

in_each_isolation! {
    grant_by_plain_update_slips_under_the_fence
    fence_for_share_blocks_the_holders_renewal
    fence_by_plain_select_does_not_hold_off_the_next_grant
    fence_by_plain_select_takes_the_snapshot_for_the_present
}

const FENCE: &str = "select leasehold.fence($1, $2, $3)";

const FENCE_FOR_SHARE: &str = "
    select l.fence from leasehold.locks as l
    where l.name = $1 and l.fence = $2 and l.owner = $3
    for share";

const FENCE_BY_PLAIN_SELECT: &str = "
    select l.fence from leasehold.locks as l
    where l.name = $1 and l.fence = $2 and l.owner = $3";

const GRANT: &str = "
    select a.fencing_token from leasehold.acquire($1, $2, '30 s') as a
    where a.outcome = 'granted'";

const GRANT_BY_PLAIN_UPDATE: &str = "
    update leasehold.locks as l
    set owner = $2,
        ttl = '30 s',
        fence = nextval('leasehold.locks_fence_seq'),
        acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + interval '30 s'
    where l.name = $1 and (l.owner is null or l.expires_at <= clock_timestamp())
    returning l.fence";

async fn grant_by_plain_update_slips_under_the_fence(isolation: Isolation) {
    assert!(next_grant_waits(FENCE, GRANT, isolation).await);
    assert!(!next_grant_waits(FENCE, GRANT_BY_PLAIN_UPDATE, isolation).await);
}

async fn fence_for_share_blocks_the_holders_renewal(isolation: Isolation) {
    assert!(renewal_passes(FENCE, isolation).await);
    assert!(!renewal_passes(FENCE_FOR_SHARE, isolation).await);
}

async fn fence_by_plain_select_does_not_hold_off_the_next_grant(isolation: Isolation) {
    assert!(next_grant_waits(FENCE, GRANT, isolation).await);
    assert!(!next_grant_waits(FENCE_BY_PLAIN_SELECT, GRANT, isolation).await);
}

async fn fence_by_plain_select_takes_the_snapshot_for_the_present(isolation: Isolation) {
    assert!(stale_token_is_refused(FENCE, isolation).await);
    // In read committed the snapshot is the present.
    let is_refused = stale_token_is_refused(FENCE_BY_PLAIN_SELECT, isolation).await;
    assert_eq!(is_refused, isolation == Isolation::ReadCommitted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fenced_writes_are_made_in_grant_order_and_plainly_checked_ones_are_not() {
    let fenced = Journal::create("fence_race").await;
    let unfenced = Journal::create("fence_race_plain").await;

    let (fenced_rows, unfenced_rows) = tokio::join!(
        fenced.fill(FENCE, |rows, lasts| lasts > Duration::from_secs(3)
            && count_distinct(rows) > 5),
        unfenced.fill(FENCE_BY_PLAIN_SELECT, |rows, _| !rows.is_sorted()),
    );

    assert!(fenced_rows.is_sorted(), "{fenced_rows:?}");
    assert!(
        count_distinct(&fenced_rows) > 5,
        "too few grants wrote: {fenced_rows:?}"
    );
    assert!(!unfenced_rows.is_sorted(), "the check did not bite: {unfenced_rows:?}");
}

fn count_distinct(rows: &[i64]) -> usize {
    rows.iter().collect::<HashSet<_>>().len()
}

/// Whether a grant of a run-out name is held off by a transaction that passed the fence.
async fn next_grant_waits(fence: &'static str, next_grant: &'static str, isolation: Isolation) -> bool {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    assert_eq!(check(&mut writer, fence, &held).await.unwrap(), Some(held.token));
    run_out(&mut holder, &name).await;
    let granted: Option<i64> = sqlx::query_scalar(next_grant)
        .bind(&name)
        .bind(Uuid::new_v4())
        .fetch_optional(&mut next)
        .await
        .unwrap();
    run(&mut writer, "commit").await;

    granted.is_none()
}

/// Whether the holder can renew while a transaction that passed the fence is open.
async fn renewal_passes(fence: &'static str, isolation: Isolation) -> bool {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    assert_eq!(check(&mut writer, fence, &held).await.unwrap(), Some(held.token));
    let renewed = renew(&mut holder, &held, "30 s").await;
    run(&mut writer, "rollback").await;

    renewed == "renewed"
}

/// Whether a write is refused whose transaction began before the takeover, and checked after it.
async fn stale_token_is_refused(fence: &'static str, isolation: Isolation) -> bool {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    run(&mut writer, "create temporary table written (fence bigint)").await;
    let stale = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    run_out(&mut holder, &name).await;
    grant(&mut next, &name, "30 s").await;
    let Ok(Some(passed)) = check(&mut writer, fence, &stale).await else {
        return true;
    };
    let write = sqlx::query("insert into written values ($1)").bind(passed);
    write.execute(&mut writer).await.unwrap();
    run(&mut writer, "commit").await;

    let count = sqlx::query_scalar::<_, i64>("select count(*) from written");
    count.fetch_one(&mut writer).await.unwrap() == 0
}

async fn check(session: &mut PgConnection, fence: &'static str, grant: &Grant) -> Result<Option<i64>, sqlx::Error> {
    let passed = sqlx::query_scalar(fence)
        .bind(&grant.name)
        .bind(grant.token)
        .bind(grant.owner);
    passed.fetch_optional(session).await
}

/// What many writers, each paused now and then for longer than its lease, wrote in which order.
struct Journal {
    db: TestDb,
}

impl Journal {
    async fn create(database: &str) -> Self {
        let db = TestDb::own(database).await;
        let [mut session] = sessions(&db).await;
        run(
            &mut session,
            "create table journal (id bigserial primary key, fence bigint)",
        )
        .await;
        Self { db }
    }

    /// Lets writers write until it is enough, and returns their tokens in the order of the rows.
    async fn fill(&self, fence: &'static str, is_enough: impl Fn(&[i64], Duration) -> bool) -> Vec<i64> {
        let started_at = Instant::now();
        let mut writers = JoinSet::new();
        for _ in 0..12 {
            let options = self.db.options.clone();
            writers.spawn(async move {
                loop {
                    // A session that idles too long in a fenced transaction is ended.
                    let mut session = PgConnection::connect_with(&options).await.unwrap();
                    while write_under_a_lease(&mut session, fence).await.is_ok() {}
                }
            });
        }
        let [mut session] = sessions(&self.db).await;
        loop {
            let rows = sqlx::query_scalar("select fence from journal order by id");
            let rows: Vec<i64> = rows.fetch_all(&mut session).await.unwrap();
            let lasts = started_at.elapsed();
            if is_enough(&rows, lasts) || lasts > Duration::from_secs(120) {
                return rows;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn write_under_a_lease(session: &mut PgConnection, fence: &'static str) -> Result<(), sqlx::Error> {
    let owner = Uuid::new_v4();
    let [before, inside, leave, ..] = owner.into_bytes().map(pause);
    let granted = acquire(session, "journal", owner, "100 ms").await;
    let (Some(token), name) = (granted.token, "journal".to_owned()) else {
        sleep(before / 16).await;
        return Ok(());
    };
    let held = Grant { name, owner, token };

    sleep(before).await;
    let mut tx = session.begin().await?;
    let is_current = matches!(check(&mut tx, fence, &held).await, Ok(Some(_)));
    if is_current {
        sleep(inside).await;
        let write = "insert into journal (fence) values ($1)";
        sqlx::query(AssertSqlSafe(write)).bind(token).execute(&mut *tx).await?;
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    if leave.is_zero() {
        release(session, &held, "0").await;
    }
    Ok(())
}

/// Half of the writers are fast, the others may be slower than their lease is long.
fn pause(byte: u8) -> Duration {
    Duration::from_millis(u64::from(byte.saturating_sub(128)))
}
