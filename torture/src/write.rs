//! Writes: fenced ones to a register that numbers them, and unfenced ones to a register beside it.

use std::time::Duration;

use leasehold::is_fenced;
use sqlx::PgTransaction;
use tokio::time::timeout;

use crate::client::Process;

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Yes,
    Fenced,
    Failed,
    Unknown,
}

impl Answer {
    pub fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Fenced => "fenced",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// The writes of one grant.
#[derive(Debug)]
pub struct Writer<'a> {
    process: &'a Process,
    pub id: &'a str,
    name: &'a str,
    token: i64,
    pub number: i64,
    /// An outcome is not known: a reading may be older than it.
    is_doubtful: bool,
}

/// A statement without an answer for so long has an outcome that is not known.
const PATIENCE: Duration = Duration::from_secs(4);

impl<'a> Writer<'a> {
    pub fn new(process: &'a Process, id: &'a str, name: &'a str, token: i64) -> Self {
        Self {
            process,
            id,
            name,
            token,
            number: 0,
            is_doubtful: false,
        }
    }

    /// The value that the next write goes on from.
    pub async fn read(&self) -> Option<i64> {
        if self.is_doubtful {
            return None;
        }
        self.value("select coalesce((select value from torture.registers where name = $1), 0)")
            .await
    }

    pub async fn read_control(&self) -> Option<i64> {
        self.value("select value from torture.control where $1 <> ''").await
    }

    /// Without the fence: writes what it read plus one, whatever happened meanwhile.
    pub async fn write_control(&self, read: i64) {
        let written = sqlx::query("update torture.control set number = number + 1, value = $1").bind(read + 1);
        if let Ok(Ok(_)) = timeout(PATIENCE, written.execute(&self.process.pool)).await {
            self.process.journal.note(self.id, "control", "");
        }
    }

    async fn value(&self, sql: &'static str) -> Option<i64> {
        let read = sqlx::query_scalar(sql).bind(self.name);
        timeout(PATIENCE, read.fetch_one(&self.process.pool)).await.ok()?.ok()
    }

    /// The rest of a transaction that has passed the fence.
    pub async fn finish(&mut self, mut tx: PgTransaction<'static>, read: i64, pause: Option<Duration>) -> Answer {
        let statements = async {
            if let Some(pause) = pause {
                // On the server, which would end a transaction that is idle for longer than the lease.
                sqlx::query("select pg_sleep($1)")
                    .bind(pause.as_secs_f64())
                    .execute(&mut *tx)
                    .await?;
            }
            sqlx::query("select torture.write($1, $2, $3, $4, $5)")
                .bind(self.name)
                .bind(self.token)
                .bind(self.id)
                .bind(self.number)
                .bind(read + 1)
                .execute(&mut *tx)
                .await
        };
        match timeout(PATIENCE, statements).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) if is_fenced(&error) => return Answer::Fenced,
            Ok(Err(_)) | Err(_) => return Answer::Failed,
        }
        match timeout(PATIENCE, tx.commit()).await {
            Ok(Ok(())) => Answer::Yes,
            _ => {
                self.is_doubtful = true;
                Answer::Unknown
            }
        }
    }

    /// Checks and writes in one statement, as a client in any language may.
    pub async fn inline(&mut self, owner: Option<&str>) -> Option<Answer> {
        let read = self.read().await?;
        self.number += 1;
        self.process.journal.note(self.id, "write", &self.number.to_string());
        let written = sqlx::query("select torture.write($1, leasehold.fence($1, $2, $6::text::uuid), $3, $4, $5)")
            .bind(self.name)
            .bind(self.token)
            .bind(self.id)
            .bind(self.number)
            .bind(read + 1)
            .bind(owner);
        let answer = match timeout(PATIENCE, written.execute(&self.process.pool)).await {
            Ok(Ok(_)) => Answer::Yes,
            Ok(Err(error)) if is_fenced(&error) => Answer::Fenced,
            _ => Answer::Unknown,
        };
        self.is_doubtful |= answer == Answer::Unknown;
        self.process
            .journal
            .note(self.id, "wrote", &format!("{} {}", self.number, answer.word()));
        Some(answer)
    }
}
