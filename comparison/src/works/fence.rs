//! E: a write that is tied to a lease, against the same write that is not.

use leasehold::{Lease, LeaseClient};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use crate::dice::Dice;
use crate::figures::{Figures, Key};
use crate::lap::{self, Lap, Step, Window};
use crate::meter;
use crate::peer::{Outcome, Pending};
use crate::peers::pool;
use crate::plan::Plan;
use crate::servers::Servers;
use crate::works::announce;

pub const TASKS: [usize; 2] = [1, 32];
pub const STATEMENTS: &str = "statements/transaction";

/// Named as they stand in the figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Write {
    Bare,
    Inline,
    Transaction,
    FencedTransaction,
}

impl Write {
    const ALL: [Self; 4] = [Self::Bare, Self::Inline, Self::Transaction, Self::FencedTransaction];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare update",
            Self::Inline => "update with leasehold.fence(…)",
            Self::Transaction => "begin, update, commit",
            Self::FencedTransaction => "begin, lease.fence(…), update, commit",
        }
    }
}

pub async fn run(plan: &Plan, servers: &Servers, dice: &mut Dice, figures: &mut Figures) -> Outcome<()> {
    let options = servers.postgres.options();
    let leases = prepare(&options).await?;
    for round in 0..plan.rounds {
        let mut order: Vec<_> = Write::ALL
            .into_iter()
            .flat_map(|write| TASKS.map(|tasks| (write, tasks)))
            .collect();
        dice.shuffle(&mut order);
        announce(round, "E, fenced writes");
        for (write, tasks) in order {
            let lap = writes(write, &leases, &options, tasks, plan.lap).await?;
            let key = Key::new('E', "writes/s", write.name(), tasks as u64);
            figures.record(key, round, lap.rate);
            figures.record_latencies(key, round, lap.milliseconds);
        }
    }
    leases.close().await;
    count(servers, figures).await
}

/// The table that is written, and a client.
pub async fn prepare(options: &PgConnectOptions) -> Outcome<LeaseClient> {
    let pool = pool(options);
    leasehold::migrate(&pool).await?;
    sqlx::raw_sql(SCHEMA).execute(&pool).await?;
    Ok(LeaseClient::new(pool))
}

/// Each task writes a row of its own under a lease of its own, on a connection of its own.
pub async fn writes(
    write: Write,
    leases: &LeaseClient,
    options: &PgConnectOptions,
    tasks: usize,
    window: Window,
) -> Outcome<Lap> {
    let mut writers = Vec::new();
    for number in 0..tasks {
        writers.push(Writer::new(write, leases, options, number).await?);
    }
    let (lap, writers) = lap::run(writers, window).await?;
    for writer in writers {
        writer.lease.release().await?;
    }
    Ok(lap)
}

/// Every statement is prepared, so each is a round trip.
async fn count(servers: &Servers, figures: &mut Figures) -> Outcome<()> {
    let options = servers.counting.options();
    let leases = prepare(&options).await?;
    let mut session = servers.counting.connect().await;
    for write in [Write::Transaction, Write::FencedTransaction] {
        let mut writer = Writer::new(write, &leases, &options, 0).await?;
        writer.step().await?;
        let before = meter::statements(&mut session).await?;
        for _ in 0..COUNTED {
            writer.step().await?;
        }
        let each = (meter::statements(&mut session).await? - before) as f64 / f64::from(COUNTED);
        // The lease is not due for renewal yet, so nothing else was sent.
        figures.record(Key::new('E', STATEMENTS, write.name(), 1), 0, each);
        writer.lease.release().await?;
    }
    leases.close().await;
    Ok(())
}

struct Writer {
    write: Write,
    lease: Lease,
    connection: PgConnection,
    id: i32,
}

impl Writer {
    async fn new(write: Write, leases: &LeaseClient, options: &PgConnectOptions, number: usize) -> Outcome<Self> {
        Ok(Self {
            write,
            lease: leases.acquire(format!("account:{number}")).await?,
            connection: PgConnection::connect_with(options).await?,
            id: i32::try_from(number)?,
        })
    }
}

impl Step for Writer {
    fn step(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            let token = self.lease.fencing_token();
            let bare = sqlx::query(BARE).bind(token).bind(self.id);
            let written = match self.write {
                Write::Bare => bare.execute(&mut self.connection).await?,
                Write::Inline => {
                    let inline = sqlx::query(INLINE).bind(self.lease.name()).bind(token).bind(self.id);
                    inline.execute(&mut self.connection).await?
                }
                Write::Transaction | Write::FencedTransaction => {
                    let mut tx = self.connection.begin().await?;
                    if self.write == Write::FencedTransaction {
                        self.lease.fence(&mut tx).await?;
                    }
                    let written = bare.execute(&mut *tx).await?;
                    tx.commit().await?;
                    written
                }
            };
            match written.rows_affected() {
                1 => Ok(()),
                rows => Err(format!("{rows} rows were written").into()),
            }
        })
    }
}

const BARE: &str = "update accounts set value = value + 1, fence = $1 where id = $2";
const INLINE: &str = "update accounts set value = value + 1, fence = leasehold.fence($1, $2) where id = $3";
const SCHEMA: &str = "
    create table if not exists accounts (id integer primary key, value bigint not null, fence bigint)
        with (fillfactor = 50);
    insert into accounts select id, 0 from generate_series(0, 255) as id on conflict do nothing;";
const COUNTED: u32 = 200;
