//! `leasehold check`: each thing that can be wrong is found and has a remedy, and what is right is not complained of.

use leasehold_testkit::Cluster;
use serde_json::Value;
use sqlx::postgres::PgConnectOptions;
use tokio::process::Command;

use super::{leasehold, output, text};
use crate::support::TestDb;
use crate::support::faults::pgbouncer;

#[tokio::test]
async fn sound_database_has_nothing_wrong() {
    let db = TestDb::own("cli_check_sound").await;

    let (code, report) = check(&mut leasehold(&db.options)).await;

    assert_eq!(code, 0, "{report:?}");
    let subjects: Vec<_> = report.iter().map(|line| &*line.subject).collect();
    let all = [
        "server",
        "schema",
        "rights",
        "tokens",
        "durability",
        "replication",
        "pooler",
        "notifications",
    ];
    assert_eq!(subjects, all);
    assert!(
        report.iter().all(|line| line.level == "ok" && line.remedy.is_none()),
        "{report:?}"
    );
}

#[tokio::test]
async fn schema_that_is_missing_or_old_is_found() {
    let db = TestDb::empty("cli_check_schema").await;
    assert_wrong(&db.options, "schema", "there is no schema", "leasehold migrate").await;

    db.install_schema().await;
    execute(
        &db,
        "delete from leasehold.version where version = (select max(version) from leasehold.version)",
    )
    .await;
    assert_wrong(&db.options, "schema", "older than this program's", "leasehold migrate").await;
}

#[tokio::test]
async fn rights_that_are_missing_are_found_and_the_remedy_mends_it() {
    let db = TestDb::own("cli_check_rights").await;
    let role = format!("check_{}", uuid::Uuid::new_v4().simple());
    execute(
        &db,
        &format!("create role {role} login; grant usage on schema leasehold to {role}"),
    )
    .await;
    let as_role = db.options.clone().username(&role);
    assert_wrong(&as_role, "schema", "may not look into", "grants of the README").await;

    execute(&db, &format!("grant select on leasehold.version to {role}")).await;
    let (_, report) = check(&mut leasehold(&as_role)).await;
    for line in report.iter().filter(|line| line.subject == "rights") {
        execute(&db, line.remedy.as_ref().expect("each has one")).await;
    }
    let (code, report) = check(&mut leasehold(&as_role)).await;

    assert_eq!(code, 0, "{report:?}");
    assert!(
        report
            .iter()
            .any(|line| line.subject == "rights" && line.found.contains("a client"))
    );
    let lease = db.having(|_| as_role.clone()).client().acquire("a").await.unwrap();
    lease.release().await.unwrap();
    execute(&db, &format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test]
async fn token_sequence_that_gives_out_numbers_out_of_order_is_found() {
    let db = TestDb::own("cli_check_tokens").await;
    execute(&db, "alter sequence leasehold.locks_fence_seq cache 10").await;

    assert_wrong(
        &db.options,
        "tokens",
        "cache 10",
        "alter sequence leasehold.locks_fence_seq cache 1",
    )
    .await;
}

#[tokio::test]
async fn server_that_forgets_or_does_not_write_is_found() {
    let cluster = Cluster::builder().setting("fsync", "off").start().await;
    let db = TestDb::with(cluster.create_database("careless").await);
    db.install_schema().await;
    assert_wrong(&db.options, "durability", "fsync is off", "fsync = on").await;

    let read_only = "alter database careless set default_transaction_read_only =";
    cluster.execute(&format!("{read_only} on")).await;
    assert_wrong(
        &db.options,
        "server",
        "read-only",
        "default_transaction_read_only = off",
    )
    .await;

    cluster.execute(&format!("{read_only} off")).await;
    cluster.alter_system("synchronous_standby_names", "nobody").await;
    cluster.reload().await;
    leasehold_testkit::eventually(crate::support::SOON, "the setting is in force", async || {
        let names: String = sqlx::query_scalar("show synchronous_standby_names")
            .fetch_one(&db.pool)
            .await
            .unwrap();
        names == "nobody"
    })
    .await;
    assert_wrong(&db.options, "replication", "no standby is connected", "a standby").await;
}

#[tokio::test]
async fn standby_is_found() {
    let cluster = Cluster::start().await;
    let db = TestDb::with(cluster.create_database("led").await);
    db.install_schema().await;
    let standby = cluster.standby("follower").await;
    leasehold_testkit::eventually(crate::support::SOON, "the schema has arrived", async || {
        let here = TestDb::with(standby.options().database("led"));
        sqlx::query("select from leasehold.version")
            .execute(&here.pool)
            .await
            .is_ok()
    })
    .await;

    assert_wrong(
        &standby.options().database("led"),
        "server",
        "it is a standby",
        "the primary",
    )
    .await;

    let (code, report) = check(&mut leasehold(&db.options)).await;
    assert_eq!(code, 0, "{report:?}");
    assert!(
        report
            .iter()
            .any(|line| line.subject == "replication" && line.level == "note"),
        "{report:?}"
    );
}

#[tokio::test]
async fn pooler_and_what_does_not_come_through_it_are_found() {
    let Some(pgbouncer) = pgbouncer().await else { return };
    let db = TestDb::own("faults_cli_check").await;
    let behind = pgbouncer.options(&db.options);

    let (code, report) = check(&mut leasehold(&behind)).await;
    assert_eq!(code, 1, "{report:?}");
    let is_wrong = |report: &[Line], subject| {
        report
            .iter()
            .any(|line| line.subject == subject && line.level == "wrong")
    };
    assert!(is_wrong(&report, "notifications"), "{report:?}");
    assert_eq!(is_wrong(&report, "pooler"), !pgbouncer.keeps_statements(), "{report:?}");

    let direct = sqlx::ConnectOptions::to_url_lossy(&db.options);
    let (code, report) = check(leasehold(&behind).args(["--pooler", "--listener-url", direct.as_str()])).await;
    assert_eq!(code, 0, "{report:?}");
}

#[tokio::test]
async fn server_that_is_not_there_is_told_with_an_exit_code_of_its_own() {
    let nowhere = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(1)
        .username("a")
        .database("a");

    let ended = output(leasehold(&nowhere).arg("check")).await;

    assert_eq!(ended.status.code(), Some(125));
    assert!(
        text(&ended.stderr).starts_with("leasehold: "),
        "{}",
        text(&ended.stderr)
    );
}

async fn execute(db: &TestDb, sql: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&db.pool)
        .await
        .expect("it is done");
}

#[derive(Debug)]
struct Line {
    subject: String,
    level: String,
    found: String,
    remedy: Option<String>,
}

async fn check(command: &mut Command) -> (i32, Vec<Line>) {
    let ended = output(command.arg("check")).await;
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap_or_else(|_| panic!("{}", text(&ended.stderr)));
    let text = |line: &Value, key: &str| line[key].as_str().map(str::to_owned);
    let lines = report.as_array().expect("it is a list").iter().map(|line| Line {
        subject: text(line, "subject").expect("it is text"),
        level: text(line, "level").expect("it is text"),
        found: text(line, "found").expect("it is text"),
        remedy: text(line, "remedy"),
    });
    (ended.status.code().expect("it was not killed"), lines.collect())
}

async fn assert_wrong(at: &PgConnectOptions, subject: &str, found: &str, remedy: &str) {
    let (code, report) = check(&mut leasehold(at)).await;
    assert_eq!(code, 1, "{report:?}");
    let is_it = |line: &Line| {
        let has_remedy = line.remedy.as_ref().is_some_and(|text| text.contains(remedy));
        line.subject == subject && line.level == "wrong" && line.found.contains(found) && has_remedy
    };
    assert!(report.iter().any(is_it), "{report:?}");
}
