//! Tokens rise in grant order, and no two grants overlap by the database's clock.
//!
//! A trigger writes down every change of a lock's row while the row is locked, so that the order
//! of what it wrote is the order of what happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{LeaseClient, Release};
use sqlx::{Executor, PgConnection};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::support::TestDb;
use crate::support::sql::{Grant, acquire, acquire_many, release, release_many, renew, run, sessions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_in_grant_order_through_the_functions() {
    let db = TestDb::own("grant_order_functions").await;
    let [mut auditor] = sessions(&db).await;
    run(&mut auditor, AUDIT).await;
    run(&mut auditor, "create trigger audit after insert or update or delete on leasehold.locks for each row execute function audit.note()").await;

    let sessions = many_sessions(&db, CONNECTIONS).await;
    let hammering = Arc::new(Hammering::start());
    let mut workers = JoinSet::new();
    for [mut session] in sessions {
        let hammering = Arc::clone(&hammering);
        workers.spawn(async move {
            while hammering.goes_on() {
                let granted = cycle(&mut session).await;
                hammering.grants.fetch_add(granted, Ordering::Relaxed);
            }
        });
    }
    workers.join_all().await;

    let verdict = Verdict::of(&mut auditor).await;
    assert!(verdict.grants >= 50, "{verdict:?}");
    assert_eq!((verdict.inversions, verdict.overlaps), (0, 0), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_in_grant_order_through_clients() {
    let db = TestDb::own("grant_order_clients").await;
    let [mut auditor] = sessions(&db).await;
    run(&mut auditor, AUDIT).await;
    run(&mut auditor, "create trigger audit after insert or update or delete on leasehold.locks for each row execute function audit.note()").await;
    let clients: Vec<LeaseClient> = (0..6).map(|_| db.client()).collect();
    let believers = Arc::new(AtomicUsize::new(0));
    let last_token = Arc::new(AtomicI64::new(0));

    let hammering = Arc::new(Hammering::start());
    let mut tasks = JoinSet::new();
    for task in 0..30 {
        let client = clients[task % clients.len()].clone();
        let (believers, last_token) = (Arc::clone(&believers), Arc::clone(&last_token));
        let hammering = Arc::clone(&hammering);
        tasks.spawn(async move {
            while hammering.goes_on() {
                let is_left_to_run_out = Uuid::new_v4().as_bytes()[0] < 32;
                let mut asked = client.acquire(NAME).ttl(Duration::from_secs(5));
                if is_left_to_run_out {
                    asked = client.acquire(NAME).ttl(Duration::from_millis(100)).manual_renewal();
                }
                let Ok(Some(lease)) = asked.try_acquire().await else {
                    sleep(Duration::from_millis(2)).await;
                    continue;
                };
                if !lease.is_held() {
                    continue;
                }
                assert_eq!(believers.fetch_add(1, Ordering::SeqCst), 0, "two believe to hold it");
                let token = lease.fencing_token().get();
                assert!(
                    last_token.swap(token, Ordering::SeqCst) < token,
                    "tokens went backwards"
                );
                tokio::task::yield_now().await;
                believers.fetch_sub(1, Ordering::SeqCst);
                hammering.grants.fetch_add(1, Ordering::Relaxed);
                if is_left_to_run_out {
                    lease.lost().await;
                } else {
                    assert_eq!(lease.release().await.unwrap(), Release::Released);
                }
            }
        });
    }
    tasks.join_all().await;

    let verdict = Verdict::of(&mut auditor).await;
    assert!(verdict.grants >= 50, "{verdict:?}");
    assert_eq!((verdict.inversions, verdict.overlaps), (0, 0), "{verdict:?}");
}

/// The statement that comes to mind first fails the same check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tempting_statement_hands_out_tokens_in_another_order() {
    let db = TestDb::own("grant_order_tempting").await;
    let [mut auditor] = sessions(&db).await;
    run(&mut auditor, AUDIT).await;
    run(&mut auditor, TEMPTING_TABLE).await;

    let until = Instant::now() + Duration::from_secs(120);
    let mut workers = JoinSet::new();
    for [mut session] in many_sessions(&db, CONNECTIONS).await {
        workers.spawn(async move {
            loop {
                let owner = Uuid::new_v4();
                let grant = sqlx::query(TEMPTING_ACQUIRE).bind(NAME).bind(owner);
                if grant.fetch_optional(&mut session).await.unwrap().is_some() {
                    let release = sqlx::query("delete from tempting where name = $1 and owner = $2");
                    release.bind(NAME).bind(owner).execute(&mut session).await.unwrap();
                }
            }
        });
    }
    let verdict = loop {
        let verdict = Verdict::of(&mut auditor).await;
        if verdict.inversions > 0 || Instant::now() > until {
            break verdict;
        }
    };

    assert!(verdict.inversions > 0, "the check did not bite: {verdict:?}");
}

/// Acquires, and releases, renews, rolls back or lets run out. Returns how many grants that were.
async fn cycle(session: &mut PgConnection) -> usize {
    let owners = [Uuid::new_v4(), Uuid::new_v4()];
    let [how, what, ..] = owners[0].into_bytes();
    let is_undone = what < 16;
    let is_left_to_run_out = (16..20).contains(&what);
    let ttl = if is_left_to_run_out { "100 ms" } else { "5 s" };
    if is_undone {
        session.execute("begin").await.unwrap();
    }
    let answers = if how % 3 == 0 {
        acquire_many(session, &[NAME, OTHER_NAME], &owners, ttl).await
    } else {
        vec![acquire(session, NAME, owners[0], ttl).await]
    };
    if is_undone {
        session.execute("rollback").await.unwrap();
        return 0;
    }
    let grants: Vec<_> = [NAME, OTHER_NAME]
        .iter()
        .zip(owners)
        .zip(answers)
        .filter_map(|((name, owner), answer)| {
            let name = (*name).to_owned();
            answer.token.map(|token| Grant { name, owner, token })
        })
        .collect();
    if grants.is_empty() {
        // So that the holder gets his share of the machine.
        sleep(Duration::from_millis(1)).await;
    }
    if is_left_to_run_out || grants.is_empty() {
        return grants.len();
    }
    if what % 4 == 0 {
        renew(session, &grants[0], "5 s").await;
    }
    // A latecomer may have the row locked for a moment: busy, and asked again.
    loop {
        let outcomes = match &grants[..] {
            [one] => vec![release(session, one, "0").await],
            many => release_many(session, many, "0").await,
        };
        if !outcomes.iter().any(|outcome| outcome == "busy") {
            return grants.len();
        }
    }
}

async fn many_sessions(db: &TestDb, count: usize) -> Vec<[PgConnection; 1]> {
    let mut opened = Vec::new();
    for _ in 0..count {
        opened.push(sessions(db).await);
    }
    opened
}

/// What the trigger's notes say.
#[derive(Debug)]
struct Verdict {
    grants: i64,
    /// Grants with a token that is not above all earlier ones.
    inversions: i64,
    /// Grants that began before the one before had ended.
    overlaps: i64,
}

impl Verdict {
    async fn of(auditor: &mut PgConnection) -> Self {
        let counts = sqlx::query_as(VERDICT).fetch_one(auditor).await;
        let (grants, inversions, overlaps) = counts.expect("the notes can be read");
        Self {
            grants,
            inversions,
            overlaps,
        }
    }
}

/// Lasts for seconds, and on a busy machine until something has happened.
struct Hammering {
    started_at: Instant,
    grants: AtomicUsize,
}

impl Hammering {
    fn start() -> Self {
        Self {
            started_at: Instant::now(),
            grants: AtomicUsize::new(0),
        }
    }

    fn goes_on(&self) -> bool {
        let (lasts, grants) = (self.started_at.elapsed(), self.grants.load(Ordering::Relaxed));
        lasts < Duration::from_secs(3) || (grants < 50 && lasts < Duration::from_secs(120))
    }
}

const CONNECTIONS: usize = 26;
const NAME: &str = "hammered";
const OTHER_NAME: &str = "hammered too";

const AUDIT: &str = "
    create schema audit;
    create table audit.notes (
        seq       bigserial   primary key,
        name      text        not null,
        fence     bigint      not null,
        is_grant  boolean     not null,
        starts_at timestamptz,
        ends_at   timestamptz not null
    );
    create function audit.note() returns trigger language plpgsql as $$
    begin
        if tg_op = 'DELETE' then
            insert into audit.notes (name, fence, is_grant, ends_at)
            values (old.name, old.fence, false, clock_timestamp());
        else
            insert into audit.notes (name, fence, is_grant, starts_at, ends_at)
            values (
                new.name,
                new.fence,
                new.owner is not null and (tg_op = 'INSERT' or new.fence is distinct from old.fence),
                new.acquired_at,
                new.expires_at
            );
        end if;
        return null;
    end
    $$";

const VERDICT: &str = "
    select
        count(*) filter (where n.is_grant),
        count(*) filter (where n.is_grant and n.fence <= n.highest_before),
        count(*) filter (where n.is_grant and n.starts_at < n.ended_before)
    from (
        select
            a.is_grant,
            a.fence,
            a.starts_at,
            max(case when a.is_grant then a.fence end) over (
                partition by a.name order by a.seq rows between unbounded preceding and 1 preceding
            ) as highest_before,
            lag(a.ends_at) over (partition by a.name order by a.seq) as ended_before
        from audit.notes as a
    ) as n";

const TEMPTING_TABLE: &str = "
    create table tempting (
        name        text        primary key,
        owner       uuid        not null,
        fence       bigserial   not null,
        acquired_at timestamptz not null,
        expires_at  timestamptz not null
    );
    create trigger audit after insert or update or delete on tempting
        for each row execute function audit.note()";

const TEMPTING_ACQUIRE: &str = "
    insert into tempting (name, owner, fence, acquired_at, expires_at)
    values ($1, $2, nextval('tempting_fence_seq'), clock_timestamp(), clock_timestamp() + interval '5 s')
    on conflict (name) do update
    set owner = excluded.owner,
        fence = nextval('tempting_fence_seq'),
        acquired_at = clock_timestamp(),
        expires_at = excluded.expires_at
    where tempting.expires_at < clock_timestamp()
    returning fence";
