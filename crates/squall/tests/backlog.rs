//! Datagrams that collect in the socket while a worker is busy are acknowledged together.
//!
//! On Linux, where there are bundles.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Pair, within};
use squall::{AckFrequencyRequest, TransportConfig};
use tokio::sync::oneshot;

const DATAGRAM: u16 = 1000;
const BUNDLES: u64 = 8;
/// Stream data of this many bundles of 64 datagrams, with a short last datagram.
const BACKLOG: usize = BUNDLES as usize * 64 * (DATAGRAM as usize - 40);
/// Bundles of one receive call: `RECV_BYTES` of the worker.
const BUNDLES_A_CALL: u64 = 2;
/// A busy machine may let the client run before everything has arrived.
const ATTEMPTS: u32 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn four_receive_calls_are_acknowledged_once() {
    let transport = TransportConfig::default()
        .max_udp_payload(DATAGRAM)
        .initial_stream_window(1 << 30)
        .stream_receive_window(1 << 30)
        .initial_window(1 << 30)
        .receive_window(1 << 30)
        .pacing(false)
        // RFC 9000 §13.2.2: two packets are enough for an acknowledgement.
        .ack_frequency(AckFrequencyRequest::Nothing);
    let pair = within(Pair::with(transport.clone(), transport, |builder| builder)).await;
    let mut send = within(pair.far.open_uni()).await.unwrap();
    send.write_all(b"x").await.unwrap();
    let mut recv = within(pair.near.accept_uni()).await.unwrap();
    within(recv.read_exact(&mut [0])).await.unwrap();
    let reader =
        tokio::spawn(async move { while let Ok(Some(_)) = recv.read_chunk(usize::MAX).await {} });

    let data = Bytes::from(vec![7; BACKLOG]);
    let mut fewest = u64::MAX;
    for _ in 0..ATTEMPTS {
        let before = pair.near.stats();
        let (busy, is_busy) = oneshot::channel();
        pair.client.spawn(async move {
            busy.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        });
        is_busy.await.unwrap();
        send.write_chunk(data.clone()).await.unwrap();
        within(async {
            while pair.far.stats().bytes_in_flight > 0
                || pair.near.stats().bytes_received == before.bytes_received
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        let after = pair.near.stats();
        // While the window grows, less is sent at a time.
        if after.runs - before.runs <= BUNDLES + 1 {
            fewest = fewest.min(after.acks_sent - before.acks_sent);
        }
        if fewest <= BUNDLES / BUNDLES_A_CALL / 4 {
            break;
        }
    }
    assert!(
        fewest <= BUNDLES / BUNDLES_A_CALL / 4,
        "{fewest} acknowledgements of {BUNDLES} bundles"
    );
    reader.abort();
}
