//! What the database complains of, by its SQLSTATE.

use std::borrow::Cow;
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;

use sqlx::error::{DatabaseError, ErrorKind};

use super::input::Input;
use crate::error::{Error, Operation, is_fenced, is_read_only};
use crate::lane::{Severity, is_final, severity};
use crate::name::LockName;

/// Every code is sorted, and the same way wherever it is met: what the lane takes for a standby is told
/// as one, what it tries again is no missing schema. Every error names the lock or its remedy, and keeps
/// what the database said.
pub fn faults(data: &[u8]) {
    let mut input = Input::new(data);
    let raw;
    let code = match input.choice(CODES.len() + 1) {
        at if at < CODES.len() => CODES[at],
        _ => {
            raw = input.text();
            &raw
        }
    };
    let message = match input.choice(3) {
        0 => "cached plan must not change result type".into(),
        _ => input.text(),
    };
    let said = |code: &str| {
        sqlx::Error::Database(Box::new(Said {
            code: (!code.is_empty()).then(|| code.to_owned()),
            message: message.clone(),
        }))
    };
    let fault = said(code);

    let read_only = match code {
        "25006" | "55000" => true,
        "0A000" => !message.contains("cached plan"),
        _ => false,
    };
    assert_eq!(is_read_only(&fault), read_only, "{code}: {message}");
    assert_eq!(is_fenced(&fault), code == "LH001");
    assert_eq!(severity(&fault), expected(code, read_only), "{code}: {message}");
    assert_eq!(
        is_final(&fault),
        code.get(..2) == Some("28") || code == "3D000" || code == "42501",
        "{code}"
    );

    let name = LockName::new("invoice:842").expect("it is short");
    let operation = input.one_of(&[
        Operation::Acquire,
        Operation::Release,
        Operation::Fence,
        Operation::Inspect,
    ]);
    let told = Error::from_database(operation, &name, Arc::new(said(code)));
    let listed = Error::list(said(code));
    match code {
        "3F000" | "42883" | "42P01" => {
            assert!(matches!(told, Error::SchemaMissing { .. }) && matches!(listed, Error::SchemaMissing { .. }));
        }
        "2200H" => assert!(matches!(told, Error::TokensExhausted { .. })),
        _ if read_only => assert!(matches!(told, Error::ReadOnly { .. }), "{told:?}"),
        _ => assert!(matches!(&told, Error::Database { .. }), "{told:?}"),
    }
    for error in [told, listed] {
        let sentence = error.to_string();
        let names_remedy = ["invoice:842", "migrate", "primary", "list"]
            .iter()
            .any(|word| sentence.contains(word));
        assert!(names_remedy, "{sentence}");
        assert!(
            error
                .source()
                .is_some_and(|source| source.to_string().contains(&message))
        );
    }
}

/// By class, after PostgreSQL's appendix A.
fn expected(code: &str, read_only: bool) -> Severity {
    match code {
        "" => Severity::Cut,
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "25P03" | "25P04" => Severity::Cut,
        _ if code.as_bytes().starts_with(b"08") => Severity::Cut,
        "57014" | "55P03" => Severity::TooLong,
        _ if read_only => Severity::Hopeless,
        "40001" | "40P01" | "26000" | "42P05" | "0A000" => Severity::Passing,
        "3F000" | "42883" | "42P01" | "42501" => Severity::Hopeless,
        _ => Severity::Refused,
    }
}

#[derive(Debug)]
struct Said {
    code: Option<String>,
    message: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Said {}

impl DatabaseError for Said {
    fn message(&self) -> &str {
        &self.message
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        self.code.as_deref().map(Cow::Borrowed)
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

const CODES: [&str; 29] = [
    "57P01", "57P02", "57P03", "57P05", "53300", "25P03", "25P04", "57014", "55P03", "40001", "40P01", "26000",
    "42P05", "0A000", "25006", "55000", "3F000", "42883", "42P01", "42501", "08006", "2200H", "LH001", "LH002",
    "28P01", "3D000", "54000", "XX000", "",
];
