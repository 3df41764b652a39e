//! Clients that cost more than they should (RFC 9114 §10.5): their cost is bounded, and the server
//! keeps serving others.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::channel::{Channel, Sender};
use squall::{CloseReason, Connection, ReadToEndError, RecvStream, SendStream, TransportConfig};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::common::{Site, get, read, response, start, within};
use squall_h3::{Body, Code, Config, server, webtransport};

fn request() -> Vec<u8> {
    let section = b"\0\0\xd1\xd7\xc1\x50\x09localhost";
    let mut frame = vec![1, section.len() as u8];
    frame.extend_from_slice(section);
    frame
}

/// A raw client without our HTTP/3, whose control stream is open.
async fn raw(site: &Site) -> (Connection, SendStream) {
    let connection = site.connection().await;
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[0, 4, 0]).await.unwrap();
    (connection, control)
}

async fn closed_with(connection: &Connection) -> Code {
    match within(connection.closed()).await {
        CloseReason::Application {
            code, remote: true, ..
        } => Code(code),
        other => panic!("{other}"),
    }
}

async fn reset_with(mut recv: RecvStream) -> Code {
    match within(recv.read_to_end(1 << 20)).await {
        Err(ReadToEndError::Read(squall::ReadError::Reset(code))) => Code(code),
        other => panic!("{other:?}"),
    }
}

async fn is_served(site: &Site) {
    let client = site.client().await;
    let response = within(client.send(get("/"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

/// Asks and cancels until the connection ends.
async fn cancel_all(connection: &squall::Connection) {
    let attack = async {
        while let Ok((mut send, mut recv)) = connection.open_bi().await {
            let _ = send.write_all(&request()).await;
            let _ = send.finish();
            tokio::task::yield_now().await;
            let _ = recv.stop(Code::H3_REQUEST_CANCELLED.0);
        }
    };
    within(attack).await;
}

/// Threats 19 and 55: "rapid reset".
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_every_request_is_closed() {
    for on_worker in [false, true] {
        let site = Site::new();
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let counts = (Arc::clone(&running), Arc::clone(&most));
        start(
            &site,
            Config::new(),
            on_worker,
            move |request: Request<Body>| {
                let (running, most) = counts.clone();
                async move {
                    if request.headers().contains_key("date") {
                        return response("");
                    }
                    struct Running(Arc<AtomicUsize>);
                    impl Drop for Running {
                        fn drop(&mut self) {
                            self.0.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    let _running = Running(running);
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    response("")
                }
            },
        );
        let (connection, _control) = raw(&site).await;
        let attack = async {
            for _ in 0..10_000 {
                let Ok((mut send, mut recv)) = connection.open_bi().await else {
                    break;
                };
                let _ = send.write_all(&request()).await;
                let _ = send.finish();
                tokio::task::yield_now().await;
                let _ = recv.stop(Code::H3_REQUEST_CANCELLED.0);
                let _ = send.reset(Code::H3_REQUEST_CANCELLED.0);
            }
        };
        within(attack).await;
        assert_eq!(closed_with(&connection).await, Code::H3_EXCESSIVE_LOAD);
        is_served(&site).await;
        // Handlers of abandoned requests are dropped.
        within(async {
            while running.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        assert!(most.load(Ordering::SeqCst) <= 1100, "{most:?}");
    }
}

/// A service that is ready when it has a permit, as with tower's `ConcurrencyLimit`.
struct Limited {
    permits: Arc<Semaphore>,
    acquiring: Option<Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send + Sync>>>,
    permit: Option<OwnedSemaphorePermit>,
    called: Arc<AtomicUsize>,
    /// As many references as there are instances.
    instances: Arc<()>,
}

impl Limited {
    fn new(permits: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(permits)),
            acquiring: None,
            permit: None,
            called: Arc::default(),
            instances: Arc::default(),
        }
    }
}

impl Clone for Limited {
    fn clone(&self) -> Self {
        Self {
            permits: Arc::clone(&self.permits),
            acquiring: None,
            permit: None,
            called: Arc::clone(&self.called),
            instances: Arc::clone(&self.instances),
        }
    }
}

impl tower_service::Service<Request<Body>> for Limited {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.permit.is_none() {
            let permits = Arc::clone(&self.permits);
            let acquiring = (self.acquiring).get_or_insert_with(|| {
                Box::pin(async move { permits.acquire_owned().await.unwrap() })
            });
            self.permit = Some(ready!(acquiring.as_mut().poll(cx)));
            self.acquiring = None;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.called.fetch_add(1, Ordering::SeqCst);
        let permit = self.permit.take().unwrap();
        Box::pin(async move {
            let _permit = permit;
            Ok(response("fine"))
        })
    }
}

/// Threats 19 and 55: requests that are cancelled while they wait for the service.
#[tokio::test(flavor = "multi_thread")]
async fn requests_cancelled_before_the_service_is_ready_leave_nothing() {
    for on_worker in [false, true] {
        let site = Site::new();
        let service = Limited::new(1);
        let instances = Arc::clone(&service.instances);
        let (permits, called) = (Arc::clone(&service.permits), Arc::clone(&service.called));
        let mut builder = server::Builder::new();
        if on_worker {
            builder = builder.on_worker();
        }
        let serving = builder.serve(site.endpoint.clone(), service);
        tokio::spawn(serving.into_future());
        let held = permits.acquire_owned().await.unwrap();

        // None of these waits any more, neither at the server nor for a permit.
        let (patient, _control) = raw(&site).await;
        for _ in 0..20 {
            let (mut send, mut recv) = patient.open_bi().await.unwrap();
            send.write_all(&request()).await.unwrap();
            send.finish().unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            let _ = recv.stop(Code::H3_REQUEST_CANCELLED.0);
        }
        // Nor for those of a connection that has ended.
        let (other, _control) = raw(&site).await;
        let (mut send, _recv) = other.open_bi().await.unwrap();
        send.write_all(&request()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        other.close(Code::H3_NO_ERROR.0, b"");
        // This client cancels all that it asks for.
        let (connection, _control) = raw(&site).await;
        cancel_all(&connection).await;
        assert_eq!(closed_with(&connection).await, Code::H3_EXCESSIVE_LOAD);
        // What is left: ours, the server's two, and that of the first connection.
        within(async {
            while Arc::strong_count(&instances) > 4 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;

        let client = site.client().await;
        let waiting = tokio::spawn(client.send(get("/")));
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(held);
        within(waiting).await.unwrap().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), 1);
        is_served(&site).await;
    }
}

/// A client that subscribes to events, reads the first one, and unsubscribes.
#[tokio::test(flavor = "multi_thread")]
async fn cancelling_responses_that_have_begun_is_allowed() {
    for on_worker in [false, true] {
        let site = Site::new();
        start(&site, Config::new(), on_worker, |_| {
            let (mut sender, body): (Sender<Bytes, Infallible>, _) = Channel::new(1);
            tokio::spawn(async move {
                // Until the body is dropped.
                while sender.send_data("event".into()).await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
            });
            std::future::ready(Response::new(body))
        });
        let client = site.client().await;
        for _ in 0..1200 {
            let mut events = within(client.send(get("/"))).await.unwrap().into_body();
            assert_eq!(next_data(&mut events).await, "event");
        }
        is_served(&site).await;
        within(client.send(get("/"))).await.unwrap();
    }
}

async fn next_data(body: &mut Body) -> Bytes {
    let frame = poll_fn(|cx| http_body::Body::poll_frame(Pin::new(body), cx));
    within(frame).await.unwrap().unwrap().into_data().unwrap()
}

/// Threat 55: a head that the client gives no credit for is never sent, so the response has not
/// begun.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_without_credit_has_not_begun() {
    for on_worker in [false, true] {
        let site = Site::new();
        let config = Config::new();
        start(&site, config, on_worker, async |_| response("fine"));
        let transport = TransportConfig::default().initial_stream_window(1);
        let connection = site.connection_with(transport).await;
        let mut control = connection.open_uni().await.unwrap();
        control.write_all(&[0, 4, 0]).await.unwrap();
        cancel_all(&connection).await;
        assert_eq!(closed_with(&connection).await, Code::H3_EXCESSIVE_LOAD);
    }
}

/// Threat 41: small references to a large entry.
#[tokio::test(flavor = "multi_thread")]
async fn a_header_bomb_is_answered_with_431() {
    let site = Site::new();
    start(&site, Config::new(), true, |_| async { response("") });
    let (connection, _control) = raw(&site).await;
    let mut encoder = connection.open_uni().await.unwrap();
    // Set the capacity to 4096, and insert x: 4,000 times y.
    let mut instructions = vec![2, 0x3f, 0xe1, 0x1f, 0x41, b'x', 0x7f, 0xa1, 0x1e];
    instructions.extend([b'y'; 4000]);
    encoder.write_all(&instructions).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Required Insert Count 1, then 100 indexed fields of 4,033 bytes.
    let mut section = vec![2, 0, 0xd1, 0xd7, 0xc1, 0x50, 9];
    section.extend_from_slice(b"localhost");
    section.extend([0x80; 100]);
    let mut frame = vec![1, 0x40, section.len() as u8];
    frame.extend_from_slice(&section);
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&frame).await.unwrap();
    send.finish().unwrap();
    let answer = within(recv.read_to_end(1000)).await.unwrap();
    // RFC 9114 §4.2.2: 431, as an indexed name and a literal value.
    assert!(
        answer.windows(3).any(|part| part == b"431") || answer.contains(&0xb0),
        "{answer:?}"
    );
    assert!(connection.close_reason().is_none());
    is_served(&site).await;
}

/// Threat 42: streams that wait for entries that never arrive.
#[tokio::test(flavor = "multi_thread")]
async fn blocked_streams_are_limited_and_time_out() {
    let site = Site::new();
    let config = Config::new()
        .qpack_blocked_streams(4)
        .header_timeout(Duration::from_secs(1));
    start(&site, config, true, |_| async { response("") });
    let (connection, _control) = raw(&site).await;
    // A section that needs the first entry.
    let blocked: &[u8] = &[1, 3, 2, 0, 0x80];
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let (mut send, recv) = connection.open_bi().await.unwrap();
        send.write_all(blocked).await.unwrap();
        waiting.push((send, recv));
    }
    // They must not wait for ever.
    for (_send, recv) in waiting {
        assert_eq!(reset_with(recv).await, Code::H3_REQUEST_INCOMPLETE);
    }
    assert!(connection.close_reason().is_none());
    // One more at a time than this end allows.
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let (mut send, recv) = connection.open_bi().await.unwrap();
        let _ = send.write_all(blocked).await;
        waiting.push((send, recv));
    }
    assert_eq!(
        closed_with(&connection).await,
        Code::QPACK_DECOMPRESSION_FAILED
    );
    is_served(&site).await;
}

/// A cancelled request no longer waits: the client may have as many blocked ones again at once
/// (RFC 9204 §2.1.2).
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_blocked_streams_make_room_for_others() {
    for on_worker in [false, true] {
        let site = Site::new();
        let config = Config::new().qpack_blocked_streams(4);
        start(&site, config, on_worker, |_| async { response("") });
        let (connection, _control) = raw(&site).await;
        let blocked: &[u8] = &[1, 3, 2, 0, 0x80];
        for _ in 0..3 {
            let mut waiting = Vec::new();
            for _ in 0..4 {
                let (mut send, recv) = connection.open_bi().await.unwrap();
                send.write_all(blocked).await.unwrap();
                waiting.push((send, recv));
            }
            // The server has read the heads.
            tokio::time::sleep(Duration::from_millis(100)).await;
            for (index, (mut send, mut recv)) in waiting.into_iter().enumerate() {
                // A whole request is cancelled by stopping the response.
                if index % 2 == 0 {
                    send.reset(Code::H3_REQUEST_CANCELLED.0).unwrap();
                    let reset = tokio::time::timeout(Duration::from_secs(5), reset_with(recv));
                    assert_eq!(reset.await.unwrap(), Code::H3_REQUEST_CANCELLED);
                } else {
                    send.finish().unwrap();
                    recv.stop(Code::H3_REQUEST_CANCELLED.0).unwrap();
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(connection.close_reason().is_none());
        is_served(&site).await;
    }
}

/// A head that does not arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_arrive_times_out() {
    for on_worker in [false, true] {
        let site = Site::new();
        let config = Config::new().header_timeout(Duration::from_millis(100));
        start(&site, config, on_worker, |_| async { response("") });
        let (connection, _control) = raw(&site).await;
        for part in [0, 1, 2, 5, 15] {
            let (mut send, recv) = connection.open_bi().await.unwrap();
            let part = request()
                .get(..part)
                .map(<[u8]>::to_vec)
                .unwrap_or_default();
            if part.is_empty() {
                continue;
            }
            send.write_all(&part).await.unwrap();
            assert_eq!(reset_with(recv).await, Code::H3_REQUEST_INCOMPLETE);
        }
        is_served(&site).await;
    }
}

/// An endless body that counts what is taken from it.
struct Endless(Arc<AtomicUsize>);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.0.fetch_add(10_000, Ordering::SeqCst);
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(
            &[0; 10_000],
        )))))
    }
}

/// Threat 55: unread responses take what flow control allows, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_take_no_more_than_flow_control_allows() {
    for on_worker in [false, true] {
        let site = Site::new();
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        start(
            &site,
            Config::new(),
            on_worker,
            move |request: Request<Body>| {
                let body = match request.uri().path() {
                    "/endless" => Either::Endless(Endless(Arc::clone(&count))),
                    _ => Either::Body(Body::from("fine")),
                };
                std::future::ready(Response::new(body))
            },
        );
        let client = site.client().await;
        let mut unread = Vec::new();
        for _ in 0..20 {
            unread.push(within(client.send(get("/endless"))).await.unwrap());
        }
        // Until nothing more is taken.
        let taken = within(async {
            loop {
                let before = taken.load(Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(300)).await;
                if taken.load(Ordering::SeqCst) == before {
                    return before;
                }
            }
        })
        .await;
        assert!(taken < 200 << 20, "{taken}");
        // Others continue, as do other streams of this connection.
        is_served(&site).await;
        drop(unread);
        let response = within(client.send(get("/"))).await.unwrap();
        assert_eq!(read(response.into_body()).await.unwrap(), b"fine");
    }
}

enum Either {
    Endless(Endless),
    Body(Body),
}

impl http_body::Body for Either {
    type Data = Bytes;
    type Error = squall_h3::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Self::Endless(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|never| match never {}),
            Self::Body(body) => Pin::new(body).poll_frame(cx),
        }
    }
}

/// Threat 45: unread datagrams and streams of sessions, and priorities of requests that never
/// arrive.
#[tokio::test(flavor = "multi_thread")]
async fn queues_are_bounded() {
    let site = Site::new();
    let config = Config::new().webtransport(1);
    let (give, mut sessions) = tokio::sync::mpsc::unbounded_channel();
    start(
        &site,
        config.clone(),
        true,
        move |request: Request<Body>| {
            std::future::ready(match webtransport::accept(request) {
                Ok((response, session)) => {
                    give.send(session).unwrap();
                    response
                }
                Err(_) => Response::new(webtransport::SessionBody::default()),
            })
        },
    );
    let client = squall_h3::client::handshake_with(site.connection().await, config);
    let uri = Uri::from_static("https://localhost/");
    let near = within(webtransport::connect(&client, uri, HeaderMap::new()))
        .await
        .unwrap()
        .unwrap();
    let far = sessions.recv().await.unwrap();
    for i in 0..5_000u32 {
        near.send_datagram(&i.to_be_bytes()).unwrap();
        if i % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    near.send_datagram(b"last").unwrap();
    let mut kept = 0;
    while within(far.recv_datagram()).await.unwrap() != "last" {
        kept += 1;
    }
    assert!(kept <= 64, "{kept}");
    // A datagram for a request that does not exist, and one that names none.
    let (connection, mut control) = raw(&site).await;
    for i in 0..5_000u32 {
        let mut update = vec![0x80, 0x0f, 0x07, 0x00, 4];
        update.extend((0x8000_0000 | (4 * i)).to_be_bytes());
        control.write_all(&update).await.unwrap();
        connection
            .send_datagram(Bytes::from_static(&[0x40, 100, 1]))
            .unwrap();
    }
    is_served(&site).await;
    assert!(connection.close_reason().is_none());
    connection
        .send_datagram(Bytes::from_static(&[0x40]))
        .unwrap();
    assert_eq!(closed_with(&connection).await, Code::H3_DATAGRAM_ERROR);
}

/// Threat 43: unknown frames are skipped, however long they are.
#[tokio::test(flavor = "multi_thread")]
async fn long_unknown_frames_are_skipped() {
    let site = Site::new();
    start(&site, Config::new(), true, |_| async { response("") });
    let (connection, mut control) = raw(&site).await;
    let mut frame = vec![0x21, 0x80, 0x98, 0x96, 0x80];
    frame.resize(frame.len() + 10_000_000, 7);
    within(control.write_all(&frame)).await.unwrap();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    frame.extend_from_slice(&request());
    within(send.write_all(&frame)).await.unwrap();
    send.finish().unwrap();
    assert!(!within(recv.read_to_end(1000)).await.unwrap().is_empty());
    assert!(connection.close_reason().is_none());
}
