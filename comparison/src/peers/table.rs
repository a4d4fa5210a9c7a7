//! The tempting lease table: an upsert that takes what has run out, a delete by owner, and a look
//! every 100 ms while somebody else holds the name. No renewal, no order, no fence.

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::time::sleep;
use uuid::Uuid;

use crate::peer::{Outcome, Peer, Pending, Session};
use crate::peers::{POLL_EVERY, TTL, pool};

pub const NAME: &str = "lease table, 100 ms polls";

pub struct Table {
    pool: PgPool,
}

impl Table {
    pub async fn new(options: &PgConnectOptions) -> Outcome<Self> {
        let pool = pool(options);
        sqlx::raw_sql(SCHEMA).execute(&pool).await?;
        Ok(Self { pool })
    }
}

impl Peer for Table {
    fn name(&self) -> &'static str {
        NAME
    }

    fn session(&self, _number: usize) -> Pending<'_, Box<dyn Session>> {
        let pool = self.pool.clone();
        Box::pin(async move { Ok(Box::new(Row { pool, held: None }) as Box<dyn Session>) })
    }

    fn is_polling(&self) -> bool {
        true
    }
}

struct Row {
    pool: PgPool,
    held: Option<(String, Uuid)>,
}

impl Session for Row {
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
            let owner = Uuid::new_v4();
            let taken = sqlx::query(TAKE)
                .bind(name)
                .bind(owner)
                .bind(TTL.as_secs_f64())
                .execute(&self.pool)
                .await?
                .rows_affected()
                == 1;
            self.held = taken.then(|| (name.to_owned(), owner));
            Ok(taken)
        })
    }

    fn release(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            let (name, owner) = self.held.take().ok_or("nothing is held")?;
            let gone = sqlx::query("delete from leases where name = $1 and owner = $2")
                .bind(name)
                .bind(owner)
                .execute(&self.pool)
                .await?;
            match gone.rows_affected() {
                1 => Ok(()),
                _ => Err("the lease was somebody else's".into()),
            }
        })
    }
}

const SCHEMA: &str = "
    create table if not exists leases (name text primary key, owner uuid not null, expires_at timestamptz not null)";

const TAKE: &str = "
    insert into leases (name, owner, expires_at)
    values ($1, $2, now() + make_interval(secs => $3))
    on conflict (name) do update set owner = excluded.owner, expires_at = excluded.expires_at
    where leases.expires_at <= now()";
