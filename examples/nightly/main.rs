//! A nightly job on every replica's own timer: it runs once a night, on whichever replica is first.
//!
//! No machine is the one with the crontab. Each replica wakes up at midnight by its own clock and asks
//! for the name without waiting. Whoever is granted it runs the job, which is short; `hold_at_least`
//! keeps the name taken long after that, so that a replica whose clock is behind does not find it free
//! and run the job again. [`job`] is the part to copy.
//!
//! The proof: nights of a second and a half; three replicas, processes of their own, with clocks that
//! differ. The one that runs the job is told to end in between. Each night must have had one run.
//!
//! ```text
//! cargo run --example nightly
//! ```
//!
//! It runs on the database of `DATABASE_URL`, or on a throw-away cluster when that is not set.

#![allow(clippy::print_stdout, reason = "an example is there to be read")]
#![allow(clippy::print_stderr, reason = "and so is what went wrong with it")]
#![allow(unreachable_pub, reason = "an example has no outside")]

mod job;
#[path = "../service/shutdown.rs"]
mod shutdown;

use std::env;
use std::error::Error;
use std::time::{Duration, SystemTime};

use leasehold::LeaseClient;
use leasehold_testkit::{Player, Stage, signals, try_eventually};
use sqlx::PgPool;

use job::Job;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [role, name, ahead] if role == "--replica" => replica(name, Duration::from_millis(ahead.parse()?)).await,
        _ => Stage::play("nightly", prove).await,
    }
}

const NIGHT: Duration = Duration::from_millis(1500);

/// By how many milliseconds the replicas' clocks are ahead of this machine's. The fastest runs the job.
const AHEAD: [&str; 3] = ["200", "100", "0"];

/// Nights until one replica is told to end, and in all.
const NIGHTS: (usize, usize) = (3, 5);

async fn replica(name: &str, ahead: Duration) -> Outcome<()> {
    signals::die_with_parent();
    let told_to_end = shutdown::told_to_end()?;
    let pool = PgPool::connect(&env::var("DATABASE_URL")?).await?;
    let leases = LeaseClient::new(pool.clone());
    let job = Job {
        name: name.to_owned(),
        every: NIGHT,
    };
    job::run(&job, &leases, &pool, || SystemTime::now() + ahead, told_to_end).await;
    leases.close().await;
    pool.close().await;
    Ok(())
}

/// A run of the job, as it was written down.
#[derive(Debug)]
struct Run {
    night: i64,
    pid: i64,
    fence: i64,
}

async fn prove(stage: &Stage) -> Outcome<()> {
    let pool = PgPool::connect(stage.url()).await?;
    leasehold::migrate(&pool).await?;
    // Nothing in the table keeps a night from having two.
    sqlx::raw_sql("create table report (night bigint, body text, pid bigint, fence bigint)")
        .execute(&pool)
        .await?;
    let name = format!("{}:report", stage.schema());
    let mut replicas = Vec::new();
    for (number, ahead) in (1..).zip(AHEAD) {
        let label = format!("replica {number}");
        replicas.push(Player::start(stage, &label, &["--replica", &name, ahead])?);
    }

    let runs = after(&pool, NIGHTS.0).await?;
    let runner = runs.last().expect("some nights are over").pid;
    let runner = replicas
        .iter()
        .position(|replica| i64::from(replica.pid()) == runner)
        .ok_or("a run by nobody")?;
    let leaving = replicas.swap_remove(runner);
    println!("{} is told to end, the others go on", leaving.label());
    let mut said = leaving.term().await?;
    after(&pool, NIGHTS.1).await?;
    for replica in replicas {
        said.extend(replica.term().await?);
    }

    let runs = so_far(&pool).await?;
    for pair in runs.windows(2) {
        let [one, next] = pair else { continue };
        if next.night != one.night + 1 || next.fence <= one.fence {
            return Err(format!("not one run a night, with rising tokens: {one:?}, {next:?}").into());
        }
    }
    let refused = said.iter().filter(|line| line.ends_with(job::TAKEN)).count();
    if refused == 0 {
        return Err("the replicas never met".into());
    }
    println!(
        "{} nights in a row, one run in each; {refused} times a replica found the night taken",
        runs.len()
    );
    pool.close().await;
    Ok(())
}

async fn after(pool: &PgPool, nights: usize) -> Outcome<Vec<Run>> {
    let passed = try_eventually(NIGHT * 20, "the nights pass", async || {
        let runs = so_far(pool).await;
        runs.ok().filter(|runs| runs.len() >= nights)
    });
    Ok(passed.await?)
}

async fn so_far(pool: &PgPool) -> Result<Vec<Run>, sqlx::Error> {
    let runs = "select night, pid, fence from report order by night, fence";
    let runs: Vec<(i64, i64, i64)> = sqlx::query_as(runs).fetch_all(pool).await?;
    let runs = runs.into_iter().map(|(night, pid, fence)| Run { night, pid, fence });
    Ok(runs.collect())
}
