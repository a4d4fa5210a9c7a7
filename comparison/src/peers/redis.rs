//! Redis: `set … nx px` and a script that deletes what carries the owner's value, over one
//! multiplexed connection a client, which sends together what its tasks ask at once. A waiter looks
//! every 100 ms.

use redis::aio::MultiplexedConnection;
use tokio::time::sleep;
use uuid::Uuid;

use crate::peer::{Outcome, Peer, Pending, Session};
use crate::peers::{POLL_EVERY, TTL};

pub const ALWAYS: &str = "Redis, appendfsync always";
pub const DEFAULTS: &str = "Redis, defaults";

pub struct Redis {
    name: &'static str,
    connections: Vec<MultiplexedConnection>,
    /// The script's name on the server.
    release: String,
}

impl Redis {
    pub async fn connect(name: &'static str, port: u16, clients: usize) -> Outcome<Self> {
        let client = redis::Client::open(("127.0.0.1", port))?;
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(client.get_multiplexed_async_connection().await?);
        }
        let mut load = redis::cmd("SCRIPT");
        let release = load
            .arg("LOAD")
            .arg(COMPARE_AND_DELETE)
            .query_async(&mut connections[0])
            .await?;
        Ok(Self {
            name,
            connections,
            release,
        })
    }
}

impl Peer for Redis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn session(&self, number: usize) -> Pending<'_, Box<dyn Session>> {
        let key = Key {
            connection: self.connections[number % self.connections.len()].clone(),
            release: self.release.clone(),
            held: None,
        };
        Box::pin(async move { Ok(Box::new(key) as Box<dyn Session>) })
    }

    fn is_polling(&self) -> bool {
        true
    }
}

struct Key {
    connection: MultiplexedConnection,
    release: String,
    held: Option<(String, String)>,
}

impl Session for Key {
    fn acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            while !self.try_acquire(name).await? {
                sleep(POLL_EVERY).await;
            }
            Ok(())
        })
    }

    fn try_acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, bool> {
        Box::pin(async move {
            let owner = Uuid::new_v4().to_string();
            let mut set = redis::cmd("SET");
            set.arg(name)
                .arg(&owner)
                .arg("NX")
                .arg("PX")
                .arg(TTL.as_millis() as u64);
            let taken: Option<String> = set.query_async(&mut self.connection).await?;
            self.held = taken.is_some().then(|| (name.to_owned(), owner));
            Ok(taken.is_some())
        })
    }

    fn release(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            let (name, owner) = self.held.take().ok_or("nothing is held")?;
            let mut call = redis::cmd("EVALSHA");
            call.arg(&self.release).arg(1).arg(name).arg(owner);
            match call.query_async::<i64>(&mut self.connection).await? {
                1 => Ok(()),
                _ => Err("the key was somebody else's".into()),
            }
        })
    }
}

const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
