//! The physical limit: two durable updates of one row, one after the other, prepared, on a
//! connection of one's own. It locks nothing.

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use crate::peer::{Outcome, Peer, Pending, Session};

pub const NAME: &str = "two updates";

pub struct Updates {
    options: PgConnectOptions,
}

impl Updates {
    pub async fn new(options: &PgConnectOptions) -> Outcome<Self> {
        let mut connection = PgConnection::connect_with(options).await?;
        sqlx::raw_sql(SCHEMA).execute(&mut connection).await?;
        Ok(Self {
            options: options.clone(),
        })
    }
}

impl Peer for Updates {
    fn name(&self) -> &'static str {
        NAME
    }

    fn session(&self, number: usize) -> Pending<'_, Box<dyn Session>> {
        Box::pin(async move { Ok(Box::new(Update::connect(&self.options, number).await?) as Box<dyn Session>) })
    }

    fn waiters_at_most(&self) -> usize {
        0
    }

    fn can_miss(&self) -> bool {
        false
    }
}

/// Updates one row that nobody else does.
pub struct Update {
    connection: PgConnection,
    id: i32,
}

impl Update {
    pub async fn connect(options: &PgConnectOptions, number: usize) -> Outcome<Self> {
        Ok(Self {
            connection: PgConnection::connect_with(options).await?,
            id: i32::try_from(number)?,
        })
    }

    pub async fn once(&mut self) -> Outcome<()> {
        let update = sqlx::query("update yardstick set value = value + 1 where id = $1").bind(self.id);
        match update.execute(&mut self.connection).await?.rows_affected() {
            1 => Ok(()),
            rows => Err(format!("{rows} rows were updated").into()),
        }
    }
}

impl Session for Update {
    fn acquire<'a>(&'a mut self, _name: &'a str) -> Pending<'a, ()> {
        Box::pin(self.once())
    }

    fn try_acquire<'a>(&'a mut self, _name: &'a str) -> Pending<'a, bool> {
        Box::pin(async { Err("it locks nothing".into()) })
    }

    fn release(&mut self) -> Pending<'_, ()> {
        Box::pin(self.once())
    }
}

/// As roomy as a table of leases, so that updates are HOT.
const SCHEMA: &str = "
    create table if not exists yardstick (id integer primary key, value bigint not null) with (fillfactor = 50);
    insert into yardstick select id, 0 from generate_series(0, 1023) as id on conflict do nothing;";
