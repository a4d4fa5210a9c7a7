//! The statements.

use sqlx::{AssertSqlSafe, PgConnection};

use super::Bench;
use crate::support::TestDb;
use crate::support::sql::{grant, run, sessions};

/// Makes a test of each statement, where `HIT` stands for the condition that leaves it rows to write.
macro_rules! statements {
    ($($test:ident: $rows:literal, $since:literal, $statement:literal)+) => {$(
        mod $test {
            use super::Bench;

            #[tokio::test]
            async fn writes_nothing_with_a_stale_token_and_all_rows_with_the_current_one() {
                let mut bench = Bench::set_up().await;
                if bench.is_of_version($since).await {
                    bench.check(&$statement.replace("HIT", "true"), $rows).await;
                }
            }

            #[tokio::test]
            async fn checks_nothing_when_no_row_is_to_be_written() {
                let mut bench = Bench::set_up().await;
                if bench.is_of_version($since).await {
                    // Not known to be false before the statement runs.
                    let none = "exists (select from document as none where none.id < 0)";
                    bench.check(&$statement.replace("HIT", none), 0).await;
                }
            }
        }
    )+};
}

statements! {
    update_of_one_row: 1, 0, "
        update document set body = 'new', fence = leasehold.fence($1, $2) where id = 7 and HIT"
    update_of_many_rows: 10, 0, "
        update document set body = 'new', fence = leasehold.fence($1, $2) where id between 3 and 12 and HIT"
    update_of_a_partitioned_table: 20, 0, "
        update region set body = 'new', fence = leasehold.fence($1, $2) where body = 'old' and HIT"
    rows_that_move_to_another_partition: 9, 0, "
        update region set area = area + 100, fence = leasehold.fence($1, $2) where area < 100 and HIT"
    update_from_a_join: 5, 0, "
        update document as d set body = s.body, fence = leasehold.fence($1, $2)
        from source as s join region as r on r.id = s.id
        where s.id = d.id and r.id > 10 and HIT"
    update_from_a_subquery_with_an_outer_join: 10, 0, "
        update document as d set body = 'new', fence = leasehold.fence($1, $2)
        where d.id in (select s.id from source as s left join region as r on r.id = s.id + 1) and HIT"
    token_from_a_cte_that_the_update_reads: 10, 0, "
        with token as (select leasehold.fence($1, $2) as fence)
        update document as d set body = s.body, fence = t.fence
        from source as s, token as t
        where s.id = d.id and HIT"
    token_from_a_scalar_subquery: 20, 0, "
        update document set body = 'new', fence = (select leasehold.fence($1, $2)) where HIT"
    token_in_the_condition: 20, 0, "
        update document set body = 'new', fence = $2 where HIT and leasehold.fence($1, $2) = $2"
    update_in_a_cte_whose_rows_go_on: 10, 0, "
        with chosen as (select id from source), written as (
            update document as d set body = 'new', fence = 0 from chosen as c where c.id = d.id and HIT
            returning leasehold.fence($1, $2) as fence)
        insert into log select w.fence from written as w"
    token_in_the_returning_list: 20, 0, "
        update document set body = 'new', fence = $2 where HIT returning id, leasehold.fence($1, $2)"
    insert_select: 10, 0, "
        insert into document select s.id + 100, s.body, leasehold.fence($1, $2) from source as s where HIT"
    insert_into_a_partitioned_table: 10, 0, "
        insert into region select s.id, 99 + s.id % 4, s.body, leasehold.fence($1, $2)
        from source as s where HIT order by s.body"
    insert_on_conflict_do_update: 10, 0, "
        insert into document select s.id, s.body, leasehold.fence($1, $2) from source as s where HIT
        on conflict (id) do update set body = excluded.body, fence = excluded.fence"
    token_in_the_conflict_action_alone: 10, 0, "
        insert into document select s.id, s.body, 0 from source as s where HIT
        on conflict (id) do update set body = excluded.body, fence = leasehold.fence($1, $2)"
    merge_that_updates_and_inserts: 20, 150000, "
        merge into document as d
        using (select id, body from source union all select id + 100, body from source) as s on s.id = d.id and HIT
        when matched then update set body = s.body, fence = leasehold.fence($1, $2)
        when not matched and s.id > 100 and HIT then insert values (s.id, s.body, leasehold.fence($1, $2))"
    merge_into_a_partitioned_table: 10, 150000, "
        merge into region as r using source as s on s.id = r.id
        when matched and HIT then update set area = r.area % 100 + 20, fence = leasehold.fence($1, $2)"
}

#[tokio::test]
async fn forced_plans_are_many() {
    let mut bench = Bench::set_up().await;

    let plans = bench
        .check(
            "update document as d set body = s.body, fence = leasehold.fence($1, $2)
             from source as s join region as r on r.id = s.id
             where s.id = d.id and r.area between 60 and 90",
            4,
        )
        .await;

    assert!(plans >= 8, "{plans}");
}

/// So the value must be written, or compared.
#[tokio::test]
async fn fence_whose_value_nobody_reads_is_not_evaluated() {
    let mut bench = Bench::set_up().await;
    let stale = bench.stale.token;

    for statement in [
        "with checked as (select leasehold.fence($1, $2)) update document set body = 'new', fence = $2",
        "update document set body = 'new', fence = $2 where exists (select leasehold.fence($1, $2))",
        "update document set body = 'new', fence = $2 where id = 7 or leasehold.fence($1, $2) = $2 and id = 7",
    ] {
        bench.prepare(statement, "").await;
        let written = bench.execute(stale).await;
        run(&mut bench.session, "rollback").await;

        assert!(written.is_ok_and(|rows| rows > 0), "{statement}");
    }
}

/// Workers could neither lock the row nor lower the idle limit of the transaction.
#[tokio::test]
async fn fence_is_never_left_to_a_parallel_worker() {
    let db = TestDb::own("fence_parallel").await;
    let [mut session, mut other] = sessions(&db).await;
    let held = grant(&mut other, "name", "60 s").await;
    run(
        &mut session,
        "create table source as select n as id from generate_series(1, 1000) as n;
         create table target (id int, fence bigint);
         analyze source;
         set parallel_setup_cost = 0;
         set parallel_tuple_cost = 0;
         set min_parallel_table_scan_size = 0;
         set max_parallel_workers_per_gather = 2",
    )
    .await;
    let plan = async |session: &mut PgConnection, select: &str| -> String {
        let explain = AssertSqlSafe(format!("explain (costs off) {select}"));
        let lines: Vec<String> = sqlx::query_scalar(explain).fetch_all(session).await.unwrap();
        lines.join("\n")
    };
    let fence = format!("leasehold.fence('name', {})", held.token);

    let without = plan(&mut session, "create table copy as select id, abs(id) from source").await;
    assert!(without.contains("Gather"), "the server would: {without}");
    for select in [
        format!("create table copy as select id, {fence} from source"),
        format!("create table copy as select id from source where {fence} > id"),
        format!("insert into target select id, {fence} from source"),
    ] {
        let with = plan(&mut session, &select).await;

        assert!(!with.contains("Gather"), "{with}");
        run(&mut session, &format!("begin; {select}; rollback")).await;
    }
}
