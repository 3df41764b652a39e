//! HTTP/3 between two ends of h3 over squall, over real sockets.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Buf;
use common::{Client, ClientStream, Server, ServerStream, Transport, ok, pattern, serve, within};
use h3::error::{Code, ConnectionError, StreamError};
use h3::quic::ConnectionErrorIncoming;
use http::{HeaderMap, Request};
use squall::{Bytes, TransportConfig};

/// Reads a body to its end.
macro_rules! body {
    ($stream:expr) => {{
        let mut body = Vec::new();
        loop {
            match within($stream.recv_data()).await {
                Ok(Some(mut data)) => {
                    while data.has_remaining() {
                        body.extend_from_slice(data.chunk());
                        data.advance(data.chunk().len());
                    }
                }
                Ok(None) => break Ok(body),
                Err(error) => break Err(error),
            }
        }
    }};
}

/// Sends the request's body and trailers back.
async fn echo(_: Request<()>, mut stream: ServerStream) {
    let body = body!(stream).unwrap();
    let trailers = within(stream.recv_trailers()).await.unwrap();
    stream.send_response(ok()).await.unwrap();
    // Pieces of sizes around the one from which payload is shared.
    for piece in Bytes::from(body).chunks(5000).map(Bytes::copy_from_slice) {
        stream.send_data(piece).await.unwrap();
    }
    if let Some(trailers) = trailers {
        stream.send_trailers(trailers).await.unwrap();
    }
    stream.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_trailers_go_both_ways() {
    let mut client = Client::new(echo).await;
    for len in [0, 1, 2047, 2048, 1_000_000] {
        let sent = pattern(len, len as u64);
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", len.to_string().parse().unwrap());
        let mut stream = client.ask("/echo").await;
        within(stream.send_data(sent.clone().into())).await.unwrap();
        within(stream.send_trailers(trailers.clone()))
            .await
            .unwrap();
        within(stream.finish()).await.unwrap();
        let response = within(stream.recv_response()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(body!(stream).unwrap() == sent, "{len} bytes");
        assert_eq!(
            within(stream.recv_trailers()).await.unwrap(),
            Some(trailers)
        );
    }
}

/// Its control streams stay open. A client that waits for nothing else sends no PINGs.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_requests_sends_nothing() {
    let mut client = Client::new(echo).await;
    let mut stream = client.ask("/").await;
    within(stream.finish()).await.unwrap();
    assert_eq!(
        within(stream.recv_response()).await.unwrap().status(),
        200_u16
    );
    assert!(body!(stream).unwrap().is_empty());
    drop(stream);
    // Longer than any delayed acknowledgement.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let connection = client.transport.near.clone();
    let before = connection.stats().packets_sent;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(connection.stats().packets_sent, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_requests_share_one_connection() {
    let client = Client::new(echo).await;
    // Fifty at a time.
    let tasks: Vec<_> = (0..50_u64)
        .map(|task| {
            let mut requests = client.requests.clone();
            tokio::spawn(async move {
                for round in 0..20 {
                    let sent = pattern(100 + 10 * round, task);
                    let request = Request::post("https://localhost/echo").body(()).unwrap();
                    let mut stream = within(requests.send_request(request)).await.unwrap();
                    stream.send_data(sent.clone().into()).await.unwrap();
                    stream.finish().await.unwrap();
                    let response = within(stream.recv_response()).await.unwrap();
                    assert_eq!(response.status(), 200);
                    assert!(body!(stream).unwrap() == sent);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // Nothing was given up on either side, and nothing is left open.
    for connection in [&client.transport.near, &client.transport.far] {
        let stats = connection.stats();
        assert_eq!(stats.streams_reset_on_drop, 0);
    }
}

fn code_of(error: &StreamError) -> Option<Code> {
    match error {
        StreamError::RemoteTerminate { code, .. } => Some(*code),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_and_stop_codes_are_visible_through_h3() {
    let (sender, mut given_up) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |request: Request<()>, mut stream: ServerStream| {
        let sender = sender.clone();
        async move {
            stream.send_response(ok()).await.unwrap();
            match request.uri().path() {
                "/reset" => stream.stop_stream(Code::H3_EXCESSIVE_LOAD),
                "/stop" => {
                    stream.stop_sending(Code::H3_REQUEST_REJECTED);
                    stream.finish().await.unwrap();
                }
                // Waits until the client gives up both directions.
                _ => {
                    let read = body!(stream).unwrap_err();
                    let written = loop {
                        if let Err(error) = stream.send_data(vec![0; 1000].into()).await {
                            break error;
                        }
                    };
                    sender.send((code_of(&read), code_of(&written))).unwrap();
                }
            }
        }
    };
    let mut client = Client::new(handler).await;

    let mut stream = client.ask("/reset").await;
    within(stream.finish()).await.unwrap();
    let error = match within(stream.recv_response()).await {
        // The reset may overtake the head of the answer.
        Ok(_) => body!(stream).unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(code_of(&error), Some(Code::H3_EXCESSIVE_LOAD), "{error:?}");

    let mut stream = client.ask("/stop").await;
    let error = loop {
        if let Err(error) = within(stream.send_data(vec![0; 1000].into())).await {
            break error;
        }
    };
    assert_eq!(
        code_of(&error),
        Some(Code::H3_REQUEST_REJECTED),
        "{error:?}"
    );
    // The answer still arrives.
    assert_eq!(within(stream.recv_response()).await.unwrap().status(), 200);
    assert_eq!(body!(stream).unwrap(), b"");

    let mut stream = client.ask("/both").await;
    within(stream.recv_response()).await.unwrap();
    stream.stop_sending(Code::H3_NO_ERROR);
    stream.stop_stream(Code::H3_REQUEST_CANCELLED);
    assert_eq!(
        within(given_up.recv()).await.unwrap(),
        (Some(Code::H3_REQUEST_CANCELLED), Some(Code::H3_NO_ERROR))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_dropped_within_its_body_never_looks_complete() {
    let (sender, mut tasks) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_: Request<()>, mut stream: ServerStream| {
        let sender = sender.clone();
        async move {
            let task = tokio::spawn(async move {
                stream.send_response(ok()).await.unwrap();
                stream.send_data("half of the ".into()).await.unwrap();
                std::future::pending::<()>().await;
            });
            sender.send(task).unwrap();
        }
    };
    let mut client = Client::new(handler).await;
    let mut stream = client.ask("/").await;
    within(stream.finish()).await.unwrap();
    within(stream.recv_response()).await.unwrap();
    let first = within(stream.recv_data()).await.unwrap().unwrap();
    assert_eq!(first.chunk(), b"half of the ");
    tasks.recv().await.unwrap().abort();
    let error = body!(stream).unwrap_err();
    assert_eq!(
        code_of(&error),
        Some(Code::H3_REQUEST_CANCELLED),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_without_reading_is_not_an_error() {
    let handler = |_: Request<()>, mut stream: ServerStream| async move {
        stream.send_response(ok()).await.unwrap();
        stream.finish().await.unwrap();
    };
    let mut client = Client::new(handler).await;
    let mut stream = client.ask("/").await;
    assert_eq!(within(stream.recv_response()).await.unwrap().status(), 200);
    // RFC 9114 §4.1: the client is asked to stop sending, with H3_NO_ERROR.
    let error = loop {
        if let Err(error) = within(stream.send_data(vec![0; 1000].into())).await {
            break error;
        }
    };
    assert_eq!(code_of(&error), Some(Code::H3_NO_ERROR), "{error:?}");
    assert_eq!(body!(stream).unwrap(), b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_finishes_requests_in_progress_and_rejects_new_ones() {
    let transport = Transport::new(TransportConfig::default()).await;
    let far = transport.far.clone();
    let (go, begun) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(async move {
        let mut server = Server::new(h3_squall::Connection::new(far)).await.unwrap();
        let request = server.accept().await.unwrap().unwrap();
        let (_, mut stream) = request.resolve_request().await.unwrap();
        // GOAWAY, while a request is on its way.
        server.shutdown(0).await.unwrap();
        let task = tokio::spawn(async move {
            begun.await.unwrap();
            stream.send_response(ok()).await.unwrap();
            stream.send_data("late".into()).await.unwrap();
            stream.finish().await.unwrap();
        });
        let next = server.accept().await;
        task.await.unwrap();
        match next {
            Ok(None) => None,
            Ok(Some(_)) => panic!("a request after the GOAWAY"),
            Err(error) => Some(error),
        }
    });
    let connection = h3_squall::Connection::new(transport.near.clone());
    let (mut driver, mut requests) = within(h3::client::new(connection)).await.unwrap();
    let driver = tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
    let request = || Request::get("https://localhost/").body(()).unwrap();
    let mut stream: ClientStream = within(requests.send_request(request())).await.unwrap();
    within(stream.finish()).await.unwrap();
    // Refused by this end or by the server, depending on whether the GOAWAY has arrived.
    let refused = loop {
        match within(requests.send_request(request())).await {
            Err(error) => break error,
            Ok(mut refused) => {
                let error = within(refused.recv_response()).await.unwrap_err();
                assert_eq!(
                    code_of(&error),
                    Some(Code::H3_REQUEST_REJECTED),
                    "{error:?}"
                );
            }
        }
    };
    assert!(
        matches!(refused, StreamError::RemoteClosing { .. }),
        "{refused:?}"
    );
    go.send(()).unwrap();
    assert_eq!(within(stream.recv_response()).await.unwrap().status(), 200);
    assert_eq!(body!(stream).unwrap(), b"late");
    drop((stream, requests));
    let end = within(driver).await.unwrap();
    assert!(end.is_h3_no_error(), "{end:?}");
    if let Some(end) = within(server).await.unwrap() {
        assert!(end.is_h3_no_error(), "{end:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_write_loses_nothing() {
    // Less than one of the pieces below fits.
    let small = TransportConfig::default()
        .initial_stream_window(10_000)
        .stream_receive_window(10_000)
        .stream_send_window(10_000);
    let mut client = Client::with(small, echo).await;
    let mut stream = client.ask("/echo").await;
    let mut sent = Vec::new();
    for seed in 0..20 {
        let piece = pattern(30_000, seed);
        sent.extend_from_slice(&piece);
        let mut send = std::pin::pin!(stream.send_data(piece.into()));
        // Not even the first poll completes.
        let _ = send.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    let (mut send, mut recv) = stream.split();
    let finish = async { send.finish().await.unwrap() };
    let read = async {
        within(recv.recv_response()).await.unwrap();
        body!(recv).unwrap()
    };
    let ((), read) = within(async { tokio::join!(finish, read) }).await;
    assert!(read == sent, "{} bytes of {}", read.len(), sent.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn payload_in_several_pieces_is_written_in_order() {
    type Pieces = bytes::buf::Chain<Bytes, bytes::buf::Chain<Bytes, Bytes>>;
    let transport = Transport::new(TransportConfig::default()).await;
    tokio::spawn(serve(transport.far.clone(), echo));
    let connection = h3_squall::Connection::new(transport.near.clone());
    let client = h3::client::builder()
        .build::<_, _, Pieces>(connection)
        .await;
    let (mut driver, mut requests) = client.unwrap();
    tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
    let whole = Bytes::from(pattern(60_000, 9));
    let (first, second) = (whole.slice(..10_000), whole.slice(10_000..10_001));
    let pieces = first.chain(second.chain(whole.slice(10_001..)));
    let request = Request::post("https://localhost/").body(()).unwrap();
    let mut stream = within(requests.send_request(request)).await.unwrap();
    within(stream.send_data(pieces)).await.unwrap();
    within(stream.finish()).await.unwrap();
    within(stream.recv_response()).await.unwrap();
    assert!(body!(stream).unwrap() == whole);
}

/// Payload that counts the bytes copied out of it; shared ones are not.
struct Watched(Bytes, Arc<AtomicUsize>);

impl Buf for Watched {
    fn remaining(&self) -> usize {
        self.0.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.0.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.0.advance(count);
        self.1.fetch_add(count, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_payload_is_shared_and_short_payload_is_copied() {
    let transport = Transport::new(TransportConfig::default()).await;
    tokio::spawn(serve(transport.far.clone(), echo));
    let connection = h3_squall::Connection::new(transport.near.clone());
    let made = h3::client::builder()
        .build::<_, _, Watched>(connection)
        .await;
    let (mut driver, mut requests) = made.unwrap();
    tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
    let copied = Arc::new(AtomicUsize::new(0));
    for (len, expected) in [(2047, 2047), (2048, 0), (200_000, 0)] {
        copied.store(0, Ordering::Relaxed);
        let payload = pattern(len, 1);
        let request = Request::post("https://localhost/").body(()).unwrap();
        let mut stream = within(requests.send_request(request)).await.unwrap();
        let watched = Watched(payload.clone().into(), Arc::clone(&copied));
        within(stream.send_data(watched)).await.unwrap();
        within(stream.finish()).await.unwrap();
        assert_eq!(copied.load(Ordering::Relaxed), expected, "{len} bytes");
        within(stream.recv_response()).await.unwrap();
        assert!(body!(stream).unwrap() == payload);
    }
    // Shared data is released once it is acknowledged.
    within(async {
        while Arc::strong_count(&copied) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cause_of_a_connections_end_keeps_its_kind() {
    let wait = |_: Request<()>, stream: ServerStream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    };

    let mut client = Client::new(wait).await;
    let mut stream = client.ask("/").await;
    client.transport.far.close(0x1234, b"enough");
    let error = within(stream.recv_response()).await.unwrap_err();
    let StreamError::ConnectionError { 0: error, .. } = &error else {
        panic!("{error:?}");
    };
    let closed = |error: &ConnectionError| {
        matches!(
            error,
            ConnectionError::Remote {
                0: ConnectionErrorIncoming::ApplicationClose { error_code: 0x1234 },
                ..
            }
        )
    };
    assert!(closed(error), "{error:?}");
    let end = within(client.driver).await.unwrap();
    assert!(closed(&end), "{end:?}");

    // Long enough for a busy machine to have begun a request.
    let idle = TransportConfig::default().max_idle_timeout(Duration::from_secs(3));
    let mut client = Client::with(idle, wait).await;
    let mut stream = client.ask("/").await;
    let error = within(stream.recv_response()).await.unwrap_err();
    assert!(
        matches!(
            error,
            StreamError::ConnectionError {
                0: ConnectionError::Timeout { .. },
                ..
            }
        ),
        "{error:?}"
    );
}
