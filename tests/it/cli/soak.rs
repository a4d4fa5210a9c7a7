//! `leasehold run` under faults of every kind, many times: no two commands of one name ever run at the same time.
//!
//! The kernel is the judge. Each command takes a lock of the file system, which lasts exactly as long as its
//! processes do; whoever finds it taken writes that down.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_testkit::{FaultProxy, signals};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::Running;
use crate::support::cancelled::Rng;
use crate::support::{SOON, TestDb, unique_name};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_never_overlap_whatever_stops_kills_or_cuts_off_one_of_their_processes() {
    starts(40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: a thousand starts"]
async fn commands_never_overlap_in_a_thousand_starts() {
    starts(1000).await;
}

/// From four places at once, each with a network of its own.
async fn starts(all: usize) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let directory = std::env::temp_dir().join(format!("leasehold-{}", Uuid::new_v4()));
    std::fs::create_dir(&directory).unwrap();
    let (mut rng, mut places) = (Rng::new(), Vec::new());
    for _ in 0..PLACES {
        let place = Place {
            proxy: db.proxy(),
            at: db.options.clone(),
            name: name.clone(),
            directory: directory.clone(),
            rng: rng.fork(),
        };
        places.push(tokio::spawn(place.start_often(all / PLACES)));
    }

    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for place in places {
        for what in place.await.unwrap() {
            *seen.entry(what).or_default() += 1;
        }
    }

    eprintln!("{seen:?}");
    let overlaps = std::fs::read_to_string(directory.join("overlaps")).unwrap_or_default();
    assert_eq!(overlaps, "", "{seen:?}");
    let begun = std::fs::read_to_string(directory.join("begun"))
        .unwrap()
        .lines()
        .count();
    assert!(begun > all / 2, "{begun} of {all} commands have begun: {seen:?}");
    std::fs::remove_dir_all(directory).unwrap();
}

struct Place {
    proxy: FaultProxy,
    at: sqlx::postgres::PgConnectOptions,
    name: String,
    directory: PathBuf,
    rng: Rng,
}

impl Place {
    /// What was done, and how each run ended.
    async fn start_often(mut self, times: usize) -> Vec<String> {
        let mut seen = Vec::new();
        for _ in 0..times {
            let directory = self.directory.display();
            let script = format!(
                "exec 9>{directory}/lock; flock -n 9 || echo $$ >> {directory}/overlaps
                echo $$ >> {directory}/begun; trap '' TERM; sleep 0.{}; sleep 0.1",
                self.rng.in_range(0..4)
            );
            let options = ["--wait", "30s", "--ttl", "1s", "--grace", "100ms"];
            let started = Running::try_start(&self.proxy.options(&self.at), &self.name, &options, &script).await;
            let Some(running) = started else {
                seen.push("not granted".to_owned());
                continue;
            };
            seen.push(self.fault(&running).await);
            let (runner, holder) = (running.runner(), running.try_holder());
            let ended = timeout(SOON, running.runner.wait_with_output())
                .await
                .expect("it ends")
                .unwrap();
            seen.push(format!("exit {:?}", ended.status.code()));
            // Whoever was stopped and left alone goes on, so that nothing is left.
            [Some(runner), holder].into_iter().flatten().for_each(|pid| {
                signals::cont(pid);
            });
            self.proxy.heal();
        }
        seen
    }

    /// Longer than the ttl, where it lasts.
    async fn fault(&mut self, running: &Running) -> String {
        let (runner, holder) = (running.runner(), running.try_holder());
        let lasting = Duration::from_millis(self.rng.in_range(1000..1600));
        let what = match (self.rng.in_range(0..8), holder) {
            (0, _) => {
                self.proxy.pause();
                sleep(lasting).await;
                self.proxy.resume();
                "packets swallowed"
            }
            (1, _) => {
                self.proxy.cut();
                "connections cut"
            }
            (2, _) => {
                self.proxy.delay(Duration::from_millis(200));
                "answers late"
            }
            (3, _) => {
                signals::stop(runner);
                self.proxy.pause();
                sleep(lasting).await;
                signals::cont(runner);
                self.proxy.resume();
                "runner stopped, packets swallowed"
            }
            (4, Some(holder)) => {
                signals::stop(holder);
                sleep(lasting).await;
                signals::cont(holder);
                "holder stopped"
            }
            (5, _) => {
                signals::kill(runner);
                "runner killed"
            }
            (6, Some(holder)) => {
                signals::kill(holder);
                "holder killed"
            }
            _ => "nothing",
        };
        what.to_owned()
    }
}

const PLACES: usize = 4;
