//! What each step does, and what it breaks.

use super::client::{Answer, Belief, Call, Client, Fenced, Lease, Request, Seen};
use super::database::{Database, Owner};
use super::{Action, Fault, Leases, State, Variant};
use crate::invariant::Invariant;

impl Leases {
    /// Takes the step; `None` where it would leave the bounds.
    pub(super) fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Tick => self.tick(state),
            Action::StepClock(by) => self.step_clock(state, by),
            Action::Sweep => self.sweep(state),
            Action::Crash { is_flushed } => self.crash(state, is_flushed),
            Action::Replicate => state.copy = state.database.clone(),
            Action::Fail => self.fail(state),

            Action::Acquire(index) => self.acquire(state, index),
            Action::Renew(index) => state.clients[index].send(Request::Renew),
            Action::Release(index) => self.release(&mut state.clients[index]),
            Action::Draw(index) => self.draw(state, index),
            Action::Execute(index) => self.execute(state, index)?,
            Action::ExecuteGhost(index) => {
                let (request, owner) = state.clients[index].ghost.take()?;
                self.statement(state, request, owner, 0)?;
            }
            Action::LoseRequest(index) | Action::LoseAnswer(index) => state.clients[index].lose_call(),
            Action::GiveUp(index) => state.clients[index].give_up(),
            Action::Receive(index, lag) => {
                let was_lost = state.clients[index].is_lost();
                self.receive(&mut state.clients[index], lag);
                let is_revived = was_lost && state.clients[index].held().is_some();
                state.broken.unless(!is_revived, Invariant::OwnGrantAlone);
            }
            Action::Retry(index) => state.clients[index].retry(),
            Action::Abandon(index) => state.clients[index].abandon(),
            Action::Forget(index) => state.clients[index].forget(),

            Action::BeginFenced(index) => {
                let seen = Seen::of(&state.database);
                state.clients[index].fenced = Fenced::Begun { seen };
            }
            Action::Fence(index) => self.fence(state, index),
            Action::EndFenced(index) => end_fenced(state, index),
        }
        Some(())
    }

    /// Judges what is true of every state, whatever step led there.
    pub(super) fn judge(&self, state: &mut State) {
        let owners = state.promised.iter().filter(|(_, left)| *left > 0).count();
        state.broken.unless(owners <= 1, Invariant::OneOwner);

        for client in &state.clients {
            let believes_rightly = client.held().is_none_or(|lease| {
                let row = &state.database;
                row.owner == client.owner && row.fence == lease.token && row.left > 0
            });
            state.broken.unless(believes_rightly, Invariant::BeliefEndsFirst);
        }
    }

    fn tick(&self, state: &mut State) {
        let floor = self.floor(state.faults);
        for database in [&mut state.database, &mut state.flushed, &mut state.copy] {
            database.tick(floor);
        }
        for client in &mut state.clients {
            client.tick(self.bounds.ttl);
        }
        for (_, left) in &mut state.promised {
            *left -= 1;
        }
        state.promised.retain(|(_, left)| *left > floor);
    }

    /// Below which nothing that has run out can come back.
    fn floor(&self, faults: u8) -> i8 {
        if self.fault == Fault::ClockStep && faults > 0 {
            -1
        } else {
            0
        }
    }

    fn step_clock(&self, state: &mut State, by: i8) {
        state.faults -= 1;
        if state.database.owner != 0 {
            state.database.left -= by;
        }
        for (_, left) in &mut state.promised {
            *left -= by;
        }
    }

    /// `leasehold.sweep`: the row goes, and comes back with the next acquire's insert.
    fn sweep(&self, state: &mut State) {
        if state.database.is_free() && !self.is_pinned(state) {
            state.database.owner = 0;
            state.database.fence = 0;
            state.database.left = 0;
        }
    }

    fn crash(&self, state: &mut State, is_flushed: bool) {
        state.faults -= 1;
        if !is_flushed {
            state.database = state.flushed.clone();
        }
        self.restart(state);
    }

    /// A standby is promoted, or a volume rolled back.
    fn fail(&self, state: &mut State) {
        state.faults -= 1;
        let timeline = state.database.timeline;
        state.database = state.copy.clone();
        match self.fault {
            Fault::LaggingStandby | Fault::SynchronousStandby => state.database.timeline = timeline + 1,
            Fault::RollbackAndAdvance => state.database.jump(),
            _ => {}
        }
        self.restart(state);
    }

    fn restart(&self, state: &mut State) {
        for client in &mut state.clients {
            client.disconnect();
        }
        state.flushed = Database::default();
        state.copy = Database::default();
    }

    /// What a statement that waits for its flush makes durable.
    fn flush(&self, state: &mut State) {
        if state.faults > 0 {
            match self.fault {
                Fault::Crash => state.flushed = state.database.clone(),
                Fault::SynchronousStandby => state.copy = state.database.clone(),
                _ => {}
            }
        }
    }

    fn acquire(&self, state: &mut State, index: usize) {
        let owner = state.fresh_owner();
        let client = &mut state.clients[index];
        client.owner = owner;
        client.acquisitions -= 1;
        client.send(Request::Acquire);
    }

    /// The belief ends when the release is sent, not when it is answered.
    fn release(&self, client: &mut Client) {
        if self.variant != Variant::BeliefUntilReleased {
            client.let_go();
        }
        client.send(Request::Release);
    }

    fn draw(&self, state: &mut State, index: usize) {
        if let Call::Sent { drawn, .. } = &mut state.clients[index].call {
            *drawn = state.database.draw(self.variant);
        }
    }

    fn execute(&self, state: &mut State, index: usize) -> Option<()> {
        let Call::Sent { request, age, drawn } = state.clients[index].call else {
            return None;
        };
        let owner = state.clients[index].owner;
        let answer = self.statement(state, request, owner, drawn)?;
        state.clients[index].call = Call::Answered { request, age, answer };
        Some(())
    }

    fn statement(&self, state: &mut State, request: Request, owner: Owner, drawn: u8) -> Option<Answer> {
        match request {
            Request::Acquire => self.acquire_statement(state, owner, drawn),
            Request::Renew => Some(self.renew_statement(state, owner)),
            Request::Release => Some(self.release_statement(state, owner)),
        }
    }

    /// `leasehold.acquire`.
    fn acquire_statement(&self, state: &mut State, owner: Owner, drawn: u8) -> Option<Answer> {
        if let Some(same) = state.database.granted_to(owner) {
            return Some(Answer::Granted(same));
        }
        let slips_under = self.variant == Variant::GrantWithoutForUpdate;
        if !state.database.is_free() || (self.is_pinned(state) && !slips_under) {
            return Some(Answer::Refused);
        }
        if state.grants == self.bounds.grants {
            return None;
        }
        let token = if drawn > 0 {
            drawn
        } else {
            state.database.draw(self.variant)
        };
        state.grants += 1;
        state.database.grant(owner, token, state.grants, self.bounds.ttl);
        if self.variant != Variant::GrantWithoutFlush {
            self.flush(state);
        }

        state.broken.unless(token > state.highest, Invariant::TokensRise);
        let passed = |client: &Client| matches!(client.fenced, Fenced::Passed { owner: by, .. } if by != owner);
        state
            .broken
            .unless(!state.clients.iter().any(passed), Invariant::FenceHoldsOff);
        state.highest = state.highest.max(token);
        self.promise(state, owner);
        state.database.granted_to(owner).map(Answer::Granted)
    }

    /// `leasehold.renew`.
    fn renew_statement(&self, state: &mut State, owner: Owner) -> Answer {
        let before = state.database.clone();
        if !state.database.renew(owner, self.bounds.ttl, self.variant) {
            return Answer::Refused;
        }
        self.flush(state);
        let is_own = before.owner == owner && before.left > 0;
        state.broken.unless(is_own, Invariant::OwnGrantAlone);
        self.promise(state, before.owner);
        Answer::Renewed
    }

    /// `leasehold.release`, which does not wait for its flush.
    fn release_statement(&self, state: &mut State, owner: Owner) -> Answer {
        let before = state.database.owner;
        if !state.database.release(owner, self.variant) {
            return Answer::Refused;
        }
        state.broken.unless(before == owner, Invariant::OwnGrantAlone);
        state.promised.retain(|(by, _)| *by != before);
        Answer::Released
    }

    fn promise(&self, state: &mut State, owner: Owner) {
        state.promised.retain(|(by, _)| *by != owner);
        state.promised.push((owner, self.bounds.ttl));
        state.promised.sort_unstable();
    }

    fn receive(&self, client: &mut Client, lag: i8) {
        let Call::Answered { request, age, answer } = std::mem::take(&mut client.call) else {
            return;
        };
        // Counted from before the request was sent. The clock of the client may fall behind.
        let counted = if self.variant == Variant::WindowFromReply {
            0
        } else {
            age
        };
        let window = |expires_in: i8| expires_in - counted - self.bounds.margin + lag;
        match (request, answer) {
            (Request::Acquire, Answer::Granted(granted)) => {
                let window = window(granted.expires_in);
                if window > 0 {
                    client.lease = Some(Lease {
                        token: granted.token,
                        grant: granted.grant,
                        belief: Belief::Held(window),
                    });
                } else {
                    client.release_later();
                }
            }
            // Not granted: it may ask again, or leave it.
            (Request::Acquire, _) => client.call = Call::Unanswered(request),
            (Request::Renew, Answer::Renewed) => {
                let revives = self.variant == Variant::LateAnswerRevives;
                if client.held().is_some() || revives {
                    client.believe(window(self.bounds.ttl));
                }
            }
            (Request::Renew, _) => client.lose(),
            (Request::Release, _) => client.let_go(),
        }
    }

    fn is_pinned(&self, state: &State) -> bool {
        let pins = |client: &Client| matches!(client.fenced, Fenced::Passed { .. });
        self.variant != Variant::PlainSelectFence && state.clients.iter().any(pins)
    }

    /// `leasehold.fence`, by the lease that the application has in hand, lost or not.
    fn fence(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        let Some(lease) = client.lease else { return };
        let row = &state.database;
        let passes = match client.fenced {
            // The snapshot decides what is found; locking it fails (40001) if there was another
            // grant since, and not after renewals and releases, which lock less.
            Fenced::Begun { seen } => {
                let found = seen.is_current(client.owner, lease.token, self.variant);
                found && (seen.is_lockable(row) || self.variant == Variant::PlainSelectFence)
            }
            _ => row.is_current(client.owner, lease.token, self.variant),
        };
        client.fenced = if passes {
            Fenced::Passed {
                owner: client.owner,
                is_stale: lease.grant != row.grant,
            }
        } else {
            Fenced::None
        };
    }
}

/// A fenced transaction ends; what was stale at its check is judged when it commits.
fn end_fenced(state: &mut State, index: usize) {
    let ended = std::mem::take(&mut state.clients[index].fenced);
    if let Fenced::Passed { is_stale, .. } = ended {
        state.broken.unless(!is_stale, Invariant::StaleWriteRefused);
    }
}
