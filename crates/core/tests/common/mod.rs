#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
//! A client and a server whose datagrams are handed over at once, on a virtual clock.

pub(crate) mod link;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustls::pki_types::PrivateKeyDer;
use squall_core::{
    ClientConfig, Connection, ConnectionHandle, Endpoint, EndpointConfig, Event, Route,
    ServerConfig, Stages, Time, TransportConfig,
};
use squall_wire::{DatagramBatch, Ecn, Path, Side};

/// Draws numbers below a given one; the same seed gives the same numbers.
pub(crate) fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut rng = StdRng::seed_from_u64(seed);
    move |below| rng.random_range(0..below)
}

/// One end.
struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    events: Vec<Event>,
    address: SocketAddr,
    stages: Stages,
}

/// Both ends.
pub(crate) struct Pair {
    pub(crate) now: Time,
    buffer: Vec<u8>,
    /// The client's first datagram.
    first: Vec<u8>,
    client: End,
    server: End,
}

/// TLS configurations of both sides, with a certificate made in memory.
pub(crate) fn tls() -> (Arc<rustls::ClientConfig>, Arc<rustls::ServerConfig>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let versions = [&rustls::version::TLS13];
    let mut client = rustls::ClientConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut server = rustls::ServerConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    client.alpn_protocols = vec![b"test".to_vec()];
    server.alpn_protocols = vec![b"test".to_vec()];
    (Arc::new(client), Arc::new(server))
}

impl Pair {
    /// A client that has begun to connect.
    pub(crate) fn new() -> Self {
        Self::with(TransportConfig::default())
    }

    /// The same with transport settings.
    pub(crate) fn with(transport: TransportConfig) -> Self {
        let transport = Arc::new(transport);
        let (client_tls, server_tls) = tls();
        let now = Time::from_nanos(1_000_000_000);
        let server_config =
            Arc::new(ServerConfig::new(server_tls).transport(Arc::clone(&transport)));
        let server = End {
            endpoint: Endpoint::new(EndpointConfig::new([1; 32]), Some(server_config), [2; 32]),
            connection: None,
            events: Vec::new(),
            stages: Stages::off(),
            address: "192.0.2.1:443".parse().unwrap(),
        };
        let mut client = End {
            endpoint: Endpoint::new(EndpointConfig::new([3; 32]), None, [4; 32]),
            connection: None,
            events: Vec::new(),
            stages: Stages::off(),
            address: "192.0.2.2:5000".parse().unwrap(),
        };
        let path = Path {
            remote: server.address,
            local: None,
        };
        let config = ClientConfig::new(client_tls).transport(transport);
        client.connection = Some(
            client
                .endpoint
                .connect(now, config, path, "localhost")
                .unwrap(),
        );
        Self {
            now,
            buffer: vec![0; 65_536],
            first: Vec::new(),
            client,
            server,
        }
    }

    fn ends(&mut self, side: Side) -> (&mut End, &mut End) {
        match side {
            Side::Client => (&mut self.client, &mut self.server),
            Side::Server => (&mut self.server, &mut self.client),
        }
    }

    pub(crate) fn connection(&mut self, side: Side) -> &mut Connection {
        &mut self
            .ends(side)
            .0
            .connection
            .as_mut()
            .expect("the connection exists")
            .1
    }

    pub(crate) fn events(&mut self, side: Side) -> Vec<Event> {
        std::mem::take(&mut self.ends(side).0.events)
    }

    /// Sends what one side has; returns whether it had anything.
    pub(crate) fn pump(&mut self, from: Side) -> bool {
        let now = self.now;
        let mut buffer = std::mem::take(&mut self.buffer);
        let first = std::mem::take(&mut self.first);
        let (sender, receiver) = self.ends(from);
        let Some((_, connection)) = &mut sender.connection else {
            (self.buffer, self.first) = (buffer, first);
            return false;
        };
        let Some(transmit) = connection.transmit(now, &mut buffer, 64, &mut sender.stages) else {
            (self.buffer, self.first) = (buffer, first);
            return false;
        };
        let path = Path {
            remote: sender.address,
            local: None,
        };
        let keep = from == Side::Client && first.is_empty();
        let kept = keep.then(|| buffer[..transmit.len].to_vec());
        receiver.receive(
            now,
            path,
            &mut buffer[..transmit.len],
            transmit.segment_size,
        );
        for end in [sender, receiver] {
            end.take_events();
        }
        self.buffer = buffer;
        self.first = kept.unwrap_or(first);
        true
    }

    /// The next datagram of one side, which is not delivered automatically.
    pub(crate) fn take_datagram(&mut self, from: Side) -> Option<Vec<u8>> {
        let (now, mut buffer) = (self.now, vec![0; 2000]);
        let (_, connection) = self.ends(from).0.connection.as_mut()?;
        let transmit = connection.transmit(now, &mut buffer, 1, &mut Stages::off())?;
        buffer.truncate(transmit.len);
        Some(buffer)
    }

    /// A datagram of one side with a PING, which is not delivered automatically.
    pub(crate) fn take_ping(&mut self, from: Side) -> Vec<u8> {
        self.connection(from).ping();
        self.take_datagram(from).expect("a PING to send")
    }

    /// Hands a datagram to one side.
    pub(crate) fn deliver(&mut self, to: Side, datagram: &[u8]) {
        let now = self.now;
        let (receiver, sender) = self.ends(to);
        let path = Path {
            remote: sender.address,
            local: None,
        };
        let len = datagram.len() as u16;
        receiver.receive(now, path, &mut datagram.to_vec(), len);
        receiver.take_events();
    }

    /// Collects the events of one side, sent or not.
    pub(crate) fn collect(&mut self, side: Side) -> Vec<Event> {
        self.ends(side).0.take_events();
        self.events(side)
    }

    /// Hands the client's first datagram to the server again; returns how many connections the
    /// server then has.
    pub(crate) fn replay_first(&mut self) -> usize {
        let path = Path {
            remote: self.client.address,
            local: None,
        };
        let mut bytes = self.first.clone();
        let len = bytes.len() as u16;
        self.server.receive(self.now, path, &mut bytes, len);
        self.server.endpoint.connections()
    }

    /// Hands the server the client's first datagram followed by `more`, as one run.
    pub(crate) fn receive_first_with(&mut self, more: impl Fn(&[u8]) -> Vec<u8>) {
        let path = Path {
            remote: self.client.address,
            local: None,
        };
        let (_, client) = self
            .client
            .connection
            .as_mut()
            .expect("the client is connecting");
        let stages = &mut Stages::off();
        let transmit = client.transmit(self.now, &mut self.buffer, 1, stages);
        let len = transmit.expect("a ClientHello").len;
        let mut run = self.buffer[..len].to_vec();
        run.extend(more(&run));
        self.server.receive(self.now, path, &mut run, len as u16);
    }

    /// Hands datagrams over until both sides are silent, time passing by a little.
    pub(crate) fn run(&mut self) {
        for _ in 0..100_000 {
            self.now += Duration::from_micros(20);
            let busy = self.pump(Side::Client) | self.pump(Side::Server);
            if busy {
                continue;
            }
            let due = [&self.client, &self.server]
                .into_iter()
                .filter_map(|e| e.connection.as_ref().and_then(|(_, c)| c.next_timeout()))
                .min();
            // Short timers only: acknowledgements held back, pacing.
            let Some(due) = due.filter(|due| *due - self.now < Duration::from_millis(30)) else {
                return;
            };
            self.now = self.now.max(due);
            for end in [&mut self.client, &mut self.server] {
                if let Some((_, connection)) = &mut end.connection {
                    connection.on_timeout(self.now);
                }
            }
        }
        panic!("the two ends never fall silent");
    }
}

impl End {
    fn receive(&mut self, now: Time, path: Path, mut bytes: &mut [u8], segment_size: u16) {
        while !bytes.is_empty() {
            let run = self.endpoint.route(now, path, bytes, segment_size);
            let (datagrams, rest) = bytes.split_at_mut(run.len);
            bytes = rest;
            match run.to {
                Route::Incoming(incoming) => {
                    self.connection = Some(self.endpoint.accept(now, incoming).unwrap());
                }
                Route::Connection(_) => {}
                Route::Respond(_) | Route::Worker(_) | Route::Predecessor | Route::Discard => {
                    continue;
                }
            }
            let (_, connection) = self.connection.as_mut().expect("routed to a connection");
            let batch = DatagramBatch {
                path,
                ecn: Ecn::NotEct,
                segment_size,
                bytes: datagrams,
            };
            connection.receive(now, batch, &mut self.stages);
        }
    }

    fn take_events(&mut self) {
        let Some((handle, connection)) = &mut self.connection else {
            return;
        };
        while let Some(event) = connection.poll_event() {
            self.events.push(event);
        }
        while let Some(event) = connection.poll_endpoint_event() {
            self.endpoint.apply(*handle, event);
        }
    }
}
