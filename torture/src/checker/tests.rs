//! Histories made by hand, a sound one and one for each way to break it.

use super::*;
use crate::history::{End, Outcome, Row, Write, Written};

/// Two grants of one name, each written with once and released, as it should be.
fn sound() -> History {
    let mut history = History {
        audit: vec![
            change(1, 1000, None, Some(held("p0.1.0.0", 10, 1000, 1000))),
            change(2, 1500, Some(held("p0.1.0.0", 10, 1000, 1000)), Some(free(10, 1500))),
            change(3, 2000, Some(free(10, 1500)), Some(held("p2.1.0.0", 11, 2000, 1000))),
            change(4, 2500, Some(held("p2.1.0.0", 11, 2000, 1000)), Some(free(11, 2500))),
        ],
        written: vec![written(1, 10, "p0.1.0.0"), written(2, 11, "p2.1.0.0")],
        end: End {
            registers: vec![("hot-1".into(), 2, 2)],
            ..End::default()
        },
        began_at: 0,
        calm_from: 100 * SECOND,
        ended_at: 116 * SECOND,
        ..History::default()
    };
    for (id, token, from) in [("p0.1.0.0", 10, 1000), ("p2.1.0.0", 11, 2000)] {
        history.read(&format!(
            "{} {id} acquire hot-1 30000\n{} {id} granted {token}\n{} {id} believes \n{} {id} write 1\n\
             {} {id} wrote 1 yes\n{} {id} release \n{} {id} released released\n",
            (from - 10) * MS,
            (from + 20) * MS,
            (from + 30) * MS,
            (from + 40) * MS,
            (from + 60) * MS,
            (from + 490) * MS,
            (from + 530) * MS,
        ));
    }
    history
}

fn change(number: i64, ms: i64, old: Option<Row>, new: Option<Row>) -> Audit {
    Audit {
        number,
        up: ms * MS,
        at: ms * MS,
        name: "hot-1".into(),
        old,
        new,
        overtaken: 0,
    }
}

fn held(holder: &str, fence: i64, from_ms: i64, ttl_ms: i64) -> Row {
    Row {
        owner: format!("owner of {holder}"),
        holder: holder.into(),
        fence,
        acquired_at: from_ms * MS,
        expires_at: (from_ms + ttl_ms) * MS,
        ttl: ttl_ms * MS,
    }
}

fn free(fence: i64, since_ms: i64) -> Row {
    Row {
        fence,
        expires_at: since_ms * MS,
        ..Row::default()
    }
}

fn written(number: i64, fence: i64, id: &str) -> Written {
    Written {
        name: "hot-1".into(),
        number,
        fence,
        current: fence,
        id: id.into(),
        write: 1,
    }
}

fn fault(kind: &str, from_ms: i64, to_ms: i64) -> Fault {
    Fault {
        kind: kind.into(),
        target: "p0".into(),
        from: from_ms * MS,
        to: to_ms * MS,
    }
}

/// The invariants that are found broken once the sound history is changed so.
fn broken_by(break_it: impl FnOnce(&mut History)) -> Vec<Invariant> {
    let mut history = sound();
    break_it(&mut history);
    let mut found: Vec<_> = judge(&history)
        .violations
        .into_iter()
        .map(|(invariant, _)| invariant)
        .collect();
    found.dedup();
    found
}

#[test]
fn sound_history_breaks_nothing_and_is_counted() {
    let verdict = judge(&sound());
    assert_eq!(verdict.violations, []);
    assert_eq!((verdict.grants, verdict.releases, verdict.renewals), (2, 2, 0));
}

#[test]
fn lower_token_is_seen_in_the_record_and_by_the_clients() {
    let found = broken_by(|history| {
        history.audit[2].new = Some(held("p2.1.0.0", 9, 2000, 1000));
    });
    assert!(found.contains(&Invariant::TokensRise));

    let found = broken_by(|history| history.acquisitions[1].granted = Some((2020 * MS, 9)));
    assert!(found.contains(&Invariant::TokensRise));
}

#[test]
fn token_given_twice_is_seen() {
    let found = broken_by(|history| {
        let mut again = history.audit[0].clone();
        again.name = "hot-2".into();
        again.number = 9;
        history.audit.push(again);
    });
    assert_eq!(found, [Invariant::TokenOnce]);
}

#[test]
fn grant_before_the_end_of_another_is_seen() {
    let found = broken_by(|history| history.audit[2].old = Some(held("p0.1.0.0", 10, 1500, 1000)));
    assert_eq!(found, [Invariant::OneOwner]);
}

#[test]
fn write_out_of_order_and_write_by_another_grant_are_seen() {
    let found = broken_by(|history| {
        history.written.push(Written {
            id: "p0.1.0.0".into(),
            write: 2,
            current: 11,
            ..written(3, 10, "p0.1.0.0")
        });
        history.end.registers = vec![("hot-1".into(), 3, 3)];
    });
    assert_eq!(found, [Invariant::WritesInOrder, Invariant::WritesByCurrentGrant]);
}

#[test]
fn write_after_ones_own_release_is_seen() {
    let found = broken_by(|history| {
        history.acquisitions[1].writes[0].invoked_at = 2600 * MS;
        history.acquisitions[1].writes[0].answered_at = 2610 * MS;
    });
    assert_eq!(found, [Invariant::WritesByCurrentGrant]);
}

#[test]
fn renewal_of_what_has_run_out_is_seen() {
    let found = broken_by(|history| {
        let late = change(
            2,
            1400,
            Some(held("p0.1.0.0", 10, 1000, 300)),
            Some(held("p0.1.0.0", 10, 1400, 300)),
        );
        history.audit.insert(1, late);
        for (number, change) in history.audit.iter_mut().enumerate() {
            change.number = number as i64;
        }
    });
    assert_eq!(found, [Invariant::NoRevival]);
}

#[test]
fn held_on_after_its_release_it_is_no_new_grant() {
    let mut history = sound();
    let mut nobodys = held("p0.1.0.0", 10, 1000, 1000);
    (nobodys.owner, nobodys.ttl) = ("nobody knows".into(), 0);
    nobodys.expires_at = 1900 * MS;
    history.audit[1].new = Some(nobodys.clone());
    history.audit[2].old = Some(nobodys);
    let verdict = judge(&history);
    assert_eq!((verdict.violations, verdict.grants, verdict.releases), (vec![], 2, 2));
}

#[test]
fn end_brought_about_by_somebody_else_is_seen() {
    let found = broken_by(|history| history.acquisitions[0].release_sent_at = Some(1600 * MS));
    assert_eq!(found, [Invariant::ReleaseOfOnesOwn]);

    let found = broken_by(|history| {
        history.acquisitions[0].release_sent_at = None;
        history.acquisitions[0].lost = Some((1510 * MS, "Gone".into()));
    });
    assert_eq!(found, [Invariant::ReleaseOfOnesOwn]);
}

#[test]
fn answers_to_strangers_are_seen() {
    for (probe, answer, invariant) in [
        ("foreign_release", "released", Invariant::ReleaseOfOnesOwn),
        ("second_release", "released", Invariant::ReleaseOfOnesOwn),
        ("foreign_renewal", "renewed", Invariant::RenewalKeepsGrant),
        ("renewal_after_release", "renewed", Invariant::NoRevival),
    ] {
        let found = broken_by(|history| {
            history.acquisitions[0]
                .probes
                .push((1600 * MS, probe.into(), answer.into()));
        });
        assert_eq!(found, [invariant], "{probe}");
    }
}

#[test]
fn forgotten_grants_and_writes_are_seen_but_for_a_failover() {
    let forget = |history: &mut History| {
        history.audit.truncate(2);
        history.written.truncate(1);
        history.end.registers = vec![("hot-1".into(), 1, 1)];
    };
    assert_eq!(broken_by(forget), [Invariant::GrantsDurable, Invariant::WritesDurable]);

    let mut history = sound();
    forget(&mut history);
    history.faults = vec![fault("promote", 2600, 2700)];
    let verdict = judge(&history);
    assert_eq!((verdict.violations.len(), verdict.lost_commits), (0, 2));
}

#[test]
fn answer_that_is_read_after_the_failover_that_forgot_it_is_no_violation() {
    let read_late = |promoted_at: (i64, i64)| {
        broken_by(|history| {
            history.written.truncate(1);
            history.end.registers = vec![("hot-1".into(), 1, 1)];
            history.acquisitions[1].writes[0].answered_at = 4000 * MS;
            history.faults = vec![fault("promote", promoted_at.0, promoted_at.1)];
        })
    };
    assert_eq!(read_late((3000, 3100)), []);
    // It was over before the write was asked for.
    assert_eq!(read_late((1000, 1100)), [Invariant::WritesDurable]);
}

#[test]
fn failed_write_that_is_there_is_seen() {
    for outcome in [Outcome::Failed, Outcome::Refused] {
        let found = broken_by(|history| history.acquisitions[0].writes[0].outcome = outcome);
        assert!(found.contains(&Invariant::WritesDurable), "{found:?}");
    }
    let unknown = broken_by(|history| history.acquisitions[0].writes[0].outcome = Outcome::Unknown);
    assert_eq!(unknown, []);
}

#[test]
fn lost_update_is_seen() {
    let found = broken_by(|history| history.end.registers = vec![("hot-1".into(), 2, 1)]);
    assert_eq!(found, [Invariant::NoLostUpdate]);
}

#[test]
fn belief_beyond_the_next_grant_is_seen_but_for_a_stepped_clock() {
    let believe = |history: &mut History| history.acquisitions[0].believed_at = 2100 * MS;
    assert_eq!(broken_by(believe), [Invariant::BeliefEndsFirst]);

    let mut history = sound();
    believe(&mut history);
    history.faults = vec![fault("clock", 1800, 1800)];
    let verdict = judge(&history);
    assert_eq!((verdict.violations.len(), verdict.excused_beliefs), (0, 1));
}

#[test]
fn refusal_of_the_current_owner_is_seen() {
    let found = broken_by(|history| {
        history.acquisitions[0].writes.push(Write {
            number: 2,
            invoked_at: 1200 * MS,
            answered_at: 1210 * MS,
            outcome: Outcome::Refused,
        });
    });
    assert_eq!(found, [Invariant::OwnerIsNotRefused]);

    let after_its_release = broken_by(|history| {
        history.acquisitions[0].release_sent_at = Some(1190 * MS);
        history.acquisitions[0].writes.push(Write {
            number: 2,
            invoked_at: 1200 * MS,
            answered_at: 1210 * MS,
            outcome: Outcome::Refused,
        });
    });
    assert_eq!(after_its_release, []);

    // Somebody else had been granted the name, and a failover forgot that.
    let before_a_failover = broken_by(|history| {
        history.acquisitions[0].writes.push(Write {
            number: 2,
            invoked_at: 1200 * MS,
            answered_at: 1210 * MS,
            outcome: Outcome::Refused,
        });
        history.faults = vec![fault("promote", 1300, 1350)];
    });
    assert_eq!(before_a_failover, []);
}

#[test]
fn waiter_that_nobody_serves_is_seen_unless_it_is_dead() {
    let wait = |id: &str| format!("{} {id} acquire hot-1 30000\n", 50 * SECOND);
    assert_eq!(
        broken_by(|history| history.read(&wait("p0.1.0.7"))),
        [Invariant::WaitersServed]
    );

    let restarted = broken_by(|history| {
        history.read(&wait("p0.1.0.7"));
        history.read(&format!("{} p0.2.0.0 acquire hot-1 0\n", 60 * SECOND));
    });
    assert_eq!(restarted, []);
}

#[test]
fn slow_hand_offs_are_seen_when_all_is_calm() {
    let found = broken_by(|history| {
        for turn in 0..20_i64 {
            let (id, from) = (format!("p2.1.1.{turn}"), (102_000 + turn * 400, 100 + turn));
            let row = held(&id, from.1, from.0, 1000);
            let freed_at = from.0 + 100;
            history.audit.push(change(
                10 + 2 * turn,
                from.0,
                Some(free(from.1 - 1, from.0 - 300)),
                Some(row.clone()),
            ));
            history
                .audit
                .push(change(11 + 2 * turn, freed_at, Some(row), Some(free(from.1, freed_at))));
            history.read(&format!(
                "{} {id} acquire hot-1 30000\n{} {id} granted {}\n{} {id} release \n",
                101_000 * MS,
                (from.0 + 1) * MS,
                from.1,
                freed_at * MS,
            ));
        }
    });
    assert_eq!(found, [Invariant::WokenPromptly]);
}

#[test]
fn overtaking_is_seen_but_for_a_few() {
    let overtake = |history: &mut History, count: i64| {
        for number in 0..count {
            let mut row = change(100 + number, 5000 + number, None, None);
            row.overtaken = 2000;
            history.audit.push(row);
        }
    };
    assert_eq!(broken_by(|history| overtake(history, 3)), []);
    assert_eq!(broken_by(|history| overtake(history, 4)), [Invariant::InOrderOfArrival]);
}

#[test]
fn deleted_live_row_is_seen() {
    let found = broken_by(|history| {
        history
            .audit
            .push(change(5, 1200, Some(held("p3.1.0.0", 12, 1000, 1000)), None));
    });
    assert_eq!(found, [Invariant::LiveRowsStay]);
}

#[test]
fn what_is_left_at_the_end_is_seen() {
    for leave in [
        (|history: &mut History| history.end.held = 1) as fn(&mut History),
        |history| history.end.waiting = 1,
        |history| history.end.old_rows = 1,
        |history| history.end.unclosed = vec!["p0".into()],
        |history| history.read("no line of ours"),
    ] {
        assert_eq!(broken_by(leave), [Invariant::NothingLeft]);
    }
}
