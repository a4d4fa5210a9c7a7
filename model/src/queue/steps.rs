//! What each step does.

use super::{Action, Client, Queue, Stage, State, Variant};

impl Queue {
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Ask { client, waits } => {
                let client = state.client(client);
                client.turns -= 1;
                client.asks(waits);
            }
            Action::Go(index) => self.go(state, index),
            Action::Wake(index) => state.client(index).asks(true),
            Action::Release(index) => {
                // Passed over by whoever wants the row; marks the queue, if there is a mark.
                state.locked_by = Some(index);
                state.client(index).at = Stage::Releases;
            }
            Action::Leave(index) => {
                state.leaves -= 1;
                let client = state.client(index);
                client.left.extend(client.ticket);
                client.at = Stage::Leaves {
                    ticket: client.ticket.take(),
                };
            }
            Action::Deliver(place) => self.deliver(state, place),
            Action::PassOn => {
                state.passes -= 1;
                let next = state.live().next();
                state.tell(next);
            }
            Action::Heartbeat(index) => state.client(index).is_told = true,
            Action::Die(index) => {
                state.faults -= 1;
                state.client(index).at = Stage::Dead;
            }
            Action::RunOut(index) => {
                if state.owner == Some(index) {
                    state.owner = None;
                }
                state.client(index).is_alive = false;
            }
            Action::Crash => crash(state),
        }
    }

    fn go(&self, state: &mut State, index: u8) {
        let at = state.client(index).at;
        let next = match at {
            Stage::Asks { waits } => {
                let ticket = state.ticket_of(index);
                let is_promised = match ticket {
                    Some(ticket) => state.ahead(ticket) > 0,
                    None => state.live().next().is_some(),
                };
                Stage::Locks { waits, is_promised }
            }
            Stage::Locks { waits, is_promised } => {
                if !is_promised && state.owner.is_none() && state.locked_by.is_none() {
                    state.locked_by = Some(index);
                    Stage::Granted
                } else if waits {
                    let reads_now = self.variant == Variant::RowBeforeMark;
                    Stage::LooksForMark {
                        row: reads_now.then_some(state.owner.is_some()),
                    }
                } else {
                    Stage::Out
                }
            }
            Stage::Granted => {
                state.locked_by = None;
                state.owner = Some(index);
                state.line.retain(|(_, client)| *client != index);
                state.client(index).ticket = None;
                Stage::Holds
            }
            Stage::LooksForMark { row } => {
                let place = state.ticket_of(index).map(|ticket| state.ahead(ticket));
                let is_changing = place.is_some_and(|place| place <= 1) && self.is_changing(state);
                match row {
                    Some(is_held) => self.decide(state, index, place, is_changing, is_held),
                    None => Stage::ReadsRow { place, is_changing },
                }
            }
            Stage::ReadsRow { place, is_changing } => {
                let is_held = state.owner.is_some();
                self.decide(state, index, place, is_changing, is_held)
            }
            Stage::Queues { ticket } => {
                state.line.push((ticket, index));
                state.line.sort_unstable();
                Stage::Queued { ticket }
            }
            // It stands in line only now: what happened before that, nobody tells it.
            Stage::Queued { ticket } => {
                let client = state.client(index);
                client.ticket = Some(ticket);
                if self.variant == Variant::SleepsWithoutLooking {
                    Stage::Asleep
                } else {
                    client.asks(true);
                    client.at
                }
            }
            Stage::Leaves { ticket } => self.leave(state, ticket),
            Stage::Left { ticket, next } => {
                state.line.retain(|(other, _)| *other != ticket);
                state.tell(next);
                Stage::Out
            }
            Stage::Releases => Stage::Released {
                next: state.live().next(),
            },
            Stage::Released { next } => {
                state.locked_by = None;
                state.owner = None;
                state.tell(next);
                Stage::Out
            }
            Stage::Out | Stage::Asleep | Stage::Holds | Stage::Dead => at,
        };
        state.client(index).at = next;
    }

    /// The end of `leasehold.acquire`, and what its caller makes of the answer.
    fn decide(&self, state: &mut State, index: u8, place: Option<u8>, is_changing: bool, is_held: bool) -> Stage {
        let Some(place) = place else {
            state.last_ticket += 1;
            return Stage::Queues {
                ticket: state.last_ticket,
            };
        };
        if !is_changing && (is_held || place > 0) {
            return Stage::Asleep;
        }
        // Busy: it asks again soon.
        state.client(index).asks(true);
        state.client(index).at
    }

    /// `leasehold.leave`: it deletes its row, which others still see, and looks who is first then.
    fn leave(&self, state: &State, ticket: Option<u8>) -> Stage {
        let Some(ticket) = ticket.filter(|ticket| state.line.iter().any(|(other, _)| other == ticket)) else {
            return Stage::Out;
        };
        let tells = self.variant != Variant::LeaveTellsNobody && state.ahead(ticket) == 0;
        let next = state.live().find(|(other, _)| *other != ticket).filter(|_| tells);
        Stage::Left { ticket, next }
    }

    /// `leasehold.is_changing`.
    fn is_changing(&self, state: &State) -> bool {
        state.clients.iter().any(|client| match client.at {
            Stage::Releases | Stage::Released { .. } => self.variant != Variant::ReleaseWithoutMark,
            Stage::Left { .. } => self.variant != Variant::LeaveWithoutMark,
            _ => false,
        })
    }

    /// A notification arrives.
    fn deliver(&self, state: &mut State, place: usize) {
        let (ticket, index) = state.told.remove(place);
        let client = state.client(index);
        if client.at == Stage::Dead {
            return;
        }
        if client.ticket == Some(ticket) {
            client.is_told = true;
        } else if client.left.contains(&ticket) && self.variant != Variant::WakeForgotten {
            state.passes += 1;
        }
    }
}

impl State {
    fn client(&mut self, index: u8) -> &mut Client {
        &mut self.clients[usize::from(index)]
    }

    fn ticket_of(&self, index: u8) -> Option<u8> {
        self.line
            .iter()
            .find(|(_, client)| *client == index)
            .map(|(ticket, _)| *ticket)
    }

    /// `pg_notify`, at the commit.
    fn tell(&mut self, next: Option<(u8, u8)>) {
        if let Some(next) = next {
            self.told.push(next);
            self.told.sort_unstable();
            self.told.dedup();
        }
    }
}

impl Client {
    /// What it was told before it asks is done with.
    fn asks(&mut self, waits: bool) {
        self.is_told = false;
        self.at = Stage::Asks { waits };
    }
}

/// The tables are unlogged; what was under way is undone, and asked again.
fn crash(state: &mut State) {
    state.faults -= 1;
    state.line.clear();
    state.told.clear();
    state.locked_by = None;
    for client in &mut state.clients {
        match client.at {
            Stage::Releases | Stage::Released { .. } => client.at = Stage::Holds,
            Stage::Left { .. } | Stage::Leaves { .. } => client.at = Stage::Out,
            Stage::Out | Stage::Asleep | Stage::Holds | Stage::Dead => {}
            Stage::Asks { waits: false } | Stage::Locks { waits: false, .. } => client.at = Stage::Out,
            _ => client.asks(true),
        }
    }
}
