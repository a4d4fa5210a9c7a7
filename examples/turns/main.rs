//! Three processes, eight workers in each, one name: they take turns, first come, first served.
//!
//! Nobody polls and nobody overtakes. Whoever lets the name go tells the next in line, whatever
//! process that one is in. The example checks what it shows (one holder at a time, tokens rising,
//! turns in the order of arrival) and draws it: who waited, who held when.
//!
//! ```text
//! cargo run --example turns [picture.svg]
//! ```
//!
//! It runs on the database of `DATABASE_URL`, or on a throw-away cluster when that is not set.

#![allow(clippy::print_stdout, reason = "an example is there to be read")]
#![allow(unreachable_pub, reason = "an example has no outside")]

mod picture;
mod turn;
mod worker;

use std::env;
use std::error::Error;
use std::process::Stdio;

use leasehold_testkit::Cluster;
use sqlx::PgPool;
use tokio::process::Command;

use turn::Turn;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PROCESSES: usize = 3;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [role, name, process] if role == "--process" => worker::run(name, process.parse()?).await,
        [picture] => take_turns(picture).await,
        _ => take_turns("turns.svg").await,
    }
}

async fn take_turns(picture: &str) -> Outcome<()> {
    let turns = match env::var("DATABASE_URL") {
        Ok(url) => watch(&url).await?,
        Err(_) => watch(&Cluster::builder().try_start().await?.url()).await?,
    };
    turn::check(&turns)?;
    for (number, turn) in turns.iter().enumerate() {
        println!(
            "{:>3}. process {} worker {}   waited {:>6.1} ms   held {:>5.1} ms   token {}",
            number + 1,
            turn.process + 1,
            turn.worker + 1,
            (turn.granted_at - turn.asked_at) * 1e3,
            (turn.released_at - turn.granted_at) * 1e3,
            turn.token,
        );
    }
    std::fs::write(picture, picture::draw(&turns))?;
    println!(
        "\n{} turns of {} workers in {PROCESSES} processes, in the order in which they came; the picture is in {picture}.",
        turns.len(),
        PROCESSES * worker::WORKERS
    );
    Ok(())
}

/// Lets the processes run, and returns all turns in the order of their tokens.
async fn watch(url: &str) -> Outcome<Vec<Turn>> {
    let pool = PgPool::connect(url).await?;
    leasehold::migrate(&pool).await?;
    let name = format!("turns:{}", uuid::Uuid::new_v4());
    let mut processes = Vec::new();
    for process in 0..PROCESSES {
        let child = Command::new(env::current_exe()?)
            .args(["--process", &name, &process.to_string()])
            .env("DATABASE_URL", url)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        processes.push(child);
    }
    let mut turns = Vec::new();
    for process in processes {
        let output = process.wait_with_output().await?;
        if !output.status.success() {
            return Err(format!("a process ended with {}", output.status).into());
        }
        for line in String::from_utf8(output.stdout)?.lines() {
            turns.push(line.parse()?);
        }
    }
    turns.sort_by_key(|turn: &Turn| turn.token);
    Ok(turns)
}
