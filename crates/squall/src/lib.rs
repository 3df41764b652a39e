//! An asynchronous QUIC transport for the lowest CPU cost per byte.
//!
//! ```text
//! application   Endpoint ─ connect / accept ─> Connection ─ open / accept ─> Send-, RecvStream
//!                  │ any thread: one lock per call, wake-ups only if someone sleeps
//! worker        one thread, socket and timer wheel: receive all, time out, transmit all, sleep
//!                  │
//! squall-core   the state machines          squall-udp   bundles of datagrams
//! ```
//!
//! An [`Endpoint`] is one UDP port with one or more worker threads, each with its own socket. A
//! connection stays on one worker for life. Handles are cheap to clone and can be used from any
//! task of any runtime. Tasks started with [`Connection::spawn`], including the handlers of
//! [`Endpoint::serve`], run on the connection's own worker thread and use the connection without
//! waking another thread. With [`Builder::on_runtime`] the workers are tasks of the application's
//! own tokio runtime.
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
//! # What dropping a handle does
//! - Dropping a [`SendStream`] that was neither finished nor reset resets the stream. A response
//!   that is cut short because its handler panicked, returned early or was cancelled therefore
//!   never looks complete. [`SendStream::set_drop_code`] and
//!   [`TransportConfig::reset_on_drop_code`] set the code, and [`Stats::streams_reset_on_drop`]
//!   counts these resets.
//! - Dropping a [`RecvStream`] that was not read to its end stops the stream, with code 0 or that
//!   of [`RecvStream::set_drop_code`].
//! - Dropping the last [`Connection`] handle and the last stream of a connection closes it with
//!   code 0. Closing discards undelivered data. [`Connection::shutdown`] and [`Endpoint::shutdown`]
//!   wait until all finished streams are delivered; [`SendStream::stopped`] waits for one stream.
//! - Dropping the last [`Endpoint`] handle leaves its connections running; the workers end when the
//!   last connection ends.
//!
//! Nothing is sent any more once the process ends. A program that has written its last data calls
//! [`SendStream::finish`] and then awaits [`Connection::shutdown`] or [`Endpoint::shutdown`]: the
//! data is then acknowledged, and the peer is told that the connection is closed. With
//! [`Connection::close`] or a drop alone, a peer may have to wait for its idle timeout.
//!
//! # Coming from quinn
//! Most names are the same. Error codes are plain `u64`s; values above 2^62 − 1 are clamped. The
//! differences from quinn 0.11, type by type (the repository's porting guide shows them in code):
//!
//! | quinn | here |
//! |---|---|
//! | `VarInt`, `IdleTimeout` | `u64`; [`Duration`](std::time::Duration) |
//! | `ConnectionError` | [`CloseReason`] |
//! | `ClosedStream`, `StoppedError`, `ResetError` | [`WriteError`], [`ReadError`] |
//! | `SendDatagramError` | [`DatagramError`] |
//! | `ConnectionStats` | [`Stats`] |
//! | `ZeroRttAccepted` | [`EarlyDataAccepted`] |
//! | `Runtime` | [`Builder::on_runtime`]: tokio, or threads of the endpoint's own |
//! | `AsyncUdpSocket` | [`DatagramSocket`], for carriers other than UDP sockets |
//! | `Endpoint::server(config, addr)` | [`Endpoint::server`]`(addr, config)`, or [`Builder`] |
//! | `Endpoint::new` | [`Builder::socket`], [`Builder::on_runtime`] |
//! | `Endpoint::new_with_abstract_socket` | [`Builder::datagram_socket`] |
//! | `Endpoint::rebind_abstract` | [`Endpoint::rebind_datagram_socket`] |
//! | `Endpoint::set_default_client_config` | [`Builder::client`], [`Endpoint::connect_with`] |
//! | `Endpoint::rebind(socket)` | [`Endpoint::rebind_sockets`]; [`Endpoint::rebind`]`(addr)` |
//! | `Endpoint::open_connections` | `connections` of [`Endpoint::stats`] |
//! | `Connecting::into_0rtt` | the same, but it must be awaited |
//! | `Connecting::handshake_data` | the same, as a [`HandshakeData`] |
//! | `Incoming::accept` returns a `Result` | [`Incoming::accept`] returns a [`Connecting`] |
//! | `Incoming::retry` returns a `Result` | check [`Incoming::may_retry`] first |
//! | `Incoming::orig_dst_cid` | [`Incoming::original_destination_id`] |
//! | `Connection::handshake_data` | [`Connection::alpn`], [`Connection::server_name`] |
//! | `Connection::peer_identity` | [`Connection::peer_certificates`] |
//! | `Connection::min_rtt`, `congestion_state` | [`Connection::stats`] |
//! | `Connection::set_max_concurrent_bi_streams` | `set_max_concurrent_bidi_streams` |
//! | `Connection::set_receive_window` | the same, as the limit to which the window grows |
//! | dropping a `SendStream` finishes it | dropping resets it: call [`SendStream::finish`] |
//! | `SendStream::write_chunks` returns a `Written` | it returns a number of bytes |
//! | `SendStream::priority`, `set_priority` | the same, with a [`Priority`] |
//! | `RecvStream::read_chunk(max, true)` | [`RecvStream::read_chunk`], which returns [`Bytes`] |
//! | `RecvStream::read_chunk(max, false)` | [`RecvStream::read_chunk_unordered`] |
//! | `RecvStream::poll_read_buf` | [`RecvStream::poll_read`], [`RecvStream::poll_read_chunk`] |
//! | `RecvStream::is_0rtt` | [`RecvStream::is_early`] |
//! | `TransportConfig::max_idle_timeout(None)` | zero |
//! | `TransportConfig::keep_alive_interval` | [`TransportConfig::keep_alive`] |
//! | `TransportConfig::initial_mtu` | [`TransportConfig::initial_udp_payload`] |
//! | `TransportConfig::min_mtu` | [`TransportConfig::min_udp_payload`] |
//! | `TransportConfig::mtu_discovery_config` | `mtu_discovery`, `max_udp_payload`, and others |
//! | `TransportConfig::send_fairness` | [`Priority::incremental`], for each stream |
//! | `TransportConfig::ack_frequency_config` | [`TransportConfig::ack_frequency`] |
//! | `TransportConfig::allow_spin` | [`TransportConfig::spin_bit`] |
//! | `TransportConfig::datagram_receive_buffer_size(None)` | `datagram_receive_buffer(0)` |
//! | `TransportConfig::datagram_send_buffer_size` | `datagram_send_buffer` |
//! | `TransportConfig::congestion_controller_factory` | `congestion`, `congestion_controller` |
//! | `TransportConfig::enable_segmentation_offload` | [`Builder::gso`] |
//! | `TransportConfig::qlog_stream` | `Builder::qlog`, for each connection; `Builder::qlog_dir` |
//! | `ServerConfig::new`, `with_crypto` | [`ServerConfig::new`], from a rustls configuration |
//! | `ServerConfig::with_single_cert` | [`tls::server`] or [`server_tls`] |
//! | `ServerConfig::transport_config` | [`ServerConfig::transport`] |
//! | `ServerConfig::migration` | [`TransportConfig::allow_migration`] |
//! | `ServerConfig::preferred_address_v4` | [`TransportConfig::preferred_ipv4`] |
//! | `ServerConfig::preferred_address_v6` | [`TransportConfig::preferred_ipv6`] |
//! | `ServerConfig::max_incoming` | [`Builder::max_incoming`], [`Builder::max_handshakes`] |
//! | `ServerConfig::incoming_buffer_size`, `incoming_buffer_size_total` | in [`Builder`] |
//! | `ServerConfig::token_key` | [`Builder::token_key`] |
//! | `ServerConfig::validation_token_config` | `new_tokens`, [`Builder::new_token_lifetime`] |
//! | `ServerConfig::retry_token_lifetime` | [`Builder::retry_token_lifetime`] |
//! | `ServerConfig::time_source` | none, see below |
//! | `ClientConfig::new` | [`ClientConfig::new`], from a rustls configuration |
//! | `ClientConfig::with_root_certificates` | [`tls::client`] or [`client_tls`] |
//! | `ClientConfig::with_platform_verifier` | `tls::Trust::platform`, with its feature |
//! | `ClientConfig::try_with_platform_verifier` | `tls::Trust::platform`, with its feature |
//! | `ClientConfig::transport_config` | [`ClientConfig::transport`] |
//! | `ClientConfig::version` | [`TransportConfig::versions`] |
//! | `ClientConfig::token_store` | the same, as a [`TokenStore`] |
//! | `ClientConfig::initial_dst_cid_provider` | [`ClientConfig::original_destination_id`] |
//! | `EndpointConfig::new`, `reset_key` | [`Builder::reset_key`] |
//! | `EndpointConfig::cid_generator` | [`Builder::connection_ids`] |
//! | `EndpointConfig::supported_versions` | [`TransportConfig::versions`] |
//! | `EndpointConfig::max_udp_payload_size` | [`TransportConfig::max_received_udp_payload`] |
//! | `EndpointConfig::get_max_udp_payload_size` | `max_received_udp_payload`, a field |
//! | `EndpointConfig::grease_quic_bit`, `rng_seed` | in [`Builder`] |
//! | `EndpointConfig::min_reset_interval` | [`Builder::stateless_resets_per_second`] |
//!
//! There is no `time_source`: the system's clock is read when a worker starts, and from then on the
//! monotonic clock measures the age of tokens, so setting the clock does not change it. Tests can
//! shorten [`Builder::retry_token_lifetime`] and [`Builder::new_token_lifetime`]. Certificates are
//! checked against the clock of rustls' `time_provider`.
//!
//! # Environment variables
//! - `SSLKEYLOGFILE`: the TLS secrets of connections whose TLS configuration was made by
//!   [`server_tls`] or [`client_tls`] are appended to this file, so that captured packets can be
//!   decrypted.
//! - `QLOGDIR`: a qlog of every connection is written to this directory, unless
//!   [`Builder::qlog_dir`] names another.
//!
//! # Features
//! - `aws-lc-rs` (default): [`provider`], [`tls`], [`server_tls`] and [`client_tls`] use aws-lc-rs,
//!   with X25519MLKEM768. Its build needs a C compiler.
//! - `ring`: the same functions use ring if `aws-lc-rs` is off. Its build needs a C compiler too.
//! - `self-signed`: `tls::Identity::self_signed`, a certificate for development. Requires rcgen.
//! - `platform-verifier`: `tls::Trust::platform`, the platform's certificate verifier. Requires
//!   rustls-platform-verifier.
//! - `qlog` (default): `QLOGDIR`, [`Builder::qlog_dir`] and [`Builder::qlog`]. Requires serde_json.
//! - `tracing` (default): warnings of the endpoint and events of connections go to `tracing`.
//! - `metrics`: `metrics::Metrics`, an [`Events`] subscriber that counts with the facade of the
//!   crate `metrics`. The example `prometheus` serves the result.
//! - `futures-io` (default): `AsyncRead` and `AsyncWrite` of futures-io for streams.
//!
//! With neither `aws-lc-rs` nor `ring`, nothing in C is compiled, and rustls configurations are
//! built on a provider of the application's choice, for example that of rustls-graviola. In any
//! build a configuration may be built on any provider; one without support for QUIC is passed to
//! [`wrap`] first.
//!
//! There is no feature `fips`. A validated provider covers the TLS handshake, but packets are
//! sealed and opened by squall's own kernels, which are where the speed comes from and are part of
//! no validated module. A feature of that name would promise more than it delivers.
//!
//! Floors, lowest first: `readiness` (for Windows), `sys`, `datagram_socket`, `socket`, `warnings`,
//! `takeover`, `tls`, `events`, `config`, `qlog` and `error`, `worker`, `stream`, `waiting`,
//! `connection`, `incoming`, `endpoint`, `handover`.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod config;
mod connection;
mod datagram_socket;
mod endpoint;
mod error;
mod events;
#[cfg(target_os = "linux")]
mod handover;
mod incoming;
#[cfg(feature = "metrics")]
pub mod metrics;
mod qlog;
#[cfg(any(not(unix), test))]
mod readiness;
mod serving;
mod socket;
mod stream;
mod sys;
mod takeover;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
pub mod tls;
mod waiting;
mod warnings;
mod worker;

pub use bytes::Bytes;
pub use config::Builder;
pub use connection::{Connecting, Connection, EarlyDataAccepted, HandshakeData, WeakConnection};
pub use datagram_socket::{DatagramSocket, OutgoingDatagrams, ReceivedDatagrams};
pub use endpoint::{Accept, Endpoint};
pub use error::{ConnectError, ReadError, ReadExactError, ReadToEndError, WriteError};
pub use events::{ConnectionClosed, ConnectionInfo, DatagramsUnrouted, Events, WorkerEnded};
pub use incoming::Incoming;
#[cfg(feature = "qlog")]
pub use qlog::{QlogConnection, QlogSink};
pub use rustls;
pub use squall_core::{
    AckFrequencyConfig, AckFrequencyRequest, AckedBundle, ClientConfig, CloseReason, Congestion,
    CongestionAlgorithm, CongestionCause, CongestionController, CongestionControllerFactory,
    ConnectionIdGenerator, DatagramError, EarlyDataAnswered, EndpointCounts, ExportError,
    HandshakeCompleted, HandshakeConfirmed, InvalidLength, KeysUpdated, LostBundle,
    MemoryTokenStore, MigrateError, MtuChanged, PathChanged, Priority, QuicLb, ReachedLimit,
    Refusal, RefusalReason, RttEstimate, ServerConfig, Stage, Stages, Stats, Time, TokenStore,
    TransportConfig, VersionChanged, Waits,
};
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
pub use squall_tls::provider;
pub use squall_tls::wrap;
pub use squall_udp::{
    ErrorCount as SocketError, ErrorCounts as SocketErrors, Limits as SocketLimits,
    Stats as SocketStats,
};
pub use squall_wire::{
    ConnectionId, Direction, Ecn, Side, StreamId, TransportErrorCode, VERSION_1, VERSION_2,
};
pub use stream::{Chunk, RecvStream, SendStream, Stopped};
#[doc(hidden)]
pub use sys::ticks;
#[cfg(target_os = "linux")]
pub use takeover::Takeover;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
pub use tls::{client_tls, server_tls};
pub use waiting::{AcceptBi, AcceptUni, Closed, OpenBi, OpenUni, ReadDatagram, SendDatagram};
pub use worker::{EndpointStats, WorkerEnd, WorkerEndReason};
