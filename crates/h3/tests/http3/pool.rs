//! A client of many origins: connections are made, kept and replaced.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use squall::tls::Identity;
use squall::{Builder, ClientConfig, Endpoint, ServerConfig, TransportConfig};
use squall_h3::client::{Client, Resolve};
use squall_h3::{Body, Code, Config, Early, Error, server};
use tokio::sync::oneshot;

use crate::common::{ANY_PORT, read, response, service_fn, within};

/// Names and their addresses.
#[derive(Default)]
struct Hosts(std::sync::Mutex<Vec<(&'static str, Vec<SocketAddr>)>>);

impl Resolve for Hosts {
    fn resolve(
        &self,
        host: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
        let hosts = self.0.lock().unwrap();
        let found = hosts.iter().find(|(name, _)| *name == host);
        let mut addresses = found
            .map(|(_, addresses)| addresses.clone())
            .unwrap_or_default();
        for address in &mut addresses {
            if address.port() == 0 {
                address.set_port(port);
            }
        }
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

/// An identity for all servers of a test, and the clients' TLS.
struct World {
    identity: Identity,
    tls: squall::rustls::ClientConfig,
    hosts: Arc<Hosts>,
}

impl World {
    fn new() -> Self {
        let identity = Identity::self_signed(["one.test", "two.test"]).unwrap();
        let roots = identity.roots().unwrap();
        let mut tls = squall::client_tls(roots, &[b"h3"]).unwrap();
        tls.enable_early_data = true;
        Self {
            identity,
            tls,
            hosts: Arc::default(),
        }
    }

    fn server(&self) -> (Endpoint, SocketAddr) {
        self.server_with(TransportConfig::default())
    }

    fn server_with(&self, transport: TransportConfig) -> (Endpoint, SocketAddr) {
        let mut tls = squall::tls::server(self.identity.clone(), &[b"h3"]).unwrap();
        tls.max_early_data_size = u32::MAX;
        let config = ServerConfig::new(tls).transport(transport);
        let endpoint = Builder::new(ANY_PORT).server(config).bind().unwrap();
        let address = endpoint.local_addr().unwrap();
        (endpoint, address)
    }

    fn client(&self) -> Client {
        self.client_with(TransportConfig::default()).0
    }

    fn client_with(&self, transport: TransportConfig) -> (Client, Endpoint) {
        let endpoint = Endpoint::client(ANY_PORT).unwrap();
        let hosts = Arc::clone(&self.hosts) as Arc<dyn Resolve>;
        let config = ClientConfig::new(self.tls.clone()).transport(transport);
        let client = Client::with(endpoint.clone(), config, Config::new(), Some(hosts));
        (client, endpoint)
    }

    fn set(&self, name: &'static str, addresses: Vec<SocketAddr>) {
        let mut hosts = self.hosts.0.lock().unwrap();
        hosts.retain(|(of, _)| *of != name);
        hosts.push((name, addresses));
    }
}

/// A socket that answers nothing, bound so that no error reports a closed port.
fn silent() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(ANY_PORT).unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// The number of datagrams that have arrived since the last call.
fn arrived(socket: &UdpSocket) -> usize {
    std::iter::from_fn(|| socket.recv(&mut [0; 2000]).ok()).count()
}

fn serve<F>(endpoint: Endpoint, answer: F)
where
    F: Fn(Request<Body>) -> Response<Body> + Send + Sync + 'static,
{
    let service = service_fn(move |request| std::future::ready(answer(request)));
    tokio::spawn(async move { server::serve(endpoint, service).await });
}

async fn get(client: &Client, uri: &str) -> Result<Response<Body>, Error> {
    within(client.send(Request::get(uri).body(Body::empty()).unwrap())).await
}

async fn text(client: &Client, uri: &str) -> String {
    let response = get(client, uri).await.unwrap();
    String::from_utf8(read(response.into_body()).await.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_an_origin_share_one_connection() {
    let world = World::new();
    let (one, one_at) = world.server();
    let (two, two_at) = world.server();
    world.set("one.test", vec![one_at]);
    world.set("two.test", vec![two_at]);
    serve(one.clone(), |_| response("one"));
    serve(two.clone(), |_| response("two"));
    let client = world.client();
    let tasks: Vec<_> = (0..50)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move {
                let name = ["one", "two"][i % 2];
                let uri = format!("https://{name}.test/{i}");
                assert_eq!(text(&client, &uri).await, name);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((one.stats().connections, two.stats().connections), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_addresses_are_skipped_quickly() {
    let world = World::new();
    let (server, address) = world.server();
    let (_silent, silent) = silent();
    world.set("one.test", vec![silent, silent, address]);
    serve(server, |_| response("one"));
    let began = Instant::now();
    assert_eq!(text(&world.client(), "https://one.test/").await, "one");
    assert!(
        began.elapsed() > Duration::from_millis(400),
        "{:?}",
        began.elapsed()
    );
    let unresolved = get(&world.client(), "https://two.test/").await;
    assert!(
        matches!(unresolved, Err(Error::Connect(_))),
        "{unresolved:?}"
    );
    let plain = get(&world.client(), "http://one.test/").await;
    assert!(matches!(plain, Err(Error::InvalidRequest(_))), "{plain:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_outlives_the_runtime_of_the_attempt_that_it_waits_for() {
    let world = World::new();
    let (server, address) = world.server();
    let (silent_socket, silent) = silent();
    world.set("one.test", vec![silent]);
    serve(server, |_| response("one"));
    let client = world.client();
    let other = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let request = |client: &Client| {
        let client = client.clone();
        async move { text(&client, "https://one.test/").await }
    };
    let begins = other.spawn(request(&client));
    let mut joins = std::pin::pin!(request(&client));
    within(async {
        while arrived(&silent_socket) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let waits = tokio::time::timeout(Duration::from_millis(20), &mut joins);
    assert!(waits.await.is_err());

    world.set("one.test", vec![address]);
    other.shutdown_background();
    assert_eq!(joins.await, "one");
    assert!(begins.await.unwrap_err().is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_connection_replaces_one_that_goes_away() {
    let world = World::new();
    let (old, old_at) = world.server();
    world.set("one.test", vec![old_at]);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = server::serve(old, service_fn(|_| async { response("old") }));
    let serving = serving.with_graceful_shutdown(async { stopped.await.unwrap() });
    let serving = tokio::spawn(serving);
    let client = world.client();
    assert_eq!(text(&client, "https://one.test/").await, "old");
    let (new, new_at) = world.server();
    serve(new, |_| response("new"));
    world.set("one.test", vec![new_at]);
    stop.send(()).unwrap();
    // No request fails, whichever of the two serves it.
    while text(&client, "https://one.test/").await != "new" {}
    within(serving).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alternative_is_used_for_the_next_connection() {
    let world = World::new();
    let (origin, origin_at) = world.server();
    let (other, other_at) = world.server();
    let any = |mut address: SocketAddr| {
        address.set_port(0);
        address
    };
    world.set("one.test", vec![any(origin_at)]);
    let field = format!("h3=\":{}\"; ma=60", other_at.port());
    serve(origin.clone(), move |_| {
        let mut response = response("origin");
        response
            .headers_mut()
            .insert("alt-svc", field.parse().unwrap());
        response
    });
    serve(other.clone(), |request| {
        // The origin is unchanged.
        assert_eq!(request.uri().host(), Some("one.test"));
        response("other")
    });
    let client = world.client();
    let uri = format!("https://one.test:{}/", origin_at.port());
    assert_eq!(text(&client, &uri).await, "origin");
    origin.close(0x100, b"");
    while text(&client, &uri).await != "other" {}
    // An alternative that does not answer is forgotten.
    other.close(0x100, b"");
    let lost = get(&client, &uri).await;
    assert!(lost.is_err(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn safe_requests_use_early_data_and_are_repeated_on_425() {
    let world = World::new();
    let (server, address) = world.server();
    world.set("one.test", vec![address]);
    let early = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&early);
    serve(server, move |request| {
        let is_early = request.extensions().get::<Early>().is_some();
        count.fetch_add(usize::from(is_early), Ordering::SeqCst);
        let mut response = response(format!("{}", request.method()));
        if is_early {
            *response.status_mut() = StatusCode::TOO_EARLY;
        }
        response
    });
    // Each client resumes the session of the previous one.
    for _ in 0..50 {
        let client = world.client();
        let response = get(&client, "https://one.test/").await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let before = early.load(Ordering::SeqCst);
        let client = world.client();
        let post = Request::post("https://one.test/")
            .body(Body::from("x"))
            .unwrap();
        let response = within(client.send(post)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(early.load(Ordering::SeqCst), before, "a POST was early");
    }
    assert!(early.load(Ordering::SeqCst) > 0, "no request was early");
}

// Whether a request was sent early or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_reported_as_an_error() {
    let world = World::new();
    let (server, address) = world.server();
    world.set("one.test", vec![address]);
    tokio::spawn(async move {
        let connection = server.accept().await.unwrap();
        let service = service_fn(|_| std::future::ready(response("one")));
        let connection = connection.accept().await.unwrap();
        let serving = server::Builder::new().serve_connection(connection, service);
        let refusing = async {
            while let Some(incoming) = server.accept().await {
                incoming.refuse();
            }
        };
        let _ = tokio::join!(serving, refusing);
    });
    // Its ticket allows early data.
    let client = world.client();
    assert_eq!(text(&client, "https://one.test/").await, "one");
    for method in ["GET", "POST"] {
        let request = Request::builder().method(method).uri("https://one.test/");
        let request = request.body(Body::empty()).unwrap();
        let refused = within(world.client().send(request)).await.unwrap_err();
        assert!(matches!(refused, Error::Connect(_)), "{method}: {refused}");
    }
}

// With a ticket, a request could be sent to the silent address as early data, and wait there until
// the handshake times out.
#[tokio::test(flavor = "multi_thread")]
async fn early_data_to_a_silent_address_is_sent_to_another() {
    let world = World::new();
    let (server, address) = world.server();
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    serve(server.clone(), move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
        response("one")
    });
    world.set("one.test", vec![address]);
    assert_eq!(text(&world.client(), "https://one.test/").await, "one");
    let (silent, silent_at) = silent();
    world.set("one.test", vec![silent_at, address]);
    for method in ["GET", "POST", "GET", "GET"] {
        count.store(0, Ordering::SeqCst);
        let (client, endpoint) = world.client_with(TransportConfig::default());
        let began = Instant::now();
        let request = Request::builder().method(method).uri("https://one.test/");
        let request = request.body(Body::empty()).unwrap();
        let response = within(client.send(request)).await.unwrap();
        assert_eq!(read(response.into_body()).await.unwrap(), b"one");
        // Far less than the handshake's timeout.
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{method}: {took:?}");
        assert!(arrived(&silent) > 0);
        // Later requests use the same connection.
        assert_eq!(text(&client, "https://one.test/").await, "one");
        assert_eq!(count.load(Ordering::SeqCst), 2);
        while endpoint.stats().connections > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_alternative_is_given_up() {
    let world = World::new();
    // Connections end between the requests.
    let idle = Duration::from_millis(500);
    let (server, address) = world.server_with(TransportConfig::default().max_idle_timeout(idle));
    let (silent, silent_at) = silent();
    let mut of_origin = address;
    of_origin.set_port(0);
    world.set("one.test", vec![of_origin]);
    let is_first = Arc::new(AtomicUsize::new(0));
    serve(server, move |_| {
        let mut response = response("one");
        if is_first.fetch_add(1, Ordering::SeqCst) == 0 {
            let field = format!("h3=\":{}\"", silent_at.port()).parse().unwrap();
            response.headers_mut().insert("alt-svc", field);
        }
        response
    });
    let client = world.client();
    let uri = format!("https://one.test:{}/", address.port());
    for is_tried in [false, true, false] {
        let began = Instant::now();
        assert_eq!(text(&client, &uri).await, "one");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        tokio::time::sleep(2 * idle).await;
        assert_eq!(arrived(&silent) > 0, is_tried);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_share_an_attempt_and_its_error() {
    let world = World::new();
    let (silent, silent_at) = silent();
    world.set("one.test", vec![silent_at]);
    let patience = Duration::from_secs(1);
    let transport = TransportConfig::default().handshake_timeout(patience);
    let (client, _) = world.client_with(transport);
    let began = Instant::now();
    let asking: Vec<_> = (0..5)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { get(&client, "https://one.test/").await.unwrap_err() })
        })
        .collect();
    // The others do not depend on the first one.
    asking[0].abort();
    for task in asking.into_iter().skip(1) {
        let error = task.await.unwrap();
        let Error::Connect(error) = error else {
            panic!("{error}");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let reason = error.get_ref().unwrap().downcast_ref();
        assert_eq!(reason, Some(&squall::CloseReason::HandshakeTimeout));
    }
    let took = began.elapsed();
    assert!(took < 2 * patience, "{took:?}");
    // An attempt that no request waits for ends.
    let asking = {
        let client = client.clone();
        tokio::spawn(async move { get(&client, "https://one.test/").await })
    };
    arrived(&silent);
    while arrived(&silent) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let began = Instant::now();
    asking.abort();
    while !format!("{client:?}").contains("origins: 0") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    assert!(took < patience / 2, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_is_forgotten_when_its_connection_ends() {
    let world = World::new();
    let idle = Duration::from_millis(500);
    let (server, address) = world.server_with(TransportConfig::default().max_idle_timeout(idle));
    serve(server, |_| response("one"));
    world.set("one.test", vec![address]);
    let (_silent, silent_at) = silent();
    world.set("two.test", vec![silent_at]);
    let (client, _) = world.client_with(TransportConfig::default().handshake_timeout(idle));
    let origins = || format!("{client:?}");
    for port in [1, 2, 3] {
        let uri = format!("https://one.test:{port}/");
        assert_eq!(text(&client, &uri).await, "one");
    }
    assert!(origins().contains("origins: 3"), "{}", origins());
    // So is one without a connection.
    get(&client, "https://two.test/").await.unwrap_err();
    let forgotten = async {
        while !origins().contains("origins: 0") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(forgotten).await;
    assert_eq!(text(&client, "https://one.test:1/").await, "one");
}

// A service that takes longer than the idle timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_keeps_its_connection_alive() {
    // Unless a busy machine is late by half of the idle timeout: then again with a longer one.
    for factor in [1, 4] {
        let idle = Duration::from_millis(800) * factor;
        let world = World::new();
        let transport = TransportConfig::default().max_idle_timeout(idle);
        let (server, address) = world.server_with(transport);
        world.set("one.test", vec![address]);
        let slow = service_fn(move |_| async move {
            tokio::time::sleep(2 * idle).await;
            response("slow")
        });
        tokio::spawn(async move { server::serve(server, slow).await });
        let (client, endpoint) = world.client_with(TransportConfig::default());
        let Ok(response) = get(&client, "https://one.test/").await else {
            continue;
        };
        assert_eq!(read(response.into_body()).await.unwrap(), b"slow");
        // Without a request it ends.
        let ended = async {
            while endpoint.stats().connections > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(ended).await;
        return;
    }
    panic!("the connection ended during the request");
}

/// A server that stops, and whose GOAWAY does not arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_meets_a_graceful_shutdown_is_retried() {
    for (code, method, succeeds) in [
        (Code::H3_NO_ERROR, "GET", true),
        (Code::H3_NO_ERROR, "POST", false),
        (Code::H3_INTERNAL_ERROR, "GET", false),
    ] {
        let world = World::new();
        let (server, address) = world.server();
        world.set("one.test", vec![address]);
        tokio::spawn(async move {
            let connection = server.accept().await.unwrap().await.unwrap();
            let _stream = connection.accept_bi().await.unwrap();
            connection.close(code.0, b"");
            serve(server, |_| response("again"));
        });
        let request = Request::builder().method(method).uri("https://one.test/");
        let request = request.body(Body::empty()).unwrap();
        let result = within(world.client().send(request)).await;
        assert_eq!(result.is_ok(), succeeds, "{code} {method}: {result:?}");
    }
}

/// A server that rejects the first request, and answers later ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_request_is_retried() {
    let world = World::new();
    let (server, address) = world.server();
    world.set("one.test", vec![address]);
    tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let mut control = connection.open_uni().await.unwrap();
        control.write_all(&[0, 4, 0]).await.unwrap();
        let (mut send, mut recv) = connection.accept_bi().await.unwrap();
        send.reset(Code::H3_REQUEST_REJECTED.0).unwrap();
        let _ = recv.stop(Code::H3_REQUEST_REJECTED.0);
        while let Ok((mut send, _recv)) = connection.accept_bi().await {
            // `:status` 200, the static table's entry 25.
            send.write_all(&[1, 3, 0, 0, 0xd9]).await.unwrap();
            send.finish().unwrap();
        }
    });
    let client = world.client();
    let response = get(&client, "https://one.test/").await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    // With a body, a request can be sent once.
    let (server, address) = world.server();
    world.set("two.test", vec![address]);
    tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        while let Ok((mut send, mut recv)) = connection.accept_bi().await {
            send.reset(Code::H3_REQUEST_REJECTED.0).unwrap();
            let _ = recv.stop(Code::H3_REQUEST_REJECTED.0);
        }
    });
    let post = Request::post("https://two.test/")
        .body(Body::from("x"))
        .unwrap();
    let rejected = within(client.send(post)).await.unwrap_err();
    assert!(rejected.is_unprocessed(), "{rejected}");
}
