//! The smallest server: `cargo run -p squall-h3 --example hello`, then
//! `squall get -k https://localhost:4433/`.

use std::convert::Infallible;
use std::error::Error;

use http::{Request, Response};
use squall_h3::{Body, server};

async fn hello(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let text = format!("hello, you asked for {}\n", request.uri().path());
    Ok(Response::new(Body::from(text)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let identity = squall::tls::Identity::self_signed(["localhost"])?;
    let tls = squall::tls::server(identity, &[b"h3"])?;
    let address = "[::]:4433".parse()?;
    let endpoint = squall::Endpoint::server(address, squall::ServerConfig::new(tls))?;
    server::serve(endpoint, tower::service_fn(hello)).await;
    Ok(())
}
