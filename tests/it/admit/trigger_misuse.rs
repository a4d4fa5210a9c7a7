//! A trigger that `leasehold.reject_stale` cannot serve says so by its name, and writes nothing; and
//! what it runs, it runs with the rights of whoever updates the table.

use leasehold::is_fenced;
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Error, PgConnection};

use super::admit;
use crate::support::install::{run as run_in, sql_code};
use crate::support::sql::{grant, run, run_out, sessions};
use crate::support::{TestDb, roles, unique_name};

#[tokio::test]
async fn trigger_that_is_set_up_wrong_is_named_with_the_right_way() {
    let db = TestDb::own("reject_stale_misuse").await;
    for (when, argument, statement, why) in [
        ("before update on paper for each row", "", UPDATE, "no argument"),
        (
            "before update on paper for each row",
            "'fence', 'fence'",
            UPDATE,
            "two arguments",
        ),
        (
            "before update on paper for each row",
            "'fense'",
            UPDATE,
            "no such column",
        ),
        (
            "before update on paper for each row",
            "'FENCE'",
            UPDATE,
            "another spelling",
        ),
        ("before update on paper for each row", "''", UPDATE, "an empty name"),
        ("after update on paper for each row", "'fence'", UPDATE, "too late"),
        (
            "before update on paper for each statement",
            "'fence'",
            UPDATE,
            "sees no row",
        ),
        (
            "after update on paper for each statement",
            "'fence'",
            UPDATE,
            "sees no row, and too late",
        ),
        (
            "before insert on paper for each row",
            "'fense'",
            "insert into paper values ('new', 42)",
            "no such column",
        ),
        (
            "before delete on paper for each row",
            "'fence'",
            "delete from paper",
            "a deletion would be skipped without a word",
        ),
        (
            "before truncate on paper for each statement",
            "'fence'",
            "truncate paper",
            "sees no row",
        ),
        (
            "instead of update on shown for each row",
            "'fence'",
            "update shown set body = 'new', fence = 42",
            "a view has no row of its own",
        ),
    ] {
        let [mut session] = sessions(&db).await;
        run(
            &mut session,
            "drop table if exists paper cascade;
             create table paper (body text, fence bigint);
             insert into paper values ('old', 41);
             create view shown as select p.body, p.fence from paper as p",
        )
        .await;
        run(
            &mut session,
            &format!(r#"create trigger "My guard" {when} execute function leasehold.reject_stale({argument})"#),
        )
        .await;

        let refused = refusal(&mut session, statement).await;

        let on = if when.contains("shown") { "shown" } else { "paper" };
        let refused = refused.unwrap_or_else(|| panic!("{why}: it was not refused"));
        assert!(!is_fenced(&refused));
        let refused = refused.as_database_error().unwrap().downcast_ref::<PgDatabaseError>();
        assert_eq!(
            refused.message(),
            format!(r#"trigger "My guard" on table public.{on} does not name a column that holds fencing tokens"#),
            "{why}"
        );
        assert_eq!(refused.code(), "LH002", "{why}");
        assert_eq!(
            refused.hint(),
            Some("before update for each row execute function leasehold.reject_stale('<column>')"),
            "{why}"
        );
        let paper: (String, i64) = sqlx::query_as("select body, fence from paper")
            .fetch_one(&mut session)
            .await
            .unwrap();
        assert_eq!(paper, ("old".to_owned(), 41), "{why}");
    }
}

/// `to_jsonb` calls casts that a table's owner may have written: they must not run as the schema's owner.
#[tokio::test]
async fn who_may_create_the_trigger_gets_no_rights_of_the_schemas_owner_by_it() {
    let role = roles::login("reject_stale_only", "", &[]).await;
    let owner = roles::database().await;
    run_in(
        &owner,
        "grant usage on schema leasehold to reject_stale_only;
         grant execute on function leasehold.reject_stale() to reject_stale_only;
         create schema reject_stale_only authorization reject_stale_only",
    )
    .await;
    run_in(
        &role,
        "create type reject_stale_only.mood as enum ('good');
         create table reject_stale_only.acted_as (name text);
         grant insert on reject_stale_only.acted_as to public;
         grant usage on schema reject_stale_only to public;
         create function reject_stale_only.act(mood reject_stale_only.mood) returns json language plpgsql as $$
         begin
             insert into reject_stale_only.acted_as values (current_user);
             return '1'::json;
         end $$;
         create cast (reject_stale_only.mood as json) with function reject_stale_only.act(reject_stale_only.mood);
         create table reject_stale_only.trap (mood reject_stale_only.mood, fence bigint);
         insert into reject_stale_only.trap values ('good', 41);
         create trigger guard before update on reject_stale_only.trap
             for each row execute function leasehold.reject_stale('fence')",
    )
    .await;

    let stale = sql_code(&role.pool, "update reject_stale_only.trap set fence = 40").await;
    let passed = sql_code(&role.pool, "update reject_stale_only.trap set fence = 42").await;

    let acted_as = "select distinct name from reject_stale_only.acted_as where name <> 'reject_stale_only'";
    let acted_as: Vec<String> = sqlx::query_scalar(acted_as).fetch_all(&owner.pool).await.unwrap();
    assert_eq!((stale.as_deref(), passed), (Some("LH001"), None));
    assert!(acted_as.is_empty(), "{acted_as:?}");
}

#[tokio::test]
async fn writer_needs_no_rights_on_the_schema_for_the_trigger_to_guard_a_table() {
    let writer = roles::login("reject_stale_writer", "", &[]).await;
    run_in(
        &roles::database().await,
        "create table public.guarded_by_owner (fence bigint);
         insert into public.guarded_by_owner values (41);
         create trigger guard before update on public.guarded_by_owner
             for each row execute function leasehold.reject_stale('fence');
         grant select, update on public.guarded_by_owner to reject_stale_writer",
    )
    .await;

    let answers = [
        sql_code(&writer.pool, "update public.guarded_by_owner set fence = 40").await,
        sql_code(&writer.pool, "update public.guarded_by_owner set fence = 42").await,
    ];

    assert_eq!(answers, [Some("LH001".to_owned()), None]);
}

#[tokio::test]
async fn refusals_of_fence_admit_and_the_trigger_are_fenced_and_no_other_error_is() {
    let (db, name) = (TestDb::own("is_fenced").await, unique_name!());
    let [mut session, mut next] = sessions(&db).await;
    let stale = grant(&mut session, &name, "30 s").await;
    run_out(&mut session, &name).await;
    grant(&mut next, &name, "30 s").await;
    admit(&mut session, "resource", stale.token + 1).await.unwrap();
    run(
        &mut session,
        "create table paper (id int primary key, fence bigint);
         insert into paper values (7, 41);
         create trigger guard before update on paper
             for each row execute function leasehold.reject_stale('fence')",
    )
    .await;
    let by = |function: &str, of: &str| format!("select leasehold.{function}('{of}', {})", stale.token);

    for (sql, expected) in [
        (by("fence", &name), true),
        (
            format!("update paper set fence = leasehold.fence('{name}', {})", stale.token),
            true,
        ),
        (by("admit", "resource"), true),
        ("update paper set fence = 40".to_owned(), true),
        (
            "do $$ begin raise exception 'theirs' using errcode = 'LH001'; end $$".to_owned(),
            true,
        ),
        (
            "do $$ begin raise exception 'stale' using errcode = 'LH002'; end $$".to_owned(),
            false,
        ),
        (
            "do $$ begin raise exception 'fencing token 1 is stale'; end $$".to_owned(),
            false,
        ),
        (
            "do $$ begin raise exception 'no' using errcode = '40001'; end $$".to_owned(),
            false,
        ),
        (by("admit", ""), false),
        ("select 1 / 0".to_owned(), false),
        ("insert into paper values (7, 42)".to_owned(), false),
        ("select leasehold.no_such_function()".to_owned(), false),
    ] {
        let refused = refusal(&mut session, &sql).await.expect("each is refused");

        assert_eq!(is_fenced(&refused), expected, "{sql}: {refused}");
    }
    for error in [
        Error::RowNotFound,
        Error::PoolClosed,
        Error::Protocol("LH001".to_owned()),
    ] {
        assert!(!is_fenced(&error), "{error}");
    }
}

#[tokio::test]
async fn snapshot_that_is_too_old_is_not_taken_for_a_refusal_of_the_fence() {
    let (db, name) = (TestDb::shared().await, unique_name!());
    let [mut writer, mut other] = sessions(&db).await;
    let held = grant(&mut other, &name, "30 s").await;

    run(&mut writer, "begin isolation level repeatable read; select 1").await;
    run_out(&mut other, &name).await;
    grant(&mut other, &name, "30 s").await;
    let refused = refusal(
        &mut writer,
        &format!("select leasehold.fence('{name}', {})", held.token),
    )
    .await;

    let refused = refused.unwrap();
    assert_eq!(crate::support::sql::sql_state(&refused), "40001");
    assert!(!is_fenced(&refused));
}

async fn refusal(session: &mut PgConnection, sql: &str) -> Option<Error> {
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await;
    done.err()
}

const UPDATE: &str = "update paper set body = 'new', fence = 42";
