//! Broken variants of the SQL, each a change that somebody might well make. They show that the checker sees.
//!
//! A variant is a replacement in the text of the installed function, so it follows the real SQL; where the text to
//! replace is not there, installing fails.

use sqlx::{AssertSqlSafe, PgPool};

use crate::Outcome;
use crate::checker::Invariant;

#[derive(Debug)]
pub struct Mutant {
    pub name: &'static str,
    /// Function, text, and what stands in its place.
    edits: &'static [(&'static str, &'static str, &'static str)],
    /// One of these is what must be found broken.
    pub breaks: &'static [Invariant],
}

use Invariant as I;

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "fence by a plain select",
        edits: &[("fence", "for key share;", ";")],
        breaks: &[I::WritesInOrder, I::WritesByCurrentGrant],
    },
    Mutant {
        name: "fence by at least",
        edits: &[(
            "fence",
            "l.fence = fence.fencing_token",
            "l.fence >= fence.fencing_token",
        )],
        breaks: &[I::WritesInOrder, I::WritesByCurrentGrant],
    },
    Mutant {
        name: "fence without owner and ttl",
        edits: &[
            ("fence", "and l.owner = coalesce(fence.owner, l.owner)", ""),
            ("fence", "and l.ttl is not null", ""),
        ],
        breaks: &[I::WritesByCurrentGrant],
    },
    Mutant {
        name: "grant without for update",
        edits: &[
            ("acquire", "for update of l skip locked", ""),
            ("acquire_many", "for update of l skip locked", ""),
        ],
        breaks: &[I::OneOwner, I::WritesInOrder, I::WritesByCurrentGrant],
    },
    Mutant {
        name: "grant by no key update",
        edits: &[
            (
                "acquire",
                "for update of l skip locked",
                "for no key update of l skip locked",
            ),
            (
                "acquire_many",
                "for update of l skip locked",
                "for no key update of l skip locked",
            ),
        ],
        breaks: &[I::WritesInOrder, I::WritesByCurrentGrant],
    },
    Mutant {
        name: "grant of what has not run out",
        edits: &[(
            "acquire",
            "(l.owner is null or l.expires_at <= clock_timestamp())",
            "(l.owner is null or l.expires_at <= clock_timestamp() + term)",
        )],
        breaks: &[I::OneOwner],
    },
    Mutant {
        // The pause is what a backend may suffer there at any time.
        name: "token before the row lock",
        edits: &[
            (
                "acquire",
                "for attempt in 1..2 loop",
                "acquire.fencing_token := nextval('leasehold.locks_fence_seq'); perform pg_sleep(case when random() < 0.2 then 0.1 else 0 end);
                 for attempt in 1..2 loop",
            ),
            (
                "acquire",
                "locked_at := clock_timestamp();
                    acquire.fencing_token := nextval('leasehold.locks_fence_seq');",
                "locked_at := clock_timestamp();",
            ),
            (
                "acquire",
                "is_foreign or acquire.fencing_token <= highest",
                "is_foreign",
            ),
        ],
        breaks: &[I::TokensRise],
    },
    Mutant {
        name: "the row's token plus one, unlocked",
        edits: &[(
            "acquire",
            "acquire.fencing_token := nextval('leasehold.locks_fence_seq');

                    -- A server",
            "acquire.fencing_token := (select max(m.fence) + 1 from leasehold.locks as m);

                    -- A server",
        )],
        breaks: &[I::TokenOnce],
    },
    Mutant {
        name: "a shorter term than was answered",
        edits: &[(
            "acquire",
            "expires_at = locked_at + term",
            "expires_at = locked_at + term / 8",
        )],
        breaks: &[I::BeliefEndsFirst],
    },
    Mutant {
        name: "renewal that revives",
        edits: &[(
            "renew",
            "and l.expires_at > locked_at\n                returning",
            "returning",
        )],
        breaks: &[I::NoRevival],
    },
    Mutant {
        name: "renewal without owner",
        edits: &[
            (
                "renew",
                "on l.name = r.name and l.owner = r.owner",
                "on l.name = r.name",
            ),
            (
                "renew",
                "and l.owner = r.owner\n                    and l.owner = any (locked)",
                "and l.owner = any (locked)",
            ),
        ],
        breaks: &[I::RenewalKeepsGrant],
    },
    Mutant {
        name: "release without owner",
        edits: &[(
            "release",
            "and l.owner = release.owner\n            for no key",
            "for no key",
        )],
        breaks: &[I::ReleaseOfOnesOwn],
    },
    Mutant {
        name: "release that keeps the owner",
        edits: &[(
            "release",
            "set owner = null,
                holder = null,
                ttl = null,
                expires_at = clock_timestamp()",
            "set expires_at = clock_timestamp()",
        )],
        breaks: &[I::ReleaseOfOnesOwn, I::WritesByCurrentGrant],
    },
    Mutant {
        name: "acquire that ignores the queue",
        edits: &[
            ("acquire", "and not is_promised", ""),
            (
                "acquire_many",
                "from leasehold.live_waiters as w
                        where w.name = l.name",
                "from leasehold.live_waiters as w
                        where false and w.name = l.name",
            ),
        ],
        breaks: &[I::InOrderOfArrival],
    },
    Mutant {
        name: "heartbeat that never wakes",
        edits: &[("heartbeat", "then 'try'", "then 'wait'")],
        breaks: &[I::WaitersServed],
    },
    Mutant {
        name: "wake without notifying",
        edits: &[(
            "wake",
            "pg_notify(leasehold.channel(w.client), w.ticket::text)",
            "length(w.ticket::text)",
        )],
        breaks: &[I::WokenPromptly],
    },
    Mutant {
        name: "sweep of live rows",
        edits: &[(
            "sweep",
            "and l.expires_at <= clock_timestamp() - interval '1 minute'",
            "",
        )],
        breaks: &[I::LiveRowsStay],
    },
    Mutant {
        name: "queue that the grant does not leave",
        edits: &[
            (
                "acquire",
                "delete from leasehold.waiters as w\n                        where w.owner = acquire.owner;",
                "null;",
            ),
            (
                "acquire_many",
                "delete from leasehold.waiters as w\n                where w.owner = any (granted);",
                "null;",
            ),
        ],
        breaks: &[I::WaitersServed, I::WokenPromptly],
    },
];

impl Mutant {
    /// Whether what it breaks shows only when nothing else disturbs.
    pub fn is_of_waiting(&self) -> bool {
        self.breaks
            .iter()
            .any(|invariant| matches!(invariant, I::WaitersServed | I::WokenPromptly))
    }

    pub async fn install(&self, pool: &PgPool) -> Outcome<()> {
        for (function, text, replacement) in self.edits {
            let definition: String = sqlx::query_scalar(
                "select pg_get_functiondef(p.oid) from pg_proc as p
                 where p.pronamespace = 'leasehold'::regnamespace and p.proname = $1",
            )
            .bind(function)
            .fetch_one(pool)
            .await?;
            if !definition.contains(text) {
                return Err(format!("{}: {function} has no text {text:?}", self.name).into());
            }
            let changed = definition.replace(text, replacement);
            sqlx::raw_sql(AssertSqlSafe(changed)).execute(pool).await?;
        }
        Ok(())
    }
}
