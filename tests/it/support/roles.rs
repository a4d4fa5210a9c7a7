//! The README's roles, in a database whose schema an unprivileged role has installed.

use leasehold_testkit::Cluster;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::OnceCell;

use super::TestDb;
use super::install::run;

/// The database with the README's roles in it, as the superuser sees it.
pub(crate) async fn database() -> TestDb {
    static OPTIONS: OnceCell<PgConnectOptions> = OnceCell::const_new();
    let options = OPTIONS.get_or_init(async || {
        let options = Cluster::shared().await.create_database(DATABASE).await;
        let db = TestDb::with(options.clone());
        run(
            &db,
            &format!("create role roles_owner login; grant create on database {DATABASE} to roles_owner"),
        )
        .await;
        let owner = TestDb::with(options.clone().username("roles_owner"));
        owner.install_schema().await;
        run(&db, &readme_roles()).await;
        options
    });
    TestDb::of_shared_cluster(options.await.clone()).await
}

/// A database of the test's own in which the README's roles have their rights.
pub(crate) async fn own(name: &str) -> TestDb {
    // They are the cluster's, and are made with that database.
    database().await;
    let db = TestDb::own(name).await;
    let grants: String = readme_roles()
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("create role "))
        .collect();
    run(&db, &grants).await;
    db
}

/// The database as a new login role sees it, which has these roles and settings.
pub(crate) async fn login(name: &str, in_roles: &str, settings: &[(&str, &str)]) -> TestDb {
    let db = database().await;
    run(&db, &format!("create role {name} login")).await;
    if !in_roles.is_empty() {
        run(&db, &format!("grant {in_roles} to {name}")).await;
    }
    for (setting, value) in settings {
        // A list is not one value.
        let value = if *setting == "search_path" {
            (*value).to_owned()
        } else {
            format!("'{value}'")
        };
        run(&db, &format!("alter role {name} set {setting} = {value}")).await;
    }
    db.having(|options| options.username(name))
}

/// The SQL of the README's section on roles.
fn readme_roles() -> String {
    let readme = include_str!("../../../README.md");
    let section = readme
        .split("\n### Roles\n")
        .nth(1)
        .expect("the README has the section");
    let section = section.split("\n## ").next().expect("a section has a beginning");
    let blocks = section.split("```sql\n").skip(1);
    let sql: String = blocks
        .map(|block| block.split("```").next().expect("a block has an end"))
        .collect();
    assert!(sql.contains("create role leasehold_client"), "{sql}");
    sql
}

const DATABASE: &str = "leasehold_roles";
