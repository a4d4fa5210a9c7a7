//! Values out of bytes. When the bytes run out, everything is zero or empty.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;

pub(super) struct Input<'d>(&'d [u8]);

impl<'d> Input<'d> {
    pub(super) fn new(data: &'d [u8]) -> Self {
        Self(data)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// One of `count` choices.
    pub(super) fn choice(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.choice(choices.len())]
    }

    pub(super) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(super) fn u64(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// Any number, and often one at a limit.
    pub(super) fn i64(&mut self) -> i64 {
        let near = i64::from(self.byte() as i8);
        match self.choice(6) {
            0 => near,
            1 => i64::MAX.wrapping_add(near),
            2 => i64::from(i32::MAX) + near,
            3 => 1 << 53,
            _ => self.u64() as i64,
        }
    }

    pub(super) fn i32(&mut self) -> i32 {
        let near = i32::from(self.byte() as i8);
        match self.choice(4) {
            0 => near,
            1 => i32::MAX.wrapping_add(near),
            _ => self.u64() as i32,
        }
    }

    /// Any duration, and often one near a limit: a few nanoseconds beside `edge`.
    pub(super) fn duration_near(&mut self, edges: &[Duration]) -> Duration {
        // Most mistakes are off by nothing or by one.
        let near = self.byte();
        let near = Duration::from_nanos(u64::from(if near < 128 { near % 2 } else { near }));
        match self.choice(4) {
            0 => self.one_of(edges).saturating_add(near),
            1 => self.one_of(edges).saturating_sub(near),
            2 => Duration::from_micros(self.u64() % 100_000_000_000),
            _ => Duration::new(self.u64(), (self.u64() % 1_000_000_000) as u32),
        }
    }

    pub(super) fn interval(&mut self) -> PgInterval {
        let months = if self.flag() { 0 } else { self.i32() };
        let days = if self.flag() { 0 } else { self.i32() };
        let microseconds = self.i64();
        PgInterval {
            months,
            days,
            microseconds,
        }
    }

    pub(super) fn option<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| value(self))
    }

    /// A text of at most 255 bytes; repeated, so that it comes to be long, up to 8 times.
    pub(super) fn text(&mut self) -> String {
        let length = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        let times = 1 + self.choice(8);
        utf8(bytes).repeat(times)
    }

    pub(super) fn rest(self) -> &'d str {
        utf8(self.0)
    }
}

/// As much of the bytes as is text.
fn utf8(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("it is valid up to there"),
    }
}
