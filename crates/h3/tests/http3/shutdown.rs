//! The end of servers and clients: requests in progress are finished, and nothing is lost.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Request;
use squall::{CloseReason, TransportConfig, TransportErrorCode};
use squall_h3::{Body, Code, server};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, oneshot};

use crate::common::{ANY_PORT, Site, builder, get, read, response, service_fn, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_finishes_requests_in_progress() {
    for on_worker in [false, true] {
        let site = Site::new();
        let builder = builder(on_worker);
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let waiting = (Arc::clone(&begun), Arc::clone(&go_on));
        let service = service_fn(move |request: http::Request<squall_h3::Body>| {
            let (begun, go_on) = waiting.clone();
            async move {
                if request.uri().path() == "/wait" {
                    begun.notify_one();
                    go_on.notified().await;
                }
                response(vec![7; 1_000_000])
            }
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = builder.serve(site.endpoint.clone(), service);
        let signal = async move { stopped.await.unwrap() };
        let server = tokio::spawn(serving.with_graceful_shutdown(signal));
        let client = site.client().await;
        let other = site.client().await;
        let under_way = tokio::spawn({
            let client = client.clone();
            async move { client.send(get("/wait")).await }
        });
        let unread = within(other.send(get("/"))).await.unwrap();
        within(begun.notified()).await;
        stop.send(()).unwrap();
        // GOAWAY: the client sends nothing more here.
        let refused = async {
            loop {
                match client.send(get("/")).await {
                    Ok(response) => drop(read(response.into_body()).await.unwrap()),
                    Err(error) => break error,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let refused = within(refused).await;
        assert!(refused.is_unprocessed(), "{refused}");
        assert!(client.is_closed());
        // The server waits for the response, however long it takes.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(client.connection().close_reason().is_none());
        go_on.notify_one();
        let answer = within(under_way).await.unwrap().unwrap();
        assert_eq!(read(answer.into_body()).await.unwrap().len(), 1_000_000);
        assert_eq!(read(unread.into_body()).await.unwrap().len(), 1_000_000);
        within(server).await.unwrap();
        match within(client.connection().closed()).await {
            CloseReason::Application { code, .. } => assert_eq!(Code(code), Code::H3_NO_ERROR),
            other => panic!("{other}"),
        }
    }
}

/// Starts the server of a site, which shuts down gracefully when signalled.
fn stoppable(site: &Site) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let service = service_fn(|_| async { response("content") });
    let serving = server::Builder::new().serve(site.endpoint.clone(), service);
    let signal = async move { stopped.await.unwrap() };
    (stop, tokio::spawn(serving.with_graceful_shutdown(signal)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_shutting_down_rejects_new_clients_at_once() {
    for on_worker in [false, true] {
        let site = Site::new();
        let builder = builder(on_worker);
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let waiting = (Arc::clone(&begun), Arc::clone(&go_on));
        let service = service_fn(move |_| {
            let (begun, go_on) = waiting.clone();
            async move {
                begun.notify_one();
                go_on.notified().await;
                response("content")
            }
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = builder.serve(site.endpoint.clone(), service);
        let signal = async move { stopped.await.unwrap() };
        let server = tokio::spawn(serving.with_graceful_shutdown(signal));
        let client = site.client().await;
        let under_way = tokio::spawn(async move { client.send(get("/")).await });
        within(begun.notified()).await;
        stop.send(()).unwrap();

        // The signal arrives a moment later.
        let refused = async {
            loop {
                if let Err(reason) = site.connect().await {
                    break reason;
                }
            }
        };
        let began = Instant::now();
        let reason = within(refused).await;
        assert!(began.elapsed() < Duration::from_secs(2), "{reason}");
        assert!(
            matches!(&reason, CloseReason::Transport { code, remote: true, .. }
                if *code == TransportErrorCode::CONNECTION_REFUSED),
            "{reason}"
        );
        go_on.notify_one();
        let answer = within(under_way).await.unwrap().unwrap();
        assert_eq!(read(answer.into_body()).await.unwrap(), b"content");
        within(server).await.unwrap();
    }
}

/// What has arrived before the signal is accepted, though the task has not seen it yet.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_arrived_before_the_signal_are_accepted() {
    let site = Site::new();
    let service = service_fn(|_| async { response("content") });
    let serving = server::Builder::new().serve(site.endpoint.clone(), service);
    let (busy, is_busy) = oneshot::channel::<()>();
    let signal = async move {
        busy.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    };
    let server = tokio::spawn(serving.with_graceful_shutdown(signal));
    is_busy.await.unwrap();
    let connected = within(site.connect()).await;
    assert!(connected.is_ok(), "{:?}", connected.err());
    within(server).await.unwrap();
}

/// Forwards datagrams between a client and a server. Those from the server are lost while
/// `is_lossy` is set.
async fn relay(server: SocketAddr, is_lossy: Arc<AtomicBool>) -> SocketAddr {
    let front = UdpSocket::bind(ANY_PORT).await.unwrap();
    let back = UdpSocket::bind(ANY_PORT).await.unwrap();
    back.connect(server).await.unwrap();
    let address = front.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut there, mut here) = ([0; 2_000], [0; 2_000]);
        let mut client = address;
        loop {
            tokio::select! {
                Ok((len, from)) = front.recv_from(&mut there) => {
                    client = from;
                    let _ = back.send(&there[..len]).await;
                }
                Ok(len) = back.recv(&mut here) => {
                    if !is_lossy.load(Ordering::SeqCst) {
                        let _ = front.send_to(&here[..len], client).await;
                    }
                }
            }
        }
    });
    address
}

fn is_graceful(reason: &CloseReason, by_the_peer: bool) -> bool {
    matches!(
        reason,
        CloseReason::Application { code, remote, .. }
            if Code(*code) == Code::H3_NO_ERROR && *remote == by_the_peer
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_learns_of_the_shutdown_despite_lost_datagrams() {
    let site = Site::new();
    let (stop, server) = stoppable(&site);
    let is_lossy = Arc::<AtomicBool>::default();
    let address = relay(site.endpoint.local_addr().unwrap(), Arc::clone(&is_lossy)).await;
    let connection = site.connection_by(address, TransportConfig::default());
    let client = squall_h3::client::handshake(connection.await);
    let answer = within(client.send(get("/"))).await.unwrap();
    read(answer.into_body()).await.unwrap();
    // Acknowledgements.
    tokio::time::sleep(Duration::from_millis(100)).await;
    is_lossy.store(true, Ordering::SeqCst);
    stop.send(()).unwrap();
    // Both GOAWAYs.
    tokio::time::sleep(Duration::from_millis(50)).await;
    is_lossy.store(false, Ordering::SeqCst);
    // It has nothing to send that would reveal it.
    let reason = within(client.connection().closed()).await;
    assert!(
        client.is_closed() && is_graceful(&reason, false),
        "{reason}"
    );
    within(server).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_a_connection_that_its_client_leaves_open() {
    let site = Site::new();
    let (stop, server) = stoppable(&site);
    let connection = site.connection().await;
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[0, 4, 0]).await.unwrap();
    // The server measures the round trip.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    stop.send(()).unwrap();
    let reason = within(connection.closed()).await;
    assert!(is_graceful(&reason, true), "{reason}");
    // It was given some time to do so itself.
    assert!(began.elapsed() > Duration::from_millis(200));
    within(server).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_closes_its_connection_when_it_is_no_longer_used() {
    let site = Site::new();
    let service = service_fn(|_| async { response(vec![7; 1_000_000]) });
    let serving = server::serve(site.endpoint.clone(), service);
    tokio::spawn(async move { serving.await });
    let client = site.client().await;
    let connection = client.connection().clone();
    let response = within(client.send(get("/"))).await.unwrap();
    drop(client);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(connection.close_reason().is_none());
    assert_eq!(read(response.into_body()).await.unwrap().len(), 1_000_000);
    match within(connection.closed()).await {
        CloseReason::Application {
            code,
            remote: false,
            ..
        } => {
            assert_eq!(Code(code), Code::H3_NO_ERROR);
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_response_is_cancelled() {
    let site = Site::new();
    let (dropped, waiting) = oneshot::channel::<()>();
    let dropped = Arc::new(std::sync::Mutex::new(Some(dropped)));
    let service = service_fn(move |_| {
        let held = dropped.lock().unwrap().take();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            response("")
        }
    });
    let serving = server::serve(site.endpoint.clone(), service);
    tokio::spawn(async move { serving.await });
    let client = site.client().await;
    let asking = client.send(get("/"));
    assert!(
        tokio::time::timeout(Duration::from_millis(100), asking)
            .await
            .is_err()
    );
    // The service's future is dropped, and what it holds.
    assert!(within(waiting).await.is_err());
}

/// However many requests are in flight when the server ends, each is executed once, or is reported
/// as unprocessed and not executed.
// test: RFC 9114 §5.2
#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_lost_or_executed_twice_when_a_server_ends() {
    const COUNT: usize = 2000;
    for on_worker in [false, true] {
        let executed: Arc<Vec<AtomicUsize>> =
            Arc::new((0..COUNT).map(|_| AtomicUsize::new(0)).collect());
        let serve = || {
            let transport = TransportConfig::default().max_concurrent_bidi_streams(300);
            let site = Site::with(transport);
            let executed = Arc::clone(&executed);
            let service = service_fn(move |request: Request<Body>| {
                let executed = Arc::clone(&executed);
                async move {
                    let index: usize = request.uri().path()[1..].parse().unwrap();
                    executed[index].fetch_add(1, Ordering::SeqCst);
                    let body = read(request.into_body()).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    response(body)
                }
            });
            let builder = builder(on_worker);
            let (stop, stopped) = oneshot::channel::<()>();
            let serving = builder.serve(site.endpoint.clone(), service);
            let signal = async move { drop(stopped.await) };
            (
                site,
                stop,
                tokio::spawn(serving.with_graceful_shutdown(signal)),
            )
        };
        let (first, stop, ending) = serve();
        let (second, _stop, _) = serve();
        let (client, other) = (first.client().await, second.client().await);
        let mut requests = Vec::new();
        let elsewhere = Arc::new(AtomicUsize::new(0));
        for index in 0..COUNT {
            let (client, other) = (client.clone(), other.clone());
            let elsewhere = Arc::clone(&elsewhere);
            requests.push(tokio::spawn(async move {
                tokio::time::sleep(Duration::from_micros(20 * index as u64)).await;
                let text = format!("request {index}");
                let request = || {
                    let uri = format!("https://localhost/{index}");
                    Request::post(uri).body(Body::from(text.clone())).unwrap()
                };
                let response = match client.send(request()).await {
                    Ok(response) => response,
                    Err(error) => {
                        assert!(error.is_unprocessed(), "{index}: {error}");
                        elsewhere.fetch_add(1, Ordering::SeqCst);
                        other.send(request()).await.unwrap()
                    }
                };
                assert_eq!(read(response.into_body()).await.unwrap(), text.as_bytes());
            }));
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
        stop.send(()).unwrap();
        for request in requests {
            within(request).await.unwrap();
        }
        within(ending).await.unwrap();
        let counts = executed.iter().map(|count| count.load(Ordering::SeqCst));
        let wrong: Vec<_> = counts
            .enumerate()
            .filter(|(_, count)| *count != 1)
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert!(
            elsewhere.load(Ordering::SeqCst) > 0,
            "every request was served: the server ended too late"
        );
    }
}

/// A server that ends need not reset the requests that it does not process: it may leave them, and
/// the client ends the connection. Nor does it have to allow more streams.
// test: RFC 9114 §5.2
#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_goaway_are_returned_as_unprocessed_at_once() {
    let transport = TransportConfig::default().max_concurrent_bidi_streams(2);
    let site = Site::with(transport);
    let endpoint = site.endpoint.clone();
    let accepting = tokio::spawn(async move { endpoint.accept().await.unwrap().await.unwrap() });
    let client = site.client().await;
    let server = within(accepting).await.unwrap();
    let mut control = server.open_uni().await.unwrap();
    control.write_all(&[0, 4, 0]).await.unwrap();
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { client.send(get("/")).await })
    };
    let first = ask();
    let (mut send, _first) = within(server.accept_bi()).await.unwrap();
    let second = ask();
    let _second = within(server.accept_bi()).await.unwrap();
    let third = ask();
    tokio::time::sleep(Duration::from_millis(50)).await;
    // GOAWAY for all streams, and then from the second request on.
    control
        .write_all(&[7, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc])
        .await
        .unwrap();
    let error = within(third).await.unwrap().unwrap_err();
    assert!(error.is_unprocessed(), "{error}");
    assert!(
        !second.is_finished(),
        "the second request may still be processed"
    );
    control.write_all(&[7, 1, 4]).await.unwrap();
    let error = within(second).await.unwrap().unwrap_err();
    assert!(error.is_unprocessed(), "{error}");
    // HEADERS with status 200, and content.
    send.write_all(&[1, 3, 0, 0, 0xd9, 0, 1, b'x'])
        .await
        .unwrap();
    send.finish().unwrap();
    let response = within(first).await.unwrap().unwrap();
    assert_eq!(read(response.into_body()).await.unwrap(), b"x");
    // Nothing is left to wait for.
    let reason = within(server.closed()).await;
    assert!(is_graceful(&reason, true), "{reason}");
}

/// A request that was never sent may be sent again, though the server's GOAWAY has not arrived.
#[tokio::test(flavor = "multi_thread")]
async fn requests_never_sent_are_reported_as_unprocessed() {
    let transport = TransportConfig::default().max_concurrent_bidi_streams(1);
    let site = Site::with(transport);
    let endpoint = site.endpoint.clone();
    let accepting = tokio::spawn(async move { endpoint.accept().await.unwrap().await.unwrap() });
    let client = site.client().await;
    let server = within(accepting).await.unwrap();
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { client.send(get("/")).await })
    };
    let first = ask();
    let _first = within(server.accept_bi()).await.unwrap();
    let second = ask();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.close(Code::H3_NO_ERROR.0, b"");
    let error = within(second).await.unwrap().unwrap_err();
    assert!(error.is_unprocessed(), "{error}");
    let error = within(first).await.unwrap().unwrap_err();
    assert!(!error.is_unprocessed(), "{error}");
    let error = within(ask()).await.unwrap().unwrap_err();
    assert!(error.is_unprocessed(), "{error}");
}
