//! A gRPC service by tonic over HTTP/3, and its client:
//! `cargo run -p squall-interop --example grpc`.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures_util::stream;
use squall::tls::{self, Identity};
use squall::{ClientConfig, Endpoint, ServerConfig};
use squall_h3::{client, server};
use tonic::Request;
use tonic::service::Routes;

mod channel;
mod words;

use channel::{Channel, keep_deadline};
use words::{Service, WordsClient, WordsServer, text};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let identity = Identity::self_signed(["localhost"])?;
    let roots = identity.roots()?;
    let config = ServerConfig::new(tls::server(identity, &[b"h3"])?);
    let endpoint = Endpoint::server(any_port, config)?;
    let address = endpoint.local_addr()?;
    let routes = Routes::new(WordsServer::new(Service)).into_axum_router();
    let routes = routes.layer(axum::middleware::from_fn(keep_deadline));
    tokio::spawn(server::serve(endpoint, routes).into_future());

    let endpoint = Endpoint::client(any_port)?;
    let config = ClientConfig::new(tls::client(roots, &[b"h3"])?);
    let connection = endpoint.connect_with(config, address, "localhost")?.await?;
    let origin = "https://localhost".parse()?;
    let channel = Channel(client::handshake(connection));
    let mut client = WordsClient::with_origin(channel, origin);
    println!("{}", client.one(text("ping")).await?.into_inner().text);
    let words = stream::iter(["one", "by", "one"].map(text));
    let mut louder = client.shout(words).await?.into_inner();
    while let Some(word) = louder.message().await? {
        println!("{}", word.text);
    }
    let mut late = Request::new(text("wait"));
    late.set_timeout(Duration::from_millis(100));
    println!("{}", client.one(late).await.expect_err("too late").code());
    Ok(())
}
