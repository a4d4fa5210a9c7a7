//! One case: the fault, how long the clients were without a leader, and what became of their work.

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::sqlx::postgres::{PgConnectOptions, PgPool};
use leasehold::sqlx::{self, Connection, PgConnection};
use leasehold_testkit::{Patroni, signals};
use tokio::time::{sleep, timeout};

use crate::Outcome;
use crate::history::{Findings, History, Surviving};
use crate::load::Load;

#[derive(Debug, Clone, Copy)]
pub struct Case {
    is_synchronous: bool,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Asked for, while both are well.
    Switchover,
    /// The leader's node is gone at once.
    Kill,
    /// The same, when the standby has heard nothing for a moment.
    StallAndKill,
    /// The leader's manager stands still, and its server does not know.
    StopManager,
    /// The leader's whole node stands still, its connections stay, and it is back later.
    Freeze,
}

#[derive(Debug)]
pub struct Report {
    case: Case,
    findings: Findings,
    refused: usize,
    kept: (usize, usize),
    /// From the fault on: until there was a new leader, a grant by it, and one to each client.
    leader_after: Duration,
    first_grant_after: Duration,
    all_granted_after: Duration,
}

impl Case {
    pub const fn new(is_synchronous: bool, fault: Fault) -> Self {
        Self { is_synchronous, fault }
    }

    pub fn name(&self) -> String {
        format!("{}, {}", self.mode(), self.fault_name())
    }

    fn mode(&self) -> &'static str {
        if self.is_synchronous {
            "synchronous"
        } else {
            "asynchronous"
        }
    }

    fn fault_name(&self) -> &'static str {
        match self.fault {
            Fault::Switchover => "switchover",
            Fault::Kill => "kill -9 of the node",
            Fault::StallAndKill => "150 ms without replication, then kill -9 of the node",
            Fault::StopManager => "SIGSTOP of Patroni alone",
            Fault::Freeze => "SIGSTOP of the node, then SIGCONT",
        }
    }

    pub async fn run(&self, tools: &Path) -> Outcome<Report> {
        let patroni = Patroni::try_start(tools, self.is_synchronous).await?;
        let hosts = patroni.options();
        let old = patroni.leader().await.ok_or("there is no leader")?;
        let new = 1 - old;
        stage(&hosts[old]).await?;
        let load = Load::start(&hosts).await?;
        sleep(WORK).await;
        within(BACK_WITHIN, "the clients hardly get on", async || {
            (load.history().grants.len() >= GRANTS_BEFORE).then_some(())
        })
        .await?;

        let fault_at = self.make(&patroni, old).await?;
        let leader_after = within(LEADER_WITHIN, "there is no new leader", async || {
            patroni.is_leader(new).await.then(|| fault_at.elapsed())
        })
        .await
        .map_err(|error| format!("{}: {error}\n{}", self.name(), patroni.log(new)))?;
        let mut conn = PgConnection::connect_with(&hosts[new]).await?;
        let came_back = within(BACK_WITHIN, "a client does not come back", async || {
            let surviving = Surviving::read(&mut conn).await.ok()?;
            let history = load.history();
            let has_moved = surviving
                .latest_timeline()
                .is_some_and(|timeline| timeline > FIRST_TIMELINE);
            (has_moved && surviving.arrivals(&history).len() == load.clients()).then_some(())
        });
        came_back.await.map_err(|error| format!("{}: {error}", self.name()))?;
        sleep(WORK).await;
        // What stood still goes on, and believes that it leads.
        if matches!(self.fault, Fault::StopManager | Fault::Freeze) {
            patroni.thaw(old);
            sleep(WORK).await;
        }
        let history = load.stop().await;
        let surviving = Surviving::read(&mut conn).await?;
        Ok(self.report(&history, &surviving, (fault_at, leader_after)))
    }

    /// Returns the moment of the fault.
    async fn make(&self, patroni: &Patroni, old: usize) -> Outcome<Instant> {
        if self.fault == Fault::StallAndKill {
            let senders = patroni.processes(old, "walsender");
            if senders.is_empty() || !senders.iter().all(|sender| signals::stop(*sender)) {
                return Err("nothing is replicated".into());
            }
            sleep(STALL).await;
        }
        let fault_at = Instant::now();
        match self.fault {
            // As long as it takes the manager to know the other node for a good candidate.
            Fault::Switchover => {
                return within(LEADER_WITHIN, "the manager refuses to switch over", async || {
                    let asked_at = Instant::now();
                    patroni.switch_over(old).await.then_some(asked_at)
                })
                .await;
            }
            Fault::Kill | Fault::StallAndKill => patroni.kill(old),
            Fault::StopManager => drop(signals::stop(patroni.manager_pid(old))),
            Fault::Freeze => patroni.freeze(old),
        }
        Ok(fault_at)
    }

    fn report(
        &self,
        history: &History,
        surviving: &Surviving,
        (fault_at, leader_after): (Instant, Duration),
    ) -> Report {
        let arrivals: Vec<_> = surviving.arrivals(history).into_values().collect();
        let after = |at: Option<&Instant>| at.map_or(Duration::MAX, |at| at.saturating_duration_since(fault_at));
        Report {
            case: *self,
            findings: Findings::of(history, surviving),
            refused: history.refused,
            kept: history.kept,
            leader_after,
            first_grant_after: after(arrivals.iter().min()),
            all_granted_after: after(arrivals.iter().max()),
        }
    }
}

impl Report {
    pub fn json(&self) -> String {
        let Findings {
            grants,
            grants_missing,
            tokens_twice,
            tokens_not_rising,
            writes,
            writes_missing,
            stale_writes,
            overlaps,
            longest_gap,
        } = &self.findings;
        let (held, kept) = self.kept;
        format!(
            "{{\"mode\":\"{}\", \"fault\":\"{}\", \"grants\":{grants}, \"grants_missing\":{grants_missing}, \
            \"tokens_twice\":{tokens_twice}, \"tokens_not_rising\":{tokens_not_rising}, \"fenced_writes\":{writes}, \
            \"fenced_writes_missing\":{writes_missing}, \"stale_writes_refused\":{}, \"stale_writes\":{stale_writes}, \
            \"overlaps\":{overlaps}, \"long_leases\":{held}, \"long_leases_kept\":{kept}, \"new_leader_s\":{:.1}, \
            \"first_grant_s\":{:.1}, \"all_clients_s\":{:.1}, \"longest_gap_s\":{:.1}}}",
            self.case.mode(),
            self.case.fault_name(),
            self.refused,
            self.leader_after.as_secs_f64(),
            self.first_grant_after.as_secs_f64(),
            self.all_granted_after.as_secs_f64(),
            longest_gap.as_secs_f64(),
        )
    }

    /// What must not be.
    pub fn wrong(&self) -> Vec<String> {
        let found = &self.findings;
        let (held, kept) = self.kept;
        let always = [
            (found.tokens_twice > 0, "a token was given out twice"),
            (found.stale_writes > 0, "a stale fenced write passed"),
            (self.refused == 0, "no stale fenced write was tried"),
            (
                self.first_grant_after > self.leader_after + FIRST_GRANT_WITHIN,
                "the first grant came late",
            ),
        ];
        let synchronous = [
            (found.grants_missing > 0, "a grant was lost"),
            (found.writes_missing > 0, "a fenced write was lost"),
            (found.tokens_not_rising > 0, "tokens do not rise"),
            (found.overlaps > 0, "two believed at once"),
            (kept < held, "a long lease was lost"),
        ];
        let synchronous = synchronous.into_iter().filter(|_| self.case.is_synchronous);
        always
            .into_iter()
            .chain(synchronous)
            .filter(|(is_wrong, _)| *is_wrong)
            .map(|(_, what)| format!("{}: {what}", self.case.name()))
            .collect()
    }
}

async fn stage(server: &PgConnectOptions) -> Outcome<()> {
    let pool = PgPool::connect_with(server.clone()).await?;
    leasehold::migrate(&pool).await?;
    sqlx::raw_sql(include_str!("stage.sql")).execute(&pool).await?;
    pool.close().await;
    Ok(())
}

/// Asks until there is an answer.
async fn within<T>(limit: Duration, otherwise: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> Outcome<T> {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    Ok(timeout(limit, asking)
        .await
        .map_err(|_| format!("{otherwise} within {limit:?}"))?)
}

const FIRST_TIMELINE: &str = "00000001";
const WORK: Duration = Duration::from_secs(3);
const GRANTS_BEFORE: usize = 300;
const STALL: Duration = Duration::from_millis(150);
/// The manager's ttl is 20 s.
const LEADER_WITHIN: Duration = Duration::from_secs(60);
const FIRST_GRANT_WITHIN: Duration = Duration::from_secs(5);
const BACK_WITHIN: Duration = Duration::from_secs(30);
