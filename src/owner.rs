//! Who holds a lease: the owner token, which decides, and the holder label, which is for people.

use std::fmt;

use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use crate::error::Error;

/// A random UUID, one per acquisition. Renew and release touch only the grant that carries it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnerToken(Uuid);

impl OwnerToken {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4())
    }

    pub(crate) fn uuid(self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for OwnerToken {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// `application@host:pid`: the connection's `application_name`, else the program's name.
pub(crate) fn default_holder(options: &PgConnectOptions) -> String {
    let application = options.get_application_name().map(str::to_owned).or_else(|| {
        let program = std::env::current_exe().ok()?;
        Some(program.file_name()?.to_string_lossy().into_owned())
    });
    let mut holder = format!(
        "{}@{}:{}",
        application.as_deref().unwrap_or("unknown"),
        hostname::get().map_or_else(|_| "unknown".into(), |host| host.to_string_lossy().into_owned()),
        std::process::id(),
    );
    holder.retain(|c| c != '\0');
    holder.truncate(holder.floor_char_boundary(MAX_HOLDER_BYTES));
    holder
}

/// A label that the `locks` table takes.
pub(crate) fn check_holder(holder: &str) -> Result<(), Error> {
    if holder.len() > MAX_HOLDER_BYTES || holder.contains('\0') {
        return Err(Error::InvalidOption {
            option: "holder",
            problem: format!("it has at most {MAX_HOLDER_BYTES} bytes and no NUL"),
        });
    }
    Ok(())
}

const MAX_HOLDER_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_holder_names_application_host_and_pid() {
        let options = PgConnectOptions::new_without_pgpass().application_name("billing");

        let holder = default_holder(&options);

        assert!(holder.starts_with("billing@"), "{holder}");
        assert!(holder.ends_with(&format!(":{}", std::process::id())), "{holder}");
        assert!(check_holder(&holder).is_ok());
    }

    #[test]
    fn a_holder_longer_than_512_bytes_or_with_nul_is_refused() {
        assert!(check_holder(&"h".repeat(512)).is_ok());
        assert!(check_holder(&"h".repeat(513)).is_err());
        assert!(check_holder("a\0").is_err());
    }
}
