//! One state for all that differ only in which client is which, or in tickets that nobody asks for.
//!
//! Sound because clients are alike and tickets are compared for their order alone.

use super::{Stage, State};

impl State {
    pub(super) fn normalise(&mut self) {
        self.forget_left();
        self.renumber();
        self.sort_clients();
    }

    /// A ticket given back matters as long as a notification may come for it.
    fn forget_left(&mut self) {
        let mut awaited: Vec<u8> = self.line.iter().chain(&self.told).map(|(ticket, _)| *ticket).collect();
        for client in &mut self.clients {
            awaited.extend(client.at.next().map(|(ticket, _)| *ticket));
        }
        for client in &mut self.clients {
            client.left.retain(|ticket| awaited.contains(ticket));
        }
    }

    /// Tickets from 1 on, without gaps.
    fn renumber(&mut self) {
        let mut known = Vec::new();
        self.each_ticket(&mut |ticket| known.push(*ticket));
        known.sort_unstable();
        known.dedup();
        self.each_ticket(&mut |ticket| {
            let place = known.binary_search(ticket).expect("every ticket was visited");
            *ticket = 1 + place as u8;
        });
        self.last_ticket = known.len() as u8;
    }

    fn each_ticket(&mut self, f: &mut impl FnMut(&mut u8)) {
        for (ticket, _) in self.line.iter_mut().chain(&mut self.told) {
            f(ticket);
        }
        for client in &mut self.clients {
            client.ticket.iter_mut().chain(&mut client.left).for_each(&mut *f);
            match &mut client.at {
                Stage::Queues { ticket } | Stage::Queued { ticket } | Stage::Left { ticket, .. } => f(ticket),
                Stage::Leaves { ticket } => ticket.iter_mut().for_each(&mut *f),
                _ => {}
            }
            if let Some((ticket, _)) = client.at.next() {
                f(ticket);
            }
        }
    }

    /// By what they do, and by their places in line.
    fn sort_clients(&mut self) {
        let mut order: Vec<u8> = (0..self.clients.len() as u8).collect();
        order.sort_by_cached_key(|index| {
            let mut nameless = self.clients[usize::from(*index)].clone();
            if let Some((_, client)) = nameless.at.next() {
                *client = 0;
            }
            let place = self.line.iter().position(|(_, client)| client == index);
            let told = self.told.iter().position(|(_, client)| client == index);
            let row = (self.owner == Some(*index), self.locked_by == Some(*index));
            (nameless, place, told, row)
        });
        self.clients = order
            .iter()
            .map(|index| self.clients[usize::from(*index)].clone())
            .collect();

        let place_of = |client: u8| {
            order
                .iter()
                .position(|index| *index == client)
                .map_or(client, |place| place as u8)
        };
        for client in self.owner.iter_mut().chain(&mut self.locked_by) {
            *client = place_of(*client);
        }
        for (_, client) in self.line.iter_mut().chain(&mut self.told) {
            *client = place_of(*client);
        }
        for client in &mut self.clients {
            if let Some((_, client)) = client.at.next() {
                *client = place_of(*client);
            }
        }
        self.told.sort_unstable();
    }
}

impl Stage {
    /// Whom the statement under way is going to tell: the ticket and the client.
    fn next(&mut self) -> Option<&mut (u8, u8)> {
        match self {
            Self::Left { next, .. } | Self::Released { next } => next.as_mut(),
            _ => None,
        }
    }
}
