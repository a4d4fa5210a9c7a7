//! The nemesis: does to clients, network and server what happens to them, from a seed, and notes it.
//!
//! Two hands work at once, one on the clients and one on network and server. Each undoes what it did
//! before it does the next.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_testkit::{Cluster, FaultProxy, StopMode, eventually, signals};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{sleep, timeout};

use crate::Outcome;
use crate::clients::Client;
use crate::clock::now;
use crate::dice::Dice;
use crate::history::Fault;
use crate::stage::Clock;

#[derive(Debug)]
pub struct Nemesis<'a> {
    pub clock: Option<&'a Clock>,
    /// Those that fail.
    pub proxies: &'a [FaultProxy],
    pub faults: Mutex<Vec<Fault>>,
    pub until: i64,
    pub hot_names: u64,
}

impl Nemesis<'_> {
    fn note(&self, kind: &str, target: &str, from: i64) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(Fault {
            kind: kind.into(),
            target: target.into(),
            from,
            to: now(),
        });
    }

    /// The hand on the clients.
    pub async fn haunt_clients(&self, clients: &mut [Client], mut dice: Dice) -> Outcome<()> {
        while now() < self.until {
            sleep(Duration::from_millis(dice.between(50, 500))).await;
            let client = dice.between(0, clients.len() as u64 - 1) as usize;
            let (client, from) = (&mut clients[client], now());
            let kind = match dice.between(0, 9) {
                0..5 => {
                    signals::stop(client.pid());
                    sleep(Duration::from_millis(dice.one_of(&[50, 200, 700, 1300, 2500]))).await;
                    signals::cont(client.pid());
                    "stop"
                }
                5..8 => {
                    client.kill_and_restart().await?;
                    "kill"
                }
                _ => {
                    let milliseconds = dice.between(200, 1500);
                    client.tell(&format!("exhaust {milliseconds}")).await;
                    sleep(Duration::from_millis(milliseconds)).await;
                    "exhaust"
                }
            };
            self.note(kind, &client.process, from);
        }
        Ok(())
    }

    /// The hand on the network and the server; without a pause between what is short.
    pub async fn haunt_server(&self, cluster: &Cluster, until: i64, dice: &mut Dice) -> Outcome<()> {
        while now() < until {
            sleep(Duration::from_millis(dice.between(20, 400))).await;
            let from = now();
            let number = dice.between(0, self.proxies.len() as u64 - 1) as usize;
            let proxy = &self.proxies[number];
            let (short, long) = (dice.between(50, 600), dice.between(300, 2500));
            let kind = match dice.between(0, 99) {
                0..14 => {
                    let victim = "select pg_terminate_backend(pid) from pg_stat_activity \
                        where backend_type = 'client backend' and pid <> pg_backend_pid() order by random() limit 2";
                    self.on_server(cluster, victim).await;
                    "terminate"
                }
                14..22 => {
                    let victim = "select pg_cancel_backend(pid) from pg_stat_activity \
                        where backend_type = 'client backend' and pid <> pg_backend_pid() and state = 'active' limit 3";
                    self.on_server(cluster, victim).await;
                    "cancel"
                }
                22..25 => {
                    cluster.stop(StopMode::Immediate).await;
                    sleep(Duration::from_millis(dice.between(0, 500))).await;
                    cluster.restart().await;
                    "crash"
                }
                25 => {
                    cluster.kill_postmaster().await;
                    cluster.restart().await;
                    "kill postmaster"
                }
                26 => {
                    // It takes all others with it, and the server recovers by itself.
                    if let Some(backend) = self.backend(cluster, dice).await {
                        signals::kill(backend);
                        self.recovered(cluster).await;
                    }
                    "kill backend"
                }
                27..30 => {
                    let backend = self.backend(cluster, dice).await;
                    if let Some(backend) = backend.filter(|backend| signals::stop(*backend)) {
                        sleep(Duration::from_millis(long)).await;
                        signals::cont(backend);
                    }
                    "stop backend"
                }
                30..38 => {
                    proxy.delay(Duration::from_millis(dice.between(10, 250)));
                    sleep(Duration::from_millis(long)).await;
                    "delay"
                }
                38..48 => {
                    proxy.cut();
                    "cut"
                }
                48..58 => {
                    proxy.reset();
                    "reset"
                }
                58..65 => {
                    proxy.pause();
                    sleep(Duration::from_millis(long)).await;
                    "black hole"
                }
                65..72 => {
                    proxy.hold_replies();
                    sleep(Duration::from_millis(long)).await;
                    "replies lost"
                }
                72..75 => {
                    proxy.freeze_existing();
                    sleep(Duration::from_millis(short)).await;
                    proxy.cut();
                    "freeze"
                }
                75..79 => {
                    proxy.refuse();
                    sleep(Duration::from_millis(short)).await;
                    "refuse"
                }
                79..88 => {
                    let name = dice.between(1, self.hot_names);
                    let lock = format!(
                        "begin; select from leasehold.locks where name = 'hot-{name}' for update; \
                         select pg_sleep({}); rollback",
                        short as f64 / 1000.0
                    );
                    self.on_server(cluster, &lock).await;
                    "row lock"
                }
                88..92 => {
                    let sweep = "update leasehold.sweeps set next_at = clock_timestamp(); select leasehold.sweep()";
                    self.on_server(cluster, sweep).await;
                    "sweep"
                }
                _ => {
                    let Some(clock) = self.clock else { continue };
                    clock.step(dice.one_of(&[-2000, -1000, -300, 0, 300, 1000, 2000]))?;
                    // A lease that was renewed by the old time may be affected for as long as it lasts.
                    "clock"
                }
            };
            proxy.heal();
            self.note(kind, &number.to_string(), from);
        }
        if let Some(clock) = self.clock {
            let from = now();
            clock.step(0)?;
            self.note("clock", "true time", from);
        }
        Ok(())
    }

    /// A failover: the primary is gone at once, and the standby takes its place.
    pub async fn promote(&self, primary: &Cluster, standby: &Cluster, proxies: &[FaultProxy]) {
        let from = now();
        primary.stop(StopMode::Immediate).await;
        standby.promote().await;
        for proxy in proxies {
            proxy.redirect(standby.addr());
            proxy.cut();
            proxy.heal();
        }
        self.note("promote", "standby", from);
    }

    /// The process of a session, of one that does something where there is one.
    async fn backend(&self, cluster: &Cluster, dice: &mut Dice) -> Option<u32> {
        let sessions = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() \
            order by state = 'active' desc limit 5";
        let look = async {
            let mut connection = PgConnection::connect_with(&cluster.socket_options()).await?;
            let pids: Vec<i32> = sqlx::query_scalar(sessions).fetch_all(&mut connection).await?;
            connection.close().await?;
            Ok::<_, sqlx::Error>(pids)
        };
        let pids = timeout(PATIENCE, look).await.ok()?.ok()?;
        (!pids.is_empty()).then(|| dice.one_of(&pids) as u32)
    }

    async fn recovered(&self, cluster: &Cluster) {
        eventually(PATIENCE * 6, "the server takes connections again", async || {
            PgConnection::connect_with(&cluster.socket_options()).await.is_ok()
        })
        .await;
    }

    async fn on_server(&self, cluster: &Cluster, sql: &str) {
        let act = async {
            let mut connection = PgConnection::connect_with(&cluster.socket_options()).await?;
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
            connection.close().await
        };
        // It may hit itself, or meet a server that is short of something.
        let _ = timeout(PATIENCE, act).await;
    }
}

/// How long the nemesis waits for the server.
const PATIENCE: Duration = Duration::from_secs(5);
