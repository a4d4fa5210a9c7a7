//! What this process believes of one lease: the one piece of state that its holder, the keeper
//! and the lane share.
//!
//! ```text
//!   held ──── extend: a renewal was confirmed before the window ended
//!    │ ╲
//!    │  ╲──── lose: refused, or the window ended ──▶ lost (for good)
//!    │
//!    └─────── let_go: a release is about to be sent ──▶ let go (for good)
//! ```
//!
//! 1. Nothing leads back to held: a lost grant is never revived.
//! 2. Whoever first sees that the window is over makes it a loss, whichever task that is, so a
//!    stalled keeper cannot delay it and a late answer cannot undo it.
//! 3. It ends before a release is sent, not when that is answered.

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::error::LossCause;
use crate::signals::{Class, Holding};
use crate::trust::{Moment, Standing, Window};

#[derive(Debug)]
pub(crate) struct Belief {
    state: watch::Sender<State>,
    hold_until: Option<Instant>,
    /// What is told of it in numbers, once it has come to its holder.
    holding: Option<Holding>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Held(Window),
    Lost(LossCause),
    LetGo,
}

impl Belief {
    pub(crate) fn new(window: Window, hold_until: Option<Instant>) -> Self {
        Self {
            state: watch::Sender::new(State::Held(window.ending_by(hold_until))),
            hold_until,
            holding: None,
        }
    }

    /// Counts it from now on until it ends.
    pub(crate) fn counted(mut self, class: Class) -> Self {
        self.holding = Some(Holding::begin(class));
        self
    }

    /// Held, and both clocks agree that it still is.
    pub(crate) fn is_held(&self) -> bool {
        self.standing() == Some(Standing::Held)
    }

    /// Where the window stands; `None` once it has ended for good.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.standing_at(Moment::now())
    }

    /// The same for who has just read the clocks, to look at many.
    pub(crate) fn standing_at(&self, now: Moment) -> Option<Standing> {
        self.settle(now);
        match *self.state.borrow() {
            State::Held(window) => Some(window.standing(now)),
            State::Lost(_) | State::LetGo => None,
        }
    }

    /// The window, as long as it is not over.
    pub(crate) fn window(&self) -> Option<Window> {
        self.window_at(Moment::now())
    }

    /// The same for who has just read the clocks, to look at many.
    pub(crate) fn window_at(&self, now: Moment) -> Option<Window> {
        self.settle(now);
        match *self.state.borrow() {
            State::Held(window) => Some(window),
            State::Lost(_) | State::LetGo => None,
        }
    }

    /// How it was lost, if it was.
    pub(crate) fn loss(&self) -> Option<LossCause> {
        self.settle(Moment::now());
        match *self.state.borrow() {
            State::Lost(cause) => Some(cause),
            State::Held(_) | State::LetGo => None,
        }
    }

    /// A renewal was confirmed. Refused when the belief has ended meanwhile.
    pub(crate) fn extend(&self, window: Window) -> bool {
        self.settle(Moment::now());
        self.state.send_if_modified(|state| match state {
            State::Held(held) => {
                *held = window.ending_by(self.hold_until);
                true
            }
            State::Lost(_) | State::LetGo => false,
        })
    }

    /// Ends it as lost. False when it had ended before.
    pub(crate) fn lose(&self, cause: LossCause) -> bool {
        self.end(State::Lost(cause))
    }

    /// Ends it because a release is about to be sent. False when it had ended before.
    pub(crate) fn let_go(&self) -> bool {
        self.settle(Moment::now());
        self.end(State::LetGo)
    }

    /// Waits until it is lost. Pends for ever once it was let go.
    pub(crate) async fn lost(&self) -> LossCause {
        let mut changes = self.state.subscribe();
        loop {
            self.settle(Moment::now());
            let state = *changes.borrow_and_update();
            match state {
                State::Lost(cause) => return cause,
                State::LetGo => std::future::pending().await,
                State::Held(window) => tokio::select! {
                    // The sender is a field of self.
                    changed = changes.changed() => changed.expect("the state outlives its watcher"),
                    () = sleep_until(window.until()) => {}
                },
            }
        }
    }

    fn end(&self, end: State) -> bool {
        self.end_if(end, |_| true)
    }

    fn settle(&self, now: Moment) {
        let over = |state: &State| matches!(state, State::Held(window) if window.standing(now) == Standing::Over);
        if !over(&self.state.borrow()) {
            return;
        }
        let cause = match self.hold_until {
            Some(limit) if limit <= now.at => LossCause::HeldAtMost,
            _ => LossCause::Expired,
        };
        self.end_if(State::Lost(cause), over);
    }

    /// The one way out of held: whoever takes it tells.
    fn end_if(&self, end: State, condition: impl Fn(&State) -> bool) -> bool {
        let has_ended = self.state.send_if_modified(|state| {
            let ends = matches!(state, State::Held(_)) && condition(state);
            if ends {
                *state = end;
            }
            ends
        });
        if let Some(holding) = self.holding.as_ref().filter(|_| has_ended) {
            match end {
                State::Lost(cause) => holding.lost(cause),
                State::LetGo | State::Held(_) => holding.let_go(),
            }
        }
        has_ended
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn window() -> Window {
        Window::new(Moment::now(), SECOND, SECOND / 10)
    }

    #[tokio::test(start_paused = true)]
    async fn window_that_ends_is_a_loss_that_no_late_answer_undoes() {
        let belief = Belief::new(window(), None);
        assert!(belief.is_held());

        assert_eq!(belief.lost().await, LossCause::Expired);

        assert!(!belief.extend(window()));
        assert_eq!(belief.loss(), Some(LossCause::Expired));
    }

    #[tokio::test(start_paused = true)]
    async fn extended_window_moves_the_loss() {
        let belief = Belief::new(window(), None);
        tokio::time::advance(SECOND / 2).await;
        assert!(belief.extend(window()));
        let renewed_at = Instant::now();

        belief.lost().await;

        assert!(renewed_at.elapsed() >= SECOND * 9 / 10);
    }

    #[tokio::test(start_paused = true)]
    async fn hold_at_most_cuts_every_window_and_names_itself() {
        let belief = Belief::new(window(), Some(Instant::now() + SECOND / 2));
        belief.extend(window());

        assert_eq!(belief.lost().await, LossCause::HeldAtMost);
    }

    #[tokio::test(start_paused = true)]
    async fn belief_that_was_let_go_is_neither_held_nor_lost() {
        let belief = Belief::new(window(), None);

        assert!(belief.let_go());

        assert!(!belief.is_held());
        assert!(!belief.lose(LossCause::Gone));
        assert_eq!(belief.loss(), None);
    }
}
