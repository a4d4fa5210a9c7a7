//! What leasehold's tests and examples stand on: throw-away PostgreSQL clusters, a network
//! that fails on request, signals, and waiting with a deadline.
//!
//! Everything here acts from outside the library under test: on the server, on the
//! wire, on processes. Faults are made on purpose and end when the test says so, and
//! whatever a test process started is gone once that process is, however it ended.
//!
//! It runs on Unix; what looks into other processes reads `/proc`.

mod cluster;
mod daemon;
mod guardian;
mod install;
mod load;
mod patroni;
mod pgbouncer;
mod player;
mod proxy;
mod server;
pub mod signals;
mod stage;
mod wait;

pub use cluster::{Backup, Builder, Cluster, ClusterError, StopMode};
pub use daemon::Daemon;
pub use load::CpuHog;
pub use patroni::Patroni;
pub use pgbouncer::PgBouncer;
pub use player::Player;
pub use proxy::FaultProxy;
pub use stage::Stage;
pub use wait::{NotInTime, Outcome, eventually, try_eventually};
