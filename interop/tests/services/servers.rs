//! The same service behind HTTP/3 and behind HTTP/2, and a client of each.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use squall::tls::Identity;
use squall_h3::client::SendRequest;
use squall_h3::server::Builder;

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Fails instead of waiting for ever.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, future)
        .await
        .expect("the test timed out")
}

/// Serves over HTTP/3 and returns a client, and the endpoints that it needs.
pub(crate) async fn http3(
    builder: Builder,
    service: Router,
) -> (SendRequest, [squall::Endpoint; 2]) {
    let identity = Identity::self_signed(["localhost"]).expect("an identity");
    let roots = identity.roots().expect("roots");
    let tls = squall::tls::server(identity, &[b"h3"]).expect("a server's TLS");
    let server = squall::Endpoint::server(ANY_PORT, squall::ServerConfig::new(tls));
    let server = server.expect("a server");
    let address = server.local_addr().expect("an address");
    let serving = builder.serve(server.clone(), service);
    tokio::spawn(async move { serving.await });
    let tls = squall::client_tls(roots, &[b"h3"]).expect("a client's TLS");
    let client = squall::Endpoint::client(ANY_PORT).expect("a client");
    let config = squall::ClientConfig::new(tls);
    let connecting = client.connect_with(config, address, "localhost");
    let connection = within(connecting.expect("a start")).await;
    let requests = squall_h3::client::handshake(connection.expect("a connection"));
    (requests, [client, server])
}

/// Serves over HTTP/2 without TLS and returns the server's address.
pub(crate) async fn http2(service: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(ANY_PORT).await;
    let listener = listener.expect("a listener");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}
