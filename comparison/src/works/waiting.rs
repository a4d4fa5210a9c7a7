//! D: many who wait, for a name that nobody lets go.

use std::time::{Duration, Instant};

use leasehold::LeaseClient;
use leasehold_testkit::{Cluster, eventually};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::dice::Dice;
use crate::figures::{Figures, Key};
use crate::meter::{self, Cost};
use crate::peer::{Outcome, Peer};
use crate::peers::leasehold::NAME;
use crate::peers::table::{self, Table};
use crate::plan::Plan;
use crate::servers::Servers;
use crate::works::announce;
use crate::works::held::{of_client, record, settle, watch};

pub const CONNECT: &str = "a bystander's connect, ms";

pub async fn run(plan: &Plan, servers: &Servers, dice: &mut Dice, figures: &mut Figures) -> Outcome<()> {
    let cluster = &servers.counting;
    let mut session = cluster.connect().await;
    for round in 0..plan.slow_rounds {
        announce(round, "D, waiters");
        let mut order: Vec<_> = plan
            .waiters
            .iter()
            .flat_map(|waiters| [(NAME, *waiters), (table::NAME, *waiters)])
            .collect();
        dice.shuffle(&mut order);
        for (peer, waiters) in order {
            let waited = match peer {
                NAME => leasehold(plan, cluster, &mut session, waiters).await?,
                _ => polling(plan, cluster, &mut session, waiters).await?,
            };
            let key = Key::new('D', "", peer, waiters as u64);
            record(figures, key, round, &waited.cost, waited.connections);
            figures.record(key.measure(CONNECT), round, waited.connect_ms);
        }
    }
    Ok(())
}

struct Waited {
    cost: Cost,
    connections: i64,
    /// The slowest of several.
    connect_ms: f64,
}

async fn leasehold(plan: &Plan, cluster: &Cluster, session: &mut PgConnection, waiters: usize) -> Outcome<Waited> {
    // The holder is a client of its own, and renews too seldom to be seen.
    let pool = PgPoolOptions::new().connect_lazy_with(cluster.options());
    leasehold::migrate(&pool).await?;
    let holder = LeaseClient::new(pool);
    let held = holder.acquire("waited for").ttl(Duration::from_secs(3600)).await?;
    let leases = LeaseClient::new(PgPoolOptions::new().connect_lazy_with(of_client(cluster)));
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        tasks.spawn(leases.acquire("waited for").into_future());
    }
    eventually(Duration::from_secs(60), "all stand in line", async || {
        let in_line = "select count(*) from leasehold.waiters";
        let counted = sqlx::query_scalar::<_, i64>(in_line).fetch_one(&mut *session).await;
        counted.ok().filter(|count| *count as usize == waiters)
    })
    .await;
    settle().await;
    let waited = waited(plan, cluster, session).await?;
    if let Some(done) = tasks.try_join_next() {
        return Err(format!("a waiter ended: {done:?}").into());
    }
    tasks.shutdown().await;
    held.release().await?;
    leases.close().await;
    holder.close().await;
    Ok(waited)
}

async fn polling(plan: &Plan, cluster: &Cluster, session: &mut PgConnection, waiters: usize) -> Outcome<Waited> {
    let table = Table::new(&of_client(cluster)).await?;
    let mut holder = table.session(0).await?;
    // What an earlier round has left is nobody's.
    sqlx::query("delete from leases").execute(&mut *session).await?;
    holder.acquire("waited for").await?;
    let mut tasks = JoinSet::new();
    for number in 0..waiters {
        let mut waiter = table.session(number).await?;
        tasks.spawn(async move { waiter.acquire("waited for").await });
    }
    settle().await;
    let waited = waited(plan, cluster, session).await;
    tasks.shutdown().await;
    holder.release().await?;
    waited
}

async fn waited(plan: &Plan, cluster: &Cluster, session: &mut PgConnection) -> Outcome<Waited> {
    // From just after a statement: else a window of ten periods may hold eleven of what comes once in each.
    let before = meter::statements(session).await?;
    let patience = Instant::now() + Duration::from_secs(2);
    while meter::statements(session).await? == before && Instant::now() < patience {
        sleep(Duration::from_millis(10)).await;
    }
    let (cost, connections) = watch(plan.waiting_for, cluster, session).await?;
    let mut connect_ms = 0.0_f64;
    for _ in 0..BYSTANDERS {
        let began_at = Instant::now();
        let bystander = PgConnection::connect_with(&cluster.options()).await?;
        connect_ms = connect_ms.max(began_at.elapsed().as_secs_f64() * 1e3);
        bystander.close().await?;
        sleep(Duration::from_millis(50)).await;
    }
    Ok(Waited {
        cost,
        connections,
        connect_ms,
    })
}

const BYSTANDERS: usize = 10;
