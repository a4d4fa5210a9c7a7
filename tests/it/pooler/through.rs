//! The way that all these tests' clients go.

use uuid::Uuid;

use crate::support::TestDb;

#[tokio::test]
async fn clients_share_a_poolers_server_sessions_where_that_is_asked_for_and_have_their_own_elsewhere() {
    let (db, application) = (TestDb::own("pooler_through").await, Uuid::new_v4().to_string());
    let clients = db.as_application(&application);

    let mut held = Vec::new();
    for number in 0..30 {
        held.push(clients.client().acquire(format!("own:{number}")).await.unwrap());
    }
    let sessions = db.backends(&application).await.len();

    match std::env::var_os("LEASEHOLD_THROUGH") {
        Some(_) => assert!((1..=20).contains(&sessions), "{sessions}"),
        None => assert_eq!(sessions, held.len()),
    }
}
