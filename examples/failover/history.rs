//! What the clients were told, what the surviving database knows, and what is wrong between the two.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use leasehold::sqlx::{self, PgConnection};

/// Written down by the clients: everything that the database has acknowledged to them.
#[derive(Debug, Default)]
pub struct History {
    pub grants: Vec<Grant>,
    /// Ids of fenced writes whose commit was answered.
    pub writes: Vec<i64>,
    /// Late writes that the fence refused: their holder had lost its grant.
    pub refused: usize,
    /// Leases held when the fault came, and those of them that were held to the end.
    pub kept: (usize, usize),
}

#[derive(Debug)]
pub struct Grant {
    pub client: usize,
    pub name: String,
    pub token: i64,
    pub asked_at: Instant,
    pub granted_at: Instant,
    /// The last moment at which its holder was seen to believe.
    pub believed_until: Instant,
}

/// What the database knows in the end.
#[derive(Debug)]
pub struct Surviving {
    /// The timeline that each token was drawn on.
    grants: HashMap<i64, String>,
    /// Name, token, and the token that was current, in the order of the writes.
    writes: Vec<(String, i64, Option<i64>, i64)>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Findings {
    pub grants: usize,
    pub grants_missing: usize,
    pub tokens_twice: usize,
    pub tokens_not_rising: usize,
    pub writes: usize,
    pub writes_missing: usize,
    pub stale_writes: usize,
    pub overlaps: usize,
    pub longest_gap: Duration,
}

impl Surviving {
    pub async fn read(conn: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let grants = sqlx::query_as("select token, timeline from failover.grants")
            .fetch_all(&mut *conn)
            .await?;
        let writes = sqlx::query_as("select name, token, current, id from failover.writes order by name, number")
            .fetch_all(conn)
            .await?;
        Ok(Self {
            grants: grants.into_iter().collect(),
            writes,
        })
    }

    /// When each client was first granted a name by the server that leads now.
    pub fn arrivals(&self, history: &History) -> BTreeMap<usize, Instant> {
        let latest = self.grants.values().max();
        let mut arrivals = BTreeMap::new();
        for grant in &history.grants {
            if self.grants.get(&grant.token) == latest {
                let arrival = arrivals.entry(grant.client).or_insert(grant.granted_at);
                *arrival = grant.granted_at.min(*arrival);
            }
        }
        arrivals
    }

    pub fn latest_timeline(&self) -> Option<&str> {
        self.grants.values().max().map(String::as_str)
    }
}

impl Findings {
    pub fn of(history: &History, surviving: &Surviving) -> Self {
        let mut findings = Self {
            grants: history.grants.len(),
            writes: history.writes.len(),
            ..Self::default()
        };
        let mut tokens = HashSet::new();
        let mut by_name: BTreeMap<&str, Vec<&Grant>> = BTreeMap::new();
        for grant in &history.grants {
            findings.grants_missing += usize::from(!surviving.grants.contains_key(&grant.token));
            findings.tokens_twice += usize::from(!tokens.insert(grant.token));
            by_name.entry(&grant.name).or_default().push(grant);
        }
        for grants in by_name.values_mut() {
            grants.sort_by_key(|grant| grant.granted_at);
            findings.tokens_not_rising += not_rising(grants);
            findings.overlaps += overlaps(grants);
        }
        let written: HashSet<i64> = surviving.writes.iter().map(|(.., id)| *id).collect();
        findings.writes_missing = history.writes.iter().filter(|id| !written.contains(id)).count();
        let mut highest: HashMap<&str, i64> = HashMap::new();
        for (name, token, current, _) in &surviving.writes {
            let before = highest.entry(name).or_insert(*token);
            findings.stale_writes += usize::from(token < before || *current != Some(*token));
            *before = (*before).max(*token);
        }
        let granted: BTreeSet<Instant> = history.grants.iter().map(|grant| grant.granted_at).collect();
        let gaps = granted
            .iter()
            .zip(granted.iter().skip(1))
            .map(|(one, next)| *next - *one);
        findings.longest_gap = gaps.max().unwrap_or_default();
        findings
    }
}

/// Grants asked for when an earlier one, with a token that is not lower, had been answered.
fn not_rising(grants: &[&Grant]) -> usize {
    let is_after = |later: &Grant, earlier: &Grant| earlier.granted_at <= later.asked_at;
    (1..grants.len())
        .filter(|&at| {
            let earlier = grants[..at].iter().filter(|earlier| is_after(grants[at], earlier));
            earlier.map(|earlier| earlier.token).max() >= Some(grants[at].token)
        })
        .count()
}

/// Grants during which an earlier holder still believed.
fn overlaps(grants: &[&Grant]) -> usize {
    let mut believed_until = None;
    grants
        .iter()
        .filter(|grant| {
            let overlaps = believed_until > Some(grant.granted_at);
            believed_until = believed_until.max(Some(grant.believed_until));
            overlaps
        })
        .count()
}
