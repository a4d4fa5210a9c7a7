//! C: leases that are held, and renewed, for a while.

use std::time::Duration;

use leasehold::LeaseClient;
use leasehold_testkit::Cluster;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use crate::dice::Dice;
use crate::figures::{Figures, Key};
use crate::meter::{Cost, Meter};
use crate::peer::Outcome;
use crate::peers::leasehold::NAME;
use crate::peers::table::Table;
use crate::plan::Plan;
use crate::servers::Servers;
use crate::works::announce;

pub const ONE_BY_ONE: &str = "lease table, renewed one by one";
pub const NOTHING: &str = "nothing held";

pub async fn run(plan: &Plan, servers: &Servers, dice: &mut Dice, figures: &mut Figures) -> Outcome<()> {
    let cluster = &servers.counting;
    let mut session = cluster.connect().await;
    for round in 0..plan.slow_rounds {
        announce(round, "C, held leases");
        let mut order = vec![(NOTHING, 0)];
        order.extend(plan.held.iter().map(|held| (NAME, *held)));
        order.extend(plan.held.iter().map(|held| (ONE_BY_ONE, *held)));
        dice.shuffle(&mut order);
        for (peer, held) in order {
            let (cost, connections) = match peer {
                NAME => leasehold(plan, cluster, &mut session, held).await?,
                ONE_BY_ONE => one_by_one(plan, cluster, &mut session, held).await?,
                _ => watch(plan.held_for / 3, cluster, &mut session).await?,
            };
            record(figures, Key::new('C', "", peer, held as u64), round, &cost, connections);
        }
    }
    Ok(())
}

pub fn record(figures: &mut Figures, key: Key, round: u32, cost: &Cost, connections: i64) {
    figures.record(key.measure("statements/s"), round, cost.statements);
    figures.record(key.measure("cpu %"), round, cost.cpu());
    figures.record(key.measure("client cpu %"), round, cost.client_cpu);
    figures.record(key.measure("server cpu %"), round, cost.server_cpu);
    figures.record(key.measure("connections"), round, connections as f64);
}

async fn leasehold(plan: &Plan, cluster: &Cluster, session: &mut PgConnection, held: usize) -> Outcome<(Cost, i64)> {
    leasehold::migrate(&PgPoolOptions::new().connect_lazy_with(cluster.options())).await?;
    let pool = PgPoolOptions::new().connect_lazy_with(of_client(cluster));
    let leases = LeaseClient::builder(pool).ttl(TTL).build()?;
    let mut asked = JoinSet::new();
    for number in 0..held {
        asked.spawn(leases.acquire(format!("held:{number}")).into_future());
    }
    let mut kept = Vec::new();
    while let Some(lease) = asked.join_next().await {
        kept.push(lease??);
    }
    settle().await;
    let watched = watch(plan.held_for, cluster, session).await?;
    if let Some(lost) = kept.iter().find(|lease| !lease.is_held()) {
        return Err(format!("{} was lost meanwhile", lost.name()).into());
    }
    leases.close().await;
    Ok(watched)
}

/// As many leases in a plain table, each renewed by a statement of its own every third of the ttl.
async fn one_by_one(plan: &Plan, cluster: &Cluster, session: &mut PgConnection, held: usize) -> Outcome<(Cost, i64)> {
    let options = of_client(cluster);
    Table::new(&options).await?;
    let mut connection = PgConnection::connect_with(&options).await?;
    let owner = Uuid::new_v4();
    sqlx::query("delete from leases").execute(&mut connection).await?;
    sqlx::query("insert into leases select 'held:' || i, $1, now() + interval '30 s' from generate_series(1, $2) as i")
        .bind(owner)
        .bind(i64::try_from(held)?)
        .execute(&mut connection)
        .await?;
    let renewing: JoinHandle<Outcome<()>> = tokio::spawn(async move {
        let (began_at, pace) = (Instant::now(), (TTL / 3).div_f64(held as f64));
        for renewal in 0.. {
            sleep_until(began_at + pace.mul_f64(f64::from(renewal))).await;
            let renewed =
                sqlx::query("update leases set expires_at = now() + interval '30 s' where name = $1 and owner = $2")
                    .bind(format!("held:{}", 1 + renewal as usize % held))
                    .bind(owner)
                    .execute(&mut connection)
                    .await?;
            if renewed.rows_affected() != 1 {
                return Err("a lease was not renewed".into());
            }
        }
        Ok(())
    });
    settle().await;
    let watched = watch(plan.held_for, cluster, session).await;
    if renewing.is_finished() {
        renewing.await??;
    } else {
        renewing.abort();
    }
    watched
}

/// What `lasting` costs, and how many connections the client has after it.
pub async fn watch(lasting: Duration, cluster: &Cluster, session: &mut PgConnection) -> Outcome<(Cost, i64)> {
    let meter = Meter::read(cluster, session).await?;
    sleep(lasting).await;
    let cost = meter.cost_since(cluster, session).await?;
    let count = "select count(*) from pg_stat_activity where application_name = $1";
    let connections = sqlx::query_scalar(count).bind(CLIENT).fetch_one(session).await?;
    Ok((cost, connections))
}

/// Connects as the client whose connections are counted.
pub fn of_client(cluster: &Cluster) -> PgConnectOptions {
    cluster.options().application_name(CLIENT)
}

/// The server goes on for a moment with what came before: flushing, vacuuming.
pub async fn settle() {
    sleep(Duration::from_millis(1500)).await;
}

const CLIENT: &str = "the client";
const TTL: Duration = Duration::from_secs(30);
