//! Flow control as applications see it: streams that are not read, windows, and the credit that
//! writers wait for.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::time::Duration;

use common::{Pair, pattern, until, within};
use squall::{Bytes, Connection, SendStream, TransportConfig};

/// More than any window of a stream.
const LONG: usize = 8 << 20;

/// Writes to a stream until the other end stops it or the connection ends.
fn write_for_ever(mut send: SendStream) {
    tokio::spawn(async move {
        let bytes = Bytes::from(vec![1; 64 * 1024]);
        while send.write_chunk(bytes.clone()).await.is_ok() {}
    });
}

/// Opens `unread` streams whose data is not read, then moves `LONG` bytes over one more.
async fn transfer_next_to_unread(from: &Connection, to: &Connection, unread: usize) {
    let mut kept = Vec::new();
    for _ in 0..unread {
        let mut send = from.open_uni().await.unwrap();
        send.write_all(&[1]).await.unwrap();
        write_for_ever(send);
        kept.push(within(to.accept_uni()).await.unwrap());
    }
    let mut fast = from.open_uni().await.unwrap();
    let writer = tokio::spawn(async move {
        fast.write_chunk(Bytes::from(vec![2; LONG])).await.unwrap();
        fast.finish().unwrap();
        fast
    });
    let mut recv = within(to.accept_uni()).await.unwrap();
    let mut received = 0;
    while let Some(chunk) = within(recv.read_chunk(usize::MAX)).await.unwrap() {
        received += chunk.len();
    }
    assert_eq!(received, LONG);
    within(writer).await.unwrap();
    drop(kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_do_not_block_another() {
    for unread in [1, 4, 20] {
        let pair = Pair::new().await;
        transfer_next_to_unread(&pair.far, &pair.near, unread).await;
        // The windows of 20 unread streams leave so little room that a reader that briefly falls
        // behind may fill it; those of 4 leave as much as the stream could take.
        if unread <= 4 {
            assert_eq!(pair.near.stats().blocked_by_unread_data, 0);
        }
        let pair = Pair::new().await;
        transfer_next_to_unread(&pair.near, &pair.far, unread).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_unread_streams_do_not_block_another_within_the_receive_window() {
    let transport = || {
        TransportConfig::default()
            .max_concurrent_uni_streams(101)
            .receive_window(101 * 512 * 1024 + (1 << 20))
    };
    let pair = Pair::with(transport(), transport(), |builder| builder).await;
    transfer_next_to_unread(&pair.far, &pair.near, 100).await;
    let pair = Pair::with(transport(), transport(), |builder| builder).await;
    transfer_next_to_unread(&pair.near, &pair.far, 100).await;
}

// test: RFC 9000 §4.1
#[tokio::test(flavor = "multi_thread")]
async fn unread_data_that_fills_the_receive_window_is_counted() {
    let small = TransportConfig::default()
        .initial_window(256 * 1024)
        .receive_window(512 * 1024);
    let pair = Pair::with(small, TransportConfig::default(), |builder| builder).await;
    write_for_ever(pair.far.open_uni().await.unwrap());
    let unread = within(pair.near.accept_uni()).await.unwrap();
    until(|| pair.near.stats().blocked_by_unread_data > 0).await;
    drop(unread);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_accepts_no_more_than_the_peers_stream_credit() {
    const CREDIT: u64 = 100_000;
    let peer = TransportConfig::default()
        .initial_stream_window(CREDIT)
        .stream_receive_window(CREDIT);
    let pair = Pair::with(peer, TransportConfig::default(), |builder| builder).await;
    let mut send = pair.far.open_uni().await.unwrap();
    let bytes = vec![3; 4 * CREDIT as usize];
    let mut written = 0;
    while written < CREDIT {
        written += within(send.write(&bytes)).await.unwrap() as u64;
    }
    assert_eq!(written, CREDIT);
    let mut next = std::pin::pin!(send.write(&bytes));
    let soon = std::time::Duration::from_millis(50);
    assert!(tokio::time::timeout(soon, &mut next).await.is_err());
    // The peer learns what blocks us (RFC 9000 §19.13), and its reading wakes the writer.
    until(|| pair.near.stats().stream_data_blocked_received > 0).await;
    let mut recv = within(pair.near.accept_uni()).await.unwrap();
    let mut read = 0;
    while read < CREDIT {
        let chunk = within(recv.read_chunk(usize::MAX)).await.unwrap().unwrap();
        read += chunk.len() as u64;
    }
    assert!(within(next).await.unwrap() > 0);
}

/// Limits of a connection can be changed while it is in use.
#[tokio::test(flavor = "multi_thread")]
async fn stream_limits_can_change_while_the_connection_is_in_use() {
    let few = TransportConfig::default()
        .max_concurrent_bidi_streams(2)
        .max_concurrent_uni_streams(0);
    let pair = Pair::with(TransportConfig::default(), few, |builder| builder).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(within(pair.near.open_bi()).await.unwrap());
    }
    let (third, uni) = (pair.near.clone(), pair.near.clone());
    let third = tokio::spawn(async move { third.open_bi().await });
    let uni = tokio::spawn(async move { uni.open_uni().await });
    tokio::task::yield_now().await;
    assert!(!third.is_finished() && !uni.is_finished());
    pair.far.set_max_concurrent_bidi_streams(3);
    within(third).await.unwrap().unwrap();
    assert!(!uni.is_finished());
    pair.far.set_max_concurrent_uni_streams(1);
    within(uni).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_can_change_while_the_connection_is_in_use() {
    const SMALL: u64 = 100_000;
    let narrow = TransportConfig::default()
        .initial_window(SMALL)
        .receive_window(SMALL);
    let short = TransportConfig::default().send_window(SMALL);
    let pair = Pair::with(short, narrow, |builder| builder).await;
    let mut send = pair.near.open_uni().await.unwrap();
    send.write_all(b"there is a stream").await.unwrap();
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    // Nobody reads: about a receive window and a send window are accepted.
    let bytes = pattern(1_000_000, 1);
    let mut rest = bytes.as_slice();
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(300), send.write(rest)).await
    {
        rest = &rest[written.unwrap()..];
    }
    let taken = bytes.len() - rest.len();
    assert!(taken as u64 <= 2 * SMALL, "{taken}");
    pair.near.set_send_window(6 * SMALL);
    let (more, rest) = rest.split_at(3 * SMALL as usize);
    within(send.write_all(more)).await.unwrap();
    pair.far.set_receive_window(50 * SMALL);
    let mut read = 0;
    let reading = tokio::spawn(async move {
        while read < 17 + 1_000_000 {
            read += recv.read_chunk(usize::MAX).await.unwrap().unwrap().len();
        }
    });
    within(send.write_all(rest)).await.unwrap();
    within(reading).await.unwrap();
}

/// A window of zero pauses the peer, even after all that it could send has been read.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_zero_pauses_the_peer_until_it_is_raised() {
    const WINDOW: u64 = 100_000;
    let narrow = TransportConfig::default()
        .initial_window(WINDOW)
        .receive_window(WINDOW);
    let pair = Pair::with(TransportConfig::default(), narrow, |builder| builder).await;
    pair.far.set_receive_window(0);
    let bytes = pattern(500_000, 1);
    let mut send = pair.near.open_uni().await.unwrap();
    let sending = {
        let bytes = bytes.clone();
        tokio::spawn(async move {
            send.write_last(&bytes).await.unwrap();
            send
        })
    };
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    let mut read = Vec::new();
    while let Ok(chunk) =
        tokio::time::timeout(Duration::from_millis(300), recv.read_chunk(usize::MAX)).await
    {
        read.extend_from_slice(&chunk.unwrap().unwrap());
    }
    assert_eq!(
        read.len() as u64,
        WINDOW,
        "the peer sends no more than was granted"
    );
    pair.far.set_receive_window(WINDOW);
    read.extend(within(recv.read_to_end(bytes.len())).await.unwrap());
    assert!(read == bytes);
    within(sending).await.unwrap();
}

#[tokio::test]
async fn windows_too_small_for_anything_are_rejected() {
    let identity = common::Identity::new();
    let default = TransportConfig::default;
    for transport in [
        default().initial_window(0).receive_window(0),
        default().initial_window(0),
        default().initial_stream_window(0),
    ] {
        let server = identity.server(common::ALPN, transport);
        let error = squall::Endpoint::server(common::ANY, server).unwrap_err();
        assert!(error.to_string().contains("set_receive_window"), "{error}");
    }
}
