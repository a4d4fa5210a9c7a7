//! The proof: three replicas, processes of their own, asked over HTTP who leads.

use std::time::{Duration, Instant};

use leasehold_testkit::{Player, Stage, try_eventually};
use sqlx::PgPool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Outcome;
use crate::service::TTL;

/// How a replica's first line begins.
pub const LISTENS: &str = "listens on http://";

/// Within this a name that was let go of has a new leader. Of a ttl at least two thirds are left at any time,
/// which is longer.
const SOON: Duration = Duration::from_millis(1500);

struct Replica {
    process: Player,
    address: String,
}

pub async fn prove(stage: &Stage) -> Outcome<()> {
    let name = format!("{}:scheduler", stage.schema());
    let mut replicas = Vec::new();
    for number in 1..=3 {
        let label = format!("replica {number}");
        let mut process = Player::start(stage, &label, &["--replica", &name])?;
        let address = process.hear(LISTENS).await?;
        replicas.push(Replica { process, address });
    }
    let pool = PgPool::connect(stage.url()).await?;
    let first = take_leader(&mut replicas).await?;
    first.schedules(&pool).await?;
    for standby in &replicas {
        standby.is_ready().await?;
    }

    let told_at = Instant::now();
    let ended = tokio::spawn(first.process.term());
    let second = take_leader(&mut replicas).await?;
    let after_term = told_at.elapsed();
    ended.await??;
    println!("SIGTERM: the next one leads after {after_term:.0?}");
    second.schedules(&pool).await?;
    expect(
        after_term < SOON,
        "a standby leads at once when the leader is told to end",
    )?;

    let killed_at = Instant::now();
    second.process.kill().await?;
    let third = take_leader(&mut replicas).await?;
    let after_kill = killed_at.elapsed();
    println!("SIGKILL: the next one leads after {after_kill:.1?}, with a ttl of {TTL:?}");
    expect(after_kill < TTL + SOON, "a standby leads when the leader's ttl is over")?;
    third.schedules(&pool).await?;
    third.is_ready().await?;
    third.process.term().await?;

    let fences =
        "select count(*) from (select fence, lag(fence) over (order by number) as previous from scheduled) as s
        where fence < previous";
    let stale: i64 = sqlx::query_scalar(fences).fetch_one(&pool).await?;
    pool.close().await;
    expect(stale == 0, "nobody has scheduled after the next one had")
}

/// Waits until one of the replicas leads, looks whether the others do not, and takes it out of them.
async fn take_leader(replicas: &mut Vec<Replica>) -> Outcome<Replica> {
    let elected = try_eventually(TTL * 5, "one leads", async || {
        let mut leaders = Vec::new();
        for (number, replica) in replicas.iter().enumerate() {
            if replica.health().await?.starts_with("leader") {
                leaders.push(number);
            }
        }
        match leaders[..] {
            [] => Err("nobody leads".to_owned()),
            [leader] => Ok(Ok(leader)),
            _ => Ok(Err(format!("{} lead", leaders.len()))),
        }
    });
    let leader = elected.await??;
    let leader = replicas.swap_remove(leader);
    println!("{} leads", leader.process.label());
    Ok(leader)
}

impl Replica {
    async fn health(&self) -> Result<String, String> {
        let answer = self.get("/healthz").await.map_err(|error| error.to_string())?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
            _ => Err(answer),
        }
    }

    /// Waits until it has scheduled something, as the leader it says it is.
    async fn schedules(&self, pool: &PgPool) -> Outcome<()> {
        let health = self.health().await?;
        let token: i64 = health.trim_start_matches("leader").trim().parse()?;
        let scheduled = try_eventually(TTL, "the leader has scheduled something", async || {
            let scheduled = "select exists (select from scheduled where fence = $1)";
            sqlx::query_scalar::<_, bool>(scheduled)
                .bind(token)
                .fetch_one(pool)
                .await
                .is_ok_and(|found| found)
        });
        Ok(scheduled.await?)
    }

    async fn is_ready(&self) -> Outcome<()> {
        let answer = self.get("/readyz").await?;
        expect(answer.starts_with("HTTP/1.1 200 "), "a replica is ready, leader or not")
    }

    /// A request by hand: one needs no client library to ask for a page.
    async fn get(&self, path: &str) -> Outcome<String> {
        let mut connection = TcpStream::connect(&self.address).await?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            self.address
        );
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

fn expect(holds: bool, what: &str) -> Outcome<()> {
    match holds {
        true => Ok(()),
        false => Err(format!("this did not hold: {what}").into()),
    }
}
