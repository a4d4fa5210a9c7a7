//! What leases cost the database: what a miss writes, what a cycle flushes, how the table grows,
//! and what the sweep removes. Read from the server's own counters.

use std::time::Duration;

use leasehold::{LeaseClient, Release};
use leasehold_testkit::{Cluster, eventually};
use sqlx::PgConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::support::quiet::Quiet;
use crate::support::sql::{
    Grant, acquire_many, age, ask, break_lease, fence, grant, release, release_many, run, sessions, sweep,
};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn miss_on_a_held_name_takes_no_transaction_id_and_writes_nothing() {
    let quiet = Quiet::with_database("storage_miss").await;
    let (holder, leases) = (quiet.db.client(), quiet.db.client());
    let [mut session] = sessions(&quiet.db).await;
    let hour = Duration::from_secs(3600);
    let _first = holder.acquire("first").ttl(hour).await.unwrap();
    let _second = holder.acquire("second").ttl(hour).await.unwrap();
    // A new session may tidy up what it reads first.
    miss(&leases, &mut session).await;

    let before = log_position(&mut session).await;
    run(&mut session, "begin").await;
    miss(&leases, &mut session).await;
    let xid: Option<String> = sqlx::query_scalar("select pg_current_xact_id_if_assigned()::text")
        .fetch_one(&mut session)
        .await
        .unwrap();
    run(&mut session, "commit").await;
    let after_misses = log_position(&mut session).await;
    let third = leases.try_acquire("third").await.unwrap();
    let after_a_grant = log_position(&mut session).await;

    assert!(third.is_some());
    assert_eq!(xid, None);
    assert_eq!(after_misses, before);
    assert!(after_a_grant > after_misses, "the counter does not count");
}

#[tokio::test]
async fn uncontended_cycle_costs_one_flush() {
    let quiet = Quiet::with_database("storage_flushes").await;
    let [mut session] = sessions(&quiet.db).await;
    let cycles = 200;

    let before = quiet.flushes(&mut session).await;
    let leases = quiet.db.client();
    for _ in 0..cycles {
        let lease = leases.try_acquire("cycled").await.unwrap().unwrap();
        assert_eq!(lease.release().await.unwrap(), Release::Released);
    }
    leases.close().await;
    let after_leases = quiet.flushes(&mut session).await;
    let [mut naive] = sessions(&quiet.db).await;
    for _ in 0..cycles {
        let held = grant(&mut naive, "cycled", "30 s").await;
        assert_eq!(release(&mut naive, &held, "0").await, "released");
    }
    drop(naive);
    let after_naive = quiet.flushes(&mut session).await;

    let (lane, naive) = (after_leases - before, after_naive - after_leases);
    eprintln!("{cycles} cycles cost {lane} flushes on the lane, and {naive} as two plain statements");
    assert!(
        (cycles..cycles + cycles / 10).contains(&lane),
        "{lane} flushes in {cycles} cycles"
    );
    assert!(
        naive > cycles * 19 / 10,
        "the counter does not count: {naive} flushes in {cycles} cycles"
    );
}

#[tokio::test]
async fn release_sent_by_the_lane_waits_for_no_flush() {
    let quiet = Quiet::with_database("storage_release").await;
    let leases = quiet.db.client();
    let [mut session] = sessions(&quiet.db).await;
    let is_behind = "select pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()";

    let mut unflushed = 0;
    for _ in 0..10 {
        let (one, two) = tokio::join!(leases.try_acquire("one"), leases.try_acquire("two"));
        let (one, two) = (one.unwrap().unwrap(), two.unwrap().unwrap());
        let outcomes = tokio::join!(one.release(), two.release());
        assert_eq!(
            (outcomes.0.unwrap(), outcomes.1.unwrap()),
            (Release::Released, Release::Released)
        );
        let is_behind: bool = sqlx::query_scalar(is_behind).fetch_one(&mut session).await.unwrap();
        unflushed += i32::from(is_behind);
    }

    // The server flushes by itself now and then.
    assert!(unflushed >= 8, "{unflushed} of 10 releases were not flushed");
}

#[tokio::test]
async fn single_cycles_are_hot() {
    let quiet = Quiet::with_database("storage_hot_single").await;
    let leases = quiet.db.client();

    for cycle in 0..800 {
        let name = format!("cycled {}", cycle % 40);
        let lease = leases.try_acquire(name).await.unwrap().unwrap();
        lease.release().await.unwrap();
    }
    leases.close().await;

    assert_hot(&quiet.db, 1600).await;
}

#[tokio::test]
async fn cycles_in_batches_are_hot() {
    let quiet = Quiet::with_database("storage_hot_batches").await;
    let [mut session] = sessions(&quiet.db).await;
    let names: Vec<_> = (0..128).map(|number| format!("cycled {number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();

    for _ in 0..40 {
        let grants = grant_all(&mut session, &names, "30 s").await;
        release_many(&mut session, &grants, "0").await;
    }
    drop(session);

    assert_hot(&quiet.db, 40 * 2 * 128).await;
}

#[tokio::test]
async fn renewals_are_hot() {
    let quiet = Quiet::with_database("storage_hot_renewals").await;
    let [mut session] = sessions(&quiet.db).await;
    let names: Vec<_> = (0..128).map(|number| format!("renewed {number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let grants = grant_all(&mut session, &names, "1 hour").await;
    let owners: Vec<_> = grants.iter().map(|grant| grant.owner).collect();
    let renew = "select count(*) from leasehold.renew($1, $2, array_fill('1 hour'::interval, array[cardinality($1)])) \
        where outcome = 'renewed'";

    for _ in 0..40 {
        let renewed = sqlx::query_scalar::<_, i64>(renew).bind(&names).bind(&owners);
        assert_eq!(renewed.fetch_one(&mut session).await.unwrap(), 128);
    }
    drop(session);

    assert_hot(&quiet.db, 40 * 128).await;
}

#[tokio::test]
async fn sweep_rests_at_its_end_and_begins_anew_after_a_minute() {
    let db = TestDb::own("storage_sweep_anew").await;
    let [mut session] = sessions(&db).await;

    for round in 0..3 {
        for name in ["a", "b"] {
            grant(&mut session, name, "30 s").await;
            age(&mut session, name, 61.0).await;
        }

        assert_eq!(sweep(&mut session, 1).await, (1, 0.0), "round {round}");
        assert_eq!(sweep(&mut session, 1).await, (1, 0.0), "round {round}");
        assert_eq!(sweep(&mut session, 1).await, (0, 60.0), "round {round}");
        let a_minute_later = "update leasehold.sweeps set next_at = next_at - interval '1 minute'";
        run(&mut session, a_minute_later).await;
    }
}

/// Else the sweep would leave it for as long as the lease would have lasted.
#[tokio::test]
async fn names_are_read_from_their_newest_version_on_while_a_snapshot_is_open() {
    let db = TestDb::own("storage_snapshot").await;
    let [mut session, mut backup] = sessions(&db).await;
    run(&mut session, "set synchronous_commit = off").await;
    run(
        &mut backup,
        "begin isolation level repeatable read; select from leasehold.locks",
    )
    .await;
    let names = ["hot", "hotter"];

    for _ in 0..CYCLES_UNDER_A_SNAPSHOT {
        cycle_in_a_set(&mut session, &names).await;
        cycle(&mut session, "hot").await;
    }
    let in_a_set = entries_read(&mut session, async |session| cycle_in_a_set(session, &names).await).await;
    let alone = entries_read(&mut session, async |session| cycle(session, "hot").await).await;
    let _held = grant_all(&mut session, &names, "1 hour").await;
    let missed = entries_read(&mut session, async |session| {
        assert_eq!(ask(session, "hot").await, "held");
        let answers = acquire_many(session, &names, &[Uuid::new_v4(), Uuid::new_v4()], "1 minute").await;
        assert!(answers.iter().all(|answer| answer.outcome == "held"));
    })
    .await;
    let by_an_equation = entries_read(&mut session, async |session| {
        run(session, "select from leasehold.locks where name = 'hot'").await;
    })
    .await;

    assert!(
        by_an_equation > 100,
        "{by_an_equation}: no version is kept, or none is counted"
    );
    assert!(in_a_set < 10, "{in_a_set} for two names, beside {by_an_equation}");
    assert!(alone < 5, "{alone}, beside {by_an_equation}");
    assert!(missed < 10, "{missed} for three answers, beside {by_an_equation}");
}

#[tokio::test]
async fn row_of_a_free_name_tells_since_when_it_is_free() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;

    for end in ["release", "release_many", "break_lease"] {
        let held = grant(&mut session, &unique_name!(), "24 hours").await;
        let freed = match end {
            "release" => release(&mut session, &held, "0").await,
            "release_many" => release_many(&mut session, std::slice::from_ref(&held), "0")
                .await
                .remove(0),
            _ => break_lease(&mut session, &held.name).await.to_string(),
        };

        let sql = "select expires_at <= clock_timestamp() from leasehold.locks where name = $1 and owner is null";
        let is_over = sqlx::query_scalar::<_, bool>(sql)
            .bind(&held.name)
            .fetch_one(&mut session)
            .await;
        assert!(is_over.unwrap(), "{end}: {freed}");
    }
}

#[tokio::test]
async fn sweep_removes_what_has_been_free_or_run_out_for_a_minute_and_nothing_else() {
    let db = TestDb::own("storage_sweep").await;
    let [mut session, mut writer] = sessions(&db).await;
    let mut pinned = None;
    for (name, is_released, age_s) in [
        ("a old and free", true, 61.0),
        ("b old and run out", false, 61.0),
        ("c young and free", true, 30.0),
        ("d young and run out", false, 30.0),
        ("e old and pinned", false, 61.0),
        ("f old and free", true, 3600.0),
        ("g held", false, -3600.0),
        ("h old and run out", false, 3600.0),
    ] {
        let held = grant(&mut session, name, "30 s").await;
        if is_released {
            release(&mut session, &held, "0").await;
        }
        age(&mut session, name, age_s).await;
        if name.ends_with("pinned") {
            pinned = Some(held);
        }
    }
    run(&mut writer, "begin").await;
    fence(&mut writer, &pinned.unwrap()).await.unwrap();

    let mut steps = Vec::new();
    loop {
        let (removed, again_in) = sweep(&mut session, 3).await;
        steps.push(removed);
        if again_in > 0.0 {
            assert_eq!(again_in, 60.0);
            break;
        }
    }
    let (removed, again_in) = sweep(&mut session, 3).await;
    run(&mut writer, "commit").await;

    let left: Vec<String> = sqlx::query_scalar("select name from leasehold.locks order by name")
        .fetch_all(&mut session)
        .await
        .unwrap();
    assert_eq!(steps, [2, 1, 1]);
    assert_eq!(
        left,
        ["c young and free", "d young and run out", "e old and pinned", "g held"]
    );
    assert_eq!(removed, 0);
    assert!((1.0..=60.0).contains(&again_in), "{again_in}");
}

#[tokio::test]
async fn one_session_sweeps_at_a_time_and_the_others_do_not_wait() {
    let db = TestDb::own("storage_sweep_gate").await;
    let [mut first, mut second] = sessions(&db).await;
    for name in ["one", "two"] {
        grant(&mut first, name, "30 s").await;
        age(&mut first, name, 61.0).await;
    }
    run(&mut second, "set lock_timeout = '1ms'").await;

    run(&mut first, "begin").await;
    let sweeping = sweep(&mut first, 1).await;
    let turned_away = sweep(&mut second, 1).await;
    run(&mut first, "rollback").await;
    let let_in = sweep(&mut second, 1).await;

    assert_eq!(sweeping, (1, 0.0));
    assert_eq!(turned_away, (0, 1.0));
    assert_eq!(let_in, (1, 0.0));
}

#[tokio::test]
async fn client_sweeps_by_itself() {
    let db = TestDb::own("storage_sweep_client").await;
    let [mut session] = sessions(&db).await;
    grant(&mut session, "one-shot", "30 s").await;
    age(&mut session, "one-shot", 61.0).await;

    // Each begins within a minute of its first statement, at random.
    let clients: Vec<_> = (0..20).map(|_| db.client()).collect();
    for leases in &clients {
        drop(leases.try_acquire("another").await.unwrap());
    }

    eventually(SWEPT_WITHIN, "the client has swept", async || {
        let rows = sqlx::query_scalar::<_, i64>("select count(*) from leasehold.locks where name = 'one-shot'");
        rows.fetch_one(&mut session).await.unwrap() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: a million cycles"]
async fn table_stays_small_over_a_million_cycles() {
    // Of its own: a long transaction of another test would keep the server from tidying up.
    let cluster = Cluster::start().await;
    let db = TestDb::with(cluster.create_database("million").await);
    db.install_schema().await;
    let leases = db.client();
    let mut tasks = JoinSet::new();
    for number in 0..1000 {
        let leases = leases.clone();
        tasks.spawn(async move {
            let name = format!("cycled {number}");
            for _ in 0..1000 {
                let lease = leases.try_acquire(&name).await.unwrap().unwrap();
                assert_eq!(lease.release().await.unwrap(), Release::Released);
            }
        });
    }
    tasks.join_all().await;
    leases.close().await;

    let [mut session] = sessions(&db).await;
    let size: i64 = sqlx::query_scalar("select pg_total_relation_size('leasehold.locks')")
        .fetch_one(&mut session)
        .await
        .unwrap();
    eprintln!("locks and its index have {size} bytes after a million cycles");
    assert!(size < 2_000_000, "{size} bytes");
    assert_hot(&db, 2_000_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: the sweep waits for a minute, in a table of a million rows"]
async fn one_shot_names_are_swept_in_time_beside_a_million_held_leases() {
    let db = TestDb::own("storage_sweep_million").await;
    let [mut session] = sessions(&db).await;
    run(
        &mut session,
        "insert into leasehold.locks (name, owner, holder, ttl, fence, acquired_at, expires_at)
        select format('held %s', n), gen_random_uuid(), 'the holder', '1 hour', n, clock_timestamp(),
            clock_timestamp() + interval '1 hour'
        from generate_series(1, 1000000) as n",
    )
    .await;
    for batch in 0..400 {
        let names: Vec<_> = (0..250).map(|number| format!("one-shot {batch}:{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let grants = grant_all(&mut session, &names, "30 s").await;
        release_many(&mut session, &grants, "0").await;
    }
    let last_used_at = Instant::now();

    let leases = db.client();
    let slowest = tokio::spawn(slowest_cycle(leases.clone(), last_used_at + Duration::from_secs(150)));
    eventually(Duration::from_secs(150), "the one-shot names are swept", async || {
        sleep(Duration::from_millis(500)).await;
        let rows = sqlx::query_scalar::<_, i64>("select count(*) from leasehold.locks where name like 'one-shot %'");
        rows.fetch_one(&mut session).await.unwrap() == 0
    })
    .await;

    slowest.abort();
    let held = sqlx::query_scalar::<_, i64>("select count(*) from leasehold.locks where name like 'held %'");
    assert_eq!(held.fetch_one(&mut session).await.unwrap(), 1_000_000);
    let slowest = Duration::from_micros(SLOWEST_US.load(std::sync::atomic::Ordering::Relaxed));
    eprintln!(
        "swept {:?} after the last use, the slowest cycle meanwhile {slowest:?}",
        last_used_at.elapsed()
    );
    assert!(
        !slowest.is_zero() && slowest < Duration::from_secs(1),
        "a cycle took {slowest:?}"
    );
}

/// Asks for what is held, in every way there is.
async fn miss(leases: &LeaseClient, session: &mut PgConnection) {
    assert_eq!(ask(session, "first").await, "held");
    acquire_many(session, &["first", "second"], &[Uuid::new_v4(), Uuid::new_v4()], "30 s").await;
    for _ in 0..100 {
        let (first, second, third) = tokio::join!(
            leases.try_acquire("first"),
            leases.try_acquire("second"),
            leases.try_acquire("first")
        );
        assert!(first.unwrap().is_none() && second.unwrap().is_none() && third.unwrap().is_none());
    }
}

static SLOWEST_US: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Cycles through a name of its own and notes the longest time it took.
async fn slowest_cycle(leases: LeaseClient, until: Instant) {
    while Instant::now() < until {
        let started_at = Instant::now();
        let lease = leases.try_acquire("bystander").await.unwrap().unwrap();
        lease.release().await.unwrap();
        let took = u64::try_from(started_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        SLOWEST_US.fetch_max(took, std::sync::atomic::Ordering::Relaxed);
        sleep(Duration::from_millis(1)).await;
    }
}

async fn grant_all(session: &mut PgConnection, names: &[&str], ttl: &str) -> Vec<Grant> {
    let owners: Vec<_> = names.iter().map(|_| Uuid::new_v4()).collect();
    let answers = acquire_many(session, names, &owners, ttl).await;
    names
        .iter()
        .zip(owners)
        .zip(answers)
        .map(|((name, owner), answer)| Grant {
            name: (*name).to_owned(),
            owner,
            token: answer.token.expect("a free name is granted"),
        })
        .collect()
}

async fn cycle(session: &mut PgConnection, name: &str) {
    let granted = grant(session, name, "1 minute").await;
    assert_eq!(release(session, &granted, "0").await, "released");
}

async fn cycle_in_a_set(session: &mut PgConnection, names: &[&str]) {
    let granted = grant_all(session, names, "1 minute").await;
    assert_eq!(release_many(session, &granted, "0").await, ["released", "released"]);
}

/// How many entries of the names' index `work` reads, in one transaction.
async fn entries_read(session: &mut PgConnection, work: impl AsyncFnOnce(&mut PgConnection)) -> i64 {
    let read = "select pg_stat_get_xact_tuples_returned('leasehold.locks_pkey'::regclass)";
    run(session, "begin").await;
    let before: i64 = sqlx::query_scalar(read).fetch_one(&mut *session).await.unwrap();
    work(session).await;
    let after: i64 = sqlx::query_scalar(read).fetch_one(&mut *session).await.unwrap();
    run(session, "commit").await;
    after - before
}

async fn log_position(session: &mut PgConnection) -> i64 {
    let position = "select (pg_current_wal_insert_lsn() - '0/0')::int8";
    sqlx::query_scalar(position).fetch_one(session).await.unwrap()
}

/// More than 90 % of at least `updates` updates changed no index.
async fn assert_hot(db: &TestDb, updates: i64) {
    let [mut session] = sessions(db).await;
    let counters = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'leasehold.locks'::regclass";
    let (updated, hot) = eventually(Duration::from_secs(30), "the updates are counted", async || {
        let counted = sqlx::query_as::<_, (i64, i64)>(counters)
            .fetch_one(&mut session)
            .await
            .unwrap();
        Some(counted).filter(|(updated, _)| *updated >= updates)
    })
    .await;
    eprintln!("{hot} of {updated} updates were HOT");
    assert!(hot * 10 > updated * 9, "{hot} of {updated} updates were HOT");
}

/// Each leaves two versions, of which a page holds some sixty, and each page an entry in the index.
const CYCLES_UNDER_A_SNAPSHOT: u32 = 2000;
const SWEPT_WITHIN: Duration = Duration::from_secs(90);
