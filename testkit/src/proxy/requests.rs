//! What clients ask for: the frontend messages of the PostgreSQL protocol, as far as
//! statements go.
//!
//! A statement's text travels when it is prepared; afterwards it goes by its name. So the
//! texts are remembered per connection, to say which one is executed.

use std::collections::HashMap;

/// A chunk from a client and the statements that it completes the order to execute.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) bytes: &'a [u8],
    executed: Vec<String>,
}

impl Request<'_> {
    pub(super) fn contains(&self, pattern: &[u8]) -> bool {
        contains(self.bytes, pattern)
    }

    pub(super) fn executes(&self, sql: &str) -> bool {
        self.executed.iter().any(|executed| executed.contains(sql))
    }
}

/// Reads one connection's messages as they come in, whole or in pieces.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pending: Vec<u8>,
    has_started: bool,
    is_foreign: bool,
    prepared: HashMap<String, String>,
}

impl Reader {
    pub(super) fn read<'a>(&mut self, bytes: &'a [u8]) -> Request<'a> {
        let mut executed = Vec::new();
        if self.is_foreign {
            return Request { bytes, executed };
        }
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        loop {
            // A start-up message has no type byte; one that only asks for encryption is
            // followed by another.
            let head = if self.has_started { 1 } else { 0 };
            let Some(length) = rest.get(head..head + 4) else { break };
            let length = u32::from_be_bytes(length.try_into().expect("it is four bytes")) as usize;
            // Not PostgreSQL's protocol: it has no start-up message as long as this.
            if !self.has_started && length > LONGEST_START_UP {
                (self.is_foreign, rest) = (true, &[]);
                break;
            }
            let Some(body) = rest.get(head + 4..head + length.max(4)) else {
                break;
            };
            match (self.has_started, rest[0]) {
                (false, _) => self.has_started = !is_encryption_request(body),
                (true, b'P') => {
                    let (name, body) = text(body);
                    self.prepared.insert(name, text(body).0);
                }
                (true, b'B') => {
                    let (_portal, body) = text(body);
                    executed.extend(self.prepared.get(&text(body).0).cloned());
                }
                (true, b'Q') => executed.push(text(body).0),
                _ => {}
            }
            rest = &rest[head + length.max(4)..];
        }
        self.pending = rest.to_vec();
        Request { bytes, executed }
    }
}

/// Splits a zero-terminated text off.
fn text(bytes: &[u8]) -> (String, &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (
        String::from_utf8_lossy(&bytes[..end]).into_owned(),
        bytes.get(end + 1..).unwrap_or_default(),
    )
}

fn is_encryption_request(body: &[u8]) -> bool {
    [SSL_REQUEST, GSS_REQUEST].iter().any(|code| body == code.to_be_bytes())
}

fn contains(bytes: &[u8], pattern: &[u8]) -> bool {
    pattern.is_empty() || bytes.windows(pattern.len()).any(|window| window == pattern)
}

const LONGEST_START_UP: usize = 10_000;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        kind.into_iter()
            .chain(length.to_be_bytes())
            .chain(body.iter().copied())
            .collect()
    }

    fn started() -> Reader {
        let mut reader = Reader::default();
        reader.read(&message(None, &SSL_REQUEST.to_be_bytes()));
        reader.read(&message(None, b"\0\x03\0\0user\0postgres\0\0"));
        reader
    }

    #[test]
    fn a_statement_prepared_before_is_known_when_it_is_executed() {
        let mut reader = started();

        let parse = message(Some(b'P'), b"s1\0select 1\0\0\0");
        let prepares = reader.read(&parse);
        assert!(prepares.contains(b"select 1"));
        assert!(!prepares.executes("select 1"));

        let bind = [
            message(Some(b'B'), b"\0s1\0\0\0\0\0\0\0"),
            message(Some(b'E'), b"\0\0\0\0\0"),
        ]
        .concat();
        assert!(reader.read(&bind).executes("select 1"));
    }

    #[test]
    fn a_message_in_pieces_is_executed_with_its_last_piece() {
        let mut reader = started();
        let query = message(Some(b'Q'), b"select 1\0");

        for piece in query[..query.len() - 1].chunks(1) {
            assert!(!reader.read(piece).executes("select 1"));
        }

        assert!(reader.read(&query[query.len() - 1..]).executes("select 1"));
    }
}
