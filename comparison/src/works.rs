//! The works, each in a file of its own.

pub mod cycle;
pub mod fence;
pub mod growth;
pub mod handoff;
pub mod held;
pub mod miss;
pub mod waiting;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use crate::lap::Step;
use crate::peer::{Outcome, Pending};

/// The least a statement costs: `select 1`, prepared, on a connection of one's own.
pub struct SelectOne(PgConnection);

impl SelectOne {
    pub const NAME: &'static str = "select 1";

    pub async fn connect(options: &PgConnectOptions) -> Outcome<Self> {
        Ok(Self(PgConnection::connect_with(options).await?))
    }
}

impl Step for SelectOne {
    fn step(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            sqlx::query("select 1").execute(&mut self.0).await?;
            Ok(())
        })
    }
}

/// Says on standard error where the run is.
pub fn announce(round: u32, what: &str) {
    eprintln!("round {}: {what}", round + 1);
}
