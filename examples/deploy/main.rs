//! A deployment: many replicas start at once, one of them migrates the application's tables.
//!
//! The migration is of the kind that does not fit into one transaction: a column is added, filled in
//! batches, and then required. It is done under a lease, each step in a fenced transaction, while the
//! other replicas wait in line and find it done. Where the one that migrates dies, the next in line goes
//! on where it stopped. [`migration`] is the part to copy.
//!
//! The proof: eight replicas, processes of their own, start at once; the one that migrates is killed in
//! the middle. Each step must have been done once, by two replicas, one after the other.
//!
//! ```text
//! cargo run --example deploy
//! ```
//!
//! It runs on the database of `DATABASE_URL`, or on a throw-away cluster when that is not set.

#![allow(clippy::print_stdout, reason = "an example is there to be read")]
#![allow(unreachable_pub, reason = "an example has no outside")]

mod migration;
#[path = "../service/shutdown.rs"]
mod shutdown;

use std::env;
use std::error::Error;
use std::time::Duration;

use leasehold::LeaseClient;
use leasehold_testkit::{Player, Stage, signals, try_eventually};
use sqlx::PgPool;
use tokio::time::Instant;

use migration::Migrated;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [role, name, label] if role == "--replica" => replica(name, label).await,
        _ => Stage::play("deploy", prove).await,
    }
}

const REPLICAS: usize = 8;
const INVOICES: i64 = 3000;

/// What a replica says in the end.
const MIGRATED: &str = "has migrated";
const FOUND_DONE: &str = "found it done";

/// A replica of the new release, up to the point from which it would serve.
async fn replica(name: &str, label: &str) -> Outcome<()> {
    signals::die_with_parent();
    let told_to_end = shutdown::told_to_end()?;
    let pool = PgPool::connect(&env::var("DATABASE_URL")?).await?;
    // The schema of the leases comes first, by any number of replicas at once.
    leasehold::migrate(&pool).await?;
    let leases = LeaseClient::builder(pool.clone()).holder(label).build()?;
    let began_at = Instant::now();
    let migrated = tokio::select! {
        migrated = migration::migrate(&leases, &pool, name) => migrated,
        () = told_to_end => Err("told to end".into()),
    };
    leases.close().await;
    pool.close().await;
    match migrated? {
        Migrated::Here => println!("{MIGRATED}, {:.1?} after it came", began_at.elapsed()),
        Migrated::Before => println!("{FOUND_DONE}, {:.1?} after it came", began_at.elapsed()),
    }
    Ok(())
}

async fn prove(stage: &Stage) -> Outcome<()> {
    let pool = PgPool::connect(stage.url()).await?;
    leasehold::migrate(&pool).await?;
    // As the release before left it.
    sqlx::raw_sql("create table invoice (id bigint primary key, cents bigint not null)")
        .execute(&pool)
        .await?;
    sqlx::query("insert into invoice select id, 100 * id from generate_series(1, $1) as g (id)")
        .bind(INVOICES)
        .execute(&pool)
        .await?;
    let name = format!("{}:migration", stage.schema());
    let mut replicas = Vec::new();
    for number in 1..=REPLICAS {
        let label = format!("replica {number}");
        replicas.push(Player::start(stage, &label, &["--replica", &name, &label])?);
    }

    let begun = try_eventually(PATIENCE, "some invoices have a currency", async || {
        filled(&pool).await.is_ok_and(|filled| filled > 0)
    });
    begun.await?;
    let leases = LeaseClient::new(pool.clone());
    let holder = leases.inspect(&name).await?.ok_or("nobody migrates")?.holder;
    let holder = replicas
        .iter()
        .position(|replica| Some(replica.label()) == holder.as_deref());
    let dies = replicas.swap_remove(holder.ok_or("a stranger migrates")?);
    let label = dies.label().to_owned();
    dies.kill().await?;
    let filled = filled(&pool).await?;
    println!("{label} is killed with {filled} of {INVOICES} invoices done");
    expect(filled < INVOICES, "it was killed in the middle")?;

    let mut said = Vec::new();
    for replica in replicas {
        said.extend(replica.end().await?);
    }
    let migrated = said.iter().filter(|line| line.starts_with(MIGRATED)).count();
    let found_done = said.iter().filter(|line| line.starts_with(FOUND_DONE)).count();
    expect(migrated == 1, "one replica has brought it to its end")?;
    expect(found_done == REPLICAS - 2, "all others have found it done")?;
    let migration = "select count(*) filter (where rows = 0), sum(rows)::bigint, count(distinct fence),
            count(*) filter (where fence < previous)
        from (select rows, fence, lag(fence) over (order by number) as previous from migration) as m";
    let (steps, rows, migrators, stale): (i64, i64, i64, i64) = sqlx::query_as(migration).fetch_one(&pool).await?;
    expect(steps == 3, "each step has come to its end once")?;
    expect(rows == INVOICES, "each invoice was changed once")?;
    expect(migrators == 2, "two replicas have migrated")?;
    expect(stale == 0, "the first one did nothing after the second had begun")?;
    println!("each step was done once, by two replicas, one after the other");
    pool.close().await;
    Ok(())
}

/// How many invoices have a currency; an error while there is no such column.
async fn filled(pool: &PgPool) -> Result<i64, sqlx::Error> {
    let filled = "select count(*) from invoice where currency is not null";
    sqlx::query_scalar(filled).fetch_one(pool).await
}

fn expect(holds: bool, what: &str) -> Outcome<()> {
    match holds {
        true => Ok(()),
        false => Err(format!("this did not hold: {what}").into()),
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
