//! A queue of invoices, several workers, and each invoice made final once, by one of them.
//!
//! To make an invoice final takes a while (it is rendered), and then a transaction that draws the next
//! number and posts it. Workers lease the invoice they are at, so that no two are at the same, and fence
//! that transaction, so that one which was overtaken posts nothing. [`worker`] is the part to copy.
//!
//! The proof: a worker is stopped (SIGSTOP) between rendering and posting, for longer than its ttl.
//! Others take its invoice over and finish. Then it goes on, and is refused. In the end each invoice must
//! have one posting and the numbers no gap, though no constraint of the tables sees to that.
//!
//! ```text
//! cargo run --example invoice
//! ```
//!
//! It runs on the database of `DATABASE_URL`, or on a throw-away cluster when that is not set. The same in
//! other languages: `examples/python/invoice.py`, `examples/node/invoice.mjs`.

#![allow(clippy::print_stdout, reason = "an example is there to be read")]
#![allow(unreachable_pub, reason = "an example has no outside")]

#[path = "../service/shutdown.rs"]
mod shutdown;
mod worker;

use std::env;
use std::error::Error;
use std::io::stdin;
use std::time::Duration;

use leasehold::{Lease, LeaseClient};
use leasehold_testkit::{Player, Stage, signals};
use sqlx::PgPool;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use worker::Worker;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [role, tenant] if role == "--worker" => work(tenant, render).await,
        [role, tenant] if role == "--sleeper" => work(tenant, render_until_told).await,
        _ => Stage::play("invoice", prove).await,
    }
}

const INVOICES: i64 = 12;
const WORKERS: usize = 3;

/// What the sleeper says when it is about to post, before its fencing token.
const READY: &str = "has rendered its invoice, holding token ";

async fn work(tenant: &str, render: impl AsyncFn(i64, &Lease)) -> Outcome<()> {
    signals::die_with_parent();
    let told_to_end = shutdown::told_to_end()?;
    let pool = PgPool::connect(&env::var("DATABASE_URL")?).await?;
    let worker = Worker {
        leases: LeaseClient::new(pool.clone()),
        pool,
        tenant: tenant.to_owned(),
    };
    let outcome = worker.run(render, told_to_end).await;
    worker.leases.close().await;
    worker.pool.close().await;
    outcome
}

async fn render(_invoice: i64, _lease: &Lease) {
    sleep(Duration::from_millis(25)).await;
}

/// Stands where it can be stopped: ready to post, and posting as soon as a line comes in.
async fn render_until_told(invoice: i64, lease: &Lease) {
    render(invoice, lease).await;
    println!("{READY}{}", lease.fencing_token());
    let told = spawn_blocking(|| stdin().lines().next()).await;
    drop(told.expect("reading does not panic"));
}

async fn prove(stage: &Stage) -> Outcome<()> {
    let pool = PgPool::connect(stage.url()).await?;
    leasehold::migrate(&pool).await?;
    sqlx::raw_sql(
        "create table invoice (id bigint primary key, number bigint);
        create table numbering (latest bigint not null);
        insert into numbering values (0);
        create table posting (invoice bigint, number bigint, fence bigint)",
    )
    .execute(&pool)
    .await?;
    sqlx::query("insert into invoice select generate_series(1, $1)")
        .bind(INVOICES)
        .execute(&pool)
        .await?;
    let tenant = stage.schema();

    let mut sleeper = Player::start(stage, "sleeper", &["--sleeper", tenant])?;
    let stale: i64 = sleeper.hear(READY).await?.parse()?;
    expect(signals::stop(sleeper.pid()), "the sleeper is there to be stopped")?;
    println!("the sleeper is stopped (SIGSTOP), about to post");
    let mut workers = Vec::new();
    for number in 1..=WORKERS {
        let label = format!("worker {number}");
        workers.push(Player::start(stage, &label, &["--worker", tenant])?);
    }
    for worker in workers {
        worker.end().await?;
    }

    // Told while it stands still, so that the posting is the first thing it does.
    sleeper.tell("post").await?;
    expect(signals::cont(sleeper.pid()), "the sleeper is there to go on")?;
    println!("the sleeper goes on (SIGCONT), without looking again");
    let said = sleeper.end().await?;
    expect(
        said.iter().any(|line| line.starts_with(worker::REFUSED)),
        "the sleeper's posting is refused",
    )?;

    let postings = "select count(*), count(distinct invoice), count(distinct number), max(number),
        count(*) filter (where fence = $1) from posting";
    let (postings, invoices, numbers, highest, stale): (i64, i64, i64, i64, i64) =
        sqlx::query_as(postings).bind(stale).fetch_one(&pool).await?;
    pool.close().await;
    expect(
        (postings, invoices) == (INVOICES, INVOICES),
        "each invoice is posted once",
    )?;
    expect((numbers, highest) == (INVOICES, INVOICES), "the numbers have no gap")?;
    expect(stale == 0, "nothing is posted with the sleeper's token")?;
    println!("{INVOICES} invoices, each posted once, with numbers from 1 to {highest}");
    Ok(())
}

fn expect(holds: bool, what: &str) -> Outcome<()> {
    match holds {
        true => Ok(()),
        false => Err(format!("this did not hold: {what}").into()),
    }
}
