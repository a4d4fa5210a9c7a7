//! An HTTP service in several replicas, one of which is the scheduler: the leader.
//!
//! All serve, one leads. A leader that is told to end lets go, and a standby leads within milliseconds;
//! one that dies is followed when its ttl is over. [`service`] and [`shutdown`] are the parts to copy.
//!
//! ```text
//! cargo run --example service               # one replica, on LISTEN=127.0.0.1:8080
//! curl http://127.0.0.1:8080/healthz        # `leader 1794…`, `standby` or `ending`
//! curl http://127.0.0.1:8080/readyz         # 200 where requests can be served, else 503
//! cargo run --example service -- --prove    # three replicas; the leader is told to end, the next one killed
//! ```
//!
//! It runs on the database of `DATABASE_URL`, or on a throw-away cluster when that is not set. Replicas
//! that are to be candidates together need one database, and each a `LISTEN` of its own.

#![allow(clippy::print_stdout, reason = "an example is there to be read")]
#![allow(clippy::print_stderr, reason = "and so is what goes wrong with it")]
#![allow(unreachable_pub, reason = "an example has no outside")]

mod prove;
mod service;
mod shutdown;

use std::env;
use std::error::Error;

use leasehold_testkit::{Cluster, Stage, signals};
use sqlx::PgPool;
use tokio::net::TcpListener;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [mode] if mode == "--prove" => Stage::play("service", prove::prove).await,
        [mode, name] if mode == "--replica" => {
            signals::die_with_parent();
            serve(&env::var("DATABASE_URL")?, "127.0.0.1:0", name).await
        }
        _ => {
            let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
            match env::var("DATABASE_URL") {
                Ok(url) => serve(&url, &address, "scheduler").await,
                Err(_) => {
                    let cluster = Cluster::builder().try_start().await?;
                    println!("for more replicas: DATABASE_URL={}", cluster.url());
                    serve(&cluster.url(), &address, "scheduler").await
                }
            }
        }
    }
}

async fn serve(url: &str, address: &str, name: &str) -> Outcome<()> {
    let pool = PgPool::connect(url).await?;
    let listener = TcpListener::bind(address).await?;
    println!("{}{}", prove::LISTENS, listener.local_addr()?);
    service::run(listener, pool, name).await
}
