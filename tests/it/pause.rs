//! Processes that are stopped or killed while they hold a lease.
//!
//! The holder is this test binary once more: it runs one ignored test that does as it is told, a
//! line at a time.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::{Error, LeaseClient, Release, is_fenced};
use leasehold_testkit::{eventually, signals};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{AssertSqlSafe, Executor, Postgres};
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::support::SOON;
use crate::support::{TestDb, unique_name};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_holder_sees_the_loss_first_and_writes_nothing() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let table = document(&db).await;
    let mut holder = Holder::start(&db, &name, &table);
    let token: i64 = holder.ask("token").parse().unwrap();
    assert_eq!(holder.ask("state"), "held");
    assert_eq!(holder.ask("write"), "Ok(())");

    // The question is there when it wakes, so nothing comes before the answer.
    assert!(signals::stop(holder.pid()));
    holder.tell("state");
    let stopped_at = Instant::now();
    eventually(SOON, "one and a half ttl have gone by", async || {
        stopped_at.elapsed() > TTL * 3 / 2
    })
    .await;
    let next = db.client().acquire(&name).wait_at_most(SOON).await.unwrap();
    write(&db.pool, &table, &name, next.fencing_token().get(), "next")
        .await
        .unwrap();
    assert!(signals::cont(holder.pid()));

    assert_eq!(holder.answer(), "lost: no renewal in time");
    assert_eq!(holder.ask("write"), "refused by the handle");
    assert_eq!(holder.ask("write without asking the handle"), "refused by the database");
    assert!(next.fencing_token().get() > token);
    assert_eq!(
        written(&db, &table).await,
        ("next".to_owned(), next.fencing_token().get())
    );
    assert_eq!(holder.ask("release"), "Ok(NotOwner)");
    assert!(next.is_held());
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_stopped_for_less_than_its_window_goes_on() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let table = document(&db).await;
    let mut holder = Holder::start_with(&db, &name, &table, TTL * 20);

    assert!(signals::stop(holder.pid()));
    holder.tell("state");
    tokio::time::sleep(TTL).await;
    assert!(signals::cont(holder.pid()));

    assert_eq!(holder.answer(), "held");
    assert_eq!(holder.ask("write"), "Ok(())");
    assert_eq!(holder.ask("release"), "Ok(Released)");
    assert!(!db.is_held(&name).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_delays_the_next_one_by_its_ttl_and_no_more() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let table = document(&db).await;
    let mut holder = Holder::start(&db, &name, &table);
    let token: i64 = holder.ask("token").parse().unwrap();

    assert!(signals::kill(holder.pid()));
    // What it had sent may still be carried out, until its sessions are gone.
    eventually(SOON, "its sessions are gone", async || {
        db.backends(&holder.application).await.is_empty()
    })
    .await;
    let left = db.row(&name).await.unwrap();
    let (_, runs_out_at) = times(&db, &name).await;
    let next = db.client().acquire(&name).wait_at_most(SOON).await.unwrap();

    assert!(left.expires_in <= TTL.as_secs_f64());
    let (granted_at, _) = times(&db, &name).await;
    assert!(
        granted_at >= runs_out_at,
        "granted at {granted_at}, held until {runs_out_at}"
    );
    assert!(next.fencing_token().get() > token);
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_stopped_in_a_fenced_transaction_pins_the_name_for_two_ttl_at_most_and_commits_nothing() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (table, ttl) = (document(&db).await, TTL / 2);
    let mut holder = Holder::start_with(&db, &name, &table, ttl);
    let token: i64 = holder.ask("token").parse().unwrap();
    assert_eq!(holder.ask("begin and write"), "Ok(())");

    assert!(signals::stop(holder.pid()));
    let stopped_at = now(&db).await;
    let next = db.client().acquire(&name).wait_at_most(SOON).await.unwrap();
    let (granted_at, _) = times(&db, &name).await;
    let open = "select count(*) from pg_stat_activity where application_name = $1 and xact_start is not null";
    let open: i64 = sqlx::query_scalar(open)
        .bind(&holder.application)
        .fetch_one(&db.pool)
        .await
        .unwrap();
    write(&db.pool, &table, &name, next.fencing_token().get(), "next")
        .await
        .unwrap();
    assert!(signals::cont(holder.pid()));

    let waited = (granted_at - stopped_at).to_std().unwrap();
    assert!(waited <= ttl * 2 + Duration::from_secs(1), "{waited:?}");
    assert!(next.fencing_token().get() > token);
    assert_eq!(open, 0, "its transaction is gone");
    let committed = holder.ask("commit");
    assert!(committed.starts_with("Err("), "{committed}");
    assert_eq!(
        written(&db, &table).await,
        ("next".to_owned(), next.fencing_token().get())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fenced_transaction_that_keeps_working_past_its_ttl_is_waited_for_and_reported_as_pinned() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let (table, ttl) = (document(&db).await, Duration::from_millis(500));
    let lease = db.client().acquire(&name).ttl(ttl).manual_renewal().await.unwrap();
    let token = lease.fencing_token().get();
    let mut tx = lease.begin(&db.pool).await.unwrap();
    let next = db.client();

    // Never idle for as long as the ttl, and open for more than three.
    let work = async {
        for _ in 0..10 {
            sqlx::query("select pg_sleep(0.2)").execute(&mut *tx).await.unwrap();
        }
        write(&mut *tx, &table, &name, token, "holder").await.unwrap();
    };
    let wait = next.acquire(&name).wait_at_most(ttl * 3).into_future();
    let ((), waited) = tokio::join!(work, wait);
    let committed = tx.commit().await;
    let (_, runs_out_at) = times(&db, &name).await;
    let ended_at = now(&db).await;
    let granted = next.acquire(&name).wait_at_most(SOON).await.unwrap();

    assert!(
        matches!(waited, Err(Error::WaitTimedOut { pinned: true, .. })),
        "{waited:?}"
    );
    assert!(ended_at > runs_out_at);
    committed.unwrap();
    assert_eq!(written(&db, &table).await, ("holder".to_owned(), token));
    assert!(granted.fencing_token().get() > token);
}

/// The other end of [`Holder`].
#[test]
#[ignore = "runs as a child process of the other tests"]
fn child_process_that_holds_a_lease() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders: Vec<&str> = orders.split_whitespace().collect();
    let [port, database, application, name, table, ttl] = orders[..] else {
        panic!("{orders:?}")
    };
    let options = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port.parse().unwrap())
        .username("postgres")
        .database(database)
        .application_name(application)
        .ssl_mode(PgSslMode::Disable);
    let runtime = Runtime::new().unwrap();
    let _inside = runtime.enter();
    let pool = PgPoolOptions::new().connect_lazy_with(options);
    let leases = LeaseClient::builder(pool.clone())
        .ttl(Duration::from_millis(ttl.parse().unwrap()))
        .build()
        .unwrap();
    let mut lease = Some(runtime.block_on(leases.acquire(name).into_future()).unwrap());
    let token = lease.as_ref().unwrap().fencing_token();
    let mut open = None;

    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let held = lease.as_ref().expect("the release is the last order");
        let answer = match order.as_str() {
            "token" => token.to_string(),
            "state" => match (held.is_held(), runtime.block_on(timeout(Duration::ZERO, held.lost()))) {
                (true, Err(_)) => "held".to_owned(),
                (false, Ok(lost)) => format!("lost: {}", lost.cause),
                (is_held, lost) => format!("held: {is_held}, lost: {lost:?}"),
            },
            "write" => match runtime.block_on(held.begin(&pool)) {
                Ok(mut tx) => {
                    let written = runtime.block_on(async {
                        write(&mut *tx, table, name, token.get(), "holder").await?;
                        tx.commit().await
                    });
                    format!("{written:?}")
                }
                Err(Error::Lost(_)) => "refused by the handle".to_owned(),
                Err(error) => format!("{error:?}"),
            },
            "begin and write" => {
                let mut tx = runtime.block_on(held.begin(&pool)).unwrap();
                let written = runtime.block_on(write(&mut *tx, table, name, token.get(), "holder"));
                open = Some(tx);
                format!("{written:?}")
            }
            "commit" => format!("{:?}", runtime.block_on(open.take().unwrap().commit())),
            "write without asking the handle" => {
                match runtime.block_on(write(&pool, table, name, token.get(), "holder")) {
                    Err(error) if is_fenced(&error) => "refused by the database".to_owned(),
                    other => format!("{other:?}"),
                }
            }
            "release" => format!("{:?}", runtime.block_on(lease.take().unwrap().release())),
            other => panic!("no such order: {other}"),
        };
        writeln!(std::io::stdout(), "{ANSWER}{answer}").unwrap();
    }
}

/// A process of its own that holds a lease and does as it is told. It is gone when dropped.
struct Holder {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    application: String,
}

impl Holder {
    fn start(db: &TestDb, name: &str, table: &str) -> Self {
        Self::start_with(db, name, table, TTL)
    }

    fn start_with(db: &TestDb, name: &str, table: &str, ttl: Duration) -> Self {
        let application = format!("holder-{}", Uuid::new_v4());
        let (port, database) = (db.options.get_port(), db.options.get_database().unwrap());
        let ttl = ttl.as_millis();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "pause::child_process_that_holds_a_lease",
                "--ignored",
                "--nocapture",
            ])
            .env(ORDERS, format!("{port} {database} {application} {name} {table} {ttl}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            orders: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
            application,
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// The next answer. The test harness talks on the same channel, on the same line even.
    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the holder has ended");
            if let Some((_, answer)) = line.trim_end().split_once(ANSWER) {
                return answer.to_owned();
            }
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        signals::kill(self.pid());
        let _ = self.child.wait();
    }
}

/// A table with one document, written only under the fence.
async fn document(db: &TestDb) -> String {
    let table = format!("document_{}", Uuid::new_v4().simple());
    let create = format!("create table {table} as select 'nothing' as body, 0::bigint as fence");
    db.pool.execute(AssertSqlSafe(create)).await.unwrap();
    table
}

async fn write<'c>(
    executor: impl Executor<'c, Database = Postgres>,
    table: &str,
    name: &str,
    token: i64,
    body: &str,
) -> Result<(), sqlx::Error> {
    let update = format!("update {table} set body = $1, fence = leasehold.fence($2, $3)");
    let update = sqlx::query(AssertSqlSafe(update)).bind(body).bind(name).bind(token);
    update.execute(executor).await.map(drop)
}

async fn written(db: &TestDb, table: &str) -> (String, i64) {
    let read = format!("select body, fence from {table}");
    sqlx::query_as(AssertSqlSafe(read)).fetch_one(&db.pool).await.unwrap()
}

/// When the name was granted, and until when.
async fn times(db: &TestDb, name: &str) -> (DateTime<Utc>, DateTime<Utc>) {
    sqlx::query_as("select acquired_at, expires_at from leasehold.locks where name = $1")
        .bind(name)
        .fetch_one(&db.pool)
        .await
        .unwrap()
}

async fn now(db: &TestDb) -> DateTime<Utc> {
    sqlx::query_scalar("select clock_timestamp()")
        .fetch_one(&db.pool)
        .await
        .unwrap()
}

const ORDERS: &str = "LEASEHOLD_TEST_HOLDER";
const ANSWER: &str = "holder> ";
const TTL: Duration = Duration::from_secs(2);
