//! G: how A, E and F change as the table of leases grows, as it is cycled through, and while another
//! session holds a snapshot open.

use std::time::{Duration, Instant};

use leasehold::LeaseClient;
use leasehold_testkit::Cluster;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;

use crate::dice::Dice;
use crate::figures::{Figures, Key};
use crate::lap::Window;
use crate::peer::{Outcome, Peer};
use crate::peers::leasehold::{Leasehold, NAME};
use crate::peers::pglock::PgLock;
use crate::peers::updates::Updates;
use crate::plan::Plan;
use crate::servers::Servers;
use crate::works::announce;
use crate::works::cycle::cycles;
use crate::works::fence::{self, Write};
use crate::works::miss::misses;

/// A and F count how many a second, E how long one takes.
pub const RATES: [&str; 3] = ["A, 1 task, cycles/s", "A, 32 tasks, cycles/s", "F, 1 task, misses/s"];
pub const INLINE: &str = "E, 1 task, p50 ms";
pub const SIZE: &str = "locks with its index, MB";
pub const KEPT: &str = "rate at the end to before";

pub async fn run(plan: &Plan, servers: &Servers, dice: &mut Dice, figures: &mut Figures) -> Outcome<()> {
    among_others(plan, &servers.postgres, dice, figures).await?;
    after_cycles(plan, &servers.postgres, figures).await?;
    beside_a_snapshot(plan, &servers.postgres, dice, figures).await
}

async fn among_others(plan: &Plan, cluster: &Cluster, dice: &mut Dice, figures: &mut Figures) -> Outcome<()> {
    let mut databases = Vec::new();
    for others in plan.others {
        announce(0, &format!("G, {others} other leases"));
        let options = cluster.create_database(&format!("others_{others}")).await;
        let leases = fence::prepare(&options).await?;
        let mut connection = PgConnection::connect_with(&options).await?;
        let rows = i64::try_from(*others)?;
        sqlx::query(OTHERS).bind(rows).execute(&mut connection).await?;
        sqlx::query("vacuum (analyze) leasehold.locks")
            .execute(&mut connection)
            .await?;
        databases.push((*others, Leasehold::new(&options, 1).await?, leases, options));
    }
    // What was written on the way is no part of what follows.
    cluster.execute("checkpoint").await;
    for round in 0..plan.rounds {
        announce(round, "G, among other leases");
        let mut order: Vec<_> = (0..4)
            .flat_map(|what| (0..databases.len()).map(move |at| (what, at)))
            .collect();
        dice.shuffle(&mut order);
        for (what, at) in order {
            let (others, peer, leases, options) = &databases[at];
            let (measure, value) = match what {
                0 => (RATES[0], cycles(peer, 1, plan.lap).await?.rate),
                1 => (RATES[1], cycles(peer, 32, plan.lap).await?.rate),
                2 => (RATES[2], misses(peer, 1, 1, plan.lap).await?.rate),
                _ => {
                    let lap = fence::writes(Write::Inline, leases, options, 1, plan.lap).await?;
                    (INLINE, lap.p50()?)
                }
            };
            figures.record(Key::new('G', measure, NAME, *others), round, value);
        }
    }
    for (_, peer, leases, _) in &databases {
        peer.close().await?;
        leases.close().await;
    }
    Ok(())
}

/// Through the crate, by 128 tasks with eight names each.
async fn after_cycles(plan: &Plan, cluster: &Cluster, figures: &mut Figures) -> Outcome<()> {
    announce(0, &format!("G, {} cycles", plan.cycles));
    let options = cluster.create_database("cycled").await;
    let pool = PgPoolOptions::new().connect_lazy_with(options.clone());
    leasehold::migrate(&pool).await?;
    let leases = LeaseClient::new(pool);
    let (mut tasks, each) = (JoinSet::new(), plan.cycles / CYCLERS);
    for task in 0..CYCLERS {
        let leases = leases.clone();
        tasks.spawn(async move {
            for cycle in 0..each {
                let name = format!("cycle:{task}:{}", cycle % 8);
                leases.acquire(name).await?.release().await?;
            }
            Ok::<_, leasehold::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    leases.close().await;
    let mut connection = PgConnection::connect_with(&options).await?;
    let size: i64 = sqlx::query_scalar("select pg_total_relation_size('leasehold.locks')")
        .fetch_one(&mut connection)
        .await?;
    let key = Key::new('G', SIZE, NAME, (each * CYCLERS) as u64);
    figures.record(key, 0, size as f64 / 1e6);
    Ok(())
}

/// Cycles of eight tasks while somebody looks at the database as it was when they began. Each in a
/// database of its own, so that each has its own dead rows and nobody else's.
async fn beside_a_snapshot(plan: &Plan, cluster: &Cluster, dice: &mut Dice, figures: &mut Figures) -> Outcome<()> {
    let mut order = ["leasehold", "updates", "pglock"];
    dice.shuffle(&mut order);
    for which in order {
        let options = cluster.create_database(&format!("snapshot_{which}")).await;
        let peer: Box<dyn Peer> = match which {
            "leasehold" => Box::new(Leasehold::new(&options, 1).await?),
            "updates" => Box::new(Updates::new(&options).await?),
            _ => Box::new(PgLock::new(&options, true).await?),
        };
        announce(0, &format!("G, beside a snapshot: {}", peer.name()));
        let kept = beside(peer.as_ref(), &options, plan.snapshot).await?;
        let key = Key::new('G', KEPT, peer.name(), plan.snapshot.as_secs());
        figures.record(key, 0, kept.at_the_end / kept.before);
        figures.record(key.measure("cycles/s before"), 0, kept.before);
        figures.record(key.measure("cycles/s at the end"), 0, kept.at_the_end);
        figures.record(key.measure("cycles/s after it"), 0, kept.after);
        peer.close().await?;
    }
    Ok(())
}

struct Kept {
    before: f64,
    at_the_end: f64,
    after: f64,
}

async fn beside(peer: &dyn Peer, options: &PgConnectOptions, lasting: Duration) -> Outcome<Kept> {
    let look = Window {
        warm_up: Duration::from_millis(300),
        counted: lasting / 6,
    };
    let before = cycles(peer, SNAPSHOT_TASKS, look).await?.rate;
    let mut snapshot = PgConnection::connect_with(options).await?;
    sqlx::raw_sql("begin isolation level repeatable read; select count(*) from pg_class")
        .execute(&mut snapshot)
        .await?;
    let held_until = Instant::now() + lasting;
    let rest = Window {
        warm_up: lasting.saturating_sub(look.counted + look.warm_up),
        counted: Duration::ZERO,
    };
    cycles(peer, SNAPSHOT_TASKS, rest).await?;
    let at_the_end = cycles(peer, SNAPSHOT_TASKS, look).await?.rate;
    if Instant::now() < held_until.checked_sub(Duration::from_secs(1)).unwrap_or(held_until) {
        return Err("the snapshot was not held for as long as it should".into());
    }
    sqlx::query("rollback").execute(&mut snapshot).await?;
    let after = cycles(peer, SNAPSHOT_TASKS, look).await?.rate;
    Ok(Kept {
        before,
        at_the_end,
        after,
    })
}

/// Held by nobody who is here, for a day.
const OTHERS: &str = "
    insert into leasehold.locks (name, owner, holder, ttl, fence, acquired_at, expires_at)
    select
        'other:' || i, gen_random_uuid(), 'somebody else', interval '1 day',
        nextval('leasehold.locks_fence_seq'), clock_timestamp(), clock_timestamp() + interval '1 day'
    from generate_series(1, $1) as i";
const CYCLERS: usize = 128;
const SNAPSHOT_TASKS: usize = 8;
