//! HTTPS records (RFC 9460) from a name server over UDP, whose messages are built here byte by
//! byte.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use squall::tls::Identity;
use squall::{Builder, ClientConfig, Endpoint, ServerConfig};
use squall_h3::client::{Client, Dns, Resolve};
use squall_h3::{Body, Config, server};
use tokio::net::UdpSocket;
use tower_service::Service;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Keys of parameters (RFC 9460 §14.3.2).
const MANDATORY: u16 = 0;
const ALPN: u16 = 1;
const PORT: u16 = 3;
const IPV4_HINT: u16 = 4;
const ECH: u16 = 5;

/// A record's data: priority, target, parameters in the order of their keys.
fn https(priority: u16, target: &str, parameters: &[(u16, &[u8])]) -> Vec<u8> {
    let mut data = priority.to_be_bytes().to_vec();
    put_name(&mut data, target);
    for (key, value) in parameters {
        data.extend(key.to_be_bytes());
        data.extend((value.len() as u16).to_be_bytes());
        data.extend(*value);
    }
    data
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    for label in name.split('.').filter(|label| !label.is_empty()) {
        out.push(label.len() as u8);
        out.extend(label.bytes());
    }
    out.push(0);
}

/// The name in a query, and where its question ends.
fn question(query: &[u8]) -> (String, usize) {
    let (mut name, mut at) = (Vec::new(), 12);
    while query[at] > 0 {
        let end = at + 1 + usize::from(query[at]);
        name.push(
            String::from_utf8(query[at + 1..end].to_vec())
                .unwrap()
                .to_lowercase(),
        );
        at = end;
    }
    (name.join("."), at + 5)
}

/// Answers with these records, with NXDOMAIN for other names, and never for names below
/// `silent.test`.
async fn name_server(zone: HashMap<&'static str, Vec<Vec<u8>>>) -> SocketAddr {
    let socket = UdpSocket::bind(ANY).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut query = [0; 1500];
        loop {
            let (len, from) = socket.recv_from(&mut query).await.unwrap();
            let (name, end) = question(&query[..len]);
            if name.ends_with("silent.test") {
                continue;
            }
            let records = zone.get(&*name);
            let mut answer = query[..2].to_vec();
            // A response, recursion desired and available.
            answer.extend([0x81, if records.is_some() { 0x80 } else { 0x83 }]);
            let count = records.map_or(0, Vec::len) as u16;
            answer.extend([0, 1]);
            answer.extend(count.to_be_bytes());
            answer.extend([0; 4]);
            answer.extend(&query[12..end]);
            for data in records.into_iter().flatten() {
                // The name of the question, type 65, class IN, 60 s.
                answer.extend([0xc0, 12, 0, 65, 0, 1, 0, 0, 0, 60]);
                answer.extend((data.len() as u16).to_be_bytes());
                answer.extend(data);
            }
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    address
}

/// Addresses of hosts.
struct Hosts(HashMap<&'static str, &'static str>);

impl Resolve for Hosts {
    fn resolve(
        &self,
        host: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
        let found = self.0.get(host);
        let found = found.map(|ip| vec![SocketAddr::new(ip.parse().unwrap(), port)]);
        Box::pin(async move { found.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }
}

async fn dns(
    hosts: &[(&'static str, &'static str)],
    zone: Vec<(&'static str, Vec<Vec<u8>>)>,
) -> Dns {
    let server = name_server(zone.into_iter().collect()).await;
    let hosts = Hosts(hosts.iter().copied().collect());
    let dns = Dns::with_name_servers(&[server]).unwrap();
    // Some machines are slow.
    let delay = Duration::from_secs(20);
    (dns.addresses_from(Arc::new(hosts))).resolution_delay(delay)
}

// test: RFC 9460 §2.4, §2.5, §7, §8, §9.1
#[tokio::test]
async fn services_are_ordered_by_priority_and_precede_the_origin() {
    const H3: &[u8] = b"\x02h2\x02h3";
    let zone = vec![
        (
            "site.test",
            vec![
                https(7, "other.test", &[(ALPN, H3), (PORT, &[0, 99])]),
                https(3, ".", &[(ALPN, H3), (PORT, &[0x20, 0xfb])]),
                // For HTTP/2 only.
                https(1, "fast.test", &[(ALPN, b"\x02h2"), (PORT, &[0, 98])]),
                // No protocol means HTTP/1.1.
                https(2, "fast.test", &[]),
                // Requires an unknown parameter.
                https(
                    4,
                    "fast.test",
                    &[(MANDATORY, &[0, 5]), (ALPN, H3), (ECH, &[0, 0])],
                ),
                https(
                    9,
                    "hint.test",
                    &[(ALPN, H3), (IPV4_HINT, &[10, 0, 0, 9, 10, 0, 0, 10])],
                ),
            ],
        ),
        ("_8443._https.site.test", vec![https(1, ".", &[(ALPN, H3)])]),
        ("alias.test", vec![https(0, "site.test", &[])]),
        // An alias counts; services next to it do not.
        (
            "mixed.test",
            vec![
                https(1, ".", &[(ALPN, H3), (PORT, &[0, 97])]),
                https(0, "fast.test", &[]),
            ],
        ),
        ("loop.test", vec![https(0, "loop2.test", &[])]),
        ("loop2.test", vec![https(0, "loop.test", &[])]),
        ("nowhere.test", vec![https(0, ".", &[])]),
    ];
    let hosts = [
        ("site.test", "10.0.0.1"),
        ("other.test", "10.0.0.2"),
        ("fast.test", "10.0.0.3"),
        ("alias.test", "10.0.0.4"),
        ("mixed.test", "10.0.0.5"),
        ("loop.test", "10.0.0.6"),
        ("nowhere.test", "10.0.0.7"),
        ("plain.test", "10.0.0.8"),
        ("127.0.0.1", "127.0.0.1"),
    ];
    let dns = dns(&hosts, zone).await;
    let services = [
        "10.0.0.1:8443",
        "10.0.0.2:99",
        "10.0.0.9:443",
        "10.0.0.10:443",
    ];
    for (host, port, expected) in [
        (
            "site.test",
            443,
            [&services[..], &["10.0.0.1:443"]].concat(),
        ),
        ("site.test", 8443, vec!["10.0.0.1:8443"]),
        (
            "alias.test",
            443,
            [&services[..], &["10.0.0.1:443", "10.0.0.4:443"]].concat(),
        ),
        ("mixed.test", 443, vec!["10.0.0.3:443", "10.0.0.5:443"]),
        ("loop.test", 443, vec!["10.0.0.6:443"]),
        ("nowhere.test", 443, vec!["10.0.0.7:443"]),
        ("plain.test", 443, vec!["10.0.0.8:443"]),
        ("127.0.0.1", 5, vec!["127.0.0.1:5"]),
    ] {
        let found = dns.resolve(host, port).await.unwrap();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{host}:{port}");
    }
    assert!(dns.resolve("unknown.test", 443).await.is_err());
}

#[tokio::test]
async fn a_silent_name_server_costs_little() {
    let dns = dns(&[("silent.test", "10.0.0.1")], Vec::new()).await;
    let dns = dns.resolution_delay(Duration::from_millis(50));
    let begun = Instant::now();
    let found = dns.resolve("silent.test", 443).await.unwrap();
    assert_eq!(found, ["10.0.0.1:443".parse().unwrap()]);
    // A name server has 5 s to answer.
    assert!(begun.elapsed() < Duration::from_secs(4));
}

/// Answers every request with its authority.
#[derive(Clone)]
struct Mirror;

impl Service<Request<Body>> for Mirror {
    type Response = Response<Full<Bytes>>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let authority = request.uri().authority().unwrap().to_string();
        std::future::ready(Ok(Response::new(Full::new(authority.into()))))
    }
}

#[tokio::test]
async fn a_client_finds_the_server_of_an_origin_by_its_record() {
    let identity = Identity::self_signed(["site.test"]).unwrap();
    let roots = identity.roots().unwrap();
    let tls = squall::tls::server(identity, &[b"h3"]).unwrap();
    let endpoint = Builder::new(ANY)
        .server(ServerConfig::new(tls))
        .bind()
        .unwrap();
    let port = endpoint.local_addr().unwrap().port();
    tokio::spawn(server::Builder::new().serve(endpoint, Mirror).into_future());
    // Nothing listens at port 443 of the origin's own address.
    let parameters: [(u16, &[u8]); 2] = [(ALPN, b"\x02h3"), (PORT, &port.to_be_bytes())];
    let zone = vec![("site.test", vec![https(1, "server.test", &parameters)])];
    let hosts = [("site.test", "127.0.0.2"), ("server.test", "127.0.0.1")];
    let dns = dns(&hosts, zone).await;
    let tls = squall::client_tls(roots, &[b"h3"]).unwrap();
    let client = Client::with(
        Endpoint::client(ANY).unwrap(),
        ClientConfig::new(tls),
        Config::new(),
        Some(Arc::new(dns)),
    );
    let request = Request::get("https://site.test/")
        .body(Body::empty())
        .unwrap();
    let response = client.send(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "site.test");
}
