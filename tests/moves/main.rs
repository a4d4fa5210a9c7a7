//! `make moves`: fencing tokens while the database moves: promoted, restored, copied, upgraded, crashed.
//!
//! Each move is made for real, on clusters of its own, and leaves a line of JSON: the highest token
//! that was given out before, the first one after, how many were given out twice, and what became of
//! the old holder's write. It fails when a token does not rise, comes twice, or a stale write passes.
//! An argument runs the moves alone whose name contains it.

#![allow(clippy::print_stdout, reason = "its lines are what it is for")]

mod copies;
mod crashes;
mod history;
mod promotions;
mod restores;

use std::time::Instant;

use history::Moved;

#[tokio::main]
async fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let mut moved = Vec::new();
    macro_rules! make {
        ($name:literal, $make:expr) => {
            if wanted.as_deref().is_none_or(|wanted| $name.contains(wanted)) {
                let began_at = Instant::now();
                let outcome: Moved = $make.await;
                println!("{}", outcome.json($name, began_at.elapsed()));
                moved.push(($name, outcome));
            }
        };
    }
    make!("async promotion", promotions::with_grants_lost());
    make!("two promotions of one parent", promotions::two_of_one_parent());
    make!("point-in-time restore", restores::to_a_point());
    make!(
        "base backup through archive recovery",
        restores::to_the_end_of_the_archive()
    );
    make!("volume rolled back, then advance_epoch", restores::of_a_volume());
    make!("pg_dump into a new server", copies::by_dump());
    make!("logical replication and cut-over", copies::by_logical_replication());
    make!("pg_upgrade", copies::by_upgrade());
    make!("immediate shutdown after each grant", crashes::shut_down());
    make!("kill -9 of the postmaster after each grant", crashes::killed());
    assert!(!moved.is_empty(), "there is no such move");
    for (name, outcome) in moved {
        outcome.judge(name);
    }
}
