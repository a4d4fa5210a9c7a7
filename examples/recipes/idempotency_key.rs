//! An effect that cannot be fenced, such as a payment: the token together with an idempotency key.
//!
//! A holder may die after the effect and before it has written it down. The next one must ask again, and
//! must not cause it twice. So the key comes from the *work* (this invoice), never from the grant: it is
//! the same for whoever does it. The fence guards the record of it in our own database.

use leasehold::Lease;
use sqlx::PgPool;

use crate::stage::{Outcome, Stage, expect};

pub async fn run(stage: &Stage) -> Outcome<()> {
    // The provider remembers the keys it has seen, as payment providers do.
    sqlx::raw_sql("create table charge (idempotency_key text primary key, cents bigint not null)")
        .execute(&stage.elsewhere)
        .await?;
    sqlx::raw_sql("create table payment (invoice bigint primary key, paid boolean not null); insert into payment values (842, false)")
        .execute(&stage.pool)
        .await?;
    let (first, next) = stage.overtaken("payment:842").await?;

    // The first holder has charged, and was stopped before it could write that down.
    expect(charge(&stage.elsewhere).await?, "the first charge goes through")?;
    // The next one cannot know, asks again, and writes it down.
    expect(!charge(&stage.elsewhere).await?, "the second is recognised as the same")?;
    write_down(&next, &stage.pool).await?;
    let refused = write_down(&first, &stage.pool).await;

    expect(
        matches!(refused, Err(leasehold::Error::Lost(_))),
        "the stale record is refused",
    )?;
    let charges: i64 = sqlx::query_scalar("select count(*) from charge")
        .fetch_one(&stage.elsewhere)
        .await?;
    expect(charges == 1, "one charge was made")?;
    sqlx::raw_sql("drop table payment").execute(&stage.pool).await?;
    Ok(())
}

/// Charges, unless that was done before under the same key. True when it was not.
async fn charge(provider: &PgPool) -> Result<bool, sqlx::Error> {
    let charged = sqlx::query("insert into charge values ('invoice:842', 9900) on conflict do nothing")
        .execute(provider)
        .await?;
    Ok(charged.rows_affected() == 1)
}

async fn write_down(lease: &Lease, pool: &PgPool) -> Result<(), leasehold::Error> {
    let mut tx = lease.begin(pool).await?;
    let written = sqlx::query("update payment set paid = true where invoice = 842")
        .execute(&mut *tx)
        .await;
    // A database that fails here has not fenced: real code tells these apart as well.
    written.expect("the table is there");
    tx.commit().await.expect("nothing is in the way");
    Ok(())
}
