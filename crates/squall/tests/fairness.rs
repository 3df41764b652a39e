//! Connections of one worker that all have more to send than fits get the same share.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{endpoints, meet, within};
use squall::{Bytes, TransportConfig};

const CONNECTIONS: usize = 10;
/// All connections start together; their first megabytes are not counted.
const SETTLE: u64 = 20_000_000;
const COUNTED: u64 = 1_000_000_000;
/// On a busy machine, who loses a packet last decides a single round.
const ROUNDS: usize = 5;

/// Jain's index: 1 where all have the same, 1/n where one has all.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = (
        shares.iter().sum::<f64>(),
        shares.iter().map(|s| s * s).sum::<f64>(),
    );
    sum * sum / (shares.len() as f64 * squares)
}

/// The index of connections made for the purpose, over what each received.
async fn one_round() -> f64 {
    let transport = || TransportConfig::default().max_udp_payload(1472);
    let (server, client) = endpoints(transport);
    let received: Arc<Vec<AtomicU64>> = Arc::new((0..CONNECTIONS).map(|_| 0.into()).collect());
    let mut kept = Vec::new();
    for n in 0..CONNECTIONS {
        let connecting = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap();
        let (near, far) = meet(connecting, &server).await;
        let (near, far) = (near.unwrap(), far.unwrap());
        let mut send = far.open_uni().await.unwrap();
        far.spawn(async move {
            let piece = Bytes::from(vec![7; 256 * 1024]);
            while send.write_chunk(piece.clone()).await.is_ok() {}
        });
        let (reader, received) = (near.clone(), Arc::clone(&received));
        near.spawn(async move {
            let mut recv = reader.accept_uni().await.unwrap();
            while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX).await {
                received[n].fetch_add(chunk.len() as u64, Ordering::Relaxed);
            }
        });
        kept.push((near, far));
    }
    let shares = || -> Vec<u64> { received.iter().map(|r| r.load(Ordering::Relaxed)).collect() };
    let reach = async |bytes: u64| {
        while shares().iter().sum::<u64>() < bytes {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        shares()
    };
    let before = within(reach(SETTLE)).await;
    let after = within(reach(SETTLE + COUNTED)).await;
    let shares: Vec<f64> = (before.iter().zip(&after))
        .map(|(b, a)| (a - b) as f64)
        .collect();
    drop(kept);
    jain(&shares)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn saturated_connections_share_a_worker() {
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        let index = one_round().await;
        println!("Jain's index {index:.3}");
        best = best.max(index);
        // Where a connection keeps its turn for as long as it has data, the best of a round is
        // 0.50 to 0.87; by turns instead of bytes it was 0.74 to 0.82.
        if best > 0.93 {
            return;
        }
    }
    panic!("the best of {ROUNDS} rounds is {best}");
}
