//! Servers.
//!
//! [`Builder::serve`] serves every connection of an endpoint with an [`HttpService`], such as an
//! `axum::Router` or the routes of `tonic`; [`Builder::serve_connection`] serves one.

mod date;
mod driver;
mod exchange;
mod hints;
mod peer;
mod raw;
mod reply;
mod trace;

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use squall::{Connection, Endpoint, Incoming};
use tokio::runtime::Handle;
use tokio::sync::watch;

pub use peer::Peer;
pub use raw::RawStream;
pub use reply::Reply;

use crate::config::Config;
use crate::error::Error;
use crate::message::RequestHead;
use crate::service::HttpService;
use crate::shared::{OnSendTimeout, Shared};
use driver::{Driver, Immediate, Place};
use raw::RawStreams;

/// Serves every connection of `endpoint` with `service`, until the endpoint is closed:
/// [`Builder::serve`] with the defaults.
///
/// With [`Config::peer_info`](crate::Config::peer_info), which takes a [`Builder`], each request
/// has a [`Peer`] in its extensions: the client's address and certificate.
///
/// Neither end sends anything while a service works on a request, so a request that takes
/// longer than the idle timeout, which is 30 s by default, ends with its connection. For such
/// services, set `TransportConfig::keep_alive` on the server's configuration, to a half or a third
/// of the idle timeout.
pub fn serve<S>(endpoint: Endpoint, service: S) -> Serve<S> {
    Builder::new().serve(endpoint, service)
}

/// How connections are served.
#[derive(Clone, Default)]
pub struct Builder {
    config: Config,
    on_worker: bool,
    immediate: Option<Immediate>,
    raw: Option<RawStreams>,
    on_send_timeout: Option<OnSendTimeout>,
}

impl Builder {
    /// The defaults: each request is a task on the caller's runtime.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The limits of connections.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Runs the service on the connection's worker. A response that is ready at once costs no task,
    /// and leaves together with those of the other requests that arrived with it. The service
    /// shares the thread with the transport and must not block.
    ///
    /// By default each request is a task on the runtime that the server is started on, where it may
    /// block as much as that runtime allows.
    #[must_use]
    pub fn on_worker(mut self) -> Self {
        self.on_worker = true;
        self
    }

    /// Answers requests from their heads alone, before the service sees them: `answer` returns a
    /// pre-encoded [`Reply`], or `None` for the service. The cheapest way to answer: there is no
    /// `http::Request`. `answer` runs where the connection is driven, and must not block.
    #[must_use]
    pub fn answer_first<F>(mut self, answer: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> Option<Reply> + Send + Sync + 'static,
    {
        self.immediate = Some(Arc::new(answer));
        self
    }

    /// Passes bidirectional streams of clients that begin with `frame_type`, instead of with the
    /// frames of a request, to `take`: extensions of HTTP/3 (RFC 9114 §9) such as hysteria's 0x401
    /// use them next to requests. The rest of such a stream is the application's alone. Choose a
    /// type that HTTP/3 does not define, and beware that any client can open such streams: whether
    /// it may is for the application to decide, for example by what its requests have shown.
    ///
    /// `take` runs where the connection is driven and must not block; it may spawn a task. A
    /// graceful end does not wait for these streams. For datagrams without the format of RFC 9297,
    /// leave [`Config::datagrams`](crate::Config::datagrams) off and use the connection's own.
    #[must_use]
    pub fn raw_streams<F>(mut self, frame_type: u64, take: F) -> Self
    where
        F: Fn(RawStream) + Send + Sync + 'static,
    {
        self.raw = Some(RawStreams {
            kind: frame_type,
            take: Arc::new(take),
        });
        self
    }

    /// Calls `call` for each response that is abandoned because the client accepts no more of it;
    /// see [`Config::send_timeout`]. `call` must not block.
    #[must_use]
    pub fn on_send_timeout(mut self, call: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_send_timeout = Some(Arc::new(call));
        self
    }

    /// Serves every connection of `endpoint` with `service`, until the endpoint is closed. Await
    /// the result, on a tokio runtime. See [`serve`] for services that take more than 30 s.
    pub fn serve<S>(self, endpoint: Endpoint, service: S) -> Serve<S> {
        Serve {
            builder: self,
            endpoint,
            service,
        }
    }

    /// Serves one connection with `service`, until it ends. Requests are read where the result is
    /// polled.
    ///
    /// # Panics
    /// When called outside of a tokio runtime, unless [`on_worker`](Self::on_worker) is set.
    pub fn serve_connection<S: HttpService>(
        self,
        connection: Connection,
        service: S,
    ) -> ServeConnection<S> {
        let place = if self.on_worker {
            Place::Worker
        } else {
            Place::Runtime(Handle::current())
        };
        let mut shared = Shared::new(connection, true, self.config);
        shared.on_send_timeout = self.on_send_timeout;
        let driver = Driver::new(Arc::new(shared), service, self.immediate, self.raw, place);
        ServeConnection(driver)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("config", &self.config)
            .field("on_worker", &self.on_worker)
            .finish_non_exhaustive()
    }
}

/// A connection being served; see [`Builder::serve_connection`]. Dropping it stops reading
/// requests; requests already read are still answered.
#[must_use = "futures do nothing unless they are awaited"]
pub struct ServeConnection<S: HttpService>(Driver<S>);

// Only the service's future is pinned, and it is boxed.
impl<S: HttpService> Unpin for ServeConnection<S> {}

impl<S: HttpService> ServeConnection<S> {
    /// Starts to end the connection gracefully (RFC 9114 §5.2). The client is told to send no more
    /// requests; those that have arrived are answered, and later ones are rejected so that the
    /// client sends them elsewhere. Once all responses are delivered, the client closes the
    /// connection or, after a moment, this end does. Keep polling.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) {
        self.0.shut_down(cx);
    }
}

impl<S: HttpService> Future for ServeConnection<S> {
    /// An error if the connection ended for any reason other than a graceful shutdown, including
    /// that the client closed it.
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

impl<S: HttpService> fmt::Debug for ServeConnection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeConnection").finish_non_exhaustive()
    }
}

/// A server that has not started; see [`Builder::serve`]. Await it.
#[must_use = "servers do nothing unless they are awaited"]
#[derive(Debug)]
pub struct Serve<S> {
    builder: Builder,
    endpoint: Endpoint,
    service: S,
}

impl<S: HttpService + Sync> Serve<S> {
    /// Serves until `signal` is ready, and then ends gracefully: later attempts to connect are
    /// refused, and each connection ends as [`ServeConnection::poll_shutdown`] describes. Ready
    /// when all have ended. The endpoint stays open: close it with [`Endpoint::shutdown`].
    ///
    /// If another process is about to bind the port, call [`Endpoint::set_server_config`] with
    /// `None` before `signal` is ready: attempts are then ignored, and clients repeat them. If
    /// `signal` waits for [`Endpoint::hand_over`], there is no need for that.
    pub async fn with_graceful_shutdown(self, signal: impl Future<Output = ()>) {
        let (stop, stopping) = watch::channel(false);
        let endpoint = self.endpoint.clone();
        let mut signal = pin!(signal);
        let mut accept = Box::pin(self.accept(stopping));
        let signalled = poll_fn(|cx| {
            if signal.as_mut().poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            accept.as_mut().poll(cx).map(|()| false)
        });
        let signalled = signalled.await;
        if signalled {
            // Attempts that have arrived: a process that takes over the port does not know of them.
            poll_fn(|cx| {
                let _ = accept.as_mut().poll(cx);
                Poll::Ready(())
            })
            .await;
            let _ = stop.send(true);
        }
        drop(accept);
        // Connections hold the other ends.
        let mut ended = pin!(stop.closed());
        let mut refused = pin!(refuse_all(&endpoint));
        let mut refuses = signalled;
        poll_fn(|cx| {
            refuses = refuses && refused.as_mut().poll(cx).is_pending();
            ended.as_mut().poll(cx)
        })
        .await;
    }

    async fn accept(&self, stopping: watch::Receiver<bool>) {
        let (builder, service) = (self.builder.clone(), self.service.clone());
        let serve = move |incoming: Incoming| {
            let (builder, service) = (builder.clone(), service.clone());
            let stopping = stopping.clone();
            async move {
                // Before the handshake is complete, so that early data is answered at once.
                let Ok((connection, _)) = incoming.accept().into_0rtt().await else {
                    return;
                };
                drive(builder, connection, service, stopping).await;
            }
        };
        if self.builder.on_worker {
            return self.endpoint.serve_incoming(serve).await;
        }
        while let Some(incoming) = self.endpoint.accept().await {
            tokio::spawn(serve(incoming));
        }
    }
}

/// Refuses attempts to connect, until the endpoint is closed.
async fn refuse_all(endpoint: &Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        incoming.refuse();
    }
}

/// Serves a connection until it ends, or until it has ended gracefully.
async fn drive<S: HttpService>(
    builder: Builder,
    connection: Connection,
    service: S,
    mut stopping: watch::Receiver<bool>,
) {
    let mut serving = builder.serve_connection(connection, service);
    {
        let mut stop = pin!(stopping.wait_for(|stop| *stop));
        let stopped = poll_fn(|cx| {
            if Pin::new(&mut serving).poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            stop.as_mut().poll(cx).map(|_| true)
        });
        if !stopped.await {
            return;
        }
    }
    poll_fn(|cx| {
        serving.poll_shutdown(cx);
        Pin::new(&mut serving).poll(cx)
    })
    .await
    .ok();
}

impl<S: HttpService + Sync> IntoFuture for Serve<S> {
    type Output = ();
    type IntoFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (_stop, stopping) = watch::channel(false);
            self.accept(stopping).await;
        })
    }
}
