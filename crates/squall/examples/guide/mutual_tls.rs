//! Mutual TLS: the server accepts only clients with a certificate from its authority, and
//! identifies them by it.
//!
//!     guide-mutual-tls FOLDER
//!
//! The folder holds ca.pem, server.pem, server.key, alice.pem and alice.key.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use squall::rustls::pki_types::CertificateDer;
use squall::tls::{self, Identity, roots_from_pem};
use squall::{ClientConfig, Endpoint, ServerConfig, TransportConfig};

const ALPN: &[u8] = b"greeting";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let folder = std::env::args()
        .nth(1)
        .ok_or("usage: guide-mutual-tls FOLDER")?;
    println!("{}", run(folder.as_ref()).await?);
    Ok(())
}

async fn run(folder: &Path) -> Result<String> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let identity = |name: &str| {
        Identity::from_pem(
            folder.join(format!("{name}.pem")),
            folder.join(format!("{name}.key")),
        )
    };
    let alice = identity("alice")?;

    // The same authority signs servers and clients here; they may differ.
    let roots = roots_from_pem(folder.join("ca.pem"))?;
    let tls = tls::mutual_server(identity("server")?, roots.clone(), &[ALPN])?;
    // Without this, a certificate is checked and then forgotten.
    let transport = TransportConfig::default().keep_peer_certificates(true);
    let server = Endpoint::server(any_port, ServerConfig::new(tls).transport(transport))?;
    let users = vec![("alice", alice.certificates()[0].clone())];
    let serving = tokio::spawn(greet_one(server.clone(), users));

    let tls = tls::mutual_client(roots, alice, &[ALPN])?;
    let client = Endpoint::client(any_port)?;
    let connection = client
        .connect_with(ClientConfig::new(tls), server.local_addr()?, "localhost")?
        .await?;
    // With TLS 1.3 a client may send before the server has checked its certificate. If the server
    // rejects it, the connection ends here.
    let mut greeting = connection.accept_uni().await?;
    let greeting = String::from_utf8(greeting.read_to_end(1000).await?)?;

    connection.close(0, b"");
    serving.await??;
    Ok(greeting)
}

async fn greet_one(
    server: Endpoint,
    users: Vec<(&'static str, CertificateDer<'static>)>,
) -> Result<()> {
    let incoming = server.accept().await.ok_or("the endpoint is closed")?;
    let connection = incoming.await?;
    let chain = connection.peer_certificates().unwrap_or_default();
    let user = users.iter().find(|(_, known)| chain.first() == Some(known));
    let name = user.map_or("stranger", |(name, _)| name);
    let mut send = connection.open_uni().await?;
    send.write_all(format!("Hello, {name}!").as_bytes()).await?;
    send.finish()?;
    connection.closed().await;
    Ok(())
}

#[cfg(test)]
#[path = "../../tests/common/authority.rs"]
mod authority;

#[cfg(test)]
mod tests {
    use super::authority::Folder;

    #[tokio::test]
    async fn a_client_is_identified_by_its_certificate() {
        let folder = Folder::new("guide-mutual", &["server", "alice"]);
        assert_eq!(super::run(&folder.path).await.unwrap(), "Hello, alice!");
        // A certificate of an authority that the server does not know.
        let other = Folder::new("guide-mutual-other", &["alice"]);
        for name in ["alice.pem", "alice.key"] {
            std::fs::copy(other.path.join(name), folder.path.join(name)).unwrap();
        }
        assert!(super::run(&folder.path).await.is_err());
    }
}
