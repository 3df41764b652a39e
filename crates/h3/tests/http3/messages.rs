//! Requests and responses between this crate's client and server.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::channel::{Channel, Sender};

use crate::common::{ANY_PORT, Site, builder, get, read, response, service_fn, start, within};
use squall::{Endpoint, TransportConfig};
use squall_h3::server::Peer;
use squall_h3::{Body, Code, Config, Error, Informational, OnInformational, server};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_gets_a_response() {
    for on_worker in [false, true] {
        let site = Site::new();
        start(&site, Config::new(), on_worker, |request| async move {
            assert_eq!(request.version(), Version::HTTP_3);
            assert_eq!(request.headers().get("x-question").unwrap(), "yes");
            let mut response = response(format!("{} {}", request.method(), request.uri()));
            response
                .headers_mut()
                .insert("x-answer", "no".parse().unwrap());
            response
        });
        let client = site.client().await;
        for i in 0..10 {
            let mut request = get(&format!("/a/path?{i}"));
            request
                .headers_mut()
                .insert("x-question", "yes".parse().unwrap());
            let response = within(client.send(request)).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.version(), Version::HTTP_3);
            assert_eq!(response.headers().get("x-answer").unwrap(), "no");
            assert!(response.headers().contains_key("date"));
            let expected = format!("GET https://localhost/a/path?{i}");
            let length = expected.len().to_string();
            assert_eq!(response.headers().get("content-length").unwrap(), &length);
            assert_eq!(
                read(response.into_body()).await.unwrap(),
                expected.as_bytes()
            );
        }
    }
}

/// Such a peer breaks RFC 9114 §6.2. Instructions of this end's QPACK encoder cannot be sent to it,
/// so no section may depend on them.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_may_allow_no_unidirectional_streams() {
    let none = || TransportConfig::default().max_concurrent_uni_streams(0);
    for (server, client) in [
        (none(), TransportConfig::default()),
        (TransportConfig::default(), none()),
    ] {
        let site = Site::with(server);
        start(&site, Config::new(), false, |request| async move {
            let mut response = response("");
            *response.headers_mut() = request.headers().clone();
            response
        });
        let connection = site.connection_with(client).await;
        let client = squall_h3::client::handshake(connection);
        for _ in 0..10 {
            let mut request = get("/");
            let value = "the same in each message".parse().unwrap();
            request.headers_mut().insert("x-recurs", value);
            let response = within(client.send(request)).await.unwrap();
            assert!(response.headers().contains_key("x-recurs"));
        }
    }
}

/// However the type is split, streams of it bypass the service, and all others do not.
#[tokio::test(flavor = "multi_thread")]
async fn raw_streams_work_next_to_requests() {
    for on_worker in [false, true] {
        let site = Site::new();
        let builder = builder(on_worker).raw_streams(0x401, |mut raw| {
            tokio::spawn(async move {
                let mut all = raw.first.to_vec();
                all.extend(raw.recv.read_to_end(1 << 20).await.unwrap());
                raw.send.write_all(&all).await.unwrap();
                raw.send.finish().unwrap();
            });
        });
        let answer = service_fn(|_| async { response("an answer") });
        tokio::spawn(builder.serve(site.endpoint.clone(), answer).into_future());
        let client = site.client().await;
        for split in 0..4 {
            let (mut send, mut recv) = client.connection().open_bi().await.unwrap();
            let (before, after) = b"\x44\x01raw".split_at(split);
            send.write_all(before).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            send.write_all(after).await.unwrap();
            send.finish().unwrap();
            assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"raw");
            let response = within(client.send(get("/"))).await.unwrap();
            assert_eq!(read(response.into_body()).await.unwrap(), b"an answer");
        }
        // Another unknown type, and none.
        for (bytes, code) in [
            (&b"\x44\x02\0"[..], Code::H3_REQUEST_INCOMPLETE),
            (b"", Code::H3_REQUEST_INCOMPLETE),
        ] {
            let (mut send, mut recv) = client.connection().open_bi().await.unwrap();
            send.write_all(bytes).await.unwrap();
            send.finish().unwrap();
            let reset = within(recv.read_to_end(10)).await.unwrap_err();
            let reset = format!("{reset:?}");
            assert!(reset.contains(&code.0.to_string()), "{reset}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_without_a_body_end_after_their_head() {
    let site = Site::new();
    start(&site, Config::new(), false, |request| async move {
        assert!(request.body().is_end_stream());
        response("")
    });
    let client = site.client().await;
    for _ in 0..300 {
        let response = within(client.send(get("/"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.body().is_end_stream());
    }
}

// test: RFC 9114 §4.2, §4.3.1, RFC 9110 §5.5
#[tokio::test(flavor = "multi_thread")]
async fn any_uri_and_value_is_encoded_acceptably_to_servers() {
    let site = Site::new();
    start(&site, Config::new(), true, |request| async move {
        let value = request.headers()["x-question"].as_bytes();
        assert_eq!(value, b"a \tb");
        assert_eq!(request.headers()["te"], "trailers");
        let mut response = response(request.uri().to_string());
        let padded = http::HeaderValue::from_static("\t both ends ");
        response.headers_mut().insert("x-answer", padded);
        response
    });
    let client = site.client().await;
    for (uri, expected) in [
        ("https://localhost", "https://localhost/"),
        ("https://localhost?x=1", "https://localhost/?x=1"),
        ("https://localhost/?x=1", "https://localhost/?x=1"),
        ("https://localhost/a?", "https://localhost/a?"),
        ("https://me:pass@localhost/a", "https://localhost/a"),
        ("https://a%40b:c@localhost?d@e", "https://localhost/?d@e"),
    ] {
        let request = Request::get(uri)
            .header("x-question", " a \tb\t ")
            .header("te", "trailers ")
            .body(Body::empty())
            .unwrap();
        let response = within(client.send(request)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{uri}");
        assert_eq!(response.headers()["x-answer"], "both ends");
        assert_eq!(
            read(response.into_body()).await.unwrap(),
            expected.as_bytes()
        );
    }
}

/// Its control streams stay open. A client that waits for nothing else sends no PINGs.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_requests_sends_nothing() {
    let site = Site::new();
    start(&site, Config::new(), true, |_| async { response("answer") });
    let connection = site.connection().await;
    let client = squall_h3::client::handshake(connection.clone());
    let answer = within(client.send(get("/"))).await.unwrap();
    assert_eq!(read(answer.into_body()).await.unwrap(), b"answer");
    // Longer than any delayed acknowledgement.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = connection.stats().packets_sent;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(connection.stats().packets_sent, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_go_both_ways() {
    for on_worker in [false, true] {
        let site = Site::new();
        start(&site, Config::new(), on_worker, |request| async move {
            Response::new(request.into_body())
        });
        let client = site.client().await;
        for len in [0, 1, 1000, 5000, 100_000, 10_000_000] {
            let body: Vec<u8> = (0..len)
                .map(|i: u32| i.to_le_bytes()[i as usize % 3])
                .collect();
            let request = Request::post("https://localhost/echo")
                .body(Body::from(Bytes::from(body.clone())))
                .unwrap();
            let response = within(client.send(request)).await.unwrap();
            assert!(read(response.into_body()).await.unwrap() == body, "{len}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_run_concurrently() {
    for on_worker in [false, true] {
        let site = Site::new();
        start(&site, Config::new(), on_worker, |request| async move {
            let path = request.uri().path().to_owned();
            if path.ends_with('3') {
                tokio::task::yield_now().await;
            }
            response(path)
        });
        let client = site.client().await;
        let tasks: Vec<_> = (0..500)
            .map(|i| {
                let client = client.clone();
                tokio::spawn(async move {
                    let path = format!("/{i}");
                    let response = within(client.send(get(&path))).await.unwrap();
                    assert_eq!(read(response.into_body()).await.unwrap(), path.as_bytes());
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_request_gets_no_body() {
    let site = Site::new();
    start(&site, Config::new(), true, |_| async { response("text") });
    let client = site.client().await;
    let mut request = get("/");
    *request.method_mut() = Method::HEAD;
    let response = within(client.send(request)).await.unwrap();
    assert_eq!(response.headers().get("content-length").unwrap(), "4");
    assert_eq!(read(response.into_body()).await.unwrap(), b"");
}

// test: RFC 9110 §6.4.1, §8.6
#[tokio::test(flavor = "multi_thread")]
async fn some_responses_have_no_body_and_no_length() {
    let site = Site::new();
    let config = Config::new().informational(true);
    let with_length = |status| {
        let response = Response::builder().status(status);
        response.header("content-length", "4")
    };
    let reply = with_length(StatusCode::NO_CONTENT).body("text".into());
    let reply = server::Reply::new(reply.unwrap());
    let service = service_fn(move |request: Request<Body>| async move {
        let informational = request.extensions().get::<Informational>().unwrap();
        let hint = with_length(StatusCode::EARLY_HINTS).body(()).unwrap();
        informational.send(hint).unwrap();
        let status = request.uri().path().trim_start_matches('/');
        let status = status.parse().unwrap_or(StatusCode::OK);
        with_length(status).body(Body::from("text")).unwrap()
    });
    let builder = server::Builder::new()
        .config(config)
        .answer_first(move |head| (head.path() == Some("/reply")).then(|| reply.clone()));
    let serving = builder.serve(site.endpoint.clone(), service);
    tokio::spawn(serving.into_future());
    let client = site.client().await;
    let ask = async |method, path: &str| {
        let mut request = get(path);
        *request.method_mut() = method;
        if *request.method() == Method::CONNECT {
            *request.uri_mut() = "localhost:1".parse().unwrap();
        }
        let hints = OnInformational::new(|hint| {
            assert!(!hint.headers().contains_key("content-length"));
        });
        request.extensions_mut().insert(hints);
        let response = within(client.send(request)).await.unwrap();
        let length = response.headers().get("content-length").cloned();
        let length = length.map(|length| length.to_str().unwrap().to_owned());
        (length, read(response.into_body()).await.unwrap())
    };
    let four = || Some("4".to_owned());
    assert_eq!(ask(Method::GET, "/200").await, (four(), b"text".to_vec()));
    assert_eq!(ask(Method::HEAD, "/200").await, (four(), vec![]));
    assert_eq!(ask(Method::GET, "/204").await, (None, vec![]));
    assert_eq!(ask(Method::GET, "/304").await, (four(), vec![]));
    assert_eq!(ask(Method::GET, "/reply").await, (None, vec![]));
    let tunnel = ask(Method::CONNECT, "").await;
    assert_eq!(tunnel, (None, b"text".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_can_see_the_clients_address() {
    for on_worker in [false, true] {
        let site = Site::new();
        start(
            &site,
            Config::new().peer_info(true),
            on_worker,
            async |request| {
                let peer = request.extensions().get::<Peer>().unwrap();
                assert_eq!(peer.server_name().as_deref(), Some("localhost"));
                assert_eq!(peer.local_ip(), Some(Ipv4Addr::LOCALHOST.into()));
                assert!(peer.certificates().is_none());
                assert!(peer.connection().close_reason().is_none());
                response(peer.remote_address().to_string())
            },
        );
        let endpoint = Endpoint::client(ANY_PORT).unwrap();
        let server = site.endpoint.local_addr().unwrap();
        let connecting = endpoint.connect_with(site.client_config(), server, "localhost");
        let client = squall_h3::client::handshake(within(connecting.unwrap()).await.unwrap());
        let mut before = None;
        // The second time from another address.
        for _ in 0..2 {
            let address = endpoint.local_addr().unwrap();
            assert_ne!(before.replace(address), Some(address));
            let answer = within(client.send(get("/"))).await.unwrap();
            let observed = read(answer.into_body()).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&observed), address.to_string());
            endpoint.rebind(ANY_PORT).unwrap();
        }
    }
}

// test: RFC 9110 §10.1.1
#[tokio::test(flavor = "multi_thread")]
async fn continue_is_sent_when_the_service_reads_the_body() {
    const PAUSE: Duration = Duration::from_millis(50);
    for on_worker in [false, true] {
        let site = Site::new();
        let answer = async |request: Request<Body>| {
            tokio::time::sleep(PAUSE).await;
            let path = request.uri().path().to_owned();
            let (mut sender, body): (Sender<Bytes, Infallible>, _) = Channel::new(1);
            let mut response = Response::new(body);
            match &*path {
                "/read" => {
                    let data = read(request.into_body()).await.unwrap();
                    tokio::spawn(async move { sender.send_data(data.into()).await });
                }
                "/late" => {
                    tokio::spawn(async move {
                        // The head of the response has left.
                        tokio::time::sleep(PAUSE).await;
                        let mut body = request.into_body();
                        poll_fn(|cx| {
                            let polled = http_body::Body::poll_frame(Pin::new(&mut body), cx);
                            assert!(polled.is_pending());
                            Poll::Ready(())
                        })
                        .await;
                        tokio::time::sleep(PAUSE).await;
                        sender.send_data("late".into()).await
                    });
                }
                _ => *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE,
            }
            response
        };
        start(&site, Config::new(), on_worker, answer);
        let client = site.client().await;
        for (path, status, text) in [
            ("/refuse", 413, ""),
            ("/late", 200, "late"),
            ("/read", 200, "asked for"),
        ] {
            let (report, mut observed) = tokio::sync::mpsc::unbounded_channel();
            let (mut upload, body): (Sender<Bytes, Infallible>, _) = Channel::new(1);
            let mut request = get(path).map(|_| body);
            *request.method_mut() = Method::POST;
            let expect = http::HeaderValue::from_static("100-continue");
            request.headers_mut().insert("expect", expect);
            let on_informational =
                OnInformational::new(move |response| report.send(response.status()).unwrap());
            request.extensions_mut().insert(on_informational);
            let answer = tokio::spawn(client.send(request));
            if path == "/read" {
                assert_eq!(within(observed.recv()).await, Some(StatusCode::CONTINUE));
                upload.send_data(text.into()).await.unwrap();
                drop(upload);
            }
            let answer = within(answer).await.unwrap().unwrap();
            assert_eq!(answer.status(), status);
            assert_eq!(read(answer.into_body()).await.unwrap(), text.as_bytes());
            assert!(observed.try_recv().is_err());
        }
    }
}

// test: RFC 9114 §4.1, RFC 8297
#[tokio::test(flavor = "multi_thread")]
async fn informational_responses_precede_the_final_one() {
    for on_worker in [false, true] {
        let site = Site::new();
        let (keep, kept) = std::sync::mpsc::channel();
        let config = Config::new().informational(true);
        start(&site, config, on_worker, move |request| {
            let keep = keep.clone();
            async move {
                let informational = request.extensions().get::<Informational>().unwrap();
                for (status, is_sent) in [(200, false), (101, false), (103, true), (199, true)] {
                    let response = Response::builder().status(status).header("link", "</a>");
                    let response = response.body(()).unwrap();
                    assert_eq!(informational.send(response).is_ok(), is_sent, "{status}");
                }
                // They do not wait for the final one.
                let (to_go_on, may_go_on) = tokio::sync::oneshot::channel::<()>();
                keep.send((informational.clone(), to_go_on)).unwrap();
                may_go_on.await.unwrap();
                response("final")
            }
        });
        let client = site.client().await;
        let (report, mut observed) = tokio::sync::mpsc::unbounded_channel();
        let mut request = get("/");
        let on_informational = OnInformational::new(move |response| {
            let link = response.headers().get("link").cloned();
            report.send((response.status().as_u16(), link)).unwrap();
        });
        request.extensions_mut().insert(on_informational);
        let answer = tokio::spawn(client.send(request));
        let link = Some("</a>".parse().unwrap());
        assert_eq!(within(observed.recv()).await, Some((103, link.clone())));
        assert_eq!(within(observed.recv()).await, Some((199, link)));
        let (informational, to_go_on) = kept.recv().unwrap();
        to_go_on.send(()).unwrap();
        let answer = within(answer).await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(read(answer.into_body()).await.unwrap(), b"final");
        // Too late.
        let late = Response::builder().status(103).body(()).unwrap();
        assert!(informational.send(late).is_err());
        // A client that does not ask for them skips them.
        let answer = tokio::spawn(client.send(get("/")));
        let (_, to_go_on) = kept.recv().unwrap();
        to_go_on.send(()).unwrap();
        let answer = within(answer).await.unwrap().unwrap();
        assert_eq!(read(answer.into_body()).await.unwrap(), b"final");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_informational_response_is_omitted() {
    let site = Site::new();
    let config = Config::new().informational(true);
    start(&site, config, true, |request| async move {
        let informational = request.extensions().get::<Informational>().unwrap();
        for len in [10, 1000, 20] {
            let hint = Response::builder().status(103).header("x", "y".repeat(len));
            informational.send(hint.body(()).unwrap()).unwrap();
        }
        // The service waits, so that they are sent before the final one.
        tokio::time::sleep(Duration::from_millis(50)).await;
        response("final")
    });
    let limits = Config::new().max_field_section_size(500);
    let client = squall_h3::client::handshake_with(site.connection().await, limits);
    // Until the server has this client's SETTINGS, it knows no limit.
    while let Err(error) = within(client.send(get("/"))).await {
        assert!(matches!(error, Error::FieldsTooLarge), "{error}");
    }
    let (report, mut observed) = tokio::sync::mpsc::unbounded_channel();
    let mut request = get("/");
    let note = OnInformational::new(move |response| {
        report.send(response.headers()["x"].len()).unwrap();
    });
    request.extensions_mut().insert(note);
    let answer = within(client.send(request)).await.unwrap();
    assert_eq!(read(answer.into_body()).await.unwrap(), b"final");
    assert_eq!(within(observed.recv()).await, Some(10));
    assert_eq!(within(observed.recv()).await, Some(20));
}
