//! Fencing wherever the resource is: six recipes, each with a stale writer that is refused.
//!
//! ```text
//! cargo run --example recipes             # all of them
//! cargo run --example recipes http        # one of them
//! ```
//!
//! Each file is one recipe, to be read by itself. They run on the database of `DATABASE_URL`, or on a
//! throw-away cluster when that is not set.

#![allow(clippy::print_stdout, reason = "a recipe tells what it does")]
#![allow(unreachable_pub, reason = "an example has no outside")]

mod another_database;
mod fence_column;
mod http;
mod idempotency_key;
mod inline;
mod object_store;
mod stage;

use std::env;

use leasehold_testkit::Cluster;

use stage::{Outcome, Stage};

#[tokio::main]
async fn main() -> Outcome<()> {
    let wanted = env::args().nth(1);
    match env::var("DATABASE_URL") {
        Ok(url) => run(&url, wanted.as_deref()).await,
        Err(_) => run(&Cluster::builder().try_start().await?.url(), wanted.as_deref()).await,
    }
}

async fn run(url: &str, wanted: Option<&str>) -> Outcome<()> {
    let stage = Stage::set(url).await?;
    let mut ran = 0;
    macro_rules! recipe {
        ($recipe:ident) => {
            if wanted.is_none_or(|wanted| wanted == stringify!($recipe)) {
                $recipe::run(&stage).await?;
                println!(
                    "{:<17} the stale write was refused, the current one accepted",
                    stringify!($recipe)
                );
                ran += 1;
            }
        };
    }
    recipe!(inline);
    recipe!(another_database);
    recipe!(fence_column);
    recipe!(object_store);
    recipe!(http);
    recipe!(idempotency_key);
    stage.clear().await?;
    match ran {
        0 => Err(
            "there is no such recipe: inline, another_database, fence_column, object_store, http, idempotency_key"
                .into(),
        ),
        _ => Ok(()),
    }
}
