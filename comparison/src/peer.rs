//! What a peer has to offer to be compared: sessions that acquire and release.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;

pub type Fault = Box<dyn Error + Send + Sync>;
pub type Outcome<T> = Result<T, Fault>;
/// Boxed alike for all peers: one allocation an operation.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send + 'a>>;

pub trait Peer: Send + Sync {
    /// The name under which its figures stand.
    fn name(&self) -> &'static str;

    /// What one task works through; sessions are numbered from 0.
    fn session(&self, number: usize) -> Pending<'_, Box<dyn Session>>;

    /// The longest line it is measured with; 0 when it has nothing to wait for.
    fn waiters_at_most(&self) -> usize {
        512
    }

    /// Whether it looks again and again instead of being told.
    fn is_polling(&self) -> bool {
        false
    }

    /// Whether it can answer at once that a name is held.
    fn can_miss(&self) -> bool {
        true
    }

    /// Ends what it does in the background.
    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

pub trait Session: Send {
    /// Waits until the name is this session's.
    fn acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, ()>;

    /// Asks once.
    fn try_acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, bool>;

    /// Lets go of what was acquired last.
    fn release(&mut self) -> Pending<'_, ()>;
}
