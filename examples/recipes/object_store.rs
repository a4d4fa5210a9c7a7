//! An object store: the token travels in the object's metadata, and a conditional put decides.
//!
//! Read the object's token, refuse when it is higher than one's own, and put on the condition that the
//! object is still the version that was read (`If-Match` in S3 and its likes). Whoever loses that race
//! reads again. A local directory stands for the store here: a version is a file, and a link to the
//! next one fails when that is there already, as a conditional put does.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use leasehold::FencingToken;

use crate::stage::{Outcome, Stage, expect};

#[derive(Debug, PartialEq, Eq)]
enum Put {
    Stored,
    /// The object has a higher token.
    Stale,
}

pub async fn run(stage: &Stage) -> Outcome<()> {
    let store = Directory::create()?;
    let (stale, current) = stage.overtaken("object:report.pdf").await?;

    expect(
        publish(&store, "first", current.fencing_token())? == Put::Stored,
        "the current holder publishes",
    )?;
    expect(
        publish(&store, "stale", stale.fencing_token())? == Put::Stale,
        "the stale put is refused",
    )?;
    expect(
        publish(&store, "second", current.fencing_token())? == Put::Stored,
        "it publishes again",
    )?;
    expect(
        store.get()?.is_some_and(|object| object.body == "second"),
        "the current holder's object stands",
    )?;
    Ok(fs::remove_dir_all(store.path)?)
}

fn publish(store: &Directory, body: &str, token: FencingToken) -> Outcome<Put> {
    loop {
        let present = store.get()?;
        if present.as_ref().is_some_and(|object| object.token > token) {
            return Ok(Put::Stale);
        }
        // Conditional: another put in between makes this one fail, and the token is looked at again.
        if store.put_if_version_is(present.map_or(0, |object| object.version), body, token)? {
            return Ok(Put::Stored);
        }
    }
}

struct Directory {
    path: PathBuf,
}

struct Object {
    version: u64,
    token: FencingToken,
    body: String,
}

impl Directory {
    fn create() -> Outcome<Self> {
        let path = std::env::temp_dir().join(format!("leasehold-store-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&path)?;
        Ok(Self { path })
    }

    fn get(&self) -> Outcome<Option<Object>> {
        let versions = fs::read_dir(&self.path)?.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok());
        let Some(version) = versions.max() else { return Ok(None) };
        let text = fs::read_to_string(self.path.join(format!("{version}")))?;
        let (token, body) = text.split_once('\n').ok_or("an object without its token")?;
        Ok(Some(Object {
            version,
            token: FencingToken::new(token.parse()?),
            body: body.into(),
        }))
    }

    fn put_if_version_is(&self, version: u64, body: &str, token: FencingToken) -> Outcome<bool> {
        let written = self.path.join(format!("new-{}", uuid::Uuid::new_v4()));
        fs::write(&written, format!("{token}\n{body}"))?;
        let linked = fs::hard_link(&written, self.path.join(format!("{}", version + 1)));
        fs::remove_file(written)?;
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
