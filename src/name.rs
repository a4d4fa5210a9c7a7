//! The name of a lock: what must not overlap.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// A checked lock name: 1 to 512 bytes of UTF-8 without NUL.
///
/// Nothing is trimmed or normalised: two names are equal when their bytes are.
///
/// # Examples
///
/// ```
/// # use leasehold::LockName;
/// assert!(LockName::new("invoice:842").is_ok());
/// assert!(LockName::new("").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] when it is empty, longer than [`Self::MAX_BYTES`] or contains NUL,
    /// which PostgreSQL's `text` cannot hold.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        match complaint(name) {
            None => Ok(Self(name.into())),
            Some(problem) => Err(Error::InvalidName {
                name: name.chars().take(64).collect(),
                problem,
            }),
        }
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is wrong with the name of a lock or a resource, if anything.
pub(crate) fn complaint(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("it is empty")
    } else if name.len() > LockName::MAX_BYTES {
        Some("it is longer than 512 bytes")
    } else if name.contains('\0') {
        Some("it contains NUL")
    } else {
        None
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_counts_bytes_and_ends_at_512() {
        assert!(LockName::new("x".repeat(512)).is_ok());
        assert!(LockName::new("x".repeat(513)).is_err());
        assert!(LockName::new("é".repeat(256)).is_ok());
        assert!(LockName::new("é".repeat(257)).is_err());
    }

    #[test]
    fn empty_names_and_names_with_nul_are_refused() {
        assert!(matches!(
            LockName::new(""),
            Err(Error::InvalidName {
                problem: "it is empty",
                ..
            })
        ));
        assert!(matches!(
            LockName::new("a\0b"),
            Err(Error::InvalidName {
                problem: "it contains NUL",
                ..
            })
        ));
    }

    #[test]
    fn nothing_is_trimmed_or_normalised() {
        assert_eq!(LockName::new(" a ").unwrap().as_str(), " a ");
        assert_ne!(LockName::new("e\u{301}").unwrap(), LockName::new("é").unwrap());
        assert_ne!(LockName::new("A").unwrap(), LockName::new("a").unwrap());
    }
}
