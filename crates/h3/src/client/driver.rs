//! A client's end of a connection: its own streams, and its end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::control::ControlEvent;
use crate::error::Code;
use crate::shared::Shared;
use crate::streams::{Ended, Streams};

/// Reads the server's control and QPACK streams until the connection ends, and ends it when nobody
/// uses it any more.
pub(super) struct Driver {
    shared: Arc<Shared>,
    streams: Streams,
    closing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            streams: Streams::new(Arc::clone(&shared)),
            shared,
            closing: None,
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.shared.set_driver(cx.waker());
        let ended = this.streams.poll(cx, |shared, event| match event {
            ControlEvent::GoAway(id) => shared.set_goaway(id),
            ControlEvent::Settings(_) | ControlEvent::Priority(..) => {}
        });
        match ended {
            Ok(()) => {}
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
