//! The part to copy: a job that is due every night, on as many replicas as there are.

use std::process;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Lease, LeaseClient};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::Outcome;

/// What is due, and when.
pub struct Job {
    pub name: String,
    /// Due at every multiple of this since 1970; with a day, at midnight UTC.
    pub every: Duration,
}

/// Runs the job in each night in which this replica is the first, until `told_to_end`. A run that is under
/// way then is carried to its end. `clock` is `SystemTime::now` wherever nothing is to be proven.
pub async fn run(
    job: &Job,
    leases: &LeaseClient,
    pool: &PgPool,
    clock: impl Fn() -> SystemTime,
    told_to_end: impl Future<Output = ()>,
) {
    tokio::pin!(told_to_end);
    let mut night = 0;
    loop {
        let (next, starts_in) = job.next(night, clock());
        night = next;
        tokio::select! {
            () = &mut told_to_end => return,
            () = sleep(starts_in) => {}
        }
        match run_unless_somebody_does(job, leases, pool, night).await {
            Ok(true) => println!("night {night}: ran the job"),
            Ok(false) => println!("night {night}: {TAKEN}"),
            // The next night comes all the same, and this replica may be needed then.
            Err(error) => eprintln!("night {night}: {error}"),
        }
    }
}

async fn run_unless_somebody_does(job: &Job, leases: &LeaseClient, pool: &PgPool, night: u64) -> Outcome<bool> {
    // More than the clocks can differ, or whoever is late would find the name free and run the job again;
    // less than the time to the next night by as much. Half of it leaves the most to both.
    let ask = leases.acquire(&job.name).hold_at_least(job.every / 2);
    let Some(lease) = ask.try_acquire().await? else {
        return Ok(false);
    };
    // From here on the night is this replica's. The name stays taken when the job fails, too, and is free
    // early only if the process dies: after the ttl.
    let report = lease.run_until_lost(compile(night)).await?;
    write_down(&lease, pool, night, &report).await?;
    lease.release().await?;
    Ok(true)
}

/// The job's own work, which may be anything.
async fn compile(night: u64) -> String {
    sleep(Duration::from_millis(20)).await;
    format!("what happened in night {night}")
}

/// Void if the lease has passed on, as when this process was stopped for longer than the ttl.
async fn write_down(lease: &Lease, pool: &PgPool, night: u64, report: &str) -> Outcome<()> {
    let mut tx = lease.begin(pool).await?;
    sqlx::query("insert into report (night, body, pid, fence) values ($1, $2, $3, $4)")
        .bind(night as i64)
        .bind(report)
        .bind(i64::from(process::id()))
        .bind(lease.fencing_token())
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(())
}

impl Job {
    /// The night that begins next, and how long it is until then. Never `last` again, though the clock was
    /// set back.
    fn next(&self, last: u64, now: SystemTime) -> (u64, Duration) {
        let since_1970 = now.duration_since(UNIX_EPOCH).expect("the clock is past 1970");
        let (now, every) = (since_1970.as_millis() as u64, self.every.as_millis() as u64);
        let night = (now / every + 1).max(last + 1);
        (night, Duration::from_millis(night * every - now))
    }
}

pub const TAKEN: &str = "somebody else has it";
