//! Names of locks and resources.

use super::input::Input;
use crate::error::Error;
use crate::name::{LockName, complaint};

/// A name is accepted if and only if PostgreSQL's `text` holds it in 1 to 512 bytes, and is kept byte
/// for byte. A refusal says why, and quotes the beginning of it in one line.
pub fn names(data: &[u8]) {
    let mut input = Input::new(data);
    // Long ones are made of short ones.
    let text = match input.choice(3) {
        0 => input.rest().to_owned(),
        1 => {
            let times = usize::from(input.byte()) * 3;
            let mut text = input.text().repeat(times);
            text.truncate(text.floor_char_boundary(2048));
            text
        }
        _ => {
            let most = 500 + input.choice(24);
            let text = input.text();
            let mut filled = text.repeat(most / text.len().max(1));
            filled.extend(std::iter::repeat_n('x', most.saturating_sub(filled.len())));
            filled
        }
    };
    let (mut bytes, mut has_nul) = (0, false);
    for byte in text.bytes() {
        bytes += 1;
        has_nul |= byte == 0;
    }
    let reason = match bytes {
        0 => Some("empty"),
        513.. => Some("512"),
        _ if has_nul => Some("NUL"),
        _ => None,
    };

    match (LockName::new(&text), reason) {
        (Ok(name), None) => {
            assert_eq!(name.as_str(), text);
            assert_eq!(name.to_string(), text);
            assert_eq!(LockName::new(name.as_str()).expect("it was a name before"), name);
        }
        (Err(error), Some(reason)) => {
            let message = error.to_string();
            let Error::InvalidName { name: begins, problem } = error else {
                panic!("{error:?}");
            };
            assert!(text.starts_with(&begins) && begins.chars().count() <= 64);
            assert!(!begins.is_empty() || text.is_empty());
            assert!(problem.contains(reason), "{problem} of {text:?}");
            assert!(
                message.contains(problem) && !message.contains(char::is_control),
                "{message:?}"
            );
        }
        (outcome, reason) => panic!("{outcome:?} for {text:?}, which is to be refused for {reason:?}"),
    }
    assert_eq!(complaint(&text).is_some(), reason.is_some());
}
