//! A day of lease time is 86,400 seconds, wherever and whenever the session thinks it is.

use std::time::Duration;

use sqlx::PgConnection;

use super::client_role;
use crate::support::{roles, unique_name};

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn a_day_over_the_change_to_daylight_saving_is_86400_seconds() {
    for (role, shift) in [("spring", "-1"), ("autumn", "1")] {
        let zone = zone_that_changes_in_twelve_hours(shift).await;
        let role = client_role(role, &[("timezone", &zone)]).await;
        let leases = role.client();
        // sqlx sets the zone of each of its sessions to UTC. Other languages' clients do not.
        let mut session = role.pool.acquire().await.unwrap();
        sqlx::query("select set_config('timezone', $1, false)")
            .bind(&zone)
            .execute(&mut *session)
            .await
            .unwrap();
        // The trap is there: a calendar day of this session is not 86,400 seconds.
        let calendar_day = "select extract(epoch from (now() + interval '1 day') - now())::float8";
        let calendar_day: f64 = sqlx::query_scalar(calendar_day).fetch_one(&mut *session).await.unwrap();
        assert_ne!(calendar_day, 86_400.0);

        let by_client = unique_name!();
        let lease = leases.acquire(&by_client).ttl(DAY).await.unwrap();
        assert_eq!(granted(&by_client).await, (86_400.0, 86_400.0));
        lease.renew().await.unwrap();
        let remaining = lease.remaining();
        assert!(
            remaining <= DAY && remaining > DAY - Duration::from_secs(60),
            "{remaining:?}"
        );

        for ttl in ["1 day", "24 hours"] {
            for many in [false, true] {
                let by_sql = unique_name!();
                acquire(&mut session, &by_sql, ttl, many).await;
                assert_eq!(granted(&by_sql).await, (86_400.0, 86_400.0), "{ttl} {many}");
                let renewed = renew(&mut session, &by_sql, ttl).await;
                assert_eq!(renewed, 86_400.0, "{ttl}");
            }
        }

        let kept = unique_name!();
        let lease = leases.acquire(&kept).hold_at_least(DAY).await.unwrap();
        lease.release().await.unwrap();
        assert_eq!(granted(&kept).await.0, 86_400.0);
    }
}

/// A POSIX time zone at the meridian whose clocks are set by an hour twelve hours from now, and
/// back a hundred days later.
async fn zone_that_changes_in_twelve_hours(shift: &str) -> String {
    let days = "select (extract(doy from change) - 1)::int, extract(hour from change)::int
        from (select (clock_timestamp() at time zone 'UTC') + interval '12 hours') as t (change)";
    let (day, hour): (i32, i32) = sqlx::query_as(days)
        .fetch_one(&roles::database().await.pool)
        .await
        .unwrap();
    format!("AAA0BBB{shift},{day}/{hour},{}/0", (day + 100) % 365)
}

/// The ttl of the row, and how long after its grant it runs out: in seconds.
async fn granted(name: &str) -> (f64, f64) {
    let seconds = "
        select extract(epoch from expires_at - acquired_at)::float8, coalesce(extract(epoch from ttl), 0)::float8
        from leasehold.locks
        where name = $1";
    sqlx::query_as(seconds)
        .bind(name)
        .fetch_one(&roles::database().await.pool)
        .await
        .unwrap()
}

async fn acquire(session: &mut PgConnection, name: &str, ttl: &str, many: bool) {
    let sql = if many {
        "select outcome from leasehold.acquire_many(array[$1], array[$2], array[$3::text::interval])"
    } else {
        "select outcome from leasehold.acquire($1, $2, $3::text::interval)"
    };
    let outcome: String = sqlx::query_scalar(sql)
        .bind(name)
        .bind(OWNER)
        .bind(ttl)
        .fetch_one(session)
        .await
        .unwrap();
    assert_eq!(outcome, "granted");
}

/// Renews, and tells how long the renewed lease lasts by the clock of its row's expiry.
async fn renew(session: &mut PgConnection, name: &str, ttl: &str) -> f64 {
    let sql = "select extract(epoch from expires_in)::float8
        from leasehold.renew(array[$1], array[$2], array[$3::text::interval])
        where outcome = 'renewed'";
    sqlx::query_scalar(sql)
        .bind(name)
        .bind(OWNER)
        .bind(ttl)
        .fetch_one(session)
        .await
        .unwrap()
}

const OWNER: uuid::Uuid = uuid::Uuid::from_u128(0x1eade);
