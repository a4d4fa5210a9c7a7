//! Every outcome of acquire, renew and release, one by one and in sets.

use sqlx::{Executor, PgConnection};
use uuid::Uuid;

use crate::support::sql::{
    Grant, acquire, acquire_many, age, ask, break_lease, grant, release, release_many, renew, run, run_out, sessions,
    until_run_out,
};
use crate::support::{TestDb, unique_name};

#[tokio::test]
async fn free_name_is_granted_and_a_held_one_tells_who_holds_it() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut first, mut second] = sessions(&db).await;

    let granted = acquire(&mut first, &name, Uuid::new_v4(), "30 s").await;
    let held = acquire(&mut second, &name, Uuid::new_v4(), "30 s").await;

    assert_eq!((granted.outcome.as_str(), granted.expires_in), ("granted", Some(30.0)));
    assert_eq!((&granted.held_by, granted.held_since), (&None, None));
    assert_eq!((held.outcome.as_str(), held.token), ("held", None));
    assert_eq!(held.held_by.as_deref(), Some("the holder"));
    assert!(held.held_since.is_some());
    assert!(held.expires_in.is_some_and(|left| (0.0..=30.0).contains(&left)));
}

#[tokio::test]
async fn acquire_repeated_by_its_owner_answers_with_the_same_grant() {
    let (db, name, other) = (TestDb::shared().await, unique_name!(), unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "30 s").await;

    let again = acquire(&mut session, &name, held.owner, "1 hour").await;
    let in_a_set = acquire_many(&mut session, &[&other, &name], &[Uuid::new_v4(), held.owner], "1 hour").await;

    for answer in [again, in_a_set[1].clone()] {
        assert_eq!((answer.outcome.as_str(), answer.token), ("granted", Some(held.token)));
        assert!(
            answer.expires_in.is_some_and(|left| left <= 30.0),
            "the ttl of the grant stays"
        );
    }
}

#[tokio::test]
async fn own_grant_that_ran_out_is_granted_anew_with_a_higher_token() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "100 ms").await;
    until_run_out(&mut session, &name).await;

    let again = acquire(&mut session, &name, held.owner, "30 s").await;

    assert_eq!(again.outcome, "granted");
    assert!(again.token > Some(held.token));
}

#[tokio::test]
async fn own_grant_that_ran_out_under_a_locked_row_is_not_answered_as_granted() {
    let db = TestDb::shared().await;
    let [mut session, mut stranger] = sessions(&db).await;

    for (strength, expected) in [("for update", "busy"), ("for key share", "pinned")] {
        let held = grant(&mut session, &unique_name!(), "30 s").await;
        run_out(&mut session, &held.name).await;
        lock(&mut stranger, &held.name, strength).await;

        let one = acquire(&mut session, &held.name, held.owner, "30 s").await;
        let set = acquire_many(&mut session, &[&held.name], &[held.owner], "30 s").await;
        run(&mut stranger, "rollback").await;

        for answer in [&one, &set[0]] {
            assert_eq!((answer.outcome.as_str(), answer.token), (expected, None), "{strength}");
        }
    }
}

/// Of the grant before, it would let the name go too early.
#[tokio::test]
async fn name_that_was_held_before_is_held_on_from_its_latest_acquisition() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;

    for is_in_a_set in [false, true] {
        let name = unique_name!();
        let before = grant(&mut session, &name, "30 s").await;
        assert_eq!(release(&mut session, &before, "0").await, "released");
        let long_ago = "update leasehold.locks set acquired_at = acquired_at - interval '1 hour' where name = $1";
        sqlx::query(long_ago).bind(&name).execute(&mut session).await.unwrap();

        let owner = Uuid::new_v4();
        let token = if is_in_a_set {
            acquire_many(&mut session, &[&name], &[owner], "30 s").await[0].token
        } else {
            acquire(&mut session, &name, owner, "30 s").await.token
        };
        let again = Grant {
            name: name.clone(),
            owner,
            token: token.unwrap(),
        };

        let released = if is_in_a_set {
            release_many(&mut session, std::slice::from_ref(&again), "30 minutes")
                .await
                .remove(0)
        } else {
            release(&mut session, &again, "30 minutes").await
        };

        assert_eq!(released, "held_on");
        assert_eq!(ask(&mut session, &name).await, "held");
        assert_eq!(release(&mut session, &again, "0").await, "not_owner");
    }
}

#[tokio::test]
async fn set_answers_each_request_for_itself() {
    let db = TestDb::shared().await;
    let [free, held, run_out_name, pinned, busy] = [(); 5].map(|()| unique_name!());
    let [mut session, mut writer, mut locker, mut other] = sessions(&db).await;
    grant(&mut session, &held, "30 s").await;
    grant(&mut session, &run_out_name, "30 s").await;
    run_out(&mut session, &run_out_name).await;
    let fenced = grant(&mut session, &pinned, "30 s").await;
    run(&mut writer, "begin").await;
    crate::support::sql::fence(&mut writer, &fenced).await.unwrap();
    run_out(&mut session, &pinned).await;
    let locked = grant(&mut session, &busy, "30 s").await;
    release(&mut session, &locked, "0").await;
    lock(&mut locker, &busy, "for update").await;

    let names = [&free, &held, &run_out_name, &pinned, &busy].map(String::as_str);
    let owners = [(); 5].map(|()| Uuid::new_v4());
    let answers = acquire_many(&mut other, &names, &owners, "30 s").await;

    let outcomes: Vec<_> = answers.iter().map(|answer| answer.outcome.as_str()).collect();
    assert_eq!(outcomes, ["granted", "held", "granted", "pinned", "busy"]);
    assert!(answers.iter().all(|a| a.token.is_some() == (a.outcome == "granted")));
    assert!(answers[2].token > Some(fenced.token));
}

#[tokio::test]
async fn of_several_requests_for_one_name_in_a_set_the_first_is_granted() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let owners = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];

    // The row is there the second time.
    for _ in 0..2 {
        let answers = acquire_many(&mut session, &[&name, &name, &name], &owners, "30 s").await;

        let outcomes: Vec<_> = answers.iter().map(|answer| answer.outcome.as_str()).collect();
        assert_eq!(outcomes, ["granted", "held", "held"]);
        assert!(break_lease(&mut session, &name).await);
    }
}

#[tokio::test]
async fn set_blocked_by_an_uncommitted_insert_answers_busy_for_that_name_alone() {
    let db = TestDb::shared().await;
    let [before, blocked, after] = ["a", "b", "c"].map(|place| format!("{place} {}", unique_name!()));
    let [mut other, mut session] = sessions(&db).await;
    run(&mut other, "begin").await;
    grant(&mut other, &blocked, "30 s").await;
    run(&mut session, "set lock_timeout = '100ms'").await;
    let owners = [(); 3].map(|()| Uuid::new_v4());

    let answers = acquire_many(&mut session, &[&before, &blocked, &after], &owners, "30 s").await;
    let one = acquire(&mut session, &blocked, owners[1], "30 s").await;
    run(&mut other, "rollback").await;
    let afterwards = acquire(&mut session, &blocked, owners[1], "30 s").await;

    let outcomes: Vec<_> = answers.iter().map(|answer| answer.outcome.as_str()).collect();
    assert_eq!(outcomes, ["granted", "busy", "granted"]);
    assert_eq!((one.outcome.as_str(), afterwards.outcome.as_str()), ("busy", "granted"));
}

#[tokio::test]
async fn row_locked_by_a_stranger_is_never_waited_for() {
    let db = TestDb::shared().await;
    let [mut session, mut stranger] = sessions(&db).await;
    run(&mut session, "set lock_timeout = '1ms'").await;

    for (strength, free, renewed, released) in [
        ("for update", "busy", "busy", "busy"),
        ("for no key update", "busy", "busy", "busy"),
        ("for share", "busy", "busy", "busy"),
        ("for key share", "pinned", "renewed", "released"),
    ] {
        let (free_name, held) = (unique_name!(), grant(&mut session, &unique_name!(), "30 s").await);
        let freed = grant(&mut session, &free_name, "30 s").await;
        release(&mut session, &freed, "0").await;
        let alone = grant(&mut session, &unique_name!(), "30 s").await;
        for name in [&free_name, &held.name, &alone.name] {
            lock(&mut stranger, name, strength).await;
        }

        let own = acquire(&mut session, &held.name, held.owner, "30 s").await.outcome;
        let seen = [
            ask(&mut session, &free_name).await,
            acquire_many(&mut session, &[&free_name], &[Uuid::new_v4()], "30 s").await[0]
                .outcome
                .clone(),
            ask(&mut session, &held.name).await,
            own,
            renew(&mut session, &held, "30 s").await,
            release_many(&mut session, std::slice::from_ref(&held), "0").await[0].clone(),
            release(&mut session, &alone, "0").await,
        ];
        run(&mut stranger, "rollback").await;

        assert_eq!(
            seen,
            [free, free, "held", "granted", renewed, released, released],
            "{strength}"
        );
        assert_eq!(ask(&mut session, &free_name).await, "granted", "{strength}");
    }
}

#[tokio::test]
async fn renewal_moves_the_end_and_keeps_the_token() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "5 s").await;

    let renewed: (String, f64) = sqlx::query_as(
        "select outcome, extract(epoch from expires_in)::float8 from leasehold.renew(array[$1::text], array[$2], array['1 hour'::interval])",
    )
    .bind(&name)
    .bind(held.owner)
    .fetch_one(&mut session)
    .await
    .unwrap();

    let again = acquire(&mut session, &name, held.owner, "5 s").await;
    assert_eq!(renewed, ("renewed".to_owned(), 3600.0));
    assert_eq!(again.token, Some(held.token));
    assert!(again.expires_in.is_some_and(|left| (3000.0..=3600.0).contains(&left)));
}

#[tokio::test]
async fn renewal_of_a_set_answers_each_for_itself() {
    let db = TestDb::shared().await;
    let [mut session, mut stranger] = sessions(&db).await;
    let mut grants = Vec::new();
    for _ in 0..6 {
        grants.push(grant(&mut session, &unique_name!(), "30 s").await);
    }
    let [_, busy, superseded, expired, freed, held_on] = &grants[..] else {
        unreachable!()
    };
    let no_row = Grant {
        name: unique_name!(),
        ..grants[0].clone()
    };
    lock(&mut stranger, &busy.name, "for update").await;
    run_out(&mut session, &superseded.name).await;
    grant(&mut session, &superseded.name, "30 s").await;
    run_out(&mut session, &expired.name).await;
    release(&mut session, freed, "0").await;
    release(&mut session, held_on, "1 hour").await;
    let asked: Vec<_> = grants.iter().chain([&no_row]).collect();

    let outcomes: Vec<(String, String)> = sqlx::query_as(
        "select l.name, r.outcome
        from unnest($1, $2) as l (name, owner)
            cross join lateral leasehold.renew(array[l.name], array[l.owner], array['30 s'::interval]) as r",
    )
    .bind(asked.iter().map(|grant| grant.name.as_str()).collect::<Vec<_>>())
    .bind(asked.iter().map(|grant| grant.owner).collect::<Vec<_>>())
    .fetch_all(&mut session)
    .await
    .unwrap();
    let together: Vec<String> = sqlx::query_scalar(
        "select outcome
        from leasehold.renew($1, $2, array_fill('30 s'::interval, array[cardinality($1)]))
        order by array_position($2, owner)",
    )
    .bind(asked[..6].iter().map(|grant| grant.name.as_str()).collect::<Vec<_>>())
    .bind(asked[..6].iter().map(|grant| grant.owner).collect::<Vec<_>>())
    .fetch_all(&mut session)
    .await
    .unwrap();

    let one_by_one: Vec<_> = outcomes.iter().map(|(_, outcome)| outcome.as_str()).collect();
    let expected = ["renewed", "busy", "superseded", "expired", "gone", "superseded", "gone"];
    assert_eq!(one_by_one, expected);
    assert_eq!(together, expected[..6]);
}

#[tokio::test]
async fn late_renewal_revives_nothing() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session, mut stranger] = sessions(&db).await;
    let held = grant(&mut session, &name, "100 ms").await;
    lock(&mut stranger, &name, "for update").await;
    until_run_out(&mut session, &name).await;

    let while_locked = renew(&mut session, &held, "30 s").await;
    run(&mut stranger, "rollback").await;
    let afterwards = renew(&mut session, &held, "30 s").await;
    // The caller's transaction began in time; the renewal did not.
    let young = grant(&mut session, &unique_name!(), "100 ms").await;
    run(&mut stranger, "begin; select now()").await;
    until_run_out(&mut session, &young.name).await;
    let by_an_old_transaction = renew(&mut stranger, &young, "30 s").await;
    run(&mut stranger, "commit").await;

    assert_eq!(
        [&while_locked, &afterwards, &by_an_old_transaction],
        ["busy", "expired", "expired"]
    );
    assert_eq!(ask(&mut session, &name).await, "granted");
}

#[tokio::test]
async fn release_frees_what_its_owner_holds_and_nothing_else() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &unique_name!(), "30 s").await;
    let expired = grant(&mut session, &unique_name!(), "30 s").await;
    let superseded = grant(&mut session, &unique_name!(), "30 s").await;
    run_out(&mut session, &expired.name).await;
    run_out(&mut session, &superseded.name).await;
    let fresh = grant(&mut session, &superseded.name, "30 s").await;
    let foreign = Grant {
        owner: Uuid::new_v4(),
        ..held.clone()
    };
    let no_row = Grant {
        name: unique_name!(),
        ..foreign.clone()
    };

    let mut outcomes = Vec::new();
    for grant in [&foreign, &no_row, &superseded, &expired, &held, &held] {
        outcomes.push(release(&mut session, grant, "0").await);
    }

    let expected = [
        "not_owner",
        "not_owner",
        "not_owner",
        "released",
        "released",
        "not_owner",
    ];
    assert_eq!(outcomes, expected);
    assert_eq!(ask(&mut session, &held.name).await, "granted");
    assert_eq!(ask(&mut session, &fresh.name).await, "held");
}

#[tokio::test]
async fn release_of_a_set_answers_each_for_itself() {
    let db = TestDb::shared().await;
    let [mut session, mut stranger] = sessions(&db).await;
    let mut grants = Vec::new();
    for _ in 0..3 {
        grants.push(grant(&mut session, &unique_name!(), "30 s").await);
    }
    grants[1].owner = Uuid::new_v4();
    lock(&mut stranger, &grants[2].name, "for update").await;

    let outcomes = release_many(&mut session, &grants, "0").await;
    run(&mut stranger, "rollback").await;
    let again = release_many(&mut session, &grants[2..], "1 hour").await;

    assert_eq!(outcomes, ["released", "not_owner", "busy"]);
    assert_eq!(again, ["held_on"]);
    assert_eq!(ask(&mut session, &grants[0].name).await, "granted");
    assert_eq!(ask(&mut session, &grants[1].name).await, "held");
    assert_eq!(ask(&mut session, &grants[2].name).await, "held");
}

#[tokio::test]
async fn name_is_held_on_from_the_acquisition_by_nobody_known() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    let [one, of_a_set, passed] = [
        grant(&mut session, &unique_name!(), "30 s").await,
        grant(&mut session, &unique_name!(), "30 s").await,
        grant(&mut session, &unique_name!(), "30 s").await,
    ];
    let long_ago = "update leasehold.locks set acquired_at = acquired_at - interval '1 hour' where name = any ($1)";
    let names = vec![one.name.as_str(), &of_a_set.name, &passed.name];
    sqlx::query(long_ago).bind(names).execute(&mut session).await.unwrap();

    let outcomes = [
        release(&mut session, &one, "2 hours").await,
        release_many(&mut session, std::slice::from_ref(&of_a_set), "2 hours").await[0].clone(),
        release(&mut session, &passed, "59 minutes").await,
    ];

    assert_eq!(outcomes, ["held_on", "held_on", "released"]);
    for held_on in [&one, &of_a_set] {
        let as_owner = acquire(&mut session, &held_on.name, held_on.owner, "30 s").await;
        assert_eq!(as_owner.outcome, "held", "not even the former owner has it");
        assert_eq!(as_owner.held_by.as_deref(), Some("the holder"));
        assert!(
            as_owner.expires_in.is_some_and(|left| left > 3500.0 && left <= 3600.0),
            "{as_owner:?}"
        );
        assert_eq!(release(&mut session, held_on, "0").await, "not_owner");
        assert_eq!(renew(&mut session, held_on, "30 s").await, "superseded");
        run_out(&mut session, &held_on.name).await;
        assert!(grant(&mut session, &held_on.name, "30 s").await.token > held_on.token);
    }
}

#[tokio::test]
async fn release_without_a_hold_frees_the_name_although_the_clock_was_stepped_back_since() {
    let mut session = TestDb::shared().await.session().await;
    let grants = [
        grant(&mut session, &unique_name!(), "30 s").await,
        grant(&mut session, &unique_name!(), "30 s").await,
    ];
    let ahead = "update leasehold.locks set acquired_at = acquired_at + interval '1 hour' where name = any ($1)";
    let names: Vec<_> = grants.iter().map(|grant| grant.name.as_str()).collect();
    sqlx::query(ahead).bind(&names).execute(&mut session).await.unwrap();

    let one = release(&mut session, &grants[0], "0").await;
    let of_a_set = release_many(&mut session, &grants[1..], "0").await;

    assert_eq!((one.as_str(), of_a_set), ("released", vec!["released".to_owned()]));
    for name in names {
        assert_eq!(ask(&mut session, name).await, "granted");
    }
}

#[tokio::test]
async fn broken_lease_is_over_for_its_holder_and_free_for_all() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "30 s").await;

    let broken = [
        break_lease(&mut session, &name).await,
        break_lease(&mut session, &name).await,
        break_lease(&mut session, "nobody's").await,
    ];

    assert_eq!(broken, [true, false, false]);
    assert_eq!(renew(&mut session, &held, "30 s").await, "gone");
    assert_eq!(release(&mut session, &held, "0").await, "not_owner");
    assert!(grant(&mut session, &name, "30 s").await.token > held.token);
}

#[tokio::test]
async fn view_of_held_leases_tells_all_but_the_owner_token() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut session] = sessions(&db).await;
    let held = grant(&mut session, &name, "30 s").await;
    let freed = grant(&mut session, &unique_name!(), "30 s").await;
    release(&mut session, &freed, "0").await;
    let seen = "select holder, fencing_token, expired, row_to_json(h)::text from leasehold.held as h where name = $1";
    let look = async |session: &mut PgConnection, name: &str| -> Option<(Option<String>, i64, bool, String)> {
        let row = sqlx::query_as(seen).bind(name.to_owned());
        row.fetch_optional(session).await.unwrap()
    };

    let fresh = look(&mut session, &name).await.unwrap();
    age(&mut session, &name, 1.0).await;
    let stale = look(&mut session, &name).await.unwrap();

    assert_eq!(
        (fresh.0.as_deref(), fresh.1, fresh.2),
        (Some("the holder"), held.token, false)
    );
    assert!(stale.2);
    assert!(!fresh.3.contains(&held.owner.to_string()), "{}", fresh.3);
    assert_eq!(look(&mut session, &freed.name).await, None);
}

/// Locks the row in an open transaction, as somebody with psql might.
async fn lock(stranger: &mut PgConnection, name: &str, strength: &str) {
    stranger.execute("begin").await.unwrap();
    let sql = format!("select from leasehold.locks where name = $1 {strength}");
    let locked = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(name).execute(stranger).await;
    assert_eq!(locked.unwrap().rows_affected(), 1);
}
