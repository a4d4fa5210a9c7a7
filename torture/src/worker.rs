//! A worker that uses the crate: acquires, believes, writes, releases, in every style there is.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, Lease, LossCause, Release};
use tokio::time::{sleep, timeout};

use crate::client::Process;
use crate::clock::now;
use crate::dice::Dice;
use crate::write::{Answer, Writer};

/// How one turn goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Waits,
    Tries,
    WaitsBriefly,
    /// Long enough for many renewals.
    HoldsLong,
    /// Without renewal, and asks again and again whether it still holds.
    Watches,
    /// Without renewal, its transaction longer than its lease.
    Overstays,
    /// Its acquire is dropped under way.
    Drops,
}

pub async fn run(process: Arc<Process>, worker: u64, mut dice: Dice) {
    while !process.is_stopped() {
        turn(&process, worker, &mut dice).await;
        sleep(Duration::from_millis(dice.between(0, 15))).await;
    }
}

async fn turn(process: &Process, worker: u64, dice: &mut Dice) {
    let (id, mut name) = (process.id(worker), process.name(dice));
    let style = match dice.between(0, 99) {
        0..40 => Style::Waits,
        40..62 => Style::Tries,
        62..72 => Style::WaitsBriefly,
        72..75 => Style::HoldsLong,
        75..80 => Style::Watches,
        80..92 => Style::Overstays,
        _ => Style::Drops,
    };
    if style == Style::Watches {
        // Where others wait for it to end.
        name = format!("hot-{}", dice.between(1, process.hot_names));
    }
    let note = |what: &str, rest: &str| process.journal.note(&id, what, rest);
    let wait_ms = match style {
        Style::Tries => 0,
        Style::WaitsBriefly => dice.between(50, 300),
        _ => 30_000,
    };
    let mut asked = process.leases.acquire(&name).holder(id.as_str());
    asked = match style {
        Style::Overstays => asked.ttl(Duration::from_millis(600)).manual_renewal(),
        Style::Watches => asked.ttl(Duration::from_millis(2000)).manual_renewal(),
        Style::HoldsLong => asked.ttl(Duration::from_millis(750)),
        _ => asked,
    };
    note("acquire", &format!("{name} {wait_ms}"));
    let patience = Duration::from_millis(match style {
        Style::Drops => dice.between(0, 40),
        _ => 60_000,
    });
    let acquiring = async {
        match wait_ms {
            0 => asked.try_acquire().await,
            _ => asked.wait_at_most(Duration::from_millis(wait_ms)).await.map(Some),
        }
    };
    let answer = tokio::select! {
        answer = timeout(patience, acquiring) => answer,
        () = process.stop() => return note("refused", "stopped"),
    };
    let lease = match answer {
        Err(_) => return note("refused", "dropped"),
        Ok(Ok(None)) => return note("refused", "held"),
        Ok(Ok(Some(lease))) => lease,
        Ok(Err(error)) => {
            note("refused", kind(&error));
            // The client itself does not wait after an error.
            return sleep(Duration::from_millis(50)).await;
        }
    };
    let token = i64::from(lease.fencing_token());
    note("granted", &token.to_string());
    let mut writer = Writer::new(process, &id, &name, token);
    match style {
        Style::Overstays => overstay(process, &lease, &mut writer, dice).await,
        _ => {
            let hold_ms = match style {
                Style::HoldsLong | Style::Watches => dice.between(300, 1500),
                _ => dice.between(0, 12),
            };
            let writes = if style == Style::Watches { 0 } else { 60 };
            hold(process, &lease, &mut writer, (hold_ms, writes), dice).await;
        }
    }
    if dice.percent(5) {
        // Told by nobody but its drop.
        note("release", "");
        drop(lease);
        return;
    }
    note("release", "");
    let answer = match lease.release().await {
        Ok(Release::Released) => "released",
        Ok(Release::NotOwner) => "not_owner",
        Ok(_) => "unknown",
        Err(_) => "failed",
    };
    note("released", answer);
    if answer == "released" && dice.percent(15) {
        writer.inline(None).await;
    }
}

/// Holds it for so long, is asked whether it believes, and writes, so often of a hundred times, what it read plus one.
async fn hold(
    process: &Process,
    lease: &Lease,
    writer: &mut Writer<'_>,
    (hold_ms, writes): (u64, u64),
    dice: &mut Dice,
) {
    let until = now() + hold_ms as i64 * 1000;
    loop {
        if !believe(process, lease, writer.id).await {
            return;
        }
        // After an outcome that is not known its reading may be old: no further write.
        if dice.percent(writes) && begin_and_write(process, lease, writer, None).await != Some(Answer::Yes) {
            return;
        }
        if now() >= until {
            return;
        }
        sleep(Duration::from_millis(dice.between(2, 40))).await;
    }
}

/// Notes whether it still believes. The moment noted lies before the question, so it believed then too.
async fn believe(process: &Process, lease: &Lease, id: &str) -> bool {
    let at = now();
    if lease.is_held() {
        process.journal.note_at(at, id, "believes", "");
        return true;
    }
    if let Ok(loss) = timeout(Duration::from_millis(100), lease.lost()).await {
        process.journal.note(id, "lost", &format!("{:?}", loss.cause));
    }
    false
}

/// Reads, is in a transaction for longer than the lease lasts, and writes; then once more with what it has left, and
/// without the fence.
async fn overstay(process: &Process, lease: &Lease, writer: &mut Writer<'_>, dice: &mut Dice) {
    let pause = Duration::from_millis(dice.between(500, 1100));
    believe(process, lease, writer.id).await;
    let control = writer.read_control().await;
    begin_and_write(process, lease, writer, Some(pause)).await;
    let at = now();
    if let Some(control) = control {
        writer.write_control(control).await;
    }
    if lease.is_held() {
        process.journal.note_at(at, writer.id, "believes", "");
    } else if let Ok(loss) = timeout(Duration::from_millis(100), lease.lost()).await {
        process.journal.note(writer.id, "lost", &format!("{:?}", loss.cause));
        // By then, most often, somebody else has the name.
        for _ in 0..3 {
            sleep(Duration::from_millis(dice.between(0, 30))).await;
            writer.inline(None).await;
        }
    }
}

async fn begin_and_write(
    process: &Process,
    lease: &Lease,
    writer: &mut Writer<'_>,
    pause: Option<Duration>,
) -> Option<Answer> {
    let read = writer.read().await?;
    writer.number += 1;
    let number = writer.number;
    process.journal.note(writer.id, "write", &number.to_string());
    let answer = match lease.begin(&process.pool).await {
        Ok(tx) => writer.finish(tx, read, pause).await,
        // Else the client knows by itself that the lease is over, and does not ask the database.
        Err(Error::Lost(loss)) if loss.cause == LossCause::Fenced => Answer::Fenced,
        Err(_) => Answer::Failed,
    };
    process
        .journal
        .note(writer.id, "wrote", &format!("{number} {}", answer.word()));
    Some(answer)
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::WaitTimedOut { .. } => "waited",
        Error::GrantedTooLate { .. } => "too_late",
        Error::Busy { .. } => "busy",
        Error::Unanswered { .. } => "unanswered",
        Error::ReadOnly { .. } => "read_only",
        Error::Database { .. } => "database",
        _ => "other",
    }
}
