//! `leasehold.reject_stale`: a row's fence column never goes down, whoever writes it.

use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, PgConnection};

use super::stale;
use crate::support::TestDb;
use crate::support::sql::{run, sessions, sql_state};

/// The ways to update a row of the table `document`, or of the view `shown` of it.
const UPDATES: [&str; 5] = [
    "update document set body = 'new', fence = TOKEN where id = 7",
    "insert into document (id, body, fence) values (7, 'new', TOKEN)
     on conflict (id) do update set body = excluded.body, fence = excluded.fence",
    "update document as d set body = 'new', fence = s.fence from (values (7, TOKEN::bigint)) as s (id, fence) where s.id = d.id",
    "update shown set body = 'new', fence = TOKEN where id = 7",
    "insert into shown (id, body, fence) values (7, 'new', TOKEN)
     on conflict (id) do update set body = excluded.body, fence = excluded.fence",
];

const MERGE: &str = "
    merge into document as d using (values (7, TOKEN::bigint)) as s (id, fence) on s.id = d.id
    when matched then update set body = 'new', fence = s.fence";

const PLAIN: &str = "create temporary table document (id int primary key, body text, fence FENCE)";

const PARTITIONED: &str = "
    create temporary table document (id int primary key, body text, fence FENCE) partition by range (id);
    create temporary table low partition of document for values from (0) to (100);
    create temporary table high partition of document for values from (100) to (200)";

const GUARD: &str = "
    create trigger guard before update on document
        for each row execute function leasehold.reject_stale('fence');
    create temporary view shown as select id, body, fence from document";

/// What is there, what comes, and whether it may.
const CASES: [(&str, &str, bool); 11] = [
    ("41", "40", false),
    ("41", "-41", false),
    ("41", "null", false),
    ("41", "41", true),
    ("41", "42", true),
    ("0", "null", false),
    ("-1", "0", true),
    ("null", "null", true),
    ("null", "0", true),
    ("null", "-1", true),
    ("null", "42", true),
];

#[tokio::test]
async fn lower_token_and_null_after_one_are_refused_in_every_kind_of_update() {
    let db = TestDb::shared().await;
    for table in [PLAIN, PARTITIONED] {
        let mut session = guarded(&db, table, "bigint").await;

        for update in updates(&mut session).await {
            check_cases(&mut session, update, &CASES).await;
        }
    }
}

#[tokio::test]
async fn whole_range_of_tokens_is_compared_as_numbers() {
    let db = TestDb::shared().await;
    let mut session = guarded(&db, PLAIN, "bigint").await;
    let cases = [
        // As texts the order would be another.
        ("9", "10", true),
        ("10", "9", false),
        ("9223372036854775806", "9223372036854775807", true),
        ("9223372036854775807", "9223372036854775806", false),
        ("9007199254740993", "9007199254740992", false),
        ("9007199254740992", "9007199254740993", true),
    ];

    check_cases(&mut session, UPDATES[0], &cases).await;
}

#[tokio::test]
async fn int_and_numeric_columns_are_guarded_as_well() {
    let db = TestDb::shared().await;
    for of in ["smallint", "int", "numeric", "numeric(20, 2)"] {
        let mut session = guarded(&db, PLAIN, of).await;

        check_cases(&mut session, UPDATES[0], &CASES).await;
    }
}

#[tokio::test]
async fn row_that_moves_to_another_partition_is_guarded() {
    let db = TestDb::shared().await;
    let mut session = guarded(&db, PARTITIONED, "bigint").await;

    for (token, passes) in [(40, false), (41, true), (42, true)] {
        put(&mut session, "41").await;
        let moved = run_for(
            &mut session,
            &format!("update document set id = id + 100, body = 'new', fence = {token} where id = 7"),
        )
        .await;

        assert_eq!(moved, if passes { Ok(1) } else { stale() }, "{token}");
        let high: i64 = sqlx::query_scalar("select count(*) from high")
            .fetch_one(&mut session)
            .await
            .unwrap();
        assert_eq!(high, i64::from(passes));
    }
}

#[tokio::test]
async fn one_stale_row_among_many_refuses_them_all() {
    let db = TestDb::shared().await;
    let mut session = guarded(&db, PLAIN, "bigint").await;
    run(
        &mut session,
        "insert into document select n, 'old', case n when 99 then 42 else 40 end from generate_series(1, 100) as n",
    )
    .await;

    let refused = run_for(&mut session, "update document set body = 'new', fence = 41").await;
    let passed = run_for(
        &mut session,
        "update document set body = 'new', fence = 41 where id <> 99",
    )
    .await;

    assert_eq!((refused, passed), (stale(), Ok(99)));
}

#[tokio::test]
async fn column_with_an_odd_name_is_guarded() {
    let db = TestDb::shared().await;
    for (column, argument) in [
        (r#""Fencing Token""#, "'Fencing Token'"),
        (r#""a""b'c""#, r#"'a"b''c'"#),
        (r#""{fence,0}""#, "'{fence,0}'"),
        (r#""é→🦀""#, "'é→🦀'"),
        (r#""select""#, "'select'"),
        (r#""0""#, "'0'"),
    ] {
        let [mut session] = sessions(&db).await;
        run(
            &mut session,
            &format!(
                "create temporary table odd (fence bigint, {column} bigint);
                 insert into odd values (100, 41);
                 create trigger guard before update on odd
                     for each row execute function leasehold.reject_stale({argument})"
            ),
        )
        .await;
        let mut update = async |token| run_for(&mut session, &format!("update odd set {column} = {token}")).await;

        let answers = [update(40).await, update(41).await, update(42).await, update(41).await];

        assert_eq!(answers, [stale(), Ok(1), Ok(1), stale()], "{column}");
    }
}

#[tokio::test]
async fn writer_that_leaves_the_column_alone_is_not_noticed() {
    let db = TestDb::shared().await;
    let mut session = guarded(&db, PLAIN, "bigint").await;
    put(&mut session, "41").await;

    let updated = run_for(
        &mut session,
        "update document set body = 'by a stale writer' where id = 7",
    )
    .await;

    assert_eq!(updated, Ok(1));
    assert_eq!(
        document(&mut session).await,
        ("by a stale writer".to_owned(), Some("41".to_owned()))
    );
}

#[tokio::test]
async fn insertion_and_deletion_are_not_noticed_either() {
    let db = TestDb::shared().await;
    let mut session = guarded(&db, PLAIN, "bigint").await;
    put(&mut session, "41").await;

    let deleted = run_for(&mut session, "delete from document where id = 7").await;
    let inserted = run_for(&mut session, "insert into document values (7, 'by a stale writer', 40)").await;

    assert_eq!((deleted, inserted), (Ok(1), Ok(1)));
}

#[tokio::test]
async fn trigger_before_insertion_as_well_lets_insertions_pass() {
    let db = TestDb::shared().await;
    let [mut session] = sessions(&db).await;
    run(&mut session, &PLAIN.replace("FENCE", "bigint")).await;
    run(
        &mut session,
        "create trigger guard before insert or update on document
            for each row execute function leasehold.reject_stale('fence')",
    )
    .await;

    let inserted = run_for(
        &mut session,
        "insert into document values (7, 'old', 41), (8, 'old', null)",
    )
    .await;
    let refused = run_for(&mut session, "update document set fence = 40 where id = 7").await;

    assert_eq!((inserted, refused), (Ok(2), stale()));
}

#[tokio::test]
async fn refusal_names_the_table_and_both_tokens_and_what_to_do() {
    let db = TestDb::own("reject_stale_refusal").await;
    let [mut session] = sessions(&db).await;
    run(
        &mut session,
        r#"create schema "My"; create table "My"."Papers" (fence bigint); insert into "My"."Papers" values (41);
           create trigger guard before update on "My"."Papers"
               for each row execute function leasehold.reject_stale('fence')"#,
    )
    .await;

    for (token, message) in [
        (
            "40",
            r#"fencing token 40 is stale for table "My"."Papers", which has 41"#,
        ),
        (
            "null",
            r#"fencing token null is stale for table "My"."Papers", which has 41"#,
        ),
    ] {
        let update = format!(r#"update "My"."Papers" set fence = {token}"#);
        let refused = sqlx::query(AssertSqlSafe(update)).execute(&mut session).await;
        let refused = refused.unwrap_err();
        let refused = refused.as_database_error().unwrap().downcast_ref::<PgDatabaseError>();

        assert_eq!((refused.code(), refused.message()), ("LH001", message));
        assert_eq!(refused.hint(), Some("Roll back and acquire the lease again."));
    }
}

/// A session with a table of its own, guarded, whose fence column is of that type.
async fn guarded(db: &TestDb, table: &str, of: &str) -> PgConnection {
    let [mut session] = sessions(db).await;
    run(&mut session, &table.replace("FENCE", of)).await;
    run(&mut session, GUARD).await;
    session
}

/// With `merge` where the server knows it.
async fn updates(session: &mut PgConnection) -> Vec<&'static str> {
    let version = "select current_setting('server_version_num')::int";
    let version: i32 = sqlx::query_scalar(version).fetch_one(session).await.unwrap();
    let mut updates = UPDATES.to_vec();
    if version >= 150_000 {
        updates.push(MERGE);
    }
    updates
}

async fn check_cases(session: &mut PgConnection, update: &str, cases: &[(&str, &str, bool)]) {
    for (present, arriving, passes) in cases {
        put(session, present).await;

        let answer = run_for(session, &update.replace("TOKEN", arriving)).await;

        let (body, kept) = document(session).await;
        let case = format!("{update}: {arriving} after {present}");
        if *passes {
            assert_eq!((answer, body.as_str()), (Ok(1), "new"), "{case}");
            assert_eq!(kept.as_deref().unwrap_or("null"), *arriving, "{case}");
        } else {
            assert_eq!((answer, body.as_str()), (stale(), "old"), "{case}");
            assert_eq!(kept.as_deref().unwrap_or("null"), *present, "{case}");
        }
    }
}

/// Puts the document with that token in the place of what is there.
async fn put(session: &mut PgConnection, token: &str) {
    run(session, "delete from document").await;
    run(session, &format!("insert into document values (7, 'old', {token})")).await;
}

async fn document(session: &mut PgConnection) -> (String, Option<String>) {
    let read = "select body, trim_scale(fence::numeric)::text from document where id = 7";
    sqlx::query_as(read).fetch_one(session).await.unwrap()
}

/// The rows touched, else the SQLSTATE.
async fn run_for(session: &mut PgConnection, sql: &str) -> Result<u64, String> {
    let done = sqlx::query(AssertSqlSafe(sql)).persistent(false).execute(session).await;
    done.map(|done| done.rows_affected()).map_err(|error| sql_state(&error))
}
