//! The numbers of a small application on a dashboard: it exports them to Prometheus while its tasks
//! take leases, wait for them, lose them and are fenced out.
//!
//! ```text
//! cargo run --features metrics --example dashboard                        # until Ctrl-C
//! cargo run --features metrics --example dashboard -- picture.svg [60]    # for so many seconds
//! ```
//!
//! The first serves <http://127.0.0.1:9464/metrics>. To see it in Grafana, let a Prometheus scrape that
//! often:
//!
//! ```yaml
//! scrape_configs:
//!   - job_name: leasehold
//!     scrape_interval: 5s
//!     static_configs:
//!       - targets: ["127.0.0.1:9464"]
//! ```
//!
//! and import `grafana.json`, beside this file, with "Dashboards, New, Import": it asks for nothing but
//! which Prometheus to use, and shows what any application exports that uses the crate's feature
//! `metrics`. Let its recorder keep histograms in buckets, as `export` below does: without, the exporter
//! turns them into summaries, and the panels of latencies stay empty.
//!
//! The second needs neither. It scrapes its own endpoint, twice a second, and draws the dashboard's
//! panels from that: the same titles and queries, computed here, over the last five seconds. It ends
//! with an error when one of them shows nothing, or when anything is still counted after the end.
//!
//! It runs on the database of `DATABASE_URL`, or on a throw-away cluster when that is not set.

#![allow(clippy::print_stdout, reason = "an example is there to be read")]
#![allow(unreachable_pub, reason = "an example has no outside")]

mod panels;
mod picture;
mod scrape;
mod work;

use std::env;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use leasehold_testkit::Cluster;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::time::{Instant, interval};

use panels::PANELS;
use scrape::Scrape;
use work::Application;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match env::var("DATABASE_URL") {
        Ok(url) => run(&url, &arguments).await,
        Err(_) => run(&Cluster::builder().try_start().await?.url(), &arguments).await,
    }
}

async fn run(url: &str, arguments: &[String]) -> Outcome<()> {
    match arguments {
        [] => serve(url).await,
        [picture] => draw(url, picture, ROUND).await,
        [picture, seconds, ..] => draw(url, picture, Duration::from_secs(seconds.parse()?)).await,
    }
}

async fn serve(url: &str) -> Outcome<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9464));
    export(address)?;
    println!("http://{address}/metrics, until Ctrl-C");
    let mut application = Application::start(url, ROUND).await?;
    tokio::select! {
        failed = application.failed() => failed,
        _ = tokio::signal::ctrl_c() => application.stop().await,
    }
}

/// Lets the application run for that long, and draws what it told meanwhile.
async fn draw(url: &str, picture: &str, round: Duration) -> Outcome<()> {
    let address = free_address()?;
    export(address)?;
    let mut application = Application::start(url, round).await?;
    let scrapes = tokio::select! {
        failed = application.failed() => return failed,
        scrapes = watch(address, round) => scrapes?,
    };
    application.stop().await?;
    let after = Scrape::of(address, round).await?;
    panels::check(&scrapes, &after)?;
    std::fs::write(picture, picture::draw(&scrapes))?;
    println!(
        "{} panels from {} scrapes in {round:?}; the picture is in {picture}.",
        PANELS.len(),
        scrapes.len()
    );
    Ok(())
}

/// Installs the recorder, which serves what it has recorded.
fn export(address: SocketAddr) -> Outcome<()> {
    PrometheusBuilder::new()
        .with_http_listener(address)
        .set_buckets_for_metric(Matcher::Suffix("_duration_seconds".into()), &BUCKETS)?
        .install()?;
    Ok(())
}

async fn watch(address: SocketAddr, round: Duration) -> Outcome<Vec<Scrape>> {
    let (began_at, mut due, mut scrapes) = (Instant::now(), interval(SCRAPE_EVERY), Vec::new());
    while began_at.elapsed() < round {
        due.tick().await;
        scrapes.push(Scrape::of(address, began_at.elapsed()).await?);
    }
    Ok(scrapes)
}

fn free_address() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// In seconds: from a lone statement to a long wait.
const BUCKETS: [f64; 17] = [
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
];

/// How long it takes until the application does the same things again.
const ROUND: Duration = Duration::from_secs(60);

const SCRAPE_EVERY: Duration = Duration::from_millis(500);
