//! A client's end of a connection: its own streams, and its end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use squall::{AcceptBi, Stage};

use crate::control::ControlEvent;
use crate::error::Code;
use crate::receive::{MessageReader, Part};
use crate::shared::Shared;
use crate::streams::{Ended, Streams};
use crate::tunnels::Arrival;

/// Reads the server's control and QPACK streams until the connection ends, and ends it when it is
/// no longer used, or the server wants it to end.
pub(super) struct Driver {
    shared: Arc<Shared>,
    streams: Streams,
    accept: AcceptBi,
    closing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            streams: Streams::new(Arc::clone(&shared)),
            accept: shared.connection.accept_bi(),
            shared,
            closing: None,
        }
    }
}

impl Driver {
    /// Takes streams that the server opens. Only those of WebTransport are allowed (RFC 9114 §6.1).
    fn accept(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        loop {
            let (send, recv) = match Pin::new(&mut self.accept).poll(cx) {
                Poll::Ready(Ok(stream)) => stream,
                Poll::Ready(Err(reason)) => return Err(Ended::Closed(reason)),
                Poll::Pending => return Ok(()),
            };
            self.accept = self.shared.connection.accept_bi();
            if self.shared.config.webtransport == 0 {
                let why = "bidirectional stream of a server";
                return Err(Ended::Failed(Code::H3_STREAM_CREATION_ERROR, why));
            }
            let mut reader = MessageReader::new(recv, Arc::clone(&self.shared));
            self.shared.connection.spawn(async move {
                match std::future::poll_fn(|cx| reader.poll_part(cx)).await {
                    Ok(Part::WebTransport(session, first)) => {
                        let shared = Arc::clone(reader.shared());
                        let arrival = Arrival::Bi(send, reader.recv, first);
                        shared.tunnels.route(session, arrival);
                    }
                    Ok(_) => reader.shared().fail(Code::H3_STREAM_CREATION_ERROR, ""),
                    Err(why) => reader.give_up(&why),
                }
            });
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.mark(Stage::Application);
        let result = self.poll_streams(cx);
        self.shared.mark(Stage::Http);
        result
    }
}

impl Driver {
    fn poll_streams(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let this = self;
        this.shared.set_driver(cx.waker());
        let ended = this.streams.poll(cx, |shared, event| match event {
            ControlEvent::GoAway(id) => {
                shared.set_goaway(id);
                // Once the requests in progress are done, the connection is of no more use, and the
                // server need not wait.
                shared.wake_when_inactive();
            }
            ControlEvent::Settings(_) | ControlEvent::Priority(..) => {}
        });
        match ended.and_then(|()| this.accept(cx)) {
            Ok(()) => this.shared.flush(cx),
            Err(Ended::Closed(_)) => return Poll::Ready(()),
            Err(Ended::Failed(code, why)) => {
                this.shared.fail(code, why);
                return Poll::Ready(());
            }
        }
        if this.closing.is_none() && this.shared.is_abandoned() {
            let connection = this.shared.connection.clone();
            this.closing = Some(Box::pin(async move {
                connection.shutdown(Code::H3_NO_ERROR.0, b"").await;
            }));
        }
        if let Some(closing) = &mut this.closing {
            ready!(closing.as_mut().poll(cx));
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
