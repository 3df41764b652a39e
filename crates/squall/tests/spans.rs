//! What `tracing` shows of a connection: a span for its life, and events within it.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

mod common;

use std::cell::RefCell;
use std::fmt::{Debug, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Pair, pattern, until, within};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Open spans, and all events, each with the fields of its span.
struct Collector {
    spans: Mutex<Vec<Option<String>>>,
    events: Mutex<Vec<Noted>>,
    closed: AtomicU64,
}

/// An event and its span.
#[derive(Clone, Debug)]
struct Noted {
    span: String,
    message: String,
    fields: String,
}

static COLLECTOR: Collector = Collector {
    spans: Mutex::new(Vec::new()),
    events: Mutex::new(Vec::new()),
    closed: AtomicU64::new(0),
};

thread_local! {
    static INSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.rest, "{name}={value:?} "),
        };
    }
}

impl Subscriber for &'static Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("squall")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        let mut spans = self.spans.lock().unwrap();
        spans.push(Some(format!("{} {}", span.metadata().name(), fields.rest)));
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let inside = INSIDE.with_borrow(|inside| inside.last().copied());
        let span = inside.and_then(|id| self.spans.lock().unwrap()[id as usize - 1].clone());
        self.events.lock().unwrap().push(Noted {
            span: span.unwrap_or_default(),
            message: fields.message,
            fields: fields.rest,
        });
    }

    fn enter(&self, id: &Id) {
        INSIDE.with_borrow_mut(|inside| inside.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        let left = INSIDE.with_borrow_mut(Vec::pop);
        assert_eq!(left, Some(id.into_u64()));
    }

    fn try_close(&self, id: Id) -> bool {
        self.spans.lock().unwrap()[id.into_u64() as usize - 1] = None;
        self.closed.fetch_add(1, Ordering::SeqCst);
        true
    }
}

/// The events of one side, except those that depend on timing.
fn events(side: &str) -> Vec<Noted> {
    let events = COLLECTOR.events.lock().unwrap();
    let of_side = events
        .iter()
        .filter(|event| event.span.contains(&format!("side={side} ")));
    let timed = ["MTU changed", "congestion"];
    of_side
        .filter(|event| !timed.contains(&event.message.as_str()))
        .cloned()
        .collect()
}

fn has(side: &str, message: &str) -> bool {
    events(side).iter().any(|event| event.message == message)
}

#[tokio::test]
async fn a_connection_is_a_span_with_events() {
    tracing::subscriber::set_global_default(&COLLECTOR).unwrap();
    let pair = Pair::new().await;
    let client_address = pair.client.local_addr().unwrap();
    let id = format!("{:?}", pair.near.original_destination_id());
    until(|| pair.near.force_key_update()).await;
    let mut send = pair.near.open_uni().await.unwrap();
    send.write_all(&pattern(10_000, 1)).await.unwrap();
    send.finish().unwrap();
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    within(recv.read_to_end(10_000)).await.unwrap();
    pair.client.rebind(common::ANY).unwrap();
    until(|| has("Client", "path changed") && has("Server", "path changed")).await;
    pair.near.close(3, b"bye");
    until(|| has("Client", "closed") && has("Server", "closed")).await;
    for side in ["Client", "Server"] {
        let found = events(side);
        let messages: Vec<&str> = found.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "handshake completed",
                "handshake confirmed",
                "keys updated",
                "path changed",
                "closed"
            ],
        );
        for part in [
            "version=0x1 ",
            "alpn=\"test\" ",
            "resumed=false ",
            "duration_us=",
        ] {
            assert!(found[0].fields.contains(part), "{found:?}");
        }
        assert!(found[4].fields.contains("code 3"), "{found:?}");
        for event in &found {
            assert!(event.span.starts_with("connection ") && event.span.contains(&id));
        }
    }
    let peer = format!("peer={client_address} ");
    assert!(
        events("Server")[0].span.contains(&peer),
        "{:?}",
        events("Server")[0]
    );
    // The spans close with their connections.
    drop((send, recv, pair.near, pair.far));
    within(async { tokio::join!(pair.client.wait_idle(), pair.server.wait_idle()) }).await;
    until(|| COLLECTOR.closed.load(Ordering::SeqCst) == 2).await;
}
