//! Each fault of the proxy, seen from a client.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use leasehold_testkit::{Cluster, FaultProxy, eventually};
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::{A_WHILE, SOON, number};

/// A server that sends back what it gets.
async fn echo() -> FaultProxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reads, mut writes) = socket.split();
                let _ = tokio::io::copy(&mut reads, &mut writes).await;
            });
        }
    });
    FaultProxy::start(addr)
}

async fn connect(proxy: &FaultProxy) -> TcpStream {
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(exchange(&mut client, b"hello").await, b"hello");
    client
}

async fn exchange(client: &mut TcpStream, text: &[u8]) -> Vec<u8> {
    client.write_all(text).await.unwrap();
    receive(client, text.len()).await
}

async fn receive(client: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut received = vec![0; length];
    timeout(SOON, client.read_exact(&mut received))
        .await
        .expect("an answer comes")
        .unwrap();
    received
}

async fn assert_silent(client: &mut TcpStream) {
    let mut byte = [0];
    assert!(
        timeout(A_WHILE, client.read(&mut byte)).await.is_err(),
        "there was an answer"
    );
}

async fn connect_sql(proxy: &FaultProxy, cluster: &Cluster) -> PgConnection {
    PgConnection::connect_with(&proxy.options(&cluster.options()))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_pause_holds_bytes_of_old_and_new_connections_until_resumed() {
    let proxy = echo().await;
    let mut old = connect(&proxy).await;

    proxy.pause();
    old.write_all(b"old").await.unwrap();
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    new.write_all(b"new").await.unwrap();
    assert_silent(&mut old).await;
    assert_silent(&mut new).await;
    assert_eq!(proxy.bytes_from_client(), 5);

    proxy.resume();
    assert_eq!(receive(&mut old, 3).await, b"old");
    assert_eq!(receive(&mut new, 3).await, b"new");
    assert_eq!((proxy.connections(), proxy.accepted()), (2, 2));
}

#[tokio::test]
async fn held_replies_are_lost_after_the_request_has_arrived_and_held_requests_never_arrive() {
    let proxy = echo().await;
    let mut client = connect(&proxy).await;

    proxy.hold_replies();
    client.write_all(b"one").await.unwrap();
    assert_silent(&mut client).await;
    assert_eq!(proxy.bytes_from_client(), 8);
    proxy.resume();
    assert_eq!(receive(&mut client, 3).await, b"one");

    proxy.hold_requests();
    client.write_all(b"two").await.unwrap();
    assert_silent(&mut client).await;
    assert_eq!(proxy.bytes_from_client(), 8);
    proxy.resume();
    assert_eq!(receive(&mut client, 3).await, b"two");
}

#[tokio::test]
async fn frozen_connections_stay_frozen_and_new_ones_work() {
    let proxy = echo().await;
    let mut old = connect(&proxy).await;

    proxy.freeze_existing();
    let _new = connect(&proxy).await;
    old.write_all(b"old").await.unwrap();
    proxy.resume();

    assert_silent(&mut old).await;
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn a_cut_ends_in_order_and_a_reset_breaks_off_even_what_is_held() {
    let proxy = echo().await;
    for hold in [false, true] {
        let mut client = connect(&proxy).await;
        if hold {
            proxy.pause();
            client.write_all(&vec![0; 1 << 20]).await.unwrap();
        }
        proxy.cut();
        assert_eq!(proxy.connections(), 0);
        assert_eq!(timeout(SOON, client.read(&mut [0])).await.unwrap().unwrap(), 0);
        proxy.resume();

        let mut client = connect(&proxy).await;
        if hold {
            proxy.pause();
            client.write_all(b"held").await.unwrap();
        }
        proxy.reset();
        assert_eq!(proxy.connections(), 0);
        let error = timeout(SOON, client.read(&mut [0])).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        proxy.resume();
    }
    connect(&proxy).await;
}

#[tokio::test]
async fn a_closed_door_refuses_at_once_and_opens_on_the_same_port() {
    let proxy = echo().await;
    let mut old = connect(&proxy).await;

    for _ in 0..20 {
        proxy.refuse();
        let error = TcpStream::connect(proxy.addr()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(exchange(&mut old, b"old").await, b"old");
        proxy.accept();
        connect(&proxy).await;
    }
}

#[tokio::test]
async fn a_delay_is_added_each_way() {
    let proxy = echo().await;
    let mut client = connect(&proxy).await;
    let latency = Duration::from_millis(60);

    proxy.delay(latency);
    let started_at = Instant::now();
    exchange(&mut client, b"slow").await;
    assert!(started_at.elapsed() >= 2 * latency);

    proxy.heal();
    let started_at = Instant::now();
    exchange(&mut client, b"fast").await;
    assert!(started_at.elapsed() < SOON);
}

#[tokio::test]
async fn ends_and_large_amounts_pass_both_ways() {
    let proxy = echo().await;
    let mut client = connect(&proxy).await;
    let sent: Vec<u8> = (0..4_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();

    let (mut reads, mut writes) = client.split();
    let send = async {
        writes.write_all(&sent).await.unwrap();
        writes.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    let (_, length) = tokio::join!(send, reads.read_to_end(&mut received));

    assert_eq!(length.unwrap(), sent.len());
    assert!(received == sent);
    eventually(SOON, "the connection is closed", async || proxy.connections() == 0).await;
}

#[tokio::test]
async fn a_server_that_is_down_resets_the_client() {
    let down = echo().await;
    down.refuse();
    let proxy = FaultProxy::start(down.addr());

    // The reset may be there before the connection is seen to be.
    let outcome = timeout(SOON, async {
        TcpStream::connect(proxy.addr()).await?.read(&mut [0]).await
    });
    assert_eq!(outcome.await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);

    let other = echo().await;
    proxy.redirect(other.addr());
    connect(&proxy).await;
}

#[tokio::test]
async fn dropping_the_proxy_closes_everything() {
    let proxy = echo().await;
    let mut client = connect(&proxy).await;
    let addr = proxy.addr();
    proxy.pause();

    drop(proxy);

    assert!(matches!(
        timeout(SOON, client.read(&mut [0])).await.unwrap(),
        Ok(0) | Err(_)
    ));
    assert_eq!(
        TcpStream::connect(addr).await.unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
}

#[tokio::test]
async fn a_request_is_waited_for_from_the_call_on() {
    let proxy = echo().await;
    let mut client = connect(&proxy).await;
    let seen = proxy.wait_for_request(|bytes| bytes == b"now");
    let unseen = proxy.wait_for_request(|bytes| bytes == b"never");

    exchange(&mut client, b"not yet").await;
    exchange(&mut client, b"now").await;

    timeout(SOON, seen).await.expect("it was seen");
    assert!(timeout(A_WHILE, unseen).await.is_err());
}

#[tokio::test]
async fn replies_are_held_from_the_matching_or_the_next_request_on_its_connection_only() {
    let proxy = echo().await;
    let (mut client, mut other) = (connect(&proxy).await, connect(&proxy).await);

    proxy.hold_replies_after(b"ma");
    exchange(&mut client, b"no").await;
    client.write_all(b"a match").await.unwrap();
    assert_silent(&mut client).await;
    exchange(&mut other, b"other").await;
    proxy.resume();
    assert_eq!(receive(&mut client, 7).await, b"a match");

    proxy.hold_replies_after_next_request();
    client.write_all(b"next").await.unwrap();
    assert_silent(&mut client).await;
    exchange(&mut other, b"other").await;
    proxy.resume();
    assert_eq!(receive(&mut client, 4).await, b"next");

    proxy.hold_replies_after_next_request();
    proxy.resume();
    exchange(&mut client, b"disarmed").await;
}

#[tokio::test]
async fn exactly_the_outcome_of_one_statement_is_lost_prepared_before_or_not() {
    let cluster = Cluster::shared().await;
    let database = "lost_outcome";
    let direct = cluster.create_database(database).await;
    let proxy = FaultProxy::start(cluster.addr());
    let mut control = PgConnection::connect_with(&direct).await.unwrap();
    sqlx::query("create table entries (entry bigint)")
        .execute(&mut control)
        .await
        .unwrap();
    const INSERT: &str = "insert into entries values (1) returning entry";
    const COUNT: &str = "select count(*) from entries";

    for warm in [false, true] {
        let before = number(&mut control, COUNT).await.unwrap();
        let mut client = PgConnection::connect_with(&proxy.options(&direct)).await.unwrap();
        if warm {
            number(&mut client, INSERT).await.unwrap();
        }
        proxy.hold_replies_after_execute("insert into entries");
        let executed = proxy.wait_for_execute("insert into entries");
        let lost = tokio::spawn(async move { number(&mut client, INSERT).await });
        timeout(SOON, executed).await.expect("the statement is executed");

        let expected = before + 1 + i64::from(warm);
        eventually(SOON, "it has committed", async || {
            number(&mut control, COUNT).await.unwrap() == expected
        })
        .await;
        tokio::time::sleep(A_WHILE).await;
        assert!(!lost.is_finished());
        let mut other = PgConnection::connect_with(&proxy.options(&direct)).await.unwrap();
        assert_eq!(number(&mut other, COUNT).await.unwrap(), expected);

        proxy.cut();
        assert!(lost.await.unwrap().is_err());
    }
}

#[tokio::test]
async fn a_test_that_blocks_its_runtime_does_not_stop_the_proxy() {
    let cluster = Cluster::shared().await;
    let proxy = FaultProxy::start(cluster.addr());
    let mut client = connect_sql(&proxy, cluster).await;
    let mut raw = std::net::TcpStream::connect(proxy.addr()).unwrap();

    // A blocking exchange on the only thread of this runtime: encryption is asked for
    // and denied.
    std::io::Write::write_all(&mut raw, &[0, 0, 0, 8, 4, 210, 22, 47]).unwrap();
    let mut answer = [0];
    std::io::Read::read_exact(&mut raw, &mut answer).unwrap();

    assert_eq!(&answer, b"N");
    assert_eq!(number(&mut client, "select 1::bigint").await.unwrap(), 1);
}
