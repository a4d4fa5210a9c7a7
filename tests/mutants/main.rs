//! `make broken`: the integration tests on broken SQL. Each mutant must make the test fail that is named for it.
//!
//! First all those tests run on the SQL as it is, and must pass. Then each mutant has its test run, in a
//! process and on a cluster of its own; should that pass, the other tests of its module run, then all.
//! A line tells which test failed, the last line is JSON. It fails when a mutant survives. An argument
//! runs the mutants alone whose name contains it; with `--named` no other test than the named one runs.

#![allow(clippy::print_stdout, reason = "its lines are what it is for")]

mod suite;
mod table;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use suite::{Suite, Verdict};
use table::{Edit, Mutant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> ExitCode {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let is_named_only = std::env::args().any(|argument| argument == "--named");
    let is_wanted = |mutant: &&Mutant| wanted.as_deref().is_none_or(|wanted| mutant.name.contains(wanted));
    let mutants: Vec<&Mutant> = table::all().filter(is_wanted).collect();
    assert!(!mutants.is_empty(), "there is no such mutant");
    let suite = Arc::new(Suite::build().await);

    let killers: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.caught_by).collect();
    if let Verdict::Failed(tests) = suite.run_exactly(&killers, None).await {
        println!("these fail on the SQL as it is: {}", tests.join(", "));
        return ExitCode::FAILURE;
    }

    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut runs = JoinSet::new();
    for (number, mutant) in mutants.iter().copied().enumerate() {
        let (suite, turns) = (Arc::clone(&suite), Arc::clone(&turns));
        runs.spawn(async move {
            let _turn = turns.acquire_owned().await.expect("nobody closes it");
            let began_at = Instant::now();
            let caught_by = hunt(&suite, mutant, is_named_only).await;
            let seconds = began_at.elapsed().as_secs_f64();
            let by = caught_by.as_deref().unwrap_or("SURVIVED");
            println!(
                "{} | {} | {} | {by} | {seconds:.1} s",
                mutant.name,
                functions(mutant),
                mutant.breaks
            );
            if caught_by.is_none() {
                println!("{}", changes(mutant));
            }
            (number, caught_by.is_none())
        });
    }
    let mut survived: Vec<usize> = runs
        .join_all()
        .await
        .into_iter()
        .filter_map(|(number, has_survived)| has_survived.then_some(number))
        .collect();
    survived.sort_unstable();

    let names: Vec<&str> = survived.iter().map(|number| mutants[*number].name).collect();
    let summary = serde_json::json!({
        "mutants": mutants.len(),
        "killed": mutants.len() - names.len(),
        "survived": names,
    });
    println!("{summary}");
    if names.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The test that fails on the mutant: the one named for it, else one of its module, else any.
async fn hunt(suite: &Suite, mutant: &Mutant, is_named_only: bool) -> Option<String> {
    let named = BTreeSet::from([mutant.caught_by]);
    if let Verdict::Failed(tests) = suite.run_exactly(&named, Some(mutant)).await {
        return tests.into_iter().next();
    }
    if is_named_only {
        return None;
    }
    let module = mutant.caught_by.rsplit_once("::").map_or("", |(module, _)| module);
    for part in [module, ""] {
        if let Verdict::Failed(tests) = suite.run_module(part, mutant).await {
            return tests.into_iter().next();
        }
    }
    None
}

/// The functions that it changes.
fn functions(mutant: &Mutant) -> String {
    let mut functions: Vec<&str> = mutant
        .edits
        .iter()
        .map(|edit| match edit {
            Edit::In(function, ..) => function,
            Edit::Run(_) => "schema",
        })
        .collect();
    functions.dedup();
    functions.join(", ")
}

/// What it changes, for whoever has to tell a hole from a change without effect.
fn changes(mutant: &Mutant) -> String {
    let changes = mutant.edits.iter().map(|edit| match edit {
        Edit::In(function, text, replacement) => format!("    {function}: {text:?} became {replacement:?}"),
        Edit::Run(sql) => format!("    {sql}"),
    });
    changes.collect::<Vec<_>>().join("\n")
}

/// Most of a run is waiting.
const AT_ONCE: usize = 4;
