//! How connections begin and end, and what is reported when they cannot.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{ALPN, ANY, Identity, Pair, endpoints, pattern, within};
use squall::rustls::crypto::{GetRandomFailed, SecureRandom};
use squall::{
    Builder, ClientConfig, CloseReason, ConnectError, Endpoint, ServerConfig, Stage,
    TransportConfig, WriteError,
};

/// The provider's random generator, and how often it was asked.
#[derive(Debug)]
struct CountedRandom {
    random: &'static dyn SecureRandom,
    draws: AtomicUsize,
}

impl SecureRandom for CountedRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        self.draws.fetch_add(1, Ordering::Relaxed);
        self.random.fill(bytes)
    }
}

/// aws-lc's random generator takes up to 150 ms to start: not in the first handshake.
#[test]
fn bind_initialises_the_random_generator() {
    let identity = Identity::new();
    for is_server in [true, false] {
        let mut provider = (*squall::provider()).clone();
        let counted: &CountedRandom = Box::leak(Box::new(CountedRandom {
            random: provider.secure_random,
            draws: AtomicUsize::new(0),
        }));
        provider.secure_random = counted;
        let draws_at_bind = |builder: Builder| {
            let before = counted.draws.load(Ordering::Relaxed);
            let endpoint = builder.bind().unwrap();
            let after = counted.draws.load(Ordering::Relaxed);
            drop(endpoint);
            after - before
        };
        let versions = [&squall::rustls::version::TLS13];
        let draws = if is_server {
            let (chain, key) = identity.chain_and_key();
            let tls = squall::rustls::ServerConfig::builder_with_provider(Arc::new(provider));
            let tls = tls.with_protocol_versions(&versions).unwrap();
            let tls = tls.with_no_client_auth().with_single_cert(chain, key);
            draws_at_bind(Builder::new(ANY).server(ServerConfig::new(tls.unwrap())))
        } else {
            let tls = squall::rustls::ClientConfig::builder_with_provider(Arc::new(provider));
            let tls = tls.with_protocol_versions(&versions).unwrap();
            let tls = tls.with_root_certificates(squall::rustls::RootCertStore::empty());
            draws_at_bind(Builder::new(ANY).client(ClientConfig::new(tls.with_no_client_auth())))
        };
        assert!(draws > 0, "server: {is_server}");
    }
}

#[tokio::test]
async fn the_handshake_reports_the_peers_identity() {
    let transport = TransportConfig::default().keep_peer_certificates(true);
    let pair = Pair::with(transport.clone(), transport, |builder| builder).await;
    assert_eq!(pair.near.alpn().as_deref(), Some(ALPN));
    assert_eq!(pair.far.alpn().as_deref(), Some(ALPN));
    assert_eq!(pair.far.server_name().as_deref(), Some("localhost"));
    assert_eq!(
        pair.near.peer_certificates().map(|chain| chain.len()),
        Some(1)
    );
    assert_eq!(
        pair.near.remote_address(),
        pair.server.local_addr().unwrap()
    );
    assert_eq!(pair.far.remote_address(), pair.client.local_addr().unwrap());
    assert_eq!(
        (pair.near.side(), pair.far.side()),
        (squall::Side::Client, squall::Side::Server)
    );
    let exported = [&pair.near, &pair.far].map(|end| {
        let mut material = [0; 32];
        let exported = end.export_keying_material(&mut material, b"EXPORTER-test", b"");
        exported.map(|()| material)
    });
    assert!(exported[0].is_ok_and(|material| material != [0; 32]));
    assert_eq!(exported[0], exported[1]);
    assert_eq!(pair.far.local_ip(), Some(ANY.ip()));
    assert!(pair.near.rtt() > Duration::ZERO && pair.near.rtt() < Duration::from_secs(20));
    assert!(pair.near.close_reason().is_none());
    assert_eq!(
        (
            pair.server.stats().connections,
            pair.client.stats().connections
        ),
        (1, 1)
    );
    #[cfg(target_os = "linux")]
    assert!(pair.server.worker_thread_ids()[0] > 0);
}

#[tokio::test]
async fn an_attempt_knows_its_addresses() {
    let identity = Identity::new();
    let config = TransportConfig::default;
    let server = Endpoint::server(ANY, identity.server(ALPN, config())).unwrap();
    let client = Endpoint::client(ANY).unwrap();
    let (near, far) = (client.local_addr().unwrap(), server.local_addr().unwrap());
    let config = identity.client(ALPN, config());
    let mut connecting = client.connect_with(config, far, "localhost").unwrap();
    // Before anything is sent, the destination is known but not the source.
    assert_eq!(connecting.remote_address(), far);
    assert_eq!(connecting.local_ip(), None);
    let mut accepting = within(server.accept()).await.unwrap().accept();
    for _ in 0..2 {
        assert_eq!(accepting.remote_address(), near);
        assert_eq!(accepting.local_ip(), Some(far.ip()));
        // The second time, the handshake has begun.
        within(accepting.handshake_data()).await.unwrap();
    }
    within(connecting.handshake_data()).await.unwrap();
    assert_eq!(connecting.remote_address(), far);
    let (near, far) = within(async { tokio::join!(connecting, accepting) }).await;
    drop((near.unwrap(), far.unwrap()));
}

#[tokio::test]
async fn a_close_reaches_the_peer_with_code_and_reason() {
    let pair = Pair::new().await;
    let (mut send, mut recv) = within(pair.near.open_bi()).await.unwrap();
    within(send.write_all(b"x")).await.unwrap();
    let (_far_send, mut far_recv) = within(pair.far.accept_bi()).await.unwrap();
    within(far_recv.read_chunk(1)).await.unwrap();
    // Every waiting task is woken.
    let reading = tokio::spawn(async move { recv.read_chunk(1).await });
    let accepting = tokio::spawn({
        let far = pair.far.clone();
        async move { far.accept_uni().await.map(drop) }
    });
    pair.near.close(7, b"enough");
    let local = CloseReason::Application {
        code: 7,
        reason: "enough".into(),
        remote: false,
    };
    let remote = CloseReason::Application {
        code: 7,
        reason: "enough".into(),
        remote: true,
    };
    assert_eq!(within(pair.near.closed()).await, local);
    assert_eq!(within(pair.far.closed()).await, remote);
    assert_eq!(
        within(reading).await.unwrap().unwrap_err(),
        squall::ReadError::ConnectionLost(local.clone())
    );
    assert_eq!(within(accepting).await.unwrap().unwrap_err(), remote);
    assert_eq!(
        within(send.write(b"y")).await.unwrap_err(),
        WriteError::ConnectionLost(local)
    );
    assert!(within(pair.far.open_uni()).await.is_err());
}

#[tokio::test]
async fn dropping_the_last_handle_closes_with_code_0() {
    let Pair {
        client,
        server,
        near,
        far,
    } = Pair::new().await;
    let other = near.clone();
    drop(near);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), far.closed())
            .await
            .is_err()
    );
    drop(other);
    let expected = CloseReason::Application {
        code: 0,
        reason: "".into(),
        remote: true,
    };
    assert_eq!(within(far.closed()).await, expected);
    within(client.wait_idle()).await;
    within(server.wait_idle()).await;
    assert_eq!(
        (client.stats().connections, server.stats().connections),
        (0, 0)
    );
}

#[tokio::test]
async fn a_connection_outlives_its_endpoints_handles() {
    let Pair {
        client,
        server,
        near,
        far,
    } = Pair::new().await;
    drop((client, server));
    let mut send = within(near.open_uni()).await.unwrap();
    within(send.write_all(b"still here")).await.unwrap();
    send.finish().unwrap();
    let mut recv = within(far.accept_uni()).await.unwrap();
    assert_eq!(within(recv.read_to_end(100)).await.unwrap(), b"still here");
}

#[tokio::test]
async fn closing_an_endpoint_closes_everything() {
    let Pair {
        client,
        server,
        near,
        far,
    } = Pair::new().await;
    let accepting = tokio::spawn({
        let server = server.clone();
        async move { server.accept().await.is_none() }
    });
    server.close(3, b"bye");
    assert!(within(accepting).await.unwrap());
    let remote = CloseReason::Application {
        code: 3,
        reason: "bye".into(),
        remote: true,
    };
    assert_eq!(within(near.closed()).await, remote);
    assert!(matches!(
        within(far.closed()).await,
        CloseReason::Application {
            code: 3,
            remote: false,
            ..
        }
    ));
    within(server.wait_idle()).await;
    assert!(within(server.accept()).await.is_none());
    // Later attempts are refused.
    let again = client
        .connect(server.local_addr().unwrap(), "localhost")
        .unwrap();
    match within(again).await.unwrap_err() {
        CloseReason::Transport {
            code, remote: true, ..
        } => {
            assert_eq!(code, squall::TransportErrorCode::CONNECTION_REFUSED);
        }
        other => panic!("{other:?}"),
    }
    client.close(0, b"");
    within(client.wait_idle()).await;
    assert_eq!(
        client.connect(ANY, "localhost").unwrap_err(),
        ConnectError::EndpointClosed
    );
}

#[tokio::test]
async fn an_unreachable_server_is_reported_in_time() {
    let identity = Identity::new();
    let short = TransportConfig::default().handshake_timeout(Duration::from_millis(700));
    let client = Builder::new(ANY)
        .client(identity.client(ALPN, short))
        .bind()
        .unwrap();
    let (_held, gone) = common::closed_port();
    let start = Instant::now();
    let error = within(client.connect(gone, "localhost").unwrap())
        .await
        .unwrap_err();
    assert_eq!(error, CloseReason::HandshakeTimeout);
    let elapsed = start.elapsed();
    assert!(
        (Duration::from_millis(650)..Duration::from_secs(20)).contains(&elapsed),
        "{elapsed:?}"
    );
    within(client.wait_idle()).await;
}

/// Connects a client of one identity and protocol to a server of another; returns both ends'
/// errors.
async fn mismatch(
    client_alpn: &[u8],
    same_identity: bool,
    name: &str,
) -> (CloseReason, CloseReason) {
    let (identity, other) = (Identity::new(), Identity::new());
    let config = TransportConfig::default;
    let server = Endpoint::server(ANY, identity.server(ALPN, config())).unwrap();
    let trusted = if same_identity { &identity } else { &other };
    let client = Endpoint::client(ANY).unwrap();
    let config = trusted.client(client_alpn, config());
    let connecting = client
        .connect_with(config, server.local_addr().unwrap(), name)
        .unwrap();
    let accepting = async { server.accept().await.unwrap().await };
    let (near, far) = within(async { tokio::join!(connecting, accepting) }).await;
    (near.unwrap_err(), far.unwrap_err())
}

fn is_alert(error: &CloseReason, alerts: &[u8], by_peer: bool) -> bool {
    matches!(error, CloseReason::Transport { code, remote, .. }
        if alerts.iter().any(|alert| *code == squall::TransportErrorCode::crypto(*alert)) && *remote == by_peer)
}

#[tokio::test]
async fn an_untrusted_certificate_fails_the_handshake() {
    let (near, far) = mismatch(ALPN, false, "localhost").await;
    // unknown_ca, bad_certificate or decrypt_error: the names are alike and the keys are not.
    assert!(is_alert(&near, &[48, 42, 51], false), "{near:?}");
    assert!(is_alert(&far, &[48, 42, 51], true), "{far:?}");
    assert!(!near.to_string().contains('\n'));
}

#[tokio::test]
async fn a_certificate_for_another_name_fails_the_handshake() {
    let (near, far) = mismatch(ALPN, true, "example.org").await;
    assert!(is_alert(&near, &[42], false), "{near:?}");
    assert!(is_alert(&far, &[42], true), "{far:?}");
}

#[tokio::test]
async fn without_a_common_protocol_the_handshake_fails() {
    // RFC 9001 §8.1: no_application_protocol.
    let (near, far) = mismatch(b"other", true, "localhost").await;
    assert!(is_alert(&near, &[120], true), "{near:?}");
    assert!(is_alert(&far, &[120], false), "{far:?}");
}

#[tokio::test]
async fn refused_and_ignored_attempts_report_why_they_failed() {
    let identity = Identity::new();
    let server = Endpoint::server(ANY, identity.server(ALPN, TransportConfig::default())).unwrap();
    let client = Builder::new(ANY)
        .client(identity.client(ALPN, TransportConfig::default()))
        .bind()
        .unwrap();
    let to = server.local_addr().unwrap();

    let connecting = client.connect(to, "localhost").unwrap();
    within(server.accept()).await.unwrap().refuse();
    match within(connecting).await.unwrap_err() {
        CloseReason::Transport {
            code, remote: true, ..
        } => {
            assert_eq!(code, squall::TransportErrorCode::CONNECTION_REFUSED);
        }
        other => panic!("{other:?}"),
    }

    let short = TransportConfig::default().handshake_timeout(Duration::from_millis(500));
    let short = identity.client(ALPN, short);
    let connecting = client.connect_with(short, to, "localhost").unwrap();
    let ignoring = async {
        loop {
            server.accept().await.unwrap().ignore();
        }
    };
    tokio::select! {
        result = within(connecting) => assert_eq!(result.unwrap_err(), CloseReason::HandshakeTimeout),
        () = ignoring => {}
    }
}

#[tokio::test]
async fn a_slow_application_loses_no_client() {
    let (server, client) = endpoints(TransportConfig::default);
    let to = server.local_addr().unwrap();
    // All from one address: the second waits behind the first, and so on.
    let connecting: Vec<_> = (0..8)
        .map(|_| tokio::spawn(client.connect(to, "localhost").unwrap()))
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut far = Vec::new();
    for _ in 0..8 {
        far.push(
            within(async { server.accept().await.unwrap().await })
                .await
                .unwrap(),
        );
    }
    for connecting in connecting {
        within(connecting).await.unwrap().unwrap();
    }
    assert_eq!(server.stats().incoming_dropped, 0);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), server.accept())
            .await
            .is_err(),
        "more attempts than clients"
    );
}

#[tokio::test]
async fn an_idle_connection_times_out() {
    // An end that a busy machine delays this long may still send something after the other has
    // forgotten the connection, and be answered with a reset: if so, try again.
    for millis in [300, 1000, 3000] {
        let idle = TransportConfig::default().max_idle_timeout(Duration::from_millis(millis));
        let pair = Pair::with(idle.clone(), idle, |builder| builder).await;
        let ends = [&pair.near, &pair.far].map(squall::Connection::closed);
        let [near, far] = ends;
        let ends = within(async { tokio::join!(near, far) }).await;
        within(pair.server.wait_idle()).await;
        match ends {
            (CloseReason::IdleTimeout, CloseReason::IdleTimeout) => return,
            (CloseReason::IdleTimeout, CloseReason::Reset)
            | (CloseReason::Reset, CloseReason::IdleTimeout) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("one of the ends was delayed in every attempt");
}

#[tokio::test]
async fn keep_alive_prevents_the_idle_timeout() {
    // Unless a busy machine delays it for as long as the timeout: then try again with a longer one.
    for factor in [1, 3, 10] {
        let idle = TransportConfig::default().max_idle_timeout(Duration::from_millis(400) * factor);
        let alive = idle.clone().keep_alive(Some(Duration::from_millis(100)));
        let pair = Pair::with(alive, idle, |builder| builder).await;
        tokio::time::sleep(Duration::from_millis(1200) * factor).await;
        if pair.near.close_reason().is_none() && pair.far.close_reason().is_none() {
            return;
        }
    }
    panic!("the connection ended despite keep-alive");
}

#[tokio::test]
async fn invalid_settings_are_reported_at_once() {
    let identity = Identity::new();
    let bad = TransportConfig::default().max_udp_payload(500);
    let error = Endpoint::server(ANY, identity.server(ALPN, bad.clone())).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("max_udp_payload"), "{error}");
    let client = Endpoint::client(ANY).unwrap();
    assert_eq!(
        client.connect(ANY, "localhost").unwrap_err(),
        ConnectError::NoClientConfig
    );
    let refused = client
        .connect_with(identity.client(ALPN, bad), ANY, "localhost")
        .unwrap_err();
    assert!(
        matches!(refused, ConnectError::InvalidConfig(_)),
        "{refused:?}"
    );
    let good = identity.client(ALPN, TransportConfig::default());
    let named = client.connect_with(good, ANY, "not a name").unwrap_err();
    assert_eq!(
        named,
        ConnectError::InvalidServerName("not a name".to_owned())
    );
    // The address of a bound socket is in use.
    let taken = client.local_addr().unwrap();
    assert_eq!(
        Endpoint::client(taken).unwrap_err().kind(),
        std::io::ErrorKind::AddrInUse
    );
}

#[tokio::test]
async fn accounting_reports_where_the_time_went() {
    let config = TransportConfig::default;
    let pair = Pair::with(config(), config(), |builder| builder.accounting(true)).await;
    let far = pair.far.clone();
    let sink = pair.server.spawn(async move {
        let mut recv = far.accept_uni().await.unwrap();
        recv.read_to_end(10_000_000).await.unwrap().len()
    });
    let mut send = within(pair.near.open_uni()).await.unwrap();
    within(send.write_all(&pattern(5_000_000, 1)))
        .await
        .unwrap();
    send.finish().unwrap();
    assert_eq!(within(sink).await.unwrap(), 5_000_000);
    let stages = pair.server.stages();
    assert!(stages.is_on() && stages.stamps() > 0);
    for stage in [
        Stage::UdpReceive,
        Stage::Aead,
        Stage::UdpSend,
        Stage::Application,
        Stage::Idle,
    ] {
        assert!(stages.ticks()[stage as usize] > 0, "{}", stage.name());
    }
    // Waits took CPU time, and some were measured.
    let waits = stages.waits();
    assert!(waits.count > 0 && waits.measured > 0, "{waits:?}");
    assert!(
        waits.count > waits.measured || waits.count == 1,
        "{waits:?}"
    );
    assert!(waits.cpu > Duration::ZERO, "{waits:?}");
    assert!(!Pair::new().await.server.stages().is_on());
}

#[tokio::test]
async fn a_server_survives_garbage_datagrams() {
    let pair = Pair::new().await;
    let socket = std::net::UdpSocket::bind(ANY).unwrap();
    let to = pair.server.local_addr().unwrap();
    for n in 0..2000_usize {
        let mut bytes = pattern(n % 1400, n as u64);
        if let Some(first) = bytes.first_mut() {
            *first |= [0x00, 0x40, 0x80, 0xc0][n % 4];
        }
        socket.send_to(&bytes, to).unwrap();
    }
    let mut send = within(pair.near.open_uni()).await.unwrap();
    within(send.write_all(b"alive")).await.unwrap();
    send.finish().unwrap();
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"alive");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn when_the_worker_ends_every_waiter_gets_the_reason() {
    const EBADF: i32 = 9;
    let pair = Pair::new().await;
    let accepting = tokio::spawn({
        let near = pair.near.clone();
        async move { near.accept_uni().await.map(drop) }
    });
    let mut send = within(pair.near.open_uni()).await.unwrap();
    // From here on any packet breaks the socket, whether the write's or an acknowledgement.
    pair.client.inject_send_error(EBADF);
    let _ = within(send.write_all(b"x")).await;
    let reason = within(pair.near.closed()).await;
    assert!(
        matches!(reason, CloseReason::Transport { remote: false, .. }),
        "{reason:?}"
    );
    assert_eq!(within(accepting).await.unwrap().unwrap_err(), reason);
    within(pair.client.wait_idle()).await;
    assert!(within(pair.client.accept()).await.is_none());
    let to = pair.server.local_addr().unwrap();
    assert_eq!(
        pair.client.connect(to, "localhost").unwrap_err(),
        ConnectError::EndpointClosed
    );
}

#[tokio::test]
async fn an_endpoint_without_connections_is_idle() {
    let endpoint = Endpoint::client(ANY).unwrap();
    within(endpoint.wait_idle()).await;
    endpoint.close(0, b"");
    within(endpoint.wait_idle()).await;
}

#[tokio::test]
async fn both_families_reach_a_dual_stack_server() {
    let identity = Identity::new();
    let any = "[::]:0".parse().unwrap();
    let server = Endpoint::server(any, identity.server(ALPN, TransportConfig::default())).unwrap();
    let port = server.local_addr().unwrap().port();
    for (from, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let config = identity.client(ALPN, TransportConfig::default());
        let client = Builder::new(from.parse().unwrap())
            .client(config)
            .bind()
            .unwrap();
        let to = std::net::SocketAddr::new(to.parse().unwrap(), port);
        let connecting = client.connect(to, "localhost").unwrap();
        let accepting = async { server.accept().await.unwrap().await };
        let (near, far) = within(async { tokio::join!(connecting, accepting) }).await;
        assert_eq!(near.unwrap().remote_address(), to);
        // An IPv4 client is an IPv4 client, not an IPv4-mapped one.
        assert_eq!(far.unwrap().remote_address(), client.local_addr().unwrap());
    }
}

/// An address that no datagram of the socket can ever reach fails without ten seconds of waiting;
/// an IPv4 address may be IPv4-mapped.
#[tokio::test]
async fn unreachable_addresses_are_reported_at_once() {
    let identity = Identity::new();
    let client = |from: &str| {
        let config = identity.client(ALPN, TransportConfig::default());
        let builder = Builder::new(from.parse().unwrap()).client(config);
        builder.bind().unwrap()
    };
    for (from, to) in [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:0", "0.0.0.0:4433"),
        ("127.0.0.1:0", "[::1]:4433"),
        ("[::1]:0", "127.0.0.1:4433"),
        ("[::]:0", "[::]:4433"),
        ("[::]:0", "[fe80::1]:4433"),
        ("[::]:0", "[ff02::1]:4433"),
        ("127.0.0.1:0", "224.0.0.1:4433"),
        ("127.0.0.1:0", "255.255.255.255:4433"),
        ("127.0.0.1:0", "0.0.0.1:4433"),
    ] {
        let to: std::net::SocketAddr = to.parse().unwrap();
        assert_eq!(
            client(from).connect(to, "localhost").err(),
            Some(ConnectError::InvalidRemoteAddress(to)),
            "{from} {to}"
        );
    }
    let server = Endpoint::server(ANY, identity.server(ALPN, TransportConfig::default())).unwrap();
    let plain = server.local_addr().unwrap();
    let mapped = format!("[::ffff:127.0.0.1]:{}", plain.port());
    let config = identity.client(ALPN, TransportConfig::default());
    let only_v6 = Builder::new("[::]:0".parse().unwrap()).client(config);
    let only_v6 = only_v6.only_v6(true).bind().unwrap();
    let refused = only_v6.connect(plain, "localhost").err();
    assert_eq!(refused, Some(ConnectError::InvalidRemoteAddress(plain)));
    let client = client("[::]:0");
    let connecting = client.connect(mapped.parse().unwrap(), "localhost");
    let accepting = async { server.accept().await.unwrap().await };
    let (near, far) = within(async { tokio::join!(connecting.unwrap(), accepting) }).await;
    assert_eq!(near.unwrap().remote_address(), plain);
    far.unwrap();
}

/// Attempts from one client socket are distinguished by their ids; none waits for the decision on
/// another.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_from_one_address_wait_independently() {
    const ATTEMPTS: usize = 50;
    let (server, client) = endpoints(TransportConfig::default);
    let address = server.local_addr().unwrap();
    let connecting: Vec<_> = (0..ATTEMPTS)
        .map(|_| client.connect(address, "localhost").unwrap())
        .collect();
    let mut incoming = Vec::new();
    for _ in 0..ATTEMPTS {
        incoming.push(within(server.accept()).await.unwrap());
    }
    let accepting: Vec<_> = incoming.into_iter().map(squall::Incoming::accept).collect();
    let mut connections = Vec::new();
    for one in connecting.into_iter().chain(accepting) {
        connections.push(within(one).await.unwrap());
    }
    assert_eq!(server.stats().connections, ATTEMPTS as u64);
}

#[tokio::test]
async fn protocol_and_server_name_are_known_before_the_handshake_completes() {
    let identity = Identity::new();
    let config = identity.server(ALPN, TransportConfig::default());
    let server = Builder::new(ANY).server(config).bind().unwrap();
    let config = identity.client(ALPN, TransportConfig::default());
    let client = Builder::new(ANY).client(config).bind().unwrap();
    let address = server.local_addr().unwrap();
    let mut connecting = client.connect(address, "localhost").unwrap();
    let mut accepted = within(server.accept()).await.unwrap().accept();
    // Cancelled before anything is known, on a client that has received no answer yet.
    assert!(futures_now(connecting.handshake_data()).is_none());
    let there = within(accepted.handshake_data()).await.unwrap();
    assert_eq!(there.alpn.as_deref(), Some(ALPN));
    assert_eq!(there.server_name.as_deref(), Some("localhost"));
    let here = within(connecting.handshake_data()).await.unwrap();
    assert_eq!((here.alpn.as_deref(), here.server_name), (Some(ALPN), None));
    assert_eq!(within(accepted.handshake_data()).await.unwrap(), there);
    let (near, far) = within(async { tokio::join!(connecting, accepted) }).await;
    assert_eq!(near.unwrap().alpn().as_deref(), Some(ALPN));
    drop(far);

    let mut refused = client.connect(address, "localhost").unwrap();
    within(server.accept()).await.unwrap().refuse();
    let reason = within(refused.handshake_data()).await.unwrap_err();
    assert!(
        reason.to_string().contains("CONNECTION_REFUSED"),
        "{reason}"
    );
    assert_eq!(within(refused).await.unwrap_err(), reason);
}

/// The outcome of a future that is ready at once.
fn futures_now<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

/// The client's answers never arrive, but the handshake data is still known.
#[tokio::test(flavor = "multi_thread")]
async fn handshake_data_does_not_wait_for_the_handshake() {
    let identity = Identity::new();
    let transport = TransportConfig::default()
        .handshake_timeout(Duration::from_secs(1000))
        .max_idle_timeout(Duration::ZERO);
    let config = identity.server(ALPN, transport.clone());
    let server = Builder::new(ANY).server(config).bind().unwrap();
    let config = identity.client(ALPN, transport);
    let client = Builder::new(ANY).client(config).gso(false).bind().unwrap();
    // Forwards the client's datagrams, but nothing back.
    let relay = tokio::net::UdpSocket::bind(ANY).await.unwrap();
    let at = relay.local_addr().unwrap();
    let to = server.local_addr().unwrap();
    let relaying = tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let (len, from) = relay.recv_from(&mut buffer).await.unwrap();
            if from != to {
                relay.send_to(&buffer[..len], to).await.unwrap();
                // A ClientHello with X25519MLKEM768 takes two datagrams: the attempt is accepted
                // with the first.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    });
    let connecting = client.connect(at, "localhost").unwrap();
    let mut accepted = within(server.accept()).await.unwrap().accept();
    let began = std::time::Instant::now();
    let data = within(accepted.handshake_data()).await.unwrap();
    assert_eq!(data.alpn.as_deref(), Some(ALPN));
    // `within` polls once more when its time is over.
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "the future was not woken"
    );
    assert!(futures_now(&mut accepted).is_none());
    relaying.abort();
    drop(connecting);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_can_be_bound_again_while_connection_handles_are_kept() {
    for (workers, on_runtime) in [(1, false), (3, false), (1, true)] {
        let config = TransportConfig::default;
        let pair = Pair::with(config(), config(), |builder| match on_runtime {
            true => builder.on_runtime(tokio::runtime::Handle::current()),
            false => builder.workers(workers),
        })
        .await;
        let Pair {
            near, far, server, ..
        } = pair;
        let address = server.local_addr().unwrap();
        let (closed, not_closed) = (server.sockets_closed(), server.sockets_closed());
        let later = server.sockets_closed();
        let accepting = server.accept();
        within(server.shutdown(0, b"")).await;
        drop(server);
        // It counts as a handle of the endpoint.
        let early = tokio::time::timeout(Duration::from_millis(50), not_closed).await;
        early.unwrap_err();
        drop(accepting);
        within(closed).await;
        let _again = Endpoint::client(address).unwrap();
        // After the fact.
        within(later).await;
        assert!(far.close_reason().is_some());
        assert!(far.stats().packets_sent > 0);
        far.close(0, b"");
        drop((near, far));
    }
}
