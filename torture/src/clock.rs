//! The clock that all processes of the machine share, the server's audit included.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine started, as `/proc/uptime` counts them; no step moves it.
pub fn now() -> i64 {
    let since = clock_gettime(ClockId::Boottime);
    since.tv_sec * 1_000_000 + since.tv_nsec / 1000
}

pub const MS: i64 = 1000;
pub const SECOND: i64 = 1_000_000;
