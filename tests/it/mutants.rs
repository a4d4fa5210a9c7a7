//! The gate of the mutants stays in order: each fits the schema and has a killer, and killers kill.
//! `make broken` runs all of them.

use std::collections::BTreeSet;
use std::process::{Output, Stdio};

use sqlx::Connection;
use tokio::process::Command;

use crate::support::TestDb;
use crate::support::mutants::{Mutant, NOT_INSTALLED, WANTED, all, install};

#[tokio::test]
async fn every_mutant_fits_the_schema_and_has_a_name_and_a_purpose() {
    let db = TestDb::own("mutants_fit").await;
    let mut session = db.pool.acquire().await.unwrap();
    let (mut names, mut misfits) = (BTreeSet::new(), Vec::new());

    for mutant in all() {
        let mut tx = session.begin().await.unwrap();
        if let Err(misfit) = install(mutant, &mut tx).await {
            misfits.push(format!("{}: {misfit}", mutant.name));
        }
        tx.rollback().await.unwrap();

        assert!(
            names.insert(mutant.name) && !mutant.breaks.is_empty(),
            "{}",
            mutant.name
        );
    }

    assert!(misfits.is_empty(), "{}", misfits.join("\n"));
    assert!(names.len() >= 60, "{}", names.len());
}

#[tokio::test]
async fn every_mutant_names_a_test_that_there_is() {
    let listed = Command::new(std::env::current_exe().unwrap())
        .arg("--list")
        .stdin(Stdio::null())
        .output();
    let listed = String::from_utf8(listed.await.unwrap().stdout).unwrap();
    let tests: BTreeSet<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();

    for mutant in all() {
        assert!(
            tests.contains(mutant.caught_by),
            "{}: no test {}",
            mutant.name,
            mutant.caught_by
        );
    }
}

#[tokio::test]
async fn killers_fail_on_their_mutants_and_not_without() {
    for name in [
        "fence by a plain select",
        "renew in one statement",
        "release asks for no owner",
    ] {
        let mutant = all().find(|mutant| mutant.name == name).unwrap();

        let (with, without) = tokio::join!(killer(mutant, true), killer(mutant, false));

        let said = String::from_utf8_lossy(&with.stdout).into_owned();
        assert!(
            said.contains(&format!("{} ... FAILED", mutant.caught_by)),
            "{name}: {said}"
        );
        assert!(!said.contains(NOT_INSTALLED), "{name}: {said}");
        let said = String::from_utf8_lossy(&without.stdout).into_owned();
        assert!(said.contains("1 passed; 0 failed"), "{name}: {said}");
    }
}

/// Runs the test that must fail, in a process of its own.
async fn killer(mutant: &Mutant, is_broken: bool) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", mutant.caught_by]).env_remove(WANTED);
    if is_broken {
        command.env(WANTED, mutant.name);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    command.output().await.unwrap()
}
