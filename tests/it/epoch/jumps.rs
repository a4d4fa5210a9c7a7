//! What an acquire does where the tokens belong to another history, or the sequence is behind.

use std::process::Command;

use leasehold_testkit::Cluster;

use super::{ANOTHER_TIMELINE, LAST_TOKEN, PRESENT_MICROSECONDS, STRIDE, Way, install_anew, jumps, number};
use crate::support::TestDb;
use crate::support::quiet::Quiet;
use crate::support::sql::{run, sessions, sql_state};

#[tokio::test]
async fn next_token_after_another_timeline_is_above_the_sequence_every_row_and_the_clock() {
    let db = TestDb::own("epoch_jumps").await;
    let [mut session] = sessions(&db).await;
    let present = "select timeline || ' ' || system from leasehold.epoch";
    let present: String = sqlx::query_scalar(present).fetch_one(&mut session).await.unwrap();

    for way in Way::BOTH {
        for greatest in ["clock", "sequence", "row"] {
            install_anew(&mut session).await;
            let before = way.cycle(&mut session, "again").await[0];
            let clock = number(&mut session, PRESENT_MICROSECONDS).await;
            let (sequence, row) = (clock + 1_000_000_000, clock + 2_000_000_000);
            match greatest {
                "sequence" => {
                    run(
                        &mut session,
                        &format!("select setval('leasehold.locks_fence_seq', {sequence})"),
                    )
                    .await
                }
                "row" => {
                    let copied = format!(
                        "insert into leasehold.locks (name, fence, acquired_at, expires_at) \
                        values ('copied', {row}, now(), now())"
                    );
                    run(&mut session, &copied).await;
                }
                _ => {}
            }
            let last = number(&mut session, LAST_TOKEN).await;
            run(&mut session, ANOTHER_TIMELINE).await;

            let first = way.cycle(&mut session, "again").await;
            let told = jumps(&mut session).await;
            let second = way.cycle(&mut session, "again").await;

            let case = format!("{way:?}, the {greatest} is greatest: {told:?}");
            let [jump] = &told[..] else { panic!("{case}") };
            match greatest {
                "clock" => {
                    let later = number(&mut session, PRESENT_MICROSECONDS).await;
                    assert!((clock..=later).contains(&jump.to_token), "{case}");
                    assert!(jump.to_token >= last + STRIDE, "{case}");
                }
                "sequence" => assert_eq!(jump.to_token, jump.from_token + STRIDE, "{case}"),
                _ => assert_eq!(jump.to_token, row + STRIDE, "{case}"),
            }
            // One may have been drawn to be looked at.
            assert!((last..=last + 1).contains(&jump.from_token), "{case}");
            assert!(first.iter().all(|token| *token > jump.to_token), "{case} {first:?}");
            assert!(
                first[0] > before && second[0] > first[0],
                "{before} {first:?} {second:?}"
            );
            assert!(jump.reason.starts_with("another timeline"), "{case}");
            assert!((0.0..60.0).contains(&jump.age), "{case}");
            assert_eq!(jump.from_timeline.as_deref(), Some("FFFFFFF0"), "{case}");
            let now = format!("{} {}", jump.to_timeline.as_ref().unwrap(), jump.to_system.unwrap());
            assert_eq!((now, jump.from_system), (present.clone(), jump.to_system), "{case}");
            assert_eq!(jumps(&mut session).await.len(), 1, "{case}");
        }
    }
}

#[tokio::test]
async fn session_that_jumps_is_warned() {
    let db = TestDb::own("epoch_warns").await;
    let cluster = Cluster::shared().await;
    let [mut session] = sessions(&db).await;
    run(&mut session, ANOTHER_TIMELINE).await;

    let psql = Command::new(cluster.bin_dir().join("psql"))
        .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--command"])
        .arg("select fencing_token from leasehold.acquire('named', gen_random_uuid(), '1 minute')")
        .arg(cluster.url().replace("/postgres?", "/epoch_warns?"))
        .output()
        .expect("there is a psql");

    let (answer, said) = (
        String::from_utf8_lossy(&psql.stdout),
        String::from_utf8_lossy(&psql.stderr),
    );
    let jump = jumps(&mut session).await.remove(0);
    assert_eq!(answer.trim().parse(), Ok(jump.to_token + 1), "{said}");
    let warning = format!(
        "WARNING:  fencing tokens go on from {}, above {}",
        jump.to_token, jump.from_token
    );
    assert!(said.contains(&warning), "{said}");
    assert!(
        said.contains("another timeline") && said.contains("leasehold.epoch_history"),
        "{said}"
    );
}

/// A floor above all rows and the clock: what was given out is remembered by it alone.
#[tokio::test]
async fn token_is_above_the_latest_jump_although_the_sequence_and_all_rows_are_below_it() {
    let db = TestDb::own("epoch_floor_alone").await;
    let [mut session] = sessions(&db).await;

    for way in Way::BOTH {
        install_anew(&mut session).await;
        way.cycle(&mut session, "again").await;
        let above_the_clock = number(&mut session, PRESENT_MICROSECONDS).await + 1_000_000_000;
        run(
            &mut session,
            &format!("select leasehold.jump('a test', {above_the_clock})"),
        )
        .await;
        let jumped_to = jumps(&mut session).await.remove(0).to_token;
        run(&mut session, "select setval('leasehold.locks_fence_seq', 1000)").await;

        let first = way.cycle(&mut session, "again").await;
        let told = jumps(&mut session).await;

        assert_eq!(jumped_to, above_the_clock + STRIDE, "{way:?}");
        assert_eq!(told.len(), 2, "{way:?}: {told:?}");
        assert!(told[1].to_token >= jumped_to - 1 + STRIDE, "{way:?}: {told:?}");
        assert!(
            first.iter().all(|token| *token > told[1].to_token),
            "{way:?}: {first:?} {told:?}"
        );
    }
}

#[tokio::test]
async fn token_that_is_behind_a_row_or_the_epoch_is_never_given_out() {
    let db = TestDb::own("epoch_behind").await;
    let [mut session] = sessions(&db).await;
    let set_back = "the sequence was set back";
    let behind = "the sequence was behind a token in use";

    for (damage, reason, tells_new_names) in [
        ("select setval('leasehold.locks_fence_seq', 1000)", set_back, true),
        ("select setval('leasehold.locks_fence_seq', 1, false)", set_back, true),
        (
            "alter sequence leasehold.locks_fence_seq restart with 1",
            set_back,
            true,
        ),
        (
            "select setval('leasehold.locks_fence_seq', floor - 2) from leasehold.epoch",
            set_back,
            true,
        ),
        // Within the epoch: a row tells, its name's own.
        (
            "select setval('leasehold.locks_fence_seq', floor) from leasehold.epoch",
            behind,
            false,
        ),
        ("update leasehold.locks set fence = fence + 5000", behind, false),
        (
            "alter sequence leasehold.locks_fence_seq cycle; \
             select setval('leasehold.locks_fence_seq', 9223372036854775807); \
             select nextval('leasehold.locks_fence_seq')",
            set_back,
            true,
        ),
    ] {
        for way in Way::BOTH {
            for name in ["again", "new"] {
                // In one transaction, which waits for no disk.
                run(&mut session, "begin").await;
                install_anew(&mut session).await;
                for _ in 0..3 {
                    way.cycle(&mut session, "again").await;
                }
                run(&mut session, damage).await;
                let highest =
                    "select greatest(max(l.fence), max(e.floor)) from leasehold.epoch as e, leasehold.locks as l";
                let highest = number(&mut session, highest).await;

                let first = way.cycle(&mut session, name).await;
                let told = jumps(&mut session).await;
                let second = way.cycle(&mut session, name).await;
                let told_in_all = jumps(&mut session).await.len();
                run(&mut session, "rollback").await;

                let case = format!("{way:?}, {name}, after `{damage}`: {first:?} {told:?}");
                if name == "new" && !tells_new_names {
                    assert!(told.is_empty(), "{case}");
                } else {
                    let reasons: Vec<_> = told.iter().map(|jump| &*jump.reason).collect();
                    assert_eq!(reasons, [reason], "{case}");
                    assert!(first.iter().all(|token| *token > highest), "{case} {highest}");
                }
                assert!(second[0] > first[0], "{case} {second:?}");
                assert_eq!(told_in_all, told.len(), "{case}");
            }
        }
    }
}

/// The set draws several tokens in one statement.
#[tokio::test]
async fn sequence_that_cycles_within_a_batch_gives_no_token_below_one_given_out() {
    let db = TestDb::own("epoch_cycles").await;
    let [mut session] = sessions(&db).await;

    for way in Way::BOTH {
        for left in [0, 1] {
            install_anew(&mut session).await;
            let before = way.cycle(&mut session, "again").await;
            let to_the_end = format!(
                "alter sequence leasehold.locks_fence_seq cycle; \
                select setval('leasehold.locks_fence_seq', 9223372036854775807 - {left})"
            );
            run(&mut session, &to_the_end).await;

            let call = match way {
                Way::Scalar => "select fencing_token from leasehold.acquire('again', gen_random_uuid(), '1 minute')",
                Way::Set => {
                    "select min(fencing_token) from leasehold.acquire_many( \
                        array['again', 'again, second', 'again, third'], \
                        array[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], \
                        array_fill(interval '1 minute', array[3]))"
                }
            };
            let given = sqlx::query_scalar::<_, i64>(call).fetch_one(&mut session).await;

            match given {
                Ok(lowest) => assert!(lowest > before[0], "{way:?} {left}: {lowest} after {before:?}"),
                // The end of bigint was met on the way. The next begins behind it.
                Err(error) => {
                    assert_eq!(sql_state(&error), "2200H");
                    let after = way.cycle(&mut session, "again").await;
                    assert!(
                        after.iter().all(|token| *token > before[0]),
                        "{after:?} after {before:?}"
                    );
                }
            }
        }
    }
}

/// The check complains of it; until somebody listens, tokens rise all the same.
#[tokio::test]
async fn sessions_that_keep_tokens_of_their_own_give_none_below_one_given_out() {
    let db = TestDb::own("epoch_cached").await;
    let [mut session, mut other] = sessions(&db).await;
    run(&mut session, "alter sequence leasehold.locks_fence_seq cache 50").await;

    for way in Way::BOTH {
        let mut tokens = Vec::<i64>::new();
        for _ in 0..4 {
            tokens.push(way.cycle(&mut session, "again").await[0]);
            tokens.push(way.cycle(&mut other, "again").await[0]);
        }

        assert!(tokens.is_sorted_by(|one, next| one < next), "{way:?}: {tokens:?}");
    }
}

/// With `synchronous_commit = off` for all who connect.
#[tokio::test]
async fn jump_survives_a_crash_whatever_the_role_says_of_commits() {
    let quiet = Quiet::with_database("epoch_durable").await;
    quiet
        .execute("alter database epoch_durable set synchronous_commit = off")
        .await;
    let mut highest = 0;

    for (call, grants) in [
        (
            "select fencing_token from leasehold.acquire('named', gen_random_uuid(), '1 minute')",
            true,
        ),
        ("select leasehold.enter_epoch()::int::int8", false),
    ] {
        let [mut session] = sessions(&quiet.db).await;
        run(&mut session, ANOTHER_TIMELINE).await;
        let before = jumps(&mut session).await.len();
        let told = number(&mut session, call).await;
        quiet.crash().await;

        let [mut session] = sessions(&quiet.db).await;
        let after = jumps(&mut session).await;
        let next = number(
            &mut session,
            "select fencing_token from leasehold.acquire(gen_random_uuid()::text, gen_random_uuid(), '1 s')",
        )
        .await;
        assert_eq!(after.len(), before + 1, "{call}: {after:?}");
        assert_eq!(jumps(&mut session).await.len(), before + 1, "{call}");
        let reached = after.last().unwrap().to_token;
        assert!(
            next > reached && next > told && next > highest,
            "{call}: {next} {told} {after:?}"
        );
        assert!(!grants || told > reached, "{call}: {told} {after:?}");
        highest = next;
    }
}
