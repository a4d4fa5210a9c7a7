//! The public API is what `docs/public-api.txt` says: every public item with its whole signature.
//!
//! It is read from the source, not from rustdoc, whose JSON stable Rust does not write. So a change shows on every
//! toolchain, and what cannot be listed, such as an item that a macro makes, fails the test instead of being left out.

mod listing;
mod source;

use leasehold::{Acquire, Error, FencingToken, Finding, Lease, LeaseClient, LeaseClientBuilder, LeaseInfo};
use leasehold::{LeaseLost, LockName, LossCause, Operation, Release, Wakeup};

use crate::documents::{read, root};
use source::Source;

/// `LEASEHOLD_WRITE_API=1` writes the file anew, for a change that is meant.
#[test]
fn public_api_is_what_the_file_says() {
    let listed = listing::of(&Source::read());

    if std::env::var_os("LEASEHOLD_WRITE_API").is_some() {
        std::fs::write(root().join(FILE), listed).expect("the file can be written");
        return;
    }
    let written = read(FILE);
    assert!(
        listed == written,
        "the public API is not what {FILE} says; LEASEHOLD_WRITE_API=1 accepts the change\n{}",
        difference(&written, &listed)
    );
}

#[test]
fn every_change_of_what_is_public_shows() {
    let now = listing::of(&Source::read());

    for (file, text, replacement) in [
        // A signature: asynchronous, an argument, its type, the result, a bound, constness.
        ("src/lease.rs", "pub async fn lost(&self)", "pub fn lost(&self)"),
        (
            "src/lease.rs",
            "pub async fn lost(&self)",
            "pub async fn lost(&mut self)",
        ),
        (
            "src/lease.rs",
            "pub async fn renew(&self)",
            "pub async fn renew(&self, often: u32)",
        ),
        ("src/acquire.rs", "wait: Duration) -> Self", "wait: u64) -> Self"),
        (
            "src/lease.rs",
            "pub async fn lost(&self) -> LeaseLost",
            "pub async fn lost(&self) -> LossCause",
        ),
        (
            "src/client.rs",
            "AsyncFnOnce(&Lease) + Clone",
            "AsyncFnOnce(&Lease) + Copy",
        ),
        ("src/token.rs", "pub const fn get", "pub fn get"),
        // The same words for another type.
        ("src/acquire.rs", "use std::time::Duration;", "use chrono::Duration;"),
        // What there is: a function, a constant, a variant, a field, an implementation, a derive.
        ("src/check.rs", "pub async fn check", "pub(crate) async fn check"),
        ("src/name.rs", "pub const MAX_BYTES", "const MAX_BYTES"),
        ("src/error.rs", "    HeldAtMost,\n", ""),
        ("src/info.rs", "    pub is_expired: bool,\n", "    is_expired: bool,\n"),
        (
            "src/info.rs",
            "    pub remedy: String,\n",
            "    pub remedy: String,\n    hidden: u8,\n",
        ),
        (
            "src/token.rs",
            "impl From<FencingToken> for i64",
            "impl From<FencingToken> for i128",
        ),
        (
            "src/name.rs",
            "#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]",
            "#[derive(Clone, PartialEq, Eq)]",
        ),
        ("src/error.rs", "Lost(#[from] LeaseLost)", "Lost(LeaseLost)"),
        // How it may be used, and under which feature.
        ("src/queue.rs", "#[non_exhaustive]\n", ""),
        ("src/lease.rs", "#[must_use = \"dropping a lease releases it\"]\n", ""),
        (
            "src/token.rs",
            "#[cfg(feature = \"serde\")]\nimpl serde::Serialize",
            "impl serde::Serialize",
        ),
        // Where it is.
        ("src/lib.rs", "LossCause, Operation", "LossCause as Cause, Operation"),
        ("src/lib.rs", "pub use sqlx;\n", ""),
        (
            "src/lib.rs",
            "pub use crate::check::check;",
            "#[cfg(feature = \"serde\")]\npub use crate::check::check;",
        ),
        ("src/guide.rs", "pub mod ttl {}", "mod ttl {}"),
    ] {
        let changed = Source::read_with(file, text, replacement);

        assert!(listing::of(&changed) != now, "{file}: {text:?} became {replacement:?}");
    }
}

#[test]
fn changes_of_what_is_private_do_not_show() {
    let now = listing::of(&Source::read());

    for (file, text, replacement) in [
        ("src/lease.rs", "is_released: false", "is_released: true"),
        (
            "src/lease.rs",
            "    answer_within: Duration,\n    is_released",
            "    answer_within: u8,\n    is_released",
        ),
        (
            "src/lease.rs",
            "async fn fence(held: &Held",
            "async fn fence(holding: &Held",
        ),
        ("src/error.rs", "/// The client was closed.", "/// Closed."),
    ] {
        let changed = Source::read_with(file, text, replacement);

        assert_eq!(listing::of(&changed), now, "{file}: {text:?} became {replacement:?}");
    }
}

/// What no signature shows. That it compiles is the test.
#[test]
fn public_types_go_between_threads_and_outlive_what_made_them() {
    fn goes<T: Send + 'static>() {}
    fn is_shared<T: Send + Sync + 'static>() {}

    is_shared::<LeaseClient>();
    is_shared::<LeaseClientBuilder>();
    is_shared::<Lease>();
    is_shared::<Error>();
    is_shared::<LeaseLost>();
    is_shared::<(
        LeaseInfo,
        Finding,
        FencingToken,
        LockName,
        LossCause,
        Operation,
        Release,
        Wakeup,
    )>();
    goes::<Acquire>();
    goes::<<Acquire as IntoFuture>::IntoFuture>();
}

/// Lines that are in one of them alone.
fn difference(before: &str, after: &str) -> String {
    let only_in = |mark: char, one: &str, other: &str| -> String {
        let others: Vec<&str> = other.lines().collect();
        let lines = one.lines().filter(|line| !others.contains(line));
        lines.map(|line| format!("{mark} {line}\n")).collect()
    };
    only_in('-', before, after) + &only_in('+', after, before)
}

const FILE: &str = "docs/public-api.txt";
