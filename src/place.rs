//! Where connect options lead. A pool's may be changed while it runs: new credentials change nothing
//! for an open connection, another server does.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::time::sleep;

/// Whether the pool connects elsewhere now than when it had these options.
pub(crate) fn has_left(pool: &PgPool, options: &Arc<PgConnectOptions>) -> bool {
    let now = pool.connect_options();
    !Arc::ptr_eq(&now, options) && !is_same_place(&now, options)
}

/// Returns once the pool connects elsewhere.
pub(crate) async fn leaves(pool: PgPool, options: Arc<PgConnectOptions>) {
    while !has_left(&pool, &options) {
        sleep(LOOK_EVERY).await;
    }
}

/// Whether both lead to the same database of the same server.
pub(crate) fn is_same_place(one: &PgConnectOptions, other: &PgConnectOptions) -> bool {
    let place = |options: &PgConnectOptions| {
        (
            options.get_host().to_owned(),
            options.get_port(),
            options.get_socket().cloned(),
            options.get_database().map(str::to_owned),
        )
    };
    place(one) == place(other)
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_server_or_database_is_another_place() {
        let here = PgConnectOptions::new_without_pgpass()
            .host("one")
            .port(5432)
            .database("leases")
            .username("app")
            .password("old");

        assert!(is_same_place(&here, &here.clone().username("other").password("new")));
        assert!(is_same_place(&here, &here.clone().application_name("other")));
        assert!(!is_same_place(&here, &here.clone().host("two")));
        assert!(!is_same_place(&here, &here.clone().port(5433)));
        assert!(!is_same_place(&here, &here.clone().socket("/run/postgresql")));
        assert!(!is_same_place(&here, &here.clone().database("other")));
    }
}
