//! One run: sets the stage, lets clients and nemesis go, waits in calm, and gathers the history.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_testkit::FaultProxy;
use sqlx::{Connection, PgConnection};
use tokio::time::sleep;

use crate::Outcome;
use crate::clients::Client;
use crate::clock::{SECOND, now};
use crate::dice::Dice;
use crate::history::History;
use crate::mutant::Mutant;
use crate::nemesis::Nemesis;
use crate::stage::{self, Clock};

#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub faults_for: Duration,
    pub dir: PathBuf,
    pub mutant: Option<&'static Mutant>,
    /// Without faults at the end, for the waiters to be served.
    pub calm: Duration,
    /// With clock steps and promotions, which leave some things open to judgement.
    pub is_full: bool,
}

/// Longer than the checker gives the waiters.
pub const CALM: Duration = Duration::from_secs(16);
/// Until the leases of whoever did not release have run out.
const RUN_OUT: Duration = Duration::from_secs(4);
const HOT_NAMES: u64 = 3;
const PROCESSES: usize = 4;
/// How many of them, the first, have a network that fails.
const FAILING: usize = 3;
/// The process whose sessions do not wait for the disk, but where the crate and its fences have them wait.
const HASTY: usize = 2;

pub async fn run(plan: &Plan) -> Outcome<History> {
    let _ = fs::remove_dir_all(&plan.dir);
    fs::create_dir_all(&plan.dir)?;
    let shared = SharedDir::new(plan.seed)?;
    let clock = Clock::find(&shared.0).filter(|_| plan.is_full);
    let mut primary = stage::set_up(clock.as_ref(), plan.mutant).await?;
    let proxies: Vec<FaultProxy> = (0..PROCESSES).map(|_| FaultProxy::start(primary.addr())).collect();
    let mut clients = Vec::new();
    for (number, proxy) in proxies.iter().enumerate() {
        let mut url = format!("postgres://postgres@{}/postgres?sslmode=disable", proxy.addr());
        if number == HASTY {
            url += "&options=-c%20synchronous_commit%3Doff";
        }
        let seed = Dice::new(plan.seed, number as u64).next();
        clients.push(Client::start(
            format!("p{number}"),
            url,
            seed,
            HOT_NAMES,
            plan.dir.clone(),
        )?);
    }

    let mut history = History {
        began_at: now(),
        ..History::default()
    };
    let until = now() + plan.faults_for.as_micros() as i64;
    let nemesis = Nemesis {
        clock: clock.as_ref(),
        proxies: &proxies[..FAILING],
        faults: Mutex::default(),
        until,
        hot_names: HOT_NAMES,
    };
    let (on_clients, mut on_server) = (Dice::new(plan.seed, 101), Dice::new(plan.seed, 102));
    let server = async {
        if plan.is_full {
            for promote_at in promotions(now(), until) {
                // Nothing happens to the server while it is copied.
                let standby = primary.standby_from("standby", stage::server(clock.as_ref())).await;
                nemesis.haunt_server(&primary, promote_at, &mut on_server).await?;
                nemesis.promote(&primary, &standby, &proxies).await;
                primary = standby;
            }
        }
        nemesis.haunt_server(&primary, until, &mut on_server).await
    };
    let (haunted, served) = tokio::join!(nemesis.haunt_clients(&mut clients, on_clients), server);
    haunted?;
    served?;

    history.calm_from = now() + SECOND;
    sleep(plan.calm).await;
    history.ended_at = now();
    for client in &mut clients {
        client.tell("stop").await;
    }
    let closing: Vec<_> = clients
        .into_iter()
        .map(|client| (client.process.clone(), tokio::spawn(client.has_closed())))
        .collect();
    let mut unclosed = Vec::new();
    for (process, closed) in closing {
        if !closed.await? {
            unclosed.push(process);
        }
    }
    if plan.mutant.is_none() {
        sleep(RUN_OUT).await;
    }

    let mut connection = PgConnection::connect_with(&primary.socket_options()).await?;
    history.audit = stage::audit(&mut connection).await?;
    history.written = stage::written(&mut connection).await?;
    history.end = stage::end(&mut connection).await?;
    history.end.unclosed = unclosed;
    history.faults = nemesis.faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    history.faults.sort_by_key(|fault| fault.from);
    read_clients(&mut history, &plan.dir)?;
    fs::write(plan.dir.join("server.log"), primary.log())?;
    keep(&history, &plan.dir)?;
    Ok(history)
}

/// One in about five minutes, late in each.
fn promotions(from: i64, until: i64) -> impl Iterator<Item = i64> {
    let legs = ((until - from) / (300 * SECOND)).max(1);
    let leg = (until - from) / legs;
    (0..legs).map(move |number| from + number * leg + leg * 7 / 8)
}

fn read_clients(history: &mut History, dir: &Path) -> Outcome<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "history") {
            history.read(&fs::read_to_string(path)?);
        }
    }
    Ok(())
}

/// The database's side of the history, beside the clients' files, for whoever looks into a violation.
fn keep(history: &History, dir: &Path) -> Outcome<()> {
    let lines = |all: Vec<String>| all.join("\n") + "\n";
    fs::write(
        dir.join("audit"),
        lines(history.audit.iter().map(|a| format!("{a:?}")).collect()),
    )?;
    fs::write(
        dir.join("written"),
        lines(history.written.iter().map(|w| format!("{w:?}")).collect()),
    )?;
    fs::write(
        dir.join("faults"),
        lines(history.faults.iter().map(|f| format!("{f:?}")).collect()),
    )?;
    Ok(())
}

/// A directory that the server's user may read.
struct SharedDir(PathBuf);

impl SharedDir {
    fn new(seed: u64) -> Outcome<Self> {
        let dir = std::env::temp_dir().join(format!("torture-{}-{seed:x}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for SharedDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
