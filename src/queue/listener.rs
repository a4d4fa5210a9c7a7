//! The listener: the client's one connection for notifications.
//!
//! It tells what it hears and ends with its first error. Whether it hears at all, and when to open
//! another one, is for [`super::task`] to find out.

use std::time::Duration;

use sqlx::Error;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::store;

#[derive(Debug)]
pub(super) enum Heard {
    /// It has begun to listen: what was told before, nobody has heard.
    Listening,
    /// The payload of a notification.
    Told(String),
    Ended(Error),
}

/// A listener at work. Dropped, its connection is closed.
#[derive(Debug)]
pub(super) struct Listener {
    number: u64,
    task: JoinHandle<()>,
}

impl Listener {
    /// Opens a connection and listens to what is told to `client`. What it hears carries `number`.
    pub(super) fn open(
        options: PgConnectOptions,
        client: Uuid,
        number: u64,
        heard: mpsc::UnboundedSender<(u64, Heard)>,
    ) -> Self {
        let task = tokio::spawn(async move {
            let Err(ended) = listen(options, client, |what| drop(heard.send((number, what)))).await;
            let _ = heard.send((number, Heard::Ended(ended)));
        });
        Self { number, task }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(options: PgConnectOptions, client: Uuid, tell: impl Fn(Heard)) -> Result<Never, Error> {
    let opening = async {
        // sqlx's listener lives on a pool. This one is its own, so that it takes nothing from the
        // application's.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        // It would try again at once and for ever.
        listener.eager_reconnect(false);
        let channel = store::channel(sqlx::Acquire::acquire(&mut listener).await?, client).await?;
        listener.listen(&channel).await?;
        Ok::<_, Error>(listener)
    };
    let mut listener = timeout(OPEN_WITHIN, opening).await.map_err(|_| Error::PoolTimedOut)??;
    tell(Heard::Listening);
    loop {
        match listener.try_recv().await? {
            Some(notification) => tell(Heard::Told(notification.payload().to_owned())),
            None => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// It ends with an error alone.
enum Never {}

const OPEN_WITHIN: Duration = Duration::from_secs(5);
