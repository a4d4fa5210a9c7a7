//! An HTTP service: the token comes in a header, and the service refuses lower ones.
//!
//! The service remembers the highest token of each resource and compares in the same critical section
//! that writes; here that is a mutex, in a real service its own database's transaction. `409 Conflict`
//! tells the caller that somebody else has taken over: not to be retried.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::put;
use leasehold::FencingToken;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::stage::{Outcome, Stage, expect};

const HEADER: &str = "fencing-token";

/// What was written to each resource, and with which token.
type Resources = Arc<Mutex<HashMap<String, (i64, String)>>>;

pub async fn run(stage: &Stage) -> Outcome<()> {
    let resources = Resources::default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let service = Router::new()
        .route("/{resource}", put(write))
        .with_state(Arc::clone(&resources));
    let serving = tokio::spawn(async { axum::serve(listener, service).await });
    let (stale, current) = stage.overtaken("thermostat").await?;

    expect(
        send(&address, Some(current.fencing_token()), "21").await? == 204,
        "the current holder writes",
    )?;
    expect(
        send(&address, Some(stale.fencing_token()), "30").await? == 409,
        "the stale write is refused",
    )?;
    expect(
        send(&address, None, "40").await? == 428,
        "a write without a token is refused",
    )?;
    expect(
        send(&address, Some(current.fencing_token()), "22").await? == 204,
        "it writes again",
    )?;

    let resources = resources.lock().unwrap_or_else(PoisonError::into_inner);
    expect(
        resources.get("thermostat").is_some_and(|(_, body)| body == "22"),
        "its value stands",
    )?;
    serving.abort();
    Ok(())
}

async fn write(
    State(resources): State<Resources>,
    Path(resource): Path<String>,
    headers: HeaderMap,
    body: String,
) -> StatusCode {
    let token = headers
        .get(HEADER)
        .and_then(|token| token.to_str().ok()?.parse::<i64>().ok());
    let Some(token) = token else {
        return StatusCode::PRECONDITION_REQUIRED;
    };
    let mut resources = resources.lock().unwrap_or_else(PoisonError::into_inner);
    if resources.get(&resource).is_some_and(|(highest, _)| *highest > token) {
        return StatusCode::CONFLICT;
    }
    resources.insert(resource, (token, body));
    StatusCode::NO_CONTENT
}

/// A request by hand: one needs no client library to send a header.
async fn send(address: &str, token: Option<FencingToken>, body: &str) -> Outcome<u16> {
    let header = token.map(|token| format!("{HEADER}: {token}\r\n")).unwrap_or_default();
    let length = body.len();
    let request = format!(
        "PUT /thermostat HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{header}\r\n{body}"
    );
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    let status = response.split(' ').nth(1).ok_or("not a response")?;
    Ok(status.parse()?)
}
