//! `make handoff`: how a name goes from holder to holder, at length.
//!
//! Two runs and a look at what waiting costs, each with processes of their own on a PostgreSQL of their own, judged by the database's
//! record: a trigger writes down every waiter that leaves the line with the token that was granted.
//!
//! - turns: 4 processes × 16 waiters × 200 turns on one name.
//! - idle: 1,000 waiters of one client in line; what the application's pool, which the client shares,
//!   takes for `select 1` beside them, as a ratio to the same without them.
//! - ping-pong: more than 100,000 hand-offs between 2 processes, their heartbeat set to 30 s, so that a wake-up
//!   that is lost shows as a wait of seconds.
//!
//! A hand-off is counted when the next holder was waiting before the name was let go; it lasts from
//! just before the release until the next one has its lease. Statements are those of acquiring,
//! releasing and leaving; heartbeats, one a second for each process, are told apart. The last line is
//! a JSON object of the totals. `HANDOFF_QUICK=1` runs a fiftieth of it.

#![allow(clippy::print_stdout, reason = "its figures are what it is for")]

use std::env;
use std::error::Error;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::LeaseClient;
use leasehold_testkit::Cluster;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::process::Command;
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const NAME: &str = "handoff";

#[derive(Debug, Clone, Copy)]
struct Run {
    title: &'static str,
    processes: usize,
    waiters: usize,
    turns: usize,
    heartbeat_every: Duration,
}

/// One turn: nanoseconds since 1970, by the clock that all processes of a machine share.
#[derive(Debug)]
struct Turn {
    token: i64,
    asked_at: i64,
    granted_at: i64,
    released_at: i64,
}

#[derive(Debug, Default)]
struct Figures {
    /// Milliseconds, one for each hand-off.
    latencies: Vec<f64>,
    inversions: i64,
    statements: i64,
    notifications: i64,
    heartbeats: i64,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [role, waiters, turns, heartbeat] = &arguments[..]
        && role == "--process"
    {
        let heartbeat_every = Duration::from_secs(heartbeat.parse()?);
        return take_turns(waiters.parse()?, turns.parse()?, heartbeat_every).await;
    }
    let part = if env::var_os("HANDOFF_QUICK").is_some() { 50 } else { 1 };
    let runs = [
        Run {
            title: "turns: 4 processes x 16 waiters",
            processes: 4,
            waiters: 16,
            turns: 200 / part,
            heartbeat_every: Duration::from_secs(1),
        },
        Run {
            title: "ping-pong: 2 processes x 1 waiter, heartbeat 30 s",
            processes: 2,
            waiters: 1,
            turns: 51_500 / part,
            heartbeat_every: Duration::from_secs(30),
        },
    ];
    idle_waiters().await?;
    let mut total = Figures::default();
    for run in runs {
        let figures = measure(run).await?;
        println!(
            "{}\n    {}, {} heartbeats",
            run.title,
            figures.json(),
            figures.heartbeats
        );
        total.add(figures);
    }
    println!("{}", total.json());
    if total.over_1s() + total.inversions as usize > 0 {
        return Err("a wait above 1 s, or a turn out of order".into());
    }
    Ok(())
}

async fn measure(run: Run) -> Outcome<Figures> {
    let cluster = Cluster::builder().setting("track_functions", "pl").try_start().await?;
    let pool = PgPoolOptions::new().max_connections(1).connect(&cluster.url()).await?;
    leasehold::migrate(&pool).await?;
    sqlx::raw_sql(RECORD).execute(&pool).await?;

    let mut processes = Vec::new();
    for _ in 0..run.processes {
        let numbers = [run.waiters, run.turns, run.heartbeat_every.as_secs() as usize].map(|n| n.to_string());
        let child = Command::new(env::current_exe()?)
            .arg("--process")
            .args(numbers)
            .env("DATABASE_URL", cluster.url())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        processes.push(tokio::spawn(child.wait_with_output()));
    }
    let mut turns: Vec<Turn> = Vec::new();
    for process in processes {
        let output = process.await??;
        if !output.status.success() {
            return Err(format!("a process ended with {}", output.status).into());
        }
        for line in String::from_utf8(output.stdout)?.lines() {
            turns.push(Turn::read(line)?);
        }
    }
    turns.sort_by_key(|turn| turn.token);
    if turns.len() != run.processes * run.waiters * run.turns {
        return Err(format!("{} turns were taken", turns.len()).into());
    }

    let overlaps = turns
        .windows(2)
        .filter(|pair| pair[1].granted_at < pair[0].released_at)
        .count();
    let (recorded, out_of_order): (i64, i64) = sqlx::query_as(OUT_OF_ORDER).fetch_one(&pool).await?;
    let (statements, notifications, heartbeats) = sqlx::query_as(CALLS).fetch_one(&pool).await?;
    let latencies: Vec<f64> = turns
        .windows(2)
        .filter(|pair| pair[1].asked_at < pair[0].released_at)
        .map(|pair| (pair[1].granted_at - pair[0].released_at) as f64 / 1e6)
        .collect();
    if (recorded as usize) < latencies.len() * 9 / 10 {
        return Err(format!("only {recorded} grants from the line for {} hand-offs", latencies.len()).into());
    }
    Ok(Figures {
        latencies,
        inversions: overlaps as i64 + out_of_order,
        statements,
        notifications,
        heartbeats,
    })
}

async fn idle_waiters() -> Outcome<()> {
    let cluster = Cluster::builder().setting("track_functions", "pl").try_start().await?;
    let pool = PgPoolOptions::new().max_connections(2).connect(&cluster.url()).await?;
    leasehold::migrate(&pool).await?;
    let leases = LeaseClient::new(pool.clone());
    let held = leases.acquire(NAME).await?;
    let without = median_of_select_1(&pool).await?;
    let waiters: Vec<_> = (0..1000)
        .map(|_| tokio::spawn(leases.acquire(NAME).into_future()))
        .collect();
    let in_line = "select count(*) from leasehold.waiters";
    while sqlx::query_scalar::<_, i64>(in_line).fetch_one(&pool).await? < 1000 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let beside = median_of_select_1(&pool).await?;
    let others =
        "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";
    let connections: i64 = sqlx::query_scalar(others).fetch_one(&pool).await?;
    println!(
        "idle: 1,000 waiters\n    select 1 through the pool takes {:.2} of what it takes without them; \
         {connections} connections beside the one that counts, {} of them the pool's",
        beside / without,
        pool.size() - 1
    );
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    held.release().await?;
    leases.close().await;
    Ok(())
}

/// Microseconds.
async fn median_of_select_1(pool: &PgPool) -> Outcome<f64> {
    let mut took = Vec::new();
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while std::time::Instant::now() < until {
        let asked_at = std::time::Instant::now();
        sqlx::query("select 1").execute(pool).await?;
        took.push(asked_at.elapsed().as_secs_f64() * 1e6);
    }
    took.sort_by(f64::total_cmp);
    Ok(took[took.len() / 2])
}

/// One process: so many waiters, each with so many turns.
async fn take_turns(waiters: usize, turns: usize, heartbeat_every: Duration) -> Outcome<()> {
    let pool = PgPool::connect_lazy(&env::var("DATABASE_URL")?)?;
    let leases = LeaseClient::builder(pool).heartbeat_every(heartbeat_every).build()?;
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let leases = leases.clone();
        tasks.spawn(async move {
            let mut taken = Vec::with_capacity(turns);
            for _ in 0..turns {
                let asked_at = now();
                let lease = leases.acquire(NAME).await?;
                let granted_at = now();
                let (token, released_at) = (lease.fencing_token().into(), now());
                lease.release().await?;
                taken.push(Turn {
                    token,
                    asked_at,
                    granted_at,
                    released_at,
                });
            }
            Ok::<_, leasehold::Error>(taken)
        });
    }
    while let Some(taken) = tasks.join_next().await {
        for Turn {
            token,
            asked_at,
            granted_at,
            released_at,
        } in taken??
        {
            println!("{token} {asked_at} {granted_at} {released_at}");
        }
    }
    leases.close().await;
    Ok(())
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the clock is past 1970").as_nanos() as i64
}

impl Turn {
    fn read(line: &str) -> Outcome<Self> {
        let numbers: Vec<i64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [token, asked_at, granted_at, released_at] = numbers[..] else {
            return Err(format!("not a turn: {line:?}").into());
        };
        Ok(Self {
            token,
            asked_at,
            granted_at,
            released_at,
        })
    }
}

impl Figures {
    fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.inversions += other.inversions;
        self.statements += other.statements;
        self.notifications += other.notifications;
    }

    fn over_1s(&self) -> usize {
        self.latencies.iter().filter(|ms| **ms > 1000.0).count()
    }

    fn json(&self) -> String {
        let mut sorted = self.latencies.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            sorted
                .get((sorted.len() as f64 * share) as usize)
                .copied()
                .unwrap_or(0.0)
        };
        let each = |count: i64| count as f64 / sorted.len().max(1) as f64;
        format!(
            "{{\"handoffs\":{}, \"over_1s\":{}, \"inversions\":{}, \"statements_per_handoff\":{:.3}, \
             \"notifications_per_handoff\":{:.3}, \"p50_ms\":{:.3}, \"p99_ms\":{:.3}}}",
            sorted.len(),
            self.over_1s(),
            self.inversions,
            each(self.statements),
            each(self.notifications),
            at(0.5),
            at(0.99),
        )
    }
}

const RECORD: &str = "
    create table record (number bigint generated always as identity, ticket bigint, fence bigint);
    create function write_down() returns trigger language plpgsql as $$
    begin
        insert into public.record (ticket, fence) select old.ticket, l.fence from leasehold.locks as l where l.name = old.name;
        return null;
    end
    $$;
    create trigger write_down after delete on leasehold.waiters for each row execute function write_down();";

/// Grants from the line whose ticket is below that of an earlier one, or whose token is.
const OUT_OF_ORDER: &str = "
    select count(*), count(*) filter (where r.ticket < r.highest_ticket or r.fence <= r.highest_fence)
    from (
        select ticket, fence, max(ticket) over before as highest_ticket, max(fence) over before as highest_fence
        from record
        window before as (order by number rows between unbounded preceding and 1 preceding)
    ) as r";

/// Statements of the lanes, one function call in each, notifications and heartbeats.
const CALLS: &str = "
    select
        coalesce(sum(calls) filter (where funcname in
            ('acquire', 'acquire_many', 'renew', 'release', 'release_many', 'leave')), 0)::bigint,
        coalesce(sum(calls) filter (where funcname = 'wake'), 0)::bigint,
        coalesce(sum(calls) filter (where funcname = 'heartbeat'), 0)::bigint
    from pg_stat_user_functions
    where schemaname = 'leasehold'";
