//! The part to copy: a worker that finalises open invoices, as one of many.

use std::time::Duration;

use leasehold::{Error, Lease, LeaseClient, LeaseLost};
use sqlx::PgPool;

use crate::Outcome;

/// What one worker has.
pub struct Worker {
    pub leases: LeaseClient,
    pub pool: PgPool,
    /// Whose invoices these are.
    pub tenant: String,
}

/// What became of an invoice.
enum Finalised {
    WithNumber(i64),
    /// The lease passed on meanwhile. Somebody else finalises it, or has.
    Refused(LeaseLost),
}

impl Worker {
    /// Finalises invoices until none is open, or until `told_to_end`; one that is begun is carried to its
    /// end. `render` is the slow part, outside any transaction.
    pub async fn run(&self, render: impl AsyncFn(i64, &Lease), told_to_end: impl Future<Output = ()>) -> Outcome<()> {
        tokio::pin!(told_to_end);
        loop {
            let next = tokio::select! {
                biased;
                () = &mut told_to_end => return Ok(()),
                next = self.next() => next?,
            };
            let Some((invoice, lease)) = next else {
                return Ok(());
            };
            render(invoice, &lease).await;
            match self.finalise(invoice, &lease).await? {
                Finalised::WithNumber(number) => println!("invoice {invoice} is final: number {number}"),
                Finalised::Refused(lost) => println!("{REFUSED}{invoice}: {lost}"),
            }
            lease.release().await?;
        }
    }

    /// An open invoice and the lease of it: the first one that nobody is at, or else the first of all, when
    /// it comes free.
    async fn next(&self) -> Outcome<Option<(i64, Lease)>> {
        loop {
            let open: Vec<i64> = sqlx::query_scalar("select id from invoice where number is null order by id limit 20")
                .fetch_all(&self.pool)
                .await?;
            let Some(&first) = open.first() else {
                return Ok(None);
            };
            let taken = match self.first_free(&open).await? {
                Some(taken) => taken,
                None => match self.lease_of(first).wait_at_most(A_WHILE).await {
                    Ok(lease) => (first, lease),
                    Err(Error::WaitTimedOut { .. }) => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            // Looked at again: it may have been finalised before the lease was granted. From here on
            // nobody else can, as long as what is written is fenced.
            if self.is_open(taken.0).await? {
                return Ok(Some(taken));
            }
        }
    }

    async fn first_free(&self, open: &[i64]) -> Result<Option<(i64, Lease)>, Error> {
        for &invoice in open {
            if let Some(lease) = self.lease_of(invoice).try_acquire().await? {
                return Ok(Some((invoice, lease)));
            }
        }
        Ok(None)
    }

    fn lease_of(&self, invoice: i64) -> leasehold::Acquire {
        self.leases
            .acquire(format!("{}:invoice:{invoice}", self.tenant))
            .ttl(TTL)
    }

    async fn is_open(&self, invoice: i64) -> Result<bool, sqlx::Error> {
        let is_open = "select number is null from invoice where id = $1";
        sqlx::query_scalar(is_open).bind(invoice).fetch_one(&self.pool).await
    }

    /// Everything that makes it final, in one transaction that is void if the lease has passed on.
    async fn finalise(&self, invoice: i64, lease: &Lease) -> Outcome<Finalised> {
        let mut tx = match lease.begin(&self.pool).await {
            Ok(tx) => tx,
            Err(Error::Lost(lost)) => return Ok(Finalised::Refused(lost)),
            Err(error) => return Err(error.into()),
        };
        let number: i64 = sqlx::query_scalar("update numbering set latest = latest + 1 returning latest")
            .fetch_one(&mut *tx)
            .await?;
        sqlx::query("update invoice set number = $1 where id = $2")
            .bind(number)
            .bind(invoice)
            .execute(&mut *tx)
            .await?;
        sqlx::query("insert into posting (invoice, number, fence) values ($1, $2, $3)")
            .bind(invoice)
            .bind(number)
            .bind(lease.fencing_token())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Finalised::WithNumber(number))
    }
}

pub const REFUSED: &str = "refused to finalise invoice ";

/// How long an invoice waits when the worker dies that is at it.
const TTL: Duration = Duration::from_secs(2);

/// How long to wait for one invoice before looking which others are open.
const A_WHILE: Duration = Duration::from_secs(5);
