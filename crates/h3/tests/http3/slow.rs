//! Bodies that stall: `Config::body_timeout` and `Config::send_timeout`.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::convert::Infallible;
use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::channel::{Channel, Sender};
use squall::{RecvStream, SendStream};
use squall_h3::client::handshake_with;
use squall_h3::server::{Builder, Reply};
use squall_h3::{Body, Code, Config, Error, Protocol};

use crate::common::{Site, get, read, response, service_fn, start, within};

/// Long enough for a busy machine to do quick work within it.
const LIMIT: Duration = Duration::from_millis(400);

/// The head of `POST https://localhost/`.
fn request() -> Vec<u8> {
    let section = b"\0\0\xd4\xd7\xc1\x50\x09localhost";
    let mut frame = vec![1, section.len() as u8];
    frame.extend_from_slice(section);
    frame
}

/// A request from a raw client, and the beginning of its body.
async fn post(site: &Site, body: &[u8]) -> (SendStream, RecvStream, squall::Connection) {
    let connection = site.connection().await;
    let (mut send, recv) = connection.open_bi().await.unwrap();
    let mut bytes = request();
    bytes.extend_from_slice(body);
    send.write_all(&bytes).await.unwrap();
    (send, recv, connection)
}

/// Reads a request's body as applications do, and reports how that went.
async fn answer(request: Request<Body>) -> Response<Body> {
    match read(request.into_body()).await {
        Ok(data) => response(data),
        Err(Error::Timeout) => {
            let mut late = response("too slow");
            *late.status_mut() = StatusCode::REQUEST_TIMEOUT;
            late
        }
        Err(error) => panic!("{error}"),
    }
}

// test: RFC 9110 §15.5.9
#[tokio::test(flavor = "multi_thread")]
async fn the_service_answers_a_request_with_a_stalled_body() {
    for on_worker in [false, true] {
        let site = Site::new();
        let config = Config::new().body_timeout(Some(LIMIT));
        start(&site, config, on_worker, answer);
        // An incomplete frame, a complete one, and bytes that belong to no body.
        for body in [&b"\0\x0aabc"[..], b"\0\x03abc", b"", b"\x21\x05abc"] {
            let (_send, mut recv, connection) = post(&site, body).await;
            let answer = within(recv.read_to_end(1000)).await.unwrap();
            assert!(answer.ends_with(b"too slow"), "{answer:?}");
            // The connection continues.
            let client = handshake_with(connection, Config::new());
            assert!(within(client.send(get("/"))).await.is_ok());
        }
    }
}

// test: RFC 9114 §8.1
#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_reset_when_its_request_times_out() {
    for on_worker in [false, true] {
        let site = Site::new();
        let config = Config::new().body_timeout(Some(LIMIT));
        start(&site, config, on_worker, |request: Request<Body>| {
            std::future::ready(Response::new(request.into_body()))
        });
        let (_send, mut recv, connection) = post(&site, b"\0\x0aabc").await;
        let code = within(recv.received_reset()).await.unwrap();
        assert_eq!(code.map(Code), Some(Code::H3_REQUEST_CANCELLED));
        assert!(connection.close_reason().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_makes_progress_never_times_out() {
    let site = Site::new();
    let limit = Duration::from_secs(2);
    start(&site, Config::new().body_timeout(Some(limit)), true, answer);
    let (mut send, mut recv, _connection) = post(&site, b"\0\x05").await;
    for byte in b"abcde" {
        tokio::time::sleep(limit / 4).await;
        send.write_all(&[*byte]).await.unwrap();
    }
    send.finish().unwrap();
    let answer = within(recv.read_to_end(1000)).await.unwrap();
    assert!(answer.ends_with(b"abcde"), "{answer:?}");
}

/// More than any window of a stream.
const LARGE: Bytes = Bytes::from_static(&[7; 20 << 20]);

#[tokio::test(flavor = "multi_thread")]
async fn responses_that_the_client_does_not_read_are_cancelled() {
    for on_worker in [false, true] {
        let site = Site::new();
        let given_up = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&given_up);
        let mut builder = Builder::new()
            .config(Config::new().send_timeout(Some(LIMIT)).informational(true))
            .on_send_timeout(move || {
                count.fetch_add(1, Ordering::SeqCst);
            });
        if on_worker {
            builder = builder.on_worker();
        }
        let builder = builder.answer_first(|head| {
            let path = head.path()?;
            (path == "/reply").then(|| Reply::new(Response::new(LARGE)))
        });
        let service = service_fn(|request: Request<Body>| {
            std::future::ready(match request.uri().path() {
                "/large" => response(LARGE),
                _ => response("small"),
            })
        });
        tokio::spawn(builder.serve(site.endpoint.clone(), service).into_future());
        let connection = site.connection().await;
        let client = handshake_with(connection.clone(), Config::new());
        let large = within(client.send(get("/large"))).await.unwrap();
        let reply = within(client.send(get("/reply"))).await.unwrap();
        // Other requests on the connection continue meanwhile.
        within(async {
            while given_up.load(Ordering::SeqCst) < 2 {
                let small = client.send(get("/")).await.unwrap();
                assert_eq!(read(small.into_body()).await.unwrap(), b"small");
            }
        })
        .await;
        for response in [large, reply] {
            let error = read(response.into_body()).await.unwrap_err();
            let is_cancelled = matches!(error, Error::Stream(Code::H3_REQUEST_CANCELLED));
            assert!(is_cancelled, "{error}");
        }
        assert!(connection.close_reason().is_none());
        assert_eq!(given_up.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_may_pause_longer_than_the_send_timeout() {
    const WINDOW: usize = 30_000;
    let site = Site::new();
    // Without the date, whose encoded length changes from second to second.
    let config = Config::new().send_timeout(Some(LIMIT)).date(false);
    let len = Arc::new(AtomicUsize::new(0));
    let first_len = Arc::clone(&len);
    start(&site, config, false, move |_| {
        let (mut sender, body): (Sender<Bytes, Infallible>, _) = Channel::new(1);
        let first = vec![7; first_len.load(Ordering::SeqCst)];
        tokio::spawn(async move {
            sender.send_data(first.into()).await.unwrap();
            tokio::time::sleep(LIMIT * 4).await;
            let _ = sender.send_data(Bytes::from_static(b"last")).await;
        });
        std::future::ready(Response::new(body))
    });
    let transport = squall::TransportConfig::default()
        .initial_stream_window(WINDOW as u64)
        .stream_receive_window(WINDOW as u64);
    let connection = site.connection_with(transport).await;
    let mut used = 0;
    for _ in 0..2 {
        // The second response uses up all credit before the pause, to the byte.
        let grown = WINDOW * 2 / 3 + used;
        len.store(grown, Ordering::SeqCst);
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(&request()).await.unwrap();
        send.finish().unwrap();
        // Twice as long as the client may stall.
        tokio::time::sleep(LIMIT * 2).await;
        let response = within(recv.read_to_end(2 * WINDOW)).await.unwrap();
        let last = b"\0\x04last";
        assert!(response.ends_with(last));
        used = WINDOW - (response.len() - last.len());
    }
    assert_eq!(used, 0);
}

// test: RFC 9114 §4.4
#[tokio::test(flavor = "multi_thread")]
async fn idle_tunnels_do_not_time_out() {
    let site = Site::new();
    let config = Config::new()
        .send_timeout(Some(LIMIT))
        .body_timeout(Some(LIMIT))
        .enable_connect_protocol(true);
    let (keep, mut kept) = tokio::sync::mpsc::unbounded_channel();
    start(&site, config, false, move |request: Request<Body>| {
        let read = tokio::spawn(read(request.into_body()));
        keep.send(read).unwrap();
        std::future::ready(response(LARGE))
    });
    let client = site.client().await;
    let (mut upload, body): (Sender<Bytes, Infallible>, _) = Channel::new(1);
    let mut request = get("/").map(|_| body);
    *request.method_mut() = Method::CONNECT;
    let protocol = Protocol::from_static("websocket");
    request.extensions_mut().insert(protocol);
    let response = within(client.send(request)).await.unwrap();
    let received = kept.recv().await.unwrap();
    tokio::time::sleep(LIMIT * 4).await;
    upload.send_data(Bytes::from_static(b"late")).await.unwrap();
    drop(upload);
    assert_eq!(within(received).await.unwrap().unwrap(), b"late");
    assert_eq!(read(response.into_body()).await.unwrap(), LARGE);
}
