//! Ghosts: acquires whose connection was given up before they were answered.
//!
//! The server may still carry such a statement out, long after somebody has stopped waiting for
//! it, and grant the name to nobody. So every given-up backend is remembered until the server no
//! longer has it, and a release of a haunted owner token is repeated until then, or until the ttl
//! has done the same.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::name::LockName;
use crate::owner::OwnerToken;
use crate::store::{AcquireArgs, Backend};

use super::session::SessionId;

#[derive(Debug, Default)]
pub(super) struct Ghosts {
    by_owner: HashMap<OwnerToken, Ghost>,
    given_up: Vec<GivenUp>,
}

#[derive(Debug)]
struct Ghost {
    name: LockName,
    ttl: Duration,
    connections: Vec<u64>,
    until: Instant,
}

#[derive(Debug)]
struct GivenUp {
    connection: u64,
    /// Unknown behind a pooler, whose backends are not the client's.
    backend: Option<Backend>,
    at_work: bool,
    forget_at: Instant,
}

impl Ghosts {
    /// A connection was given up with a statement under way.
    pub(super) fn give_up(&mut self, session: SessionId) {
        self.given_up.push(GivenUp {
            connection: session.number,
            backend: session.backend,
            at_work: session.backend.is_some(),
            forget_at: Instant::now() + FORGET_AFTER,
        });
    }

    /// An acquire was under way on it, or had granted what could not be made sure of.
    pub(super) fn haunt(&mut self, session: SessionId, args: &AcquireArgs) {
        let now = Instant::now();
        self.by_owner.retain(|_, ghost| ghost.until > now);
        let ghost = self.by_owner.entry(args.owner).or_insert_with(|| Ghost {
            name: args.name.clone(),
            ttl: args.ttl,
            connections: Vec::new(),
            until: now,
        });
        ghost.connections.push(session.number);
        ghost.until = now + args.ttl;
    }

    /// Whether a statement may still grant something to `owner`.
    pub(super) fn haunts(&self, owner: OwnerToken) -> bool {
        self.ghost(owner).is_some_and(|ghost| {
            ghost
                .connections
                .iter()
                .any(|&lost| self.given_up.iter().any(|given_up| given_up.connection == lost))
        })
    }

    /// The name and ttl that `owner` asked for, if a statement may have granted it what nobody has
    /// heard of: also when the server has no such statement any more, which may have been its last.
    pub(super) fn asked_for(&self, owner: OwnerToken) -> Option<(LockName, Duration)> {
        self.ghost(owner).map(|ghost| (ghost.name.clone(), ghost.ttl))
    }

    fn ghost(&self, owner: OwnerToken) -> Option<&Ghost> {
        self.by_owner.get(&owner).filter(|ghost| ghost.until > Instant::now())
    }

    /// The backends to ask the server about.
    pub(super) fn backends(&mut self) -> Vec<Backend> {
        let now = Instant::now();
        self.by_owner.retain(|_, ghost| ghost.until > now);
        let by_owner = &self.by_owner;
        self.given_up.retain(|given_up| match given_up.backend {
            Some(_) => given_up.forget_at > now,
            // The server cannot be asked about it: it is forgotten with the last that it haunts.
            None => by_owner
                .values()
                .any(|ghost| ghost.connections.contains(&given_up.connection)),
        });
        self.given_up.iter().filter_map(|given_up| given_up.backend).collect()
    }

    /// What the server said of them: those that it still has, and whether each is at work.
    pub(super) fn probed(&mut self, present: &[(Backend, bool)]) {
        self.given_up.retain_mut(|given_up| {
            let Some(backend) = given_up.backend else { return true };
            match present.iter().find(|(other, _)| *other == backend) {
                Some(&(_, at_work)) => {
                    given_up.at_work = at_work;
                    true
                }
                None => false,
            }
        });
    }

    /// Two given-up connections are still at work: a third would only wait with them.
    pub(super) fn is_stalled(&self) -> bool {
        self.given_up.iter().filter(|given_up| given_up.at_work).count() >= MAX_AT_WORK
    }

    pub(super) fn is_empty(&self) -> bool {
        self.given_up.is_empty()
    }
}

const MAX_AT_WORK: usize = 2;

/// Longer than any ttl need be waited for: a backend that stays is asked about no more.
const FORGET_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn acquire_of_a_backend_that_is_gone_may_have_been_granted_until_its_ttl_is_over() {
        let backend = Backend {
            pid: 1,
            started_at: None,
        };
        let session = SessionId {
            number: 1,
            backend: Some(backend),
        };
        let args = AcquireArgs {
            name: LockName::new("a").expect("it is short"),
            owner: OwnerToken::random(),
            ttl: Duration::from_secs(30),
            holder: Arc::from("h"),
            client: None,
        };
        let mut ghosts = Ghosts::default();
        ghosts.give_up(session);
        ghosts.haunt(session, &args);
        assert!(ghosts.haunts(args.owner));

        ghosts.probed(&[]);

        assert!(!ghosts.haunts(args.owner), "nothing more will be granted");
        assert_eq!(ghosts.asked_for(args.owner), Some((args.name, args.ttl)));
        tokio::time::advance(args.ttl).await;
        assert_eq!(ghosts.asked_for(args.owner), None);
    }
}
