//! Connections to the addresses of a host, several at a time: "Happy Eyeballs" (RFC 8305).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use squall::{ClientConfig, CloseReason, Connection, Endpoint};
use tokio::task::JoinSet;

/// How long an attempt has before the next one starts alongside it (RFC 8305 §5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Addresses in the order in which they are tried (RFC 8305 §4): the families alternate, IPv6
/// first.
pub(super) fn in_turns(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (v6, v4): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv6);
    let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
    let mut ordered = Vec::new();
    loop {
        let before = ordered.len();
        ordered.extend(v6.next());
        ordered.extend(v4.next());
        if ordered.len() == before {
            return ordered;
        }
    }
}

/// Connects to the first of the addresses, tried in this order, whose handshake is complete. An
/// attempt that fails starts the next one at once. Returns the address, too.
///
/// `offer` is called with each connection that can send early data. Its address may be dead, or
/// another one may answer first: then the connection is not the one that is returned.
///
/// # Errors
/// No address answers: the error of the last attempt.
pub(super) async fn connect<O>(
    endpoint: &Endpoint,
    config: &ClientConfig,
    name: &str,
    addresses: Vec<SocketAddr>,
    offer: O,
) -> io::Result<(Connection, SocketAddr)>
where
    O: Fn(&Connection) + Clone + Send + 'static,
{
    let mut addresses = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{name} has no address"));
    let mut start_next = true;
    loop {
        if start_next && let Some(address) = addresses.next() {
            let (endpoint, config) = (endpoint.clone(), config.clone());
            let (name, offer) = (name.to_owned(), offer.clone());
            attempts.spawn(async move {
                let connection = attempt(&endpoint, config, &name, address, offer).await?;
                io::Result::Ok((connection, address))
            });
        }
        start_next = true;
        if attempts.is_empty() {
            return Err(last);
        }
        let delay = async {
            if addresses.len() > 0 {
                tokio::time::sleep(ATTEMPT_DELAY).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = attempts.join_next() => match ended {
                // The other attempts end when the set is dropped.
                Some(Ok(Ok(connected))) => return Ok(connected),
                Some(Ok(Err(error))) => last = error,
                Some(Err(error)) => last = io::Error::other(error),
                None => return Err(last),
            },
            () = delay => {}
        }
    }
}

/// Connects to one address.
async fn attempt(
    endpoint: &Endpoint,
    config: ClientConfig,
    name: &str,
    address: SocketAddr,
    offer: impl Fn(&Connection),
) -> io::Result<Connection> {
    let connecting = endpoint.connect_with(config, address, name)?;
    match connecting.into_0rtt().await {
        Ok((connection, accepted)) => {
            offer(&connection);
            // Nothing has been heard from the server yet. Whether it accepts the early data does
            // not matter: otherwise the transport sends it again.
            accepted.await;
            match connection.close_reason() {
                // Then there was a handshake: before its end, servers close without such a code.
                None | Some(CloseReason::Application { remote: true, .. }) => Ok(connection),
                Some(reason) => Err(reason.into()),
            }
        }
        Err(connecting) => Ok(connecting.await?),
    }
}

/// The addresses of a host from the operating system's resolver.
pub(super) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    Ok(tokio::net::lookup_host((host, port)).await?.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 8305 §4
    #[test]
    fn addresses_alternate_between_families() {
        let addresses = ["1.1.1.1:1", "1.1.1.2:1", "1.1.1.3:1", "[::1]:1", "[::2]:1"];
        let addresses = addresses.map(|address| address.parse().unwrap()).to_vec();
        let ordered: Vec<String> = in_turns(addresses)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            ordered,
            ["[::1]:1", "1.1.1.1:1", "[::2]:1", "1.1.1.2:1", "1.1.1.3:1"]
        );
    }
}
