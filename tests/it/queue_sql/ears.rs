//! Listening for the clients of waiters.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgListener;
use tokio::time::timeout;
use uuid::Uuid;

use super::line::Waiter;
use crate::support::{SOON, TestDb};

/// Hears what the clients of some waiters are told.
pub(super) struct Ears {
    listener: PgListener,
    channels: Vec<(String, Uuid)>,
    done: String,
}

impl Ears {
    pub(super) async fn of(db: &TestDb, waiters: &[Waiter]) -> Self {
        let mut listener = PgListener::connect_with(&db.pool).await.expect("a listener connects");
        let done = format!("done_{}", Uuid::new_v4().simple());
        let mut channels = Vec::new();
        for waiter in waiters {
            let sql = "select leasehold.channel($1)";
            let channel: String = sqlx::query_scalar(sql)
                .bind(waiter.client)
                .fetch_one(&db.pool)
                .await
                .expect(sql);
            channels.push((channel, waiter.client));
        }
        let all = channels.iter().map(|(channel, _)| channel).chain([&done]);
        listener.listen_all(all.map(String::as_str)).await.expect("it listens");
        Self {
            listener,
            channels,
            done,
        }
    }

    /// All that was told since the last time, as channels and payloads. Nothing is missing: one
    /// last notification is sent now, and those committed before come before it.
    pub(super) async fn heard_raw(&mut self, session: &mut PgConnection) -> Vec<(String, String)> {
        let sql = "select pg_notify($1, '')";
        sqlx::query(sql).bind(&self.done).execute(session).await.expect(sql);
        let mut heard = Vec::new();
        loop {
            let next = timeout(HEARS_WITHIN, self.listener.recv()).await;
            let told = next.expect("the last one is heard").expect("it listens");
            if told.channel() == self.done {
                return heard;
            }
            heard.push((told.channel().to_owned(), told.payload().to_owned()));
        }
    }

    /// The clients told, and of which tickets.
    pub(super) async fn heard(&mut self, session: &mut PgConnection) -> Vec<(Uuid, i64)> {
        let heard = self.heard_raw(session).await;
        let understood = heard.into_iter().map(|(channel, payload)| {
            let (_, client) = self
                .channels
                .iter()
                .find(|(of, _)| *of == channel)
                .expect("it is of a client that was named");
            (*client, payload.parse().expect("the payload is a ticket"))
        });
        understood.collect()
    }
}

/// How a waiter is told.
pub(super) fn told(waiter: Waiter) -> (Uuid, i64) {
    (waiter.client, waiter.ticket)
}

const HEARS_WITHIN: Duration = SOON;
