//! The table of broken SQL: what is changed in the schema as installed, which invariant that breaks,
//! and the test of `tests/it` that must fail on it.
//!
//! A mutant is a change in the text of an installed function, so it follows the real SQL. Where the
//! text to replace is not there exactly once, installing fails. The text is compared without comments
//! and with every run of white space as one space.

mod acquire;
mod acquire_many;
mod epoch;
mod fence;
mod operate;
mod queue;
mod release;
mod renew;

#[derive(Debug)]
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// What no longer holds: I1 to I18 are the invariants of the torture run's report.
    pub(crate) breaks: &'static str,
    pub(crate) edits: &'static [Edit],
    /// The test that must fail.
    pub(crate) caught_by: &'static str,
}

#[derive(Debug)]
pub(crate) enum Edit {
    /// In this function, this text, and what stands in its place.
    In(&'static str, &'static str, &'static str),
    /// For what is no text of a function.
    Run(&'static str),
}

/// All of them, function by function.
pub(crate) fn all() -> impl Iterator<Item = &'static Mutant> {
    [
        acquire::MUTANTS,
        acquire_many::MUTANTS,
        renew::MUTANTS,
        release::MUTANTS,
        fence::MUTANTS,
        operate::MUTANTS,
        queue::MUTANTS,
        epoch::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

const fn mutant(name: &'static str, breaks: &'static str, edits: &'static [Edit], caught_by: &'static str) -> Mutant {
    Mutant {
        name,
        breaks,
        edits,
        caught_by,
    }
}
