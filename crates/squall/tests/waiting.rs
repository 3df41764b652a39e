//! The futures of endpoints and connections by their names: kept in structures, polled by hand,
//! dropped.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{Pair, within};
use squall::{
    Accept, AcceptBi, AcceptUni, Bytes, CloseReason, Closed, Connection, OpenBi, OpenUni,
    ReadDatagram, RecvStream, SendDatagram, SendStream, TransportConfig,
};

/// What an adaptor to a trait with `poll_…` functions keeps between calls.
struct Adaptor {
    connection: Connection,
    accepting: Option<AcceptBi>,
    opening: Option<OpenUni>,
    reading: Option<ReadDatagram>,
}

impl Adaptor {
    fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), CloseReason>> {
        let accepting = (self.accepting).get_or_insert_with(|| self.connection.accept_bi());
        let result = std::task::ready!(Pin::new(accepting).poll(cx));
        self.accepting = None;
        Poll::Ready(result)
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream, CloseReason>> {
        let opening = (self.opening).get_or_insert_with(|| self.connection.open_uni());
        let result = std::task::ready!(Pin::new(opening).poll(cx));
        self.opening = None;
        Poll::Ready(result)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, CloseReason>> {
        let reading = (self.reading).get_or_insert_with(|| self.connection.read_datagram());
        let result = std::task::ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        Poll::Ready(result)
    }
}

fn owns<T: Send + Sync + Unpin + 'static>() {}

#[tokio::test]
async fn an_adaptor_keeps_futures_between_its_calls() {
    owns::<Adaptor>();
    owns::<(Accept, AcceptUni, OpenBi, SendDatagram, Closed)>();
    let one = TransportConfig::default().max_concurrent_uni_streams(1);
    let pair = Pair::with(TransportConfig::default(), one, |builder| builder).await;
    let mut adaptor = Adaptor {
        connection: pair.near.clone(),
        accepting: None,
        opening: None,
        reading: None,
    };

    // All three wait in one task. The peer allows one stream, which is open.
    let mut first = within(std::future::poll_fn(|cx| adaptor.poll_open(cx)))
        .await
        .unwrap();
    let mut answers = (None, None, None);
    let all = std::future::poll_fn(|cx| {
        if answers.0.is_none()
            && let Poll::Ready(streams) = adaptor.poll_accept(cx)
        {
            answers.0 = Some(streams.unwrap());
        }
        if answers.1.is_none()
            && let Poll::Ready(stream) = adaptor.poll_open(cx)
        {
            answers.1 = Some(stream.unwrap());
        }
        if answers.2.is_none()
            && let Poll::Ready(data) = adaptor.poll_read(cx)
        {
            answers.2 = Some(data.unwrap());
        }
        match &answers {
            (Some(_), Some(_), Some(_)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    });
    let peer = async {
        pair.far.send_datagram(Bytes::from_static(b"now")).unwrap();
        let (mut send, _recv) = pair.far.open_bi().await.unwrap();
        send.write_all(b"hello").await.unwrap();
        send.finish().unwrap();
        first.write_all(b"x").await.unwrap();
        first.finish().unwrap();
        let mut recv = pair.far.accept_uni().await.unwrap();
        assert_eq!(recv.read_to_end(10).await.unwrap(), b"x");
    };
    within(async { tokio::join!(all, peer) }).await;
    let (Some((_, mut recv)), Some(second), Some(data)) = answers else {
        unreachable!("all three futures have completed");
    };
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"hello");
    assert_eq!(
        second.id().0,
        6,
        "the client's second unidirectional stream"
    );
    assert_eq!(data, "now");
}

#[tokio::test]
async fn a_waiting_future_keeps_its_connection_open() {
    let Pair {
        near,
        far,
        client,
        server,
    } = Pair::new().await;
    let accepting = near.accept_bi();
    let reading = near.read_datagram();
    drop(near);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), far.closed())
            .await
            .is_err(),
        "closed while two futures wait"
    );
    drop(reading);
    let (mut send, _recv) = far.open_bi().await.unwrap();
    send.write_all(b"hello").await.unwrap();
    // The streams take over what the future held.
    let streams = within(accepting).await.unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(100), far.closed())
            .await
            .is_err(),
        "closed while its streams are open"
    );
    drop(streams);
    let expected = CloseReason::Application {
        code: 0,
        reason: "".into(),
        remote: true,
    };
    assert_eq!(within(far.closed()).await, expected);
    drop((client, server));
}

#[tokio::test]
async fn awaiting_the_end_does_not_keep_a_connection_open() {
    let Pair {
        near,
        far,
        client: _client,
        server: _server,
    } = Pair::new().await;
    let mut end = near.closed();
    let watching = tokio::spawn(near.closed());
    drop(near);
    let expected = |remote| CloseReason::Application {
        code: 0,
        reason: "".into(),
        remote,
    };
    assert_eq!(within(far.closed()).await, expected(true));
    assert_eq!(within(watching).await.unwrap(), expected(false));
    // Every time it is asked.
    assert_eq!(within(&mut end).await, expected(false));
    assert_eq!(within(&mut end).await, expected(false));
}

#[tokio::test]
async fn a_waiting_accept_counts_as_a_handle_of_its_endpoint() {
    let identity = common::Identity::new();
    let config = TransportConfig::default;
    let server = identity.server(common::ALPN, config());
    let server = squall::Endpoint::server(common::ANY, server).unwrap();
    let to = server.local_addr().unwrap();
    let mut accepting = server.accept();
    drop(server);
    let client = squall::Endpoint::client(common::ANY).unwrap();
    for _ in 0..2 {
        let config = identity.client(common::ALPN, config());
        let connecting = client.connect_with(config, to, "localhost").unwrap();
        let near = tokio::spawn(connecting);
        // One future, polled again for the next attempt.
        let far = within(async { (&mut accepting).await.unwrap().await }).await;
        far.unwrap();
        within(near).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_completed_future_is_never_ready_again() {
    let pair = Pair::new().await;
    let mut cx = Context::from_waker(Waker::noop());
    let mut opening = pair.near.open_uni();
    let first = Pin::new(&mut opening).poll(&mut cx);
    assert!(matches!(first, Poll::Ready(Ok(_))));
    assert!(Pin::new(&mut opening).poll(&mut cx).is_pending());
    // It does not hold the connection either.
    let Pair {
        near,
        far,
        client: _client,
        server: _server,
    } = pair;
    drop((first, near));
    within(far.closed()).await;
}
