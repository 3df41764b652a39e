//! A gRPC service by tonic over HTTP/3, and its client:
//! `cargo run -p squall-interop --example grpc`.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use futures_util::stream;
use squall::tls::{self, Identity};
use squall::{ClientConfig, Endpoint, ServerConfig};
use squall_h3::{client, server};
use tonic::service::Routes;

mod words;

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
    tokio::spawn(server::serve(endpoint, routes).into_future());

    let endpoint = Endpoint::client(any_port)?;
    let config = ClientConfig::new(tls::client(roots, &[b"h3"])?);
    let connection = endpoint.connect_with(config, address, "localhost")?.await?;
    let origin = "https://localhost".parse()?;
    let mut client = WordsClient::with_origin(client::handshake(connection), origin);
    println!("{}", client.one(text("ping")).await?.into_inner().text);
    let words = stream::iter(["one", "by", "one"].map(text));
    let mut louder = client.shout(words).await?.into_inner();
    while let Some(word) = louder.message().await? {
        println!("{}", word.text);
    }
    Ok(())
}
