//! How WebTransport sessions end, and what that means for their streams.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use squall::{Connection, ReadError, TransportConfig};
use squall_h3::client::{SendRequest, handshake_with};
use squall_h3::webtransport::{self, Session, SessionBody, StreamError};
use squall_h3::{Body, Code, Config, Error, Protocol, server};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::common::{Site, builder, read, service_fn, within};
use crate::webtransport::{Endless, session, start, uri};

const GONE: u64 = 0x170d_7b68;
const BUFFERED_STREAM_REJECTED: u64 = 0x3994_bd84;

/// A unidirectional stream of session `id`, written without the crate's help.
async fn raw_uni(connection: &Connection, id: u8) -> squall::SendStream {
    let mut send = within(connection.open_uni()).await.unwrap();
    send.write_all(&[0x40, 0x54, id, b'x']).await.unwrap();
    send
}

async fn raw_bi(connection: &Connection, id: u8) -> (squall::SendStream, squall::RecvStream) {
    let (mut send, recv) = within(connection.open_bi()).await.unwrap();
    send.write_all(&[0x40, 0x41, id, b'x']).await.unwrap();
    (send, recv)
}

async fn stopped_with(send: &squall::SendStream) -> u64 {
    within(send.stopped()).await.unwrap().unwrap()
}

async fn reset_with(mut recv: squall::RecvStream) -> u64 {
    loop {
        match within(recv.read_chunk(100)).await {
            Ok(Some(_)) => {}
            Err(ReadError::Reset(code)) => return code,
            other => panic!("{other:?}"),
        }
    }
}

/// Whichever end closes a session, the streams in use fail at both, and tasks that wait for one
/// learn of it.
// test: draft-ietf-webtrans-http3 §6
#[tokio::test(flavor = "multi_thread")]
async fn streams_in_use_end_with_their_session() {
    for (on_worker, client_closes) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_site, client, mut sessions) = start(on_worker).await;
        let near = session(&client).await;
        let far = within(sessions.recv()).await.unwrap();
        let mut idle = Vec::new();
        let mut idle_halves = Vec::new();
        let mut waiting = Vec::new();
        for (a, b) in [(&near, &far), (&far, &near)] {
            let (mut send, recv) = within(a.open_bi()).await.unwrap();
            send.write_all(b"x").await.unwrap();
            let theirs = within(b.accept_bi()).await.unwrap();
            idle.push((send, recv));
            idle.push(theirs);
            // One waits to read, and one for credit.
            let (mut send, mut recv) = within(a.open_bi()).await.unwrap();
            send.write_all(b"x").await.unwrap();
            let (their_send, mut their_recv) = within(b.accept_bi()).await.unwrap();
            idle_halves.push(their_send);
            waiting.push(tokio::spawn(async move {
                let all = vec![0; 64 << 20];
                let written = send.write_chunk(all.into()).await;
                assert_eq!(written, Err(StreamError::Ended));
            }));
            waiting.push(tokio::spawn(async move {
                assert_eq!(recv.read_chunk(1).await, Err(StreamError::Ended));
                let error = loop {
                    match their_recv.read_chunk(1).await {
                        Ok(read) => assert!(read.is_some()),
                        Err(error) => break error,
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                };
                assert_eq!(error, StreamError::Ended);
            }));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let by = if client_closes { &near } else { &far };
        by.close(7, "the end");
        for (mut send, mut recv) in idle {
            within(near.closed()).await;
            within(far.closed()).await;
            assert_eq!(within(recv.read_chunk(1)).await, Err(StreamError::Ended));
            assert_eq!(within(send.write_all(b"y")).await, Err(StreamError::Ended));
            assert_eq!(send.finish(), Err(StreamError::Ended));
        }
        for task in waiting {
            within(task).await.unwrap();
        }
        for session in [&near, &far] {
            let opened = within(session.open_bi()).await.map(drop);
            assert_eq!(opened, Err(StreamError::Ended));
            assert!(session.send_datagram(b"late").is_err());
        }
    }
}

/// The peer's streams are stopped and reset whether or not the application has taken them, and so
/// are those that arrive later.
// test: draft-ietf-webtrans-http3 §6
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_closed_session_are_rejected() {
    for is_closed in [true, false] {
        let (_site, client, mut sessions) = start(false).await;
        // Its id is 0.
        let _near = session(&client).await;
        let far = within(sessions.recv()).await.unwrap();
        let connection = client.connection();
        let taken = (raw_uni(connection, 0).await, raw_bi(connection, 0).await);
        let uni = within(far.accept_uni()).await.unwrap();
        let bi = within(far.accept_bi()).await.unwrap();
        let (_open, mut reset_recv) = raw_bi(connection, 0).await;
        let mut reset = within(far.accept_bi()).await.unwrap();
        reset.0.reset(3).unwrap();
        assert!(within(reset_recv.read_chunk(9)).await.is_err());
        let untaken = (raw_uni(connection, 0).await, raw_bi(connection, 0).await);
        if is_closed {
            far.close(0, "");
        } else {
            // With its last handle.
            drop((uni, bi, reset, far));
            assert_ne!(stopped_with(&taken.0).await, GONE, "dropped before the end");
        }
        let late = (raw_uni(connection, 0).await, raw_bi(connection, 0).await);
        for (i, (uni, (send, recv))) in [taken, untaken, late].into_iter().enumerate() {
            if i > 0 || is_closed {
                assert_eq!(stopped_with(&uni).await, GONE);
                assert_eq!(stopped_with(&send).await, GONE);
                assert_eq!(reset_with(recv).await, GONE);
            }
        }
    }
}

/// Streams that have ended are not kept, and as many as there are end with their session.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_only_streams_in_use() {
    let count = std::env::var("SQUALL_H3_STREAMS").map_or(500, |count| count.parse().unwrap());
    let transport = TransportConfig::default()
        .max_concurrent_bidi_streams(count + 10)
        .max_concurrent_uni_streams(count + 10);
    let (_site, client, mut sessions) = started_with(transport).await;
    let near = session(&client).await;
    let far = within(sessions.recv()).await.unwrap();
    let is_empty = |session: &Session| format!("{session:?}").contains("halves_of_streams: 0,");
    // Ended in each way.
    for way in 0..5 {
        let (mut send, mut recv) = within(near.open_bi()).await.unwrap();
        send.write_all(b"x").await.unwrap();
        let (mut their_send, mut their_recv) = within(far.accept_bi()).await.unwrap();
        match way {
            0 => {}
            1 => {
                send.finish().unwrap();
                their_send.finish().unwrap();
                while within(their_recv.read_chunk(9)).await.unwrap().is_some() {}
                while within(recv.read_chunk(9)).await.unwrap().is_some() {}
            }
            2 => {
                send.reset(1).unwrap();
                their_send.reset(1).unwrap();
                while within(their_recv.read_chunk(9)).await.is_ok() {}
                while within(recv.read_chunk(9)).await.is_ok() {}
            }
            3 => {
                tokio::io::AsyncWriteExt::shutdown(&mut send).await.unwrap();
                tokio::io::AsyncWriteExt::shutdown(&mut their_send)
                    .await
                    .unwrap();
                recv.stop(1).unwrap();
                their_recv.stop(1).unwrap();
            }
            _ => drop(std::mem::replace(
                &mut their_send,
                within(far.open_uni()).await.unwrap(),
            )),
        }
        if (1..=3).contains(&way) {
            assert!(is_empty(&near) && is_empty(&far), "{way}: {near:?} {far:?}");
        }
        drop((send, recv, their_send, their_recv));
        assert!(is_empty(&near) && is_empty(&far), "{way}: {near:?} {far:?}");
    }
    // All at once, though the application takes none of them at first.
    let mut streams = Vec::new();
    for _ in 0..count {
        let (mut send, recv) = within(near.open_bi()).await.unwrap();
        send.write_all(b"x").await.unwrap();
        streams.push((send, recv));
    }
    for _ in 0..count {
        streams.push(within(far.accept_bi()).await.unwrap());
    }
    let begin = std::time::Instant::now();
    near.close(0, "");
    let closed_in = begin.elapsed();
    for (send, recv) in &mut streams {
        while let Ok(chunk) = within(recv.read_chunk(9)).await {
            assert!(chunk.is_some());
        }
        let written = async {
            while send.write_all(b"x").await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        within(written).await;
    }
    println!(
        "{count} streams: closed in {closed_in:?}, all in {:?}",
        begin.elapsed()
    );
    within(far.closed()).await;
    assert!(is_empty(&near) && is_empty(&far), "{near:?} {far:?}");
}

/// However the end of a session meets streams that are opened, taken, used and dropped, no task
/// waits for ever, and no stream is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_at_any_time_leaves_nothing_behind() {
    for on_worker in [false, true] {
        let (_site, client, mut sessions) = start(on_worker).await;
        for round in 0..40 {
            let near = session(&client).await;
            let far = within(sessions.recv()).await.unwrap();
            let mut tasks = JoinSet::new();
            for (session, n) in [(&near, 0), (&far, 0), (&near, 1), (&far, 1)] {
                let opening = session.clone();
                tasks.spawn(async move {
                    while let Ok((mut send, mut recv)) = opening.open_bi().await {
                        let _ = send.write_all(b"x").await;
                        if n == 0 {
                            let _ = send.finish();
                            let _ = recv.read_chunk(9).await;
                        }
                        tokio::task::yield_now().await;
                    }
                });
                let opening = session.clone();
                tasks.spawn(async move {
                    while let Ok(mut send) = opening.open_uni().await {
                        let _ = send.write_all(b"x").await;
                        tokio::task::yield_now().await;
                    }
                });
                let accepting = session.clone();
                tasks.spawn(async move {
                    while let Some((mut send, mut recv)) = accepting.accept_bi().await {
                        let _ = recv.read_chunk(9).await;
                        let _ = send.write_all(b"y").await;
                    }
                });
                let accepting = session.clone();
                tasks.spawn(async move {
                    while let Some(mut recv) = accepting.accept_uni().await {
                        let _ = recv.read_chunk(9).await;
                    }
                });
            }
            tokio::time::sleep(Duration::from_millis(round % 8)).await;
            let by = if round % 2 == 0 { &near } else { &far };
            by.close(1, "");
            within(tasks.join_all()).await;
            for session in [&near, &far] {
                let is_empty = format!("{session:?}").contains("halves_of_streams: 0,");
                assert!(is_empty, "{session:?}");
            }
        }
        // Each end's control stream and both of QPACK's.
        let all_ended = async {
            while client.connection().stats().open_streams > 6 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(all_ended).await;
    }
}

async fn started_with(
    transport: TransportConfig,
) -> (Site, SendRequest, mpsc::UnboundedReceiver<Session>) {
    let site = Site::with(transport.clone());
    let (give, sessions) = mpsc::unbounded_channel();
    let config = Config::new().webtransport(4);
    let service = move |request: Request<Body>| {
        let (response, session) = webtransport::accept(request).unwrap();
        give.send(session).unwrap();
        std::future::ready(response)
    };
    crate::common::start(&site, config.clone(), false, service);
    let client = handshake_with(site.connection_with(transport).await, config);
    (site, client, sessions)
}

/// A stream that overtakes its session waits for it, and datagrams do not push it out.
// test: draft-ietf-webtrans-http3 §4.6
#[tokio::test(flavor = "multi_thread")]
async fn early_streams_wait_for_their_session() {
    let (_site, client, mut sessions) = start(false).await;
    let connection = client.connection();
    let mut others = Vec::new();
    for _ in 0..70 {
        others.push(raw_uni(connection, 40).await);
    }
    for _ in 0..70 {
        connection
            .send_datagram(Bytes::from_static(&[10, 1]))
            .unwrap();
    }
    // Beyond the limit, the oldest are rejected.
    for send in others.iter().take(6) {
        assert_eq!(stopped_with(send).await, BUFFERED_STREAM_REJECTED);
    }
    let early = raw_uni(connection, 0).await;
    assert_eq!(stopped_with(&others[6]).await, BUFFERED_STREAM_REJECTED);
    for _ in 0..200 {
        let datagram = Bytes::from_static(&[10, 1]);
        connection.send_datagram(datagram).unwrap();
        tokio::task::yield_now().await;
    }
    let _near = session(&client).await;
    let far = within(sessions.recv()).await.unwrap();
    let mut recv = within(far.accept_uni()).await.unwrap();
    assert_eq!(within(recv.read_chunk(9)).await.unwrap().unwrap(), "x");
    drop(early);
}

/// Streams of a session that is refused are rejected.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_refused_session_are_rejected() {
    for on_worker in [false, true] {
        let site = Site::new();
        let config = Config::new().webtransport(1);
        let refuse = |_| async {
            let mut response = crate::common::response("no");
            *response.status_mut() = http::StatusCode::FORBIDDEN;
            response
        };
        crate::common::start(&site, config.clone(), on_worker, refuse);
        let client = handshake_with(site.connection().await, config);
        let early = raw_uni(client.connection(), 0).await;
        let refused = webtransport::connect(&client, uri(), HeaderMap::new());
        assert!(within(refused).await.unwrap().is_err());
        let late = raw_uni(client.connection(), 0).await;
        assert_eq!(stopped_with(&early).await, GONE);
        assert_eq!(stopped_with(&late).await, GONE);
    }
}

fn connect_with(capsules: Vec<u8>) -> Request<Endless> {
    let mut request = Request::new(Endless(Some(capsules.into())));
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = uri();
    let protocol = Protocol::from_static("webtransport");
    request.extensions_mut().insert(protocol);
    request
}

/// CLOSE_SESSION with this payload.
fn close_capsule(payload: &[u8]) -> Vec<u8> {
    let mut capsule = vec![0x68, 0x43];
    capsule.extend_from_slice(&(0x4000 | payload.len() as u16).to_be_bytes());
    capsule.extend_from_slice(payload);
    capsule
}

/// Capsules, and the code and reason of the session's end; and whether they are malformed.
type End = (Vec<u8>, u32, String, bool);

/// Checks how a session that received these capsules ended, and its body.
async fn check_end(session: &Session, body: Body, end: &End) {
    let (capsules, code, reason, is_malformed) = end;
    let closed = within(session.closed()).await;
    assert_eq!(
        (closed.code, &closed.reason),
        (*code, reason),
        "{capsules:x?}"
    );
    let rest = read(body).await;
    if *is_malformed {
        let is_reset = matches!(rest, Err(Error::Stream(Code::H3_MESSAGE_ERROR)));
        assert!(is_reset, "{capsules:x?}: {rest:?}");
    } else {
        assert_eq!(rest.unwrap(), b"", "{capsules:x?}");
    }
}

fn ends() -> Vec<End> {
    let longest = [&[0, 0, 0, 5][..], &[b'a'; 1024]].concat();
    let too_long = [&[0, 0, 0, 5][..], &[b'a'; 1025]].concat();
    let trailing = |byte: u8| {
        let mut capsule = close_capsule(b"\0\0\0\x09bye");
        capsule.push(byte);
        capsule
    };
    vec![
        (close_capsule(b"\0\0\0\x05"), 5, String::new(), false),
        (close_capsule(&longest), 5, "a".repeat(1024), false),
        (
            close_capsule(b"\0\0\0\x05a\xffb"),
            5,
            "a\u{fffd}b".to_owned(),
            false,
        ),
        (
            [&[0x21, 1, 7][..], &close_capsule(b"\xff\xff\xff\xffx")].concat(),
            u32::MAX,
            "x".to_owned(),
            false,
        ),
        (
            [&[0x80, 0, 0x78, 0xae, 0][..], &close_capsule(b"\0\0\0\x08")].concat(),
            8,
            String::new(),
            false,
        ),
        // A request to drain the session that is not empty.
        (vec![0x80, 0, 0x78, 0xae, 1, 0], 0, String::new(), true),
        (close_capsule(b"\0\0\0"), 0, String::new(), true),
        (close_capsule(&too_long), 0, String::new(), true),
        (trailing(0), 9, "bye".to_owned(), true),
    ]
}

/// A client's capsules that end the session, and those that break a rule.
// test: draft-ietf-webtrans-http3 §6, RFC 9297 §3.3
#[tokio::test(flavor = "multi_thread")]
async fn malformed_capsules_of_a_client_reset_the_session() {
    for on_worker in [false, true] {
        let (_site, client, mut sessions) = start(on_worker).await;
        for end in ends() {
            let response = within(client.send(connect_with(end.0.clone())))
                .await
                .unwrap();
            let session = within(sessions.recv()).await.unwrap();
            check_end(&session, response.into_body(), &end).await;
        }
    }
}

/// The same of a server.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_capsules_of_a_server_reset_the_session() {
    let site = Site::new();
    // This server's sessions last as long as the connection.
    let config = Config::new().webtransport(16);
    let (tell, mut requests) = mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<Body>| {
        let capsules = request.headers()["capsules"].as_bytes();
        let capsules = capsules
            .split(|byte| *byte == b'.')
            .filter_map(|byte| std::str::from_utf8(byte).unwrap().parse().ok());
        let response = Response::new(Endless(Some(capsules.collect::<Vec<u8>>().into())));
        tell.send(request.into_body()).unwrap();
        std::future::ready(response)
    });
    let serving = server::Builder::new()
        .config(config.clone())
        .serve(site.endpoint.clone(), service);
    tokio::spawn(async move { serving.await });
    let client = handshake_with(site.connection().await, config);
    for end in ends() {
        let mut headers = HeaderMap::new();
        let value = end
            .0
            .iter()
            .map(|byte| format!("{byte}."))
            .collect::<String>();
        headers.insert("capsules", value.parse().unwrap());
        let session = within(webtransport::connect(&client, uri(), headers)).await;
        let session = session.unwrap().unwrap();
        let body = within(requests.recv()).await.unwrap();
        check_end(&session, body, &end).await;
    }
}

/// A server that accepts a session and ends it with the same packet leaves no request behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_closed_with_its_response_leaves_no_request() {
    let site = Site::new();
    let config = Config::new().webtransport(1);
    let (tell, mut bodies) = mpsc::unbounded_channel();
    let accept = move |request: Request<Body>| {
        tell.send(request.into_body()).unwrap();
        std::future::ready(Response::new(SessionBody::default()))
    };
    crate::common::start(&site, config.clone(), false, accept);
    let client = handshake_with(site.connection().await, config);
    let opened = within(webtransport::connect(&client, uri(), HeaderMap::new())).await;
    match opened {
        Ok(Ok(session)) => assert_eq!(within(session.closed()).await.code, 0),
        Ok(Err(response)) => panic!("{response:?}"),
        Err(error) => assert!(matches!(error, Error::Malformed(_)), "{error}"),
    }
    let body = within(bodies.recv()).await.unwrap();
    assert_eq!(read(body).await.unwrap(), b"");
}

/// A client may close the connection as soon as its session's end has been acknowledged, as Firefox
/// does. Its reason reaches the application, whether or not anything has read it by then.
#[tokio::test(flavor = "multi_thread")]
async fn the_reason_of_a_session_outlives_the_connection() {
    for (is_answered, on_worker) in [(false, false), (true, false), (true, true)] {
        for _ in 0..20 {
            let site = Site::new();
            let config = Config::new().webtransport(4);
            let (give, mut sessions) = mpsc::unbounded_channel();
            let service = move |request: Request<Body>| {
                let (response, session) = webtransport::accept(request).unwrap();
                let give = give.clone();
                async move {
                    let (held, response) = if is_answered {
                        (None, response)
                    } else {
                        (Some(response), Response::new(SessionBody::default()))
                    };
                    give.send((session, held)).unwrap();
                    if !is_answered {
                        std::future::pending::<()>().await;
                    }
                    response
                }
            };
            crate::common::start(&site, config.clone(), on_worker, service);
            let client = handshake_with(site.connection().await, config);
            let request = connect_with(close_capsule(b"\0\0\0\x09bye"));
            let answer = tokio::spawn(client.send(request));
            let (session, _held) = within(sessions.recv()).await.unwrap();
            within(client.connection().shutdown(0x100, b"")).await;
            let closed = within(session.closed()).await;
            assert_eq!((closed.code, &*closed.reason), (9, "bye"));
            answer.abort();
        }
    }
}

/// Handles of a request's datagrams are independent of one another.
#[tokio::test(flavor = "multi_thread")]
async fn datagrams_arrive_until_their_last_handle_is_dropped() {
    let site = Site::new();
    let config = Config::new().enable_connect_protocol(true).datagrams(true);
    let (tell, mut received) = mpsc::unbounded_channel();
    let tunnel = move |request: Request<Body>| {
        let tell = tell.clone();
        let datagrams = request.body().datagrams().unwrap();
        // One that is dropped at once.
        assert!(request.body().datagrams().is_some());
        tokio::spawn(async move { tell.send(datagrams.recv().await).unwrap() });
        std::future::ready(Response::new(request.into_body()))
    };
    crate::common::start(&site, config.clone(), false, tunnel);
    let client = handshake_with(site.connection().await, config);
    let mut request = connect_with(b"x".to_vec());
    let protocol = Protocol::from_static("connect-udp");
    request.extensions_mut().insert(protocol);
    let response = within(client.send(request)).await.unwrap();
    response.body().datagrams().unwrap().send(b"here").unwrap();
    let datagram = within(received.recv()).await.unwrap();
    assert_eq!(datagram.unwrap(), "here");
}

async fn try_session(client: &SendRequest) -> Result<Session, Error> {
    let session = within(webtransport::connect(client, uri(), HeaderMap::new())).await?;
    Ok(session.expect("accepted"))
}

/// Sessions beyond the limit are rejected; one that takes the place of one that ends is not.
// test: draft-ietf-webtrans-http3 §5.2
#[tokio::test(flavor = "multi_thread")]
async fn a_client_can_have_the_allowed_number_of_sessions() {
    for on_worker in [false, true] {
        let (_site, client, mut sessions) = start(on_worker).await;
        let mut open = Vec::new();
        for _ in 0..4 {
            let near = session(&client).await;
            open.push((near, within(sessions.recv()).await.unwrap()));
        }
        let error = try_session(&client).await.unwrap_err();
        assert!(error.is_unprocessed(), "{error:?}");
        for round in 0..50 {
            let (near, far) = open.remove(0);
            match round % 3 {
                0 => near.close(round, "next"),
                1 => drop(near),
                _ => far.close(round, "next"),
            }
            let near = try_session(&client).await.unwrap();
            open.push((near, within(sessions.recv()).await.unwrap()));
        }
        // The request for the next session overtakes the end of one.
        let (near, _far) = open.remove(0);
        let ending = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            near.close(0, "");
        };
        let (next, ()) = tokio::join!(try_session(&client), ending);
        next.unwrap();
    }
}

/// Either end asks the other to end the session, which can be used meanwhile.
// test: draft-ietf-webtrans-http3 §4.7
#[tokio::test(flavor = "multi_thread")]
async fn a_session_can_be_drained() {
    for on_worker in [false, true] {
        let (_site, client, mut sessions) = start(on_worker).await;
        for client_asks in [false, true] {
            let near = session(&client).await;
            let far = within(sessions.recv()).await.unwrap();
            let (by, other) = if client_asks {
                (&near, &far)
            } else {
                (&far, &near)
            };
            let wait = tokio::time::timeout(Duration::from_millis(50), other.draining());
            wait.await
                .expect_err("neither end has asked to drain the session");
            by.drain();
            by.drain();
            within(other.draining()).await;
            // It has been asked before.
            within(other.draining()).await;
            let mut send = within(other.open_uni()).await.unwrap();
            send.write_all(b"the last").await.unwrap();
            send.finish().unwrap();
            let mut recv = within(by.accept_uni()).await.unwrap();
            assert_eq!(
                &within(recv.read_chunk(100)).await.unwrap().unwrap()[..],
                b"the last"
            );
            by.drain();
            by.close(7, "the end");
            assert_eq!(within(other.closed()).await.code, 7);
            within(other.draining()).await;
            within(by.draining()).await;
        }
    }
}

/// A server that ends gracefully asks both ends of its sessions to end them, and waits for that.
// test: draft-ietf-webtrans-http3 §4.7
#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_shutdown_drains_sessions() {
    for on_worker in [false, true] {
        let site = Site::new();
        let (give, mut sessions) = mpsc::unbounded_channel();
        let config = Config::new().webtransport(1);
        let builder = builder(on_worker).config(config.clone());
        let service = service_fn(move |request: Request<Body>| {
            let (response, session) = webtransport::accept(request).unwrap();
            give.send(session).unwrap();
            std::future::ready(response)
        });
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = builder.serve(site.endpoint.clone(), service);
        let signal = async move { stopped.await.unwrap() };
        let server = tokio::spawn(serving.with_graceful_shutdown(signal));
        let client = handshake_with(site.connection().await, config);
        let near = session(&client).await;
        let far = within(sessions.recv()).await.unwrap();
        let waiting = tokio::spawn({
            let near = near.clone();
            async move { near.draining().await }
        });
        stop.send(()).unwrap();
        within(far.draining()).await;
        within(waiting).await.unwrap();
        within(near.draining()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!server.is_finished());
        let mut send = within(near.open_uni()).await.unwrap();
        send.write_all(b"the last").await.unwrap();
        let mut recv = within(far.accept_uni()).await.unwrap();
        assert_eq!(
            &within(recv.read_chunk(100)).await.unwrap().unwrap()[..],
            b"the last"
        );
        near.close(0, "");
        within(server).await.unwrap();
    }
}
