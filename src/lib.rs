//! Distributed locks on the PostgreSQL you already run: leases with fencing tokens that are
//! checked where the write happens.
//!
//! A lease alone cannot prevent that a paused worker overwrites the work of the one who took
//! over; a token that rises with every grant, checked in the transaction that writes, can. See
//! [`Lease::fence`] and [`Lease::begin`].
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold::LeaseClient;
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! leasehold::migrate(&pool).await?;
//! let leases = LeaseClient::new(pool.clone());
//!
//! let lease = leases.acquire("invoice:842").wait_at_most(Duration::from_secs(5)).await?;
//! let mut tx = lease.begin(&pool).await?;
//! sqlx::query("update invoice set state = 'final' where id = 842").execute(&mut *tx).await?;
//! tx.commit().await?;
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to read on
//!
//! [`guide`] has a chapter for each question: what is promised when, choosing a ttl, naming, what to do on
//! loss, PgBouncer, failover, upgrades, the server's settings, and troubleshooting by symptom.
//!
//! [`LeaseClient`] asks for leases, [`Acquire`] has the options of an acquisition, [`Lease`] is what is held.
//! [`migrate()`] installs the schema, [`check()`] looks over what fencing tokens depend on. Every `async`
//! function says what is true in the database when its future is dropped, under "Cancel safety".
//!
//! # Spans and events
//!
//! Through `tracing`. Each operation is a span at `DEBUG`, with `lease.name`, `lease.owner` and `lease.fencing_token` as far
//! as they are known. Events are past-tense facts with the same fields: at `DEBUG` what
//! goes well (acquired, renewed, released), at `WARN` what is repeated and a stale
//! holder that was refused, at `ERROR` a lost lease.
//!
//! # Features
//!
//! - `runtime-tokio` (default), `tls-native-tls`, `tls-rustls-aws-lc-rs`, `tls-rustls-ring-native-roots`,
//!   `tls-rustls-ring-webpki`: the choices of [`sqlx`], passed on. Whoever makes them in a dependency of his own
//!   needs none of these.
//! - `serde`: [`FencingToken`] as a plain number in serde's formats.
//! - `metrics`: numbers for the recorder of the crate `metrics` that the application installs: how long
//!   acquisitions and hand-offs take, how many wait and hold, what timed out, failed, was lost and was
//!   fenced out. The README lists them. [`Acquire::class`] labels them.
//! - `cli`: the command `leasehold`; the library is the same without it.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs, missing_debug_implementations)]

mod acquire;
mod admit;
mod belief;
mod check;
mod client;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(all(test, not(fuzzing)))]
mod fuzzing;
pub mod guide;
mod info;
mod keeper;
mod lane;
mod lease;
mod migrate;
mod name;
mod owner;
mod place;
mod queue;
mod roster;
mod signals;
mod store;
mod token;
mod trust;
mod waiting;

pub use sqlx;

pub use crate::acquire::Acquire;
pub use crate::check::check;
pub use crate::client::{LeaseClient, LeaseClientBuilder};
pub use crate::error::{Error, LeaseLost, LossCause, Operation, is_fenced};
pub use crate::info::{Finding, LeaseInfo, Waiting};
pub use crate::lease::{Lease, Release};
pub use crate::migrate::{SCHEMA_VERSION, migrate, schema_sql};
pub use crate::name::LockName;
pub use crate::queue::Wakeup;
pub use crate::token::FencingToken;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
