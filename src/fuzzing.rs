//! What must hold for whatever comes in from outside, one function for each kind of input.
//!
//! It is there for the fuzz targets in `fuzz/` and for the test that replays their corpora, and not
//! part of the crate otherwise. A function panics when its input breaks what it says. Each has an
//! oracle of its own: the limits are written again here, from the documentation and the SQL, and not
//! taken from the code that is tried.
#![allow(missing_docs, unreachable_pub, clippy::missing_panics_doc)]

mod answers;
mod faults;
mod input;
mod line;
mod names;
mod options;
mod terms;
mod urls;

pub use answers::answers;
pub use faults::faults;
pub use line::line;
pub use names::names;
pub use options::options;
pub use terms::terms;
pub use urls::urls;

#[cfg(test)]
mod replay;
