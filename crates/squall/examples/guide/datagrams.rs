//! Unreliable datagrams (RFC 9221): positions of a player, of which only the newest matters.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use squall::tls::{self, Identity};
use squall::{Bytes, ClientConfig, Connection, Endpoint, ServerConfig};

const ALPN: &[u8] = b"game";
const LAST: u32 = 100;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let identity = Identity::self_signed(["localhost"])?;
    let roots = identity.roots()?;
    let config = ServerConfig::new(tls::server(identity, &[ALPN])?);
    let server = Endpoint::server(any_port, config)?;
    let serving = tokio::spawn(follow(server.clone()));

    let client = Endpoint::client(any_port)?;
    let config = ClientConfig::new(tls::client(roots, &[ALPN])?);
    let address = server.local_addr()?;
    let connection = client.connect_with(config, address, "localhost")?.await?;
    play(&connection).await?;

    println!("the server saw {} positions", serving.await??);
    Ok(())
}

/// Sends positions until the server has seen the last one.
async fn play(connection: &Connection) -> Result<()> {
    let max = connection.max_datagram_size().ok_or("no datagrams")?;
    println!("a datagram may have {max} bytes");
    let mut position = 0;
    while connection.close_reason().is_none() {
        // Never waits: if the queue is full, the oldest datagram in it is dropped.
        let sent = connection.send_datagram(Bytes::copy_from_slice(&u32::to_be_bytes(position)));
        if let Err(error) = sent {
            println!("not sent: {error}");
        }
        // Datagrams get lost, and the last one is no exception: it is sent again.
        position = LAST.min(position + 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Follows one player to the last position; returns how many positions arrived.
async fn follow(server: Endpoint) -> Result<u32> {
    let incoming = server.accept().await.ok_or("the endpoint is closed")?;
    let connection = incoming.await?;
    let (mut newest, mut seen) = (0, 0);
    while newest < LAST {
        let datagram = connection.read_datagram().await?;
        let position = u32::from_be_bytes(datagram.as_ref().try_into()?);
        // They may arrive in another order.
        newest = newest.max(position);
        seen += 1;
    }
    connection.close(0, b"that is enough");
    server.wait_idle().await;
    Ok(seen)
}

#[cfg(test)]
mod tests {
    #[test]
    fn datagrams_arrive() {
        super::main().unwrap();
    }
}
