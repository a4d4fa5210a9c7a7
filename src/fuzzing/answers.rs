//! The database's answers, and what notifications carry.

use std::time::Duration;

use sqlx::Error;

use super::input::Input;
use crate::store::answers::{self, AcquireColumns};
use crate::store::{AcquireOutcome, BeatOutcome, Reason, ReleaseOutcome, RenewOutcome};

/// Every answer is understood as what it says or refused with a decoding error, whatever the columns
/// hold: unknown words, nulls, tokens that no sequence draws, intervals beyond all clocks.
pub fn answers(data: &[u8]) {
    let mut input = Input::new(data);
    let raw;
    let outcome = match input.choice(WORDS.len() + 1) {
        at if at < WORDS.len() => WORDS[at],
        _ => {
            raw = input.text();
            &raw
        }
    };
    let columns = AcquireColumns {
        outcome,
        fencing_token: input.option(Input::i64),
        expires_in: input.option(Input::interval),
        held_by: input.option(Input::text),
        held_since: None,
        ahead: input.option(Input::i32),
        ticket: input.option(Input::i64),
    };

    acquired(&columns);
    renewed(&columns);
    let released = decoded(answers::released(outcome));
    assert_eq!(released, word(&RELEASED, outcome));
    let beaten = decoded(answers::beaten(outcome));
    assert_eq!(beaten, word(&BEATEN, outcome));
    payload(input.rest());
}

fn acquired(columns: &AcquireColumns<'_>) {
    let granted = columns
        .fencing_token
        .filter(|token| *token > 0)
        .zip(expires_in(columns));
    match (decoded(answers::acquired(columns.clone())), columns.outcome) {
        (Some(AcquireOutcome::Granted { token, expires_in }), "granted") => {
            assert_eq!(granted, Some((token.get(), expires_in)));
        }
        (None, "granted") => assert_eq!(granted, None),
        (Some(AcquireOutcome::NotGranted(why)), outcome) => {
            assert_eq!(Some(why.reason), word(&REASONS, outcome));
            assert_eq!(i64::from(why.ahead), i64::from(columns.ahead.unwrap_or(0).max(0)));
            assert_eq!(why.ticket, columns.ticket);
            assert_eq!(why.held_by.holder, columns.held_by);
            assert_eq!(why.held_by.expires_in, expires_in(columns));
        }
        (None, outcome) => assert_eq!(word(&REASONS, outcome), None),
        (Some(granted), outcome) => panic!("{granted:?} for {outcome:?}"),
    }
}

fn renewed(columns: &AcquireColumns<'_>) {
    let renewed = decoded(answers::renewed(columns.outcome, columns.expires_in.as_ref()));
    match columns.outcome {
        "renewed" => assert_eq!(
            renewed,
            expires_in(columns).map(|expires_in| RenewOutcome::Renewed { expires_in })
        ),
        other => assert_eq!(renewed, word(&RENEWED, other)),
    }
}

/// Counted in another way: down to nothing, and up to the last microsecond of an i64.
fn expires_in(columns: &AcquireColumns<'_>) -> Option<Duration> {
    columns.expires_in.as_ref().map(|interval| {
        let micros = i128::from(interval.days) * 24 * 60 * 60 * 1_000_000 + i128::from(interval.microseconds);
        let micros = micros.clamp(0, i128::from(i64::MAX));
        Duration::from_micros(u64::try_from(micros).expect("it is clamped"))
    })
}

/// A payload is a number, or says nothing.
fn payload(payload: &str) {
    let digits = payload.strip_prefix(['+', '-']).unwrap_or(payload);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let size = digits.bytes().filter(u8::is_ascii_digit).fold(0_i128, |size, digit| {
        size.saturating_mul(10).saturating_add(i128::from(digit - b'0'))
    });
    let number = if payload.starts_with('-') { -size } else { size };
    let expected = i64::try_from(number).ok().filter(|_| is_number);

    assert_eq!(answers::ticket(payload), expected, "{payload:?}");
}

fn decoded<T>(outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(outcome) => Some(outcome),
        Err(Error::Decode(problem)) => {
            let problem = problem.to_string();
            assert!(problem.contains("outcome") && problem.len() < 1024, "{problem}");
            None
        }
        Err(other) => panic!("{other:?}"),
    }
}

fn word<T: Copy>(words: &[(&str, T)], outcome: &str) -> Option<T> {
    words
        .iter()
        .find(|(word, _)| *word == outcome)
        .map(|(_, meaning)| *meaning)
}

const WORDS: [&str; 18] = [
    "granted",
    "held",
    "pinned",
    "busy",
    "queued",
    "renewed",
    "superseded",
    "expired",
    "gone",
    "released",
    "held_on",
    "not_owner",
    "try",
    "wait",
    "unknown",
    "left",
    "",
    "GRANTED",
];
const REASONS: [(&str, Reason); 4] = [
    ("held", Reason::Held),
    ("queued", Reason::Queued),
    ("pinned", Reason::Pinned),
    ("busy", Reason::Busy),
];
const RENEWED: [(&str, RenewOutcome); 4] = [
    ("busy", RenewOutcome::Busy),
    ("superseded", RenewOutcome::Superseded),
    ("expired", RenewOutcome::Expired),
    ("gone", RenewOutcome::Gone),
];
const RELEASED: [(&str, ReleaseOutcome); 4] = [
    ("released", ReleaseOutcome::Released),
    ("held_on", ReleaseOutcome::HeldOn),
    ("not_owner", ReleaseOutcome::NotOwner),
    ("busy", ReleaseOutcome::Busy),
];
const BEATEN: [(&str, Option<BeatOutcome>); 4] = [
    ("try", Some(BeatOutcome::Try)),
    ("wait", Some(BeatOutcome::Wait)),
    ("unknown", Some(BeatOutcome::Unknown)),
    ("left", None),
];
