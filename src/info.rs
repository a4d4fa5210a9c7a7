//! What anybody may know: of a held lease, and of the state of the schema.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::token::FencingToken;

/// A row of the view `leasehold.held`. The owner token is not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// What is held.
    pub name: String,
    /// The label of its holder. For people; nothing is decided by it.
    pub holder: Option<String>,
    /// The token of the grant.
    pub fencing_token: FencingToken,
    /// When it was granted, by the database's clock.
    pub held_since: DateTime<Utc>,
    /// How long the database honours it without a renewal; zero when it has run out.
    pub expires_in: Duration,
    /// Whether it has run out. It still fences until somebody else is granted the name.
    pub is_expired: bool,
    /// How many wait for it; `None` on a standby, which has no queue.
    pub waiters: Option<u32>,
}

/// What somebody who waits for a lease knows of it: as much as the latest answer or heartbeat told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The label of its holder, where he gave one. `None` too when it is free and promised to
    /// somebody who comes first.
    pub holder: Option<String>,
    /// Since when he has held it, by the database's clock.
    pub held_since: Option<DateTime<Utc>>,
    /// How long the database honours it without a renewal.
    pub expires_in: Option<Duration>,
    /// Whether the lease has ended and an open fenced transaction keeps the name taken.
    pub is_pinned: bool,
    /// How many waiters come first.
    pub ahead: u32,
}

/// Something in the database that fencing tokens depend on and that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What is wrong.
    pub finding: String,
    /// The statement that mends it, for a role with the right to it.
    pub remedy: String,
}
