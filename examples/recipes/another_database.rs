//! A table in another PostgreSQL: `admit` keeps the highest token there and refuses lower ones.
//!
//! Install the schema in that database too; of its locks nothing is used. The former holder is
//! refused from the current one's first admission on, so admit early: a current holder that has not
//! written yet does not keep the former one out.

use leasehold::{Error, FencingToken};
use sqlx::PgPool;

use crate::stage::{Outcome, Stage, expect};

pub async fn run(stage: &Stage) -> Outcome<()> {
    leasehold::migrate(&stage.elsewhere).await?;
    sqlx::raw_sql("create table document (id bigint primary key, body text); insert into document values (7, 'old')")
        .execute(&stage.elsewhere)
        .await?;
    let (stale, current) = stage.overtaken("document:7").await?;

    write(
        &stage.elsewhere,
        stale.fencing_token(),
        "before the other's first write: accepted",
    )
    .await?;
    write(&stage.elsewhere, current.fencing_token(), "new").await?;
    let refused = write(&stage.elsewhere, stale.fencing_token(), "stale").await;
    write(&stage.elsewhere, current.fencing_token(), "new, twice").await?;

    expect(
        matches!(refused, Err(Error::Stale { .. })),
        "the stale write is refused",
    )?;
    let body: String = sqlx::query_scalar("select body from document where id = 7")
        .fetch_one(&stage.elsewhere)
        .await?;
    expect(body == "new, twice", "the current holder's text stands")
}

async fn write(archive: &PgPool, token: FencingToken, body: &str) -> Result<(), Error> {
    let failed = |source| Error::Admit {
        resource: "document:7".into(),
        fencing_token: token,
        source,
    };
    let mut tx = archive.begin().await.map_err(failed)?;
    token.admit(&mut tx, "document:7").await?;
    sqlx::query("update document set body = $1 where id = 7")
        .bind(body)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
    tx.commit().await.map_err(failed)
}
