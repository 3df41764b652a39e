//! An asynchronous QUIC transport for the lowest CPU cost per byte.
//!
//! ```text
//! application   Endpoint ── connect / accept ──> Connection ── open / accept ──> SendStream, RecvStream
//!                  │ any thread: one lock a call, wake-ups only where someone sleeps
//! worker        one thread, one socket, one timer wheel: receive all, time out, transmit all, sleep
//!                  │
//! squall-core   the state machines          squall-udp   bundles of datagrams
//! ```
//!
//! An [`Endpoint`] is one UDP port with one or more worker threads, each with a socket of its own; a connection lives on one
//! of them for life. Handles are cheap to clone and may be used from any task of any runtime; a task started with
//! [`Connection::spawn`], as the handlers of [`Endpoint::serve`] are, lives on the connection's own thread and reaches it
//! without waking another one.
//!
//! ```no_run
//! // An echo server, on two worker threads.
//! async fn serve(config: squall::ServerConfig) -> std::io::Result<()> {
//!     let endpoint = squall::Builder::new(([0; 16], 4433).into())
//!         .server(config)
//!         .workers(2)
//!         .bind()?;
//!     endpoint.serve(echo).await;
//!     Ok(())
//! }
//!
//! // Runs on the connection's own worker, as do the tasks that it starts there.
//! async fn echo(connection: squall::Connection) {
//!     while let Ok((send, recv)) = connection.accept_bi().await {
//!         connection.spawn(async move {
//!             // A stream that fails is reset: dropping `send` unfinished never looks like an end.
//!             let _ = echo_stream(send, recv).await;
//!         });
//!     }
//! }
//!
//! async fn echo_stream(
//!     mut send: squall::SendStream,
//!     mut recv: squall::RecvStream,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     // Chunks are passed on without a copy, and sealed where they lie.
//!     while let Some(chunk) = recv.read_chunk(usize::MAX).await? {
//!         send.write_chunk(chunk).await?;
//!     }
//!     send.finish()?;
//!     Ok(())
//! }
//! ```
//!
//! # What dropping means
//! - A dropped [`SendStream`] that was neither finished nor reset is reset: an answer that breaks off, because its handler
//!   panicked, returned early or was cancelled, never looks whole. [`SendStream::set_drop_code`] and
//!   [`TransportConfig::reset_on_drop_code`] set the code, and [`Stats::streams_reset_on_drop`] counts these resets.
//! - A dropped [`RecvStream`] that was not read to its end is stopped with code 0.
//! - When the last [`Connection`] handle and stream of a connection is dropped, it closes with code 0. Closing discards what
//!   is not delivered yet. [`Connection::shutdown`] and [`Endpoint::shutdown`] wait until all that was finished is delivered,
//!   [`SendStream::stopped`] waits for one stream.
//! - When the last [`Endpoint`] handle is dropped, its connections go on; the workers end with the last of them.
//!
//! # For who knows quinn
//! Most names are the same. Codes are plain `u64`s, above 2^62 - 1 taken for that. What differs:
//!
//! | quinn | here |
//! |---|---|
//! | `Endpoint::server(config, addr)` | [`Endpoint::server`]`(addr, config)`, or [`Builder`] for all there is |
//! | `Endpoint::set_default_client_config` | [`Builder::client`], [`Endpoint::connect_with`] |
//! | `Endpoint::open_connections` | `connections` of [`Endpoint::stats`] |
//! | `ConnectionError` | [`CloseReason`] |
//! | `peer_identity` | [`Connection::peer_certificates`] |
//! | `handshake_data` | [`Connection::alpn`], [`Connection::server_name`] |
//! | `export_keying_material` | [`TransportConfig::exporters`] before, [`Connection::exported`] after the handshake |
//! | `min_rtt`, `congestion_state` | [`Connection::stats`] |
//! | `Connecting::into_0rtt()` | the same, to be awaited |
//! | `ZeroRttAccepted` | [`EarlyDataAccepted`] |
//! | `RecvStream::is_0rtt` | [`RecvStream::is_early`] |
//! | `read_chunk(max, ordered)` gives a `Chunk` | [`RecvStream::read_chunk`]`(max)` gives [`Bytes`], in order |
//! | `write_chunks` gives a `Written` | [`SendStream::write_chunks`] gives the bytes; the chunks keep what is not written yet |
//! | dropping a `SendStream` finishes it | dropping resets it: call [`SendStream::finish`] |
//! | `set_priority(i32)` | [`SendStream::set_priority`]`(`[`Priority`]`)`, which also says how equals share |
//! | `set_max_concurrent_…`, `set_receive_window` | [`TransportConfig`], before; windows grow by themselves |
//!
//! # What the environment can ask for
//! - `SSLKEYLOGFILE`: the secrets of connections whose TLS configuration [`server_tls`] or [`client_tls`] made are appended to
//!   this file, for a look at packets.
//! - `QLOGDIR`: a qlog of every connection is written into this folder, unless [`Builder::qlog_dir`] names another.
//!
//! Floors, lowest first: `readiness` (for Windows), `sys`, `config`, `qlog` and `error`, `worker`, `stream`, `connection`, `endpoint`.

mod config;
mod connection;
mod endpoint;
mod error;
mod qlog;
#[cfg(any(not(unix), test))]
mod readiness;
mod stream;
mod sys;
mod worker;

pub use bytes::Bytes;
pub use config::{Builder, client_tls, server_tls};
pub use connection::{Connecting, Connection, EarlyDataAccepted};
pub use endpoint::{Endpoint, Incoming};
pub use error::{ConnectError, ReadError, ReadExactError, ReadToEndError, WriteError};
pub use rustls;
pub use squall_core::{
    AckFrequencyConfig, AckFrequencyRequest, ClientConfig, CloseReason, CongestionAlgorithm,
    DatagramError, EndpointCounts, Exporter, MigrateError, Priority, ServerConfig, Stage, Stages,
    Stats, TransportConfig, Waits,
};
pub use squall_tls::provider;
pub use squall_udp::{
    ErrorCount as SocketError, ErrorCounts as SocketErrors, Limits as SocketLimits,
    Stats as SocketStats,
};
pub use squall_wire::{Direction, Side, StreamId, TransportErrorCode, VERSION_1, VERSION_2};
pub use stream::{RecvStream, SendStream};
#[doc(hidden)]
pub use sys::ticks;
pub use worker::{EndpointStats, WorkerEnd, WorkerEndReason};
