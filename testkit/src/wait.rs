//! Waiting for a condition, with a deadline and a message.

use std::fmt::{self, Debug};
use std::future::Future;
use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Waits until `condition` holds and returns its value.
///
/// A `bool` condition holds when it is true; an `Option` when it is `Some`, and its
/// content is returned. The condition is asked again 5 ms after each answer.
///
/// # Panics
///
/// When `deadline` has passed, with `what`, the caller's place and the last answer. A
/// condition that never answers does not hold up the deadline.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let started_at = Instant::now();
/// let waited = leasehold_testkit::eventually(Duration::from_secs(5), "20 ms have gone by", async || {
///     Some(started_at.elapsed()).filter(|waited| *waited > Duration::from_millis(20))
/// })
/// .await;
/// assert!(waited < Duration::from_secs(5));
/// # }
/// ```
#[track_caller]
pub fn eventually<C, O>(deadline: Duration, what: &str, condition: C) -> impl Future<Output = O::Value>
where
    C: AsyncFnMut() -> O,
    O: Outcome,
{
    let place = Location::caller();
    async move {
        match try_eventually(deadline, what, condition).await {
            Ok(value) => value,
            Err(error) => panic!("{error} (at {place})"),
        }
    }
}

/// Waits as [`eventually`] does, for those who clear away before they fail.
///
/// # Errors
///
/// [`NotInTime`] when the deadline has passed, with `what` and the last answer.
pub async fn try_eventually<C, O>(deadline: Duration, what: &str, mut condition: C) -> Result<O::Value, NotInTime>
where
    C: AsyncFnMut() -> O,
    O: Outcome,
{
    let until = Instant::now() + deadline;
    let mut last = "no answer yet".to_owned();
    loop {
        let is_answered = match timeout_at(until, condition()).await {
            Ok(answer) => match answer.reached() {
                Ok(value) => return Ok(value),
                Err(answer) => {
                    last = format!("{answer:?}");
                    true
                }
            },
            Err(_) => false,
        };
        if !is_answered || Instant::now() >= until {
            return Err(NotInTime(format!(
                "not within {deadline:?}: {what}; last answer: {last}"
            )));
        }
        sleep(POLL_EVERY).await;
    }
}

/// A condition did not come to hold before its deadline.
#[derive(Debug)]
pub struct NotInTime(String);

impl fmt::Display for NotInTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for NotInTime {}

/// The answer of a condition given to [`eventually`].
pub trait Outcome: Debug {
    /// What is known once the condition holds.
    type Value;

    /// Returns the value when the condition holds, else the answer itself.
    fn reached(self) -> Result<Self::Value, Self>
    where
        Self: Sized;
}

impl Outcome for bool {
    type Value = ();

    fn reached(self) -> Result<(), Self> {
        if self { Ok(()) } else { Err(self) }
    }
}

impl<T: Debug> Outcome for Option<T> {
    type Value = T;

    fn reached(self) -> Result<T, Self> {
        self.ok_or(None)
    }
}

impl<T: Debug, E: Debug> Outcome for Result<T, E> {
    type Value = T;

    fn reached(self) -> Result<T, Self> {
        self.map_err(Err)
    }
}

const POLL_EVERY: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_the_value_once_there_is_one() {
        let mut asked = 0;

        let value = eventually(Duration::from_secs(5), "asked three times", async || {
            asked += 1;
            (asked == 3).then_some("third")
        })
        .await;

        assert_eq!(value, "third");
    }

    #[tokio::test]
    #[should_panic(expected = "pigs fly")]
    async fn panics_with_the_message_at_the_deadline() {
        eventually(Duration::from_millis(20), "pigs fly", async || false).await;
    }

    #[tokio::test]
    async fn try_eventually_tells_what_did_not_come_to_be_and_the_last_answer() {
        let missed = try_eventually(Duration::from_millis(20), "pigs fly", async || Err::<(), _>("not yet")).await;

        let missed = missed.unwrap_err().to_string();
        assert!(missed.contains("pigs fly") && missed.contains("not yet"), "{missed}");
    }

    #[tokio::test]
    #[should_panic(expected = "no answer yet")]
    async fn a_condition_that_never_answers_does_not_hold_up_the_deadline() {
        eventually(Duration::from_millis(20), "silence ends", async || {
            std::future::pending::<bool>().await
        })
        .await;
    }
}
