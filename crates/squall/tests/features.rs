//! What an application can use besides streams: early data, a lossless shutdown, moves, logs,
//! certificates.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{ALPN, ANY, Identity, Pair, meet, pattern, within};
use squall::rustls::server::WebPkiClientVerifier;
use squall::rustls::{self, RootCertStore};
use squall::{Builder, CloseReason, ConnectionId, Endpoint, MigrateError, TransportConfig};
use tokio::sync::Notify;

/// A server and a client that allow early data.
fn with_early_data(identity: &Identity) -> (Endpoint, Endpoint) {
    let mut server = identity.server(ALPN, TransportConfig::default());
    Arc::make_mut(&mut server.tls).max_early_data_size = u32::MAX;
    let mut client = identity.client(ALPN, TransportConfig::default());
    Arc::make_mut(&mut client.tls).enable_early_data = true;
    (
        Endpoint::server(ANY, server).unwrap(),
        Builder::new(ANY).client(client).bind().unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn early_data_arrives_with_the_first_packets() {
    let identity = Identity::new();
    let (server, client) = with_early_data(&identity);
    let address = server.local_addr().unwrap();
    let mut last = None;
    for attempt in 0..4 {
        let connecting = client.connect(address, "localhost").unwrap();
        if attempt == 2 {
            // A server that has forgotten the tickets rejects them: early data is sent again.
            let other = identity.server(ALPN, TransportConfig::default());
            server.set_server_config(Some(other)).unwrap();
        }
        let written = Notify::new();
        let asking = async {
            let (connection, accepted) = match connecting.into_0rtt().await {
                Ok((connection, accepted)) => {
                    assert!(attempt > 0, "the first attempt has no ticket");
                    (connection, Some(accepted))
                }
                Err(connecting) => {
                    written.notify_one();
                    (connecting.await.unwrap(), None)
                }
            };
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            send.write_all(b"early").await.unwrap();
            send.finish().unwrap();
            let mut send = connection.open_uni().await.unwrap();
            send.write_last(b"too").await.unwrap();
            written.notify_one();
            let answer = recv.read_to_end(100).await.unwrap();
            let accepted = match accepted {
                Some(accepted) => Some(accepted.await),
                None => None,
            };
            (connection, answer, accepted)
        };
        let answering = async {
            let incoming = server.accept().await.unwrap();
            if attempt > 0 {
                // No answer before the early data is in flight, even on a busy machine.
                written.notified().await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            let (connection, there) = incoming.accept().into_0rtt().await.unwrap();
            let (mut send, mut recv) = connection.accept_bi().await.unwrap();
            let early = recv.is_early();
            let question = recv.read_to_end(100).await.unwrap();
            let mut also = connection.accept_uni().await.unwrap();
            let chunk = also.read_chunk(100).await.unwrap();
            assert_eq!(chunk.unwrap(), "too");
            assert_eq!(also.is_early(), early, "after the last byte, too");
            send.write_all(&question).await.unwrap();
            send.finish().unwrap();
            let taken = there.await;
            (connection, early, taken)
        };
        let ((near, answer, accepted), (far, early, taken)) =
            within(async { tokio::join!(asking, answering) }).await;
        assert_eq!(answer, b"early");
        let wanted = [None, Some(true), Some(false), None][attempt];
        assert_eq!(accepted, wanted, "attempt {attempt}");
        assert_eq!(early, wanted == Some(true), "attempt {attempt}");
        assert_eq!(taken, early, "the server says the same, attempt {attempt}");
        common::ticket(&near, &far).await;
        last = Some((near, far));
    }
    drop(last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_loses_nothing_that_was_finished() {
    let Pair {
        client,
        server,
        near,
        far,
    } = Pair::new().await;
    const LEN: usize = 5_000_000;
    let sent = pattern(LEN, 3);
    let (to_near, to_far) = (sent.clone(), sent.clone());
    // One end shuts down a connection, the other one its endpoint.
    let mut send = near.open_uni().await.unwrap();
    let mut back = far.open_uni().await.unwrap();
    let writing = tokio::spawn(async move {
        send.write_all(&to_far).await.unwrap();
        send.finish().unwrap();
        near.shutdown(7, b"farewell").await;
        near
    });
    let writing_back = tokio::spawn(async move {
        back.write_all(&to_near).await.unwrap();
        back.finish().unwrap();
        drop(back);
    });
    let mut recv = within(far.accept_uni()).await.unwrap();
    let all = within(recv.read_to_end(LEN)).await.unwrap();
    assert!(all == sent);
    let end = within(far.closed()).await;
    assert!(
        matches!(
            &end,
            CloseReason::Application {
                code: 7,
                remote: true,
                ..
            }
        ),
        "{end}"
    );
    let near = within(writing).await.unwrap();
    drop(near);
    drop(writing_back);
    within(server.shutdown(0, b"")).await;
    within(client.shutdown(0, b"")).await;
    assert_eq!(server.stats().connections + client.stats().connections, 0);
}

/// Abandoned data need not be waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_does_not_wait_for_reset_streams() {
    const WINDOW: usize = 100_000;
    let narrow = TransportConfig::default()
        .initial_window(WINDOW as u64)
        .receive_window(WINDOW as u64);
    let pair = Pair::with(TransportConfig::default(), narrow, |builder| builder).await;
    let mut send = pair.near.open_uni().await.unwrap();
    // The stream is not read: the connection's window is full before everything has arrived.
    let near = pair.near.clone();
    within(send.write_all(&pattern(2 * WINDOW, 8)))
        .await
        .unwrap();
    send.finish().unwrap();
    let farewell = tokio::spawn(async move { near.shutdown(3, b"").await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!farewell.is_finished() && pair.near.close_reason().is_none());
    send.reset(1).unwrap();
    within(farewell).await.unwrap();
    within(pair.far.closed()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_delivers_all_data_before_it_shuts_down() {
    let Pair {
        client,
        server,
        near,
        far,
    } = Pair::new().await;
    const LEN: usize = 5_000_000;
    let sent = pattern(LEN, 4);
    let bytes = sent.clone();
    let mut send = far.open_uni().await.unwrap();
    let leaving = tokio::spawn(async move {
        send.write_all(&bytes).await.unwrap();
        send.finish().unwrap();
        server.shutdown(9, b"gone").await;
        assert!(server.accept().await.is_none());
    });
    let mut recv = within(near.accept_uni()).await.unwrap();
    assert!(within(recv.read_to_end(LEN)).await.unwrap() == sent);
    let end = within(near.closed()).await;
    assert!(
        matches!(
            &end,
            CloseReason::Application {
                code: 9,
                remote: true,
                ..
            }
        ),
        "{end}"
    );
    within(leaving).await.unwrap();
    drop((client, far));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_moves_to_another_address_and_to_another_socket() {
    let everywhere: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
    let identity = Identity::new();
    let transport = TransportConfig::default;
    let server = Endpoint::server(everywhere, identity.server(ALPN, transport())).unwrap();
    let client = Builder::new(everywhere)
        .client(identity.client(ALPN, transport()))
        .bind()
        .unwrap();
    let address = (Ipv4Addr::LOCALHOST, server.local_addr().unwrap().port()).into();
    let connecting = client.connect(address, "localhost").unwrap();
    let (near, far) = meet(connecting, &server).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    let talk = async |seed: u64| {
        let sent = pattern(100_000, seed);
        let mut send = near.open_uni().await.unwrap();
        send.write_all(&sent).await.unwrap();
        send.finish().unwrap();
        let mut recv = far.accept_uni().await.unwrap();
        assert!(recv.read_to_end(100_000).await.unwrap() == sent);
    };
    within(talk(1)).await;
    let before = far.remote_address();
    let second = IpAddr::from([127, 0, 0, 2]);
    let moved = within(near.migrate(second)).await;
    assert_eq!(moved, Ok(()), "{:?}", near.close_reason());
    within(talk(2)).await;
    assert_eq!(far.remote_address(), SocketAddr::new(second, before.port()));
    // An address that is not this machine's gets no answers.
    let refused = within(near.migrate(IpAddr::from([192, 0, 2, 1]))).await;
    assert_eq!(refused, Err(MigrateError::NotValidated));
    within(talk(3)).await;
    // The socket is gone.
    client.rebind(everywhere).unwrap();
    within(talk(4)).await;
    let after = far.remote_address();
    assert_eq!(after.port(), client.local_addr().unwrap().port());
    assert_ne!(after.port(), before.port());
    assert_eq!(
        within(far.migrate(second)).await,
        Err(MigrateError::NotAClient)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn qlogs_are_written_to_a_folder() {
    let folder = std::env::temp_dir().join(format!("squall-qlog-{}", std::process::id()));
    let pair = Pair::with(
        TransportConfig::default(),
        TransportConfig::default(),
        |builder| builder.qlog_dir(folder.clone()),
    )
    .await;
    pair.near.close(0, b"");
    within(pair.client.wait_idle()).await;
    within(pair.far.closed()).await;
    within(pair.server.wait_idle()).await;
    // They are complete now, although the connections are still held.
    let logs: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    drop(pair);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(logs.len(), 2);
    for log in logs {
        assert!(
            log.starts_with('\u{1e}') && log.contains("packet_received"),
            "{log}"
        );
        // Everything has been sent, including the closing packet.
        let closed = log.find("connection_closed").unwrap();
        assert!(log.ends_with('\n'), "{log}");
        let close = log.rfind("connection_close\"").unwrap();
        assert!(
            log.contains("\"initiator\":\"remote\"") || close > closed,
            "{log}"
        );
    }
}

/// Stores what is written, until it fails or panics after some bytes.
#[derive(Clone, Default)]
struct Kept {
    bytes: Arc<Mutex<Vec<u8>>>,
    fails_after: Option<usize>,
    panics_after: Option<usize>,
}

impl std::io::Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let kept = self
            .bytes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.fails_after.is_some_and(|most| kept.len() > most) {
            return Err(std::io::Error::other("full"));
        }
        let len = kept.len();
        drop(kept);
        assert!(
            self.panics_after.is_none_or(|most| len <= most),
            "requested by the test"
        );
        self.bytes.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn qlogs_are_written_to_the_applications_sink() {
    let log = Kept::default();
    let chosen = Arc::new(Mutex::new(Vec::new()));
    let (sink, seen) = (log.clone(), Arc::clone(&chosen));
    let pair = Pair::with(
        TransportConfig::default(),
        TransportConfig::default(),
        move |builder| {
            let (sink, seen) = (sink.clone(), Arc::clone(&seen));
            builder.qlog(move |connection| {
                seen.lock().unwrap().push(connection.clone());
                let client = connection.side == squall::Side::Client;
                client.then(|| Box::new(sink.clone()) as _)
            })
        },
    )
    .await;
    let seen = chosen.lock().unwrap().clone();
    let ids = seen.iter().map(|seen| seen.original_destination_id);
    assert!(ids.eq([pair.near.original_destination_id(); 2]));
    let [client, server] = [squall::Side::Client, squall::Side::Server].map(|side| {
        let end = seen.iter().find(|seen| seen.side == side).unwrap();
        end.remote_address
    });
    assert_eq!(client, pair.server.local_addr().unwrap());
    assert_eq!(server, pair.client.local_addr().unwrap());
    pair.near.close(0, b"");
    within(pair.client.wait_idle()).await;
    let text = String::from_utf8(log.bytes.lock().unwrap().clone()).unwrap();
    assert_eq!(text.matches("vantage_point").count(), 1);
    assert!(text.contains("\"type\":\"client\"") && text.contains("connection_closed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_sink_costs_only_the_log() {
    let fails = Kept {
        fails_after: Some(2000),
        ..Kept::default()
    };
    let panics = Kept {
        panics_after: Some(2000),
        ..Kept::default()
    };
    for sink in [Some(fails), Some(panics), None] {
        let pair = Pair::with(
            TransportConfig::default(),
            TransportConfig::default(),
            move |builder| {
                let sink = sink.clone();
                builder.qlog(move |_| Some(Box::new(sink.clone().expect("requested by the test"))))
            },
        )
        .await;
        let (mut send, _recv) = pair.near.open_bi().await.unwrap();
        send.write_all(&[7; 100_000]).await.unwrap();
        send.finish().unwrap();
        let (_send, mut recv) = within(pair.far.accept_bi()).await.unwrap();
        let read = within(recv.read_to_end(200_000)).await.unwrap();
        assert_eq!(read.len(), 100_000);
        let failed = pair.client.stats().qlogs_failed + pair.server.stats().qlogs_failed;
        assert!((1..=2).contains(&failed), "{failed}");
        assert!(pair.near.close_reason().is_none() && pair.far.close_reason().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_replaced_while_the_server_runs() {
    let (old, new) = (Identity::new(), Identity::new());
    let server = Endpoint::server(ANY, old.server(ALPN, TransportConfig::default())).unwrap();
    let accepting = server.clone();
    tokio::spawn(async move {
        accepting
            .serve(|connection| async move {
                connection.closed().await;
            })
            .await;
    });
    let client = Endpoint::client(ANY).unwrap();
    let address = server.local_addr().unwrap();
    let connect = async |identity: &Identity| {
        let config = identity.client(ALPN, TransportConfig::default());
        let connecting = client.connect_with(config, address, "localhost").unwrap();
        within(connecting).await
    };
    let first = connect(&old).await.unwrap();
    assert!(connect(&new).await.is_err());
    server
        .set_server_config(Some(new.server(ALPN, TransportConfig::default())))
        .unwrap();
    connect(&new).await.unwrap();
    assert!(connect(&old).await.is_err());
    // The existing connection continues.
    assert!(first.close_reason().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_present_certificates() {
    let (servers, clients) = (Identity::new(), Identity::new());
    let mut roots = RootCertStore::empty();
    roots.add(clients.certificate.clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), squall::provider())
        .build()
        .unwrap();
    let transport = TransportConfig::default().keep_peer_certificates(true);
    let mut config = servers.server(ALPN, transport);
    let (chain, key) = servers.chain_and_key();
    let mut tls = rustls::ServerConfig::builder_with_provider(squall::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    config.tls = Arc::new(tls);
    let server = Endpoint::server(ANY, config).unwrap();
    let mut config = servers.client(ALPN, TransportConfig::default());
    let mut roots = RootCertStore::empty();
    roots.add(servers.certificate.clone()).unwrap();
    let (chain, key) = clients.chain_and_key();
    let mut tls = rustls::ClientConfig::builder_with_provider(squall::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    config.tls = Arc::new(tls);
    let client = Endpoint::client(ANY).unwrap();
    let address = server.local_addr().unwrap();
    let connecting = client.connect_with(config, address, "localhost").unwrap();
    let (near, far) = meet(connecting, &server).await;
    let shown = far.unwrap().peer_certificates().unwrap();
    assert_eq!(shown, vec![clients.certificate.clone()]);
    drop(near.unwrap());
    // A client without a certificate is rejected.
    let anonymous = servers.client(ALPN, TransportConfig::default());
    let connecting = client
        .connect_with(anonymous, address, "localhost")
        .unwrap();
    let (near, far) = meet(connecting, &server).await;
    assert!(far.is_err());
    // A client may consider itself connected until the alert arrives (RFC 8446 §4.4.2.4).
    if let Ok(near) = near {
        within(near.closed()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_reports_its_properties() {
    let pair = Pair::new().await;
    assert_eq!(pair.near.version(), squall::VERSION_1);
    assert_eq!(
        pair.near.original_destination_id(),
        pair.far.original_destination_id()
    );
    assert_ne!(pair.near.stable_id(), pair.far.stable_id());
    assert_eq!(pair.near.stable_id(), pair.near.clone().stable_id());
    // A sample rather than the initial estimate; on a busy machine perhaps not the first one.
    within(async {
        while pair.near.stats().min_rtt >= Duration::from_millis(333) {
            let mut send = pair.near.open_uni().await.unwrap();
            send.write_all(b"a sample").await.unwrap();
            send.finish().unwrap();
            let _ = send.stopped().await;
        }
    })
    .await;
    let stats = pair.near.stats();
    assert!(stats.min_rtt > Duration::ZERO && stats.min_rtt <= stats.rtt.max(stats.min_rtt));

    // A weak handle does not keep it open.
    let weak = pair.near.downgrade();
    assert_eq!(weak.upgrade().unwrap().stable_id(), pair.near.stable_id());
    let far = pair.far.clone();
    drop(pair.near);
    assert!(weak.upgrade().is_none());
    within(far.closed()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_updated_on_demand() {
    let pair = Pair::new().await;
    // A server's handshake is confirmed when it is complete; HANDSHAKE_DONE informs the client.
    let mut updates = 0;
    while updates < 3 {
        updates += u64::from(pair.far.force_key_update());
        let mut send = pair.near.open_uni().await.unwrap();
        within(send.write_all(b"under the keys in use"))
            .await
            .unwrap();
        send.finish().unwrap();
        let mut recv = within(pair.far.accept_uni()).await.unwrap();
        within(recv.read_to_end(100)).await.unwrap();
        assert_eq!(within(send.stopped()).await, Ok(None));
    }
    assert_eq!(pair.far.stats().key_updates, 3);
    assert!(pair.near.stats().key_updates >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_datagram_queue_reports_its_free_space() {
    let blocked = TransportConfig::default().datagram_send_buffer(10_000);
    let pair = Pair::with(blocked, TransportConfig::default(), |builder| builder).await;
    let room = pair.near.datagram_send_buffer_space();
    assert!((9_000..10_000).contains(&room), "{room}");
    // Held by the lock of a call, the worker sends nothing meanwhile; queued ones take room.
    for _ in 0..20 {
        pair.near.send_datagram(vec![0; 1000].into()).unwrap();
        assert!(pair.near.datagram_send_buffer_space() <= room);
    }
    let last = within(pair.far.read_datagram()).await.unwrap();
    assert_eq!(last.len(), 1000);
}

/// An attempt shows where it came from, and is accepted with its own configuration.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_can_be_accepted_with_its_own_configuration() {
    let identity = Identity::new();
    let server = Builder::new(ANY)
        .server(identity.server(b"other", TransportConfig::default()))
        .retry_from(0)
        .bind()
        .unwrap();
    let client = Builder::new(ANY)
        .client(identity.client(ALPN, TransportConfig::default()))
        .bind()
        .unwrap();
    let connecting = client.connect(server.local_addr().unwrap(), "localhost");
    let accepting = async {
        let incoming = server.accept().await.unwrap();
        assert!(
            !incoming.may_retry(),
            "the client has already followed a Retry"
        );
        assert_eq!(incoming.local_ip(), Some(ANY.ip()));
        let original = incoming.original_destination_id();
        let config = identity.server(ALPN, TransportConfig::default());
        let far = incoming.accept_with(config).unwrap().await.unwrap();
        assert_eq!(far.original_destination_id(), original);
        far
    };
    let (near, far) = within(async { tokio::join!(connecting.unwrap(), accepting) }).await;
    let near = near.unwrap();
    assert_eq!(near.alpn().as_deref(), Some(ALPN));
    assert_eq!(
        near.original_destination_id(),
        far.original_destination_id()
    );

    // An invalid configuration is reported, but not through a connection.
    let _connecting = client
        .connect(server.local_addr().unwrap(), "localhost")
        .unwrap();
    let incoming = within(server.accept()).await.unwrap();
    let invalid = TransportConfig::default().max_udp_payload(1);
    let error = incoming
        .accept_with(identity.server(ALPN, invalid))
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_client_chooses_the_destination_of_its_first_packet() {
    let identity = Identity::new();
    let server = Endpoint::server(ANY, identity.server(ALPN, TransportConfig::default())).unwrap();
    let client = Endpoint::client(ANY).unwrap();
    let address = server.local_addr().unwrap();
    let config = |len: usize| {
        let config = identity.client(ALPN, TransportConfig::default());
        config.original_destination_id(move || ConnectionId::new(&[0xab; 20][..len]).unwrap())
    };
    for len in [8, 20] {
        let connecting = client
            .connect_with(config(len), address, "localhost")
            .unwrap();
        let incoming = within(server.accept()).await.unwrap();
        let id = incoming.original_destination_id();
        assert_eq!(id.as_slice(), &[0xab; 20][..len]);
        let (near, far) = within(async { tokio::join!(connecting, incoming.accept()) }).await;
        assert_eq!(near.unwrap().original_destination_id(), id);
        drop(far.unwrap());
    }
    // RFC 9000 §7.2
    for len in [0, 7] {
        let connecting = client
            .connect_with(config(len), address, "localhost")
            .unwrap();
        let Err(CloseReason::NotStarted(why)) = within(connecting).await else {
            panic!("{len} bytes");
        };
        assert!(why.contains("8 to 20 bytes"), "{why}");
    }
}

#[tokio::test]
async fn endpoints_with_the_same_seed_draw_the_same_ids() {
    let identity = Identity::new();
    let server = Endpoint::server(ANY, identity.server(ALPN, TransportConfig::default())).unwrap();
    let address = server.local_addr().unwrap();
    let mut drawn = Vec::new();
    for seed in [Some([7; 32]), Some([7; 32]), Some([8; 32]), None, None] {
        let client = identity.client(ALPN, TransportConfig::default());
        let mut builder = Builder::new(ANY).client(client).workers(2);
        builder.rng_seed = seed;
        let client = builder.bind().unwrap();
        let mut ids = Vec::new();
        // Two on each worker.
        for _ in 0..4 {
            let connecting = client.connect(address, "localhost").unwrap();
            let (near, far) = meet(connecting, &server).await;
            ids.push(near.unwrap().original_destination_id());
            drop(far);
        }
        drawn.push(ids);
    }
    assert_eq!(drawn[0], drawn[1]);
    let mut all = drawn[1..].concat();
    all.sort_unstable_by(|a, b| a.as_slice().cmp(b.as_slice()));
    all.dedup();
    assert_eq!(all.len(), 16, "all others differ");
}

#[tokio::test]
async fn settings_control_which_datagrams_are_answered_with_resets() {
    let identity = Identity::new();
    for (greases, resets, answered) in [
        (true, 1000, [true, true]),
        (false, 1000, [false, true]),
        (true, 0, [false, false]),
    ] {
        let config = identity.server(ALPN, TransportConfig::default());
        let server = Builder::new(ANY).server(config).grease_quic_bit(greases);
        let server = server.stateless_resets_per_second(resets).bind().unwrap();
        let socket = tokio::net::UdpSocket::bind(ANY).await.unwrap();
        for (first, is_answered) in [0x00, 0x40].into_iter().zip(answered) {
            let mut datagram = [7; 60];
            datagram[0] = first;
            let to = server.local_addr().unwrap();
            let before = server.stats();
            socket.send_to(&datagram, to).await.unwrap();
            let counts = within(async {
                loop {
                    let now = server.stats();
                    let handled = (now.responses + now.runs_discarded)
                        - (before.responses + before.runs_discarded);
                    if handled > 0 {
                        break now;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
            let responses = counts.await.responses - before.responses;
            assert_eq!(
                responses,
                u64::from(is_answered),
                "{greases} {resets} {first:#x}"
            );
        }
    }
}
