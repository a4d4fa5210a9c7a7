//! What a name and the options may be, through the client and through SQL.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use leasehold::{Error, LeaseClient, LeaseClientBuilder};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::install::{describe_error, run, sql_code};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn names_that_differ_in_one_byte_are_different_locks() {
    let db = TestDb::own("names_distinct").await;
    let leases = db.client();
    let incompressible: String = (0..16).map(|_| Uuid::new_v4().simple().to_string()).collect();
    let names = [
        "a",
        "A",
        " a",
        "a ",
        "a  ",
        "a\t",
        "a\n",
        "\u{e9}",
        "e\u{301}",
        "E\u{301}",
        "\u{212b}",
        "\u{c5}",
        "ß",
        "ss",
        "\u{feff}a",
        "a\u{200b}",
        "%",
        "_",
        "'",
        "\\",
        "\"",
        "$1",
        "🔒",
        "\u{7f}",
        "\u{1}",
        &"x".repeat(512),
        &"x".repeat(511),
        &"é".repeat(256),
        &incompressible,
    ];
    assert_eq!(incompressible.len(), 512);

    let mut held = Vec::new();
    for name in names {
        held.push(leases.try_acquire(name).await.unwrap().expect(name));
    }

    let tokens: BTreeSet<_> = held.iter().map(|lease| lease.fencing_token()).collect();
    assert_eq!(tokens.len(), names.len());
    let listed: BTreeSet<String> = leases.held().await.unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(listed, names.iter().map(|name| (*name).to_owned()).collect());
    for (name, lease) in names.iter().zip(held) {
        assert!(leases.try_acquire(name).await.unwrap().is_none(), "{name:?}");
        lease.begin(&db.pool).await.unwrap().commit().await.unwrap();
        assert_eq!(leases.inspect(name).await.unwrap().unwrap().name, *name);
        assert_eq!(lease.release().await.unwrap(), leasehold::Release::Released, "{name:?}");
        assert!(leases.inspect(name).await.unwrap().is_none(), "{name:?}");
    }
}

#[tokio::test]
async fn invalid_names_and_options_are_told_before_any_connection_is_made() {
    let nowhere = Nowhere::new();
    let leases = nowhere.builder().build().unwrap();

    for name in [
        "",
        "\0",
        "a\0b",
        &"x".repeat(513),
        &"é".repeat(257),
        &"x".repeat(1 << 20),
    ] {
        for error in [
            leases.try_acquire(name).await.map(drop).unwrap_err(),
            leases.acquire(name).await.map(drop).unwrap_err(),
            leases.acquire(name).hold(async |_| ()).await.unwrap_err(),
            leases.lead(name, async |_| ()).await.unwrap_err(),
            leases.inspect(name).await.map(drop).unwrap_err(),
            leases.break_lease(name).await.map(drop).unwrap_err(),
            leasehold::LockName::new(name).map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::InvalidName { .. }), "{error:?}");
        }
    }
    for ttl in OUT_OF_RANGE {
        assert_invalid("ttl", leases.acquire("x").ttl(ttl).await.map(drop));
        assert_invalid("ttl", leases.acquire("x").ttl(ttl).try_acquire().await.map(drop));
        assert_invalid("ttl", nowhere.builder().ttl(ttl).build().map(drop));
    }
    for holder in ["h".repeat(513), "é".repeat(257), "a\0".into()] {
        assert_invalid("holder", leases.acquire("x").holder(&*holder).await.map(drop));
        assert_invalid("holder", nowhere.builder().holder(holder).build().map(drop));
    }
    let year = Duration::from_secs(366 * 86_400);
    for hold in [year + NANOSECOND, Duration::MAX] {
        assert_invalid("hold_at_least", leases.acquire("x").hold_at_least(hold).await.map(drop));
    }
    let too_short = leases
        .acquire("x")
        .hold_at_least(Duration::from_secs(2))
        .hold_at_most(Duration::from_secs(1));
    assert_invalid("hold_at_most", too_short.await.map(drop));
    assert_invalid(
        "hold_at_most",
        leases.acquire("x").hold_at_most(Duration::ZERO).await.map(drop),
    );

    nowhere.assert_nobody_came();
}

#[tokio::test]
async fn margins_and_periods_are_checked_against_each_other_before_any_connection_is_made() {
    let nowhere = Nowhere::new();
    let builder = || nowhere.builder().ttl(Duration::from_secs(1));
    let ms = Duration::from_millis;

    for margin in [
        Duration::ZERO,
        NANOSECOND,
        ms(1) - NANOSECOND,
        ms(500) + NANOSECOND,
        Duration::MAX,
    ] {
        assert_invalid("margin", builder().margin(margin).build().map(drop));
    }
    for period in [Duration::ZERO, ms(10) - NANOSECOND, ms(650) + NANOSECOND, Duration::MAX] {
        let built = builder().margin(ms(100)).renew_every(period).build();
        assert_invalid("renew_every", built.map(drop));
    }
    for limit in [Duration::ZERO, Duration::from_secs(3600) + NANOSECOND, Duration::MAX] {
        assert_invalid("answer_within", builder().answer_within(limit).build().map(drop));
    }
    // What fits the client's ttl may not fit that of one acquisition.
    let leases = builder().margin(ms(100)).renew_every(ms(600)).build().unwrap();
    assert_invalid("renew_every", leases.acquire("x").ttl(ms(900)).await.map(drop));
    assert_invalid("margin", leases.acquire("x").ttl(ms(199)).await.map(drop));

    for (margin, period) in [(ms(1), ms(10)), (ms(500), ms(250)), (ms(100), ms(650))] {
        builder().margin(margin).renew_every(period).build().unwrap();
    }
    for limit in [NANOSECOND, Duration::from_secs(3600)] {
        builder().answer_within(limit).build().unwrap();
    }
    nowhere.assert_nobody_came();
}

#[tokio::test]
async fn the_ends_of_every_range_are_granted() {
    let db = TestDb::shared().await;
    let leases = db.client();
    let seconds = "select extract(epoch from expires_at - acquired_at)::float8 from leasehold.locks where name = $1";

    for ttl in [Duration::from_millis(100), Duration::from_secs(86_400)] {
        let name = unique_name!();
        // A lease of 100 ms may come too late to be of use; what the database made of it is there.
        match leases.acquire(&name).ttl(ttl).manual_renewal().await {
            Ok(lease) => std::mem::forget(lease),
            Err(Error::GrantedTooLate { .. }) => continue,
            Err(error) => panic!("{error:?}"),
        }
        let granted: f64 = sqlx::query_scalar(seconds)
            .bind(&name)
            .fetch_one(&db.pool)
            .await
            .unwrap();
        assert_eq!(granted, ttl.as_secs_f64());
    }
    let longest = leases
        .acquire(unique_name!())
        .holder("h".repeat(512))
        .hold_at_least(Duration::from_secs(366 * 86_400))
        .hold_at_most(Duration::MAX)
        .wait_at_most(Duration::MAX);
    let lease = longest.await.unwrap();
    assert_eq!(lease.release().await.unwrap(), leasehold::Release::HeldOn);
}

#[tokio::test]
async fn sql_refuses_what_is_out_of_range_with_lh002_null_included() {
    let db = TestDb::shared().await;
    let good_name = unique_name!();
    let bad_names = [
        "null::text",
        "''",
        "repeat('x', 513)",
        "repeat('é', 257)",
        "repeat('x', 100000)",
    ];
    let bad_ttls = [
        "null::interval",
        "interval '0'",
        "interval '-1 day'",
        "interval '1 microsecond'",
        "interval '99.999 ms'",
        "interval '24 hours 1 microsecond'",
        "interval '1 month'",
        "interval '178000000 years'",
        "interval '-178000000 years'",
        "interval '2 days -1 hour'",
    ];
    let mut calls = Vec::new();
    for name in bad_names {
        calls.push(format!("leasehold.acquire({name}, gen_random_uuid(), '1 second')"));
        calls.push(format!("leasehold.acquire_many(array['{good_name}', {name}], array[gen_random_uuid(), gen_random_uuid()], array[interval '1 s', interval '1 s'])"));
        calls.push(format!(
            "leasehold.renew(array[{name}], array[gen_random_uuid()], array[interval '1 s'])"
        ));
        calls.push(format!("leasehold.release({name}, gen_random_uuid())"));
        calls.push(format!(
            "leasehold.release_many(array[{name}], array[gen_random_uuid()])"
        ));
        calls.push(format!("leasehold.break_lease({name})"));
    }
    for ttl in bad_ttls {
        calls.push(format!("leasehold.acquire('{good_name}', gen_random_uuid(), {ttl})"));
        calls.push(format!(
            "leasehold.acquire_many(array['{good_name}'], array[gen_random_uuid()], array[{ttl}])"
        ));
        calls.push(format!(
            "leasehold.renew(array['{good_name}'], array[gen_random_uuid()], array[{ttl}])"
        ));
    }
    let holder = "repeat('h', 513)";
    calls.extend([
        format!("leasehold.acquire('{good_name}', null, '1 second')"),
        format!("leasehold.acquire_many(array['{good_name}'], array[null::uuid], array[interval '1 s'])"),
        format!("leasehold.acquire_many(array['{good_name}', 'other'], array[gen_random_uuid()], array[interval '1 s'])"),
        format!("leasehold.renew(array['{good_name}'], array[null::uuid], array[interval '1 s'])"),
        format!("leasehold.release('{good_name}', null)"),
        format!("leasehold.release('{good_name}', gen_random_uuid(), null)"),
        format!("leasehold.release('{good_name}', gen_random_uuid(), '-1 second')"),
        format!("leasehold.release('{good_name}', gen_random_uuid(), '367 days')"),
        format!("leasehold.release_many(array['{good_name}'], array[null::uuid])"),
        format!("leasehold.release_many(array['{good_name}'], array[gen_random_uuid()], array[interval '367 days'])"),
        format!("leasehold.acquire('{good_name}', gen_random_uuid(), '1 second', {holder})"),
        format!("leasehold.acquire_many(array['{good_name}'], array[gen_random_uuid()], array[interval '1 s'], array[{holder}])"),
        "leasehold.sweep(null)".into(),
        "leasehold.sweep(0)".into(),
        "leasehold.sweep(100001)".into(),
    ]);

    for call in calls {
        assert_eq!(
            sql_code(&db.pool, &format!("select * from {call} as t"))
                .await
                .as_deref(),
            Some("LH002"),
            "{call}"
        );
    }

    let nothing: bool = sqlx::query_scalar("select not exists (select from leasehold.locks where name = $1)")
        .bind(&good_name)
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert!(nothing);
    let fence = format!("select leasehold.fence('{good_name}', null)");
    assert_eq!(sql_code(&db.pool, &fence).await.as_deref(), Some("LH001"));
}

#[tokio::test]
async fn sql_grants_the_ends_of_every_range_and_counts_a_day_as_86400_seconds() {
    let db = TestDb::shared().await;

    for (ttl, seconds) in [
        ("100 milliseconds", 0.1),
        ("24 hours", 86_400.0),
        ("1 day", 86_400.0),
        ("0.5 days 12 hours", 86_400.0),
    ] {
        for name in ["x".repeat(476), "é".repeat(238)] {
            let name = format!("{name}{}", Uuid::new_v4());
            assert_eq!(name.len(), 512);
            let acquire = "select extract(epoch from (leasehold.acquire($1, gen_random_uuid(), $2::text::interval)).expires_in)::float8";
            let acquire = sqlx::query_scalar::<_, f64>(acquire).bind(name).bind(ttl);
            assert_eq!(acquire.fetch_one(&db.pool).await.unwrap(), seconds, "{ttl}");
        }
    }
}

#[tokio::test]
async fn one_bad_name_among_256_good_ones_fails_alone() {
    let db = TestDb::shared().await;
    let (leases, prefix) = (db.client(), unique_name!());

    let mut acquiring = JoinSet::new();
    for number in 0..257 {
        let (leases, name) = (leases.clone(), format!("{prefix}:{number}"));
        let name = if number == 100 { "x".repeat(513) } else { name };
        acquiring.spawn(async move { (number, leases.try_acquire(name).await) });
    }
    let answers = acquiring.join_all().await;

    for (number, answer) in answers {
        match answer {
            Ok(Some(lease)) => assert_eq!(lease.name(), format!("{prefix}:{number}")),
            Err(Error::InvalidName { .. }) => assert_eq!(number, 100),
            other => panic!("{number}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_name_that_the_database_cannot_hold_fails_alone() {
    let db = latin1("names_latin1").await;
    let leases = db.client();
    // Holds the lane up, so that all the others go out in one statement.
    let first = leases.try_acquire("first").await.unwrap().unwrap();

    let mut acquiring = JoinSet::new();
    for number in 0..256 {
        let name = if number % 64 == 7 {
            format!("日本{number}")
        } else {
            format!("é{number}")
        };
        let leases = leases.clone();
        acquiring.spawn(async move { (number, leases.try_acquire(name).await) });
    }
    let answers = acquiring.join_all().await;

    let mut held = Vec::new();
    for (number, answer) in answers {
        match answer {
            Ok(Some(lease)) if number % 64 != 7 => held.push(lease),
            Err(error @ Error::Database { .. }) if number % 64 == 7 => {
                let said = describe_error(&error);
                assert!(
                    said.contains(&format!("could not acquire lease 日本{number}")),
                    "{said}"
                );
                assert!(said.contains("has no equivalent in encoding \"LATIN1\""), "{said}");
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(held.len(), 252);
    for lease in held {
        assert_eq!(lease.release().await.unwrap(), leasehold::Release::Released);
    }
    assert!(first.is_held());
}

/// A database in another encoding than the client's.
async fn latin1(name: &str) -> TestDb {
    let server = TestDb::shared().await;
    run(
        &server,
        &format!("create database {name} encoding 'LATIN1' template template0 lc_collate 'C' lc_ctype 'C'"),
    )
    .await;
    let db = TestDb::with(server.options.database(name));
    db.install_schema().await;
    db
}

fn assert_invalid(expected: &str, answer: Result<(), Error>) {
    match answer {
        Err(Error::InvalidOption { option, .. }) => assert_eq!(option, expected),
        other => panic!("{expected}: {other:?}"),
    }
}

/// A server that only notes whether somebody came.
struct Nowhere {
    door: TcpListener,
    pool: PgPool,
}

impl Nowhere {
    fn new() -> Self {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        door.set_nonblocking(true).unwrap();
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(door.local_addr().unwrap().port());
        let pool = PgPoolOptions::new().connect_lazy_with(options);
        Self { door, pool }
    }

    fn builder(&self) -> LeaseClientBuilder {
        LeaseClient::builder(self.pool.clone())
    }

    fn assert_nobody_came(&self) {
        let nobody = self.door.accept().unwrap_err();
        assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
    }
}

const NANOSECOND: Duration = Duration::from_nanos(1);
const OUT_OF_RANGE: [Duration; 6] = [
    Duration::ZERO,
    NANOSECOND,
    Duration::from_millis(99),
    Duration::from_nanos(99_999_999),
    Duration::from_nanos(86_400_000_000_001),
    Duration::MAX,
];
