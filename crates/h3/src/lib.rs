//! HTTP/3 (RFC 9114) over [`squall`], a QUIC transport for the lowest CPU cost per byte.
//!
//! ```text
//! server   client             requests to services, responses to callers
//! webtransport                sessions of web pages: streams and datagrams
//! receive  send  body         a message on its stream
//! tunnel   datagram           what belongs to a request and travels outside of its stream
//! streams  control            the streams of the connection itself
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
mod lock;
mod message;
mod priority;
// Public for the tests and fuzz targets of this workspace only.
#[doc(hidden)]
pub mod qpack;
mod receive;
mod send;
pub mod server;
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
pub use message::{Early, Fields, Protocol, RequestHead};
pub use settings::Settings;
