//! B: hand-offs from holder to waiter.
//!
//! All stand in line before the name is let go for the first time. Whoever has had a turn asks
//! again once somebody else has been granted the name, so that everybody but the holder waits at
//! every release. Without that, whoever looks now and then would lose the name to its last holder
//! again and again, and be counted only when it happened to look in time.
//!
//! A hand-off lasts from just before the release until the next one has the name. In a short line
//! the holder keeps the name for [`HOLD`], so that who had it before is in line again. Sessions
//! stand for up to [`CLIENTS`] processes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgListener};
use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::dice::Dice;
use crate::figures::{Figures, Key};
use crate::lap::{self, Step};
use crate::meter;
use crate::peer::{Outcome, Peer, Pending, Session};
use crate::peers::updates::Update;
use crate::peers::{self, leasehold};
use crate::plan::Plan;
use crate::servers::Servers;
use crate::works::announce;

pub const UPDATE: &str = "one update";
pub const NOTIFY: &str = "notify round trip";
/// The same when nothing has run for [`HOLD`], as at the end of a turn in a short line.
const UPDATE_RESTED: &str = "one update, after 5 ms of rest";
const NOTIFY_RESTED: &str = "notify round trip, after 5 ms of rest";
pub const HOT_NAMES: usize = 16;
pub const HOT_WAITERS: usize = 4;
pub const COUNTED_LINE: usize = 64;
const CLIENTS: usize = 4;

pub async fn run(plan: &Plan, servers: &Servers, dice: &mut Dice, figures: &mut Figures) -> Outcome<()> {
    let peers = peers::all(servers, CLIENTS).await?;
    for round in 0..plan.rounds {
        let mut order = Vec::new();
        for peer in &peers {
            let lines = if peer.is_polling() {
                plan.polled_lines
            } else {
                plan.lines
            };
            let fitting = lines.iter().filter(|line| **line <= peer.waiters_at_most());
            order.extend(fitting.map(|line| (peer.as_ref(), 1, *line)));
            if peer.waiters_at_most() > 0 && !(plan.is_quick && peer.is_polling()) {
                order.extend([1, HOT_NAMES].map(|names| (peer.as_ref(), names, HOT_WAITERS)));
            }
        }
        dice.shuffle(&mut order);
        announce(round, "B, hand-offs");
        limits(plan, &servers.postgres.options(), round, figures).await?;
        for (peer, names, line) in order {
            let key = Key::new('B', "", peer.name(), line as u64);
            let prefix = format!("handoff:{round}:{line}");
            let (began_at, busy) = (Instant::now(), meter::busy(&servers.postgres));
            let relayed = relay(peer, (names, line), &prefix, plan.turns, None).await;
            let cores = (meter::busy(&servers.postgres) - busy).as_secs_f64() / began_at.elapsed().as_secs_f64();
            let Some(relay) = figures.or_note(key, round, relayed) else {
                continue;
            };
            if line == HOT_WAITERS {
                let key = Key::new('B', "hand-offs/s on hot names", peer.name(), names as u64);
                figures.record(key, round, relay.rate);
                if peer.name() == leasehold::NAME {
                    figures.record(key.measure("cores busy on hot names"), round, cores);
                }
                continue;
            }
            if hold(names, line).is_none() {
                figures.record(key.measure("hand-offs/s"), round, relay.rate);
            }
            if let Some(turns) = relay.most_to_least_turns {
                figures.record(key.measure("most/least turns"), round, turns);
            }
            figures.record_latencies(key, round, relay.milliseconds);
        }
    }
    for peer in peers {
        peer.close().await?;
    }
    count(plan, servers, figures).await
}

struct Relay {
    milliseconds: Vec<f64>,
    /// Hand-offs a second.
    rate: f64,
    /// Among the waiters of a name, over whole circles of the line; unknown when there was none.
    most_to_least_turns: Option<f64>,
    handoffs: usize,
    /// Those of the last ones too, who stand in line no more.
    all_turns: usize,
    /// Between the first release and the end, when they are counted.
    statements: i64,
}

struct Turn {
    name: usize,
    waiter: usize,
    asked_at: Instant,
    granted_at: Instant,
    released_at: Instant,
}

/// Counts statements when it is given a session to ask with.
async fn relay(
    peer: &dyn Peer,
    (names, line): (usize, usize),
    prefix: &str,
    lasting: Duration,
    mut counting: Option<&mut PgConnection>,
) -> Outcome<Relay> {
    let (asked, turns, mut tasks) = (Arc::default(), Arc::default(), JoinSet::new());
    let stop = watch::Sender::new(false);
    let mut holders = Vec::new();
    for name in 0..names {
        let full_name = format!("{prefix}:{names}:{name}");
        let mut holder = peer.session(name).await?;
        holder.acquire(&full_name).await?;
        holders.push(holder);
        let grants = watch::Sender::new(0);
        for waiter in 0..line {
            let waiter = Waiter {
                session: peer.session(waiter).await?,
                full_name: full_name.clone(),
                name,
                number: waiter,
                hold: hold(names, line),
                grants: grants.clone(),
                stop: stop.clone(),
                asked: Arc::clone(&asked),
                turns: Arc::clone(&turns),
            };
            tasks.spawn(waiter.take_turns());
        }
    }
    while asked.load(Ordering::Relaxed) < names * line {
        sleep(Duration::from_millis(5)).await;
    }
    // They have begun to ask; each has to be in line, too.
    sleep(Duration::from_millis(100) + Duration::from_micros(300) * (names * line) as u32).await;

    let before = count_with(&mut counting).await?;
    let from = Instant::now();
    for holder in &mut holders {
        holder.release().await?;
    }
    sleep(lasting).await;
    let until = Instant::now();
    let statements = count_with(&mut counting).await? - before;
    stop.send_replace(true);
    // Who gets no other turn at once is dropped while it waits.
    while let Ok(Some(done)) = timeout(LAST_TURNS, tasks.join_next()).await {
        done??;
    }
    tasks.shutdown().await;
    let turns = std::mem::take(&mut *lock(&turns));
    Ok(Relay {
        statements,
        ..Relay::judge(turns, line, from, until)
    })
}

async fn count_with(session: &mut Option<&mut PgConnection>) -> Outcome<i64> {
    match session {
        Some(session) => meter::statements_of_work(session).await,
        None => Ok(0),
    }
}

struct Waiter {
    session: Box<dyn Session>,
    full_name: String,
    name: usize,
    number: usize,
    hold: Option<Duration>,
    /// How often the name was granted.
    grants: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    asked: Arc<AtomicUsize>,
    turns: Arc<Mutex<Vec<Turn>>>,
}

impl Waiter {
    async fn take_turns(mut self) -> Outcome<()> {
        let (mut grants, mut stop) = (self.grants.subscribe(), self.stop.subscribe());
        let mut is_first = true;
        while !*stop.borrow() {
            let asked_at = Instant::now();
            if std::mem::take(&mut is_first) {
                self.asked.fetch_add(1, Ordering::Relaxed);
            }
            self.session.acquire(&self.full_name).await?;
            let granted_at = Instant::now();
            let mut mine = 0;
            self.grants.send_modify(|grants| {
                *grants += 1;
                mine = *grants;
            });
            if let Some(hold) = self.hold {
                sleep(hold).await;
            }
            let released_at = Instant::now();
            self.session.release().await?;
            lock(&self.turns).push(Turn {
                name: self.name,
                waiter: self.number,
                asked_at,
                granted_at,
                released_at,
            });
            tokio::select! {
                _ = grants.wait_for(|grants| *grants > mine) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
        Ok(())
    }
}

impl Relay {
    fn judge(turns: Vec<Turn>, line: usize, from: Instant, until: Instant) -> Self {
        let all_turns = turns.len();
        let mut by_name: BTreeMap<usize, Vec<Turn>> = BTreeMap::new();
        for turn in turns {
            by_name.entry(turn.name).or_default().push(turn);
        }
        let (mut milliseconds, mut handoffs) = (Vec::new(), 0);
        let mut most_to_least: Option<f64> = None;
        for turns in by_name.values_mut() {
            turns.sort_by_key(|turn| turn.granted_at);
            turns.retain(|turn| turn.granted_at <= until);
            let waited = turns.windows(2).filter(|pair| pair[1].asked_at < pair[0].released_at);
            let took = waited.map(|pair| pair[1].granted_at.saturating_duration_since(pair[0].released_at));
            milliseconds.extend(took.map(|took| took.as_secs_f64() * 1e3));
            // The first among them too, from the holder that let all of them line up.
            handoffs += turns.len();
            if let Some(ratio) = most_to_least_turns(turns, line) {
                most_to_least = Some(most_to_least.map_or(ratio, |others| others.max(ratio)));
            }
        }
        Self {
            milliseconds,
            rate: handoffs as f64 / (until - from).as_secs_f64(),
            most_to_least_turns: most_to_least,
            handoffs,
            all_turns,
            statements: 0,
        }
    }
}

/// How long a turn lasts where the line is short; where hand-offs a second are counted, no time.
fn hold(names: usize, line: usize) -> Option<Duration> {
    (names == 1 && line != HOT_WAITERS && line < COUNTED_LINE).then_some(HOLD)
}

/// Over as many turns as make whole circles of the line, if they are enough for a turn more or less
/// at the ends not to matter; infinite when somebody had none.
fn most_to_least_turns(turns: &[Turn], line: usize) -> Option<f64> {
    let whole = turns.len() / line * line;
    if whole < line * LEAST_CIRCLES {
        return None;
    }
    let mut taken = vec![0_u32; line];
    turns[..whole].iter().for_each(|turn| taken[turn.waiter] += 1);
    let (most, least) = (taken.iter().max()?, taken.iter().min()?);
    Some(f64::from(*most) / f64::from(*least))
}

/// What a hand-off through a database costs at least: a durable update, and a notification that waits
/// for no flush.
async fn limits(plan: &Plan, options: &PgConnectOptions, round: u32, figures: &mut Figures) -> Outcome<()> {
    let update = OneUpdate(Update::connect(options, 0).await?);
    let (lap, mut updates) = lap::run(vec![update], plan.lap).await?;
    figures.record_latencies(Key::new('B', "", UPDATE, 1), round, lap.milliseconds);
    let rested = after_rest(plan, &mut updates[0]).await?;
    figures.record_latencies(Key::new('B', "", UPDATE_RESTED, 1), round, rested);

    let mut listener = PgListener::connect_with(&peers::pool(options)).await?;
    listener.listen("yardstick").await?;
    let mut connection = PgConnection::connect_with(options).await?;
    sqlx::query("set synchronous_commit = off")
        .execute(&mut connection)
        .await?;
    let (lap, mut trips) = lap::run(vec![RoundTrip { connection, listener }], plan.lap).await?;
    figures.record_latencies(Key::new('B', "", NOTIFY, 1), round, lap.milliseconds);
    let rested = after_rest(plan, &mut trips[0]).await?;
    figures.record_latencies(Key::new('B', "", NOTIFY_RESTED, 1), round, rested);
    Ok(())
}

/// Milliseconds that a step takes when nothing has run for [`HOLD`] before it.
async fn after_rest(plan: &Plan, step: &mut impl Step) -> Outcome<Vec<f64>> {
    let (mut milliseconds, until) = (Vec::new(), Instant::now() + plan.lap.counted);
    while Instant::now() < until {
        sleep(HOLD).await;
        let from = Instant::now();
        step.step().await?;
        milliseconds.push(from.elapsed().as_secs_f64() * 1e3);
    }
    Ok(milliseconds)
}

struct OneUpdate(Update);

impl Step for OneUpdate {
    fn step(&mut self) -> Pending<'_, ()> {
        Box::pin(self.0.once())
    }
}

struct RoundTrip {
    connection: PgConnection,
    listener: PgListener,
}

impl Step for RoundTrip {
    fn step(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            let notify = sqlx::query("notify yardstick").execute(&mut self.connection);
            let (sent, received) = tokio::join!(notify, self.listener.recv());
            sent?;
            received?;
            Ok(())
        })
    }
}

/// Statements and notifications of a hand-off, on the server that counts them.
async fn count(plan: &Plan, servers: &Servers, figures: &mut Figures) -> Outcome<()> {
    let options = servers.counting.options();
    let mut session = servers.counting.connect().await;
    for round in 0..plan.slow_rounds {
        announce(round, "B, statements");
        for peer in peers::on_postgres(&options, CLIENTS).await? {
            if peer.waiters_at_most() > 0 && !(plan.is_quick && peer.is_polling()) {
                let key = Key::new('B', "", peer.name(), COUNTED_LINE as u64);
                let before = wakes(&mut session).await?;
                let (prefix, sizes) = (format!("counted:{round}"), (1, COUNTED_LINE));
                let relayed = relay(peer.as_ref(), sizes, &prefix, plan.turns, Some(&mut session)).await;
                peer.close().await?;
                settle().await;
                let Some(relay) = figures.or_note(key, round, relayed) else {
                    continue;
                };
                let each = relay.statements as f64 / relay.handoffs as f64;
                figures.record(key.measure("statements/hand-off"), round, each);
                if peer.name() == leasehold::NAME {
                    let each = (wakes(&mut session).await? - before) as f64 / relay.all_turns as f64;
                    figures.record(key.measure("notifications/hand-off"), round, each);
                }
            }
        }
    }
    Ok(())
}

/// The function that notifies a waiter.
async fn wakes(session: &mut PgConnection) -> Outcome<i64> {
    meter::calls(session, "wake").await
}

/// Sessions report what they did within a second, and as they end.
async fn settle() {
    sleep(Duration::from_millis(1500)).await;
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const LAST_TURNS: Duration = Duration::from_millis(200);
const HOLD: Duration = Duration::from_millis(5);
const LEAST_CIRCLES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds: waiter, asked, granted, released.
    fn turn(origin: Instant, numbers: [u64; 4]) -> Turn {
        let at = |milliseconds| origin + Duration::from_millis(milliseconds);
        let [waiter, asked, granted, released] = numbers;
        Turn {
            name: 0,
            waiter: waiter as usize,
            asked_at: at(asked),
            granted_at: at(granted),
            released_at: at(released),
        }
    }

    #[test]
    fn handoff_counts_when_the_next_was_waiting_and_lasts_from_the_release() {
        let origin = Instant::now();
        let turns = [[0, 0, 10, 11], [1, 0, 14, 15], [0, 16, 20, 21], [1, 17, 500, 501]];
        let turns = turns.into_iter().rev().map(|turn_| turn(origin, turn_)).collect();

        let relay = Relay::judge(turns, 2, origin, origin + Duration::from_millis(100));

        // The third came only after the release, the fourth after the end.
        assert_eq!(relay.milliseconds, [3.0]);
        assert_eq!((relay.handoffs, relay.all_turns), (3, 4));
        assert!((relay.rate - 30.0).abs() < 1e-9, "{}", relay.rate);
    }

    #[test]
    fn turns_are_compared_over_whole_circles_and_nobody_is_left_out() {
        let origin = Instant::now();
        let taken = |waiters: &[u64]| -> Vec<Turn> { waiters.iter().map(|w| turn(origin, [*w, 0, 1, 2])).collect() };

        let fair = [0, 1].repeat(LEAST_CIRCLES);

        assert_eq!(most_to_least_turns(&taken(&fair), 2), Some(1.0));
        assert_eq!(most_to_least_turns(&taken(&[&fair[..], &[0]].concat()), 2), Some(1.0));
        assert_eq!(
            most_to_least_turns(&taken(&[0, 0, 1, 0].repeat(LEAST_CIRCLES)), 2),
            Some(3.0)
        );
        assert_eq!(
            most_to_least_turns(&taken(&[0, 0].repeat(LEAST_CIRCLES)), 2),
            Some(f64::INFINITY)
        );
        assert_eq!(most_to_least_turns(&taken(&fair[2..]), 2), None);
    }
}
