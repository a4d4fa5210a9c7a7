//! A TCP proxy that fails on request.
//!
//! It stands in front of a server with real sockets, on a thread and a runtime of its
//! own, so it works on while a test's runtime is busy or its clock stands still.
//! [`faults`] holds what is wrong with the network now, [`pump`] moves bytes accordingly,
//! [`requests`] reads what clients ask for.

mod faults;
mod pump;
mod requests;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use sqlx::postgres::PgConnectOptions;
use tokio::net::TcpListener;
use tokio::sync::{mpsc as tokio_mpsc, oneshot};

use faults::{Network, Then};
use requests::Request;

/// A TCP proxy whose faults are switched by methods.
///
/// A fault is in force when its method returns: from then on not a byte gets past it.
/// Faults of different kinds add up. Dropping the proxy closes everything.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), sqlx::Error> {
/// use leasehold_testkit::{Cluster, FaultProxy};
///
/// let cluster = Cluster::shared().await;
/// let proxy = FaultProxy::start(cluster.addr());
/// let pool = sqlx::PgPool::connect_with(proxy.options(&cluster.options())).await?;
///
/// // The server commits, and the client never hears of it.
/// proxy.hold_replies_after_execute("update account");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a proxy closes all its connections"]
pub struct FaultProxy {
    addr: SocketAddr,
    network: Arc<Network>,
    /// `None` only while dropping.
    door: Option<tokio_mpsc::UnboundedSender<(Door, mpsc::Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy to `upstream` on a free local port.
    ///
    /// # Panics
    ///
    /// When there is no port or no thread to be had.
    pub fn start(upstream: SocketAddr) -> Self {
        let place = Place::reserve().expect("a local port is free");
        let listener = place.listen().expect("a reserved port can be listened on");
        let addr = place.addr;
        let network = Arc::new(Network::new(upstream));
        let (door, orders) = tokio_mpsc::unbounded_channel();
        let serve = {
            let network = Arc::clone(&network);
            move || serve(place, listener, network, orders)
        };
        let thread = thread::Builder::new().name("fault-proxy".to_owned()).spawn(serve);
        Self {
            addr,
            network,
            door: Some(door),
            thread: Some(thread.expect("a thread can be started")),
        }
    }

    /// Returns the address to connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns `options`, which must be for TCP, with the proxy as server.
    ///
    /// # Panics
    ///
    /// When `options` are for a Unix socket, which no proxy reaches.
    pub fn options(&self, options: &PgConnectOptions) -> PgConnectOptions {
        assert!(options.get_socket().is_none(), "a Unix socket does not pass the proxy");
        options.clone().host(&self.addr.ip().to_string()).port(self.addr.port())
    }

    /// Sends connections made from now on to `upstream`, as after a failover.
    pub fn redirect(&self, upstream: SocketAddr) {
        self.network.change(|faults| faults.upstream = upstream);
    }

    /// Holds all bytes in both directions; connections stay open and new ones are accepted.
    pub fn pause(&self) {
        self.network
            .change(|faults| (faults.requests.is_held, faults.replies.is_held) = (true, true));
    }

    /// Holds what clients send.
    pub fn hold_requests(&self) {
        self.network.change(|faults| faults.requests.is_held = true);
    }

    /// Holds what the server sends.
    pub fn hold_replies(&self) {
        self.network.change(|faults| faults.replies.is_held = true);
    }

    /// Holds replies from the moment a chunk from a client contains `pattern`.
    ///
    /// The chunk still reaches the server. Only its connection is affected: others, and
    /// new ones, go on. The text of a prepared statement travels when it is prepared,
    /// which is before it is executed, and not again;
    /// [`hold_replies_after_execute`](Self::hold_replies_after_execute) knows the difference.
    pub fn hold_replies_after(&self, pattern: &[u8]) {
        let pattern = pattern.to_owned();
        let matches = move |request: &Request<'_>| request.contains(&pattern);
        self.network.watch(matches, Then::HoldReplies);
    }

    /// Holds replies from the moment a statement whose text contains `sql` is executed.
    ///
    /// The statement reaches the server and runs, and its outcome is lost to the client.
    /// It makes no difference whether it was prepared before. Only its connection is
    /// affected: others, and new ones, go on.
    pub fn hold_replies_after_execute(&self, sql: &str) {
        let sql = sql.to_owned();
        let matches = move |request: &Request<'_>| request.executes(&sql);
        self.network.watch(matches, Then::HoldReplies);
    }

    /// Holds replies from the next chunk on that any client sends, on its connection only.
    pub fn hold_replies_after_next_request(&self) {
        self.network.watch(|_| true, Then::HoldReplies);
    }

    /// Lets bytes pass again, held ones first; armed `hold_replies_after…` are disarmed.
    ///
    /// Connections that were frozen stay so.
    pub fn resume(&self) {
        self.network.change(faults::Faults::resume);
    }

    /// Holds all bytes of the connections open now, for good; new connections work.
    pub fn freeze_existing(&self) {
        self.network.change(faults::Faults::freeze_existing);
    }

    /// Closes all open connections in order (FIN) at both ends; held bytes are lost.
    pub fn cut(&self) {
        self.network.change(|faults| faults.end_existing(faults::End::Cut));
    }

    /// Breaks all open connections off (RST) at both ends; held bytes are lost.
    pub fn reset(&self) {
        self.network.change(|faults| faults.end_existing(faults::End::Reset));
    }

    /// Refuses new connections; open ones go on.
    pub fn refuse(&self) {
        self.order(Door::Closed);
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.order(Door::Open);
    }

    /// Delays each chunk, in each direction, by `latency`; zero ends the delay.
    pub fn delay(&self, latency: Duration) {
        self.network
            .change(|faults| (faults.requests.latency, faults.replies.latency) = (latency, latency));
    }

    /// Makes the network whole: resumes, accepts, ends the delay. Frozen connections stay so.
    pub fn heal(&self) {
        self.resume();
        self.delay(Duration::ZERO);
        self.accept();
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.network.connections()
    }

    /// Returns the number of connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.network.accepted()
    }

    /// Returns the number of bytes that clients have sent and the server was sent.
    #[must_use]
    pub fn bytes_from_client(&self) -> u64 {
        self.network.bytes_from_client()
    }

    /// Waits until a chunk from a client that `matches` has been passed on.
    ///
    /// It looks from the call on, not from the first poll: call, let things happen,
    /// await.
    pub fn wait_for_request<M>(&self, mut matches: M) -> impl Future<Output = ()> + Send + use<M>
    where
        M: FnMut(&[u8]) -> bool + Send + 'static,
    {
        self.tell(move |request| matches(request.bytes))
    }

    /// Waits until a client's order to execute a statement whose text contains `sql` has
    /// been passed on, whether it was prepared before or not.
    ///
    /// It looks from the call on, not from the first poll.
    pub fn wait_for_execute(&self, sql: &str) -> impl Future<Output = ()> + Send + use<> {
        self.wait_for_executes(sql, 1)
    }

    /// As [`wait_for_execute`](Self::wait_for_execute), for the last of so many.
    pub fn wait_for_executes(&self, sql: &str, times: usize) -> impl Future<Output = ()> + Send + use<> {
        let (sql, mut seen) = (sql.to_owned(), 0);
        self.tell(move |request| {
            seen += usize::from(request.executes(&sql));
            seen >= times
        })
    }

    fn tell<M>(&self, matches: M) -> impl Future<Output = ()> + Send + use<M>
    where
        M: FnMut(&Request<'_>) -> bool + Send + 'static,
    {
        let (seen, heard) = oneshot::channel();
        self.network.watch(matches, Then::Tell(seen));
        async { heard.await.expect("the proxy outlives those who wait for it") }
    }

    fn order(&self, door: Door) {
        let (done, is_done) = mpsc::channel();
        let orders = self.door.as_ref().expect("the door goes with the proxy");
        orders
            .send((door, done))
            .expect("the proxy's thread runs as long as the proxy");
        is_done.recv().expect("the proxy's thread answers each order");
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        drop(self.door.take());
        if let Some(thread) = self.thread.take() {
            // A panic in there has been reported by that thread already.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FaultProxy")
            .field("addr", &self.addr)
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

/// Whether new connections are let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Open,
    Closed,
}

/// A local address that stays reserved while nobody listens on it.
struct Place {
    addr: SocketAddr,
    /// Bound and never listening: connections are refused, and nobody else gets the port.
    _reserved: Socket,
}

impl Place {
    fn reserve() -> io::Result<Self> {
        let reserved = bound((Ipv4Addr::LOCALHOST, 0).into())?;
        let addr = reserved
            .local_addr()?
            .as_socket()
            .expect("an IPv4 socket has such an address");
        Ok(Self {
            addr,
            _reserved: reserved,
        })
    }

    fn listen(&self) -> io::Result<std::net::TcpListener> {
        let socket = bound(self.addr)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }
}

fn bound(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    Ok(socket)
}

/// Runs the proxy until the orders end.
fn serve(
    place: Place,
    listener: std::net::TcpListener,
    network: Arc<Network>,
    orders: tokio_mpsc::UnboundedReceiver<(Door, mpsc::Sender<()>)>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    runtime.block_on(keep_door(place, listener, network, orders));
    // Dropping the runtime drops its tasks, and they their sockets.
}

async fn keep_door(
    place: Place,
    listener: std::net::TcpListener,
    network: Arc<Network>,
    mut orders: tokio_mpsc::UnboundedReceiver<(Door, mpsc::Sender<()>)>,
) {
    let into_async = |listener| TcpListener::from_std(listener).expect("the runtime has its I/O enabled");
    let mut listener = Some(into_async(listener));
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => {
                let Some((door, done)) = order else { break };
                match door {
                    Door::Closed => listener = None,
                    Door::Open if listener.is_none() => {
                        listener = Some(into_async(place.listen().expect("a reserved port can be listened on")));
                    }
                    Door::Open => {}
                }
                // Whoever gave the order may be gone; the door is as ordered all the same.
                let _ = done.send(());
            }
            client = next_client(listener.as_ref()) => {
                let connection = network.admit();
                tokio::spawn(pump::run(client, connection));
            }
        }
    }
}

async fn next_client(listener: Option<&TcpListener>) -> tokio::net::TcpStream {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            // The client has gone already, or descriptors are short for a moment.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

const BACKLOG: i32 = 1024;
