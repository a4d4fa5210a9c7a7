//! What the tests ask of the database and do to it, past the client under test.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::FencingToken;
use leasehold_testkit::eventually;
use sqlx::Row;

use super::TestDb;

/// A row of `leasehold.locks`, its owner token left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockRow {
    pub(crate) token: FencingToken,
    /// Whether it is held by the database's clock.
    pub(crate) is_held: bool,
    pub(crate) acquired_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
}

impl TestDb {
    pub(crate) async fn lock(&self, name: &str) -> Option<LockRow> {
        let sql = "select fence, owner is not null and expires_at > clock_timestamp(), acquired_at, expires_at
                   from leasehold.locks where name = $1";
        let row = sqlx::query(sql)
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .expect(sql)?;
        Some(LockRow {
            token: row.get(0),
            is_held: row.get(1),
            acquired_at: row.get(2),
            expires_at: row.get(3),
        })
    }

    pub(crate) async fn is_held(&self, name: &str) -> bool {
        self.lock(name).await.is_some_and(|lock| lock.is_held)
    }

    /// Waits until nobody holds the name, or a name that begins with it.
    pub(crate) async fn is_let_go(&self, names: &str) {
        let what = format!("nobody holds {names}");
        eventually(SOON, &what, async || match self.held_count(names).await {
            0 => Ok(()),
            held => Err(held),
        })
        .await;
    }

    /// How many names that begin with `names` have an owner, alive or run out.
    pub(crate) async fn held_count(&self, names: &str) -> i64 {
        let sql = "select count(*) from leasehold.held where starts_with(name, $1)";
        sqlx::query_scalar(sql)
            .bind(names)
            .fetch_one(&self.pool)
            .await
            .expect(sql)
    }

    /// Leaves the grant of a holder behind who will neither renew nor release.
    pub(crate) async fn crashed_holder(&self, name: &str, ttl: Duration) -> FencingToken {
        let sql = "select fencing_token
                   from leasehold.acquire($1, gen_random_uuid(), make_interval(secs => $2), 'crashed')";
        sqlx::query_scalar(sql)
            .bind(name)
            .bind(ttl.as_secs_f64())
            .fetch_one(&self.pool)
            .await
            .expect(sql)
    }

    /// Grants the name to somebody else for a minute, whoever holds it.
    pub(crate) async fn supersede(&self, name: &str) {
        let sql = "update leasehold.locks
                   set owner = gen_random_uuid(), holder = 'usurper', fence = nextval('leasehold.locks_fence_seq'),
                       ttl = '1 minute', acquired_at = clock_timestamp(), expires_at = clock_timestamp() + '1 minute'
                   where name = $1";
        let updated = sqlx::query(sql).bind(name).execute(&self.pool).await.expect(sql);
        assert_eq!(updated.rows_affected(), 1, "{name} has a row to take");
    }
}

/// Far longer than anything that is awaited takes, also on a machine that is busy.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A ttl that no test outlasts: what is free again before was let go.
pub(crate) const LONG: Duration = Duration::from_secs(60);
