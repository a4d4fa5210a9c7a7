//! What the command ends with. The codes are part of its interface; see `leasehold run --help`.

use std::process::ExitCode;

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what was asked.
    Done,
    /// The answer is no: nobody holds it, the token is not current, something is to be mended.
    No,
    /// What was asked cannot be asked.
    Usage,
    /// Somebody else holds the name, and waiting was not asked for.
    Held,
    /// The wait was over and somebody else still held the name.
    TimedOut,
    /// The lease was lost, and so the command was ended.
    Lost,
    /// The database could not be reached, or refused.
    Unavailable,
    /// There is such a command, but it cannot be run.
    NotRunnable,
    /// There is no such command.
    NotFound,
    /// What the child ended with.
    Child(u8),
    /// A signal ended the child, or the wait for the lease.
    Signal(i32),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Held => 121,
            Self::TimedOut => 122,
            Self::Lost => 123,
            Self::Unavailable => 125,
            Self::NotRunnable => 126,
            Self::NotFound => 127,
            Self::Child(code) => code,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// A command that did not come to its end, and what to say of it.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failed {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
        }
    }
}

impl From<leasehold::Error> for Failed {
    fn from(error: leasehold::Error) -> Self {
        use leasehold::Error;
        let exit = match &error {
            Error::InvalidName { .. } | Error::InvalidOption { .. } => Exit::Usage,
            Error::WaitTimedOut { .. } => Exit::TimedOut,
            Error::Busy { .. } => Exit::Held,
            Error::Lost(_) | Error::GrantedTooLate { .. } => Exit::Lost,
            _ => Exit::Unavailable,
        };
        Self::new(exit, with_causes(&error))
    }
}

impl From<leasehold::sqlx::Error> for Failed {
    fn from(error: leasehold::sqlx::Error) -> Self {
        Self::new(Exit::Unavailable, with_causes(&error))
    }
}

/// The message and those of what caused it, where they say more.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !message.contains(&next) {
            message = format!("{message}: {next}");
        }
        cause = error.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_codes_are_apart_and_a_signal_counts_from_128() {
        let own = [
            Exit::Done,
            Exit::No,
            Exit::Usage,
            Exit::Held,
            Exit::TimedOut,
            Exit::Lost,
            Exit::Unavailable,
            Exit::NotRunnable,
            Exit::NotFound,
        ];

        let mut codes: Vec<_> = own.iter().map(|exit| exit.code()).collect();
        codes.dedup();

        assert_eq!(codes, [0, 1, 2, 121, 122, 123, 125, 126, 127]);
        assert_eq!(Exit::Signal(15).code(), 143);
        assert_eq!(Exit::Child(7).code(), 7);
    }
}
