//! HTTP datagrams (RFC 9297) with h3-datagram.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use bytes::Buf;
use common::{Transport, within};
use h3_datagram::datagram_handler::{HandleDatagramsExt, SendDatagramError};
use http::Request;
use squall::{Bytes, TransportConfig};

/// Makes a client send `payload` in a datagram of its first request; returns what the server reads.
async fn send(server: TransportConfig, payload: Bytes) -> Result<Bytes, SendDatagramError> {
    let transport = Transport::new(server).await;
    let far = transport.far.clone();
    let receiving = tokio::spawn(async move {
        let mut server: common::Server = h3::server::builder()
            .enable_datagram(true)
            .build(h3_squall::Connection::new(far))
            .await
            .unwrap();
        let request = server.accept().await.unwrap().unwrap();
        let (_, stream) = request.resolve_request().await.unwrap();
        let mut reader = server.get_datagram_reader();
        let datagram = reader.read_datagram().await.unwrap();
        assert_eq!(datagram.stream_id(), stream.id());
        let mut payload = datagram.into_payload();
        payload.copy_to_bytes(payload.remaining())
    });
    let connection = h3_squall::Connection::new(transport.near.clone());
    let mut builder = h3::client::builder();
    let client = builder.enable_datagram(true).build(connection);
    let (mut driver, mut requests) = within(client).await.unwrap();
    let request = Request::connect("https://localhost/").body(()).unwrap();
    let stream = within(requests.send_request(request)).await.unwrap();
    let mut sender = driver.get_datagram_sender(stream.id());
    tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    sender.send_datagram(payload)?;
    Ok(within(receiving).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_belong_to_their_request() {
    let received = send(TransportConfig::default(), "unreliable".into()).await;
    assert_eq!(received.unwrap(), "unreliable");
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_that_cannot_be_sent_have_distinct_errors() {
    let long = send(TransportConfig::default(), vec![0; 100_000].into()).await;
    assert!(
        matches!(long, Err(SendDatagramError::TooLarge { .. })),
        "{long:?}"
    );
    let off = TransportConfig::default().datagram_receive_buffer(0);
    let none = send(off, "unreliable".into()).await;
    assert!(
        matches!(none, Err(SendDatagramError::NotAvailable { .. })),
        "{none:?}"
    );
}
