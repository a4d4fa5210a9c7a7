//! The broken variants of the SQL: these tests run on one of them when told to. See `tests/mutants`.

#[path = "../../mutants/table/mod.rs"]
mod table;

use sqlx::{AssertSqlSafe, PgConnection};

use table::Edit;
pub(crate) use table::{Mutant, all};

/// The environment variable that names the mutant.
pub(crate) const WANTED: &str = "LEASEHOLD_TEST_MUTANT";

/// What a test says that did not get as far as to test anything.
pub(crate) const NOT_INSTALLED: &str = "the mutant was not installed";

/// The mutant that the environment names.
pub(crate) fn wanted() -> Option<&'static Mutant> {
    let name = std::env::var(WANTED).ok()?;
    let mutant = all().find(|mutant| mutant.name == name);
    Some(mutant.unwrap_or_else(|| panic!("{NOT_INSTALLED}: there is no {name:?}")))
}

/// Breaks the schema of this database. Fails where the text to replace is not there exactly once.
pub(crate) async fn install(mutant: &Mutant, session: &mut PgConnection) -> Result<(), String> {
    for edit in mutant.edits {
        let sql = match edit {
            Edit::Run(sql) => (*sql).to_owned(),
            Edit::In(function, text, replacement) => {
                let present = definition(session, function).await?;
                let found = present.matches(text).count();
                if found != 1 {
                    return Err(format!("{}: {function} has {found} times {text:?}", mutant.name));
                }
                present.replace(text, replacement)
            }
        };
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *session).await;
        done.map_err(|error| format!("{}: {error}", mutant.name))?;
    }
    Ok(())
}

/// The function's definition in one line, without comments.
async fn definition(session: &mut PgConnection, function: &str) -> Result<String, String> {
    let sql = "select pg_get_functiondef(p.oid) from pg_proc as p \
        where p.pronamespace = 'leasehold'::regnamespace and p.proname = $1";
    let definition: String = sqlx::query_scalar(sql)
        .bind(function)
        .fetch_one(session)
        .await
        .map_err(|error| format!("function {function}: {error}"))?;
    let lines = definition.lines().filter(|line| !line.trim_start().starts_with("--"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    Ok(words.join(" "))
}
