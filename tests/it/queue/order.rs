//! First come, first served.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Error, FencingToken};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::process::Process;
use super::{AT_ONCE, NEVER, by_events, in_line, line_is};
use crate::support::install::run;
use crate::support::{LONG, SOON, TestDb, unique_name};

#[tokio::test]
async fn waiters_of_several_clients_are_served_in_the_order_in_which_they_came() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let held = db.client().acquire(&name).ttl(LONG).await.unwrap();
    let first_token = held.fencing_token();
    let clients: Vec<_> = (0..3).map(|_| by_events(&db).0.build().unwrap()).collect();
    let served: Arc<Mutex<Vec<(i64, FencingToken)>>> = Arc::default();
    let mut waiters = JoinSet::new();
    for place in 0..9 {
        let acquire = clients[usize::try_from(place).unwrap() % 3].acquire(&name).ttl(LONG);
        let served = Arc::clone(&served);
        waiters.spawn(async move {
            let lease = acquire.await.unwrap();
            served.lock().unwrap().push((place, lease.fencing_token()));
            match place % 2 {
                0 => drop(lease.release().await.unwrap()),
                _ => drop(lease),
            }
        });
        line_is(&db, &name, place + 1).await;
    }

    drop(held);
    let all = tokio::time::timeout(SOON, waiters.join_all()).await;

    all.expect("nobody is left behind");
    let (places, tokens): (Vec<_>, Vec<_>) = served.lock().unwrap().iter().copied().unzip();
    assert_eq!(places, (0..9).collect::<Vec<_>>());
    assert!(
        tokens[0] > first_token && tokens.is_sorted_by(|a, b| a < b),
        "{tokens:?}"
    );
    assert_eq!(in_line(&db, &name).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_several_processes_are_served_in_the_order_of_their_tickets() {
    let (db, name) = (TestDb::own("queue_order").await, "contended");
    run(&db, RECORD).await;
    let held = db.client().acquire(name).ttl(LONG).await.unwrap();
    let mut processes: Vec<_> = (0..4).map(|_| Process::start(&db, name, LONG, NEVER)).collect();
    for process in &mut processes {
        process.take_turns(4, TURNS);
    }
    line_is(&db, name, 16).await;

    held.release().await.unwrap();
    for process in &mut processes {
        process.has_done();
    }

    let sql = "select count(*) filter (where fence <= before), count(*) filter (where not is_its_own),
                   coalesce(max(at - at_before) > make_interval(secs => $1), false), count(*)
               from (select *, lag(fence) over turns as before, lag(at) over turns as at_before
                   from public.turns window turns as (order by turn)) as t";
    let found: (i64, i64, bool, i64) = sqlx::query_as(sql)
        .bind(AT_ONCE.as_secs_f64())
        .fetch_one(&db.pool)
        .await
        .unwrap();
    let (not_rising, not_granted, has_stalled, turns) = found;
    assert_eq!((not_rising, not_granted, has_stalled), (0, 0, false));
    // The last ones may find nobody ahead.
    let all = i64::try_from(16 * TURNS).unwrap();
    assert!(turns > all * 2 / 3 && turns <= all, "{turns} of {all}");
    // Whose ticket was not yet committed when another was granted the name had not come before it.
    let sql = "select count(*)
               from public.turns as early
                   join public.turns as late on late.turn > early.turn and late.ticket < early.ticket
                   join public.arrivals as a on a.ticket = late.ticket
               where pg_visible_in_snapshot(a.xid, early.seen)";
    let overtaken: i64 = sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap();
    assert_eq!(overtaken, 0);
}

#[tokio::test]
async fn who_does_not_wait_is_not_granted_a_free_name_that_somebody_waits_for() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let leases = db.client();
    let held = leases.acquire(&name).ttl(LONG).await.unwrap();
    let waiter = Uuid::new_v4();
    let sql = "select outcome from leasehold.acquire($1, $2, '1 minute', null, gen_random_uuid(), '1 minute')";
    let queued: String = sqlx::query_scalar(sql)
        .bind(&name)
        .bind(waiter)
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(queued, "queued");

    held.release().await.unwrap();
    let asked = leases.try_acquire(&name).await;
    let waited_not = leases.acquire(&name).wait_at_most(Duration::ZERO).await;

    assert!(!db.is_held(&name).await);
    assert!(asked.unwrap().is_none());
    assert!(
        matches!(
            waited_not,
            Err(Error::WaitTimedOut {
                holder: None,
                ahead: 1,
                pinned: false,
                ..
            })
        ),
        "{waited_not:?}"
    );
    sqlx::query("select leasehold.leave($1)")
        .bind(waiter)
        .execute(&db.pool)
        .await
        .unwrap();
    assert!(leases.try_acquire(&name).await.unwrap().is_some());
}

/// The database's own record of who came when, and of who saw whom when it was granted the name.
const RECORD: &str = "
    create table public.arrivals (ticket bigint, xid xid8);
    create table public.turns (
        turn bigint generated always as identity, ticket bigint, fence bigint, is_its_own boolean,
        seen pg_snapshot default pg_current_snapshot(), at timestamptz default clock_timestamp());
    create function public.record() returns trigger language plpgsql as $$
    begin
        if tg_op = 'INSERT' then
            insert into public.arrivals values (new.ticket, pg_current_xact_id());
        else
            insert into public.turns (ticket, fence, is_its_own)
            select old.ticket, l.fence, coalesce(l.owner = old.owner, false)
            from leasehold.locks as l where l.name = old.name;
        end if;
        return null;
    end $$;
    create trigger record after insert or delete on leasehold.waiters for each row execute function public.record()";

const TURNS: usize = 4;
