//! What a client process writes down: one line before and one after every operation.
//!
//! A line is one `write` to the end of a file, so a process that is killed loses nothing that it
//! had written. All lines of one acquisition carry its id, which is the holder of its lease too.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::clock::now;

#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self(OpenOptions::new().create(true).append(true).open(path)?))
    }

    /// Writes a line down as of now.
    pub fn note(&self, id: &str, what: &str, rest: &str) {
        self.note_at(now(), id, what, rest);
    }

    pub fn note_at(&self, at: i64, id: &str, what: &str, rest: &str) {
        let line = format!("{at} {id} {what} {rest}\n");
        (&self.0)
            .write_all(line.as_bytes())
            .expect("the history can be written");
    }
}
