//! Transfers through a bad network and over failing offloads, on real sockets.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::proxy::{Faults, Proxy};
use common::{Pair, endpoints, meet, pattern, within};
use squall::{Bytes, Connection, TransportConfig};

/// Sends `len` bytes of a pattern on a new stream and checks what arrives. `in_the_middle` is
/// called for every chunk after the first half.
async fn transfer(from: &Connection, to: &Connection, len: usize, in_the_middle: impl Fn()) {
    let sent = Bytes::from(pattern(len, 7));
    let wanted = sent.clone();
    let mut send = from.open_uni().await.unwrap();
    let writing = async {
        send.write_chunk(sent).await.unwrap();
        send.finish().unwrap();
        assert_eq!(send.stopped().await, Ok(None));
    };
    let reading = async {
        let mut recv = to.accept_uni().await.unwrap();
        let mut at = 0;
        while let Some(chunk) = recv.read_chunk(usize::MAX).await.unwrap() {
            assert_eq!(chunk, wanted[at..at + chunk.len()], "at {at}");
            at += chunk.len();
            if at >= len / 2 {
                in_the_middle();
            }
        }
        assert_eq!(at, len);
    };
    tokio::join!(writing, reading);
}

/// With ten seeds, 10 MB arrive intact, also through a NAT that loses its binding midway.
#[tokio::test(flavor = "multi_thread")]
async fn ten_megabytes_arrive_whole_over_a_bad_network() {
    let faults = Faults {
        loss: 2,
        duplication: 2,
        reordering: 5,
        corruption: 1,
        rebind_after: 1000,
    };
    for seed in 0..10 {
        let (server, client) = endpoints(TransportConfig::default);
        let proxy = Proxy::start(server.local_addr().unwrap(), seed, faults).await;
        let connecting = client.connect(proxy.address, "localhost").unwrap();
        let (near, far) = meet(connecting, &server).await;
        let (near, far) = (near.unwrap(), far.unwrap());
        // The client sends, since its datagrams are the ones that change their port.
        let began = std::time::Instant::now();
        tokio::time::timeout(
            Duration::from_secs(60),
            transfer(&near, &far, 10_000_000, || {}),
        )
        .await
        .expect("a minute is over");
        let counts = &proxy.counts;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        println!(
            "seed {seed}: {:.2} s, {counts:?}",
            began.elapsed().as_secs_f64()
        );
        for counter in [
            &counts.lost,
            &counts.doubled,
            &counts.held,
            &counts.corrupted,
            &counts.rebound,
        ] {
            assert!(count(counter) > 0, "{counts:?}");
        }
        assert!(near.stats().packets_lost > 0 && far.stats().packets_duplicate > 0);
    }
}

// test: SECURITY.md row 38: GSO that fails in the middle of a transfer is healed at once
#[tokio::test(flavor = "multi_thread")]
async fn gso_failing_in_mid_transfer_loses_nothing() {
    for errno in [libc::EIO, libc::EINVAL, libc::EMSGSIZE] {
        for gro in [true, false] {
            let pair = Pair::with(
                TransportConfig::default(),
                TransportConfig::default(),
                |builder| builder.gro(gro),
            )
            .await;
            let fallbacks = || pair.client.stats().udp.gso_fallbacks;
            within(transfer(&pair.near, &pair.far, 20_000_000, || {
                // The call that meets the error may not begin with a bundle: if so, try again.
                if fallbacks() == 0 {
                    pair.client.inject_send_error(errno);
                }
            }))
            .await;
            assert!(fallbacks() > 0, "errno {errno}: it was meant to fail");
            // What the kernel refused is sent again in the same call: every datagram of the
            // connection is in flight, except single ones that met the error, and nothing waits for
            // a timer.
            within(async {
                loop {
                    let (made, udp) = (pair.near.stats().datagrams_sent, pair.client.stats().udp);
                    let refused = udp.send_errors + udp.send_too_large;
                    if udp.datagrams_sent + refused == made {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
            assert_eq!(
                pair.client.stats().udp.gso_disabled > 0,
                errno == libc::EIO,
                "EIO switches the offload off, a refused size does not"
            );
        }
    }
}

/// Every combination of offloads carries the same bytes.
#[tokio::test(flavor = "multi_thread")]
async fn every_combination_of_offloads_transfers_the_same_bytes() {
    for (gso, gro) in [(true, true), (true, false), (false, true), (false, false)] {
        let pair = Pair::with(
            TransportConfig::default(),
            TransportConfig::default(),
            |builder| builder.gso(gso).gro(gro),
        )
        .await;
        within(transfer(&pair.near, &pair.far, 3_000_000, || {})).await;
        assert_eq!(pair.client.limits().gso_segments > 1, gso);
        assert_eq!(pair.client.limits().gro, gro);
        if gso {
            // Bundles arrive whole, or datagrams of one receive call are joined.
            let stats = pair.far.stats();
            assert!(stats.datagrams_received > 3 * stats.runs, "{stats:?}");
        }
    }
}
