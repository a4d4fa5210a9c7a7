//! Sessions that come to another history at the same time, and a jump among those who are granted.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use leasehold_testkit::eventually;
use tokio::task::JoinSet;

use super::{ANOTHER_TIMELINE, Way, jumps, number};
use crate::support::sql::{acquire, begin, grant, release, run, sessions};
use crate::support::{SOON, TestDb};

#[tokio::test]
async fn of_many_sessions_that_come_to_another_history_one_jumps() {
    let db = TestDb::own("epoch_race").await;
    let [mut session, mut gate] = sessions(&db).await;
    let mut others: Vec<_> = sessions::<16>(&db).await.into();
    let mut seen = HashSet::new();

    for round in 1..=4 {
        run(&mut session, ANOTHER_TIMELINE).await;
        let is_gated = round % 2 == 0;
        if is_gated {
            // All of them have looked, and none has jumped.
            run(&mut gate, "begin; select from leasehold.epoch for update").await;
        }
        let mut tasks = JoinSet::new();
        for (number, mut session) in others.drain(..).enumerate() {
            let way = Way::BOTH[number % 2];
            tasks.spawn(async move {
                let grants = way.grants(&mut session, &format!("{round} {number}")).await;
                (session, grants)
            });
        }
        if is_gated {
            let waiting = "select count(*) from pg_stat_activity \
                where datname = current_database() and wait_event_type = 'Lock'";
            eventually(SOON, "all wait for the epoch", async || {
                match number(&mut session, waiting).await {
                    16 => Ok(()),
                    waiting => Err(waiting),
                }
            })
            .await;
            run(&mut gate, "commit").await;
        }
        let (sessions, granted): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().unzip();
        let granted: Vec<_> = granted.into_iter().flatten().collect();
        others = sessions;

        let told = jumps(&mut session).await;
        assert_eq!(told.len(), round, "{told:?}");
        assert_eq!(granted.len(), 8 + 8 * 3);
        for grant in granted {
            assert!(grant.token > told[round - 1].to_token, "{grant:?} {told:?}");
            assert!(seen.insert(grant.token), "{grant:?} came twice");
        }
    }
}

#[tokio::test]
async fn tokens_rise_for_each_name_while_an_operator_advances_the_epoch_again_and_again() {
    let db = TestDb::own("epoch_advanced").await;
    let [mut operator] = sessions(&db).await;
    let order = Arc::new(Mutex::new(HashMap::<String, Vec<i64>>::new()));
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for (number, mut session) in sessions::<8>(&db).await.into_iter().enumerate() {
        let (order, is_over) = (order.clone(), is_over.clone());
        tasks.spawn(async move {
            let way = Way::BOTH[number % 2];
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let name = format!("shared {}", (number / 2) % 2);
                for (grant, answer) in way.ask(&mut session, &name).await {
                    if answer.outcome == "granted" {
                        // Noted before it is let go: in the order of the grants.
                        let noted = (grant.name.clone(), grant.token);
                        order.lock().unwrap().entry(noted.0).or_default().push(noted.1);
                        while release(&mut session, &grant, "0").await == "busy" {}
                    }
                }
            }
        });
    }

    let mut above = Vec::new();
    for _ in 0..20 {
        let granted = async || order.lock().unwrap().values().map(Vec::len).sum::<usize>();
        let before = granted().await;
        eventually(SOON, "there are more grants", async || granted().await > before + 10).await;
        above.push(number(&mut operator, "select leasehold.advance_epoch()").await);
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    tasks.join_all().await;

    let told: Vec<_> = jumps(&mut operator).await.iter().map(|jump| jump.to_token).collect();
    let order = order.lock().unwrap();
    assert!(above.is_sorted_by(|one, next| one < next), "{above:?}");
    assert_eq!(told, above);
    assert_eq!(order.len(), 6);
    let mut seen = HashSet::new();
    for (name, tokens) in &*order {
        assert!(tokens.is_sorted_by(|one, next| one < next), "{name}: {tokens:?}");
        assert!(
            tokens.iter().all(|token| seen.insert(*token)),
            "{name}: a token came twice"
        );
    }
}

#[tokio::test]
async fn tokens_rise_although_the_jump_is_rolled_back() {
    let db = TestDb::own("epoch_rolled_back").await;
    let [mut caller, mut other] = sessions(&db).await;

    for way in Way::BOTH {
        let known = jumps(&mut other).await.len();
        let before = way.cycle(&mut caller, "again").await[0];
        run(&mut caller, ANOTHER_TIMELINE).await;

        run(&mut caller, "begin").await;
        let undone = way.grants(&mut caller, "again").await[0].token;
        run(&mut caller, "rollback").await;
        let told = jumps(&mut other).await.len();
        let after = way.cycle(&mut other, "again").await[0];

        assert!(before < undone && undone < after, "{before} {undone} {after}");
        assert_eq!((told, jumps(&mut other).await.len()), (known, known + 1));
    }
}

#[tokio::test]
async fn session_that_comes_while_another_jumps_waits_for_it_and_then_need_not() {
    let db = TestDb::own("epoch_while_another").await;
    let [mut first, mut second, mut watcher] = sessions(&db).await;
    run(&mut first, ANOTHER_TIMELINE).await;

    begin(&mut first, crate::support::sql::Isolation::ReadCommitted).await;
    let jumped = grant(&mut first, "one", "1 minute").await;
    let coming = tokio::spawn(async move { grant(&mut second, "two", "1 minute").await });
    let waiting = "select count(*) from pg_stat_activity \
        where datname = current_database() and wait_event_type = 'Lock'";
    eventually(SOON, "the other waits", async || {
        number(&mut watcher, waiting).await == 1
    })
    .await;
    run(&mut first, "commit").await;
    let came = coming.await.unwrap();

    assert!(came.token > jumped.token);
    assert_eq!(jumps(&mut watcher).await.len(), 1);
    let again = acquire(&mut watcher, "one", jumped.owner, "1 minute").await;
    assert_eq!(again.token, Some(jumped.token));
}
