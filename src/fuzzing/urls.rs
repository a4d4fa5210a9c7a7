//! The URL of the listener.

use super::input::Input;
use crate::client::parse_listener_url;
use crate::error::Error;

/// A URL that is accepted is one of PostgreSQL, and one made of parts comes apart into them again. A
/// refusal names the option, and repeats nothing of the URL: it may hold a password.
pub fn urls(data: &[u8]) {
    let mut input = Input::new(data);
    if input.flag() {
        return made_of_parts(&mut input);
    }
    let url = input.rest();
    match parse_listener_url(url) {
        Ok(_) => assert!(
            url.starts_with("postgres://") || url.starts_with("postgresql://"),
            "{url:?}"
        ),
        Err(error) => {
            assert!(matches!(&error, Error::InvalidOption { option: "listener_url", problem } if !problem.is_empty()));
            repeats_nothing(&error, url);
        }
    }
}

fn made_of_parts(input: &mut Input<'_>) {
    let scheme = input.one_of(&["postgres", "postgresql"]);
    let (user, password, database) = (input.text(), input.text(), input.text());
    let (port, number) = (1 + input.u64() % 65_535, input.byte());
    // An empty part says nothing, and sqlx trims the slashes that a path begins with.
    let (user, database) = (format!("u{user}"), format!("d{database}"));
    let query = input.one_of(&[
        ("", true),
        ("?sslmode=disable", true),
        ("?application_name=billing", true),
        ("?sslmode=s3cr3t", false),
        ("?port=s3cr3t", false),
        ("?statement-cache-capacity=s3cr3t", false),
        ("?hostaddr=s3cr3t", false),
    ]);
    let url = format!(
        "{scheme}://{}:{}@h{number}.example:{port}/{}{}",
        encoded(&user),
        encoded(&password),
        encoded(&database),
        query.0,
    );

    match parse_listener_url(&url) {
        Ok(options) => {
            assert!(query.1, "{url:?}");
            assert_eq!(options.get_username(), user);
            assert_eq!(options.get_database(), Some(&*database));
            assert_eq!(options.get_host(), format!("h{number}.example"));
            assert_eq!(u64::from(options.get_port()), port);
        }
        Err(error) => {
            assert!(!query.1, "{error} for {url:?}");
            repeats_nothing(&error, &url);
        }
    }
}

/// Looks for the marks that the dictionary and the parts put into it.
fn repeats_nothing(error: &Error, url: &str) {
    for secret in ["s3cr3t", "hunter2"] {
        let told = [error.to_string(), format!("{error:?}")];
        assert!(
            !url.contains(secret) || told.iter().all(|told| !told.contains(secret)),
            "{told:?} of {url:?}"
        );
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
