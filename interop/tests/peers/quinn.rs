//! quinn, in this process, on a socket of its own.
//!
//! Once connected, both sides can do the same; so every test gets a pair of connections and does not see which of
//! them began, and runs twice.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::VarInt;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::NamedGroup;
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::quic::Suite;
use squall::{CloseReason, TransportConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::payload::{Check, Payload, transfer_size};
use crate::relay::Relay;
use crate::setup::{ALPN, ANY, Identity, NAME, run, squall_client, squall_server};

/// Which side of the connection squall is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SquallIs {
    Client,
    Server,
}

const BOTH: [SquallIs; 2] = [SquallIs::Client, SquallIs::Server];

/// A connection, seen from both its ends; the endpoints stay as long as it does.
struct Pair {
    squall: squall::Connection,
    quinn: quinn::Connection,
    endpoints: (squall::Endpoint, quinn::Endpoint),
}

/// What quinn's TLS offers and accepts.
fn quinn_tls() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// The suite of Initial packets, whatever the handshake chooses (RFC 9001 §5).
fn initial_suite() -> Suite {
    TLS13_AES_128_GCM_SHA256
        .tls13()
        .and_then(rustls::Tls13CipherSuite::quic_suite)
        .expect("a suite for QUIC")
}

fn quinn_server(identity: &Identity, tls: CryptoProvider) -> quinn::Endpoint {
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(tls))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(
            vec![identity.certificate.clone()],
            identity.key.clone_key().into(),
        )
        .expect("the certificate");
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto =
        QuicServerConfig::with_initial(Arc::new(tls), initial_suite()).expect("quinn's server TLS");
    quinn::Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(crypto)), ANY)
        .expect("quinn's server")
}

fn quinn_client(roots: Arc<rustls::RootCertStore>, tls: CryptoProvider) -> quinn::Endpoint {
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(tls))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto =
        QuicClientConfig::with_initial(Arc::new(tls), initial_suite()).expect("quinn's client TLS");
    let mut endpoint = quinn::Endpoint::client(ANY).expect("quinn's client");
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
    endpoint
}

impl Pair {
    async fn new(role: SquallIs) -> Self {
        Self::with(role, TransportConfig::default(), quinn_tls()).await
    }

    async fn with(role: SquallIs, transport: TransportConfig, tls: CryptoProvider) -> Self {
        let identity = Identity::new();
        match role {
            SquallIs::Client => {
                let server = quinn_server(&identity, tls);
                let to = server.local_addr().expect("an address");
                Self::of_squall_client(squall_client(&identity, transport), server, to).await
            }
            SquallIs::Server => {
                let server = squall_server(&identity, transport);
                let to = server.local_addr().expect("an address");
                Self::of_squall_server(server, quinn_client(identity.roots(), tls), to).await
            }
        }
    }

    /// squall connects to the address `to`, which leads to quinn.
    async fn of_squall_client(
        client: squall::Endpoint,
        server: quinn::Endpoint,
        to: SocketAddr,
    ) -> Self {
        let connecting = client.connect(to, NAME).expect("a start");
        let (squall, quinn) = tokio::join!(connecting, async {
            server.accept().await.expect("an attempt").await
        });
        Self {
            squall: squall.expect("squall's handshake"),
            quinn: quinn.expect("quinn's handshake"),
            endpoints: (client, server),
        }
    }

    /// quinn connects to the address `to`, which leads to squall.
    async fn of_squall_server(
        server: squall::Endpoint,
        client: quinn::Endpoint,
        to: SocketAddr,
    ) -> Self {
        let connecting = client.connect(to, NAME).expect("a start");
        let (quinn, squall) = tokio::join!(connecting, async {
            server.accept().await.expect("an attempt").await
        });
        Self {
            squall: squall.expect("squall's handshake"),
            quinn: quinn.expect("quinn's handshake"),
            endpoints: (server, client),
        }
    }
}

/// Sends a payload as one stream: its seed and length, its bytes, the end.
async fn send(mut to: impl AsyncWrite + Unpin, payload: Payload) {
    to.write_u64(payload.seed)
        .await
        .expect("the seed is written");
    to.write_u64(payload.len)
        .await
        .expect("the length is written");
    let mut buffer = vec![0; 10_000];
    let mut offset = 0;
    while offset < payload.len {
        let count = payload.fill(offset, &mut buffer);
        to.write_all(&buffer[..count])
            .await
            .expect("the bytes are written");
        offset += count as u64;
    }
    to.shutdown().await.expect("the stream is finished");
}

/// Reads the seed and the length of a stream that [`send`] wrote.
async fn receive_header(from: &mut (impl AsyncRead + Unpin)) -> Payload {
    let seed = from.read_u64().await.expect("the seed");
    let len = from.read_u64().await.expect("the length");
    Payload { seed, len }
}

/// Reads the rest of such a stream and checks it.
async fn receive(mut from: impl AsyncRead + Unpin, payload: Payload) {
    let mut check = Check::new(payload);
    let mut buffer = vec![0; 10_000];
    loop {
        match from.read(&mut buffer).await.expect("the bytes are read") {
            0 => break,
            count => check.take(&buffer[..count]),
        }
    }
    check.end();
}

/// What comes back for a payload: as many bytes, all others.
fn answer_to(payload: Payload) -> Payload {
    Payload {
        seed: !payload.seed,
        ..payload
    }
}

/// The end that opened a stream: sends, and expects the answer at the same time.
async fn ask(to: impl AsyncWrite + Unpin, mut from: impl AsyncRead + Unpin, payload: Payload) {
    let answered = async {
        let answer = receive_header(&mut from).await;
        assert_eq!(
            answer,
            answer_to(payload),
            "the answer belongs to another stream"
        );
        receive(from, answer).await;
    };
    tokio::join!(send(to, payload), answered);
}

/// The end that accepted a stream.
async fn answer(to: impl AsyncWrite + Unpin, mut from: impl AsyncRead + Unpin) {
    let payload = receive_header(&mut from).await;
    tokio::join!(send(to, answer_to(payload)), receive(from, payload));
}

/// As [`answer`], but not before all has arrived: who has the answer knows that.
async fn answer_late(to: impl AsyncWrite + Unpin, mut from: impl AsyncRead + Unpin) {
    let payload = receive_header(&mut from).await;
    receive(from, payload).await;
    send(to, answer_to(payload)).await;
}

/// squall sends a payload by whole chunks, and waits until all of it is acknowledged.
async fn squall_send_chunks(mut to: squall::SendStream, payload: Payload) {
    let mut offset = 0;
    while offset < payload.len {
        let mut chunk = vec![0; 1 << 16];
        let count = payload.fill(offset, &mut chunk);
        chunk.truncate(count);
        to.write_chunk(chunk.into()).await.expect("squall writes");
        offset += count as u64;
    }
    to.finish().expect("squall finishes");
    assert_eq!(
        to.stopped().await,
        Ok(None),
        "squall's stream was not delivered"
    );
}

async fn squall_receive_chunks(mut from: squall::RecvStream, payload: Payload) -> String {
    let mut check = Check::new(payload);
    while let Some(chunk) = from.read_chunk(usize::MAX).await.expect("squall reads") {
        check.take(&chunk);
    }
    check.end()
}

async fn quinn_send_chunks(mut to: quinn::SendStream, payload: Payload) {
    let mut offset = 0;
    while offset < payload.len {
        let mut chunk = vec![0; 1 << 16];
        let count = payload.fill(offset, &mut chunk);
        chunk.truncate(count);
        to.write_chunk(Bytes::from(chunk))
            .await
            .expect("quinn writes");
        offset += count as u64;
    }
    to.finish().expect("quinn finishes");
    assert_eq!(
        to.stopped().await.expect("the end is known"),
        None,
        "quinn's stream was not delivered"
    );
}

async fn quinn_receive_chunks(mut from: quinn::RecvStream, payload: Payload) -> String {
    let mut check = Check::new(payload);
    while let Some(chunk) = from
        .read_chunk(usize::MAX, true)
        .await
        .expect("quinn reads")
    {
        check.take(&chunk.bytes);
    }
    check.end()
}

/// Both ways at once on one stream of squall's.
async fn transfer(pair: &Pair, bytes: u64) {
    let out = Payload {
        seed: 1,
        len: bytes,
    };
    let back = Payload {
        seed: 2,
        len: bytes,
    };
    let began = Instant::now();
    let (mut to, from) = pair.squall.open_bi().await.expect("squall opens");
    // The peer learns of a stream by its first byte.
    to.write_all(b"!").await.expect("squall writes");
    let (quinn_to, mut quinn_from) = pair.quinn.accept_bi().await.expect("quinn accepts");
    quinn_from.read_exact(&mut [0]).await.expect("quinn reads");
    let ((), (), at_squall, at_quinn) = tokio::join!(
        spawned(squall_send_chunks(to, out)),
        spawned(quinn_send_chunks(quinn_to, back)),
        spawned(squall_receive_chunks(from, back)),
        spawned(quinn_receive_chunks(quinn_from, out)),
    );
    assert_eq!((at_quinn, at_squall), (out.digest(), back.digest()));
    let stats = pair.squall.stats();
    println!(
        "{bytes} bytes each way in {:.2} s, squall {:?}: to quinn {}, from quinn {}; {} packets lost of {}, {} dropped",
        began.elapsed().as_secs_f64(),
        pair.squall.side(),
        out.digest(),
        back.digest(),
        stats.packets_lost,
        stats.packets_sent,
        stats.packets_dropped,
    );
}

/// A part of a test that gets a task of its own, so that a second core has something to do.
async fn spawned<T: Send + 'static>(part: impl Future<Output = T> + Send + 'static) -> T {
    tokio::spawn(part).await.expect("a part of the test")
}

#[test]
fn a_long_stream_both_ways() {
    for role in BOTH {
        let bytes = transfer_size();
        run(bytes, async {
            let pair = Pair::new(role).await;
            transfer(&pair, bytes).await;
            // squall's close is what quinn sees.
            pair.squall.close(77, b"that was all");
            match pair.quinn.closed().await {
                quinn::ConnectionError::ApplicationClosed(close) => {
                    assert_eq!(
                        (close.error_code, &close.reason[..]),
                        (VarInt::from_u32(77), &b"that was all"[..])
                    );
                }
                other => panic!("quinn saw {other}"),
            }
        });
    }
}

#[test]
fn quinns_close_is_seen() {
    for role in BOTH {
        run(0, async {
            let pair = Pair::new(role).await;
            // The largest code that QUIC has.
            pair.quinn.close(VarInt::MAX, b"enough");
            let wanted = CloseReason::Application {
                code: VarInt::MAX.into_inner(),
                reason: Bytes::from_static(b"enough"),
                remote: true,
            };
            assert_eq!(pair.squall.closed().await, wanted);
        });
    }
}

/// More streams than are allowed at a time, in both directions, from both ends: every stream has to be given back.
#[test]
fn many_streams() {
    const STREAMS: u64 = 250;
    for role in BOTH {
        run(0, async {
            let Pair {
                squall,
                quinn,
                endpoints: _endpoints,
            } = Pair::new(role).await;
            let mut tasks = JoinSet::new();
            for number in 0..STREAMS {
                // Empty streams, streams of one packet, streams of several.
                let payload = Payload {
                    seed: number,
                    len: number % 50 * 311,
                };
                let (one, other) = (squall.clone(), quinn.clone());
                tasks.spawn(async move {
                    let (to, from) = one.open_bi().await.expect("squall opens");
                    ask(to, from, payload).await;
                    send(one.open_uni().await.expect("squall opens"), payload).await;
                });
                tasks.spawn(async move {
                    let (to, from) = other.open_bi().await.expect("quinn opens");
                    ask(to, from, payload).await;
                    send(other.open_uni().await.expect("quinn opens"), payload).await;
                });
                let (one, other) = (squall.clone(), quinn.clone());
                tasks.spawn(async move {
                    let (to, from) = one.accept_bi().await.expect("squall accepts");
                    answer(to, from).await;
                    let mut from = one.accept_uni().await.expect("squall accepts");
                    let payload = receive_header(&mut from).await;
                    receive(from, payload).await;
                });
                tasks.spawn(async move {
                    let (to, from) = other.accept_bi().await.expect("quinn accepts");
                    answer(to, from).await;
                    let mut from = other.accept_uni().await.expect("quinn accepts");
                    let payload = receive_header(&mut from).await;
                    receive(from, payload).await;
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.expect("a stream's end");
            }
        });
    }
}

#[test]
fn a_reset_is_seen() {
    for role in BOTH {
        run(0, async {
            let Pair {
                squall,
                quinn,
                endpoints: _endpoints,
            } = Pair::new(role).await;
            let mut to = squall.open_uni().await.expect("squall opens");
            to.write_all(&[1; 1000]).await.expect("squall writes");
            let mut from = quinn.accept_uni().await.expect("quinn accepts");
            from.read_exact(&mut [0; 1000]).await.expect("quinn reads");
            to.reset(7).expect("squall resets");
            let seen = from.read(&mut [0; 10]).await;
            assert_eq!(seen, Err(quinn::ReadError::Reset(VarInt::from_u32(7))));

            let mut to = quinn.open_uni().await.expect("quinn opens");
            to.write_all(&[1; 1000]).await.expect("quinn writes");
            let mut from = squall.accept_uni().await.expect("squall accepts");
            from.read_exact(&mut [0; 1000]).await.expect("squall reads");
            to.reset(VarInt::from_u32(8)).expect("quinn resets");
            assert_eq!(
                from.read(&mut [0; 10]).await,
                Err(squall::ReadError::Reset(8))
            );
        });
    }
}

/// A reader that wants no more stops a writer who is in the middle; the other half of the stream goes on.
#[test]
fn a_stop_is_seen() {
    for role in BOTH {
        run(0, async {
            let Pair {
                squall,
                quinn,
                endpoints: _endpoints,
            } = Pair::new(role).await;
            let payload = Payload {
                seed: 3,
                len: 20_000,
            };

            let (mut to, from) = squall.open_bi().await.expect("squall opens");
            to.write_all(&[1; 1000]).await.expect("squall writes");
            let (quinn_to, mut quinn_from) = quinn.accept_bi().await.expect("quinn accepts");
            quinn_from.stop(VarInt::from_u32(9)).expect("quinn stops");
            assert_eq!(to.stopped().await, Ok(Some(9)));
            assert_eq!(
                to.write_all(&[1; 1000]).await,
                Err(squall::WriteError::Stopped(9))
            );
            tokio::join!(
                quinn_send_chunks(quinn_to, payload),
                squall_receive_chunks(from, payload)
            );

            let (mut to, from) = quinn.open_bi().await.expect("quinn opens");
            to.write_all(&[1; 1000]).await.expect("quinn writes");
            let (squall_to, mut squall_from) = squall.accept_bi().await.expect("squall accepts");
            squall_from.stop(10).expect("squall stops");
            assert_eq!(to.stopped().await, Ok(Some(VarInt::from_u32(10))));
            let refused = to.write_all(&[1; 1000]).await;
            assert_eq!(
                refused,
                Err(quinn::WriteError::Stopped(VarInt::from_u32(10)))
            );
            tokio::join!(
                squall_send_chunks(squall_to, payload),
                quinn_receive_chunks(from, payload)
            );
        });
    }
}

/// A writer that is blocked by flow control while nobody reads goes on when somebody does.
#[test]
fn flow_control_holds_and_lets_go() {
    for role in BOTH {
        let bytes = 3_000_000;
        run(bytes, async {
            let small = TransportConfig {
                initial_stream_window: 10_000,
                initial_window: 15_000,
                stream_receive_window: 20_000,
                receive_window: 30_000,
                ..TransportConfig::default()
            };
            let Pair {
                squall,
                quinn,
                endpoints: _endpoints,
            } = Pair::with(role, small, quinn_tls()).await;
            let payload = Payload {
                seed: 4,
                len: bytes,
            };
            let mut to = quinn.open_uni().await.expect("quinn opens");
            to.write_all(b"!").await.expect("quinn writes");
            let sending = tokio::spawn(quinn_send_chunks(to, payload));
            let mut from = squall.accept_uni().await.expect("squall accepts");
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(!sending.is_finished());
            let sent = squall.stats().bytes_received;
            assert!(
                sent < 40_000,
                "{sent} bytes came although a stream may bring 10,000"
            );
            from.read_exact(&mut [0]).await.expect("squall reads");
            squall_receive_chunks(from, payload).await;
            sending.await.expect("quinn's stream");
        });
    }
}

/// A key exchange that resists quantum computers, and those that do not, as the peer has it (RFC 9001 §4: any of TLS's).
#[test]
fn key_exchange_is_what_the_peer_has() {
    use aws_lc_rs::kx_group::{SECP256R1, X25519, X25519MLKEM768};
    let offers: [(&[&'static dyn rustls::crypto::SupportedKxGroup], NamedGroup); 4] = [
        (&[X25519MLKEM768, X25519], NamedGroup::X25519MLKEM768),
        (&[X25519MLKEM768], NamedGroup::X25519MLKEM768),
        (&[X25519], NamedGroup::X25519),
        // No key share of squall's client fits: a HelloRetryRequest, and a second ClientHello.
        (&[SECP256R1], NamedGroup::secp256r1),
    ];
    for role in BOTH {
        for (groups, wanted) in offers {
            run(0, async {
                let tls = CryptoProvider {
                    kx_groups: groups.to_vec(),
                    ..quinn_tls()
                };
                let pair = Pair::with(role, TransportConfig::default(), tls).await;
                assert_eq!(pair.squall.key_exchange_group(), Some(wanted), "{role:?}");
                transfer(&pair, 100_000).await;
            });
        }
    }
}

#[test]
fn every_cipher_suite() {
    for role in BOTH {
        for suite in [
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
        ] {
            run(0, async {
                let tls = CryptoProvider {
                    cipher_suites: vec![suite],
                    ..quinn_tls()
                };
                let pair = Pair::with(role, TransportConfig::default(), tls).await;
                transfer(&pair, 300_000).await;
            });
        }
    }
}

/// Keys are updated by one end and the other follows, while data flows (RFC 9001 §6).
#[test]
fn key_updates() {
    const UPDATES: u64 = 4;
    for role in BOTH {
        for by_squall in [true, false] {
            run(0, async {
                let transport = if by_squall {
                    TransportConfig {
                        key_update_after: 200,
                        ..TransportConfig::default()
                    }
                } else {
                    TransportConfig::default()
                };
                let pair = Pair::with(role, transport, quinn_tls()).await;
                for _ in 0..UPDATES {
                    if !by_squall {
                        pair.quinn.force_key_update();
                    }
                    transfer(&pair, 1_000_000).await;
                    // The next update may come when the keys before the last one are forgotten, after three probe
                    // timeouts (RFC 9001 §6.5): each has 25 ms for delayed acknowledgements.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                let updates = pair.squall.stats().key_updates;
                assert!(
                    updates >= UPDATES,
                    "{role:?}, by squall: {by_squall}: only {updates} key updates"
                );
            });
        }
    }
}

/// Five of a hundred datagrams lost, others late or twice, from the first of the handshake on.
#[test]
fn a_bad_network() {
    for role in BOTH {
        for seed in 0..5 {
            run(0, async {
                let identity = Identity::new();
                let transport = TransportConfig::default();
                // The relay ends with the runtime.
                let (pair, relay) = match role {
                    SquallIs::Client => {
                        let server = quinn_server(&identity, quinn_tls());
                        let relay =
                            Relay::start(server.local_addr().expect("an address"), seed).await;
                        let client = squall_client(&identity, transport);
                        (
                            Pair::of_squall_client(client, server, relay.address).await,
                            relay,
                        )
                    }
                    SquallIs::Server => {
                        let server = squall_server(&identity, transport);
                        let relay =
                            Relay::start(server.local_addr().expect("an address"), seed).await;
                        let client = quinn_client(identity.roots(), quinn_tls());
                        (
                            Pair::of_squall_server(server, client, relay.address).await,
                            relay,
                        )
                    }
                };
                transfer(&pair, 500_000).await;
                assert!(relay.lost() > 0 && pair.squall.stats().packets_lost > 0);
            });
        }
    }
}

/// One endpoint of each, many connections at the same time; quinn's later ones resume the TLS session of the first.
#[test]
fn many_connections() {
    const CONNECTIONS: u64 = 50;
    for role in BOTH {
        run(0, async {
            let Pair {
                squall,
                quinn,
                endpoints: (squall_end, quinn_end),
            } = Pair::new(role).await;
            let mut tasks = JoinSet::new();
            for seed in 0..CONNECTIONS {
                let (squall_end, quinn_end) = (squall_end.clone(), quinn_end.clone());
                let payload = Payload { seed, len: 20_000 };
                match role {
                    SquallIs::Client => {
                        tasks.spawn(async move {
                            let to = quinn_end.local_addr().expect("an address");
                            let connecting = squall_end.connect(to, NAME).expect("a start");
                            let connection = connecting.await.expect("squall's handshake");
                            let (to, from) = connection.open_bi().await.expect("squall opens");
                            ask(to, from, payload).await;
                        });
                    }
                    SquallIs::Server => {
                        tasks.spawn(async move {
                            let to = squall_end.local_addr().expect("an address");
                            let connecting = quinn_end.connect(to, NAME).expect("a start");
                            let connection = connecting.await.expect("quinn's handshake");
                            let (to, from) = connection.open_bi().await.expect("quinn opens");
                            ask(to, from, payload).await;
                        });
                    }
                }
            }
            for _ in 0..CONNECTIONS {
                // The asking end closes when it has its answer.
                match role {
                    SquallIs::Client => {
                        let incoming = quinn_end.accept().await.expect("an attempt");
                        tasks.spawn(async move {
                            let connection = incoming.await.expect("quinn's handshake");
                            let (to, from) = connection.accept_bi().await.expect("quinn accepts");
                            answer_late(to, from).await;
                            connection.closed().await;
                        });
                    }
                    SquallIs::Server => {
                        let incoming = squall_end.accept().await.expect("an attempt");
                        tasks.spawn(async move {
                            let connection = incoming.await.expect("squall's handshake");
                            let (to, from) = connection.accept_bi().await.expect("squall accepts");
                            answer_late(to, from).await;
                            connection.closed().await;
                        });
                    }
                }
            }
            while let Some(task) = tasks.join_next().await {
                task.expect("a connection's end");
            }
            // The first connection is none the worse.
            assert_eq!((squall.close_reason(), quinn.close_reason()), (None, None));
        });
    }
}

/// Silence ends a connection at both ends, after the shorter of the two timeouts (RFC 9000 §10.1).
#[test]
fn silence_ends_a_connection() {
    for role in BOTH {
        run(0, async {
            let idle = Duration::from_millis(500);
            let short = TransportConfig {
                max_idle_timeout: idle,
                ..TransportConfig::default()
            };
            let Pair {
                squall,
                quinn,
                endpoints: _endpoints,
            } = Pair::with(role, short, quinn_tls()).await;
            let began = Instant::now();
            let (at_squall, at_quinn) = tokio::join!(squall.closed(), quinn.closed());
            assert_eq!(
                (at_squall, at_quinn),
                (CloseReason::IdleTimeout, quinn::ConnectionError::TimedOut)
            );
            let took = began.elapsed();
            assert!((idle / 2..idle * 8).contains(&took), "{took:?}");
        });
    }
}

/// A client that does not trust the certificate: both ends hear the same alert (RFC 9001 §4.8).
#[test]
fn a_foreign_certificate_is_refused() {
    let (one, other) = (Identity::new(), Identity::new());
    run(0, async {
        let server = quinn_server(&one, quinn_tls());
        let client = squall_client(&other, TransportConfig::default());
        let connecting = client
            .connect(server.local_addr().expect("an address"), NAME)
            .expect("a start");
        let (squall, quinn) = tokio::join!(connecting, async {
            server.accept().await.expect("an attempt").await
        });
        let at_quinn = match quinn.expect_err("quinn is told") {
            quinn::ConnectionError::ConnectionClosed(close) => close.error_code.into(),
            other => panic!("quinn saw {other}"),
        };
        assert_alert(&squall.expect_err("squall refuses"), at_quinn, false);
    });
    run(0, async {
        let server = squall_server(&one, TransportConfig::default());
        let client = quinn_client(other.roots(), quinn_tls());
        let connecting = client
            .connect(server.local_addr().expect("an address"), NAME)
            .expect("a start");
        let (quinn, squall) = tokio::join!(connecting, async {
            server.accept().await.expect("an attempt").await
        });
        let at_quinn = match quinn.expect_err("quinn refuses") {
            quinn::ConnectionError::TransportError(error) => error.code.into(),
            other => panic!("quinn saw {other}"),
        };
        assert_alert(&squall.expect_err("squall is told"), at_quinn, true);
    });
}

/// squall's handshake ended by the alert that quinn saw, found by the peer (`by_peer`) or by squall.
fn assert_alert(error: &squall::ConnectError, at_quinn: u64, by_peer: bool) {
    let squall::ConnectError::Closed(CloseReason::Transport { code, remote, .. }) = error else {
        panic!("squall saw {error}");
    };
    assert_eq!((code.0, *remote), (at_quinn, by_peer));
    // RFC 9001 §4.8: 0x0100 and a TLS alert.
    assert!((0x0100..0x0200).contains(&code.0), "{code} is no alert");
}
