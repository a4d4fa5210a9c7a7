//! F: a miss, which is to ask for a name that somebody else holds.

use sqlx::postgres::PgConnectOptions;

use crate::dice::Dice;
use crate::figures::{Figures, Key};
use crate::lap::{self, Lap, Step, Window};
use crate::peer::{Outcome, Peer, Pending, Session};
use crate::peers;
use crate::plan::Plan;
use crate::servers::Servers;
use crate::works::{SelectOne, announce};

pub const TASKS: [usize; 2] = [1, 32];
pub const MISSES: &str = "misses/s";
pub const ON_ONE_NAME: &str = "misses/s on one name";

pub async fn run(plan: &Plan, servers: &Servers, dice: &mut Dice, figures: &mut Figures) -> Outcome<()> {
    let options = servers.postgres.options();
    // The holder is another process than those who ask: a miss is not answered from memory.
    let all = peers::all(servers, 2).await?;
    let peers: Vec<_> = all.iter().filter(|peer| peer.can_miss()).collect();
    for round in 0..plan.rounds {
        let mut order: Vec<_> = peers
            .iter()
            .flat_map(|peer| TASKS.map(|tasks| (Some(peer), MISSES, tasks)))
            .collect();
        order.extend(peers.iter().map(|peer| (Some(peer), ON_ONE_NAME, TASKS[1])));
        order.extend(TASKS.map(|tasks| (None, MISSES, tasks)));
        dice.shuffle(&mut order);
        announce(round, "F, misses");
        for (peer, measure, tasks) in order {
            let names = if measure == MISSES { tasks } else { 1 };
            let (name, lap) = match peer {
                Some(peer) => (peer.name(), misses(peer.as_ref(), tasks, names, plan.lap).await),
                None => (SelectOne::NAME, select_one(&options, tasks, plan.lap).await),
            };
            let key = Key::new('F', measure, name, tasks as u64);
            let Some(lap) = figures.or_note(key, round, lap) else {
                continue;
            };
            figures.record(key, round, lap.rate);
            if measure == MISSES {
                figures.record_latencies(key, round, lap.milliseconds);
            }
        }
    }
    for peer in all {
        peer.close().await?;
    }
    Ok(())
}

/// So many tasks of one client ask for as many held names, each for its own or all for one. Another
/// client holds them where there is one.
pub async fn misses(peer: &dyn Peer, tasks: usize, names: usize, window: Window) -> Outcome<Lap> {
    let mut holders = Vec::new();
    for number in 0..names {
        let mut holder = peer.session(0).await?;
        holder.acquire(&held(number)).await?;
        holders.push(holder);
    }
    let mut steps = Vec::new();
    for number in 0..tasks {
        steps.push(Miss {
            session: peer.session(1).await?,
            name: held(number % names),
        });
    }
    let lap = lap::run(steps, window).await;
    for holder in &mut holders {
        holder.release().await?;
    }
    Ok(lap?.0)
}

fn held(number: usize) -> String {
    format!("held:{number}")
}

/// As many connections as tasks.
async fn select_one(options: &PgConnectOptions, tasks: usize, window: Window) -> Outcome<Lap> {
    let mut steps = Vec::new();
    for _ in 0..tasks {
        steps.push(SelectOne::connect(options).await?);
    }
    Ok(lap::run(steps, window).await?.0)
}

struct Miss {
    session: Box<dyn Session>,
    name: String,
}

impl Step for Miss {
    fn step(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            match self.session.try_acquire(&self.name).await? {
                false => Ok(()),
                true => Err("a held name was granted".into()),
            }
        })
    }
}
