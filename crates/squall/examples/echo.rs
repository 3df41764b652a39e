//! A server that echoes what it receives, and a client for it: `cargo run --example echo`.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use squall::rustls::RootCertStore;
use squall::rustls::pki_types::PrivatePkcs8KeyDer;
use squall::{
    Builder, ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig,
    TransportConfig,
};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Both ends name the protocol that they speak (RFC 7301).
const ALPN: &[u8] = b"echo";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = identity.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
    let transport = Arc::new(TransportConfig::default());

    let tls = squall::server_tls(vec![certificate.clone()], key.into(), &[ALPN])?;
    let config = ServerConfig::new(tls).transport(Arc::clone(&transport));
    let server = Builder::new(ANY_PORT).server(config).workers(2).bind()?;
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(echo).await });

    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let config = ClientConfig::new(squall::client_tls(roots, &[ALPN])?).transport(transport);
    let client = Endpoint::client(ANY_PORT)?;
    let connection = client
        .connect_with(config, server.local_addr()?, "localhost")?
        .await?;
    for question in ["Is anybody there?", "A packet never travels alone."] {
        let (mut send, mut recv) = connection.open_bi().await?;
        send.write_all(question.as_bytes()).await?;
        send.finish()?;
        let answer = recv.read_to_end(1000).await?;
        println!("{}", String::from_utf8_lossy(&answer));
    }
    connection.shutdown(0, b"done").await;
    server.shutdown(0, b"").await;
    Ok(())
}

/// Runs on the connection's own worker, as do the tasks that it starts there.
async fn echo(connection: Connection) {
    while let Ok((send, recv)) = connection.accept_bi().await {
        connection.spawn(async move {
            // A stream that fails is reset: dropping an unfinished `send` never looks like its end.
            let _ = echo_stream(send, recv).await;
        });
    }
}

async fn echo_stream(
    mut send: SendStream,
    mut recv: RecvStream,
) -> Result<(), Box<dyn std::error::Error>> {
    // Chunks are passed on without a copy, and sealed where they lie.
    while let Some(chunk) = recv.read_chunk(usize::MAX).await? {
        send.write_chunk(chunk).await?;
    }
    send.finish()?;
    Ok(())
}
