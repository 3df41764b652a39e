//! Two endpoints, any number of connections, with every datagram under the test's control.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use squall_core::{
    ClientConfig, CloseReason, Connection, ConnectionHandle, Endpoint, EndpointConfig, Event,
    Incoming, MemoryTokenStore, Observation, Route, ServerConfig, Stages, Time, TokenStore,
    TransportConfig,
};
use squall_wire::{DatagramBatch, Ecn, Path};

/// What a server does with attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Accept,
    /// A Retry first, then accept.
    Retry,
    /// Leave them in `Host::waiting`.
    Wait,
}

/// One end.
pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: SocketAddr,
    pub(crate) connections: BTreeMap<usize, Box<Connection>>,
    pub(crate) events: Vec<(usize, Event)>,
    pub(crate) observations: Vec<(usize, Observation)>,
    pub(crate) policy: Policy,
    pub(crate) waiting: Vec<Incoming>,
    /// Whether the last attempt came from a validated address.
    pub(crate) validated: Option<bool>,
    /// A client's token store.
    pub(crate) token_store: Arc<dyn TokenStore>,
}

pub(crate) const SERVER: &str = "192.0.2.1:443";
pub(crate) const CLIENT: &str = "192.0.2.2:5000";

impl Host {
    fn new(endpoint: Endpoint, address: &str) -> Self {
        Self {
            endpoint,
            address: address.parse().expect("an address"),
            connections: BTreeMap::new(),
            events: Vec::new(),
            observations: Vec::new(),
            policy: Policy::Accept,
            waiting: Vec::new(),
            validated: None,
            token_store: Arc::new(MemoryTokenStore::default()),
        }
    }

    pub(crate) fn server(
        config: EndpointConfig,
        tls: Arc<rustls::ServerConfig>,
        transport: TransportConfig,
    ) -> Self {
        transport.check().expect("settings are good");
        let transport = Arc::new(transport);
        let server = Some(Arc::new(ServerConfig::new(tls).transport(transport)));
        Self::new(Endpoint::new(config, server, [2; 32]), SERVER)
    }

    pub(crate) fn client() -> Self {
        Self::client_with(EndpointConfig::new([3; 32]))
    }

    pub(crate) fn client_with(config: EndpointConfig) -> Self {
        Self::new(Endpoint::new(config, None, [4; 32]), CLIENT)
    }

    /// Begins a connection to [`SERVER`]; returns its handle.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        tls: Arc<rustls::ClientConfig>,
        transport: TransportConfig,
    ) -> usize {
        let path = Path {
            remote: SERVER.parse().expect("an address"),
            local: None,
        };
        let transport = Arc::new(transport);
        let config = ClientConfig::new(tls)
            .transport(transport)
            .token_store(Arc::clone(&self.token_store));
        let (ConnectionHandle(handle), mut connection) = self
            .endpoint
            .connect(now, config, path, "localhost")
            .expect("the attempt starts");
        connection.observe();
        self.connections.insert(handle, Box::new(connection));
        handle
    }

    /// All datagrams that the connections have to send.
    pub(crate) fn send(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        for connection in self.connections.values_mut() {
            loop {
                let mut buffer = vec![0; 2000];
                let transmit = connection.transmit(now, &mut buffer, 1, &mut Stages::off());
                let Some(transmit) = transmit else { break };
                buffer.truncate(transmit.len);
                sent.push(buffer);
            }
        }
        self.collect(now);
        sent
    }

    /// Takes a datagram; returns the endpoint's own responses.
    pub(crate) fn receive(&mut self, now: Time, from: SocketAddr, datagram: &[u8]) -> Vec<Vec<u8>> {
        let path = Path {
            remote: from,
            local: None,
        };
        let mut bytes = datagram.to_vec();
        let segment_size = bytes.len() as u16;
        let run = self.endpoint.route(now, path, &bytes, segment_size);
        let handle = match run.to {
            Route::Connection(handle) => handle,
            Route::Incoming(incoming) => {
                self.validated = Some(incoming.remote_address_validated());
                match self.policy {
                    Policy::Wait => {
                        self.waiting.push(incoming);
                        return Vec::new();
                    }
                    Policy::Retry if incoming.may_retry() => {
                        let retry = self.endpoint.retry(now, incoming);
                        return vec![retry.expect("a Retry is allowed")];
                    }
                    Policy::Accept | Policy::Retry => {
                        let (handle, mut connection) = match self.endpoint.accept(now, incoming) {
                            Ok(accepted) => accepted,
                            Err(error) => return Vec::from_iter(error.response),
                        };
                        connection.observe();
                        self.connections.insert(handle.0, Box::new(connection));
                        handle
                    }
                }
            }
            Route::Respond(response) => return vec![response],
            Route::Worker(_) | Route::Predecessor | Route::Discard => return Vec::new(),
        };
        let batch = DatagramBatch {
            path,
            ecn: Ecn::NotEct,
            segment_size,
            bytes: &mut bytes,
        };
        if let Some(connection) = self.connections.get_mut(&handle.0) {
            connection.receive(now, batch, &mut Stages::off());
        }
        self.collect(now);
        Vec::new()
    }

    fn collect(&mut self, now: Time) {
        for (handle, connection) in &mut self.connections {
            while let Some(event) = connection.poll_event() {
                self.events.push((*handle, event));
            }
            while let Some(observation) = connection.poll_observation() {
                self.observations.push((*handle, observation));
            }
            while let Some(event) = connection.poll_endpoint_event() {
                if !self.endpoint.apply(ConnectionHandle(*handle), event) {
                    connection.refuse(now);
                }
            }
        }
    }

    pub(crate) fn has(&self, handle: usize, event: &Event) -> bool {
        (self.events.iter()).any(|(h, e)| *h == handle && e == event)
    }

    pub(crate) fn closed(&self, handle: usize) -> Option<&CloseReason> {
        self.events.iter().find_map(|(h, event)| match event {
            Event::Closed(reason) if *h == handle => Some(reason),
            _ => None,
        })
    }

    /// Fires the timers that are due soon; returns the time afterwards.
    fn pass(&mut self, now: Time) {
        for connection in self.connections.values_mut() {
            if connection.next_timeout().is_some_and(|due| due <= now) {
                connection.on_timeout(now);
            }
        }
        self.collect(now);
    }
}

/// A client and a server with a wire between them.
pub(crate) struct Link {
    pub(crate) now: Time,
    pub(crate) client: Host,
    pub(crate) server: Host,
    /// Everything that went over the wire to the server, and to the client.
    pub(crate) to_server: Vec<Vec<u8>>,
    pub(crate) to_client: Vec<Vec<u8>>,
}

impl Link {
    pub(crate) fn new(client: Host, server: Host) -> Self {
        Self {
            now: Time::from_nanos(1_000_000_000),
            client,
            server,
            to_server: Vec::new(),
            to_client: Vec::new(),
        }
    }

    /// Carries datagrams until both ends are silent; those that `lose` selects do not arrive.
    /// Timers of up to 30 ms fire.
    pub(crate) fn run_losing(&mut self, mut lose: impl FnMut(bool, &[u8]) -> bool) {
        let mut back: VecDeque<Vec<u8>> = VecDeque::new();
        for _ in 0..100_000 {
            self.now += Duration::from_micros(50);
            let (now, from) = (self.now, self.client.address);
            let mut busy = false;
            for datagram in self.client.send(now) {
                busy = true;
                if !lose(true, &datagram) {
                    back.extend(self.server.receive(now, from, &datagram));
                }
                self.to_server.push(datagram);
            }
            back.extend(self.server.send(now));
            let from = self.server.address;
            for datagram in back.drain(..) {
                busy = true;
                if !lose(false, &datagram) {
                    let responses = self.client.receive(now, from, &datagram);
                    assert!(
                        responses.is_empty(),
                        "a client endpoint sends no responses of its own"
                    );
                }
                self.to_client.push(datagram);
            }
            if busy {
                continue;
            }
            let hosts = [&self.client, &self.server];
            let due = (hosts.iter().flat_map(|h| h.connections.values()))
                .filter_map(|c| c.next_timeout())
                .min();
            let Some(due) = due.filter(|due| *due - self.now < Duration::from_millis(30)) else {
                return;
            };
            self.now = self.now.max(due);
            self.client.pass(self.now);
            self.server.pass(self.now);
        }
        panic!("the two ends never fall silent");
    }

    /// Drops what the test has recorded: datagrams and events.
    pub(crate) fn forget(&mut self) {
        self.to_client = Vec::new();
        self.to_server = Vec::new();
        self.client.events = Vec::new();
        self.server.events = Vec::new();
    }

    /// The same on a good wire.
    pub(crate) fn run(&mut self) {
        self.run_losing(|_, _| false);
    }

    /// When the next timer of either end fires.
    fn due(&self) -> Option<Time> {
        let hosts = [&self.client, &self.server];
        (hosts.iter().flat_map(|h| h.connections.values()))
            .filter_map(|c| c.next_timeout())
            .min()
    }

    /// Lets the next timer of either end fire.
    pub(crate) fn wait(&mut self) {
        self.now = self.now.max(self.due().expect("a timer is set"));
        self.client.pass(self.now);
        self.server.pass(self.now);
    }

    /// Lets time pass, on a good wire.
    pub(crate) fn rest(&mut self, time: Duration) {
        let end = self.now + time;
        while self.due().is_some_and(|due| due < end) {
            self.wait();
            self.run();
        }
        self.now = end;
    }
}

/// A client's Initial packet with a PING, made by hand: 1200 bytes, authentic.
pub(crate) fn initial(version: u32, dcid: &[u8], token: &[u8]) -> Vec<u8> {
    initial_with(version, dcid, token, 0, &[0x01])
}

/// The same with other frames and another number.
pub(crate) fn initial_with(
    version: u32,
    dcid: &[u8],
    token: &[u8],
    number: u64,
    payload: &[u8],
) -> Vec<u8> {
    initial_from(version, dcid, token, number, payload, |first| first)
}

/// The same with another first byte.
pub(crate) fn initial_from(
    version: u32,
    dcid: &[u8],
    token: &[u8],
    number: u64,
    payload: &[u8],
    first: impl Fn(u8) -> u8,
) -> Vec<u8> {
    use squall_protect::{PacketSpan, TAG_LEN};
    use squall_wire::{ConnectionId, LongType, Writer, header};
    let [dcid, scid] = [dcid, &[9; 8]].map(|id| ConnectionId::new(id).expect("short enough"));
    let keys = squall_protect::initial::keys(version, dcid.as_slice(), true);
    let mut datagram = vec![0; 1200];
    let mut w = Writer::new(&mut datagram);
    let ty = LongType::Initial;
    let length = header::write_long(&mut w, ty, version, &dcid, &scid, token, number, 2);
    let header_len = w.len();
    w.bytes(payload);
    assert!(
        w.len() + TAG_LEN <= 1200 && !w.overflow(),
        "the payload fits the datagram"
    );
    header::patch_length(&mut datagram, length, 1200 - (header_len - 2));
    datagram[0] = first(datagram[0]);
    let mut span = PacketSpan::new(0, 1200, (header_len - 2) as u16);
    (span.header_len, span.packet_number) = (header_len as u16, number);
    keys.local
        .packet
        .seal(&keys.local.header, &mut datagram, &mut [span], &[]);
    datagram
}
