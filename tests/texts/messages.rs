//! What the chapter on troubleshooting quotes is said somewhere, word by word, and nothing loud is left out of it.

use syn::visit::{self, Visit};

use crate::documents::{files, prose, read};

#[test]
fn every_message_that_troubleshooting_quotes_is_in_the_code() {
    let sources = files("src", "rs").into_iter().chain(files("migrations", "sql"));
    let said: String = sources.map(read).collect();
    let mut invented = Vec::new();
    let mut quoted = 0;
    for symptom in symptoms() {
        for quote in code(&symptom).filter(|quote| quote.contains(' ')) {
            quoted += 1;
            let mut pieces = quote.split('…').map(str::trim);
            if !OTHERS_SAY.contains(&quote) && !pieces.all(|piece| said.contains(piece)) {
                invented.push(quote.to_owned());
            }
        }
    }

    assert!(invented.is_empty(), "{}", invented.join("\n"));
    assert!(quoted > 40, "{quoted}");
}

#[test]
fn every_error_and_every_event_that_is_a_warning_or_worse_has_its_line() {
    let chapter = read(CHAPTER);
    let mut missing = Vec::new();
    let mut said = 0;
    for file in files("src", "rs") {
        let mut loud = Loud::default();
        loud.visit_file(&syn::parse_file(&read(&file)).expect("it compiles"));
        for message in loud.messages {
            said += 1;
            let fixed = message
                .split('{')
                .map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
            let longest = fixed.map(str::trim).max_by_key(|part| part.len()).unwrap_or_default();
            if longest.len() > 2 && !chapter.contains(longest) {
                missing.push(format!("{}: {message}", file.display()));
            }
        }
    }

    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(said > 20, "{said}");
}

/// The texts of `warn!`, `error!` and `#[error(…)]`.
#[derive(Default)]
struct Loud {
    messages: Vec<String>,
}

impl<'s> Visit<'s> for Loud {
    fn visit_macro(&mut self, called: &'s syn::Macro) {
        if called.path.is_ident("warn") || called.path.is_ident("error") {
            // Its last text: what stands before are fields.
            let texts = called.tokens.clone().into_iter();
            let texts = texts.filter_map(|token| syn::parse2::<syn::LitStr>(token.into()).ok());
            self.messages.extend(texts.last().map(|text| text.value()));
        }
    }

    fn visit_attribute(&mut self, attribute: &'s syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && list.path.is_ident("error")
        {
            let first = list.tokens.clone().into_iter().next();
            let text = first.and_then(|token| syn::parse2::<syn::LitStr>(token.into()).ok());
            self.messages.extend(text.map(|text| text.value()));
        }
        visit::visit_attribute(self, attribute);
    }
}

/// The first cell of each row.
fn symptoms() -> Vec<String> {
    let text = prose(&read(CHAPTER));
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| Some(row.split_once(" | ")?.0.to_owned()))
        .collect()
}

/// What stands between back-ticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

const CHAPTER: &str = "docs/guide/troubleshooting.md";

/// Said by the server, by sqlx, by PgBouncer or by tokio.
const OTHERS_SAY: &[&str] = &[
    "current transaction is aborted, commands ignored until end of transaction block",
    "could not serialize access due to concurrent update",
    "terminating connection due to idle-in-transaction timeout",
    "permission denied for function …",
    "permission denied for schema leasehold",
    "permission denied for database …",
    "must be owner of …",
    "migration … was previously applied but has been modified",
    "migration … was previously applied but is missing in the resolved migrations",
    "sorry, too many clients already",
    "remaining connection slots are reserved …",
    "password authentication failed …",
    "database … does not exist",
    "prepared statement \"sqlx_s_…\" does not exist",
    "… already exists",
    "bind message supplies … parameters, but prepared statement …",
    "unsupported startup parameter: extra_float_digits",
    "there is no reactor running, must be called from the context of a Tokio 1.x runtime",
];
