//! Clients.
//!
//! [`Client`] sends requests to any number of origins and makes the connections. [`handshake`]
//! begins HTTP/3 on one connection and returns a [`SendRequest`], which sends requests on it. Both
//! are a [`tower_service::Service`].

mod attempt;
mod connect;
#[cfg(feature = "dns")]
mod dns;
mod driver;
mod exchange;
mod origin;
mod pool;

#[cfg(feature = "dns")]
pub use dns::Dns;
pub use pool::{Client, Resolve};

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use squall::Connection;
use tower_service::Service;

use crate::body::Body;
use crate::config::Config;
use crate::error::{Code, Error};
use crate::service::SendBody;
use crate::settings::Settings;
use crate::shared::Shared;

/// Starts HTTP/3 on a client's connection, which must have negotiated the protocol `h3`.
#[must_use]
pub fn handshake(connection: Connection) -> SendRequest {
    handshake_with(connection, Config::new())
}

/// As [`handshake`], with other limits.
///
/// A task on the connection's worker serves the connection's own streams. It closes the connection
/// when the last [`SendRequest`] is dropped and no response is in progress.
///
/// A server that takes longer to answer than the idle timeout (30 s by default) loses the request,
/// unless the connection was made with
/// [`keep_alive_with_streams`](squall::TransportConfig::keep_alive_with_streams) or
/// [`keep_alive`](squall::TransportConfig::keep_alive).
#[must_use]
pub fn handshake_with(connection: Connection, config: Config) -> SendRequest {
    let shared = Arc::new(Shared::new(connection, false, config));
    let driver = driver::Driver::new(Arc::clone(&shared));
    shared.connection.spawn(driver);
    SendRequest(Arc::new(Handle(shared)))
}

/// Sends requests on one connection. Clones share it.
#[derive(Clone)]
pub struct SendRequest(Arc<Handle>);

/// Ends the connection when it is dropped.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.wake_when_inactive();
        self.0.wake_driver();
    }
}

impl SendRequest {
    /// Sends a request and waits for the head of its response. The request's body is sent at the
    /// same time, and continues after that if it takes longer, even if the response is dropped:
    /// until the body ends or fails, the server stops it, or the connection ends.
    ///
    /// The name and password of a URI such as `https://name:password@example.org/` are not sent
    /// (RFC 9114 §4.3.1). The request's version does not matter.
    ///
    /// Waits while the server's limit of concurrent requests is reached. Dropping the future
    /// cancels the request and its upload.
    ///
    /// # Errors
    /// See [`Error`]. If [`Error::is_unprocessed`] is true, the request may be sent again.
    pub fn send<B: SendBody>(&self, request: Request<B>) -> ResponseFuture {
        let handle = self.clone();
        ResponseFuture(Box::pin(async move {
            exchange::send(&handle.0.0, request).await
        }))
    }

    /// Whether the connection takes no more requests: it has ended, or the server is about to end
    /// it (RFC 9114 §5.2).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.connection().close_reason().is_some() || self.0.0.goaway().is_some()
    }

    /// Whether both are clones of one another.
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// The connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.0.0.connection
    }

    /// The server's settings; the initial ones until they have arrived.
    #[must_use]
    pub fn peer_settings(&self) -> Settings {
        *self.0.0.peer_settings()
    }

    /// Closes the connection at once (RFC 9114 §5.3). Responses in progress are lost.
    pub fn close(&self) {
        self.connection().close(Code::H3_NO_ERROR.0, b"");
    }
}

impl fmt::Debug for SendRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendRequest").field(&self.0.0).finish()
    }
}

impl<B: SendBody> Service<Request<B>> for SendRequest {
    type Response = Response<Body>;
    type Error = Error;
    type Future = ResponseFuture;

    /// Always ready: requests that the server's limit holds back wait in their futures.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        self.send(request)
    }
}

/// A pending response, see [`SendRequest::send`]. Dropping it cancels the request and its upload.
#[must_use = "futures do nothing unless they are awaited"]
pub struct ResponseFuture(Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>);

impl Future for ResponseFuture {
    type Output = Result<Response<Body>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
