//! One connection through the proxy.

use std::io;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Duration, sleep, timeout};

use super::faults::{Admission, Direction, End, Network};
use super::requests::Reader;

/// Carries bytes between `client` and the server until both are done or a fault ends it.
pub(super) async fn run(mut client: TcpStream, admission: Admission) {
    let (network, number) = (&admission.network, admission.number);
    let mut server = tokio::select! {
        end = ended(network, number) => return finish(end, client, None, admission).await,
        server = connect(network, number) => match server {
            Ok(server) => server,
            // What a client sees of a server that is down.
            Err(_) => return finish(End::Reset, client, None, admission).await,
        },
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));

    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    let end = tokio::select! {
        end = ended(network, number) => end,
        carried = async {
            tokio::try_join!(
                carry(&admission, Direction::Requests, client_reads, server_writes),
                carry(&admission, Direction::Replies, server_reads, client_writes),
            )
        } => match carried {
            Ok(_) => End::Cut,
            // One end broke off, so the other hears the same.
            Err(_) => End::Reset,
        },
    };
    finish(end, client, Some(server), admission).await;
}

async fn ended(network: &Network, number: u64) -> End {
    network.when(|faults| faults.end_of(number)).await
}

async fn connect(network: &Network, number: u64) -> io::Result<TcpStream> {
    let passes = network.when(|faults| (!faults.is_held(number, Direction::Requests)).then_some(faults.upstream));
    TcpStream::connect(passes.await).await
}

/// Passes one direction on until its end, which it passes on too.
async fn carry(
    admission: &Admission,
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
) -> io::Result<()> {
    let network = &admission.network;
    let mut reader = Reader::default();
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = from.read(&mut buffer).await?;
        let latency = network.faults().latency(direction);
        if !latency.is_zero() {
            sleep(latency).await;
        }
        if length == 0 {
            network
                .when(|faults| (!faults.is_held(admission.number, direction)).then_some(()))
                .await;
            return to.shutdown().await;
        }
        pass(admission, direction, &mut reader, &buffer[..length], &to).await?;
    }
}

/// Writes a chunk, but no byte of it while its direction is held.
async fn pass(
    admission: &Admission,
    direction: Direction,
    reader: &mut Reader,
    chunk: &[u8],
    to: &WriteHalf<'_>,
) -> io::Result<()> {
    let number = admission.number;
    let request = (direction == Direction::Requests).then(|| reader.read(chunk));
    let mut to_tell = None;
    let mut written = 0;
    while written < chunk.len() {
        let attempt = admission.network.when(|faults| {
            if faults.end_of(number).is_some() {
                return Some(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            if faults.is_held(number, direction) {
                return None;
            }
            if let Some(request) = &request {
                // Armed before the first byte leaves: the answer cannot be faster.
                to_tell.get_or_insert_with(|| faults.meet(number, request));
            }
            let attempt = to.try_write(&chunk[written..]);
            if let (Some(_), Ok(length)) = (&request, &attempt) {
                faults.count(*length);
            }
            Some(attempt)
        });
        match attempt.await {
            Ok(length) => written += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    for seen in to_tell.into_iter().flatten() {
        // Whoever asked may have stopped waiting.
        let _ = seen.send(());
    }
    Ok(())
}

async fn finish(end: End, client: TcpStream, server: Option<TcpStream>, admission: Admission) {
    let end = admission.network.faults().end_of(admission.number).unwrap_or(end);
    drop(admission);
    let sockets = [Some(client), server].into_iter().flatten();
    match end {
        End::Reset => sockets.for_each(|socket| {
            // Closing with no time to linger is what sends a reset.
            let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        }),
        End::Cut => {
            for socket in sockets {
                tokio::spawn(say_goodbye(socket));
            }
        }
    }
}

/// Closes a socket in order; unread bytes would turn the close into a reset.
async fn say_goodbye(mut socket: TcpStream) {
    let _ = socket.shutdown().await;
    let drain = async {
        let mut unread = vec![0; CHUNK];
        while matches!(socket.read(&mut unread).await, Ok(length) if length > 0) {}
    };
    let _ = timeout(GOODBYE_WITHIN, drain).await;
}

const CHUNK: usize = 64 * 1024;
const GOODBYE_WITHIN: Duration = Duration::from_secs(5);
