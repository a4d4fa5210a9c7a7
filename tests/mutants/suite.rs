//! The integration tests as a program: built once, run again and again, each time with another mutant.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::table::Mutant;

pub(crate) struct Suite {
    program: PathBuf,
}

#[derive(Debug)]
pub(crate) enum Verdict {
    Passed,
    /// By these tests.
    Failed(Vec<String>),
}

impl Suite {
    /// Has cargo build the tests, as `make test` does.
    pub(crate) async fn build() -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args([
            "test",
            "--workspace",
            "--test",
            "it",
            "--no-run",
            "--message-format=json",
        ]);
        if cfg!(feature = "serde") {
            command.args(["--features", "leasehold/serde"]);
        }
        if cfg!(feature = "metrics") {
            command.args(["--features", "leasehold/metrics"]);
        }
        let built = command.stderr(Stdio::inherit()).output().await.expect("cargo runs");
        assert!(built.status.success(), "the tests do not build");
        let messages = String::from_utf8(built.stdout).expect("cargo writes text");
        let program = messages.lines().find_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            (message["target"]["name"] == "it").then(|| message["executable"].as_str().map(PathBuf::from))?
        });
        Self {
            program: program.expect("cargo tells what it built"),
        }
    }

    pub(crate) async fn run_exactly(&self, tests: &BTreeSet<&str>, mutant: Option<&Mutant>) -> Verdict {
        let mut arguments = vec!["--exact"];
        arguments.extend(tests);
        self.run(&arguments, mutant).await
    }

    /// Runs the tests whose path contains the module's, but for those that compare the text of the schema.
    pub(crate) async fn run_module(&self, module: &str, mutant: &Mutant) -> Verdict {
        let arguments = [module, "--skip", "migrate::again::schema_is", "--skip", "mutants::"];
        self.run(&arguments, Some(mutant)).await
    }

    async fn run(&self, arguments: &[&str], mutant: Option<&Mutant>) -> Verdict {
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "guard"]).arg(&self.program).args(arguments);
        command.env_remove(WANTED);
        if let Some(mutant) = mutant {
            command.env(WANTED, mutant.name);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("sh runs");
        // Open for as long as the run is wanted: it ends when this is dropped.
        let leash = child.stdin.take();
        let Ok(ended) = timeout(AT_MOST, child.wait_with_output()).await else {
            return Verdict::Failed(vec![format!("{} not done within {AT_MOST:?}", arguments.join(" "))]);
        };
        drop(leash);
        let ended = ended.expect("the run ends");
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(!said.contains(NOT_INSTALLED), "{said}");
        let failed: Vec<String> = said
            .lines()
            .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
            .map(str::to_owned)
            .collect();
        let has_ended_well = said.contains("test result: ok. ");
        assert!(
            !failed.is_empty() || (has_ended_well && !said.contains("ok. 0 passed")),
            "{arguments:?} ended with {}: {said}{}",
            ended.status,
            String::from_utf8_lossy(&ended.stderr)
        );
        if failed.is_empty() {
            Verdict::Passed
        } else {
            Verdict::Failed(failed)
        }
    }
}

/// The tests that install the schema look for the name of the mutant here, and say that when they did not.
const WANTED: &str = "LEASEHOLD_TEST_MUTANT";
const NOT_INSTALLED: &str = "the mutant was not installed";
const GUARD: &str = include_str!("guard.sh");
/// The whole suite takes three minutes on two cores that have other work.
const AT_MOST: Duration = Duration::from_secs(600);
