//! Early data (0-RTT): the second connection's request travels with its first packet.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use squall::tls::{self, Identity};
use squall::{ClientConfig, Connecting, Connection, Endpoint, ServerConfig};

const ALPN: &[u8] = b"time";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let identity = Identity::self_signed(["localhost"])?;
    let roots = identity.roots()?;

    let mut tls = tls::server(identity, &[ALPN])?;
    tls.max_early_data_size = u32::MAX; // the only other value that QUIC allows is 0
    let server = Endpoint::server(any_port, ServerConfig::new(tls))?;
    tokio::spawn(serve(server.clone()));

    let mut tls = tls::client(roots, &[ALPN])?;
    tls.enable_early_data = true;
    // Its copies share the tickets that servers give.
    let config = ClientConfig::new(tls);
    let client = Endpoint::client(any_port)?;
    let address = server.local_addr()?;
    let mut accepted = 0;
    while accepted < 2 {
        let connecting = client.connect_with(config.clone(), address, "localhost")?;
        let (connection, early) = match connecting.into_0rtt().await {
            Ok((connection, early)) => (connection, Some(early)),
            // No ticket yet.
            Err(connecting) => (connecting.await?, None),
        };
        // Sent at once if there is a ticket. An attacker can replay it, so it must be harmless.
        let answer = ask(&connection).await?;
        let in_early_data = match early {
            Some(accepted) => accepted.await,
            None => false,
        };
        println!("{answer}, asked in early data: {in_early_data}");
        accepted += usize::from(in_early_data);
        connection.shutdown(0, b"").await;
    }
    server.shutdown(0, b"").await;
    Ok(())
}

async fn ask(connection: &Connection) -> Result<String> {
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(b"time?").await?;
    send.finish()?;
    Ok(String::from_utf8(recv.read_to_end(100).await?)?)
}

async fn serve(server: Endpoint) {
    while let Some(incoming) = server.accept().await {
        tokio::spawn(answer(incoming.accept()));
    }
}

async fn answer(connecting: Connecting) -> Result<()> {
    // A server always gets its connection at once.
    let Ok((connection, handshake)) = connecting.into_0rtt().await else {
        return Ok(());
    };
    let (mut send, mut recv) = connection.accept_bi().await?;
    let request = recv.read_to_end(100).await?;
    if request != b"time?" && recv.is_early() {
        // Anything that changes something waits until the client has shown that it is live.
        handshake.await;
    }
    send.write_all(b"12 o'clock").await?;
    send.finish()?;
    connection.closed().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn early_data_is_accepted_twice() {
        super::main().unwrap();
    }
}
