//! Data on streams.

use std::sync::atomic::Ordering;
use std::time::Duration;

use quinn::VarInt;
use squall::TransportConfig;
use tokio::task::JoinSet;

use super::pair::{BOTH, Pair, SquallIs, quinn_client, quinn_server, quinn_tls};
use super::traffic::{
    answer, ask, quinn_receive_chunks, quinn_send_chunks, receive, receive_header, send,
    squall_receive_chunks, squall_send_chunks, transfer,
};
use crate::payload::{Payload, transfer_size};
use crate::proxy::{Faults, Proxy};
use crate::setup::{Identity, run, squall_client, squall_server};

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

/// More streams than are allowed at a time, in both directions, from both ends: the credit of every
/// stream must be returned.
#[test]
fn many_streams_transfer_data_both_ways() {
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
fn a_reset_is_reported() {
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

/// A reader stops a writer midway; the other half of the stream continues.
#[test]
fn a_stop_is_reported() {
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

/// A writer blocked by flow control continues once its data is read.
#[test]
fn flow_control_blocks_and_releases_the_writer() {
    for role in BOTH {
        let bytes = 3_000_000;
        run(bytes, async {
            let small = TransportConfig::default()
                .initial_stream_window(10_000)
                .initial_window(15_000)
                .stream_receive_window(20_000)
                .receive_window(30_000);
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
                "{sent} bytes arrived although the stream window is 10,000"
            );
            from.read_exact(&mut [0]).await.expect("squall reads");
            squall_receive_chunks(from, payload).await;
            sending.await.expect("quinn's stream");
        });
    }
}

/// Faults in the network, from the first datagram of the handshake on.
const FAULTS: Faults = Faults {
    loss: 5,
    duplication: 2,
    reordering: 5,
    corruption: 1,
    rebind_after: 0,
};

/// Datagrams lost, late, twice or damaged.
#[test]
fn a_transfer_survives_a_bad_network() {
    for role in BOTH {
        for seed in 0..5 {
            run(0, async {
                let identity = Identity::new();
                let transport = TransportConfig::default();
                // The proxy ends with the runtime.
                let (pair, proxy) = match role {
                    SquallIs::Client => {
                        let server = quinn_server(&identity, quinn_tls());
                        let proxy =
                            Proxy::start(server.local_addr().expect("an address"), seed, FAULTS)
                                .await;
                        let client = squall_client(&identity, transport);
                        (
                            Pair::of_squall_client(client, server, proxy.address).await,
                            proxy,
                        )
                    }
                    SquallIs::Server => {
                        let server = squall_server(&identity, transport);
                        let proxy =
                            Proxy::start(server.local_addr().expect("an address"), seed, FAULTS)
                                .await;
                        let client = quinn_client(identity.roots(), quinn_tls());
                        (
                            Pair::of_squall_server(server, client, proxy.address).await,
                            proxy,
                        )
                    }
                };
                transfer(&pair, 500_000).await;
                let lost = proxy.counts.lost.load(Ordering::Relaxed);
                assert!(lost > 0 && pair.squall.stats().packets_lost > 0);
            });
        }
    }
}
