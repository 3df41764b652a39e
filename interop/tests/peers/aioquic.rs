//! aioquic, a Python stack, as a child process that runs `interop/aioquic/peer.py` and that these
//! tests control line by line.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use squall::{CloseReason, TransportConfig};

use crate::payload::{Check, Payload, transfer_size};
use crate::proxy::{Faults, Proxy};
use crate::python::{Files, Peer};
use crate::setup::{ALPN, Identity, NAME, run, squall_client, squall_server};

/// aioquic moves some megabytes a second.
const MOST: u64 = 10_000_000;

fn size() -> u64 {
    transfer_size().min(MOST)
}

fn start(arguments: &[&str]) -> Peer {
    Peer::start("aioquic/peer.py", arguments)
}

/// squall as a client of aioquic.
async fn connect(options: &[&str]) -> (squall::Connection, Peer) {
    connect_with(options, TransportConfig::default()).await
}

async fn connect_with(options: &[&str], transport: TransportConfig) -> (squall::Connection, Peer) {
    let identity = Identity::new();
    let files = Files::new(&identity);
    let (certificate, key) = (files.path("certificate.pem"), files.path("key.pem"));
    let mut arguments = vec!["server", certificate.as_str(), key.as_str()];
    arguments.extend(options);
    let mut peer = start(&arguments);
    let port: u16 = peer.line("listening").parse().expect("a port");
    let client = squall_client(&identity, transport);
    let connecting = client
        .connect(([127, 0, 0, 1], port).into(), NAME)
        .expect("a start");
    let connection = connecting.await.expect("squall's handshake");
    (connection, peer)
}

/// squall as a server of aioquic. The endpoint lives as long as the connection needs it.
async fn accept(options: &[&str]) -> (squall::Connection, Peer, squall::Endpoint) {
    let identity = Identity::new();
    let files = Files::new(&identity);
    let server = squall_server(&identity, TransportConfig::default());
    let port = server.local_addr().expect("an address").port().to_string();
    let roots = files.path("certificate.pem");
    let mut arguments = vec!["client", port.as_str(), roots.as_str()];
    arguments.extend(options);
    let peer = start(&arguments);
    let connection = server
        .accept()
        .await
        .expect("an attempt")
        .await
        .expect("squall's handshake");
    (connection, peer, server)
}

/// squall sends and aioquic echoes; then aioquic sends and squall echoes. Both ends compare
/// digests.
async fn echo_both_ways(connection: &squall::Connection, peer: &mut Peer, bytes: u64) {
    let payload = Payload {
        seed: 5,
        len: bytes,
    };
    let began = Instant::now();
    let (to, from) = connection.open_bi().await.expect("squall opens");
    let id = to.id().0;
    let (sent, received) = tokio::join!(squall_sends(to, payload), squall_receives(from, payload));
    assert_eq!((&sent, &received), (&payload.digest(), &payload.digest()));
    assert_eq!(peer.line("stream"), format!("{id} {bytes} {sent}"));

    peer.command(&format!("send bi {bytes}"));
    let (to, from) = connection.accept_bi().await.expect("squall accepts");
    squall_echoes(to, from).await;
    let given = peer.line("sent");
    assert_eq!(
        peer.line("stream"),
        given,
        "what aioquic sent is not what came back"
    );

    peer.command("send uni 12345");
    let mut from = connection.accept_uni().await.expect("squall accepts");
    let brought = from.read_to_end(1 << 20).await.expect("squall reads");
    assert_eq!(
        peer.line("sent"),
        format!("{} 12345 {}", from.id().0, crate::payload::digest(&brought))
    );
    println!(
        "{bytes} bytes each way and back, squall {:?}, in {:.2} s: {sent} from squall, {given} from aioquic",
        connection.side(),
        began.elapsed().as_secs_f64(),
    );
}

async fn squall_sends(mut to: squall::SendStream, payload: Payload) -> String {
    let mut offset = 0;
    while offset < payload.len {
        let mut chunk = vec![0; 1 << 16];
        let count = payload.fill(offset, &mut chunk);
        to.write_all(&chunk[..count]).await.expect("squall writes");
        offset += count as u64;
    }
    to.finish().expect("squall finishes");
    assert_eq!(
        to.stopped().await,
        Ok(None),
        "squall's stream was not delivered"
    );
    payload.digest()
}

async fn squall_receives(mut from: squall::RecvStream, payload: Payload) -> String {
    let mut check = Check::new(payload);
    while let Some(chunk) = from.read_chunk(usize::MAX).await.expect("squall reads") {
        check.take(&chunk);
    }
    check.end()
}

async fn squall_echoes(mut to: squall::SendStream, mut from: squall::RecvStream) {
    while let Some(chunk) = from.read_chunk(usize::MAX).await.expect("squall reads") {
        to.write_chunk(chunk).await.expect("squall writes");
    }
    to.finish().expect("squall finishes");
}

fn assert_connected(connection: &squall::Connection, peer: &mut Peer, version: u32) {
    let alpn = String::from_utf8_lossy(ALPN);
    assert_eq!(peer.line("connected"), format!("{alpn} {version}"));
    assert_eq!(connection.alpn().as_deref(), Some(ALPN));
}

#[test]
fn a_transfer_as_client() {
    run(size(), async {
        let (connection, mut peer) = connect(&[]).await;
        assert_connected(&connection, &mut peer, 1);
        echo_both_ways(&connection, &mut peer, size()).await;
        connection.close(42, b"that was all");
        assert_eq!(peer.line("closed"), "application 42 that was all");
    });
}

#[test]
fn a_transfer_as_server() {
    run(size(), async {
        let (connection, mut peer, _endpoint) = accept(&[]).await;
        assert_connected(&connection, &mut peer, 1);
        echo_both_ways(&connection, &mut peer, size()).await;
        peer.command("close 43 enough of it");
        let wanted = CloseReason::Application {
            code: 43,
            reason: "enough of it".into(),
            remote: true,
        };
        assert_eq!(connection.closed().await, wanted);
    });
}

#[test]
fn every_cipher_suite_can_be_negotiated() {
    for suite in [
        "AES_128_GCM_SHA256",
        "AES_256_GCM_SHA384",
        "CHACHA20_POLY1305_SHA256",
    ] {
        run(0, async {
            let (connection, mut peer) = connect(&["--suite", suite]).await;
            echo_both_ways(&connection, &mut peer, 50_000).await;
            let (connection, mut peer, _endpoint) = accept(&["--suite", suite]).await;
            echo_both_ways(&connection, &mut peer, 50_000).await;
        });
    }
}

/// A client that speaks only QUIC version 2 (RFC 9369).
#[test]
fn version_2_as_server() {
    run(0, async {
        let (connection, mut peer, _endpoint) = accept(&["--version", "2"]).await;
        assert_connected(&connection, &mut peer, 2);
        echo_both_ways(&connection, &mut peer, 50_000).await;
    });
}

/// A server that validates the client's address first (RFC 9000 §8.1.2).
#[test]
fn a_retry_is_followed() {
    run(0, async {
        let (connection, mut peer) = connect(&["--retry"]).await;
        echo_both_ways(&connection, &mut peer, 50_000).await;
    });
}

/// aioquic updates keys and switches connection ids in the middle of a connection (RFC 9001 §6, RFC
/// 9000 §5.1.2).
#[test]
fn a_key_update_and_an_id_change_are_followed() {
    run(0, async {
        let (connection, mut peer) = connect(&[]).await;
        for _ in 0..3 {
            peer.command("change-id");
            peer.command("update-keys");
            echo_both_ways(&connection, &mut peer, 50_000).await;
            // The previous keys are kept for three probe timeouts.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(connection.stats().key_updates, 3);

        let (connection, mut peer, _endpoint) = accept(&[]).await;
        for _ in 0..3 {
            peer.command("change-id");
            peer.command("update-keys");
            echo_both_ways(&connection, &mut peer, 50_000).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(connection.stats().key_updates, 3);
    });
}

/// squall updates its keys, and aioquic follows.
#[test]
fn aioquic_follows_our_key_updates() {
    run(0, async {
        let often = TransportConfig::default().key_update_after(100);
        let (connection, mut peer) = connect_with(&[], often).await;
        for _ in 0..3 {
            echo_both_ways(&connection, &mut peer, 200_000).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let updates = connection.stats().key_updates;
        assert!(updates >= 3, "only {updates} key updates");
    });
}

/// A server that speaks only QUIC version 2 (RFC 9369) with a client that does.
#[test]
fn version_2_as_client() {
    run(0, async {
        let transport = TransportConfig::default().versions(vec![squall::VERSION_2]);
        let (connection, mut peer) = connect_with(&[], transport).await;
        assert_connected(&connection, &mut peer, 2);
        echo_both_ways(&connection, &mut peer, 50_000).await;
    });
}

/// The server accepts a ticket and the early data that comes with it (RFC 9001 §4.6).
#[test]
fn early_data_as_server() {
    run(0, async {
        let (_connection, mut peer, server) = accept(&[]).await;
        assert_eq!(peer.line("resumed"), "NO early NO");
        peer.line("ticket");
        let received = || server.stats().udp.bytes_received;
        let before = received();
        peer.command("again 5000");
        let incoming = server.accept().await.expect("an attempt");
        // Hold back the answer until the early data has arrived behind an Initial packet.
        while received() < before + 1200 + 5000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let Ok((connection, there)) = incoming.accept().into_0rtt().await else {
            panic!("a server can always read early data");
        };
        let (to, from) = connection.accept_bi().await.expect("squall accepts");
        assert!(from.is_early());
        squall_echoes(to, from).await;
        let _ = there.await;
        assert_eq!(peer.line("stream"), peer.line("sent"));
        assert_eq!(peer.line("resumed"), "YES early YES");
    });
}

/// squall reconnects with aioquic's ticket, and sends early data.
#[test]
fn early_data_as_client() {
    run(0, async {
        let identity = Identity::new();
        let files = Files::new(&identity);
        let (certificate, key) = (files.path("certificate.pem"), files.path("key.pem"));
        let mut peer = start(&["server", &certificate, &key]);
        let port: u16 = peer.line("listening").parse().expect("a port");
        let client = squall_client(&identity, TransportConfig::default());
        let connect = || {
            let to = ([127, 0, 0, 1], port).into();
            client.connect(to, NAME).expect("a start")
        };
        let connection = connect().await.expect("squall's handshake");
        echo_both_ways(&connection, &mut peer, 50_000).await;
        assert_eq!(peer.line("resumed"), "NO early NO");
        let Ok((connection, accepted)) = connect().into_0rtt().await else {
            panic!("aioquic's ticket does not allow early data");
        };
        let payload = Payload { seed: 9, len: 5000 };
        let (to, from) = connection.open_bi().await.expect("squall opens");
        let (sent, received) =
            tokio::join!(squall_sends(to, payload), squall_receives(from, payload));
        assert_eq!(sent, received);
        assert!(accepted.await, "aioquic did not accept early data");
        assert_eq!(peer.line("resumed"), "YES early YES");
    });
}

/// Between the two is a NAT that loses its bindings: the client's port keeps changing.
#[test]
fn a_nat_rebinding_is_followed() {
    let faults = Faults {
        rebind_after: 60,
        ..Faults::default()
    };
    run(0, async {
        let identity = Identity::new();
        let files = Files::new(&identity);
        let (certificate, key) = (files.path("certificate.pem"), files.path("key.pem"));
        let mut peer = start(&["server", &certificate, &key]);
        let port: u16 = peer.line("listening").parse().expect("a port");
        let proxy = Proxy::start(([127, 0, 0, 1], port).into(), 1, faults).await;
        let client = squall_client(&identity, TransportConfig::default());
        let connecting = client.connect(proxy.address, NAME).expect("a start");
        let connection = connecting.await.expect("squall's handshake");
        for _ in 0..3 {
            echo_both_ways(&connection, &mut peer, 200_000).await;
        }
        assert!(proxy.counts.rebound.load(Ordering::Relaxed) > 2);
    });
    run(0, async {
        let identity = Identity::new();
        let files = Files::new(&identity);
        let server = squall_server(&identity, TransportConfig::default());
        let proxy = Proxy::start(server.local_addr().expect("an address"), 1, faults).await;
        let port = proxy.address.port().to_string();
        let mut peer = start(&["client", &port, &files.path("certificate.pem")]);
        let incoming = server.accept().await.expect("an attempt");
        let connection = incoming.await.expect("squall's handshake");
        for _ in 0..3 {
            echo_both_ways(&connection, &mut peer, 200_000).await;
        }
        assert!(proxy.counts.rebound.load(Ordering::Relaxed) > 2);
        assert!(connection.stats().migrations > 0);
    });
}

#[test]
fn resets_and_stops_are_reported() {
    run(0, async {
        let (connection, mut peer) = connect(&[]).await;
        let (mut to, mut from) = connection.open_bi().await.expect("squall opens");
        let id = to.id().0;
        to.write_all(b"some of it").await.expect("squall writes");
        from.read_exact(&mut [0; 10]).await.expect("aioquic echoes");
        peer.command(&format!("reset {id} 5"));
        assert_eq!(from.read(&mut [0]).await, Err(squall::ReadError::Reset(5)));
        to.reset(6).expect("squall resets");
        assert_eq!(peer.line("reset"), format!("{id} 6"));

        let (mut to, mut from) = connection.open_bi().await.expect("squall opens");
        let id = to.id().0;
        to.write_all(b"some of it").await.expect("squall writes");
        from.read_exact(&mut [0; 10]).await.expect("aioquic echoes");
        from.stop(7).expect("squall stops");
        assert_eq!(peer.line("stopped"), format!("{id} 7"));
        peer.command(&format!("stop {id} 8"));
        assert_eq!(to.stopped().await, Ok(Some(8)));
    });
}
