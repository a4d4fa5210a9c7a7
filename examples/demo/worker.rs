//! One worker: a process of its own that leases the document and publishes a text.
//!
//! [`run`] is the child. It does what each line of its standard input says and answers with one line
//! on its standard output. [`Worker`] is the parent's end of these pipes.

use std::env;
use std::process::Stdio;
use std::time::Duration;

use leasehold::{Lease, LeaseClient};
use sqlx::PgPool;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::stage::Stage;
use crate::{Outcome, expect};

/// How long the database honours a worker's lease without a renewal.
pub const TTL: Duration = Duration::from_secs(2);

/// Conditional on the lease: the database checks the token where it writes.
pub const FENCED: &str = "update document set body = $1, fence = leasehold.fence($2, $3) where id = $4";

/// What one writes who has checked the lock a moment ago.
pub const UNFENCED: &str = "update document set body = $1 where id = $2";

/// The child's side.
pub async fn run(label: &str) -> Outcome<()> {
    let stage = Stage::from_env()?;
    let pool = stage.connect().await?;
    let leases = LeaseClient::new(pool.clone());
    let mut lease = None;

    // Waiting for a line blocks this thread alone; leases are renewed on the runtime's others.
    for order in std::io::stdin().lines() {
        let answer = match (order?.as_str(), &lease) {
            ("try", None) => match leases.try_acquire(&stage.lock_name).await? {
                Some(_) => "granted".to_owned(),
                None => "held".to_owned(),
            },
            ("acquire", None) => {
                let granted = leases.acquire(&stage.lock_name).ttl(TTL).wait_at_most(PATIENCE).await?;
                lease.insert(granted).fencing_token().to_string()
            }
            ("check", Some(lease)) => lease.is_held().to_string(),
            ("publish fenced", Some(lease)) => publish_fenced(&pool, &stage, label, lease).await?,
            ("publish unfenced", Some(_)) => publish_unfenced(&pool, &stage, label).await?,
            ("loss", Some(lease)) => timeout(PATIENCE, lease.lost()).await?.cause.to_string(),
            (order, _) => return Err(format!("worker {label} cannot do this now: {order}").into()),
        };
        println!("{answer}");
    }

    leases.close().await;
    Ok(())
}

async fn publish_fenced(pool: &PgPool, stage: &Stage, label: &str, lease: &Lease) -> Outcome<String> {
    let written = sqlx::query(FENCED)
        .bind(text_by(label))
        .bind(&stage.lock_name)
        .bind(lease.fencing_token())
        .bind(stage.document)
        .execute(pool)
        .await;
    match written {
        Err(error) if leasehold::is_fenced(&error) => {
            let refusal = error.as_database_error().expect("the database refuses");
            Ok(format!("refused: {}", refusal.message()))
        }
        other => Ok(format!("written {}", other?.rows_affected())),
    }
}

async fn publish_unfenced(pool: &PgPool, stage: &Stage, label: &str) -> Outcome<String> {
    let written = sqlx::query(UNFENCED)
        .bind(text_by(label))
        .bind(stage.document)
        .execute(pool)
        .await?;
    Ok(format!("written {}", written.rows_affected()))
}

/// What a worker publishes.
pub fn text_by(label: &str) -> String {
    match label {
        "A" => "second draft, by A".to_owned(),
        _ => format!("final text, by {label}"),
    }
}

/// The parent's side.
pub struct Worker {
    label: &'static str,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub fn start(label: &'static str, stage: &Stage) -> Outcome<Self> {
        let mut child = Command::new(env::current_exe()?)
            .arg(label)
            .envs(stage.to_env())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().expect("stdin is piped");
        let answers = child.stdout.take().expect("stdout is piped");
        Ok(Self {
            label,
            child,
            orders,
            answers: BufReader::new(answers).lines(),
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("a worker is waited for when it is finished")
    }

    /// Gives an order, which waits in the pipe while the worker stands still.
    pub async fn tell(&mut self, order: &str) -> Outcome<()> {
        self.orders.write_all(format!("{order}\n").as_bytes()).await?;
        Ok(())
    }

    pub async fn hear(&mut self) -> Outcome<String> {
        let heard = timeout(2 * PATIENCE, self.answers.next_line()).await;
        let line = heard.map_err(|_| format!("worker {} gives no answer", self.label))??;
        line.ok_or_else(|| format!("worker {} has ended", self.label).into())
    }

    pub async fn ask(&mut self, order: &str) -> Outcome<String> {
        self.tell(order).await?;
        self.hear().await
    }

    /// Asks, and accepts one answer only.
    pub async fn must(&mut self, order: &str, expected: &str) -> Outcome<()> {
        let answer = self.ask(order).await?;
        let label = self.label;
        expect(answer == expected, || {
            format!("worker {label} answers {order:?} with {answer:?}")
        })
    }

    /// Has the worker acquire the lease; returns the fencing token.
    pub async fn acquire(&mut self) -> Outcome<i64> {
        Ok(self.ask("acquire").await?.parse()?)
    }

    /// Lets the worker end, which closes its client and so releases what it holds.
    pub async fn finish(self) -> Outcome<()> {
        let Self {
            label,
            mut child,
            orders,
            ..
        } = self;
        drop(orders);
        let status = timeout(PATIENCE, child.wait()).await??;
        expect(status.success(), || format!("worker {label} ended with {status}"))
    }
}

/// Longer than anything in the story takes.
const PATIENCE: Duration = Duration::from_secs(30);
