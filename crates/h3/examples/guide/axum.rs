//! An axum application over HTTP/3, and a client that asks it.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::{ConnectInfo, Path};
use axum::middleware::map_request;
use axum::routing::{get, post};
use http::Request;
use http_body_util::BodyExt as _;
use squall::tls::{self, Identity};
use squall::{ClientConfig, Endpoint, ServerConfig};
use squall_h3::server::Peer;
use squall_h3::{Body, Config, client, server};

/// The application protocol of HTTP/3 (RFC 9114 §3.1).
const ALPN: &[u8] = b"h3";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Nothing here is specific to HTTP/3.
fn application() -> Router {
    Router::new()
        .route("/", get(async || "hello\n"))
        .route(
            "/users/{name}",
            get(async |Path(name): Path<String>| format!("user {name}\n")),
        )
        .route(
            "/address",
            get(async |ConnectInfo(address): ConnectInfo<SocketAddr>| address.to_string()),
        )
        .route("/echo", post(async |body: axum::body::Body| body))
}

/// Lets axum's `ConnectInfo` find the client's address.
fn with_connect_info(router: Router) -> Router {
    router.layer(map_request(
        async |mut request: Request<axum::body::Body>| {
            if let Some(peer) = request.extensions().get::<Peer>().cloned() {
                let info = ConnectInfo(peer.remote_address());
                request.extensions_mut().insert(info);
            }
            request
        },
    ))
}

#[tokio::main]
async fn main() -> Result<()> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));

    let identity = Identity::self_signed(["localhost"])?;
    let roots = identity.roots()?;
    let config = ServerConfig::new(tls::server(identity, &[ALPN])?);
    let endpoint = Endpoint::server(any_port, config)?;
    let address = endpoint.local_addr()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let builder = server::Builder::new().config(Config::new().peer_info(true));
    let serving = builder.serve(endpoint.clone(), with_connect_info(application()));
    let serving = tokio::spawn(serving.with_graceful_shutdown(async {
        let _ = stopped.await;
    }));

    let client = Endpoint::client(any_port)?;
    let config = ClientConfig::new(tls::client(roots, &[ALPN])?);
    let connecting = client.connect_with(config, address, "localhost")?;
    let requests = client::handshake(connecting.await?);
    let request = Request::get("https://localhost/users/ada").body(Body::empty())?;
    let response = requests.send(request).await?;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.into_body().collect().await?.to_bytes(),
        "user ada\n"
    );
    let request = Request::get("https://localhost/address").body(Body::empty())?;
    let response = requests.send(request).await?;
    let address = client.local_addr()?.to_string();
    assert_eq!(response.into_body().collect().await?.to_bytes(), address);
    let request = Request::post("https://localhost/echo").body(Body::from("twice"))?;
    let response = requests.send(request).await?;
    assert_eq!(response.into_body().collect().await?.to_bytes(), "twice");

    // GOAWAY: requests that have arrived are answered, and then the connection ends.
    let _ = stop.send(());
    serving.await?;
    endpoint.shutdown(0, b"").await;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn requests_get_responses() {
        super::main().unwrap();
    }
}
