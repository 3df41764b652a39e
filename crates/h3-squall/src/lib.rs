//! HTTP/3 with the [`h3`] crate over [`squall`], a QUIC transport.
//!
//! ```text
//! application    requests, responses, bodies
//! h3             HTTP/3 and QPACK
//! h3-squall      the traits of `h3::quic`        <─ this crate
//! squall         QUIC
//! ```
//!
//! An application that uses h3 and h3-quinn moves here by changing the line in which it wraps its
//! connection:
//!
//! ```
//! # async fn example(connection: squall::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! # use squall::Bytes;
//! // was:  h3::server::Connection::new(h3_quinn::Connection::new(connection)).await?;
//! let mut http: h3::server::Connection<_, Bytes> =
//!     h3::server::Connection::new(h3_squall::Connection::new(connection)).await?;
//! while let Some(request) = http.accept().await? {
//!     let (request, stream) = request.resolve_request().await?;
//!     # drop((request, stream));
//! }
//! # Ok(()) }
//! ```
//!
//! The differences from h3-quinn:
//! - **Dropping an unfinished half resets it**, with H3_REQUEST_CANCELLED. The response of a
//!   handler that panicked or was cancelled never looks complete. A response is complete when
//!   `finish` has returned.
//! - Dropping a receiving half that was not read to its end stops it: on a client with
//!   H3_REQUEST_CANCELLED, on a server with H3_NO_ERROR (RFC 9114 §4.1).
//! - Dropping a waiting `send_data` future of h3 loses nothing: the data that it was given is
//!   written before anything that follows on the stream.
//! - Payload of 2 KiB or more is passed on without a copy if it is contiguous, as
//!   [`Bytes`](bytes::Bytes) is. Received data is handed out as it lies in squall's receive buffer.
//! - The type of the payload must be `Send + 'static`.
//!
//! h3 is at 0.0.x: each of its releases may be incompatible, and this crate follows them. The name
//! squall-h3 belongs to squall's own implementation of HTTP/3.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod connection;
#[cfg(feature = "datagram")]
mod datagram;
mod error;
mod recv;
mod send;

/// The payload's traits and types, in the version that this crate uses.
pub use bytes;
pub use connection::{BidiStream, Connection, OpenStreams};
#[cfg(feature = "datagram")]
pub use datagram::{RecvDatagramHandler, SendDatagramHandler};
pub use recv::RecvStream;
pub use send::SendStream;
