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
