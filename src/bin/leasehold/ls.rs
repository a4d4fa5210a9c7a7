//! `leasehold ls` and `leasehold inspect`: who holds what.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use leasehold::{LeaseClient, LeaseInfo};
use serde_json::{Value, json};
use tokio::signal::ctrl_c;
use tokio::time::{Instant, sleep_until};

use crate::args::{Connection, LsArgs};
use crate::exit::{Exit, Failed};
use crate::table::{cut, height, printable, span, table, width};

pub(crate) async fn ls(connection: &Connection, args: LsArgs) -> Result<Exit, Failed> {
    let leases = connection.client(connection.pool()?).build()?;
    let is_json = args.json || !io::stdout().is_terminal();
    if !args.watch {
        let held = held(&leases, &args.prefix).await?;
        return Ok(print(&if is_json {
            json_line(&held)
        } else {
            text(&held, usize::MAX)
        }));
    }
    loop {
        let again_at = Instant::now() + args.every;
        let seen = match held(&leases, &args.prefix).await {
            Ok(held) if is_json => json_line(&held),
            Ok(held) => format!("{CLEAR}{}", text(&held, height())),
            // It may come back.
            Err(failed) if !is_json => format!("{CLEAR}{}\n", cut(&failed.message, width())),
            Err(failed) => return Err(failed),
        };
        if !try_print(&seen) {
            return Ok(Exit::Done);
        }
        tokio::select! {
            () = sleep_until(again_at) => {}
            _ = ctrl_c() => return Ok(Exit::Done),
        }
    }
}

pub(crate) async fn inspect(connection: &Connection, name: &str, is_json: bool) -> Result<Exit, Failed> {
    let leases = connection.client(connection.pool()?).build()?;
    let held = leases.inspect(name).await?;
    let exit = if held.is_some() { Exit::Done } else { Exit::No };
    let text = match (&held, is_json) {
        (held, true) => format!("{}\n", held.as_ref().map_or(Value::Null, value)),
        (Some(held), false) => lines(held),
        (None, false) => format!("nobody holds {}\n", printable(name)),
    };
    print(&text);
    Ok(exit)
}

async fn held(leases: &LeaseClient, prefix: &str) -> Result<Vec<LeaseInfo>, Failed> {
    let mut held = leases.held().await?;
    held.retain(|lease| lease.name.starts_with(prefix));
    Ok(held)
}

/// As many as fit into so many lines, and how many there are.
fn text(held: &[LeaseInfo], height: usize) -> String {
    let now = Utc::now();
    let shown = held.len().min(height.saturating_sub(3));
    let rows: Vec<_> = held[..shown].iter().map(|lease| cells(lease, now)).collect();
    let mut text = table(&HEAD, &rows, width()).join("\n");
    match held.len() - shown {
        0 => text.push('\n'),
        more => text.push_str(&format!("\n… and {more} more of {}\n", held.len())),
    }
    text
}

fn cells(lease: &LeaseInfo, now: DateTime<Utc>) -> Vec<String> {
    vec![
        printable(&lease.name),
        printable(lease.holder.as_deref().unwrap_or("-")),
        lease.fencing_token.to_string(),
        span((now - lease.held_since).to_std().unwrap_or(Duration::ZERO)),
        if lease.is_expired {
            "run out".into()
        } else {
            span(lease.expires_in)
        },
        lease.waiters.map_or("?".into(), |waiters| waiters.to_string()),
    ]
}

fn lines(lease: &LeaseInfo) -> String {
    let cells = cells(lease, Utc::now());
    let labelled = HEAD
        .iter()
        .zip(&cells)
        .map(|(label, cell)| format!("{:9} {cell}\n", label.to_lowercase()));
    labelled.collect()
}

fn json_line(held: &[LeaseInfo]) -> String {
    format!("{}\n", Value::from_iter(held.iter().map(value)))
}

/// The documented shape: keys are added, never changed.
fn value(lease: &LeaseInfo) -> Value {
    json!({
        "name": lease.name,
        "holder": lease.holder,
        "fencing_token": lease.fencing_token.get(),
        "held_since": lease.held_since.to_rfc3339_opts(SecondsFormat::Micros, true),
        "expires_in_ms": u64::try_from(lease.expires_in.as_millis()).unwrap_or(u64::MAX),
        "is_expired": lease.is_expired,
        "waiters": lease.waiters,
    })
}

/// Whoever reads only the first lines, as `head` does, has what he wants.
pub(crate) fn print(text: &str) -> Exit {
    try_print(text);
    Exit::Done
}

fn try_print(text: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

const HEAD: [&str; 6] = ["NAME", "HOLDER", "TOKEN", "SINCE", "LEFT", "WAITERS"];

/// To the top left, and nothing below.
const CLEAR: &str = "\x1b[H\x1b[2J";
