//! WebTransport over HTTP/3 (draft-ietf-webtrans-http3): streams and datagrams for scripts in web
//! pages, in a session that an extended CONNECT request opens.
//!
//! A server allows sessions with [`Config::webtransport`](crate::Config::webtransport), and a
//! service accepts one with [`accept`]:
//!
//! ```no_run
//! use http::{Request, Response, StatusCode};
//! use squall_h3::{Body, webtransport};
//!
//! fn answer(request: Request<Body>) -> Response<webtransport::SessionBody> {
//!     match webtransport::accept(request) {
//!         Ok((response, session)) => {
//!             tokio::spawn(async move {
//!                 while let Some(datagram) = session.recv_datagram().await {
//!                     let _ = session.send_datagram(&datagram);
//!                 }
//!             });
//!             response
//!         }
//!         Err(_) => {
//!             let mut response = Response::new(webtransport::SessionBody::default());
//!             *response.status_mut() = StatusCode::NOT_FOUND;
//!             response
//!         }
//!     }
//! }
//! ```
//! Clients open a session with [`connect`].

mod session;
mod stream;

pub use session::{Closed, Session, SessionBody, accept, connect};
pub use stream::{RecvStream, SendStream, StreamError};

use http::{Method, Request};

use crate::message::Protocol;

/// The protocol's name in an extended CONNECT request, before draft 15.
pub(crate) const PROTOCOL: &str = "webtransport";

/// The protocol's name since draft 15 (§3.2).
pub(crate) const PROTOCOL_H3: &str = "webtransport-h3";

/// Whether a request asks for a session.
pub(crate) fn is_session<B>(request: &Request<B>) -> bool {
    let is_name = |name: &Protocol| matches!(name.as_str(), PROTOCOL | PROTOCOL_H3);
    *request.method() == Method::CONNECT && request.extensions().get().is_some_and(is_name)
}
