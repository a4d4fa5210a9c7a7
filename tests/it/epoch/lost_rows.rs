//! The schema was copied without its data.

use std::collections::HashSet;

use leasehold_testkit::eventually;
use tokio::task::JoinSet;

use super::{Way, install_anew, jumps, number};
use crate::support::sql::{run, sessions};
use crate::support::{SOON, TestDb};

#[tokio::test]
async fn acquire_without_an_epoch_jumps_makes_one_and_grants() {
    let db = TestDb::own("epoch_lost").await;
    let [mut session] = sessions(&db).await;

    for way in Way::BOTH {
        install_anew(&mut session).await;
        run(&mut session, COPIED_WITHOUT_DATA).await;

        let first = way.cycle(&mut session, "again").await;
        let told = jumps(&mut session).await;
        let second = way.cycle(&mut session, "again").await;

        let [jump] = &told[..] else { panic!("{told:?}") };
        assert!(jump.reason.starts_with("there was no epoch"), "{jump:?}");
        assert_eq!((&jump.from_timeline, jump.from_system), (&None, None));
        assert!(jump.to_timeline.is_some() && jump.to_system.is_some(), "{jump:?}");
        assert!(first.iter().all(|token| *token > jump.to_token), "{first:?} {jump:?}");
        assert!(second[0] > first[0], "{first:?} {second:?}");
        assert_eq!(jumps(&mut session).await.len(), 1);
        let floor = number(&mut session, "select floor from leasehold.epoch").await;
        assert_eq!(floor, jump.to_token);
        assert_eq!(number(&mut session, "select count(*) from leasehold.check()").await, 0);
    }
}

#[tokio::test]
async fn sessions_that_come_at_once_without_an_epoch_are_never_given_a_token_twice() {
    let db = TestDb::own("epoch_lost_race").await;
    let [mut session, mut first] = sessions(&db).await;
    let mut others: Vec<_> = sessions::<8>(&db).await.into();

    for round in 0..3 {
        let mut seen = HashSet::new();
        run(&mut session, COPIED_WITHOUT_DATA).await;
        // A jump looks at every row, which gives the others time to meet it.
        let rows = "insert into leasehold.locks (name, fence, acquired_at, expires_at) \
            select n::text, 1, now(), now() from generate_series(1, 60000) as n";
        run(&mut session, rows).await;
        // All others have found no epoch, and go on at the same moment.
        run(&mut first, "begin").await;
        let made = Way::Scalar.grants(&mut first, &format!("first {round}")).await;
        seen.extend(made.iter().map(|grant| grant.token));
        let mut tasks = JoinSet::new();
        for (number, mut session) in others.drain(..).enumerate() {
            let way = Way::BOTH[number % 2];
            tasks.spawn(async move {
                let grants = way.grants(&mut session, &format!("other {round} {number}")).await;
                (session, grants)
            });
        }
        let waiting = "select count(*) from pg_stat_activity \
            where datname = current_database() and wait_event_type = 'Lock'";
        eventually(SOON, "all wait for the first", async || {
            number(&mut session, waiting).await == 8
        })
        .await;
        run(&mut first, "commit").await;
        let (sessions, granted): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().unzip();
        let granted: Vec<_> = granted.into_iter().flatten().collect();
        others = sessions;

        assert_eq!(granted.len(), 4 + 4 * 3);
        for grant in granted {
            assert!(seen.insert(grant.token), "{grant:?} came twice");
        }
    }
}

/// The second has looked before the first has committed, or rolled back.
#[tokio::test]
async fn session_that_comes_while_another_makes_the_epoch_is_given_a_higher_token() {
    let db = TestDb::own("epoch_lost_while_another").await;
    let [mut first, mut second, mut watcher] = sessions(&db).await;

    for (way, end) in [
        (Way::Scalar, "commit"),
        (Way::Scalar, "rollback"),
        (Way::Set, "commit"),
        (Way::Set, "rollback"),
    ] {
        run(&mut first, COPIED_WITHOUT_DATA).await;

        run(&mut first, "begin").await;
        let made = way.grants(&mut first, &format!("{way:?} {end}")).await;
        let other = format!("other {way:?} {end}");
        let coming = tokio::spawn(async move {
            let grants = way.grants(&mut second, &other).await;
            (second, grants)
        });
        let waiting = "select count(*) from pg_stat_activity \
            where datname = current_database() and wait_event_type = 'Lock'";
        eventually(SOON, "the other waits", async || {
            number(&mut watcher, waiting).await == 1
        })
        .await;
        run(&mut first, end).await;
        let (session, came) = coming.await.unwrap();
        second = session;

        let highest = made.iter().map(|grant| grant.token).max();
        assert!(
            came.iter().all(|grant| Some(grant.token) > highest),
            "{made:?} {came:?}"
        );
        assert_eq!(number(&mut watcher, "select count(*) from leasehold.epoch").await, 1);
    }
}

/// As far as it concerns tokens.
const COPIED_WITHOUT_DATA: &str = "delete from leasehold.epoch; \
    delete from leasehold.epoch_history; \
    delete from leasehold.locks; \
    select setval('leasehold.locks_fence_seq', 1, false)";
