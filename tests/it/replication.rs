//! A synchronous standby that is cut off: every commit waits for it, and none is taken for done.
//!
//! The server waits without end, and a cancelled wait looks like success; both are the lane's to
//! know. The walreceiver is stopped and continued, so that the link is never seen to break.

use std::time::Duration;

use leasehold::{Error, LeaseClient, Release};
use leasehold_testkit::{Cluster, eventually, signals};
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::SOON;
use crate::support::TestDb;

#[tokio::test]
async fn acquires_of_a_cut_off_primary_end_in_time_report_no_grant_and_leave_nothing_behind() {
    let pair = Pair::start().await;
    let application = pair.application();
    let leases = pair.client(&application, Duration::from_secs(1));
    let lease = leases.acquire("held before").ttl(Duration::from_secs(3)).await.unwrap();

    pair.cut_off();
    let mut answers = Vec::new();
    let mut most_waiting = 0;
    for attempt in 0..ATTEMPTS {
        let acquire = leases.acquire(format!("attempt:{attempt}")).ttl(MINUTE).try_acquire();
        answers.push(timeout(SOON, acquire).await.expect("answered in time"));
        most_waiting = most_waiting.max(pair.waiting(&application).await);
    }
    let lost = timeout(SOON, lease.lost()).await.unwrap();
    let lost_in_time = pair.db.row("held before").await.unwrap();
    pair.reunite();

    for answer in &answers {
        assert!(matches!(answer, Err(Error::Unanswered { .. })), "{answer:?}");
    }
    assert!((1..=2).contains(&most_waiting), "{most_waiting} backends waited");
    // Renewals wait like everything else: the window ends, before the database may grant again.
    assert_eq!(lost.fencing_token.get(), lost_in_time.token);
    for attempt in 0..ATTEMPTS {
        pair.db.assert_free_soon(&format!("attempt:{attempt}")).await;
    }
    // Whatever was under way has ended by then, and still nothing is held by nobody.
    eventually(SOON, "one session is left", async || {
        pair.db.backends(&application).await.len() == 1
    })
    .await;
    for attempt in 0..ATTEMPTS {
        let lease = leases
            .acquire(format!("attempt:{attempt}"))
            .ttl(MINUTE)
            .wait_at_most(SOON)
            .await
            .unwrap();
        assert_eq!(lease.release().await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn cancel_by_somebody_else_does_not_make_a_grant_of_what_only_the_primary_has() {
    let pair = Pair::start().await;
    let application = pair.application();
    let leases = pair.client(&application, Duration::from_millis(1500));

    pair.cut_off();
    let acquiring = tokio::spawn(leases.acquire("cancelled").ttl(MINUTE).try_acquire());
    eventually(SOON, "the commit waits for the standby", async || {
        pair.waiting(&application).await == 1
    })
    .await;
    let cancelled: bool = sqlx::query_scalar("select pg_cancel_backend($1)")
        .bind(pair.db.lane_backend(&application).await)
        .fetch_one(&pair.db.pool)
        .await
        .unwrap();
    // The cancel ends the wait: the primary has committed, and shows it.
    eventually(SOON, "the primary shows the grant", async || {
        pair.db.is_held("cancelled").await
    })
    .await;
    let answer = timeout(SOON, acquiring).await.unwrap().unwrap();
    pair.reunite();

    assert!(cancelled);
    assert!(matches!(answer, Err(Error::Unanswered { .. })), "{answer:?}");
    pair.db.assert_free_soon("cancelled").await;
    let lease = leases
        .acquire("cancelled")
        .ttl(MINUTE)
        .wait_at_most(SOON)
        .await
        .unwrap();
    assert_eq!(lease.release().await.unwrap(), Release::Released);
    assert!(!pair.db.is_held("cancelled").await);
}

#[tokio::test]
async fn grant_that_could_not_be_made_sure_of_is_let_go_when_its_acquire_is_dropped() {
    let pair = Pair::start().await;
    for drops_while_asked in [false, true] {
        let (application, proxy) = (pair.application(), pair.db.proxy());
        let behind = pair.db.through(&proxy).as_application(&application);
        let leases = behind.client();

        pair.cut_off();
        let acquiring = tokio::spawn(leases.acquire("unsure").ttl(MINUTE).into_future());
        eventually(SOON, "the commit waits for the standby", async || {
            pair.waiting(&application).await == 1
        })
        .await;
        proxy.hold_replies();
        sqlx::query("select pg_cancel_backend($1)")
            .bind(pair.db.lane_backend(&application).await)
            .execute(&pair.db.pool)
            .await
            .unwrap();
        eventually(SOON, "the primary shows the grant", async || {
            pair.db.is_held("unsure").await
        })
        .await;
        // So the renewal that is to make sure of it is answered busy.
        let mut locks = pair.db.session().await;
        sqlx::raw_sql("begin; select from leasehold.locks where name = 'unsure' for update")
            .execute(&mut locks)
            .await
            .unwrap();
        let (renewed, asked_again) = (
            proxy.wait_for_execute("leasehold.renew"),
            proxy.wait_for_execute("leasehold.acquire"),
        );
        if drops_while_asked {
            proxy.delay(Duration::from_millis(300));
        }
        proxy.resume();
        renewed.await;
        if !drops_while_asked {
            asked_again.await;
        }
        acquiring.abort();
        sqlx::raw_sql("rollback").execute(&mut locks).await.unwrap();
        pair.reunite();

        pair.db.assert_free_soon("unsure").await;
    }
}

#[tokio::test]
async fn backend_terminated_while_it_waits_for_the_standby_does_not_make_a_grant_either() {
    let pair = Pair::start().await;
    let application = pair.application();
    let leases = pair.client(&application, Duration::from_millis(1500));

    pair.cut_off();
    let acquiring = tokio::spawn(leases.acquire("terminated").ttl(MINUTE).try_acquire());
    eventually(SOON, "the commit waits for the standby", async || {
        pair.waiting(&application).await == 1
    })
    .await;
    let terminated: bool = sqlx::query_scalar("select pg_terminate_backend($1)")
        .bind(pair.db.lane_backend(&application).await)
        .fetch_one(&pair.db.pool)
        .await
        .unwrap();
    eventually(SOON, "the primary shows the grant", async || {
        pair.db.is_held("terminated").await
    })
    .await;
    let answer = timeout(SOON, acquiring).await.unwrap().unwrap();
    pair.reunite();

    assert!(terminated);
    assert!(matches!(answer, Err(Error::Unanswered { .. })), "{answer:?}");
    pair.db.assert_free_soon("terminated").await;
    let lease = leases
        .acquire("terminated")
        .ttl(MINUTE)
        .wait_at_most(SOON)
        .await
        .unwrap();
    assert_eq!(lease.release().await.unwrap(), Release::Released);
    assert!(!pair.db.is_held("terminated").await);
}

#[tokio::test]
async fn acquire_that_waits_for_the_standby_is_granted_once_it_is_back() {
    let pair = Pair::start().await;
    let application = pair.application();
    let leases = pair.client(&application, SOON);

    pair.cut_off();
    let acquiring = tokio::spawn(leases.acquire("patient").ttl(MINUTE).into_future());
    eventually(SOON, "the commit waits for the standby", async || {
        pair.waiting(&application).await == 1
    })
    .await;
    let was_granted = acquiring.is_finished();
    pair.reunite();

    let lease = acquiring.await.unwrap().unwrap();
    assert!(!was_granted);
    assert_eq!(pair.db.row("patient").await.unwrap().token, lease.fencing_token().get());
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

/// A primary and the standby that its commits wait for.
struct Pair {
    db: TestDb,
    standby: Cluster,
    _primary: Cluster,
}

impl Pair {
    async fn start() -> Self {
        let primary = Cluster::builder().setting("max_wal_senders", "4").start().await;
        let db = TestDb::with(primary.options());
        db.install_schema().await;
        let standby = primary.standby("sync").await;
        primary.alter_system("synchronous_standby_names", "sync").await;
        eventually(SOON, "the standby is synchronous", async || {
            sqlx::query_scalar::<_, bool>("select exists (select from pg_stat_replication where sync_state = 'sync')")
                .fetch_one(&db.pool)
                .await
                .unwrap()
        })
        .await;
        Self {
            db,
            standby,
            _primary: primary,
        }
    }

    fn application(&self) -> String {
        format!("replication-{}", Uuid::new_v4())
    }

    fn client(&self, application: &str, answer_within: Duration) -> LeaseClient {
        let behind = self.db.as_application(application);
        behind.builder().answer_within(answer_within).build().unwrap()
    }

    fn cut_off(&self) {
        self.receivers()
            .into_iter()
            .for_each(|receiver| assert!(signals::stop(receiver)));
    }

    fn reunite(&self) {
        self.receivers()
            .into_iter()
            .for_each(|receiver| assert!(signals::cont(receiver)));
    }

    fn receivers(&self) -> Vec<u32> {
        let receivers = self.standby.processes("walreceiver");
        assert_eq!(receivers.len(), 1);
        receivers
    }

    /// How many sessions wait for the standby.
    async fn waiting(&self, application: &str) -> i64 {
        sqlx::query_scalar(
            "select count(*) from pg_stat_activity where application_name = $1 and wait_event = 'SyncRep'",
        )
        .bind(application)
        .fetch_one(&self.db.pool)
        .await
        .unwrap()
    }
}

const ATTEMPTS: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);
