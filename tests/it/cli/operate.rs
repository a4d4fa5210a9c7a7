//! The commands that ask once: `ls`, `inspect`, `break`, `fence`, `migrate`, `completions`.

use std::process::Stdio;
use std::time::Duration;

use leasehold_testkit::eventually;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use super::{leasehold, output, text};
use crate::support::{SOON, TestDb, unique_name};

#[tokio::test]
async fn ls_has_one_documented_shape() {
    let (db, prefix) = (TestDb::shared().await, unique_name!());
    let (first, second) = (format!("{prefix}:a"), format!("{prefix}:b \u{1b}[2J\n"));
    let leases = db.client();
    let one = leases
        .acquire(&first)
        .holder("me")
        .ttl(Duration::from_secs(60))
        .await
        .unwrap();
    let other = leases.acquire(&second).hold_at_least(Duration::ZERO).await.unwrap();
    let (waiting, name) = (leases.clone(), first.clone());
    let waiter = tokio::spawn(async move { waiting.acquire(&name).await });
    eventually(SOON, "it stands in line", async || db.waiters(&first).await == 1).await;

    let listed = output(leasehold(&db.options).args(["ls", &prefix])).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();

    let info = leases.inspect(&first).await.unwrap().unwrap();
    let left = listed[0]["expires_in_ms"].as_u64().unwrap();
    assert!((50_000..=60_000).contains(&left), "{left}");
    assert_eq!(
        listed[0],
        json!({
            "name": first,
            "holder": "me",
            "fencing_token": one.fencing_token().get(),
            "held_since": info.held_since.to_rfc3339_opts(chrono::SecondsFormat::Micros, true),
            "expires_in_ms": left,
            "is_expired": false,
            "waiters": 1,
        })
    );
    assert_eq!(listed[1]["name"], second);
    assert_eq!(listed.as_array().unwrap().len(), 2, "those with the prefix alone");
    drop((one, other));
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn ls_watch_prints_a_line_each_time_and_ends_with_its_reader() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let mut watching = leasehold(&db.options)
        .args(["ls", &name, "--watch", "--every", "50ms", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    assert_eq!(next().await, json!([]));

    let lease = db.client().acquire(&name).await.unwrap();
    while next().await.as_array().unwrap().is_empty() {}
    lease.release().await.unwrap();
    while !next().await.as_array().unwrap().is_empty() {}

    drop(lines);
    let ended = timeout(SOON, watching.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test]
async fn inspect_tells_who_holds_it_or_that_nobody_does() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let nobody = output(leasehold(&db.options).args(["inspect", &name])).await;
    let null = output(leasehold(&db.options).args(["inspect", &name, "--json"])).await;
    let lease = db.client().acquire(&name).holder("me").await.unwrap();

    let held = output(leasehold(&db.options).args(["inspect", &name])).await;
    let object = output(leasehold(&db.options).args(["inspect", &name, "--json"])).await;

    assert_eq!(
        (nobody.status.code(), text(&nobody.stdout)),
        (Some(1), &*format!("nobody holds {name}\n"))
    );
    assert_eq!((null.status.code(), text(&null.stdout)), (Some(1), "null\n"));
    assert_eq!(held.status.code(), Some(0));
    let token = lease.fencing_token().to_string();
    assert!(
        ["holder    me\n", &format!("token     {token}\n")]
            .iter()
            .all(|line| text(&held.stdout).contains(line))
    );
    let object: Value = serde_json::from_slice(&object.stdout).unwrap();
    assert_eq!((&object["name"], &object["holder"]), (&json!(name), &json!("me")));
    lease.release().await.unwrap();
}

#[tokio::test]
async fn break_asks_unless_it_is_told_not_to() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).await.unwrap();

    let unasked = output(leasehold(&db.options).args(["break", &name])).await;
    assert_eq!(unasked.status.code(), Some(2), "nobody is there to ask");
    assert!(db.is_held(&name).await);
    let sure = output(leasehold(&db.options).args(["break", &name, "--yes"])).await;
    assert_eq!(
        (sure.status.code(), text(&sure.stdout)),
        (Some(0), &*format!("broke {name}\n"))
    );
    let again = output(leasehold(&db.options).args(["break", &name, "--yes"])).await;

    assert_eq!(again.status.code(), Some(1));
    assert!(!db.is_held(&name).await);
    drop(lease);
}

#[tokio::test]
async fn fence_answers_with_its_exit_code() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let lease = db.client().acquire(&name).await.unwrap();
    let token = lease.fencing_token().get();

    let ask = async |token: i64| output(leasehold(&db.options).args(["fence", &name, &token.to_string()])).await;

    assert_eq!(ask(token).await.status.code(), Some(0));
    for wrong in [token - 1, token + 1] {
        let refused = ask(wrong).await;
        assert_eq!(refused.status.code(), Some(1));
        assert!(text(&refused.stderr).contains("not the current one"));
    }
    lease.release().await.unwrap();
    assert_eq!(ask(token).await.status.code(), Some(1));
}

#[tokio::test]
async fn migrate_installs_and_what_it_prints_does_too() {
    let (installed, by_hand) = (
        TestDb::empty("cli_migrate").await,
        TestDb::empty("cli_migrate_print").await,
    );

    let printed = output(leasehold(&installed.options).args(["migrate", "--print"])).await;
    assert!(!installed.has_schema().await, "it only prints");
    let migrated = output(leasehold(&installed.options).args(["migrate"])).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(text(&printed.stdout)))
        .execute(&mut by_hand.session().await)
        .await
        .unwrap();

    assert_eq!(migrated.status.code(), Some(0), "{}", text(&migrated.stderr));
    let version = leasehold::SCHEMA_VERSION.to_string();
    assert!(text(&migrated.stdout).contains(&version));
    for db in [installed, by_hand] {
        let name = unique_name!();
        db.client().acquire(&name).await.unwrap().release().await.unwrap();
        let present: i64 = sqlx::query_scalar("select max(version) from leasehold.version")
            .fetch_one(&db.pool)
            .await
            .unwrap();
        assert_eq!(present, leasehold::SCHEMA_VERSION);
    }
}

#[tokio::test]
async fn completions_and_help_are_there_for_every_command() {
    let db = TestDb::shared().await;
    for shell in ["bash", "zsh", "fish"] {
        let script = output(leasehold(&db.options).args(["completions", shell])).await;
        assert_eq!(script.status.code(), Some(0));
        assert!(text(&script.stdout).contains("hold-at-least"), "{shell}");
    }
    for command in [
        "run",
        "ls",
        "inspect",
        "break",
        "fence",
        "migrate",
        "check",
        "completions",
    ] {
        let help = output(leasehold(&db.options).args([command, "--help"])).await;
        assert_eq!(help.status.code(), Some(0), "{command}");
        assert!(text(&help.stdout).contains("Usage: leasehold"), "{command}");
    }
    let help = output(leasehold(&db.options).args(["run", "--help"])).await;
    assert!(text(&help.stdout).contains("Examples:") && text(&help.stdout).contains("123  the lease was lost"));
}

impl TestDb {
    async fn has_schema(&self) -> bool {
        sqlx::query_scalar("select to_regnamespace('leasehold') is not null")
            .fetch_one(&self.pool)
            .await
            .expect("the catalog can be read")
    }
}
