//! Installing: three ways, in any order, any number at once, and never backwards.

mod again;
mod refused;
mod ways;

use crate::support::TestDb;
use crate::support::install::run;

/// Makes the database look as if a newer release had been there: a higher version, a function
/// with another body, and tokens drawn since.
async fn upgrade_to_a_release_to_come(db: &TestDb) {
    run(
        db,
        "insert into leasehold.version (version) values (20980101000000);
         create or replace function leasehold.break_lease(lock_name text)
            returns boolean
            language plpgsql
            volatile
            parallel unsafe
            security definer
            set search_path = pg_catalog, pg_temp
         as 'begin return false; end /* of a release to come */';
         select setval('leasehold.locks_fence_seq', nextval('leasehold.locks_fence_seq') + 1000000);",
    )
    .await;
}

async fn sequence(db: &TestDb) -> (i64, bool) {
    sqlx::query_as("select last_value, is_called from leasehold.locks_fence_seq")
        .fetch_one(&db.pool)
        .await
        .expect("the sequence is there")
}
