//! Faults that the operating system may cause in a worker: the endpoint lives on, or reports why
//! not.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod refusals;

use common::{ALPN, ANY, Identity, pattern, within};
use squall::{Builder, Connection, Endpoint, TransportConfig};

const EAGAIN: i32 = 11;
const EBADF: i32 = 9;

fn server(identity: &Identity, workers: usize) -> Endpoint {
    let config = identity.server(ALPN, TransportConfig::default());
    let builder = Builder::new(ANY).server(config).workers(workers);
    builder.bind().unwrap()
}

fn client(identity: &Identity) -> Endpoint {
    let config = identity.client(ALPN, TransportConfig::default());
    Builder::new(ANY).client(config).bind().unwrap()
}

/// Both ends of a new connection. Unfinished attempts of other clients, left behind by tests, are
/// skipped.
async fn connect(client: &Endpoint, server: &Endpoint) -> (Connection, Connection) {
    let connecting = client.connect(server.local_addr().unwrap(), "localhost");
    let accepting = async {
        loop {
            let incoming = server.accept().await.unwrap();
            if incoming.remote_address().port() == client.local_addr().unwrap().port() {
                return incoming.await;
            }
        }
    };
    let (near, far) = within(async { tokio::join!(connecting.unwrap(), accepting) }).await;
    (near.unwrap(), far.unwrap())
}

/// Sends a message of a few packets and waits until the peer has acknowledged it.
async fn deliver(from: &Connection, to: &Connection) {
    let bytes = pattern(5_000, 1);
    let mut send = within(from.open_uni()).await.unwrap();
    within(send.write_all(&bytes)).await.unwrap();
    send.finish().unwrap();
    let mut recv = within(to.accept_uni()).await.unwrap();
    assert!(within(recv.read_to_end(bytes.len())).await.unwrap() == bytes);
    assert_eq!(within(send.stopped()).await, Ok(None));
}
