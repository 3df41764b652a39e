//! A server that sends back what it receives, and a client that asks it.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use squall::tls::{self, Identity};
use squall::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig};

/// The application protocol. QUIC requires a name that both ends know.
const ALPN: &[u8] = b"echo";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));

    let identity = Identity::self_signed(["localhost"])?;
    let roots = identity.roots()?;
    let config = ServerConfig::new(tls::server(identity, &[ALPN])?);
    let server = Endpoint::server(any_port, config)?;
    let accepting = server.clone();
    tokio::spawn(async move { accepting.serve(serve_connection).await });

    let client = Endpoint::client(any_port)?;
    let config = ClientConfig::new(tls::client(roots, &[ALPN])?);
    let address = server.local_addr()?;
    let connection = client.connect_with(config, address, "localhost")?.await?;
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(b"Is anybody there?").await?;
    send.finish()?;
    let answer = recv.read_to_end(1000).await?;
    assert_eq!(answer, b"Is anybody there?");

    connection.shutdown(0, b"done").await;
    server.shutdown(0, b"").await;
    Ok(())
}

/// Runs on the connection's worker thread, as do the tasks that it spawns there.
async fn serve_connection(connection: Connection) {
    while let Ok((send, recv)) = connection.accept_bi().await {
        connection.spawn(async move {
            if let Err(error) = echo(send, recv).await {
                eprintln!("a stream failed: {error}");
            }
        });
    }
}

async fn echo(mut send: SendStream, mut recv: RecvStream) -> Result<()> {
    while let Some(chunk) = recv.read_chunk(usize::MAX).await? {
        send.write_chunk(chunk).await?;
    }
    send.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_echo_comes_back() {
        super::main().unwrap();
    }
}
