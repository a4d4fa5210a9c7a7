//! What somebody at a terminal sees while `run` waits.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::args::{RunArgs, Wait};
use crate::table::{cut, printable, span, width};

/// The line that says how the wait goes on, on a terminal alone.
pub(super) struct Progress<'a> {
    name: &'a str,
    is_shown: bool,
    has_line: bool,
}

impl<'a> Progress<'a> {
    pub(super) fn new(args: &'a RunArgs) -> Self {
        Self {
            name: &args.name,
            is_shown: !args.quiet && args.wait != Wait::AtMost(Duration::ZERO) && io::stderr().is_terminal(),
            has_line: false,
        }
    }

    pub(super) fn tell(&mut self, ahead: u32, holder: Option<&str>, left: Option<Duration>, is_pinned: bool) {
        if !self.is_shown {
            return;
        }
        let held_by = match holder {
            Some(holder) => format!(", held by {}", printable(holder)),
            None => String::new(),
        };
        let left = match left {
            _ if is_pinned => ", taken by an open transaction".to_owned(),
            Some(left) => format!(", {} left if it is not renewed", span(left)),
            None => String::new(),
        };
        let line = format!("waiting for {}: {ahead} ahead{held_by}{left}", printable(self.name));
        let _ = write!(io::stderr(), "\r\x1b[K{}", cut(&line, width()));
        self.has_line = true;
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.has_line {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
