//! An echo server, and a client that compares: with a crypto provider of the application's choice,
//! and no C code.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use squall::rustls::pki_types::pem::PemObject;
use squall::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use squall::rustls::{self, RootCertStore};
use squall::{Builder, ClientConfig, Connection, Endpoint, ServerConfig, TransportConfig};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const ALPN: &[u8] = b"echo";
const BYTES: usize = 1_000_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Wrapped once: each call leaks a few small structs.
    let provider = Arc::new(squall::wrap(rustls_graviola::default_provider()));
    let versions = &[&rustls::version::TLS13];
    // For `localhost`, valid until the year 4096, and only for this program.
    let certificate = CertificateDer::from_pem_slice(include_bytes!("../certificate.pem"))?;
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../key.pem"))?;
    let transport = Arc::new(TransportConfig::default());

    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let config = ServerConfig::new(tls).transport(Arc::clone(&transport));
    let server = Builder::new(ANY_PORT).server(config).bind()?;
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(echo).await });

    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let config = ClientConfig::new(tls).transport(transport);
    let client = Endpoint::client(ANY_PORT)?;
    let connection = client
        .connect_with(config, server.local_addr()?, "localhost")?
        .await?;
    let (mut send, mut recv) = connection.open_bi().await?;
    let sent: Vec<u8> = (0..BYTES).map(|i| (i * i >> 3) as u8).collect();
    let copy = sent.clone();
    let sending = tokio::spawn(async move {
        send.write_all(&copy).await?;
        send.finish()?;
        Ok::<(), squall::WriteError>(())
    });
    let received = recv.read_to_end(BYTES).await?;
    sending.await??;
    assert!(received == sent, "the bytes that came back differ");
    println!("{BYTES} bytes came back unchanged");
    connection.shutdown(0, b"done").await;
    server.shutdown(0, b"").await;
    Ok(())
}

async fn echo(connection: Connection) {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        connection.spawn(async move {
            while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX).await {
                if send.write_chunk(chunk).await.is_err() {
                    return;
                }
            }
            let _ = send.finish();
        });
    }
}
