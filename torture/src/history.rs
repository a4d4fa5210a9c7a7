//! The whole history of a run: what the clients did, what the database recorded, what the nemesis did.

use std::collections::HashMap;

/// One acquisition and all that its client did with it. Times are of [`crate::clock`].
#[derive(Debug, Clone, Default)]
pub struct Acquisition {
    /// `process.incarnation.worker.number`, and the holder of the lease.
    pub id: String,
    pub name: String,
    pub invoked_at: i64,
    /// How long it may wait, in milliseconds; 0 for not at all.
    pub wait_ms: i64,
    pub granted: Option<(i64, i64)>,
    pub refused: Option<(i64, String)>,
    /// The last moment at which the client believed to hold it.
    pub believed_at: i64,
    pub lost: Option<(i64, String)>,
    pub release_sent_at: Option<i64>,
    pub release_answer: Option<(i64, String)>,
    pub writes: Vec<Write>,
    /// What a client asked that it had no right to, or no longer, and the answer.
    pub probes: Vec<(i64, String, String)>,
    pub operations: u64,
}

/// A fenced write as its client knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    pub number: i64,
    pub invoked_at: i64,
    pub answered_at: i64,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged,
    /// By the fence.
    Refused,
    /// Failed before the commit was asked for.
    Failed,
    /// May or may not have happened.
    Unknown,
}

/// A change of a row of `leasehold.locks`, written down while the row was locked. Microseconds; `up` is of
/// [`crate::clock`] to the hundredth of a second, rounded down, the others are the database's clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Audit {
    pub number: i64,
    pub up: i64,
    pub at: i64,
    pub name: String,
    pub old: Option<Row>,
    pub new: Option<Row>,
    /// At a grant: for how many milliseconds somebody had stood in line who was alive and came before.
    pub overtaken: i64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    pub owner: String,
    pub holder: String,
    pub fence: i64,
    pub acquired_at: i64,
    pub expires_at: i64,
    pub ttl: i64,
}

/// A fenced write as the database has it, numbered inside the row that it protects.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    pub name: String,
    pub number: i64,
    pub fence: i64,
    /// The grant that was current when the write was made.
    pub current: i64,
    pub id: String,
    pub write: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub kind: String,
    pub target: String,
    pub from: i64,
    pub to: i64,
}

/// What is left when all clients have closed.
#[derive(Debug, Clone, Default)]
pub struct End {
    pub held: i64,
    pub waiting: i64,
    pub old_rows: i64,
    pub old_clients: i64,
    /// By name: how often its protected register was written, and its value.
    pub registers: Vec<(String, i64, i64)>,
    /// The same of the register without a fence.
    pub control: (i64, i64),
    pub unclosed: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct History {
    pub acquisitions: Vec<Acquisition>,
    pub audit: Vec<Audit>,
    pub written: Vec<Written>,
    pub faults: Vec<Fault>,
    pub end: End,
    pub began_at: i64,
    /// From here on nothing is done to anybody.
    pub calm_from: i64,
    pub ended_at: i64,
    /// Lines of the clients that are not understood.
    pub unread: Vec<String>,
}

impl History {
    /// Adds what one process wrote down.
    pub fn read(&mut self, text: &str) {
        let mut known: HashMap<String, usize> = HashMap::new();
        for line in text.lines() {
            if self.line(&mut known, line).is_none() {
                self.unread.push(line.to_owned());
            }
        }
    }

    fn line(&mut self, known: &mut HashMap<String, usize>, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let (at, id, what) = (words.first()?.parse::<i64>().ok()?, *words.get(1)?, *words.get(2)?);
        let rest = &words[3..];
        let index = *known.entry(id.to_owned()).or_insert_with(|| {
            self.acquisitions.push(Acquisition {
                id: id.to_owned(),
                ..Acquisition::default()
            });
            self.acquisitions.len() - 1
        });
        let one = &mut self.acquisitions[index];
        match what {
            "acquire" => {
                one.name = (*rest.first()?).to_owned();
                one.wait_ms = rest.get(1)?.parse().ok()?;
                one.invoked_at = at;
                one.operations += 1;
            }
            "granted" => {
                one.granted = Some((at, rest.first()?.parse().ok()?));
            }
            "refused" => one.refused = Some((at, rest.join(" "))),
            "believes" => one.believed_at = one.believed_at.max(at),
            "lost" => one.lost = Some((at, rest.join(" "))),
            "release" => {
                one.release_sent_at = Some(at);
                one.operations += 1;
            }
            "released" => one.release_answer = Some((at, rest.join(" "))),
            "write" => {
                one.operations += 1;
                one.writes.push(Write {
                    number: rest.first()?.parse().ok()?,
                    invoked_at: at,
                    answered_at: i64::MAX,
                    outcome: Outcome::Unknown,
                });
            }
            "wrote" => {
                let number: i64 = rest.first()?.parse().ok()?;
                let write = one.writes.iter_mut().find(|write| write.number == number)?;
                write.answered_at = at;
                write.outcome = match *rest.get(1)? {
                    "yes" => Outcome::Acknowledged,
                    "fenced" => Outcome::Refused,
                    "failed" => Outcome::Failed,
                    _ => Outcome::Unknown,
                };
            }
            "probe" => {
                one.operations += 1;
                one.probes
                    .push((at, (*rest.first()?).to_owned(), (*rest.get(1)?).to_owned()));
            }
            "control" => one.operations += 1,
            _ => return None,
        }
        Some(())
    }
}

impl Audit {
    /// The new grant that this change is.
    pub fn grant(&self) -> Option<&Row> {
        let new = self.new.as_ref().filter(|new| !new.owner.is_empty())?;
        // Held on after its release it has another owner, whom nobody knows, and no ttl.
        let is_new = self.old.as_ref().is_none_or(|old| {
            old.owner.is_empty() || old.fence != new.fence || (old.owner != new.owner && new.ttl > 0)
        });
        is_new.then_some(new)
    }

    /// The held row before and after, when it stays the same grant.
    pub fn renewal(&self) -> Option<(&Row, &Row)> {
        let (old, new) = (self.old.as_ref()?, self.new.as_ref()?);
        (!new.owner.is_empty() && old.owner == new.owner && old.fence == new.fence && old.expires_at != new.expires_at)
            .then_some((old, new))
    }

    /// The grant that ends here without another taking its place.
    pub fn freed(&self) -> Option<&Row> {
        let old = self.old.as_ref().filter(|old| !old.owner.is_empty())?;
        let is_held_on = |new: &Row| old.ttl > 0 && new.ttl == 0 && old.fence == new.fence;
        self.new
            .as_ref()
            .is_some_and(|new| new.owner.is_empty() || is_held_on(new))
            .then_some(old)
    }
}

/// The process and its incarnation, out of an id.
pub fn origin(id: &str) -> (&str, i64) {
    let mut parts = id.split('.');
    let process = parts.next().unwrap_or_default();
    (process, parts.next().and_then(|part| part.parse().ok()).unwrap_or(0))
}
