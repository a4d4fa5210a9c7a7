//! Where the database is: as for psql, from `DATABASE_URL` or the variables and files of libpq.

use std::env;
use std::time::Duration;

use leasehold::sqlx::PgPool;
use leasehold::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use leasehold::{LeaseClient, LeaseClientBuilder};

use crate::args::Connection;
use crate::exit::{Exit, Failed};

pub(crate) const DATABASE_URL: &str = "DATABASE_URL";
pub(crate) const LISTENER_URL: &str = "LEASEHOLD_LISTENER_URL";

impl Connection {
    pub(crate) fn database_url(&self) -> Option<String> {
        self.database_url.clone().or_else(|| set(DATABASE_URL))
    }

    pub(crate) fn listener_url(&self) -> Option<String> {
        self.listener_url.clone().or_else(|| set(LISTENER_URL))
    }

    /// A pool that connects when it is asked to.
    pub(crate) fn pool(&self) -> Result<PgPool, Failed> {
        let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(WITHIN);
        Ok(pool.connect_lazy_with(self.options()?))
    }

    pub(crate) fn client(&self, pool: PgPool) -> LeaseClientBuilder {
        let client = LeaseClient::builder(pool).pooler(self.pooler).answer_within(WITHIN);
        match self.listener_url() {
            Some(url) => client.listener_url(url),
            None => client,
        }
    }

    /// Where to listen, if not where the database is.
    pub(crate) fn listen_at(&self) -> Result<Option<PgConnectOptions>, Failed> {
        let problem = format!("{LISTENER_URL} is no URL of a PostgreSQL database");
        let parse = |url: String| url.parse().map_err(|_| Failed::new(Exit::Usage, problem));
        self.listener_url().map(parse).transpose()
    }

    /// Of a bad URL nothing is repeated: a password is where one does not expect it.
    pub(crate) fn options(&self) -> Result<PgConnectOptions, Failed> {
        let options = match self.database_url() {
            None => PgConnectOptions::new(),
            Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => url
                .parse()
                .map_err(|_| Failed::new(Exit::Usage, "DATABASE_URL is no URL of a PostgreSQL database"))?,
            Some(_) => {
                let problem = "DATABASE_URL does not begin with postgres:// or postgresql://";
                return Err(Failed::new(Exit::Usage, problem));
            }
        };
        Ok(match options.get_application_name() {
            Some(_) => options,
            None => options.application_name("leasehold"),
        })
    }
}

fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(5);
