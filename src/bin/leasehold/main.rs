//! The command `leasehold`, for cron jobs, deploy scripts and whoever is on call.
//!
//! `args` says what there is. `run` is the one that has a life of its own; it starts a second process, see
//! there. Everything else asks the database once.

#[cfg(not(unix))]
compile_error!("the command leasehold needs signals and process groups, as Unix has them");

mod args;
mod check;
mod clock;
mod command;
mod connect;
mod exit;
mod holder;
mod ls;
mod operate;
mod run;
mod table;
mod terminal;
mod wire;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tracing::Level;

use crate::args::{Cli, Command};
use crate::exit::{Exit, Failed};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = match cli.connection.verbose {
        0 => Level::ERROR,
        1 => Level::WARN,
        _ => Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    let exit = match carry_out(cli).await {
        Ok(exit) => exit,
        Err(Failed { exit, message }) => {
            let _ = writeln!(std::io::stderr(), "leasehold: {message}");
            exit
        }
    };
    exit.into()
}

async fn carry_out(Cli { connection, command }: Cli) -> Result<Exit, Failed> {
    match command {
        Command::Run(args) => run::run(&connection, args).await,
        Command::Ls(args) => ls::ls(&connection, args).await,
        Command::Inspect { name, json } => ls::inspect(&connection, &name, json).await,
        Command::Break { name, yes } => operate::break_lease(&connection, &name, yes).await,
        Command::Fence { name, token } => operate::fence(&connection, &name, token).await,
        Command::Migrate { print } => operate::migrate(&connection, print).await,
        Command::Check { json } => check::check(&connection, json).await,
        Command::Completions { shell } => Ok(operate::completions(shell)),
        Command::Hold { .. } => holder::run(&connection).await,
        Command::Start { runner, command } => Err(command::become_command(runner, &command)),
    }
}
