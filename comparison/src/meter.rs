//! Processor time and statements, as the kernel and the server count them.

use std::fs;
use std::time::{Duration, Instant};

use leasehold_testkit::Cluster;
use rustix::time::{ClockId, clock_gettime};
use sqlx::PgConnection;

use crate::peer::Outcome;

/// A reading of all counters, to be compared with a later one.
pub struct Meter {
    read_at: Instant,
    client: Duration,
    server: Duration,
    statements: i64,
}

/// What a second cost, on average between two readings.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    pub statements: f64,
    /// Per cent of one core.
    pub client_cpu: f64,
    pub server_cpu: f64,
}

impl Meter {
    /// The server counts statements when `pg_stat_statements` is there; the session's own are left out.
    pub async fn read(cluster: &Cluster, session: &mut PgConnection) -> Outcome<Self> {
        let statements = statements(session).await?;
        Ok(Self {
            read_at: Instant::now(),
            client: client_cpu(),
            server: server_cpu(cluster),
            statements,
        })
    }

    pub async fn cost_since(&self, cluster: &Cluster, session: &mut PgConnection) -> Outcome<Cost> {
        // The processor first: the question after the statements costs some.
        let (client, server) = (client_cpu(), server_cpu(cluster));
        let seconds = self.read_at.elapsed().as_secs_f64();
        let statements = statements(session).await?;
        let per_cent = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() / seconds * 100.0;
        Ok(Cost {
            statements: (statements - self.statements) as f64 / seconds,
            client_cpu: per_cent(client, self.client),
            server_cpu: per_cent(server, self.server),
        })
    }
}

impl Cost {
    pub fn cpu(&self) -> f64 {
        self.client_cpu + self.server_cpu
    }
}

/// Processor time of this process and of a server so far.
pub fn busy(cluster: &Cluster) -> Duration {
    client_cpu() + server_cpu(cluster)
}

/// Top-level statements since the extension was made, of every session but those that ask for them;
/// heartbeats and sweeps, whose number depends on time alone, left out.
pub async fn statements_of_work(session: &mut PgConnection) -> Outcome<i64> {
    let heartbeats = sqlx::query_scalar::<_, i64>(HEARTBEATS)
        .fetch_one(&mut *session)
        .await?;
    Ok(statements(session).await? - heartbeats)
}

/// Top-level statements since the extension was made, of every session but those that ask for them.
pub async fn statements(session: &mut PgConnection) -> Outcome<i64> {
    Ok(sqlx::query_scalar(STATEMENTS).fetch_one(session).await?)
}

/// How often `function` was called.
pub async fn calls(session: &mut PgConnection, function: &str) -> Outcome<i64> {
    Ok(sqlx::query_scalar(CALLS).bind(function).fetch_one(session).await?)
}

/// Of this process, all threads.
fn client_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(spent.tv_sec).unwrap_or(0),
        u32::try_from(spent.tv_nsec).unwrap_or(0),
    )
}

/// Of the server's processes, those that have ended among them.
fn server_cpu(cluster: &Cluster) -> Duration {
    let running: Duration = cluster.processes("").into_iter().filter_map(run_time).sum();
    running + reaped(cluster.server_pid()).unwrap_or_default()
}

/// Nanoseconds on a processor: a server process has one thread.
fn run_time(pid: u32) -> Option<Duration> {
    let schedstat = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    Some(Duration::from_nanos(schedstat.split_whitespace().next()?.parse().ok()?))
}

/// What the ended children of a process had used.
fn reaped(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; the fields after it are counted from the state.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks(13)? + ticks(14)?) * 1000 / TICKS_A_SECOND))
}

/// What Linux counts in for programs, on every architecture it still runs on.
const TICKS_A_SECOND: u64 = 100;

const STATEMENTS: &str = "
    select coalesce(sum(calls), 0)::bigint from pg_stat_statements
    where toplevel and query not like '%pg_stat%' and dbid = (select oid from pg_database where datname = current_database())";

const HEARTBEATS: &str = "
    select coalesce(sum(calls), 0)::bigint from pg_stat_statements
    where toplevel and query not like '%pg_stat%' and (query like '%leasehold.heartbeat(%' or query like '%leasehold.sweep(%')";

const CALLS: &str = "
    select coalesce(sum(calls), 0)::bigint from pg_stat_user_functions
    where schemaname = 'leasehold' and funcname = $1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_charged_for_what_it_computes_and_not_for_sleeping() {
        let before = client_cpu();
        std::thread::sleep(Duration::from_millis(20));
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            std::hint::spin_loop();
        }

        // Other tests run in this process, so there is no upper bound; a busy machine lends little.
        assert!(client_cpu() - before > Duration::from_millis(5));
    }

    #[test]
    fn process_tells_its_run_time_and_that_of_its_ended_children() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"])
            .spawn()
            .unwrap();
        assert!(run_time(child.id()).is_some());
        child.wait().unwrap();

        assert!(reaped(std::process::id()).unwrap() > Duration::ZERO);
    }
}
