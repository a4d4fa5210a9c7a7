//! The short commands: `break`, `fence`, `migrate` and `completions`.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::CommandFactory;
use clap_complete::Shell;
use leasehold::is_fenced;
use leasehold::sqlx;

use crate::args::{Cli, Connection};
use crate::exit::{Exit, Failed};
use crate::ls::print;
use crate::table::{printable, span};

pub(crate) async fn break_lease(connection: &Connection, name: &str, is_sure: bool) -> Result<Exit, Failed> {
    let leases = connection.client(connection.pool()?).build()?;
    if !is_sure {
        let Some(held) = leases.inspect(name).await? else {
            print(&format!("nobody holds {}\n", printable(name)));
            return Ok(Exit::No);
        };
        let holder = printable(held.holder.as_deref().unwrap_or("somebody without a label"));
        let left = span(held.expires_in);
        if !confirmed(&format!(
            "{} is held by {holder}, {left} left. Break it?",
            printable(name)
        ))? {
            return Ok(Exit::No);
        }
    }
    let was_held = leases.break_lease(name).await?;
    let text = if was_held { "broke" } else { "nobody holds" };
    print(&format!("{text} {}\n", printable(name)));
    Ok(if was_held { Exit::Done } else { Exit::No })
}

/// Asks whoever is there. Nobody there is a no.
fn confirmed(question: &str) -> Result<bool, Failed> {
    if !io::stdin().is_terminal() {
        return Err(Failed::new(Exit::Usage, "nobody is there to ask: --yes goes without"));
    }
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let mut answer = String::new();
    let _ = io::stdin().lock().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Whether a grant is the current one. It stays so only until this returns: what counts is the check in the
/// transaction that writes.
pub(crate) async fn fence(connection: &Connection, name: &str, token: i64) -> Result<Exit, Failed> {
    // A transaction: a pooler in transaction mode may take a statement apart.
    let mut tx = connection.pool()?.begin().await?;
    let asked = sqlx::query("select leasehold.fence($1, $2)")
        .bind(name)
        .bind(token)
        .persistent(false)
        .execute(&mut *tx)
        .await;
    match asked {
        Ok(_) => Ok(Exit::Done),
        Err(error) if is_fenced(&error) => Err(Failed::new(
            Exit::No,
            format!("fencing token {token} is not the current one of {}", printable(name)),
        )),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn migrate(connection: &Connection, is_to_print: bool) -> Result<Exit, Failed> {
    if is_to_print {
        return Ok(print(&leasehold::schema_sql()));
    }
    leasehold::migrate(&connection.pool()?).await?;
    Ok(print(&format!(
        "the schema leasehold is at version {}\n",
        leasehold::SCHEMA_VERSION
    )))
}

pub(crate) fn completions(shell: Shell) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut script);
    print(&String::from_utf8_lossy(&script))
}
