//! A paused worker's stale write: refused with the fence, accepted without it.
//!
//! Worker A leases a document, sees that it holds the lease, and is stopped just before it publishes.
//! The lease runs out, worker B is granted it and publishes. Then A goes on, and publishes what it
//! had in hand. The workers are processes of their own and the pause is a real SIGSTOP. Every step is
//! asserted: the demo ends with an error when anything else happens.
//!
//! It runs on the database of `DATABASE_URL`, or on a throw-away cluster when that is not set.

#![allow(clippy::print_stdout, reason = "a demo is there to be read")]
#![allow(clippy::print_stderr, reason = "and so is what went wrong with it")]
#![allow(unreachable_pub, reason = "an example has no outside")]

mod stage;
mod timeline;
mod worker;

use std::env;
use std::process::ExitCode;

use leasehold_testkit::{Cluster, signals};
use sqlx::PgPool;

use stage::Stage;
use timeline::{Mark, Paint, Timeline};
use worker::{FENCED, TTL, UNFENCED, Worker, text_by};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match env::args().nth(1) {
        Some(label) => worker::run(&label).await,
        None => demo().await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThis is not how the story goes: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn demo() -> Outcome<()> {
    if let Ok(url) = env::var("DATABASE_URL") {
        println!("One document, two workers, on the database of DATABASE_URL.");
        on_stage(url).await?;
        println!("\nThe demo's own tables are gone again; the schema leasehold stays for further use.");
        return Ok(());
    }
    let cluster = Cluster::builder().try_start().await?;
    println!("One document, two workers, on a PostgreSQL of their own.");
    on_stage(cluster.url()).await
}

/// Sets the stage, plays on it and clears it away, whatever happens meanwhile.
async fn on_stage(url: String) -> Outcome<()> {
    let stage = Stage::new(url)?;
    let pool = stage.connect().await?;
    leasehold::migrate(&pool).await?;
    stage.set(&pool).await?;
    let outcome = tokio::select! {
        outcome = both_runs(&stage, &pool) => outcome,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    stage.clear(&pool).await?;
    pool.close().await;
    outcome
}

async fn both_runs(stage: &Stage, pool: &PgPool) -> Outcome<()> {
    let fenced = with_fence(stage, pool).await?;
    let unfenced = without_fence(stage, pool).await?;

    let paint = Paint::for_stdout();
    println!("\nB published last, holding the lease. What the document says in the end:\n");
    println!(
        "  with the fence     {}",
        paint.with("1;32", &format!("{fenced:<20}  what B published"))
    );
    println!(
        "  without the fence  {}",
        paint.with(
            "1;31",
            &format!("{unfenced:<20}  B's text is lost, and nobody was told")
        )
    );
    Ok(())
}

async fn with_fence(stage: &Stage, pool: &PgPool) -> Outcome<String> {
    let timeline = Timeline::begin("WITH THE FENCE", FENCED);
    let mut cast = take_over(stage, pool, &timeline, "publish fenced").await?;

    let answer = cast.a.hear().await?;
    let refusal = format!(
        "refused: fencing token {} is not current for lock '{}'",
        cast.token_a, stage.lock_name
    );
    expect(answer == refusal, || {
        format!("A's stale write is answered with {answer:?}")
    })?;
    let what = format!("publishes {:?}: REFUSED by PostgreSQL", text_by("A"));
    timeline.event_with("A", Mark::Bad, cast.token_a, what);
    timeline.note(&answer.replace("refused", "LH001"));
    let (body, fence) = stage.read(pool).await?;
    expect(body == text_by("B"), || format!("the document says {body:?}"))?;
    expect(fence == Some(cast.token_b), || {
        format!("the document carries token {fence:?}")
    })?;

    curtain(cast, &timeline).await?;
    Ok(body)
}

async fn without_fence(stage: &Stage, pool: &PgPool) -> Outcome<String> {
    let timeline = Timeline::begin("WITHOUT THE FENCE", UNFENCED);
    let mut cast = take_over(stage, pool, &timeline, "publish unfenced").await?;

    let answer = cast.a.hear().await?;
    expect(answer == "written 1", || {
        format!("A's stale write is answered with {answer:?}")
    })?;
    timeline.event("A", Mark::Bad, format!("publishes {:?}: over B's text", text_by("A")));
    let (body, _) = stage.read(pool).await?;
    expect(body == text_by("A"), || format!("the document says {body:?}"))?;

    curtain(cast, &timeline).await?;
    Ok(body)
}

struct Cast {
    a: Worker,
    b: Worker,
    token_a: i64,
    token_b: i64,
}

/// What both runs have in common: A pauses past its lease, B takes over and publishes, A goes on with
/// its own `publish` under way.
async fn take_over(stage: &Stage, pool: &PgPool, timeline: &Timeline, publish: &str) -> Outcome<Cast> {
    stage.write_first_draft(pool).await?;
    let mut a = Worker::start("A", stage)?;
    let mut b = Worker::start("B", stage)?;

    let asked_at = timeline.elapsed();
    let token_a = a.acquire().await?;
    timeline.event_with(
        "A",
        Mark::Good,
        token_a,
        format!("acquires {} for {TTL:?}", stage.lock_name),
    );
    a.must("check", "true").await?;
    timeline.event(
        "A",
        Mark::Good,
        "checks that it holds the lease: yes; is about to publish",
    );
    expect(signals::stop(a.pid()), || "A is not there to be stopped".to_owned())?;
    timeline.event(
        "A",
        Mark::Stopped,
        "SIGSTOP: stands still between the check and the write",
    );

    b.must("try", "held").await?;
    timeline.event("B", Mark::Plain, "tries the same name: it is held; waits");
    let token_b = b.acquire().await?;
    expect(timeline.elapsed() >= asked_at + TTL, || {
        "B is granted the name within A's ttl".to_owned()
    })?;
    expect(token_b > token_a, || {
        format!("B's token {token_b} is not above A's {token_a}")
    })?;
    timeline.event_with("B", Mark::Good, token_b, "acquires it: A's lease has run out");
    b.must(publish, "written 1").await?;
    timeline.event("B", Mark::Good, format!("publishes {:?}", text_by("B")));

    // Told while it stands still, so that the write is the first thing A does.
    a.tell(publish).await?;
    expect(signals::cont(a.pid()), || "A is not there to go on".to_owned())?;
    timeline.event("A", Mark::Continued, "SIGCONT: goes on without looking again");
    Ok(Cast { a, b, token_a, token_b })
}

/// A learns of its loss, B has held the lease all along, and both go.
async fn curtain(mut cast: Cast, timeline: &Timeline) -> Outcome<()> {
    let cause = cast.a.ask("loss").await?;
    timeline.event("A", Mark::Plain, format!("looks at its lease now: lost, {cause}"));
    cast.b.must("check", "true").await?;
    cast.a.finish().await?;
    cast.b.finish().await
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome<()> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
