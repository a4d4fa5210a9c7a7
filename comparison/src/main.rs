//! `make bench`: leasehold beside its peers and the physical limit.
//!
//! It starts its own servers, runs all of the work side by side in one process, in rounds whose order
//! is shuffled by a seed, and writes a table, the figures and pictures into the directory it is
//! given. Ratios are taken within a round. The last line printed is a JSON object of the targets.

#![allow(unreachable_pub, reason = "a program has no outside")]
#![allow(clippy::print_stdout, reason = "its figures are what it is for")]

mod dice;
mod figures;
mod lap;
mod meter;
mod peer;
mod peers;
mod plan;
mod report;
mod servers;
mod statistics;
mod targets;
mod works;

use std::path::PathBuf;
use std::time::Instant;

use crate::dice::Dice;
use crate::figures::Figures;
use crate::peer::Outcome;
use crate::plan::Plan;
use crate::servers::Servers;
use crate::works::{cycle, fence, growth, handoff, held, miss, waiting};

#[tokio::main]
async fn main() -> Outcome<()> {
    let dir = PathBuf::from(
        std::env::args_os()
            .nth(1)
            .ok_or("usage: leasehold-comparison DIRECTORY")?,
    );
    let plan = Plan::from_environment()?;
    let (mut dice, mut figures) = (Dice::new(plan.seed), Figures::default());
    let began_at = Instant::now();
    let servers = Servers::start().await?;
    figures.notes.extend(servers.notes.iter().cloned());
    figures.notes.extend(machine());
    for note in &figures.notes {
        eprintln!("{note}");
    }

    let mut broken_off = Vec::new();
    for work in 'A'..='G' {
        if !plan.includes(work) {
            continue;
        }
        let (dice, figures) = (&mut dice, &mut figures);
        let outcome = match work {
            'A' => cycle::run(&plan, &servers, dice, figures).await,
            'B' => handoff::run(&plan, &servers, dice, figures).await,
            'C' => held::run(&plan, &servers, dice, figures).await,
            'D' => waiting::run(&plan, &servers, dice, figures).await,
            'E' => fence::run(&plan, &servers, dice, figures).await,
            'F' => miss::run(&plan, &servers, dice, figures).await,
            _ => growth::run(&plan, &servers, dice, figures).await,
        };
        // What was measured by then, and the other works, are not lost with it.
        if let Err(error) = outcome {
            broken_off.push(format!("{work} was broken off: {error}"));
        }
        eprintln!("{work} is done, {} s", began_at.elapsed().as_secs());
    }

    figures.notes.push(format!(
        "{}, seed {}, {} s, {}",
        if plan.is_quick { "a first look" } else { "the whole" },
        plan.seed,
        began_at.elapsed().as_secs(),
        load("at the end")
    ));
    figures.notes.extend(broken_off.iter().cloned());
    let targets = report::write(&dir, &figures, &plan)?;
    println!("{}", std::fs::read_to_string(dir.join("table.md"))?);
    println!("{}", report::last_line(&targets));
    if broken_off.is_empty() {
        Ok(())
    } else {
        Err(broken_off.join("; ").into())
    }
}

/// What the figures depend on.
fn machine() -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    vec![format!("{cores} cores, {model}, {}", load("at the start"))]
}

fn load(when: &str) -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load {} {when}", load.split(' ').next().unwrap_or("unknown"))
}
