//! WebTransport sessions and HTTP datagrams between this crate's client and server.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use squall_h3::client::{SendRequest, handshake_with};
use squall_h3::webtransport::{self, RecvStream, SendStream, Session, SessionBody, StreamError};
use squall_h3::{Body, Config, Protocol, server};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use crate::common::{Site, builder, get, service_fn, within};

pub(crate) fn uri() -> Uri {
    Uri::from_static("https://localhost/session")
}

/// A server that hands out its sessions.
pub(crate) async fn start(
    on_worker: bool,
) -> (Site, SendRequest, mpsc::UnboundedReceiver<Session>) {
    let site = Site::new();
    let (give, sessions) = mpsc::unbounded_channel();
    let config = Config::new().webtransport(4);
    let builder = builder(on_worker).config(config.clone());
    let service = service_fn(move |request: Request<Body>| {
        let answer = match webtransport::accept(request) {
            Ok((mut response, session)) => {
                if let Some(names) = session.headers().get("wt-available-protocols") {
                    let chosen = names.clone();
                    response.headers_mut().insert("wt-protocol", chosen);
                }
                give.send(session).unwrap();
                response
            }
            Err(_) => {
                let mut response = Response::new(SessionBody::default());
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        };
        std::future::ready(answer)
    });
    let serving = builder.serve(site.endpoint.clone(), service);
    tokio::spawn(async move { serving.await });
    let client = handshake_with(site.connection().await, config);
    (site, client, sessions)
}

pub(crate) async fn session(client: &SendRequest) -> Session {
    let session = within(webtransport::connect(client, uri(), HeaderMap::new()));
    session.await.unwrap().unwrap()
}

async fn read(mut recv: RecvStream) -> String {
    let mut text = String::new();
    within(recv.read_to_string(&mut text)).await.unwrap();
    text
}

async fn write(mut send: SendStream, text: &str) {
    send.write_all(text.as_bytes()).await.unwrap();
    send.finish().unwrap();
}

/// Both ends of a session send and receive streams and datagrams.
async fn exchange(near: &Session, far: &Session) {
    for (a, b) in [(near, far), (far, near)] {
        let (send, recv) = within(a.open_bi()).await.unwrap();
        write(send, "a question").await;
        let (their_send, their_recv) = within(b.accept_bi()).await.unwrap();
        assert_eq!(read(their_recv).await, "a question");
        write(their_send, "an answer").await;
        assert_eq!(read(recv).await, "an answer");
        write(within(a.open_uni()).await.unwrap(), "a remark").await;
        assert_eq!(
            read(within(b.accept_uni()).await.unwrap()).await,
            "a remark"
        );
        a.send_datagram(b"a datagram").unwrap();
        assert_eq!(within(b.recv_datagram()).await.unwrap(), "a datagram");
        let long = vec![7; a.max_datagram_size().unwrap()];
        a.send_datagram(&long).unwrap();
        assert_eq!(within(b.recv_datagram()).await.unwrap(), long);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_carry_streams_and_datagrams_both_ways() {
    for on_worker in [false, true] {
        let (_site, client, mut sessions) = start(on_worker).await;
        let (one, two) = (session(&client).await, session(&client).await);
        let (far_one, far_two) = (
            sessions.recv().await.unwrap(),
            sessions.recv().await.unwrap(),
        );
        exchange(&two, &far_two).await;
        exchange(&one, &far_one).await;
        // Requests continue alongside it.
        let response = within(client.send(get("/"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_codes_reach_the_other_application() {
    let (_site, client, mut sessions) = start(false).await;
    let near = session(&client).await;
    let far = sessions.recv().await.unwrap();
    let (mut send, mut recv) = within(near.open_bi()).await.unwrap();
    send.write_all(b"x").await.unwrap();
    let (mut their_send, mut their_recv) = within(far.accept_bi()).await.unwrap();
    send.reset(7).unwrap();
    loop {
        match within(their_recv.read_chunk(100)).await {
            Ok(Some(_)) => {}
            other => break assert_eq!(other, Err(StreamError::Code(7))),
        }
    }
    recv.stop(u32::MAX).unwrap();
    loop {
        match within(their_send.write_all(&[0; 1000])).await {
            Ok(()) => tokio::task::yield_now().await,
            Err(error) => break assert_eq!(error, StreamError::Code(u32::MAX)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outcome_of_a_stream_can_be_awaited() {
    let (_site, client, mut sessions) = start(false).await;
    let near = session(&client).await;
    let far = within(sessions.recv()).await.unwrap();
    for (a, b) in [(&near, &far), (&far, &near)] {
        let (mut send, recv) = within(a.open_bi()).await.unwrap();
        let (their_send, mut their_recv) = within(b.accept_bi()).await.unwrap();
        send.set_priority(squall::Priority::default()).unwrap();
        let outcome = send.stopped();
        send.write_all(b"x").await.unwrap();
        send.finish().unwrap();
        assert_eq!(within(their_recv.received_reset()).await, Ok(None));
        assert_eq!(within(outcome).await, Ok(None), "delivered");
        drop(recv);
        assert_eq!(within(their_send.stopped()).await, Ok(Some(0)));

        let mut send = within(a.open_uni()).await.unwrap();
        let mut recv = within(b.accept_uni()).await.unwrap();
        recv.stop(7).unwrap();
        assert_eq!(within(send.stopped()).await, Ok(Some(7)));
        assert_eq!(send.write_all(b"x").await, Err(StreamError::Code(7)));

        send = within(a.open_uni()).await.unwrap();
        recv = within(b.accept_uni()).await.unwrap();
        let outcome = send.stopped();
        send.reset(8).unwrap();
        assert_eq!(within(recv.received_reset()).await, Ok(Some(8)));
        assert_eq!(within(outcome).await, Err(StreamError::Closed));

        // Waiting keeps no stream open.
        send = within(a.open_uni()).await.unwrap();
        recv = within(b.accept_uni()).await.unwrap();
        let outcome = send.stopped();
        drop(send);
        assert_eq!(within(recv.received_reset()).await, Ok(Some(0)));
        assert_eq!(within(outcome).await, Err(StreamError::Closed));
    }
    let send = within(near.open_uni()).await.unwrap();
    let mut recv = within(far.accept_uni()).await.unwrap();
    let (sent, reset) = (tokio::spawn(send.stopped()), async {
        tokio::join!(recv.received_reset(), async {
            near.close(0, "");
            far.closed().await
        })
    });
    assert_eq!(within(reset).await.0, Err(StreamError::Ended));
    assert_eq!(within(sent).await.unwrap(), Err(StreamError::Ended));
    let priority = send.set_priority(squall::Priority::default());
    assert_eq!(priority, Err(StreamError::Ended));
}

// test: draft-ietf-webtrans-http3 §3.3
#[tokio::test(flavor = "multi_thread")]
async fn protocols_are_negotiated_by_header_fields() {
    let (_site, client, mut sessions) = start(false).await;
    let mut headers = HeaderMap::new();
    let offer = HeaderValue::from_static("\"moq-lite-05\"");
    headers.insert("wt-available-protocols", offer.clone());
    let near = within(webtransport::connect(&client, uri(), headers)).await;
    let near = near.unwrap().unwrap();
    assert_eq!(near.headers().get("wt-protocol"), Some(&offer));
    let far = within(sessions.recv()).await.unwrap();
    assert_eq!(far.headers().get("wt-available-protocols"), Some(&offer));
}

/// A reset does not overtake the header that says whose stream it is.
// test: draft-ietf-webtrans-http3 §4.4
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_data_can_be_reset() {
    let (_site, client, mut sessions) = start(false).await;
    let near = session(&client).await;
    let far = within(sessions.recv()).await.unwrap();
    for (a, b) in [(&near, &far), (&far, &near)] {
        let (mut send, _recv) = within(a.open_bi()).await.unwrap();
        send.reset(7).unwrap();
        let (_send, mut recv) = within(b.accept_bi()).await.unwrap();
        assert_eq!(within(recv.read_chunk(1)).await, Err(StreamError::Code(7)));
        drop(within(a.open_uni()).await.unwrap());
        let mut recv = within(b.accept_uni()).await.unwrap();
        assert_eq!(within(recv.read_chunk(1)).await, Err(StreamError::Code(0)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_learn_that_the_session_ended() {
    let (_site, client, mut sessions) = start(true).await;
    // By the client, by the server, and by dropping either's handles.
    for case in 0..4 {
        let near = session(&client).await;
        let far = sessions.recv().await.unwrap();
        let (by, other) = if case % 2 == 0 {
            (near, far)
        } else {
            (far, near)
        };
        if case < 2 {
            by.close(42, "that was all");
            assert_eq!(within(by.closed()).await.code, 42);
            let closed = within(other.closed()).await;
            assert_eq!((closed.code, &*closed.reason), (42, "that was all"));
        } else {
            drop(by);
            assert_eq!(within(other.closed()).await.code, 0);
        }
        assert!(within(other.accept_bi()).await.is_none());
        assert!(within(other.accept_uni()).await.is_none());
        assert!(within(other.recv_datagram()).await.is_none());
    }
    // The connection continues.
    let response = within(client.send(get("/"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}

/// A capsule that is too short for a code ends the session all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_close_capsule_still_ends_the_session() {
    let (_site, client, mut sessions) = start(false).await;
    // CLOSE_SESSION with two bytes of a code.
    let capsule = Bytes::from_static(&[0x68, 0x43, 2, 0, 42]);
    let mut request = Request::new(Endless(Some(capsule)));
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = uri();
    request
        .extensions_mut()
        .insert(Protocol::from_static("webtransport"));
    let response = within(client.send(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let session = within(sessions.recv()).await.unwrap();
    assert_eq!(within(session.closed()).await.code, 0);
}

/// A body that never ends after its first data.
pub(crate) struct Endless(pub(crate) Option<Bytes>);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(data) => Poll::Ready(Some(Ok(http_body::Frame::data(data)))),
            None => Poll::Pending,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_reason_is_truncated_at_a_character_boundary() {
    let (_site, client, mut sessions) = start(false).await;
    let near = session(&client).await;
    let far = sessions.recv().await.unwrap();
    near.close(1, &"ü".repeat(1000));
    assert_eq!(within(far.closed()).await.reason, "ü".repeat(512));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_session_returns_the_response() {
    let site = Site::new();
    let config = Config::new().webtransport(1);
    let builder = server::Builder::new().config(config.clone());
    let refuse = service_fn(|_| async {
        let mut response = crate::common::response("not here");
        *response.status_mut() = StatusCode::FORBIDDEN;
        response
    });
    let serving = builder.serve(site.endpoint.clone(), refuse);
    tokio::spawn(async move { serving.await });
    let client = handshake_with(site.connection().await, config);
    let refused = within(webtransport::connect(&client, uri(), HeaderMap::new()))
        .await
        .unwrap();
    assert_eq!(refused.unwrap_err().status(), StatusCode::FORBIDDEN);
}

/// Clients of draft 15 and later ask for another protocol.
// test: draft-ietf-webtrans-http3 §3.2
#[tokio::test(flavor = "multi_thread")]
async fn a_session_may_use_the_protocol_name_of_either_draft() {
    let (_site, client, mut sessions) = start(false).await;
    for name in ["webtransport", "webtransport-h3"] {
        let (_keep_open, body) = tokio::io::duplex(1);
        let mut request = Request::new(Pending(body));
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = uri();
        request.extensions_mut().insert(Protocol::from_static(name));
        let response = within(client.send(request)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        within(sessions.recv()).await.unwrap();
    }
}

/// The code with which the other end closes the connection when a new stream begins with `bytes`.
async fn code_of(connection: &squall::Connection, is_uni: bool, bytes: &[u8]) -> u64 {
    let mut send = if is_uni {
        within(connection.open_uni()).await.unwrap()
    } else {
        within(connection.open_bi()).await.unwrap().0
    };
    send.write_all(bytes).await.unwrap();
    match within(connection.closed()).await {
        squall::CloseReason::Application {
            code, remote: true, ..
        } => code,
        other => panic!("{other}"),
    }
}

// test: draft-ietf-webtrans-http3 §4, §4.3
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_invalid_session_ids_close_the_connection() {
    let (site, _, _sessions) = start(false).await;
    let id_error = squall_h3::Code::H3_ID_ERROR.0;
    for id in [1, 2, 3, 7] {
        let at_server = site.connection().await;
        assert_eq!(code_of(&at_server, true, &[0x40, 0x54, id]).await, id_error);
        let at_server = site.connection().await;
        assert_eq!(
            code_of(&at_server, false, &[0x40, 0x41, id]).await,
            id_error
        );
    }
    for (is_uni, bytes) in [(true, [0x40, 0x54, 1]), (false, [0x40, 0x41, 1])] {
        let site = Site::new();
        let endpoint = site.endpoint.clone();
        let accepting = tokio::spawn(async move { endpoint.accept().await.unwrap().await });
        let config = Config::new().webtransport(4);
        let _client = handshake_with(site.connection().await, config);
        let at_client = within(accepting).await.unwrap().unwrap();
        assert_eq!(code_of(&at_client, is_uni, &bytes).await, id_error);
    }
    // Not a frame, except at the beginning.
    let connection = site.connection().await;
    let code = code_of(&connection, false, &[0x21, 0, 0x40, 0x41, 0]).await;
    assert_eq!(code, squall_h3::Code::H3_FRAME_ERROR.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_sessions_gets_no_session_request() {
    let site = Site::new();
    let serving = server::serve(
        site.endpoint.clone(),
        service_fn(|_| async { crate::common::response("") }),
    );
    tokio::spawn(async move { serving.await });
    let client = site.client().await;
    let refused = within(webtransport::connect(&client, uri(), HeaderMap::new())).await;
    assert!(
        matches!(refused, Err(squall_h3::Error::InvalidRequest(_))),
        "{refused:?}"
    );
}

/// A session that has ended opens no streams, though its peer allows none to be opened.
#[tokio::test(flavor = "multi_thread")]
async fn opening_a_stream_fails_when_the_session_ends() {
    let (site, _, mut sessions) = start(false).await;
    let transport = squall::TransportConfig::default().max_concurrent_bidi_streams(0);
    let config = Config::new().webtransport(4);
    let client = handshake_with(site.connection_with(transport).await, config);
    let near = session(&client).await;
    let far = within(sessions.recv()).await.unwrap();
    let opening = tokio::spawn(async move { far.open_bi().await.map(drop) });
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!opening.is_finished());
    near.close(0, "");
    let opened = within(opening).await.unwrap();
    assert_eq!(opened, Err(StreamError::Ended));
}

/// Datagrams of a protocol other than WebTransport (RFC 9297).
#[tokio::test(flavor = "multi_thread")]
async fn datagrams_can_be_exchanged_on_a_request() {
    let site = Site::new();
    let config = Config::new().enable_connect_protocol(true).datagrams(true);
    let builder = server::Builder::new().config(config.clone());
    let echo = service_fn(|request: Request<Body>| async move {
        assert_eq!(
            request.extensions().get::<Protocol>().unwrap().as_str(),
            "connect-udp"
        );
        let datagrams = request.body().datagrams().unwrap();
        tokio::spawn(async move {
            while let Some(datagram) = datagrams.recv().await {
                datagrams.send(&[&datagram[..], b" back"].concat()).unwrap();
            }
        });
        Response::new(request.into_body())
    });
    let serving = builder.serve(site.endpoint.clone(), echo);
    tokio::spawn(async move { serving.await });
    let client = handshake_with(site.connection().await, config);
    let (_keep_open, body) = tokio::io::duplex(1);
    let mut request = Request::new(Pending(body));
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = uri();
    request
        .extensions_mut()
        .insert(Protocol::from_static("connect-udp"));
    let response = within(client.send(request)).await.unwrap();
    let datagrams = response.body().datagrams().unwrap();
    for text in ["there", "and"] {
        datagrams.send(text.as_bytes()).unwrap();
        assert_eq!(
            within(datagrams.recv()).await.unwrap(),
            format!("{text} back")
        );
    }
}

/// No task waits for datagrams of a request that was cancelled, or whose connection has ended.
#[tokio::test(flavor = "multi_thread")]
async fn datagrams_end_with_the_request() {
    for (on_worker, ends_connection) in [(false, false), (false, true), (true, false), (true, true)]
    {
        let site = Site::new();
        let config = Config::new().enable_connect_protocol(true).datagrams(true);
        let (tell, mut ended) = mpsc::unbounded_channel();
        let tunnel = move |request: Request<Body>| {
            let tell = tell.clone();
            let datagrams = request.body().datagrams().unwrap();
            tokio::spawn(async move {
                while datagrams.recv().await.is_some() {}
                tell.send(()).unwrap();
            });
            std::future::ready(Response::new(request.into_body()))
        };
        crate::common::start(&site, config.clone(), on_worker, tunnel);
        let connection = site.connection().await;
        let client = handshake_with(connection.clone(), config);
        let (_keep_open, body) = tokio::io::duplex(1);
        let mut request = Request::new(Pending(body));
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = uri();
        request
            .extensions_mut()
            .insert(Protocol::from_static("connect-udp"));
        let response = within(client.send(request)).await.unwrap();
        if ends_connection {
            connection.close(0x100, b"");
        } else {
            drop(response);
        }
        within(ended.recv()).await.unwrap();
    }
}

/// A body that never ends.
struct Pending(#[expect(dead_code, reason = "dropped with the body")] tokio::io::DuplexStream);

impl http_body::Body for Pending {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}
