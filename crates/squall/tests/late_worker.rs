//! A worker that finds more datagrams than it reads at once, and timers that are long overdue.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::time::Duration;

use common::{ALPN, ANY, Identity, within};
use squall::{Builder, TransportConfig};

/// More sockets, each with a message, than one receive call takes.
const CLIENTS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_late_worker_reads_acknowledgements_before_it_probes() {
    let identity = Identity::new();
    let server = Builder::new(ANY)
        .server(identity.server(ALPN, TransportConfig::default()))
        .bind()
        .unwrap();
    let (mut clients, mut served) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let client = Builder::new(ANY)
            .client(identity.client(ALPN, TransportConfig::default()))
            .on_runtime(tokio::runtime::Handle::current())
            .bind()
            .unwrap();
        let near = client.connect(server.local_addr().unwrap(), "localhost");
        let far = within(server.accept()).await.unwrap().accept();
        let (near, far) = tokio::join!(within(near.unwrap()), within(far));
        clients.push((client, near.unwrap()));
        served.push(far.unwrap());
    }
    // Handshakes are acknowledged.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before: u64 = served.iter().map(|c| c.stats().probe_timeouts).sum();
    // No client answers before the server's worker is blocked from reading.
    let (begun, clients_wait) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        begun.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    });
    clients_wait.await.unwrap();
    let sending = served.clone();
    let late = server.spawn(async move {
        let mut streams = Vec::new();
        for connection in &sending {
            let mut stream = connection.open_uni().await.unwrap();
            stream.write_all(&[7; 100]).await.unwrap();
            streams.push(stream);
        }
        // The worker sends meanwhile.
        tokio::time::sleep(Duration::from_millis(1)).await;
        std::thread::sleep(Duration::from_secs(1));
        // The worker's next turn comes before its runtime looks at sockets.
        streams[0].write_all(&[8; 100]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        streams
    });
    let streams = within(late).await.unwrap();
    let probes: u64 = served.iter().map(|c| c.stats().probe_timeouts).sum();
    // If timers did not wait, more than half of the connections would probe. A client that the
    // system keeps from running for a second may cost one.
    assert!(probes - before < CLIENTS as u64 / 4, "{probes}, {before}");
    drop(streams);
}
