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
mod store;
mod token;
mod trust;

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
