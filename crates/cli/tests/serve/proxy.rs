//! An application behind the reverse proxy.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{ALL, Client, Server, Version, all, run, whole};
use crate::life::metrics;

/// An application that speaks HTTP/1.1 byte by byte, with one thread per connection.
struct Application {
    url: String,
    connections: Arc<AtomicUsize>,
}

/// A connection of the proxy.
struct Visit {
    reader: BufReader<TcpStream>,
}

impl Visit {
    /// The next request's head; `None` if there is none.
    fn head(&mut self) -> Option<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        Some(head.to_ascii_lowercase())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a line");
        line
    }

    fn exactly(&mut self, len: usize) -> String {
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes).expect("enough");
        String::from_utf8(bytes).expect("text")
    }

    fn write(&mut self, text: &str) {
        // The proxy may have gone away.
        let _ = self.reader.get_mut().write_all(text.as_bytes());
    }

    /// Answers with text.
    fn answer(&mut self, text: &str) {
        self.write(&format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        ));
    }
}

impl Application {
    fn start(visit: impl Fn(&mut Visit, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let connections = Arc::new(AtomicUsize::new(0));
        let (visit, count) = (Arc::new(visit), Arc::clone(&connections));
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let reader = BufReader::new(tcp.expect("a connection"));
                let visit = Arc::clone(&visit);
                std::thread::spawn(move || visit(&mut Visit { reader }, number));
            }
        });
        Self { url, connections }
    }
}

fn serve(application: &Application, more: &[&str]) -> Server {
    Server::start(&[&["--upstream", &application.url], more].concat())
}

/// A request whose body arrives in pieces, and the sender of the body.
fn streamed(
    request: http::request::Builder,
) -> (
    Request<crate::client::Upload>,
    http_body_util::channel::Sender<Bytes, std::io::Error>,
) {
    let (sender, body) = Channel::new(4);
    (
        request
            .body(body.map_err(Into::into).boxed_unsync())
            .expect("a request"),
        sender,
    )
}

#[test]
fn the_application_sees_the_clients_real_address_and_not_a_claimed_one() {
    let application = Application::start(|visit, _| {
        while let Some(head) = visit.head() {
            visit.answer(&head);
        }
    });
    let server = serve(&application, &[]);
    run(async {
        for (version, via) in ALL.into_iter().zip(["1.1", "2.0", "3.0"]) {
            let mut client = server.connect(version).await;
            let fields = [
                ("x-forwarded-for", "10.0.0.1"),
                ("x-mine", "1"),
                ("te", "trailers"),
            ];
            let (status, _, head) = client.get("/a%20b/../c?d=%2e", &fields).await;
            let head = String::from_utf8(head.to_vec()).expect("text");
            assert_eq!(status, 200);
            assert!(
                head.starts_with("get /a%20b/../c?d=%2e http/1.1\r\n"),
                "{head}"
            );
            for line in [
                "host: localhost",
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-proto: https",
                "x-forwarded-host: localhost",
                "forwarded: for=127.0.0.1;proto=https;host=\"localhost\"",
                "x-mine: 1",
                "te: trailers",
                "connection: te",
                &format!("via: {via} squall"),
            ] {
                let count = head.lines().filter(|found| *found == line).count();
                assert_eq!(count, 1, "{version:?}: {line} in {head}");
            }
            assert!(!head.contains("10.0.0.1"), "{head}");
            assert!(!head.contains("transfer-encoding") && !head.contains("content-length: 1\r"));
        }
    });
    // One connection was enough.
    assert_eq!(application.connections.load(Ordering::SeqCst), 1);
}

// test: RFC 8470 §5
#[test]
fn early_requests_are_marked_or_rejected_where_early_data_is_allowed() {
    let application = Application::start(|visit, _| {
        while let Some(head) = visit.head() {
            visit.answer(if head.contains("early-data: 1\r\n") {
                "early"
            } else {
                "late"
            });
        }
    });
    for (more, is_allowed) in [(&["--early-data"][..], true), (&[], false)] {
        let server = serve(&application, more);
        run(async {
            let Client::Http3((_, endpoint)) = server.connect(Version::Http3).await else {
                unreachable!("HTTP/3 was requested");
            };
            let (mut early, mut refused) = (false, false);
            // Whether a request arrives before its handshake is complete is a race.
            for _ in 0..100 {
                let again = server.quic_again(&endpoint).await;
                let mut client = Client::Http3((again, endpoint.clone()));
                early |= client.get("/", &[]).await.2 == "early";
                let again = server.quic_again(&endpoint).await;
                let mut client = Client::Http3((again, endpoint.clone()));
                let post = Request::post("/").body(whole("")).expect("a request");
                let (status, _, body) = all(client.send(post).await.expect("a response")).await;
                assert_ne!(body, "early");
                refused |= status == 425;
                if early && refused {
                    break;
                }
            }
            assert_eq!((early, refused), (is_allowed, is_allowed), "{more:?}");
        });
    }
}

#[test]
fn bodies_stream_in_both_directions() {
    let application = Application::start(|visit, _| {
        let head = visit.head().expect("a request");
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        visit.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Hop: 1\r\nConnection: x-hop\r\n\r\n");
        // Each piece is answered before the next one arrives.
        loop {
            let len = usize::from_str_radix(visit.line().trim(), 16).expect("a length");
            let piece = visit.exactly(len);
            assert_eq!(visit.line(), "\r\n");
            visit.write(&format!("{len:x}\r\n{piece}\r\n"));
            if len == 0 {
                return;
            }
        }
    });
    let server = serve(&application, &[]);
    run(async {
        for version in ALL {
            let mut client = server.connect(version).await;
            let (request, mut sender) = streamed(Request::post("/"));
            sender
                .send_data("first".into())
                .await
                .expect("the data is sent");
            let response = client.send(request).await.expect("a response");
            assert!(!response.headers().contains_key("x-hop"));
            let mut body = response.into_body();
            let mut next = async || {
                let frame = body.frame().await.expect("a frame").expect("data");
                frame.into_data().expect("data")
            };
            assert_eq!(next().await, "first");
            sender
                .send_data("second".into())
                .await
                .expect("the data is sent");
            assert_eq!(next().await, "second");
            drop(sender);
            assert!(body.collect().await.expect("the end").to_bytes().is_empty());
        }
    });
}

// test: RFC 9110 §15.2, RFC 8297
#[test]
fn early_hints_reach_clients_of_http3_before_the_response() {
    let (seen, is_seen) = std::sync::mpsc::channel();
    let is_seen = std::sync::Mutex::new(is_seen);
    let application = Application::start(move |visit, _| {
        while let Some(head) = visit.head() {
            visit.write("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n");
            if head.contains("via: 3.0 squall") {
                let is_seen = is_seen.lock().expect("one at a time");
                is_seen.recv().expect("the client has the hint");
            }
            visit.answer("final");
        }
    });
    let server = serve(&application, &[]);
    run(async {
        for version in ALL {
            let mut request = Request::get("/").body(whole("")).expect("a request");
            let (seen, hints) = (seen.clone(), Arc::new(AtomicUsize::new(0)));
            let count = Arc::clone(&hints);
            let on_informational = squall_h3::OnInformational::new(move |hint| {
                assert_eq!(hint.status(), 103);
                assert_eq!(hint.headers()["link"], "</a.css>");
                assert!(!hint.headers().contains_key("x-hop"));
                count.fetch_add(1, Ordering::SeqCst);
                seen.send(()).expect("the application waits");
            });
            request.extensions_mut().insert(on_informational);
            let mut client = server.connect(version).await;
            let response = client.send(request).await.expect("a response");
            assert_eq!(all(response).await.2, "final", "{version:?}");
            // hyper's server sends none.
            let expected = usize::from(version == Version::Http3);
            assert_eq!(hints.load(Ordering::SeqCst), expected, "{version:?}");
        }
    });
}

#[test]
fn a_body_of_known_length_keeps_its_content_length() {
    let application = Application::start(|visit, _| {
        while let Some(head) = visit.head() {
            assert!(head.contains("content-length: 7\r\n"), "{head}");
            assert!(!head.contains("transfer-encoding"), "{head}");
            let content = visit.exactly(7);
            visit.answer(&content);
        }
    });
    let server = serve(&application, &[]);
    run(async {
        for version in ALL {
            let mut client = server.connect(version).await;
            let request = Request::put("/")
                .header("content-length", "7")
                .body(whole("content"));
            let response = client
                .send(request.expect("a request"))
                .await
                .expect("a response");
            assert_eq!(all(response).await.2, "content", "{version:?}");
        }
    });
}

#[test]
fn trailers_are_forwarded_both_ways() {
    let application = Application::start(|visit, _| {
        let head = visit.head().expect("a request");
        assert!(head.contains("trailer: x-request\r\n"), "{head}");
        let mut body = String::new();
        while !body.ends_with("\r\n\r\n") {
            body += &visit.line();
        }
        assert!(body.ends_with("0\r\nx-request: 1\r\n\r\n"), "{body:?}");
        visit.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-response\r\n\r\n");
        visit.write("1\r\na\r\n0\r\nx-response: 2\r\n\r\n");
    });
    let server = serve(&application, &[]);
    run(async {
        for version in ALL {
            let mut client = server.connect(version).await;
            let request = Request::post("/")
                .header("te", "trailers")
                .header("trailer", "x-request");
            let (request, mut sender) = streamed(request);
            sender
                .send_data("data".into())
                .await
                .expect("the data is sent");
            let mut trailers = HeaderMap::new();
            trailers.insert("x-request", "1".parse().expect("a value"));
            sender
                .send_trailers(trailers)
                .await
                .expect("the trailers are sent");
            drop(sender);
            let response = client.send(request).await.expect("a response");
            let collected = response.into_body().collect().await.expect("a body");
            let trailers = collected.trailers().expect("trailers");
            assert_eq!(trailers["x-response"], "2", "{version:?}");
        }
    });
}

#[test]
fn an_http2_application_sees_the_clients_authority() {
    run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let url = format!("h2c://{}", listener.local_addr().expect("an address"));
        let (ended, mut first_ends) = tokio::sync::mpsc::channel::<()>(1);
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.expect("a connection");
                let respond = service_fn(async |request: Request<Incoming>| {
                    let (head, body) = request.into_parts();
                    let seen = format!(
                        "{} {:?} {:?}",
                        head.uri,
                        head.headers.get("host"),
                        head.headers.get("te")
                    );
                    let collected = body.collect().await.expect("a body");
                    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(2);
                    sender.send_data(seen.into()).await.expect("room");
                    if let Some(trailers) = collected.trailers() {
                        sender.send_trailers(trailers.clone()).await.expect("room");
                    }
                    Ok::<_, std::convert::Infallible>(Response::new(body))
                });
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(tcp), respond);
                let mut connection = std::pin::pin!(connection);
                // The first connection ends when the test says so.
                tokio::select! {
                    _ = &mut connection => {}
                    _ = first_ends.recv() => {}
                }
            }
        });
        let server = Server::start(&["--upstream", &url]);
        for version in ALL {
            let mut client = server.connect(version).await;
            let (request, mut sender) = streamed(
                Request::post("/a?b")
                    .header("te", "trailers")
                    .header("trailer", "x"),
            );
            let mut trailers = HeaderMap::new();
            trailers.insert("x", "1".parse().expect("a value"));
            sender.send_data("data".into()).await.expect("taken");
            sender.send_trailers(trailers).await.expect("taken");
            drop(sender);
            let response = client.send(request).await.expect("a response");
            assert_eq!(response.status(), 200);
            let collected = response.into_body().collect().await.expect("a body");
            if version != Version::Http1 {
                assert_eq!(collected.trailers().expect("trailers")["x"], "1");
            }
            let seen = collected.to_bytes();
            assert_eq!(seen, "http://localhost/a?b None Some(\"trailers\")");
            // The application restarts: the next request gets a new connection.
            ended.send(()).await.expect("it listens");
            // A request that meets the end of the connection is not repeated: it has a body.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    });
}

#[test]
fn only_safely_repeatable_requests_are_retried() {
    // Every connection serves one request and is closed at the second, as an idle one is.
    let application = Application::start(|visit, _| {
        visit.head();
        visit.answer("first");
        if visit
            .head()
            .is_some_and(|head| head.contains("content-length: 1\r"))
        {
            visit.exactly(1);
        }
    });
    let server = serve(&application, &[]);
    run(async {
        let mut client = server.connect(Version::Http2).await;
        for (method, body, status) in [
            ("GET", "", 200),
            ("HEAD", "", 200),
            ("PUT", "", 200),
            ("POST", "", 502),
            ("PUT", "x", 502),
        ] {
            // A new connection to the application, which then returns to the pool.
            assert_eq!(client.get("/", &[]).await.0, 200);
            let mut request = Request::builder().method(method).uri("/");
            if !body.is_empty() {
                request = request.header("content-length", body.len());
            }
            let request = request.body(whole(body)).expect("a request");
            let response = client.send(request).await.expect("a response");
            assert_eq!(response.status(), status, "{method} {body:?}");
        }
    });
}

#[test]
fn failures_of_the_application_map_to_a_status() {
    let application = Application::start(|visit, _| {
        let head = visit.head().expect("a request");
        match head.split(' ').nth(1).expect("a path") {
            "/garbage" => visit.write("no HTTP\r\n\r\n"),
            "/closed" => {}
            "/early" => visit.write("HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n"),
            "/hints" => {
                visit.write("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
                visit.answer("final");
            }
            "/short" => visit.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"),
            "/pause" => {
                visit.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
                visit.line();
            }
            "/begun" => {
                visit.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
                while !visit.line().is_empty() {}
            }
            // Silent until the proxy has given up.
            _ => while !visit.line().is_empty() {},
        }
    });
    let limits = [
        "--upstream-timeout",
        "1",
        "--body-timeout",
        "0.2",
        "--metrics",
        "127.0.0.1:0",
    ];
    let server = serve(&application, &limits);
    // A closed port that no other test gets.
    let held = tokio::net::TcpSocket::new_v4().expect("a socket");
    let any = ([127, 0, 0, 1], 0).into();
    held.bind(any).expect("a port");
    let closed_port = format!("http://{}", held.local_addr().expect("an address"));
    let refused = Server::start(&["--upstream", &closed_port]);
    run(async {
        for version in ALL {
            let mut client = server.connect(version).await;
            for (path, status) in [
                ("/garbage", 502),
                ("/closed", 502),
                ("/early", 425),
                ("/hints", 200),
                ("/silent", 504),
            ] {
                assert_eq!(client.get(path, &[]).await.0, status, "{path}");
            }
            // A response that breaks off also breaks off for the client.
            for path in ["/short", "/pause"] {
                let mut client = server.connect(version).await;
                let request = Request::get(path).body(whole("")).expect("a request");
                let is_broken = match client.send(request).await {
                    Ok(response) => response.into_body().collect().await.is_err(),
                    // A reset may overtake the head (RFC 9000 §3.2), and h2 drops a head that
                    // still waits when it resets the stream.
                    Err(_) => version != Version::Http1,
                };
                assert!(is_broken, "{path} by {version:?}");
            }
            // A client's body that never ends.
            let (request, mut sender) = streamed(Request::post("/silent"));
            sender
                .send_data("data".into())
                .await
                .expect("the data is sent");
            let mut client = server.connect(version).await;
            let status = client.send(request).await.expect("a response").status();
            assert_eq!(status, 408);
            // A request whose response has begun.
            let (request, mut sender) = streamed(Request::post("/begun"));
            sender
                .send_data("data".into())
                .await
                .expect("the data is sent");
            let mut client = server.connect(version).await;
            let cut = match client.send(request).await {
                Ok(response) => response.into_body().collect().await.err(),
                Err(error) => Some(error),
            };
            let cut = cut.expect("the body is truncated");
            if version == Version::Http3 {
                let error = cut.downcast_ref().expect("an error of HTTP/3");
                let cancelled = squall_h3::Code::H3_REQUEST_CANCELLED;
                assert!(
                    matches!(error, squall_h3::Error::Stream(code) if *code == cancelled),
                    "{error}"
                );
            }
            drop(sender);
            let mut client = refused.connect(version).await;
            assert_eq!(client.get("/", &[]).await.0, 502);
            let trace = Request::builder().method("TRACE").uri("/").body(whole(""));
            let response = client
                .send(trace.expect("a request"))
                .await
                .expect("a response");
            assert_eq!(response.status(), 405);
        }
        let text = metrics(&server);
        for protocol in ["h1", "h2", "h3"] {
            let labels = format!("{{protocol=\"{protocol}\",body=\"request\"}} 2");
            let line = format!("squall_http_body_timeouts_total{labels}");
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    });
}

#[test]
fn a_client_that_expects_100_continue_gets_it() {
    let application = Application::start(|visit, _| {
        let head = visit.head().expect("a request");
        assert!(!head.contains("expect"), "{head}");
        let content = visit.exactly(7);
        visit.answer(&content);
    });
    let server = serve(&application, &[]);
    run(async {
        let mut tls = server.tls(b"http/1.1").await;
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\nExpect: 100-continue\r\n\r\n";
        tls.write_all(head.as_bytes())
            .await
            .expect("the data is sent");
        let expected = b"HTTP/1.1 100 Continue\r\n\r\n";
        let mut interim = vec![0; expected.len()];
        tls.read_exact(&mut interim)
            .await
            .expect("an interim response");
        assert_eq!(interim, expected);
        tls.write_all(b"content").await.expect("the data is sent");
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\ncontent") {
            let byte = tls.read_u8().await.expect("a byte");
            response.push(byte);
        }
        assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
    });
}

/// Accepts an upgrade, then sends every line back reversed.
fn backwards() -> Application {
    Application::start(|visit, _| {
        let head = visit.head().expect("a request");
        assert!(head.starts_with("get /chat http/1.1\r\n"), "{head}");
        for line in [
            "connection: upgrade",
            "upgrade: websocket",
            "host: localhost",
        ] {
            assert!(head.lines().any(|found| found == line), "{line} in {head}");
        }
        assert!(head.contains("sec-websocket-key: "), "{head}");
        visit.write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n");
        visit.write("Upgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n");
        loop {
            let line = visit.line();
            if line.is_empty() {
                return;
            }
            let backwards: String = line.trim().chars().rev().collect();
            visit.write(&format!("{backwards}\n"));
        }
    })
}

async fn chat(upgraded: hyper::upgrade::Upgraded) {
    let mut stream = tokio::io::BufReader::new(TokioIo::new(upgraded));
    for (said, answer) in [("hello\n", "olleh\n"), ("abc\n", "cba\n")] {
        stream
            .write_all(said.as_bytes())
            .await
            .expect("the data is sent");
        stream.flush().await.expect("the data is sent");
        let mut line = vec![0; answer.len()];
        stream.read_exact(&mut line).await.expect("an answer");
        assert_eq!(line, answer.as_bytes());
    }
}

/// Sends a request that the application does not see. Its response follows the server's SETTINGS,
/// which allow extended CONNECT.
async fn learn_settings(client: &mut Client) {
    let trace = Request::builder().method("TRACE").uri("/").body(whole(""));
    client
        .send(trace.expect("a request"))
        .await
        .expect("a response");
}

// test: RFC 6455 §4.1
#[test]
fn websockets_work_over_http1() {
    let application = backwards();
    let server = serve(&application, &[]);
    run(async {
        let mut client = server.connect(Version::Http1).await;
        let request = Request::get("/chat")
            .header("connection", "keep-alive, Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .body(whole(""));
        let mut response = client
            .send(request.expect("a request"))
            .await
            .expect("a response");
        assert_eq!(response.status(), 101);
        assert_eq!(response.headers()["upgrade"], "websocket");
        assert_eq!(response.headers()["sec-websocket-accept"], "x");
        chat(hyper::upgrade::on(&mut response).await.expect("an upgrade")).await;
    });
    assert_eq!(server.stop(), Some(0));
}

// test: RFC 8441 §5
#[test]
fn websockets_work_over_http2() {
    let application = backwards();
    let server = serve(&application, &[]);
    run(async {
        let mut client = server.connect(Version::Http2).await;
        learn_settings(&mut client).await;
        let request = Request::connect("https://localhost/chat")
            .extension(Protocol::from_static("websocket"))
            .body(whole(""));
        let mut response = client
            .send(request.expect("a request"))
            .await
            .expect("a response");
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("sec-websocket-accept"));
        chat(hyper::upgrade::on(&mut response).await.expect("an upgrade")).await;
    });
}

/// Gateways such as Envoy pass on the key of an HTTP/1.1 client, and the client checks the answer.
#[test]
fn the_websocket_key_of_a_gateways_client_is_forwarded() {
    let application = Application::start(|visit, _| {
        let head = visit.head().expect("a request");
        let keys = head
            .lines()
            .filter(|line| line.starts_with("sec-websocket-key:"));
        assert_eq!(keys.collect::<Vec<_>>(), ["sec-websocket-key: theirs"]);
        visit.write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n");
        visit.write("Upgrade: websocket\r\nSec-WebSocket-Accept: ours\r\n\r\n");
    });
    let server = serve(&application, &[]);
    run(async {
        for version in [Version::Http2, Version::Http3] {
            let mut client = server.connect(version).await;
            learn_settings(&mut client).await;
            let request = Request::connect("https://localhost/chat")
                .extension(Protocol::from_static("websocket"))
                .extension(squall_h3::Protocol::from_static("websocket"))
                .header("sec-websocket-key", "theirs")
                .body(whole(""));
            let request = request.expect("a request");
            let response = client.send(request).await.expect("a response");
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["sec-websocket-accept"], "ours");
        }
    });
    assert_eq!(server.stop(), Some(0));
}

// test: RFC 9220 §3
#[test]
fn websockets_work_over_http3() {
    let application = backwards();
    let server = serve(&application, &[]);
    run(async {
        let mut client = server.connect(Version::Http3).await;
        learn_settings(&mut client).await;
        let request = Request::connect("https://localhost/chat")
            .extension(squall_h3::Protocol::from_static("websocket"));
        let (request, mut sender) = streamed(request);
        let response = client.send(request).await.expect("a response");
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        for (said, answer) in [("hello\n", "olleh\n"), ("abc\n", "cba\n")] {
            sender
                .send_data(said.into())
                .await
                .expect("the data is sent");
            let frame = body.frame().await.expect("a frame").expect("data");
            assert_eq!(frame.into_data().expect("data"), answer);
        }
        // The end of one direction is passed on, and comes back as the end of the other.
        drop(sender);
        assert!(body.collect().await.expect("the end").to_bytes().is_empty());
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn an_upgrade_may_be_declined_and_connect_is_rejected() {
    let application = Application::start(|visit, _| {
        while let Some(head) = visit.head() {
            let is_asked = head.contains("upgrade: other");
            visit.answer(if is_asked { "asked" } else { "not asked" });
        }
    });
    let server = serve(&application, &[]);
    run(async {
        let mut client = server.connect(Version::Http1).await;
        let fields = [("connection", "upgrade"), ("upgrade", "other")];
        assert_eq!(client.get("/", &fields).await.2, "asked");
        assert_eq!(
            client.get("/", &[("upgrade", "other")]).await.2,
            "not asked"
        );
        let connect = Request::connect("localhost:1")
            .body(whole(""))
            .expect("a request");
        let response = client.send(connect).await.expect("a response");
        assert_eq!(response.status(), 405);
    });
}
