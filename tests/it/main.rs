//! The promises of the crate, one module each, on a real PostgreSQL that all tests share.
//!
//! A test has names, databases or clusters of its own, so that all run in parallel.

mod support;

mod admit;
mod cancellation;
#[cfg(feature = "cli")]
mod cli;
mod dropping;
mod durability;
mod epoch;
mod events;
mod failover;
mod fence;
mod fence_counterexamples;
mod fence_plans;
mod fence_snapshot;
mod grant_order;
mod insertions;
mod lease;
mod loss;
mod lost_replies;
mod migrate;
mod mutants;
mod names;
mod network;
mod outcomes;
mod outcomes_arguments;
mod pause;
mod pooler;
mod queue;
mod queue_sql;
mod replication;
mod roles;
mod row_locks;
mod scale;
mod scoped;
mod server_faults;
mod settings;
#[cfg(feature = "metrics")]
mod signals;
mod smoke;
mod storage;
mod transactions;
mod waiting;
mod wakeups;
