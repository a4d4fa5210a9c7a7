//! The protocol of leasehold as a model, gone through state by state, and what it could have been.
//!
//! ```text
//! make model              # every configuration and variant, a line each
//! make model STEPS=1      # with the shortest way to what each variant breaks
//! ```
//!
//! There are two models, because their product would be too large: [`lease`] (grants, renewals,
//! belief, fences, faults of the server) and [`queue`] (waiters and wake-ups). Each configuration is
//! gone through exhaustively, within the bounds that its line shows; time is unbounded. The variants
//! are the same code with one thing done differently. The program fails when the protocol breaks
//! what it must keep, or when a variant is not found out by the one invariant it is run against.
//!
//! What stands for what:
//!
//! | in the model | stands for |
//! | --- | --- |
//! | `Database::{draw, grant, granted_to}`, `acquire_statement` | `leasehold.acquire`, migration 7 |
//! | `Database::{draw, jump}`: the timeline and the epoch | `leasehold.enter_epoch`, `jump` and `advance_epoch`, migration 7 |
//! | `Database::renew` | `leasehold.renew`, migration 2 |
//! | `Database::release` | `leasehold.release`, migration 5 |
//! | `Database::is_current`, `Leases::fence`, `Seen` | `leasehold.fence`, migration 3: the `where`, and the key-share lock in both isolation levels |
//! | `Leases::is_pinned` | `for update skip locked` against `for key share` |
//! | `Leases::sweep` | `leasehold.sweep` |
//! | `Leases::flush` | `leasehold.make_durable`, and a lane that lets releases go without a flush |
//! | `Leases::receive`: the window | `src/trust.rs`, `Window::new` |
//! | `Belief` | `src/belief.rs` |
//! | `Action::Renew`, and none after a loss | `src/keeper.rs` |
//! | `Call`, lost and asked again; `ghost` | `src/lane.rs` and what is below: retries, given-up connections |
//! | `Stage::{Asks … Queued}`, `decide` | `leasehold.acquire` of a client that waits, `stand_in_line`, `ahead`, migration 5 |
//! | `is_changing`, `Stage::{Releases, Released, Left}` | `leasehold.mark_changing`, `is_changing`, `wake` |
//! | `Queue::leave` | `leasehold.leave` |
//! | `Action::Heartbeat`, `is_due` | `leasehold.heartbeat` |
//! | `Client::{ticket, left, is_told}`, `Queue::deliver` | `src/roster.rs` |
//! | `Stage::Asleep`, `Action::Wake` | `src/queue.rs`, `Turn::after` |
//!
//! What is left out: more than one name, sets of requests, `hold_at_least`, `admit`, the rows that
//! another session has locked for a moment (answered as busy and asked again) in [`lease`], and the
//! clock in [`queue`]. That the SQL does what its model does, the integration tests show.
//!
//! A client's clock may fall behind the server's by as much as the margin in each window. By more, it
//! breaks invariant 6 and no other; one configuration counts that.
#![allow(clippy::print_stdout, reason = "the lines are what it is for")]

mod invariant;
mod lease;
mod plan;
mod queue;
mod report;
mod variants;

use std::process::ExitCode;

fn main() -> ExitCode {
    let shows_steps = std::env::args().any(|argument| argument == "--steps");
    let (mut runs, mut wrong, mut states) = (0, 0, 0);
    println!("{LEGEND}");
    for run in plan::protocol().into_iter().chain(variants::all()) {
        let report = run.report();
        println!("{report}");
        if shows_steps || !report.is_right {
            for step in &report.outcome.steps {
                println!("    {step}");
            }
        }
        runs += 1;
        wrong += u32::from(!report.is_right);
        states += report.outcome.states;
    }
    println!("{runs} runs, {states} states, {wrong} wrong");
    if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

const LEGEND: &str = "\
bounds: clients x acquisitions each, grants in all, ttl-margin in ticks, what fenced transactions are there (read
committed, repeatable read), ghosts: given-up statements that may be executed later, one per client. One fault at
most. Time is unbounded, as is what each client does in between: retries, renewals, fenced transactions.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_keeps_its_invariants_in_the_small() {
        for run in plan::small() {
            let report = run.report();

            assert!(report.is_right, "{report}");
        }
    }

    #[test]
    fn every_variant_is_found_out() {
        for run in variants::all() {
            let report = run.report();

            assert!(report.is_right, "{report}");
        }
    }
}
