//! A client: its lane, the lease it was granted, its belief, and a fenced transaction.
//!
//! A pause needs no state of its own: any client may take no step while time goes on.

use super::Variant;
use super::database::{Database, Granted, Owner};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client {
    /// Acquisitions that are still to come.
    pub(crate) acquisitions: u8,
    /// The owner token of the present one; 0 without one.
    pub(crate) owner: Owner,
    pub(crate) lease: Option<Lease>,
    pub(crate) call: Call,
    /// A statement whose connection was given up. It may still be executed; nobody hears the answer.
    pub(crate) ghost: Option<(Request, Owner)>,
    pub(crate) fenced: Fenced,
}

/// A grant as its holder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lease {
    pub(crate) token: u8,
    /// Which grant this is; its holder does not know.
    pub(crate) grant: u8,
    pub(crate) belief: Belief,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Belief {
    /// For so long; never nothing.
    Held(i8),
    Lost,
    LetGo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Request {
    Acquire,
    Renew,
    Release,
}

/// The statement under way. Ages count from before it was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Call {
    #[default]
    None,
    /// `drawn`: a token that the variant draws too early; else 0.
    Sent {
        request: Request,
        age: i8,
        drawn: u8,
    },
    Answered {
        request: Request,
        age: i8,
        answer: Answer,
    },
    /// The request or its answer was lost, or the connection given up.
    Unanswered(Request),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Answer {
    Granted(Granted),
    Renewed,
    Released,
    /// Held by somebody else; superseded, expired or gone; not the owner.
    Refused,
}

/// A fenced transaction of the application, which may not have heard that the lease is lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fenced {
    #[default]
    None,
    /// Repeatable read: the row as of the snapshot.
    Begun { seen: Seen },
    /// The check has passed. It holds the row for key share, unless a variant does not.
    Passed { owner: Owner, is_stale: bool },
}

/// What a snapshot shows of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Seen {
    pub(crate) owner: Owner,
    pub(crate) fence: u8,
    pub(crate) grant: u8,
}

impl Client {
    pub(crate) fn tick(&mut self, oldest: i8) {
        if let Some(lease) = &mut self.lease
            && let Belief::Held(window) = lease.belief
        {
            lease.belief = if window > 1 {
                Belief::Held(window - 1)
            } else {
                Belief::Lost
            };
        }
        match &mut self.call {
            // The age of a release is nobody's concern.
            Call::Sent { request, age, .. } | Call::Answered { request, age, .. } if *request != Request::Release => {
                *age = (*age + 1).min(oldest);
            }
            _ => {}
        }
    }

    /// The lease it believes in.
    pub(crate) fn held(&self) -> Option<Lease> {
        self.lease.filter(|lease| matches!(lease.belief, Belief::Held(_)))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lease.is_some_and(|lease| lease.belief == Belief::Lost)
    }

    pub(crate) fn send(&mut self, request: Request) {
        self.call = Call::Sent {
            request,
            age: 0,
            drawn: 0,
        };
    }

    /// The request or its answer is lost.
    pub(crate) fn lose_call(&mut self) {
        self.call = match self.call {
            Call::Sent { request, .. } | Call::Answered { request, .. } if request != Request::Renew => {
                Call::Unanswered(request)
            }
            // Asked again if it is still held.
            _ => Call::None,
        };
    }

    /// The connection is given up; its statement may still be executed.
    pub(crate) fn give_up(&mut self) {
        if let Call::Sent { request, .. } = self.call {
            self.ghost = Some((request, self.owner));
        }
        self.lose_call();
    }

    pub(crate) fn retry(&mut self) {
        if let Call::Unanswered(request) = self.call {
            self.send(request);
        }
    }

    /// An acquire that nobody wants any more is released; a release is left to the ttl.
    pub(crate) fn abandon(&mut self) {
        match self.call {
            Call::Unanswered(Request::Acquire) => self.release_later(),
            _ => self.call = Call::None,
        }
    }

    /// What nobody wants, or came too late, is given back.
    pub(crate) fn release_later(&mut self) {
        self.call = Call::Unanswered(Request::Release);
    }

    pub(crate) fn believe(&mut self, window: i8) {
        self.end(if window > 0 { Belief::Held(window) } else { Belief::Lost });
    }

    pub(crate) fn lose(&mut self) {
        if self.held().is_some() {
            self.end(Belief::Lost);
        }
    }

    pub(crate) fn let_go(&mut self) {
        if self.held().is_some() {
            self.end(Belief::LetGo);
        }
    }

    fn end(&mut self, belief: Belief) {
        if let Some(lease) = &mut self.lease {
            lease.belief = belief;
        }
    }

    /// Lets go of what it had; the next acquisition has another owner token.
    pub(crate) fn forget(&mut self) {
        self.owner = 0;
        self.lease = None;
        self.call = Call::None;
    }

    /// The server it was connected to is gone.
    pub(crate) fn disconnect(&mut self) {
        if let Call::Sent { request, .. } = self.call {
            self.call = Call::Unanswered(request);
        }
        self.ghost = None;
        self.fenced = Fenced::None;
    }
}

impl Seen {
    pub(crate) fn of(row: &Database) -> Self {
        Self {
            owner: row.owner,
            fence: row.fence,
            grant: row.grant,
        }
    }

    /// `leasehold.fence`, by the version of the row that the snapshot shows.
    pub(crate) fn is_current(self, owner: Owner, token: u8, variant: Variant) -> bool {
        let row = Database {
            owner: self.owner,
            fence: self.fence,
            ..Database::default()
        };
        row.is_current(owner, token, variant)
    }

    /// Whether the row can be locked: neither granted anew nor swept since.
    pub(crate) fn is_lockable(self, row: &Database) -> bool {
        (self.fence, self.grant) == (row.fence, row.grant)
    }
}
