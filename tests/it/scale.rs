//! Many leases and many tasks on one client: what they cost, by the server's own counters.

use std::time::Duration;

use leasehold::{Error, Lease, LeaseClient};
use leasehold_testkit::{Cluster, eventually};
use sqlx::postgres::PgPoolOptions;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::support::cancelled::Rng;
use crate::support::{LONG, TestDb};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_leases_are_kept_by_one_statement_a_second_on_one_connection_beside_a_full_pool() {
    let db = counted("ten_thousand").await;
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect_lazy_with(db.options.clone().application_name("ten thousand"));
    let _occupied = [pool.acquire().await.unwrap(), pool.acquire().await.unwrap()];
    let leases = LeaseClient::builder(pool.clone()).ttl(TTL).build().unwrap();
    let held = acquire_all(&leases, (0..10_000).map(|i| format!("thing:{i}"))).await;
    let held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
    let (granted_until, counted_from) = (latest_expiry(&db).await, renewals(&db).await);

    let (counted, seconds) = eventually(LONG, "all would have run out without renewals", async || {
        let sql = "select extract(epoch from clock_timestamp() - $1)::float8";
        let over: f64 = sqlx::query_scalar(sql)
            .bind(granted_until)
            .fetch_one(&db.pool)
            .await
            .unwrap();
        let counted = renewals(&db).await;
        (over > 1.0).then(|| (counted - counted_from, TTL.as_secs_f64() + over))
    })
    .await;

    eprintln!("{counted} renewal statements in {seconds:.1} s for 10,000 leases");
    assert_eq!(held.iter().filter(|lease| !lease.is_held()).count(), 0, "none is lost");
    let sql = "select count(*) from leasehold.held where not expired";
    let in_the_database: i64 = sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap();
    assert_eq!(in_the_database, 10_000);
    assert!(
        counted >= 2 && counted as f64 <= seconds,
        "{counted} renewals in {seconds} s"
    );
    assert_eq!(
        connections(&db, "ten thousand").await,
        2 + 1,
        "the full pool, and the client's own"
    );
    assert_eq!(pool.size(), 2);

    drop(held);
    db.is_let_go("thing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_ask_at_once_share_statements_and_each_gets_its_own_answer() {
    let db = counted("at_once").await;
    let leases = db.client();
    let rounds = 20;

    for round in 0..rounds {
        let names: Vec<_> = (0..256).map(|i| format!("{round}:{i}")).collect();
        let held = acquire_all(&leases, names.clone()).await;
        let mut tokens = Vec::new();
        for (lease, name) in held.iter().map(|lease| lease.as_ref().unwrap()).zip(&names) {
            assert_eq!(lease.name(), name);
            tokens.push((name.clone(), lease.fencing_token()));
        }
        tokens.sort();
        let sql = "select name, fencing_token from leasehold.held where starts_with(name, $1) order by name";
        let in_the_database: Vec<_> = sqlx::query_as(sql)
            .bind(format!("{round}:"))
            .fetch_all(&db.pool)
            .await
            .unwrap();
        assert_eq!(tokens, in_the_database);
        release_all(held).await;
        assert_eq!(db.held_count(&format!("{round}:")).await, 0);
    }

    let (acquires, releases) = (
        calls(&db, "leasehold.acquire").await,
        calls(&db, "leasehold.release").await,
    );
    let operations = rounds * 256;
    assert!(
        acquires >= rounds && acquires < operations / 10,
        "{acquires} statements for {operations} acquires"
    );
    assert!(
        releases >= rounds && releases < operations / 10,
        "{releases} statements for {operations} releases"
    );
}

// On one thread, where it is certain who runs before the lane does; and of those that give way to the
// task woken last.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tasks_that_were_answered_together_ask_together_again() {
    let db = counted("together").await;
    let (leases, rounds) = (db.client(), 50);
    let mut tasks = JoinSet::new();

    for task in 0..8 {
        let leases = leases.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let lease = leases.acquire(format!("task:{task}")).await.unwrap();
                lease.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;

    for kind in ["leasehold.acquire", "leasehold.release"] {
        let statements = calls(&db, kind).await;
        assert!(
            (rounds..rounds + rounds / 5).contains(&statements),
            "{statements} with {kind} for {rounds} rounds of 8 tasks"
        );
    }
}

#[tokio::test]
async fn tasks_that_do_not_wait_for_one_name_share_their_statements() {
    let (db, rounds) = (counted("one_name").await, 50);
    let _held = db.client().acquire("held").await.unwrap();
    let leases = db.client();
    let mut tasks = JoinSet::new();

    for _ in 0..8 {
        let leases = leases.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                assert!(leases.try_acquire("held").await.unwrap().is_none());
            }
        });
    }
    tasks.join_all().await;

    let statements = calls(&db, "leasehold.acquire").await;
    assert!(
        (rounds..rounds + rounds / 5).contains(&statements),
        "{statements} for {rounds} rounds of 8 tasks"
    );
}

#[tokio::test]
async fn statements_inside_the_functions_are_not_planned_at_each_call() {
    let db = counted("planned_once").await;
    let mut session = db.pool.acquire().await.unwrap();
    let settings = "set pg_stat_statements.track = 'all'; set pg_stat_statements.track_planning = on";
    sqlx::raw_sql(settings).execute(&mut *session).await.unwrap();

    // Statistics are what makes a plan for the arguments at hand look cheaper.
    let waiters = "insert into leasehold.clients select md5(n::text)::uuid, 'infinity' from generate_series(1, 9) as n; \
        insert into leasehold.waiters (name, owner, client) \
            select 'line ' || n % 30, gen_random_uuid(), md5((n % 9 + 1)::text)::uuid from generate_series(1, 3000) as n; \
        analyze leasehold.waiters, leasehold.clients";
    sqlx::raw_sql(waiters).execute(&mut *session).await.unwrap();
    let cycle = "select leasehold.acquire('a', md5('a')::uuid, '1 s'); \
        select leasehold.release('a', md5('a')::uuid); \
        select leasehold.acquire_many(array['b', 'c'], array[md5('b')::uuid, md5('c')::uuid], array['1 s', '1 s']::interval[]); \
        select leasehold.acquire_many(array['b', 'c'], array[md5('d')::uuid, md5('e')::uuid], array['1 s', '1 s']::interval[]); \
        select leasehold.release_many(array['b', 'c'], array[md5('b')::uuid, md5('c')::uuid]); \
        select leasehold.ahead('line 7', null), leasehold.wake('line 7')";
    for _ in 0..CYCLES_TO_PLAN {
        sqlx::raw_sql(cycle).execute(&mut *session).await.unwrap();
    }

    let planned = "select query, calls, plans from pg_stat_statements \
        where not toplevel and calls >= $1 and dbid = (select oid from pg_database where datname = current_database())";
    let planned: Vec<(String, i64, i64)> = sqlx::query_as(planned)
        .bind(CYCLES_TO_PLAN)
        .fetch_all(&mut *session)
        .await
        .unwrap();
    assert!(planned.len() > 10, "{planned:?}: not counted");
    for (query, calls, plans) in planned {
        assert!(plans < calls / 2, "planned {plans} times in {calls} calls: {query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_the_database_refuses_fails_alone_among_its_neighbours() {
    let db = counted("one_bad").await;
    sqlx::raw_sql(
        "create function reject() returns trigger language plpgsql as
             $$ begin raise exception 'no such thing' using errcode = '23514'; end $$;
         create trigger reject before insert on leasehold.locks
             for each row when (new.name = 'bad') execute function reject()",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    let names: Vec<_> = (0..256)
        .map(|i| if i == 77 { "bad".into() } else { format!("good:{i}") })
        .collect();

    let held = acquire_all(&db.client(), names).await;

    for (i, lease) in held.iter().enumerate() {
        match lease {
            Ok(lease) => assert_eq!(lease.name(), format!("good:{i}")),
            Err(Error::Database { name, .. }) => assert_eq!((name.as_str(), i), ("bad", 77)),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(held.iter().filter(|lease| lease.is_err()).count(), 1);
    assert_eq!(db.held_count("good").await, 255);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_insert_the_same_new_names_at_once_never_deadlock() {
    let (db, mut rng) = (counted("same_names").await, Rng::new());
    let clients = [db.client(), db.client()];

    for round in 0..60 {
        let mut asked = Vec::new();
        for client in &clients {
            let mut names: Vec<_> = (0..64).map(|i| format!("{round}:{i}")).collect();
            // Each client in an order of its own.
            names.sort_by_cached_key(|_| rng.next());
            let client = client.clone();
            asked.push(tokio::spawn(async move { try_acquire_all(&client, names).await }));
        }
        let mut granted = Vec::new();
        for asked in asked {
            granted.extend(asked.await.unwrap().into_iter().filter_map(Result::unwrap));
        }
        let mut names: Vec<_> = granted.iter().map(Lease::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!((granted.len(), names.len()), (64, 64), "each name is granted once");
    }

    let sql = "select deadlocks from pg_stat_database where datname = current_database()";
    for client in clients {
        // The counter is complete once the sessions that count are gone.
        client.close().await;
    }
    let deadlocks: i64 = sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap();
    assert_eq!(deadlocks, 0);
}

const CYCLES_TO_PLAN: i64 = 40;

/// A database on a cluster that counts statements, and sees a deadlock before the lane's own
/// bound on waiting ends it.
async fn counted(name: &str) -> TestDb {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let start = Cluster::builder()
        .setting("shared_preload_libraries", "pg_stat_statements")
        .setting("pg_stat_statements.track", "top")
        .setting("max_connections", "50")
        .setting("deadlock_timeout", "5ms")
        .start();
    let cluster = CLUSTER.get_or_init(|| start).await;
    let db = TestDb::with(cluster.create_database(name).await);
    db.install_schema().await;
    let done = sqlx::raw_sql("create extension pg_stat_statements")
        .execute(&db.pool)
        .await;
    done.unwrap();
    db
}

/// How often this database has run a statement whose text contains `sql`.
async fn calls(db: &TestDb, sql: &str) -> i64 {
    let counted = "select coalesce(sum(calls), 0)::bigint from pg_stat_statements
                   where strpos(query, $1) > 0
                       and dbid = (select oid from pg_database where datname = current_database())";
    sqlx::query_scalar(counted).bind(sql).fetch_one(&db.pool).await.unwrap()
}

async fn renewals(db: &TestDb) -> i64 {
    calls(db, "leasehold.renew(").await
}

async fn latest_expiry(db: &TestDb) -> chrono::DateTime<chrono::Utc> {
    let sql = "select max(acquired_at) + make_interval(secs => $1) from leasehold.locks";
    sqlx::query_scalar(sql)
        .bind(TTL.as_secs_f64())
        .fetch_one(&db.pool)
        .await
        .unwrap()
}

async fn connections(db: &TestDb, application: &str) -> i64 {
    let sql = "select count(*) from pg_stat_activity where application_name = $1";
    sqlx::query_scalar(sql)
        .bind(application)
        .fetch_one(&db.pool)
        .await
        .unwrap()
}

/// One task for each name, all at once; the answers in the order of the names.
async fn acquire_all(leases: &LeaseClient, names: impl IntoIterator<Item = String>) -> Vec<Result<Lease, Error>> {
    in_tasks(
        names
            .into_iter()
            .map(|name| leases.acquire(name).wait_at_most(LONG).into_future()),
    )
    .await
}

async fn try_acquire_all(leases: &LeaseClient, names: Vec<String>) -> Vec<Result<Option<Lease>, Error>> {
    in_tasks(names.into_iter().map(|name| leases.acquire(name).try_acquire())).await
}

async fn release_all(held: Vec<Result<Lease, Error>>) {
    let released = in_tasks(held.into_iter().map(|lease| lease.unwrap().release())).await;
    assert!(
        released
            .into_iter()
            .all(|released| released.unwrap() == leasehold::Release::Released)
    );
}

async fn in_tasks<F>(work: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (i, work) in work.enumerate() {
        tasks.spawn(async move { (i, work.await) });
    }
    let mut done = tasks.join_all().await;
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, output)| output).collect()
}

const TTL: Duration = Duration::from_secs(10);
