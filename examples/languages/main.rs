//! The example `invoice` in other languages: runs `examples/python` and `examples/node`, each a client of
//! its own that knows nothing of this crate but the SQL.
//!
//! `scripts/languages` brings their drivers into `target/languages`. A program whose driver is not there
//! is left out, and that is said.
//!
//! ```text
//! scripts/languages && cargo run --example languages
//! ```
//!
//! They run on the database of `DATABASE_URL`, or on a throw-away cluster when that is not set.

#![allow(clippy::print_stdout, reason = "an example is there to be read")]

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold_testkit::{Cluster, signals};
use sqlx::PgPool;
use tokio::process::Command;
use tokio::time::timeout;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A program in another language.
struct Program {
    language: &'static str,
    interpreter: PathBuf,
    file: PathBuf,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let (mut programs, mut report) = (Vec::new(), Vec::new());
    for (language, found) in [("python", python()), ("node", node()?)] {
        match found {
            Some(program) => programs.push(program),
            None => report.push(format!("{language} SKIPPED, its driver is not there")),
        }
    }
    if !programs.is_empty() {
        match env::var("DATABASE_URL") {
            Ok(url) => run(&programs, &url, &mut report).await?,
            Err(_) => {
                let cluster = Cluster::builder().try_start().await?;
                run(&programs, &cluster.url(), &mut report).await?;
            }
        }
    }
    println!("\nin other languages: {}", report.join("; "));
    Ok(())
}

async fn run(programs: &[Program], url: &str, report: &mut Vec<String>) -> Outcome<()> {
    let pool = PgPool::connect(url).await?;
    leasehold::migrate(&pool).await?;
    pool.close().await;
    for program in programs {
        println!("{}:", program.language);
        let began_at = Instant::now();
        program.prove(url).await?;
        report.push(format!("{} ran, {:.1?}", program.language, began_at.elapsed()));
    }
    Ok(())
}

impl Program {
    async fn prove(&self, url: &str) -> Outcome<()> {
        let mut child = Command::new(&self.interpreter)
            .arg(&self.file)
            .arg("--prove")
            .env("DATABASE_URL", url)
            // Python would leave compiled modules beside its source.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().expect("it has not been waited for");
        let Ok(status) = timeout(PATIENCE, child.wait()).await else {
            // Which ends the processes that it has started.
            signals::term(pid);
            timeout(PATIENCE, child.wait()).await??;
            return Err(format!("the program in {} took longer than {PATIENCE:?}", self.language).into());
        };
        let status = status?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the program in {} failed: {status}", self.language).into()),
        }
    }
}

fn python() -> Option<Program> {
    let interpreter = drivers().join("python/bin/python");
    interpreter.exists().then(|| Program {
        language: "python",
        interpreter,
        file: here().join("examples/python/invoice.py"),
    })
}

/// Node looks for a module in the directories above the file that wants it, so the files go to the driver.
fn node() -> Outcome<Option<Program>> {
    let dir = drivers().join("node");
    if !dir.join("node_modules/pg").exists() {
        return Ok(None);
    }
    for file in ["invoice.mjs", "leases.mjs"] {
        fs::copy(here().join("examples/node").join(file), dir.join(file))?;
    }
    Ok(Some(Program {
        language: "node",
        interpreter: "node".into(),
        file: dir.join("invoice.mjs"),
    }))
}

fn drivers() -> PathBuf {
    here().join("target/languages")
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

const PATIENCE: Duration = Duration::from_secs(60);
