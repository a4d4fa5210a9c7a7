//! What the crate tells through `tracing`, told apart by thread: a test and its client run on one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

use leasehold::FencingToken;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Level, Metadata, Subscriber};

/// The events and spans of this crate on one thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard {
    events: Arc<Mutex<Vec<Event>>>,
    spans: Arc<Mutex<BTreeMap<u64, Opened>>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) level: Level,
    pub(crate) message: String,
    pub(crate) fields: BTreeMap<&'static str, String>,
    /// The spans that it was told in, the outermost first.
    pub(crate) within: Vec<&'static str>,
}

/// A span.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    pub(crate) level: Level,
    pub(crate) name: &'static str,
    pub(crate) fields: BTreeMap<&'static str, String>,
}

impl Heard {
    pub(crate) fn listen() -> (Self, Listening) {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            tracing::subscriber::set_global_default(ByThread).expect("nobody else listens");
            // A callsite that another thread has just met may have been told that nobody does.
            tracing::callsite::rebuild_interest_cache();
        });
        let heard = Self::default();
        LISTENING.set(Some(heard.clone()));
        (heard, Listening)
    }

    pub(crate) fn all(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    pub(crate) fn of_lease(&self, name: &str, token: FencingToken) -> Vec<Event> {
        let token = token.to_string();
        let mut events = self.all();
        events.retain(|event| {
            event.fields.get("lease.name").is_some_and(|of| of == name)
                && event.fields.get("lease.fencing_token") == Some(&token)
        });
        events
    }

    pub(crate) fn count(&self, name: &str, token: FencingToken, message: &str) -> usize {
        let told = self.of_lease(name, token);
        told.iter().filter(|event| event.message == message).count()
    }

    /// How many events of the level begin with `message`.
    pub(crate) fn told(&self, level: Level, message: &str) -> usize {
        let events = self.all();
        let told = events.iter().filter(|event| event.level == level);
        told.filter(|event| event.message.starts_with(message)).count()
    }

    /// How many events of a lock begin with `message`, whoever holds it.
    pub(crate) fn told_of(&self, name: &str, message: &str) -> usize {
        let mut events = self.all();
        events.retain(|event| event.fields.get("lease.name").is_some_and(|of| of == name));
        events.iter().filter(|event| event.message.starts_with(message)).count()
    }

    /// The spans of an operation, in the order in which they were opened.
    pub(crate) fn spans(&self, operation: &str) -> Vec<Opened> {
        let spans = self.spans.lock().unwrap();
        spans.values().filter(|span| span.name == operation).cloned().collect()
    }

    /// The spans that this thread is in, the outermost first.
    pub(crate) fn entered(&self) -> Vec<&'static str> {
        let spans = self.spans.lock().unwrap();
        ENTERED.with_borrow(|entered| entered.iter().filter_map(|id| Some(spans.get(id)?.name)).collect())
    }

    pub(crate) fn louder_than_debug(&self) -> Vec<Event> {
        let mut events = self.all();
        events.retain(|event| event.level < Level::DEBUG);
        events
    }
}

/// Ends when dropped.
pub(crate) struct Listening;

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENING.set(None);
    }
}

/// Hands each event to whoever listens on its thread. There is one for the process: of several,
/// tracing may ask the wrong one whether a new callsite is of interest, and remember the answer.
struct ByThread;

impl Subscriber for ByThread {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let mut fields = Fields::default();
        span.record(&mut fields);
        let opened = Opened {
            level: *span.metadata().level(),
            name: span.metadata().name(),
            fields: fields.0,
        };
        LISTENING.with_borrow(|heard| {
            if let Some(heard) = heard {
                heard.spans.lock().unwrap().insert(id, opened);
            }
        });
        span::Id::from_u64(id)
    }

    fn record(&self, id: &span::Id, values: &span::Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        LISTENING.with_borrow(|heard| {
            if let Some(heard) = heard
                && let Some(span) = heard.spans.lock().unwrap().get_mut(&id.into_u64())
            {
                for (field, value) in fields.0 {
                    assert_eq!(span.fields.insert(field, value), None, "{field} is told once");
                }
            }
        });
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        LISTENING.with_borrow(|heard| {
            if let Some(heard) = heard {
                let event = Event {
                    level: *event.metadata().level(),
                    message: fields.0.remove("message").unwrap_or_default(),
                    fields: fields.0,
                    within: heard.entered(),
                };
                heard.events.lock().unwrap().push(event);
            }
        });
    }

    fn enter(&self, id: &span::Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, id: &span::Id) {
        ENTERED.with_borrow_mut(|entered| {
            let latest = entered.iter().rposition(|entered| *entered == id.into_u64());
            entered.remove(latest.expect("only what was entered is left"));
        });
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

thread_local! {
    static LISTENING: RefCell<Option<Heard>> = const { RefCell::new(None) };
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}
