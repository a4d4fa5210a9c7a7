//! The invariants, by their numbers in the protocol, and how a state carries what broke them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Invariant {
    /// 1. Fencing tokens rise strictly in grant order.
    TokensRise = 1,
    /// 2. Renew and release touch only the grant whose owner token they carry; a lost grant is
    ///    never revived, neither in the database nor in the belief of its holder.
    OwnGrantAlone = 2,
    /// 3. After a fenced transaction has passed its check, nobody else is granted the name until it
    ///    ends.
    FenceHoldsOff = 3,
    /// 4. A write fenced with an old token never commits after a newer grant existed at the time of
    ///    its check. A grant that the server has forgotten is void: its writes do not commit either.
    StaleWriteRefused = 4,
    /// 5. One owner at a time by the database's clock.
    OneOwner = 5,
    /// 6. The holder's trust window ends before the database may grant the name to anyone else.
    BeliefEndsFirst = 6,
    /// 7. No waiter sleeps while the name is free and nobody will wake it.
    NobodySleepsOn = 7,
}

impl Invariant {
    pub(crate) const ALL: [Self; 7] = [
        Self::TokensRise,
        Self::OwnGrantAlone,
        Self::FenceHoldsOff,
        Self::StaleWriteRefused,
        Self::OneOwner,
        Self::BeliefEndsFirst,
        Self::NobodySleepsOn,
    ];

    pub(crate) const OF_LEASES: [Self; 6] = [
        Self::TokensRise,
        Self::OwnGrantAlone,
        Self::FenceHoldsOff,
        Self::StaleWriteRefused,
        Self::OneOwner,
        Self::BeliefEndsFirst,
    ];

    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// What it is called in the output.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TokensRise => "1 tokens rise",
            Self::OwnGrantAlone => "2 own grant alone",
            Self::FenceHoldsOff => "3 fence holds off grants",
            Self::StaleWriteRefused => "4 stale write refused",
            Self::OneOwner => "5 one owner",
            Self::BeliefEndsFirst => "6 belief ends first",
            Self::NobodySleepsOn => "7 nobody sleeps on",
        }
    }
}

/// Which invariants the step into a state has broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Broken(u16);

impl Broken {
    pub(crate) fn unless(&mut self, holds: bool, invariant: Invariant) {
        if !holds {
            self.0 |= 1 << invariant.number();
        }
    }

    pub(crate) fn has(self, invariant: Invariant) -> bool {
        self.0 & (1 << invariant.number()) != 0
    }
}

/// How many states break each invariant, for those that are counted and not asserted.
#[derive(Debug, Default)]
pub(crate) struct Counters([AtomicU64; 8]);

impl Counters {
    pub(crate) fn count(&self, invariant: Invariant) {
        self.0[usize::from(invariant.number())].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, invariant: Invariant) -> u64 {
        self.0[usize::from(invariant.number())].load(Ordering::Relaxed)
    }
}
