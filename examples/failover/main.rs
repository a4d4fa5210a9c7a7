//! `make failover`: two nodes that Patroni manages, clients under load, and every way to lose the leader.
//!
//! Each case starts a pair of its own, lets the clients work, makes the fault, waits until every client
//! is granted names by the new leader, and compares what the clients were told with what the surviving
//! database knows. A line of JSON for each; it fails when a token comes twice, a stale fenced write
//! passes, a client does not come back, or, under synchronous replication, anything acknowledged is lost.
//!
//! Arguments: the directory of Patroni and etcd, and how the names of the cases begin that are to be run:
//! `synchronous`, or `asynchronous, kill`.

#![allow(clippy::print_stdout, reason = "its lines are what it is for")]
#![allow(unreachable_pub, reason = "an example has no outside")]

mod case;
mod history;
mod load;
mod primary;

use std::env;
use std::error::Error;
use std::path::Path;

use case::{Case, Fault};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const CASES: [Case; 9] = [
    Case::new(false, Fault::Switchover),
    Case::new(false, Fault::Kill),
    Case::new(false, Fault::StallAndKill),
    Case::new(false, Fault::StopManager),
    Case::new(false, Fault::Freeze),
    Case::new(true, Fault::Switchover),
    Case::new(true, Fault::Kill),
    Case::new(true, Fault::StopManager),
    Case::new(true, Fault::Freeze),
];

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = env::args().skip(1);
    let tools = arguments.next().ok_or("where are Patroni and etcd?")?;
    let wanted = arguments.next().unwrap_or_default();
    let mut wrong = Vec::new();
    for case in CASES.iter().filter(|case| case.name().starts_with(&wanted)) {
        let report = case.run(Path::new(&tools)).await?;
        println!("{}", report.json());
        wrong.extend(report.wrong());
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n").into())
    }
}
