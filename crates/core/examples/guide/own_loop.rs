//! An event loop of one's own: squall-core on `std::net::UdpSocket`, without a runtime.

use std::collections::HashMap;
use std::error::Error;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use squall_core::{
    ClientConfig, Connection, ConnectionHandle, Endpoint, EndpointConfig, Event, Route,
    ServerConfig, Stages, Time,
};
use squall_wire::{DatagramBatch, Direction, Ecn, Path};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (server_tls, client_tls) = tls(made.cert.der(), made.signing_key.serialize_der())?;

    let mut server = Host::new(Some(ServerConfig::new(server_tls)))?;
    let remote = server.socket.local_addr()?;
    std::thread::spawn(move || while server.turn(&mut echo).is_ok() {});

    let mut client = Host::new(None)?;
    let path = Path {
        remote,
        local: None,
    };
    let (now, config) = (client.now(), ClientConfig::new(client_tls));
    let (handle, connection) = client.endpoint.connect(now, config, path, "localhost")?;
    client.connections.insert(handle, connection);
    let mut answer = Vec::new();
    while answer.len() < 5 {
        client.turn(&mut |connection, event| match event {
            Event::Connected => {
                if let Some(id) = connection.open(Direction::Bidirectional) {
                    let _ = connection.write(id, &mut Bytes::from_static(b"hello"));
                    let _ = connection.finish(id);
                }
            }
            Event::Readable(id) => {
                while let Ok(Some(bytes)) = connection.read(*id, usize::MAX) {
                    answer.extend_from_slice(&bytes);
                }
            }
            _ => {}
        })?;
    }
    assert_eq!(answer, b"hello");
    client
        .connections
        .get_mut(&handle)
        .ok_or("gone")?
        .close(now, 0, b"done");
    client.turn(&mut |_, _| {})
}

/// The server's application.
fn echo(connection: &mut Connection, event: &Event) {
    let id = match event {
        Event::StreamOpened(direction) => connection.accept(*direction),
        Event::Readable(id) => Some(*id),
        _ => None,
    };
    let Some(id) = id else { return };
    // More than the send window would have to wait for `Event::Writable`.
    while let Ok(bytes) = connection.read(id, usize::MAX) {
        match bytes {
            Some(mut bytes) => {
                let _ = connection.write(id, &mut bytes);
            }
            None => {
                let _ = connection.finish(id);
                return;
            }
        }
    }
}

/// rustls configurations on the provider that squall wraps.
fn tls(
    certificate: &CertificateDer<'static>,
    key: Vec<u8>,
) -> Result<(rustls::ServerConfig, rustls::ClientConfig)> {
    let versions = [&rustls::version::TLS13];
    let mut server = rustls::ServerConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&versions)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::try_from(key)?)?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone())?;
    let mut client = rustls::ClientConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    server.alpn_protocols = vec![b"echo".to_vec()];
    client.alpn_protocols = vec![b"echo".to_vec()];
    Ok((server, client))
}

/// What the loop owns. The core keeps neither sockets nor clocks nor connections.
struct Host {
    socket: UdpSocket,
    start: Instant,
    endpoint: Endpoint,
    connections: HashMap<ConnectionHandle, Connection>,
}

impl Host {
    fn new(server: Option<ServerConfig>) -> Result<Self> {
        // Must not be predictable: ids, keys and tokens are made from these.
        let config = EndpointConfig::new(rand::random());
        Ok(Self {
            socket: UdpSocket::bind("127.0.0.1:0")?,
            start: Instant::now(),
            endpoint: Endpoint::new(config, server.map(Arc::new), rand::random()),
            connections: HashMap::new(),
        })
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// One turn: timers, datagrams out, a wait, datagrams in, and the application's part.
    fn turn(&mut self, app: &mut impl FnMut(&mut Connection, &Event)) -> Result<()> {
        let now = self.now();
        let mut buffer = vec![0; 65_535];
        let (endpoint, stages) = (&mut self.endpoint, &mut Stages::off());
        for (handle, connection) in &mut self.connections {
            if connection.next_timeout().is_some_and(|due| due <= now) {
                connection.on_timeout(now);
            }
            while let Some(event) = connection.poll_event() {
                app(connection, &event);
            }
            while let Some(out) = connection.transmit(now, &mut buffer, 1, stages) {
                self.socket.send_to(&buffer[..out.len], out.path.remote)?;
            }
            while let Some(event) = connection.poll_endpoint_event() {
                if !endpoint.apply(*handle, event) {
                    connection.refuse(now);
                }
            }
        }
        self.connections.retain(|handle, connection| {
            if connection.is_drained() {
                endpoint.remove(*handle);
            }
            !connection.is_drained()
        });
        let next = self
            .connections
            .values()
            .filter_map(Connection::next_timeout)
            .min();
        let wait = next.map_or(Duration::from_millis(100), |due| due - now);
        // Zero would mean for ever.
        self.socket
            .set_read_timeout(Some(wait.max(Duration::from_micros(1))))?;
        match self.socket.recv_from(&mut buffer) {
            Ok((len, remote)) => self.receive(remote, &mut buffer[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn receive(&mut self, remote: SocketAddr, bytes: &mut [u8]) -> Result<()> {
        let now = self.now();
        let path = Path {
            remote,
            local: None,
        };
        let segment_size = bytes.len() as u16;
        let handle = match self.endpoint.route(now, path, bytes, segment_size).to {
            Route::Connection(handle) => handle,
            Route::Incoming(incoming) => {
                let (handle, connection) = self.endpoint.accept(now, incoming)?;
                self.connections.insert(handle, connection);
                handle
            }
            Route::Respond(answer) => {
                self.socket.send_to(&answer, remote)?;
                return Ok(());
            }
            Route::Worker(_) | Route::Predecessor | Route::Discard => return Ok(()),
        };
        if let Some(connection) = self.connections.get_mut(&handle) {
            let run = DatagramBatch {
                path,
                ecn: Ecn::NotEct,
                segment_size,
                bytes,
            };
            connection.receive(now, run, &mut Stages::off());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_custom_event_loop_runs_an_echo() {
        super::main().unwrap();
    }
}
