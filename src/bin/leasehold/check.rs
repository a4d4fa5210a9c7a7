//! `leasehold check`: what leases depend on, from the schema to the notifications, and a remedy for whatever is wrong.
//!
//! Nothing is prepared but where that is the question: a pooler in transaction mode may not keep it.

use std::io::{self, IsTerminal};
use std::time::Duration;

use leasehold::SCHEMA_VERSION;
use leasehold::sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use leasehold::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection};
use serde::Serialize;
use tokio::time::timeout;
use uuid::Uuid;

use crate::args::Connection;
use crate::exit::{Exit, Failed, with_causes};
use crate::ls::print;

pub(crate) async fn check(connection: &Connection, is_json: bool) -> Result<Exit, Failed> {
    let options = connection.options()?;
    let mut session = timeout(WITHIN, PgConnection::connect_with(&options))
        .await
        .map_err(|_| Failed::new(Exit::Unavailable, "the server does not answer"))??;
    // One transaction: a pooler in transaction mode may take a statement apart.
    let mut tx = session.begin().await?;

    let mut report = Report::default();
    server(&mut tx, &mut report).await?;
    if schema(&mut tx, &mut report).await? && rights(&mut tx, &mut report).await? {
        tokens(&mut tx, &mut report).await?;
    }
    durability(&mut tx, &mut report).await?;
    replication(&mut tx, &mut report).await?;
    tx.rollback().await?;
    pooler(&options, connection.pooler, &mut report).await?;
    notifications(connection.listen_at()?, &options, &mut report).await;

    let is_json = is_json || !io::stdout().is_terminal();
    print(&if is_json { report.json() } else { report.text() });
    Ok(if report.is_all_well() { Exit::Done } else { Exit::No })
}

/// What was looked at, in order.
#[derive(Debug, Default)]
struct Report(Vec<Line>);

#[derive(Debug, Serialize)]
struct Line {
    subject: &'static str,
    level: Level,
    found: String,
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Ok,
    /// A choice with consequences.
    Note,
    Wrong,
}

impl Report {
    fn ok(&mut self, subject: &'static str, found: impl Into<String>) {
        self.add(subject, Level::Ok, found, None);
    }

    fn note(&mut self, subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) {
        self.add(subject, Level::Note, found, Some(remedy.into()));
    }

    fn wrong(&mut self, subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) {
        self.add(subject, Level::Wrong, found, Some(remedy.into()));
    }

    fn add(&mut self, subject: &'static str, level: Level, found: impl Into<String>, remedy: Option<String>) {
        self.0.push(Line {
            subject,
            level,
            found: found.into(),
            remedy,
        });
    }

    fn is_all_well(&self) -> bool {
        self.0.iter().all(|line| line.level != Level::Wrong)
    }

    /// The documented shape: keys and subjects are added, never changed.
    fn json(&self) -> String {
        format!("{}\n", serde_json::to_string(&self.0).expect("it is text"))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.0 {
            let mark = match line.level {
                Level::Ok => "ok   ",
                Level::Note => "note ",
                Level::Wrong => "WRONG",
            };
            text.push_str(&format!("{mark} {:13} {}\n", line.subject, line.found));
            if let Some(remedy) = &line.remedy {
                text.push_str(&format!("{:20}remedy: {remedy}\n", ""));
            }
        }
        text
    }
}

async fn server(session: &mut PgConnection, report: &mut Report) -> Result<(), Failed> {
    let (version, number, is_standby, is_read_only): (String, i32, bool, bool) = sqlx::query_as(
        "select current_setting('server_version'), current_setting('server_version_num')::int4, \
            pg_is_in_recovery(), current_setting('transaction_read_only')::bool",
    )
    .persistent(false)
    .fetch_one(session)
    .await?;
    match number {
        ..OLDEST => report.wrong("server", format!("PostgreSQL {version}"), "PostgreSQL 14 or newer"),
        _ => report.ok("server", format!("PostgreSQL {version}")),
    }
    if is_standby {
        report.wrong(
            "server",
            "it is a standby",
            "connect to the primary: leases are granted there alone",
        );
    } else if is_read_only {
        let remedy = "default_transaction_read_only = off, for this role and database";
        report.wrong("server", "sessions are read-only", remedy);
    }
    Ok(())
}

/// Whether there is one to look at.
async fn schema(session: &mut PgConnection, report: &mut Report) -> Result<bool, Failed> {
    let remedy = "leasehold migrate";
    let (is_there, may_look): (bool, bool) = sqlx::query_as(
        "select exists (select from pg_namespace where nspname = 'leasehold'), \
            coalesce((select has_schema_privilege(oid, 'usage') from pg_namespace where nspname = 'leasehold') \
                and has_table_privilege(to_regclass('leasehold.version'), 'select'), false)",
    )
    .persistent(false)
    .fetch_one(&mut *session)
    .await?;
    if !is_there {
        report.wrong("schema", "there is no schema leasehold", remedy);
        return Ok(false);
    }
    if !may_look {
        let remedy = "the grants of the README, `Roles`, to this role";
        report.wrong("schema", "this role may not look into the schema leasehold", remedy);
        return Ok(false);
    }
    let version: Option<i64> = sqlx::query_scalar("select max(version) from leasehold.version")
        .persistent(false)
        .fetch_one(session)
        .await?;
    let found = format!("version {}", version.unwrap_or(0));
    match version.unwrap_or(0) {
        SCHEMA_VERSION => report.ok("schema", found),
        older @ ..SCHEMA_VERSION => {
            let found = format!("version {older}, older than this program's, {SCHEMA_VERSION}");
            report.wrong("schema", found, remedy);
        }
        _ => report.note(
            "schema",
            format!("{found}, newer than this program"),
            "a newer leasehold, at leisure",
        ),
    }
    Ok(true)
}

/// Whether this role may look at the tokens.
async fn rights(session: &mut PgConnection, report: &mut Report) -> Result<bool, Failed> {
    let missing: Vec<(String, String)> = sqlx::query_as(
        "select p.oid::regprocedure::text, quote_ident(current_user) \
        from pg_proc as p \
            join pg_namespace as n on n.oid = p.pronamespace \
        where n.nspname = 'leasehold' \
            and p.proname = any ($1) \
            and not has_function_privilege(p.oid, 'execute') \
        order by 1",
    )
    .bind(FUNCTIONS)
    .persistent(false)
    .fetch_all(&mut *session)
    .await?;
    for (function, role) in &missing {
        let remedy = format!("grant execute on function {function} to {role}");
        report.wrong("rights", format!("this role may not call {function}"), remedy);
    }
    let (may_look, may_break, may_check, role): (bool, bool, bool, String) = sqlx::query_as(
        "select has_table_privilege('leasehold.held', 'select'), \
            has_function_privilege('leasehold.break_lease(text)', 'execute'), \
            has_function_privilege('leasehold.check()', 'execute'), quote_ident(current_user)",
    )
    .persistent(false)
    .fetch_one(session)
    .await?;
    if !may_look {
        let remedy = format!("grant select on leasehold.held to {role}");
        report.wrong("rights", "this role may not see who holds what", remedy);
    }
    if missing.is_empty() && may_look {
        let as_whom = if may_break { "an operator" } else { "a client" };
        report.ok("rights", format!("those of {as_whom}"));
    }
    Ok(may_check)
}

async fn tokens(session: &mut PgConnection, report: &mut Report) -> Result<(), Failed> {
    let findings: Vec<(String, String)> = sqlx::query_as("select finding, remedy from leasehold.check()")
        .persistent(false)
        .fetch_all(session)
        .await?;
    if findings.is_empty() {
        report.ok("tokens", "the sequence and its epoch are in order");
    }
    for (finding, remedy) in findings {
        report.wrong("tokens", finding, remedy);
    }
    Ok(())
}

/// What makes a grant outlast a crash.
async fn durability(session: &mut PgConnection, report: &mut Report) -> Result<(), Failed> {
    let off: Vec<String> = sqlx::query_scalar(
        "select name from pg_settings where name in ('fsync', 'full_page_writes') and setting = 'off' order by name",
    )
    .persistent(false)
    .fetch_all(session)
    .await?;
    for setting in &off {
        let found = format!("{setting} is off: a crash of the machine may forget grants, or more");
        report.wrong("durability", found, format!("alter system set {setting} = on"));
    }
    if off.is_empty() {
        report.ok("durability", "a grant outlasts a crash");
    }
    Ok(())
}

async fn replication(session: &mut PgConnection, report: &mut Report) -> Result<(), Failed> {
    let (standbys, synchronous): (i64, bool) = sqlx::query_as(
        "select (select count(*) from pg_stat_get_wal_senders()), current_setting('synchronous_standby_names') <> ''",
    )
    .persistent(false)
    .fetch_one(session)
    .await?;
    match (standbys, synchronous) {
        (0, false) => report.ok("replication", "no standby is connected"),
        (0, true) => report.wrong(
            "replication",
            "synchronous_standby_names is set, and no standby is connected: grants wait for one",
            "a standby, or an empty synchronous_standby_names",
        ),
        (_, true) => report.ok("replication", "grants wait for a synchronous standby"),
        (_, false) => report.note(
            "replication",
            "standbys are asynchronous: a failover may forget the latest grants, whose fenced writes are then refused",
            "synchronous_standby_names, where that is not enough",
        ),
    }
    Ok(())
}

/// Two connections that are served by one process of the server go through a pooler. So does one that is served
/// by two.
async fn pooler(options: &PgConnectOptions, is_told: bool, report: &mut Report) -> Result<(), Failed> {
    let mut one = PgConnection::connect_with(options).await?;
    let mut other = PgConnection::connect_with(options).await?;
    let pid = "select pg_backend_pid()";
    // Prepared: where a pooler keeps no such statements, it fails now or the next time.
    let before: Result<i32, _> = sqlx::query_scalar(pid).fetch_one(&mut one).await;
    let mut tx = other.begin().await?;
    let between: i32 = sqlx::query_scalar(pid).persistent(false).fetch_one(&mut *tx).await?;
    let after: Result<i32, _> = sqlx::query_scalar(pid).fetch_one(&mut one).await;
    tx.rollback().await?;
    let keeps_statements = before.is_ok() && after.is_ok();
    let is_pooled = !matches!((before, after), (Ok(before), Ok(after)) if before == after && before != between);
    match (is_pooled, keeps_statements || is_told) {
        (false, _) => report.ok("pooler", "none, or one that gives a session each"),
        (true, true) => report.ok("pooler", "a pooler in transaction mode"),
        (true, false) => report.wrong(
            "pooler",
            "a pooler in transaction mode that keeps no prepared statements",
            "--pooler, and LeaseClientBuilder::pooler(true); or PgBouncer 1.21 with max_prepared_statements",
        ),
    }
    Ok(())
}

async fn notifications(listen_at: Option<PgConnectOptions>, options: &PgConnectOptions, report: &mut Report) {
    let (slow, remedy) = (
        "waiters are woken by the heartbeat alone, within a second",
        "--listener-url and LeaseClientBuilder::listener_url, with the address of the server itself",
    );
    match timeout(WITHIN, is_heard(listen_at.unwrap_or_else(|| options.clone()), options)).await {
        Ok(Ok(())) => report.ok("notifications", "they arrive"),
        Ok(Err(error)) => report.wrong("notifications", format!("{}: {slow}", with_causes(&error)), remedy),
        Err(_) => report.wrong("notifications", format!("they do not arrive: {slow}"), remedy),
    }
}

/// Returns once a notification has come through.
async fn is_heard(listen_at: PgConnectOptions, options: &PgConnectOptions) -> Result<(), sqlx::Error> {
    let pool = PgPoolOptions::new().max_connections(1).connect_with(listen_at).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    let channel = format!("leasehold_check_{}", Uuid::new_v4().simple());
    listener.listen(&channel).await?;
    let mut session = PgConnection::connect_with(options).await?;
    // Without a synchronous standby's word, which may never come.
    let notify = format!("select pg_notify('{channel}', set_config('synchronous_commit', 'off', true))");
    sqlx::raw_sql(AssertSqlSafe(notify)).execute(&mut session).await?;
    listener.recv().await?;
    session.close().await
}

/// Those that a client calls.
const FUNCTIONS: &[&str] = &[
    "acquire",
    "acquire_many",
    "admit",
    "ahead",
    "channel",
    "check",
    "enter_epoch",
    "fence",
    "heartbeat",
    "leave",
    "release",
    "release_many",
    "renew",
    "sweep",
    "ticket",
    "wake",
];

const OLDEST: i32 = 140_000;

const WITHIN: Duration = Duration::from_secs(3);
