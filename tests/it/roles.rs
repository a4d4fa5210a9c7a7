//! The README's two roles: what each may do, and that nobody else may do anything.

use std::time::Duration;

use leasehold::{Error, Release};
use leasehold_testkit::eventually;
use sqlx::AssertSqlSafe;
use sqlx::migrate::MigrateError;
use uuid::Uuid;

use crate::support::install::{describe_error, sql_code};
use crate::support::{TestDb, roles, unique_name};

#[tokio::test]
async fn client_role_acquires_renews_fences_looks_and_releases() {
    let (db, name) = (
        roles::login("roles_worker", "leasehold_client", &[]).await,
        unique_name!(),
    );
    let leases = db
        .builder()
        .ttl(LONG)
        .renew_every(Duration::from_millis(50))
        .build()
        .unwrap();

    leasehold::migrate(&db.pool).await.unwrap();
    let lease = leases.try_acquire(&name).await.unwrap().unwrap();
    let granted = expiry(&name).await;
    eventually(LONG, "the lease was renewed", async || expiry(&name).await > granted).await;
    lease.begin(&db.pool).await.unwrap().commit().await.unwrap();
    let (seen, all) = (
        leases.inspect(&name).await.unwrap().unwrap(),
        leases.held().await.unwrap(),
    );
    let many = futures_of(&leases, 8).await;
    let swept = sql_code(&db.pool, "select * from leasehold.sweep()").await;

    assert_eq!(seen.fencing_token, lease.fencing_token());
    assert!(all.iter().any(|info| info.name == name));
    assert_eq!(many, 8);
    assert_eq!(swept, None);
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn client_role_cannot_read_an_owner_token_anywhere() {
    let (db, name) = (
        roles::login("roles_reader", "leasehold_client", &[]).await,
        unique_name!(),
    );
    let lease = roles::database().await.client().acquire(&name).await.unwrap();
    let owner = owner(&name).await;

    let tables = "
        select c.oid::regclass::text
        from pg_class as c
        where c.relnamespace = 'leasehold'::regnamespace
            and c.relkind in ('r', 'v', 'm', 'p', 'f', 'S')
            and c.relname not in ('held', 'version')";
    let tables: Vec<String> = as_superuser(tables).await;
    assert!(tables.iter().any(|table| table.ends_with("locks")));
    for table in tables {
        let read = sql_code(&db.pool, &format!("select t.* from {table} as t")).await;
        assert_eq!(read.as_deref(), Some("42501"), "{table}");
    }
    let answers = format!(
        "select t::text from leasehold.held as t
         union all select t::text from leasehold.version as t
         union all select t::text from leasehold.acquire('{name}', '{STRANGER}', '1 second') as t
         union all select t::text from leasehold.acquire_many(array['{name}'], array['{STRANGER}'::uuid], array[interval '1 s']) as t
         union all select t::text from leasehold.renew(array['{name}'], array['{STRANGER}'::uuid], array[interval '1 s']) as t
         union all select leasehold.release('{name}', '{STRANGER}')
         union all select t::text from leasehold.release_many(array['{name}'], array['{STRANGER}'::uuid]) as t
         union all select leasehold.fence('{name}', {token})::text
         union all select t::text from leasehold.sweep() as t
         union all select query from pg_stat_activity",
        token = lease.fencing_token(),
    );
    let answers: Vec<String> = sqlx::query_scalar(AssertSqlSafe(answers))
        .fetch_all(&db.pool)
        .await
        .unwrap();
    assert!(answers.iter().any(|answer| answer.contains(&name)));
    for answer in answers {
        assert!(!answer.contains(&owner.to_string()), "{answer}");
    }
    // Not in what the server keeps of statements either, whoever may read that.
    let statements: Vec<String> = as_superuser("select query from pg_stat_activity").await;
    assert!(statements.iter().any(|sql| sql.contains("leasehold.acquire")));
    assert!(statements.iter().all(|sql| !sql.contains(&owner.to_string())));
}

#[tokio::test]
async fn client_role_cannot_touch_a_lease_of_another() {
    let (db, name) = (
        roles::login("roles_meddler", "leasehold_client", &[]).await,
        unique_name!(),
    );
    let holder = roles::database().await;
    let lease = holder.client().acquire(&name).manual_renewal().await.unwrap();
    let (token, before) = (lease.fencing_token(), row(&name).await);
    let by_name = |call: &str| call.replace("NAME", &format!("'{name}'"));
    let answer = async |call: &str| -> String {
        let sql = by_name(&format!("select {call}"));
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&db.pool)
            .await
            .unwrap()
    };

    assert_eq!(
        answer(&format!(
            "outcome from leasehold.renew(array[NAME], array['{STRANGER}'::uuid], array[interval '1 s'])"
        ))
        .await,
        "superseded"
    );
    assert_eq!(
        answer(&format!("leasehold.release(NAME, '{STRANGER}')")).await,
        "not_owner"
    );
    assert_eq!(
        answer(&format!(
            "outcome from leasehold.release_many(array[NAME], array['{STRANGER}'::uuid])"
        ))
        .await,
        "not_owner"
    );
    assert_eq!(
        answer(&format!(
            "outcome from leasehold.acquire(NAME, '{STRANGER}', '1 second')"
        ))
        .await,
        "held"
    );
    assert!(db.client().try_acquire(&name).await.unwrap().is_none());
    for (call, expected) in [
        (format!("select leasehold.fence(NAME, {token}, '{STRANGER}')"), "LH001"),
        ("select leasehold.break_lease(NAME)".into(), "42501"),
        (
            "update leasehold.locks set owner = null where name = NAME".into(),
            "42501",
        ),
        ("delete from leasehold.locks where name = NAME".into(), "42501"),
        (
            "update leasehold.held set holder = 'me' where name = NAME".into(),
            "42501",
        ),
        ("delete from leasehold.held where name = NAME".into(), "42501"),
        ("truncate leasehold.locks".into(), "42501"),
        (
            "do $$ begin lock table leasehold.locks in access share mode; end $$".into(),
            "42501",
        ),
        ("select nextval('leasehold.locks_fence_seq'), NAME".into(), "42501"),
        ("select setval('leasehold.locks_fence_seq', 1), NAME".into(), "42501"),
    ] {
        assert_eq!(
            sql_code(&db.pool, &by_name(&call)).await.as_deref(),
            Some(expected),
            "{call}"
        );
    }
    let refused = db.client().break_lease(&name).await.unwrap_err();
    assert_eq!(refused_with(&refused).as_deref(), Some("42501"), "{refused:?}");

    assert_eq!(row(&name).await, before);
    assert_eq!(lease.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn operator_role_breaks_a_lease_and_has_the_rights_of_a_client() {
    let (db, name) = (
        roles::login("roles_operator", "leasehold_operator", &[]).await,
        unique_name!(),
    );
    let leases = db.client();
    let lease = leases.acquire(&name).await.unwrap();

    let (broken, again) = (
        leases.break_lease(&name).await.unwrap(),
        leases.break_lease(&name).await.unwrap(),
    );

    assert_eq!((broken, again), (true, false));
    assert!(matches!(lease.begin(&db.pool).await, Err(Error::Lost(_))));
    assert!(leases.try_acquire(&name).await.unwrap().is_some());
    let tables = sql_code(&db.pool, "select owner from leasehold.locks").await;
    assert_eq!(tables.as_deref(), Some("42501"));
}

#[tokio::test]
async fn a_role_without_grants_is_refused_everywhere() {
    let (db, name) = (roles::login("roles_nobody", "", &[]).await, unique_name!());
    let leases = db.client();

    let objects = "
        select format('select 1 from %s', c.oid::regclass)
        from pg_class as c
        where c.relnamespace = 'leasehold'::regnamespace and c.relkind in ('r', 'v', 'S')
        union all
        select format(
            'select %s(%s)', p.oid::regproc,
            (select string_agg(format('null::%s', a.type::regtype), ', ') from unnest(p.proargtypes) as a (type))
        )
        from pg_proc as p
        where p.pronamespace = 'leasehold'::regnamespace";
    let objects: Vec<String> = as_superuser(objects).await;
    assert!(objects.len() > 14, "{objects:?}");
    for sql in objects {
        assert_eq!(sql_code(&db.pool, &sql).await.as_deref(), Some("42501"), "{sql}");
    }
    for (operation, error) in [
        ("try_acquire", leases.try_acquire(&name).await.map(drop).unwrap_err()),
        ("acquire", leases.acquire(&name).await.map(drop).unwrap_err()),
        ("inspect", leases.inspect(&name).await.map(drop).unwrap_err()),
        ("held", leases.held().await.map(drop).unwrap_err()),
        ("break_lease", leases.break_lease(&name).await.map(drop).unwrap_err()),
        ("migrate", leasehold::migrate(&db.pool).await.unwrap_err()),
    ] {
        let said = describe_error(&error);
        assert_eq!(refused_with(&error).as_deref(), Some("42501"), "{operation}: {error:?}");
        assert!(said.contains("permission denied for"), "{operation}: {said}");
    }
}

#[tokio::test]
async fn usage_of_the_schema_alone_opens_nothing_in_it() {
    roles::database().await;
    let granted_to_public = "
        select o.object || ': ' || g.privilege_type
        from (
            select p.oid::regprocedure::text, coalesce(p.proacl, acldefault('f', p.proowner))
            from pg_proc as p where p.pronamespace = 'leasehold'::regnamespace
            union all
            select c.oid::regclass::text,
                coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::\"char\", c.relowner))
            from pg_class as c where c.relnamespace = 'leasehold'::regnamespace and c.relkind in ('r', 'v', 'S')
            union all
            select n.nspname, coalesce(n.nspacl, acldefault('n', n.nspowner))
            from pg_namespace as n where n.nspname = 'leasehold'
        ) as o (object, acl)
            cross join lateral aclexplode(o.acl) as g
        where g.grantee = 0";

    let granted_to_public: Vec<String> = as_superuser(granted_to_public).await;

    assert_eq!(granted_to_public, Vec::<String>::new());
}

#[tokio::test]
async fn the_installing_role_needs_create_on_the_database_and_nothing_else() {
    roles::database().await;

    let owner: Vec<String> = as_superuser(
        "select distinct concat_ws(' ', o.rolname, o.rolsuper, o.rolcreaterole, o.rolcreatedb)
         from pg_proc as p join pg_roles as o on o.oid = p.proowner
         where p.pronamespace = 'leasehold'::regnamespace",
    )
    .await;

    assert_eq!(owner, ["roles_owner f f f"]);
}

/// Acquires that many names at once, through the functions that take a set, and counts the grants.
async fn futures_of(leases: &leasehold::LeaseClient, count: usize) -> usize {
    let mut acquiring = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (leases, name) = (leases.clone(), unique_name!());
        acquiring.spawn(async move {
            let lease = leases.try_acquire(&name).await.unwrap().unwrap();
            lease.release().await.unwrap() == Release::Released
        });
    }
    acquiring
        .join_all()
        .await
        .into_iter()
        .filter(|released| *released)
        .count()
}

/// The error code that the database gave.
fn refused_with(error: &Error) -> Option<String> {
    let source = match error {
        Error::Database { source, .. } => source,
        Error::List { source }
        | Error::Migrate {
            source: MigrateError::Execute(source),
        } => source,
        other => panic!("{other:?}"),
    };
    Some(source.as_database_error()?.code()?.into_owned())
}

async fn as_superuser<T>(sql: &str) -> Vec<T>
where
    T: Send + Unpin + sqlx::Type<sqlx::Postgres> + for<'r> sqlx::Decode<'r, sqlx::Postgres> + 'static,
{
    let db: TestDb = roles::database().await;
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_all(&db.pool)
        .await
        .unwrap()
}

async fn owner(name: &str) -> Uuid {
    as_superuser(&format!("select owner from leasehold.locks where name = '{name}'")).await[0]
}

async fn row(name: &str) -> String {
    as_superuser::<String>(&format!(
        "select concat(ctid, xmin, l) from leasehold.locks as l where name = '{name}'"
    ))
    .await
    .remove(0)
}

async fn expiry(name: &str) -> chrono::DateTime<chrono::Utc> {
    as_superuser(&format!("select expires_at from leasehold.locks where name = '{name}'")).await[0]
}

const LONG: Duration = Duration::from_secs(20);
const STRANGER: &str = "11111111-2222-3333-4444-555555555555";
