//! HTTP/3 (RFC 9114) over [`squall`], a QUIC transport for the lowest CPU cost per byte.
//!
//! # Servers
//! [`server::serve`] serves every connection of an endpoint with an [`HttpService`]: any
//! [`tower_service::Service`] that takes an [`http::Request`], such as an `axum::Router` or the
//! routes of `tonic`.
//!
//! ```no_run
//! # async fn example<S: squall_h3::HttpService + Sync>(
//! #     router: S,
//! #     config: squall::ServerConfig,
//! # ) -> std::io::Result<()> {
//! // The configuration's TLS offers the protocol `h3`.
//! let endpoint = squall::Endpoint::server(([0; 16], 4433).into(), config)?;
//! squall_h3::server::serve(endpoint, router).await;
//! # Ok(())
//! # }
//! ```
//! By default each request is a task on the caller's runtime, where it may block as much as that
//! runtime allows. With [`server::Builder::on_worker`] the service runs on the connection's worker
//! thread, where a response that is ready at once costs no task and leaves in one bundle with
//! others; it must not block there. The cheapest way is [`server::Builder::answer_first`], which
//! answers from a request's head alone with a pre-encoded [`server::Reply`].
//!
//! With [`Config::peer_info`], each request has a [`server::Peer`] in its extensions: the client's
//! address and certificate.
//!
//! A response whose handler fails, panics or is cancelled is reset, so that it never looks
//! complete; the feature `tracing`, on by default, reports the error to `tracing`.
//! [`server::Serve::with_graceful_shutdown`] finishes the requests that have arrived.
//! [`Config::body_timeout`] and [`Config::send_timeout`] bound how long a client may stall.
//!
//! # Clients
//! [`client::Client`] connects to the origins of requests and keeps the connections, with "Happy
//! Eyeballs", `Alt-Svc`, early data for safe methods, and retries where they are safe. With the
//! feature `dns`, `client::Dns` finds servers by DNS HTTPS records. [`client::handshake`] turns one
//! connection into a [`client::SendRequest`]. Both are also a [`tower_service::Service`], on which
//! `tonic`'s clients work unchanged.
//!
//! Dropping the future of a response cancels the request and its upload. Dropping a response's body
//! tells the server to stop sending it; an upload that is still in progress continues until its
//! body ends, the server stops it, or the connection ends. To end it, end the request's body with
//! an error.
//!
//! The version of a request or response that is sent does not matter, and messages that arrive have
//! [`http::Version::HTTP_3`].
//!
//! # Bodies
//! A received [`Body`] hands out data as it arrived, without a copy; the peer may send more only as
//! the data is taken. Any [`http_body::Body`] can be sent. Data of more than 4 KiB is encrypted
//! from where it lies; a body of known length is one DATA frame.
//!
//! # Beyond requests
//! [`Protocol`] is the extension for extended CONNECT (RFC 9220), and [`Body::datagrams`] gives
//! HTTP datagrams (RFC 9297). [`webtransport`] offers sessions to web pages. [`Informational`] and
//! [`OnInformational`] handle responses before the final one, such as 103 Early Hints. [`Config`]
//! holds the limits.
//!
//! # Modules
//! ```text
//! server   client             requests to services, responses to callers
//! webtransport                sessions of web pages: streams and datagrams
//! receive  send  body         a message on its stream
//! informational               responses before the final one
//! patience                    how long a client may read nothing of a response
//! tunnel   datagram   half    what belongs to a request and travels outside of its stream
//! streams  control            the streams of the connection itself
//! qlog                        what is logged of a connection
//! shared                      what the driver, requests and bodies of a connection share
//! service                     what servers and clients ask of services and bodies
//! message                     field sections <-> http::Request, http::Response
//! qpack    frame   settings   the bytes of HTTP/3: no I/O
//! ```

mod body;
pub mod client;
mod config;
mod control;
mod datagram;
mod error;
mod frame;
mod half;
mod informational;
mod lock;
mod message;
mod patience;
mod priority;
mod qlog;
// Public for the tests and fuzz targets of this workspace only.
#[doc(hidden)]
pub mod qpack;
mod receive;
mod send;
pub mod server;
mod service;
mod settings;
mod shared;
mod streams;
mod tunnel;
mod tunnels;
pub mod webtransport;

pub use body::Body;
pub use config::Config;
pub use datagram::Datagrams;
pub use error::{Code, Error};
pub use informational::{Informational, OnInformational};
pub use message::{Early, Fields, Protocol, RequestHead};
pub use service::{HttpService, SendBody};
pub use settings::Settings;
