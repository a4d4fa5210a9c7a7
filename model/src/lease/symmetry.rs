//! One state for all that differ only in which client is which, or in what owner tokens are called.
//!
//! Sound because nothing compares owner tokens but for equality and no step depends on a client's
//! place: owner tokens are random, clients alike.

use super::State;
use super::client::{Client, Fenced};
use super::database::Owner;

impl State {
    /// Sorts the clients, and names owner tokens in the order in which they are met.
    pub(super) fn normalise(&mut self) {
        self.clients.sort_by_cached_key(|client| {
            let mut nameless = *client;
            nameless.each_owner(&mut |owner| *owner = u8::from(*owner != 0));
            (nameless, *client)
        });
        let mut met = Vec::new();
        self.each_owner(&mut |owner| {
            if *owner != 0 {
                let place = met.iter().position(|known| known == owner).unwrap_or_else(|| {
                    met.push(*owner);
                    met.len() - 1
                });
                *owner = 1 + place as u8;
            }
        });
        self.promised.sort_unstable();
    }

    /// An owner token that nothing has.
    pub(super) fn fresh_owner(&mut self) -> Owner {
        let mut highest = 0;
        self.each_owner(&mut |owner| highest = highest.max(*owner));
        highest + 1
    }

    fn each_owner(&mut self, f: &mut impl FnMut(&mut Owner)) {
        for client in &mut self.clients {
            client.each_owner(f);
        }
        for database in [&mut self.database, &mut self.flushed, &mut self.copy] {
            f(&mut database.owner);
        }
        for (owner, _) in &mut self.promised {
            f(owner);
        }
    }
}

impl Client {
    fn each_owner(&mut self, f: &mut impl FnMut(&mut Owner)) {
        f(&mut self.owner);
        if let Some((_, owner)) = &mut self.ghost {
            f(owner);
        }
        match &mut self.fenced {
            Fenced::None => {}
            Fenced::Begun { seen } => f(&mut seen.owner),
            Fenced::Passed { owner, .. } => f(owner),
        }
    }
}
