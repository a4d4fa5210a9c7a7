//! The fence inside a statement is evaluated whenever a row is written, however it is planned.
//!
//! Each statement runs under every plan that can be forced: generic and custom, and without each of
//! the planner's methods in turn.

mod statements;

use std::collections::HashSet;

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::support::TestDb;
use crate::support::sql::{Grant, grant, run, run_out, sessions, sql_state};
use crate::support::unique_name;

/// What a statement did: the rows touched, else the SQLSTATE.
type Answer = Result<u64, String>;

/// A session with tables to write to, a lease's present token and an earlier one.
struct Bench {
    session: PgConnection,
    stale: Grant,
    current: Grant,
}

impl Bench {
    async fn set_up() -> Self {
        let (db, name) = (TestDb::shared().await, unique_name!());
        let [mut session, mut other] = sessions(&db).await;
        let stale = grant(&mut other, &name, "60 s").await;
        run_out(&mut other, &name).await;
        let current = grant(&mut other, &name, "60 s").await;
        run(&mut session, TABLES).await;
        Self {
            session,
            stale,
            current,
        }
    }

    /// Asserts under every plan that a stale token writes nothing and is refused, and that the
    /// current one writes `rows` rows. With none, nobody is refused. Returns how many plans there were.
    async fn check(&mut self, statement: &str, rows: u64) -> usize {
        let mut plans = HashSet::new();
        let caches = match rows {
            0 => &["force_generic_plan"][..],
            _ => &["force_generic_plan", "force_custom_plan"][..],
        };
        for method in self.methods().await {
            for cache in caches {
                let settings = format!("set local plan_cache_mode = {cache}; {method}");
                let plan = self.prepare(statement, &settings).await;
                if plan.contains("leasehold.fence(") {
                    assert_eq!(
                        plan.contains("leasehold.fence($1, $2"),
                        *cache == "force_generic_plan",
                        "{plan}"
                    );
                }
                if !plans.insert((cache, plan.clone())) {
                    continue;
                }

                let with_stale = self.execute(self.stale.token).await;
                run(&mut self.session, "rollback to savepoint prepared").await;
                let untouched = self.written().await;
                let with_current = self.execute(self.current.token).await;
                let afterwards = self.written().await;

                let case = format!("{settings}: {plan}");
                let refusal = if rows == 0 { Ok(0) } else { Err("LH001".to_owned()) };
                assert_eq!((with_stale, untouched), (refusal, 0), "{case}");
                assert_eq!((with_current, afterwards), (Ok(rows), rows.cast_signed()), "{case}");
            }
        }
        run(&mut self.session, "rollback").await;
        plans.len()
    }

    /// Begins a transaction with the statement prepared, and returns its plan.
    async fn prepare(&mut self, statement: &str, settings: &str) -> String {
        let sql = format!(
            "rollback; begin; deallocate all; {settings};
             prepare written (text, bigint) as {statement};
             explain (verbose, costs off) execute written ('{}', {});
             savepoint prepared",
            self.current.name, self.current.token
        );
        let lines = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.session).await;
        let lines = lines.unwrap_or_else(|error| panic!("{statement}: {error}"));
        let lines: Vec<String> = lines.iter().map(|line| line.get(0)).collect();
        lines.join("\n")
    }

    async fn execute(&mut self, token: i64) -> Answer {
        let sql = format!("execute written ('{}', {token})", self.current.name);
        let executed = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.session).await;
        executed
            .map(|done| done.rows_affected())
            .map_err(|error| sql_state(&error))
    }

    /// How many rows bear either token.
    async fn written(&mut self) -> i64 {
        let sql = "
            select count(*)
            from (
                select fence from document union all select fence from region union all select fence from log) as w
            where w.fence in ($1, $2)";
        sqlx::query_scalar(sql)
            .bind(self.stale.token)
            .bind(self.current.token)
            // Where all prepared statements are let go of, it would be among them.
            .persistent(false)
            .fetch_one(&mut self.session)
            .await
            .expect(sql)
    }

    /// Settings that leave the planner as it is, without one of its methods, or without any.
    async fn methods(&mut self) -> Vec<String> {
        let sql = "select format('set local %I = off', name) from pg_settings
                   where name like 'enable\\_%' and setting = 'on' order by name";
        let each: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut self.session).await.expect(sql);
        assert!(each.len() > 15, "{each:?}");
        let all = each.join("; ");
        [vec!["set local enable_seqscan = on".to_owned(), all], each].concat()
    }

    async fn is_of_version(&mut self, at_least: i32) -> bool {
        let version = "select current_setting('server_version_num')::int >= $1";
        sqlx::query_scalar(version)
            .bind(at_least)
            .fetch_one(&mut self.session)
            .await
            .expect(version)
    }
}

/// `document` has the ids 1 to 20, `region` too in two parts, `source` every second of them.
const TABLES: &str = "
    create temporary table document (id int primary key, body text, fence bigint);
    create temporary table region (id int, area int, body text, fence bigint, primary key (area, id))
        partition by range (area);
    create temporary table near partition of region for values from (0) to (100);
    create temporary table far partition of region for values from (100) to (200);
    create temporary table source (id int, body text);
    create temporary table log (fence bigint);
    insert into document select n, 'old', 0 from generate_series(1, 20) as n;
    insert into region select n, 50 + n * 5, 'old', 0 from generate_series(1, 20) as n;
    insert into source select n, 'new' from generate_series(2, 20, 2) as n;
    create index source_id on source (id);
    analyze document; analyze region; analyze source";
