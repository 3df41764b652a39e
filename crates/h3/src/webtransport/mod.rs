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

/// The protocol's name in an extended CONNECT request.
pub(crate) const PROTOCOL: &str = "webtransport";
