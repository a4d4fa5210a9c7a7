//! What the command line takes. Texts of `--help` are here and nowhere else.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;

/// Distributed locks on PostgreSQL: leases with fencing tokens.
///
/// The database is that of DATABASE_URL, or of PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE, PGSSLMODE and
/// .pgpass, as for psql.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: Connection,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Where the database is, instead of DATABASE_URL. A password in it can be seen by whoever lists processes
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,

    /// The database is behind a pooler in transaction mode that keeps no prepared statements
    #[arg(long, global = true)]
    pub(crate) pooler: bool,

    /// Log warnings on standard error, and with -vv every step
    #[arg(long, short, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Where to listen for one's turn, when the database is behind a pooler; also LEASEHOLD_LISTENER_URL
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) listener_url: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lease
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),

    /// List who holds what
    Ls(LsArgs),

    /// Show who holds a lease; exit code 1 when nobody does
    Inspect {
        /// The lease
        name: String,
        /// As JSON, an object of `ls --json` or null
        #[arg(long)]
        json: bool,
    },

    /// End a lease, whoever holds it: he is fenced out at once, and learns of it at his next renewal
    Break {
        /// The lease
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },

    /// Tell whether a fencing token is the current one: exit code 0 when it is, 1 when not
    Fence {
        /// The lease
        name: String,
        /// The fencing token
        token: i64,
    },

    /// Install the schema, or bring it up to date
    Migrate {
        /// Print the SQL instead
        #[arg(long)]
        print: bool,
    },

    /// Look over what leases depend on, with a remedy for whatever is wrong; exit code 1 when something is
    Check {
        /// As JSON, as when the output is no terminal: an array of objects with `subject`, `level` (ok, note or wrong),
        /// `found` and `remedy`
        #[arg(long)]
        json: bool,
    },

    /// Print completions for a shell
    Completions {
        /// For which one
        shell: Shell,
    },

    /// The process that holds the lease of a `run`, which talks to it
    #[command(name = HOLDER, hide = true)]
    Hold {
        /// The lease, for whoever lists processes
        name: String,
    },

    /// What the command of a `run` is before it is let go
    #[command(name = STARTER, hide = true)]
    Start {
        /// The process that lets it go
        runner: i32,
        /// The command and its arguments
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
}

/// The hidden command of the process that holds the lease of a `run`.
pub(crate) const HOLDER: &str = "hold-for-run";

/// The hidden command of the process that becomes the command of a `run`.
pub(crate) const STARTER: &str = "start-for-run";

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What must not overlap
    pub(crate) name: String,

    /// How long others wait when this machine dies; renewed in the background
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) ttl: Duration,

    /// How long to wait for the lease, or "forever"; without it, not at all
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = wait)]
    pub(crate) wait: Wait,

    /// Keep the name taken for this long from the start, also when the command ends earlier
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub(crate) hold_at_least: Duration,

    /// End the command after this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) hold_at_most: Option<Duration>,

    /// From SIGTERM to SIGKILL when the lease runs out: at most half of the ttl. 5s or a quarter of the ttl, if
    /// not set
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,

    /// The label that others see; COMMAND@HOST:PID, if not set
    #[arg(long, value_name = "LABEL")]
    pub(crate) holder: Option<String>,

    /// Say nothing while waiting
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only leases whose names begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Again and again, until interrupted
    #[arg(long, short)]
    pub(crate) watch: bool,

    /// How often, with --watch
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub(crate) every: Duration,

    /// As JSON, as when the output is no terminal: an array of objects with `name`, `holder`, `fencing_token`,
    /// `held_since`, `expires_in_ms`, `is_expired` and `waiters`; with --watch one such line each time
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    AtMost(Duration),
    ForEver,
}

/// "30s", "500ms", "1h 30m", or a number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    }
}

fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::ForEver),
        text => duration(text).map(Wait::AtMost),
    }
}

const EXAMPLES: &str = "\
Examples:
  leasehold run nightly-report -- ./report.sh        skip it when it runs elsewhere
  leasehold run deploy --wait 10m -- make deploy     wait for one's turn
  leasehold ls --watch
  leasehold check";

const RUN_HELP: &str = "\
CMD finds its lease in LEASEHOLD_NAME and LEASEHOLD_FENCING_TOKEN; whatever it writes is safe only where the token is
checked in the same transaction. When the lease runs out, CMD and whatever it has started get SIGTERM, and SIGKILL
before the database may grant the name to anybody else.

Examples:
  leasehold run invoices --hold-at-least 5m -- ./settle.sh     from cron on several machines, once in five minutes
  leasehold run deploy --wait forever --ttl 1m -- make deploy
  leasehold run backup --hold-at-most 2h --grace 10s -- ./backup.sh

Exit codes are those of CMD, 128 and the signal when a signal ended it, and:
  121  somebody else holds the lease
  122  somebody else still held it when the wait was over
  123  the lease was lost, so CMD was ended
  125  the database cannot be reached, or refused
  126  CMD cannot be run
  127  there is no CMD
  2    the command line is wrong";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_are_written_as_people_do() {
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(wait("forever"), Ok(Wait::ForEver));
        assert_eq!(wait("2s"), Ok(Wait::AtMost(Duration::from_secs(2))));
        for wrong in ["", "-1", "soon", "1 parsec"] {
            assert!(duration(wrong).is_err() && wait(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_follows_two_dashes_is_left_alone() {
        let cli = Cli::try_parse_from(["leasehold", "run", "a", "--", "cmd", "--ttl", "1s", "--", "-x"])
            .expect("it is right");

        let Command::Run(run) = cli.command else {
            panic!("it is run")
        };

        assert_eq!(run.command, ["cmd", "--ttl", "1s", "--", "-x"]);
        assert_eq!(run.ttl, Duration::from_secs(30));
        assert_eq!(run.wait, Wait::AtMost(Duration::ZERO));
    }
}
