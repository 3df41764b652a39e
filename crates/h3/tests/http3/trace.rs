//! What servers report to `tracing`.

use std::cell::RefCell;
use std::fmt::{Debug, Write as _};
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::channel::{Channel, Sender};
use squall_h3::client::handshake_with;
use squall_h3::{Body, Config, server};
use tower_service::Service;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::common::{Site, get, read, within};

thread_local! {
    /// Events of this thread, each as its level and fields.
    static EVENTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Collector;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("squall_h3") || *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        EVENTS.with_borrow_mut(|events| events.push(line.0));
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Fails in the way that the path says.
#[derive(Clone)]
struct Failing;

impl Service<Request<Body>> for Failing {
    type Response = Response<Channel<Bytes, io::Error>>;
    type Error = io::Error;
    type Future = std::future::Ready<Result<Self::Response, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (sender, body): (Sender<Bytes, io::Error>, _) = Channel::new(1);
        let mut response = Response::new(body);
        match request.uri().path() {
            "/service" => return std::future::ready(Err(io::Error::other("no plan"))),
            "/body" => sender.abort(io::Error::other("database gone")),
            _ => {
                let large = "v".repeat(70_000).parse().unwrap();
                response.headers_mut().insert("x-large", large);
            }
        }
        std::future::ready(Ok(response))
    }
}

/// All on this thread, whose subscriber is the test's.
#[tokio::test]
async fn failures_are_reported() {
    let _guard = tracing::subscriber::set_default(Collector);
    let site = Site::new();
    let serving = server::Builder::new().serve(site.endpoint.clone(), Failing);
    tokio::spawn(serving.into_future());
    let client = handshake_with(site.connection().await, Config::new());
    for (path, stream, wanted) in [
        ("/service", 0, ["WARN", "error=no plan"]),
        (
            "/body",
            4,
            ["DEBUG", "error=the body failed: database gone"],
        ),
        ("/large", 8, ["DEBUG", "larger than the peer's limit"]),
    ] {
        let failed = match within(client.send(get(path))).await {
            Ok(response) => read(response.into_body()).await.is_err(),
            Err(_) => true,
        };
        assert!(failed, "{path}");
        let events = EVENTS.take();
        let stream = format!("stream={stream} ");
        let is_wanted = |event: &String| {
            event.contains(&stream) && wanted.iter().all(|part| event.contains(part))
        };
        assert!(
            matches!(&*events, [event] if is_wanted(event)),
            "{events:?}"
        );
    }
}
