//! The sans-I/O QUIC endpoint and connection.
//!
//! ```text
//! 7  endpoint      the connection ids of one socket: which connection a run belongs to
//! 6  connection    state and the two trips: receive (a run in), transmit (a bundle out)
//! 5  path          address, amplification limit, connection ids, size
//! 4  congestion    how much may be in flight
//! 3  recovery      round-trip times, losses, pacing
//! 2  space stream  packet numbers, stream data, and datagrams (`datagram`)
//! 1  everything that the floors above share
//! ```
//!
//! Nothing here reads a clock, a socket or a source of randomness: times, datagrams and seeds are
//! arguments. A file imports only from lower floors; `cargo xtask tidy` checks this.

#![forbid(unsafe_code)]

mod algorithm;
mod config;
mod congestion;
mod connection;
mod datagram;
mod endpoint;
mod error;
mod event;
mod observation;
mod path;
mod prefix;
mod qlog;
mod range_set;
mod range_tree;
mod recovery;
mod reset_directory;
mod sent_frame;
mod space;
mod stages;
mod stream;
mod stream_hash;
mod stream_map;
mod time;
mod token;
mod token_filter;
mod token_store;
mod trace;

// The pair of the integration tests, for unit tests that inspect internals.
#[cfg(test)]
extern crate self as squall_core;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

pub use algorithm::{
    AckedBundle, CongestionAlgorithm, CongestionController, CongestionControllerFactory,
    LostBundle, RttEstimate,
};
#[doc(hidden)]
pub use config::Ablation;
pub use config::{
    AckFrequencyConfig, AckFrequencyRequest, ClientConfig, ConnectionIdGenerator, EndpointConfig,
    QuicLb, ServerConfig, TransportConfig, worker_of,
};
pub use connection::{Closing, Connection, Move, Stats};
pub use endpoint::{
    AcceptError, ConnectionCount, ConnectionHandle, Endpoint, EndpointCounts, Incoming, Refusal,
    RefusalReason, Route, Run, StartError,
};
pub use error::{CloseReason, DatagramError, ExportError, MigrateError, ReadError, WriteError};
pub use event::{EndpointEvent, Event};
pub use observation::{
    Closed, Congestion, CongestionCause, EarlyDataAnswered, HandshakeCompleted, HandshakeConfirmed,
    KeysUpdated, MtuChanged, Observation, PathChanged, VersionChanged,
};
pub use prefix::{Prefix, PrefixConnections, PrefixCounts, PrefixTable};
pub use reset_directory::ResetTokenDirectory;
#[doc(hidden)]
pub use squall_protect::{prefetch, prefetch_memory};
pub use squall_tls::InvalidLength;
pub use stages::{Stage, Stages, Waits};
pub use stream::chunk_pool::ChunkPool;
pub use stream::{Accepted, Message, Priority, ReachedLimit};
pub use stream_map::StreamMap;
pub use time::Time;
pub use token_filter::{SpentTokens, TOKENS_PER_DAY, TokenFilter};
pub use token_store::{MemoryTokenStore, TokenStore};
