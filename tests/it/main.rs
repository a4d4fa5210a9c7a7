//! The promises of the crate, one module each, on a real PostgreSQL that all tests share.
//!
//! A test has names, databases or clusters of its own, so that all run in parallel.

mod support;

mod cancellation;
mod dropping;
mod events;
mod lease;
mod loss;
mod scale;
mod scoped;
mod smoke;
mod waiting;
