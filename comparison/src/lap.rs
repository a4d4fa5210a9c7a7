//! Tasks that do one thing again and again: a warm-up, then a window in which it is counted.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::peer::{Outcome, Pending};
use crate::statistics::{quantile, sorted};

/// What a task repeats.
pub trait Step: Send {
    fn step(&mut self) -> Pending<'_, ()>;
}

#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub warm_up: Duration,
    pub counted: Duration,
}

pub struct Lap {
    /// Steps a second, of all tasks together.
    pub rate: f64,
    /// One for each counted step.
    pub milliseconds: Vec<f64>,
}

impl Lap {
    pub fn p50(&self) -> Outcome<f64> {
        let p50 = quantile(&sorted(self.milliseconds.iter().copied()), 0.5);
        p50.ok_or_else(|| "no step ended within the window".into())
    }
}

/// Counts the steps that end within the window, which begins with its warm-up once every task has
/// made a first step. The steps come back for the next lap.
pub async fn run<S: Step + 'static>(steps: Vec<S>, window: Window) -> Outcome<(Lap, Vec<S>)> {
    let (all_ready, counted_from) = (Arc::new(Barrier::new(steps.len())), Arc::new(OnceLock::new()));
    let mut tasks = JoinSet::new();
    for mut step in steps {
        let (all_ready, counted_from) = (Arc::clone(&all_ready), Arc::clone(&counted_from));
        tasks.spawn(async move {
            step.step().await?;
            all_ready.wait().await;
            let from = *counted_from.get_or_init(|| Instant::now() + window.warm_up);
            let until = from + window.counted;
            let mut took = Vec::new();
            loop {
                let began_at = Instant::now();
                step.step().await?;
                let ended_at = Instant::now();
                if ended_at >= until {
                    return Outcome::Ok((took, step));
                }
                if ended_at >= from {
                    took.push((ended_at - began_at).as_secs_f64() * 1e3);
                }
            }
        });
    }
    let (mut milliseconds, mut steps) = (Vec::new(), Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (took, step) = done??;
        milliseconds.extend(took);
        steps.push(step);
    }
    let lap = Lap {
        rate: milliseconds.len() as f64 / window.counted.as_secs_f64(),
        milliseconds,
    };
    Ok((lap, steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sleep(Duration);

    impl Step for Sleep {
        fn step(&mut self) -> Pending<'_, ()> {
            let sleep = tokio::time::sleep(self.0);
            Box::pin(async {
                sleep.await;
                Ok(())
            })
        }
    }

    #[tokio::test]
    async fn only_the_window_is_counted_and_all_tasks_are() {
        let steps = (0..4).map(|_| Sleep(Duration::from_millis(10))).collect();
        let window = Window {
            warm_up: Duration::from_millis(200),
            counted: Duration::from_millis(400),
        };

        let (lap, steps) = run(steps, window).await.unwrap();

        assert_eq!(steps.len(), 4);
        // At most 100 a second for each task, and a few that began in the warm-up.
        assert!((80.0..=410.0).contains(&lap.rate), "{}", lap.rate);
        assert_eq!(lap.rate, lap.milliseconds.len() as f64 / 0.4);
        assert!(lap.p50().unwrap() >= 10.0);
    }

    struct Fails;

    impl Step for Fails {
        fn step(&mut self) -> Pending<'_, ()> {
            Box::pin(async { Err("no".into()) })
        }
    }

    #[tokio::test]
    async fn step_that_fails_fails_the_lap() {
        let window = Window {
            warm_up: Duration::ZERO,
            counted: Duration::from_secs(5),
        };

        assert!(run(vec![Fails], window).await.is_err());
    }
}
