//! Arguments out of range are refused in SQL too, and a day is 86,400 s.

use sqlx::AssertSqlSafe;

use crate::support::sql::{grant, release, release_many, renew, run, sessions, sql_state};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn argument_out_of_range_is_refused_with_the_name_of_the_lock() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let long = format!("{name}{}", "x".repeat(513 - name.len()));
    let owner = "gen_random_uuid()";
    let second = "interval '1 s'";
    let [quoted, long, empty, null] = [&name, &long, "", "null"].map(|name| match name {
        "null" => name.to_owned(),
        _ => format!("'{name}'"),
    });

    let mut refused = Vec::new();
    for (bad_name, bad_owner, ttl, holder) in [
        (&null, owner, second, "null"),
        (&empty, owner, second, "null"),
        (&long, owner, second, "null"),
        (&quoted, "null::uuid", second, "null"),
        (&quoted, owner, "null::interval", "null"),
        (&quoted, owner, "interval '0'", "null"),
        (&quoted, owner, "interval '-1 s'", "null"),
        (&quoted, owner, "interval '99999 microseconds'", "null"),
        (&quoted, owner, "interval '86400.000001 s'", "null"),
        (&quoted, owner, "interval '1 month'", "null"),
        (&quoted, owner, second, "repeat('x', 513)"),
    ] {
        refused.push((
            bad_name,
            format!("leasehold.acquire({bad_name}, {bad_owner}, {ttl}, {holder})"),
        ));
        refused.push((
            bad_name,
            format!(
                "leasehold.acquire_many(array['fine', {bad_name}], array[{owner}, {bad_owner}], \
                    array[{second}, {ttl}], array['fine', {holder}])"
            ),
        ));
        if holder == "null" {
            refused.push((
                bad_name,
                format!(
                    "leasehold.renew(array['fine', {bad_name}], array[{owner}, {bad_owner}], array[{second}, {ttl}])"
                ),
            ));
        }
    }
    for (bad_name, bad_owner, hold) in [
        (&null, owner, second),
        (&empty, owner, second),
        (&long, owner, second),
        (&quoted, "null::uuid", second),
        (&quoted, owner, "interval '-1 s'"),
        (&quoted, owner, "interval '366 days 1 s'"),
    ] {
        refused.push((bad_name, format!("leasehold.release({bad_name}, {bad_owner}, {hold})")));
        refused.push((
            bad_name,
            format!("leasehold.release_many(array['fine', {bad_name}], array[{owner}, {bad_owner}], array[{second}, {hold}])"),
        ));
    }
    refused.push((&quoted, format!("leasehold.release({quoted}, {owner}, null)")));
    for bad_name in [&null, &empty, &long] {
        refused.push((bad_name, format!("leasehold.break_lease({bad_name})")));
    }

    for (bad_name, call) in refused {
        let error = sqlx::query(AssertSqlSafe(format!("select * from {call}")))
            .execute(&mut session)
            .await
            .expect_err(&call);

        assert_eq!(sql_state(&error), "LH002", "{call}: {error}");
        assert!(
            error.to_string().contains(&format!("for lock {bad_name}")),
            "{call}: {error}"
        );
    }
    let count = sqlx::query_scalar::<_, i64>("select count(*) from leasehold.locks where name in ('fine', $1)");
    assert_eq!(
        count.bind(&name).fetch_one(&mut session).await.unwrap(),
        0,
        "nothing was granted"
    );
}

#[tokio::test]
async fn batch_of_the_sweep_out_of_range_is_refused() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;

    for batch in [None, Some(0), Some(-1), Some(100_001)] {
        let refused = sqlx::query("select leasehold.sweep($1)").bind(batch);

        assert_eq!(sql_state(&refused.execute(&mut session).await.unwrap_err()), "LH002");
    }
}

#[tokio::test]
async fn arguments_at_the_bounds_are_accepted() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let name = unique_name!();
    let longest = format!("{name}{}", "x".repeat(512 - name.len()));

    for ttl in ["100 ms", "24 hours", "1 day"] {
        let held = grant(&mut session, &longest, ttl).await;
        assert_eq!(renew(&mut session, &held, ttl).await, "renewed");
        assert_eq!(release(&mut session, &held, "0").await, "released");
    }
    let held = grant(&mut session, &longest, "30 s").await;
    assert_eq!(release(&mut session, &held, "366 days").await, "held_on");
}

/// The session's timezone sets its clocks forward within the next 24 hours.
#[tokio::test]
async fn day_is_86_400_seconds_across_daylight_saving() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let zone: String = sqlx::query_scalar(
        "select format('STD0DST,%s/%s,%s/0', extract(doy from t) - 1, extract(hour from t), (extract(doy from t)::int + 100) % 365)
        from (select (clock_timestamp() at time zone 'UTC') + interval '12 hours' as t) as soon",
    )
    .fetch_one(&mut session)
    .await
    .unwrap();
    run(&mut session, &format!("set timezone = '{zone}'")).await;
    let calendar_day = "select extract(epoch from (now() + interval '1 day') - now())::float8";
    let calendar_day: f64 = sqlx::query_scalar(calendar_day).fetch_one(&mut session).await.unwrap();
    assert_eq!(calendar_day, 23.0 * 3600.0, "{zone}");

    let acquired = grant(&mut session, &unique_name!(), "1 day").await;
    let of_a_set = unique_name!();
    let owner = uuid::Uuid::new_v4();
    crate::support::sql::acquire_many(&mut session, &[&of_a_set], &[owner], "1 day").await;
    let held_on = grant(&mut session, &unique_name!(), "1 hour").await;
    release(&mut session, &held_on, "1 day").await;
    let held_on_in_a_set = grant(&mut session, &unique_name!(), "1 hour").await;
    release_many(&mut session, std::slice::from_ref(&held_on_in_a_set), "1 day").await;
    let renewed = grant(&mut session, &unique_name!(), "1 hour").await;
    assert_eq!(renew(&mut session, &renewed, "1 day").await, "renewed");

    let lasts = "select extract(epoch from expires_at - acquired_at)::float8 from leasehold.locks where name = $1";
    for name in [&acquired.name, &of_a_set, &held_on.name, &held_on_in_a_set.name] {
        let lasts: f64 = sqlx::query_scalar(lasts)
            .bind(name)
            .fetch_one(&mut session)
            .await
            .unwrap();
        assert_eq!(lasts, 86_400.0);
    }
    let left = "select extract(epoch from expires_in)::float8 from leasehold.held where name = $1";
    let left: f64 = sqlx::query_scalar(left)
        .bind(&renewed.name)
        .fetch_one(&mut session)
        .await
        .unwrap();
    assert!((86_300.0..=86_400.0).contains(&left), "{left}");
}
