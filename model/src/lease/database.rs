//! The server: one name's row, the sequence, the epoch, and the SQL functions as atomic steps.
//!
//! Times are what is left of them, so that time needs no bound: a state is the same whenever it is
//! reached. What is below nothing is kept only as far as a clock can be stepped back.

use super::Variant;

/// An owner token. 0 stands for null.
pub(crate) type Owner = u8;

/// The row of the name, and what belongs to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Database {
    pub(crate) owner: Owner,
    pub(crate) fence: u8,
    /// `expires_at`, less the present time.
    pub(crate) left: i8,
    /// `last_value` of the sequence.
    pub(crate) sequence: u8,
    pub(crate) timeline: u8,
    /// `leasehold.epoch.timeline`.
    pub(crate) epoch: u8,
    /// No column: which grant, of all that there were on any server, wrote the row.
    pub(crate) grant: u8,
}

/// What `leasehold.acquire` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Granted {
    pub(crate) token: u8,
    pub(crate) grant: u8,
    pub(crate) expires_in: i8,
}

impl Database {
    pub(crate) fn tick(&mut self, floor: i8) {
        self.left = if self.owner == 0 { 0 } else { (self.left - 1).max(floor) };
    }

    pub(crate) fn is_free(&self) -> bool {
        self.owner == 0 || self.left <= 0
    }

    /// `leasehold.acquire`, when the name was found free and its row was locked: draws the token.
    pub(crate) fn draw(&mut self, variant: Variant) -> u8 {
        let is_foreign = self.epoch != self.timeline;
        if variant != Variant::NoEpoch && (is_foreign || self.sequence < self.fence) {
            self.jump();
        }
        self.sequence += 1;
        self.sequence
    }

    /// `leasehold.jump`.
    pub(crate) fn jump(&mut self) {
        self.sequence = self.sequence.max(self.fence) + STRIDE;
        self.epoch = self.timeline;
    }

    /// `leasehold.acquire`: the update.
    pub(crate) fn grant(&mut self, owner: Owner, token: u8, grant: u8, ttl: i8) {
        self.owner = owner;
        self.fence = token;
        self.left = ttl;
        self.grant = grant;
    }

    /// `leasehold.acquire`: held by this owner already.
    pub(crate) fn granted_to(&self, owner: Owner) -> Option<Granted> {
        (self.owner == owner && self.left > 0).then_some(Granted {
            token: self.fence,
            grant: self.grant,
            expires_in: self.left,
        })
    }

    /// `leasehold.renew`. Whether it did.
    pub(crate) fn renew(&mut self, owner: Owner, ttl: i8, variant: Variant) -> bool {
        let is_own = self.owner == owner || (variant == Variant::RenewWithoutOwner && self.owner != 0);
        let renews = is_own && (self.left > 0 || variant == Variant::RenewRevives);
        if renews {
            self.left = ttl;
        }
        renews
    }

    /// `leasehold.release`. Whether it did.
    pub(crate) fn release(&mut self, owner: Owner, variant: Variant) -> bool {
        let releases = self.owner == owner || (variant == Variant::ReleaseWithoutOwner && self.owner != 0);
        if releases {
            self.owner = 0;
            self.left = 0;
        }
        releases
    }

    /// `leasehold.fence`: what its `where` says of this version of the row.
    pub(crate) fn is_current(&self, owner: Owner, token: u8, variant: Variant) -> bool {
        match variant {
            Variant::FenceAtLeast => self.fence <= token,
            Variant::FenceWithoutOwner => self.owner != 0 && self.fence == token,
            _ => self.owner == owner && self.fence == token,
        }
    }
}

/// How far the sequence jumps: more than a lagging standby can have lost here.
pub(crate) const STRIDE: u8 = 16;
