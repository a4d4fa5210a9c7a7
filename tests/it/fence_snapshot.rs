//! The fence in a transaction whose snapshot is older than what happened to the lease.
//!
//! Read committed sees it. Repeatable read and serializable do not, and are refused where it matters.

use crate::support::sql::{
    Isolation, age, ask, begin, break_lease, fence, grant, in_each_isolation, release, renew, run, run_out, sessions,
    sweep,
};
use crate::support::{TestDb, unique_name};

in_each_isolation! {
    takeover_after_the_snapshot_is_refused
    renewals_after_the_snapshot_do_not_matter
    longest_chain_is_refused
    own_release_after_the_snapshot_keeps_the_order
    own_hold_after_the_snapshot_keeps_the_order
    own_break_after_the_snapshot_keeps_the_order
    swept_lease_no_longer_fences
}

async fn takeover_after_the_snapshot_is_refused(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let stale = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    run_out(&mut holder, &name).await;
    grant(&mut next, &name, "30 s").await;

    assert_eq!(
        fence(&mut writer, &stale).await,
        Err(refusal_after_a_snapshot(isolation))
    );
}

async fn renewals_after_the_snapshot_do_not_matter(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    for _ in 0..3 {
        assert_eq!(renew(&mut holder, &held, "30 s").await, "renewed");
    }

    assert_eq!(fence(&mut writer, &held).await, Ok(held.token));
    run(&mut writer, "commit").await;
}

async fn longest_chain_is_refused(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let stale = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    for _ in 0..3 {
        assert_eq!(renew(&mut holder, &stale, "30 s").await, "renewed");
    }
    assert_eq!(release(&mut holder, &stale, "0").await, "released");
    grant(&mut next, &name, "30 s").await;

    assert_eq!(
        fence(&mut writer, &stale).await,
        Err(refusal_after_a_snapshot(isolation))
    );
}

async fn own_release_after_the_snapshot_keeps_the_order(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    assert_eq!(release(&mut holder, &held, "0").await, "released");
    let checked = fence(&mut writer, &held).await;

    if isolation == Isolation::ReadCommitted {
        assert_eq!(checked, Err("LH001".to_owned()));
    } else {
        assert_eq!(checked, Ok(held.token));
        assert_eq!(ask(&mut next, &name).await, "pinned");
    }
    run(&mut writer, "commit").await;
    assert!(grant(&mut next, &name, "30 s").await.token > held.token);
}

async fn own_hold_after_the_snapshot_keeps_the_order(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    assert_eq!(release(&mut holder, &held, "1 hour").await, "held_on");
    let checked = fence(&mut writer, &held).await;
    run_out(&mut holder, &name).await;

    if isolation == Isolation::ReadCommitted {
        assert_eq!(checked, Err("LH001".to_owned()));
    } else {
        assert_eq!(checked, Ok(held.token));
        assert_eq!(ask(&mut next, &name).await, "pinned");
    }
    run(&mut writer, "commit").await;
    assert!(grant(&mut next, &name, "30 s").await.token > held.token);
}

async fn own_break_after_the_snapshot_keeps_the_order(isolation: Isolation) {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut holder, mut writer, mut next] = sessions(&db).await;
    let held = grant(&mut holder, &name, "30 s").await;

    begin(&mut writer, isolation).await;
    assert!(break_lease(&mut holder, &name).await);
    let checked = fence(&mut writer, &held).await;

    if isolation == Isolation::ReadCommitted {
        assert_eq!(checked, Err("LH001".to_owned()));
    } else {
        assert_eq!(checked, Ok(held.token));
        assert_eq!(ask(&mut next, &name).await, "pinned");
    }
    run(&mut writer, "commit").await;
    assert!(grant(&mut next, &name, "30 s").await.token > held.token);
}

async fn swept_lease_no_longer_fences(isolation: Isolation) {
    let db = TestDb::own(&format!("fence_swept_{isolation:?}")).await;
    let [mut holder, mut writer] = sessions(&db).await;
    let before_the_snapshot = grant(&mut holder, "before", "30 s").await;
    age(&mut holder, "before", 90.0).await;
    assert_eq!(sweep(&mut holder, 1000).await.0, 1);
    let after_the_snapshot = grant(&mut holder, "after", "30 s").await;
    age(&mut holder, "after", 90.0).await;
    run(&mut holder, "update leasehold.sweeps set next_at = clock_timestamp()").await;

    begin(&mut writer, isolation).await;
    let refused = fence(&mut writer, &before_the_snapshot).await;
    run(&mut writer, "rollback").await;
    begin(&mut writer, isolation).await;
    assert_eq!(sweep(&mut holder, 1000).await.0, 1);

    assert_eq!(refused, Err("LH001".to_owned()));
    assert_eq!(
        fence(&mut writer, &after_the_snapshot).await,
        Err(refusal_after_a_snapshot(isolation))
    );
}

/// Read committed sees what happened meanwhile, the others see that something did.
fn refusal_after_a_snapshot(isolation: Isolation) -> String {
    match isolation {
        Isolation::ReadCommitted => "LH001".to_owned(),
        Isolation::RepeatableRead | Isolation::Serializable => "40001".to_owned(),
    }
}
