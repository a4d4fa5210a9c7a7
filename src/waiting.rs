//! A wait as it shows from outside: counted for as long as it lasts, its beginning and its end told.
//!
//! When to ask again is left to [`crate::queue`].

use tokio::time::Instant;
use tracing::debug;

use crate::name::LockName;
use crate::owner::OwnerToken;
use crate::signals::{self, Class, Counted};
use crate::store::NotGranted;

/// An acquisition that waits. Dropped before it is granted, it has given up.
#[derive(Debug)]
pub(crate) struct Waiting {
    name: LockName,
    owner: OwnerToken,
    began_at: Instant,
    is_granted: bool,
    _counted: Counted,
}

impl Waiting {
    /// Begins with the first answer that somebody else has the name.
    pub(crate) fn begin(name: &LockName, owner: OwnerToken, class: Class, answer: &NotGranted) -> Self {
        let (holder, ahead) = (answer.held_by.holder.as_deref(), answer.ahead);
        debug!(lease.name = %name, lease.owner = %owner, holder, ahead, "began to wait");
        Self {
            name: name.clone(),
            owner,
            began_at: Instant::now(),
            is_granted: false,
            _counted: signals::waiting(class),
        }
    }

    /// The wait was not in vain; whoever acquires tells of the grant.
    pub(crate) fn granted(mut self) {
        self.is_granted = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_granted {
            let (name, owner, waited) = (&self.name, self.owner, self.began_at.elapsed());
            debug!(lease.name = %name, lease.owner = %owner, ?waited, "gave up waiting");
        }
    }
}
