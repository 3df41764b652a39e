//! Two endpoints without sockets: what one transmits goes straight into the other's `receive`.
//!
//! ```text
//!   client.transmit ──► bundles ──► server.route, server.receive
//!   client.receive, client.route ◄── bundles ◄── server.transmit
//! ```
//! There is no clock either: time is a number that the caller advances. `squall bench core`
//! measures such a pair by CPU time, and `cargo xtask cost` by instructions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use squall_core::{
    ClientConfig, Connection, ConnectionHandle, Endpoint, EndpointConfig, Route, ServerConfig,
    Stages, Time,
};
use squall_wire::{DatagramBatch, Ecn, Path};

use crate::certificate::NAME;
use crate::error::{Failure, Result, context};

/// Bundles that a worker takes in one turn.
pub const BUNDLES: usize = 4;
/// Bytes of a bundle's buffer.
const BUNDLE: usize = 65_507;
/// Maximum number of datagrams in a bundle.
const SEGMENTS: usize = 64;
/// How far time moves when neither end has anything to send.
const PAUSE: Duration = Duration::from_millis(30);
/// A connection is at rest after this many pauses in which nothing is sent.
const QUIET: usize = 3;

/// The datagrams of one transmission.
pub struct Bundle {
    bytes: Vec<u8>,
    segment: u16,
    len: usize,
}

impl Bundle {
    fn new() -> Self {
        Self {
            bytes: vec![0; BUNDLE],
            segment: 0,
            len: 0,
        }
    }
}

/// The bundles of one turn, reused for all turns.
pub type Bundles = [Bundle; BUNDLES];

/// Empty bundles.
pub fn bundles() -> Bundles {
    std::array::from_fn(|_| Bundle::new())
}

/// One endpoint and its connections.
pub struct End {
    endpoint: Endpoint,
    /// By handle.
    connections: Vec<Option<Connection>>,
    /// Handle of the connection accepted last.
    accepted: Option<ConnectionHandle>,
    /// Its address on the imaginary network.
    pub address: SocketAddr,
    /// Where its time goes, if counted.
    pub stages: Stages,
}

impl End {
    /// An endpoint whose randomness derives from `seed`. It is a server if given a configuration.
    pub fn new(server: Option<Arc<ServerConfig>>, seed: u8) -> Self {
        // Nothing else reaches this endpoint, so nothing has to be unpredictable, and no number of
        // handshakes calls for a defence.
        let config = EndpointConfig::new([7; 32])
            .retry_from(usize::MAX)
            .max_handshakes(usize::MAX)
            .max_incoming(usize::MAX)
            .max_connections_per_prefix(None);
        Self {
            endpoint: Endpoint::new(config, server, [seed; 32]),
            connections: Vec::new(),
            accepted: None,
            address: SocketAddr::from(([192, 0, 2, seed], 443)),
            stages: Stages::off(),
        }
    }

    /// A connection.
    ///
    /// # Errors
    /// There is no connection with this handle.
    pub fn connection(&mut self, handle: ConnectionHandle) -> Result<&mut Connection> {
        let slot = self.connections.get_mut(handle.0);
        slot.and_then(Option::as_mut)
            .ok_or_else(|| Failure::new("there is no connection"))
    }

    fn keep(&mut self, handle: ConnectionHandle, connection: Connection) {
        if self.connections.len() <= handle.0 {
            self.connections.resize_with(handle.0 + 1, || None);
        }
        self.connections[handle.0] = Some(connection);
    }

    fn connect(
        &mut self,
        now: Time,
        config: ClientConfig,
        to: SocketAddr,
    ) -> Result<ConnectionHandle> {
        let begun = self.endpoint.connect(now, config, path(to), NAME);
        let (handle, connection) = begun.map_err(context("the handshake"))?;
        self.keep(handle, connection);
        Ok(handle)
    }

    /// Routes and receives a bundle, as a worker does.
    ///
    /// # Errors
    /// A client's first packet is refused.
    pub fn receive(&mut self, now: Time, from: SocketAddr, bundle: &mut Bundle) -> Result<()> {
        let path = path(from);
        let mut rest = &mut bundle.bytes[..bundle.len];
        while !rest.is_empty() {
            let run = self.endpoint.route(now, path, rest, bundle.segment);
            let (bytes, behind) = rest.split_at_mut(run.len);
            rest = behind;
            let handle = match run.to {
                Route::Connection(handle) => handle,
                Route::Incoming(incoming) => {
                    let made = self.endpoint.accept(now, incoming);
                    let (handle, connection) = made.map_err(context("the handshake"))?;
                    self.keep(handle, connection);
                    self.accepted = Some(handle);
                    handle
                }
                Route::Respond(_) | Route::Worker(_) | Route::Predecessor | Route::Discard => {
                    continue;
                }
            };
            if let Some(Some(connection)) = self.connections.get_mut(handle.0) {
                let batch = DatagramBatch {
                    path,
                    ecn: Ecn::NotEct,
                    segment_size: bundle.segment,
                    bytes,
                };
                connection.receive(now, batch, &mut self.stages);
            }
        }
        Ok(())
    }

    /// Fills bundles with what a connection has to send, and returns how many it filled.
    pub fn transmit(
        &mut self,
        now: Time,
        handle: ConnectionHandle,
        bundles: &mut Bundles,
    ) -> usize {
        let Some(Some(connection)) = self.connections.get_mut(handle.0) else {
            return 0;
        };
        let mut filled = 0;
        for bundle in bundles {
            let sent = connection.transmit(now, &mut bundle.bytes, SEGMENTS, &mut self.stages);
            let Some(sent) = sent else { break };
            (bundle.segment, bundle.len) = (sent.segment_size, sent.len);
            filled += 1;
        }
        while connection.poll_event().is_some() {}
        while let Some(event) = connection.poll_endpoint_event() {
            self.endpoint.apply(handle, event);
        }
        filled
    }

    /// Fires a connection's timers that are due.
    pub fn on_timeout(&mut self, now: Time, handle: ConnectionHandle) {
        if let Some(Some(connection)) = self.connections.get_mut(handle.0)
            && connection.next_timeout().is_some_and(|due| due <= now)
        {
            connection.on_timeout(now);
        }
    }

    fn remove(&mut self, handle: ConnectionHandle) {
        self.endpoint.remove(handle);
        if let Some(slot) = self.connections.get_mut(handle.0) {
            *slot = None;
        }
    }
}

fn path(remote: SocketAddr) -> Path {
    Path {
        remote,
        local: None,
    }
}

/// A connection as its two ends know it.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// At the server.
    pub server: ConnectionHandle,
    /// At the client.
    pub client: ConnectionHandle,
}

/// A server, a client, and the time.
pub struct Pair {
    /// Now.
    pub now: Time,
    /// The server.
    pub server: End,
    /// The client.
    pub client: End,
    bundles: Bundles,
}

impl Pair {
    /// Two ends without a connection.
    pub fn new(server: ServerConfig) -> Self {
        Self {
            now: Time::from_nanos(1_000_000_000),
            server: End::new(Some(Arc::new(server)), 1),
            client: End::new(None, 2),
            bundles: bundles(),
        }
    }

    /// Starts this many connections together and serves them in turn until all are at rest:
    /// handshakes confirmed, tickets delivered, and the path MTU known.
    ///
    /// # Errors
    /// A handshake failed.
    pub fn connect(&mut self, config: &ClientConfig, count: usize) -> Result<Vec<Link>> {
        let mut links = Vec::with_capacity(count);
        for _ in 0..count {
            let client = self
                .client
                .connect(self.now, config.clone(), self.server.address)?;
            // Only the first flight, to learn which connection the server creates for it.
            let filled = self.client.transmit(self.now, client, &mut self.bundles);
            for bundle in &mut self.bundles[..filled] {
                self.server.receive(self.now, self.client.address, bundle)?;
            }
            let server = self.server.accepted.take();
            let server = server.ok_or_else(|| Failure::new("the server accepted nothing"))?;
            links.push(Link { server, client });
        }
        self.settle(&links)?;
        for link in &links {
            let ends = [
                self.server.connection(link.server)?,
                self.client.connection(link.client)?,
            ];
            if ends
                .iter()
                .any(|one| one.is_handshaking() || one.is_closed())
            {
                return Err(Failure::new("a handshake did not come to its end"));
            }
        }
        Ok(links)
    }

    /// Hands over what both ends of these connections send, in turn, until they are at rest.
    ///
    /// # Errors
    /// As [`End::receive`].
    pub fn settle(&mut self, links: &[Link]) -> Result<()> {
        let mut quiet = 0;
        while quiet < QUIET {
            let mut busy = 0;
            for &link in links {
                busy += self.to_server(link)? + self.to_client(link)?;
            }
            if busy == 0 {
                quiet += 1;
                self.now += PAUSE;
                for &link in links {
                    self.server.on_timeout(self.now, link.server);
                    self.client.on_timeout(self.now, link.client);
                }
            } else {
                quiet = 0;
            }
        }
        Ok(())
    }

    /// Hands over what the client has to send on a connection; returns the number of bundles.
    ///
    /// # Errors
    /// As [`End::receive`].
    pub fn to_server(&mut self, link: Link) -> Result<usize> {
        let filled = self
            .client
            .transmit(self.now, link.client, &mut self.bundles);
        for bundle in &mut self.bundles[..filled] {
            self.server.receive(self.now, self.client.address, bundle)?;
        }
        Ok(filled)
    }

    /// Hands over what the server has to send on a connection; returns the number of bundles.
    ///
    /// # Errors
    /// As [`End::receive`].
    pub fn to_client(&mut self, link: Link) -> Result<usize> {
        let filled = self
            .server
            .transmit(self.now, link.server, &mut self.bundles);
        for bundle in &mut self.bundles[..filled] {
            self.client.receive(self.now, self.server.address, bundle)?;
        }
        Ok(filled)
    }

    /// Advances the time, and fires the timers of a connection that are due by then.
    pub fn pass(&mut self, time: Duration, link: Link) {
        self.now += time;
        self.server.on_timeout(self.now, link.server);
        self.client.on_timeout(self.now, link.client);
    }

    /// Closes connections at the client, tells the server, and removes them from both ends.
    ///
    /// # Errors
    /// As [`End::receive`].
    pub fn close(&mut self, links: &[Link]) -> Result<()> {
        for &link in links {
            self.client.connection(link.client)?.close(self.now, 0, b"");
            self.to_server(link)?;
            self.client.remove(link.client);
            self.server.remove(link.server);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use squall_core::TransportConfig;

    use super::*;
    use crate::certificate::Certificate;

    #[test]
    fn connections_coexist_and_leave_nothing_behind() {
        let certificate = Certificate::generate().expect("a certificate");
        let transport = Arc::new(TransportConfig::default());
        let mut server = certificate.server(squall::provider()).expect("TLS");
        let mut client = certificate.client(squall::provider()).expect("TLS");
        server.alpn_protocols = vec![b"test".to_vec()];
        client.alpn_protocols = vec![b"test".to_vec()];
        let server = ServerConfig::new(server).transport(Arc::clone(&transport));
        let client = ClientConfig::new(client).transport(transport);
        let mut pair = Pair::new(server);
        let links = pair.connect(&client, 3).expect("handshakes");
        for (at, link) in links.iter().enumerate() {
            assert_eq!((link.server.0, link.client.0), (at, at));
            let datagram = [at as u8; 100];
            let end = pair
                .client
                .connection(link.client)
                .expect("the connection is established");
            end.send_datagram(datagram.to_vec().into()).expect("room");
        }
        pair.settle(&links).expect("everything is delivered");
        for (at, link) in links.iter().enumerate() {
            let end = pair
                .server
                .connection(link.server)
                .expect("the connection is established");
            let datagram = end.read_datagram().expect("the datagram has arrived");
            assert_eq!(datagram, [at as u8; 100][..]);
            assert_eq!(end.stats().packets_lost, 0);
        }
        pair.close(&links).expect("closed");
        for end in [&pair.server, &pair.client] {
            assert_eq!(end.endpoint.connections(), 0);
        }
        assert!(pair.server.connection(links[0].server).is_err());
    }
}
