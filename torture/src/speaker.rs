//! A worker that speaks SQL itself, by the rules, and then tries what it has no right to.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use tokio::time::{sleep, timeout};

use crate::client::Process;
use crate::dice::Dice;
use crate::write::Writer;

const PATIENCE: Duration = Duration::from_secs(4);

pub async fn run(process: Arc<Process>, worker: u64, mut dice: Dice) {
    while !process.is_stopped() {
        turn(&process, worker, &mut dice).await;
        sleep(Duration::from_millis(dice.between(5, 40))).await;
    }
}

async fn turn(process: &Process, worker: u64, dice: &mut Dice) {
    // One name is only ever tried for: without a line, whoever comes first has it.
    let name = match dice.percent(30) {
        true => "tried".to_owned(),
        false => process.name(dice),
    };
    let (id, owner) = (process.id(worker), dice.uuid());
    let note = |what: &str, rest: &str| process.journal.note(&id, what, rest);
    let probe =
        |what: &str, answer: Option<String>| note("probe", &format!("{what} {}", answer.unwrap_or("unknown".into())));

    note("acquire", &format!("{name} 0"));
    let asked = sqlx::query("select outcome, fencing_token from leasehold.acquire($1, $2::text::uuid, '300 ms', $3)")
        .bind(&name)
        .bind(&owner)
        .bind(&id)
        .fetch_one(&process.pool);
    let token: i64 = match timeout(PATIENCE, asked).await {
        Ok(Ok(row)) if row.get::<String, _>(0) == "granted" => row.get(1),
        Ok(Ok(row)) => {
            note("refused", row.get(0));
            // Whoever does not hold the name has no right to end it or to prolong it.
            let stranger = dice.uuid();
            if dice.percent(30) {
                note("release", "");
                probe("foreign_release", release(process, &name, &stranger).await);
                probe("foreign_renewal", renew(process, &name, &stranger).await);
            }
            return;
        }
        _ => return note("refused", "unknown"),
    };
    note("granted", &token.to_string());
    let mut writer = Writer::new(process, &id, &name, token);
    writer.inline(Some(&owner)).await;
    if dice.percent(50) {
        probe("renewal", renew(process, &name, &owner).await);
    }
    if dice.percent(25) {
        // Past its end: nothing may bring it back.
        sleep(Duration::from_millis(dice.between(310, 420))).await;
        probe("late_renewal", renew(process, &name, &owner).await);
        writer.inline(dice.percent(50).then_some(&*owner)).await;
    }
    note("release", "");
    let answer = release(process, &name, &owner).await;
    note("released", answer.as_deref().unwrap_or("unknown"));
    if answer.as_deref() == Some("released") {
        if dice.percent(30) {
            probe("second_release", release(process, &name, &owner).await);
        }
        if dice.percent(30) {
            probe("renewal_after_release", renew(process, &name, &owner).await);
        }
        if dice.percent(30) {
            writer.inline(None).await;
        }
    }
}

async fn release(process: &Process, name: &str, owner: &str) -> Option<String> {
    let asked = sqlx::query_scalar("select leasehold.release($1, $2::text::uuid)")
        .bind(name)
        .bind(owner)
        .fetch_one(&process.pool);
    timeout(PATIENCE, asked).await.ok()?.ok()
}

async fn renew(process: &Process, name: &str, owner: &str) -> Option<String> {
    let asked = sqlx::query_scalar(
        "select outcome from leasehold.renew(array[$1], array[$2::text::uuid], array[interval '300 ms'])",
    )
    .bind(name)
    .bind(owner)
    .fetch_optional(&process.pool);
    timeout(PATIENCE, asked).await.ok()?.ok()?
}
