//! Handshakes, keys, and the ends of connections.

use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::VarInt;
use rustls::NamedGroup;
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use squall::{CloseReason, TransportConfig};
use tokio::task::JoinSet;

use super::pair::{BOTH, Pair, SquallIs, quinn_client, quinn_server, quinn_tls};
use super::traffic::{answer_late, ask, transfer};
use crate::payload::Payload;
use crate::setup::{Identity, NAME, run, squall_client, squall_server};

#[test]
fn a_close_by_quinn_is_reported() {
    for role in BOTH {
        run(0, async {
            let pair = Pair::new(role).await;
            // The largest code in QUIC.
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

/// Post-quantum and classical key exchanges, as the peer supports them (RFC 9001 §4: any of TLS).
#[test]
fn the_key_exchange_is_one_that_the_peer_supports() {
    use aws_lc_rs::kx_group::{SECP256R1, X25519, X25519MLKEM768};
    let offers: [(&[&'static dyn rustls::crypto::SupportedKxGroup], NamedGroup); 4] = [
        (&[X25519MLKEM768, X25519], NamedGroup::X25519MLKEM768),
        (&[X25519MLKEM768], NamedGroup::X25519MLKEM768),
        (&[X25519], NamedGroup::X25519),
        // No key share of squall's client matches: a HelloRetryRequest, and a second ClientHello.
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
fn every_cipher_suite_can_be_negotiated() {
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
                exporters_agree(&pair);
            });
        }
    }
}

/// Both ends export the same key material, long after the handshake (RFC 8446 §7.5).
fn exporters_agree(pair: &Pair) {
    for (label, context, len) in [
        (&b"EXPORTER-interop"[..], &b""[..], 32),
        (b"EXPORTER-interop", b"context", 31),
        (&[b'a'; 249], &[1; 5000], 255 * 32),
    ] {
        let (mut squall, mut quinn) = (vec![0; len], vec![1; len]);
        let exported = (pair.squall).export_keying_material(&mut squall, label, context);
        assert_eq!(exported, Ok(()));
        let exported = (pair.quinn).export_keying_material(&mut quinn, label, context);
        exported.expect("quinn's handshake is complete as well");
        assert_eq!(squall, quinn, "{} bytes", label.len());
    }
}

/// Keys are updated by one end and the other follows, while data flows (RFC 9001 §6).
#[test]
fn key_updates_by_either_end_are_followed() {
    const UPDATES: u64 = 4;
    for role in BOTH {
        for by_squall in [true, false] {
            run(0, async {
                let transport = if by_squall {
                    TransportConfig::default().key_update_after(200)
                } else {
                    TransportConfig::default()
                };
                let pair = Pair::with(role, transport, quinn_tls()).await;
                // On a busy machine a probe timeout may be longer, which takes more transfers.
                for _ in 0..5 * UPDATES {
                    if !by_squall {
                        pair.quinn.force_key_update();
                    }
                    transfer(&pair, 1_000_000).await;
                    // The next update is allowed once the previous keys are dropped, after three
                    // probe timeouts (RFC 9001 §6.5), each of which allows 25 ms for delayed
                    // acknowledgements.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    if pair.squall.stats().key_updates >= UPDATES {
                        break;
                    }
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

/// One endpoint of each, many simultaneous connections; quinn's later ones resume the TLS session
/// of the first.
#[test]
fn many_connections_work_concurrently() {
    const CONNECTIONS: u64 = 50;
    for role in BOTH {
        run(0, async {
            let Pair {
                squall,
                quinn,
                endpoints: (squall_end, quinn_end),
            } = Pair::new(role).await;
            // The asking end closes when it has its answer, with a datagram that a full buffer may
            // swallow: so do not wait for the answering ends.
            let (mut asking, mut answering) = (JoinSet::new(), JoinSet::new());
            for seed in 0..CONNECTIONS {
                let (squall_end, quinn_end) = (squall_end.clone(), quinn_end.clone());
                let payload = Payload { seed, len: 20_000 };
                match role {
                    SquallIs::Client => {
                        asking.spawn(async move {
                            let to = quinn_end.local_addr().expect("an address");
                            let connecting = squall_end.connect(to, NAME).expect("a start");
                            let connection = connecting.await.expect("squall's handshake");
                            let (to, from) = connection.open_bi().await.expect("squall opens");
                            ask(to, from, payload).await;
                        });
                    }
                    SquallIs::Server => {
                        asking.spawn(async move {
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
                match role {
                    SquallIs::Client => {
                        let incoming = quinn_end.accept().await.expect("an attempt");
                        answering.spawn(async move {
                            let connection = incoming.await.expect("quinn's handshake");
                            let (to, from) = connection.accept_bi().await.expect("quinn accepts");
                            answer_late(to, from).await;
                            connection.closed().await;
                        });
                    }
                    SquallIs::Server => {
                        let incoming = squall_end.accept().await.expect("an attempt");
                        answering.spawn(async move {
                            let connection = incoming.await.expect("squall's handshake");
                            let (to, from) = connection.accept_bi().await.expect("squall accepts");
                            answer_late(to, from).await;
                            connection.closed().await;
                        });
                    }
                }
            }
            while let Some(task) = asking.join_next().await {
                task.expect("a connection's end");
            }
            // The first connection is unaffected.
            assert_eq!((squall.close_reason(), quinn.close_reason()), (None, None));
        });
    }
}

/// Silence ends a connection at both ends, after the shorter of the two timeouts (RFC 9000 §10.1).
#[test]
fn a_silent_connection_times_out() {
    for role in BOTH {
        // An end that a busy machine delays this long may still send something after the other has
        // forgotten the connection, and be answered with a reset: if so, try again.
        let ended = [500, 2000, 5000].into_iter().any(|millis| {
            run(
                0,
                a_silent_pair_times_out(role, Duration::from_millis(millis)),
            )
        });
        assert!(
            ended,
            "{role:?}: one of the ends was delayed in every attempt"
        );
    }
}

/// Whether both ends of a silent connection ended it by themselves.
async fn a_silent_pair_times_out(role: SquallIs, idle: Duration) -> bool {
    let short = TransportConfig::default().max_idle_timeout(idle);
    let Pair {
        squall,
        quinn,
        endpoints: _endpoints,
    } = Pair::with(role, short, quinn_tls()).await;
    let began = Instant::now();
    let ends = tokio::join!(squall.closed(), quinn.closed());
    let took = began.elapsed();
    use quinn::ConnectionError::{Reset, TimedOut};
    match ends {
        (CloseReason::IdleTimeout, TimedOut) => {
            assert!((idle / 2..idle * 8).contains(&took), "{took:?}");
            true
        }
        (CloseReason::IdleTimeout, Reset) | (CloseReason::Reset, TimedOut) => false,
        ends => panic!("{ends:?}"),
    }
}

/// A client that does not trust the certificate: both ends see the same alert (RFC 9001 §4.8).
#[test]
fn an_untrusted_certificate_is_rejected() {
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

/// squall's handshake ended with the alert that quinn saw, raised by the peer (`by_peer`) or by
/// squall.
fn assert_alert(error: &CloseReason, at_quinn: u64, by_peer: bool) {
    let CloseReason::Transport { code, remote, .. } = error else {
        panic!("squall saw {error}");
    };
    assert_eq!((code.0, *remote), (at_quinn, by_peer));
    // RFC 9001 §4.8: 0x0100 and a TLS alert.
    assert!((0x0100..0x0200).contains(&code.0), "{code} is no alert");
}
