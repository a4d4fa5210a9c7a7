//! The queue in SQL: each interleaving that could lose a wake-up or the order, step by step, with
//! plain sessions and no client of the crate.
//!
//! Whether a queue is changing is marked by one of 64 locks of the database, so a test that looks
//! for the mark has a database of its own: a stranger's release would show as well.

mod ears;
mod harm;
mod interleavings;
mod leaving;
mod line;
mod order;
mod plans;
mod upkeep;
mod vanished;
mod wakes;
mod writes;
