//! A: acquire and release, nobody else wanting the name.

use crate::dice::Dice;
use crate::figures::{Figures, Key};
use crate::lap::{self, Lap, Step, Window};
use crate::peer::{Outcome, Peer, Pending, Session};
use crate::peers;
use crate::plan::Plan;
use crate::servers::Servers;
use crate::works::announce;

pub const TASKS: [usize; 4] = [1, 8, 32, 128];

pub async fn run(plan: &Plan, servers: &Servers, dice: &mut Dice, figures: &mut Figures) -> Outcome<()> {
    let peers = peers::all(servers, 1).await?;
    for round in 0..plan.rounds {
        let mut order: Vec<_> = peers
            .iter()
            .flat_map(|peer| TASKS.map(|tasks| (peer.as_ref(), tasks)))
            .collect();
        dice.shuffle(&mut order);
        announce(round, "A, cycles");
        for (peer, tasks) in order {
            let key = Key::new('A', "cycles/s", peer.name(), tasks as u64);
            let Some(lap) = figures.or_note(key, round, cycles(peer, tasks, plan.lap).await) else {
                continue;
            };
            figures.record(key, round, lap.rate);
            figures.record_latencies(key, round, lap.milliseconds);
        }
    }
    for peer in peers {
        peer.close().await?;
    }
    Ok(())
}

/// So many tasks of `peer`, each with a name of its own.
pub async fn cycles(peer: &dyn Peer, tasks: usize, window: Window) -> Outcome<Lap> {
    let mut steps = Vec::new();
    for number in 0..tasks {
        steps.push(Cycle::new(peer, number).await?);
    }
    Ok(lap::run(steps, window).await?.0)
}

pub struct Cycle {
    session: Box<dyn Session>,
    name: String,
}

impl Cycle {
    pub async fn new(peer: &dyn Peer, number: usize) -> Outcome<Self> {
        Ok(Self {
            session: peer.session(number).await?,
            name: format!("cycle:{number}"),
        })
    }
}

impl Step for Cycle {
    fn step(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            self.session.acquire(&self.name).await?;
            self.session.release().await
        })
    }
}
