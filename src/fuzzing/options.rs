//! The options of a client and of an acquisition.

use std::cell::RefCell;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::input::Input;
use crate::client::LeaseClient;
use crate::error::Error;
use crate::owner::default_holder;

/// A client is built, and an acquisition planned, if and only if each option is within what its method
/// documents; the option that is not is named. What is accepted, `leasehold.complaint` takes: a label has
/// at most 512 bytes without NUL, the default one too, whatever the application and the host are called.
pub fn options(data: &[u8]) {
    let mut input = Input::new(data);
    let application = input.text();
    let holder = default_holder(&PgConnectOptions::new_without_pgpass().application_name(&application));
    assert!(holder.len() <= 512 && !holder.contains('\0'), "{holder:?}");
    if application.len() <= 256 && !application.contains('\0') {
        assert!(holder.starts_with(&format!("{application}@")), "{holder:?}");
    }

    let (holder, answer_within) = (
        input.option(Input::text),
        input.duration_near(&[NS, HOUR, Duration::MAX]),
    );
    let heartbeat_every = input.duration_near(&[Duration::from_millis(100), FIVE_MINUTES]);
    let mut builder = LeaseClient::builder(pool())
        .answer_within(answer_within)
        .heartbeat_every(heartbeat_every);
    if let Some(holder) = &holder {
        builder = builder.holder(holder.clone());
    }
    let wrong = [
        ("answer_within", answer_within.is_zero() || answer_within > HOUR),
        ("holder", holder.as_deref().is_some_and(is_no_label)),
        (
            "heartbeat_every",
            heartbeat_every < Duration::from_millis(100) || heartbeat_every > FIVE_MINUTES,
        ),
    ];
    let Some(leases) = agree(builder.build(), &wrong) else {
        return;
    };

    let (least, most) = (
        input.duration_near(&[NS, YEAR, Duration::MAX]),
        input.option(|input| input.duration_near(&[NS, YEAR, Duration::MAX])),
    );
    let (holder, wait) = (
        input.option(Input::text),
        input.duration_near(&[NS, YEAR, Duration::MAX]),
    );
    let mut acquire = leases.acquire("a").hold_at_least(least).wait_at_most(wait);
    if let Some(most) = most {
        acquire = acquire.hold_at_most(most);
    }
    if let Some(holder) = &holder {
        acquire = acquire.holder(holder.clone());
    }
    let wrong = [
        ("hold_at_least", least > YEAR),
        ("hold_at_most", most.is_some_and(|most| most.is_zero() || most < least)),
        ("holder", holder.as_deref().is_some_and(is_no_label)),
    ];
    agree(acquire.plan(), &wrong);
}

fn agree<T: std::fmt::Debug>(outcome: Result<T, Error>, wrong: &[(&str, bool)]) -> Option<T> {
    let mut wrong = wrong
        .iter()
        .filter(|(_, is_wrong)| *is_wrong)
        .map(|(option, _)| *option);
    match outcome {
        Ok(accepted) => {
            assert_eq!(wrong.next(), None);
            Some(accepted)
        }
        Err(Error::InvalidOption { option, problem }) => {
            assert!(wrong.any(|wrong| wrong == option), "{option}: {problem}");
            assert!(!problem.is_empty());
            None
        }
        Err(other) => panic!("{other:?}"),
    }
}

fn is_no_label(label: &str) -> bool {
    label.chars().map(char::len_utf8).sum::<usize>() > 512 || label.bytes().any(|byte| byte == 0)
}

/// One that never connects.
fn pool() -> PgPool {
    thread_local! {
        static POOL: RefCell<Option<(PgPool, tokio::runtime::Runtime)>> = const { RefCell::new(None) };
    }
    POOL.with_borrow_mut(|pool| {
        let (pool, _) = pool.get_or_insert_with(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be had");
            let _inside = runtime.enter();
            let pool = PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new_without_pgpass());
            (pool, runtime)
        });
        pool.clone()
    })
}

const NS: Duration = Duration::from_nanos(1);
const HOUR: Duration = Duration::from_secs(3600);
const FIVE_MINUTES: Duration = Duration::from_secs(300);
const YEAR: Duration = Duration::from_secs(366 * 86_400);
