//! The torture run: client processes on a real server, a nemesis, and a checker that judges the history.
//!
//! ```text
//! leasehold-torture [MINUTES] [SEED]      one run, with everything
//! leasehold-torture --mutants [SEED]      a short run on each broken variant of the SQL: all must be caught
//! ```
//!
//! It ends with a table, a line of JSON and a picture, `target/torture.svg`, and fails on a violation.

#![allow(clippy::print_stdout, reason = "its report is what it is for")]
#![allow(unreachable_pub, reason = "a program has no outside")]

mod checker;
mod client;
mod clients;
mod clock;
mod dice;
mod history;
mod journal;
mod mutant;
mod nemesis;
mod picture;
mod report;
mod run;
mod speaker;
mod stage;
mod worker;
mod write;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use mutant::{MUTANTS, Mutant};
use report::Report;
use run::Plan;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--client") => client::run(&arguments[1..]).await,
        Some("--mutants") => all_mutants(seed(arguments.get(1))?, arguments.get(2)).await,
        minutes => {
            let minutes: f64 = minutes.unwrap_or("10").parse()?;
            torture(minutes, seed(arguments.get(1))?).await
        }
    }
}

async fn torture(minutes: f64, seed: u64) -> Outcome<()> {
    println!("seed {seed}, {minutes} minutes");
    let plan = Plan {
        seed,
        faults_for: Duration::from_secs_f64((minutes * 60.0 - 22.0).max(10.0)),
        dir: target().join("torture"),
        mutant: None,
        calm: run::CALM,
        is_full: true,
    };
    let history = run::run(&plan).await?;
    let verdict = checker::judge(&history);
    let report = Report {
        seed,
        history: &history,
        verdict: &verdict,
        has_clock: history.faults.iter().any(|fault| fault.kind == "clock"),
    };
    fs::write(
        target().join("torture.svg"),
        picture::draw(&history, verdict.violations.len()),
    )?;
    println!("{}", report.table());
    println!("{}", report.json());
    if verdict.violations.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} violations; the history is in {}",
        verdict.violations.len(),
        plan.dir.display()
    )
    .into())
}

async fn all_mutants(seed: u64, only: Option<&String>) -> Outcome<()> {
    let chosen: Vec<&'static Mutant> = MUTANTS
        .iter()
        .filter(|mutant| only.is_none_or(|only| mutant.name.contains(only.as_str())))
        .collect();
    let mut missed = Vec::new();
    for mutant in &chosen {
        let began_at = Instant::now();
        let is_caught =
            |verdict: &checker::Verdict| mutant.breaks.iter().any(|invariant| verdict.count(*invariant) > 0);
        let mut plan = Plan {
            seed,
            faults_for: Duration::from_secs(15),
            dir: target().join("torture-mutants").join(mutant.name.replace(' ', "-")),
            mutant: Some(mutant),
            calm: if mutant.is_of_waiting() {
                run::CALM
            } else {
                Duration::from_secs(2)
            },
            is_full: false,
        };
        let mut verdict = checker::judge(&run::run(&plan).await?);
        // As often as a minute allows.
        while !is_caught(&verdict) && began_at.elapsed() < Duration::from_secs(42) {
            plan.seed += 1;
            verdict = checker::judge(&run::run(&plan).await?);
        }
        let is_caught = is_caught(&verdict);
        let found: Vec<String> = checker::INVARIANTS
            .iter()
            .filter(|(invariant, ..)| verdict.count(*invariant) > 0)
            .map(|(invariant, number, meaning)| format!("{number} {meaning} ({} times)", verdict.count(*invariant)))
            .collect();
        let found = found.join("; ");
        println!(
            "{:<38}{} in {:.0} s: {}",
            mutant.name,
            if is_caught { "caught" } else { "MISSED" },
            began_at.elapsed().as_secs_f64(),
            found
        );
        if !is_caught {
            missed.push(mutant.name);
        }
    }
    println!(
        "{{\"mutants\":{}, \"caught\":{}, \"seed\":{seed}}}",
        chosen.len(),
        chosen.len() - missed.len()
    );
    if missed.is_empty() {
        return Ok(());
    }
    Err(format!("not caught: {}", missed.join(", ")).into())
}

fn seed(given: Option<&String>) -> Outcome<u64> {
    match given {
        Some(seed) => Ok(seed.parse()?),
        None => Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis() as u64 % 1_000_000),
    }
}

/// The directory that cargo builds into: this program is two levels below.
fn target() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().nth(2).unwrap_or(Path::new("target"));
    target.to_owned()
}
