//! Two endpoints with their connections on the network, driven by the virtual clock as an owner
//! drives them.
//!
//! ```text
//!  step: what arrived ─▶ route ─▶ receive      what is due ─▶ on_timeout
//!                                     └────────────┬────────────┘
//!                      events ◀─ pump: transmit until nothing is left ─▶ network
//! ```

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use squall_core::{
    ClientConfig, Connection, ConnectionHandle, ConnectionIdGenerator, Endpoint, EndpointConfig,
    Event, MigrateError, Move, Route, ServerConfig, Stages, Stats, Time, TokenStore,
    TransportConfig,
};
use squall_wire::{DatagramBatch, Ecn, Path, Side, Transmit};

use crate::certificate::{Configs, SERVER_NAME, tls};
use crate::failure::Failure;
use crate::guard::Guard;
use crate::intruder::{Intruder, Intrusion};
use crate::network::{Delivery, Faults, Network};
use crate::rng::Rng;

/// Bytes of the buffer that connections write bundles into.
const BUFFER: usize = 65_536;
/// Bundles that one call may yield before it counts as endless.
const MAX_BUNDLES: usize = 10_000;
/// Steps at one point in time after which time counts as standing still.
const MAX_STEPS_AT_ONCE: u32 = 1_000;
/// The time between two turns of a connection that has more to send than it may at a time.
const TURN: Duration = Duration::from_micros(100);
/// When runs begin: not at zero, so that arithmetic that goes below the start is noticed.
const START: Time = Time::from_nanos(1_000_000_000);

/// What a run consists of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The seed.
    pub seed: u64,
    /// What the network does to datagrams, by the [`Side`] that sends them.
    pub faults: [Faults; 2],
    /// Settings of the two ends, by [`Side`].
    pub transport: [TransportConfig; 2],
    /// Maximum number of datagrams in a bundle; 1 for a host without segmentation offload.
    pub max_segments: usize,
    /// Datagrams that neither end sent.
    pub intrusion: Intrusion,
    /// TLS configurations of the client and the server.
    pub tls: Configs,
    /// Where the client keeps tokens of NEW_TOKEN; by default, in a store of its own.
    pub token_store: Option<Arc<dyn TokenStore>>,
    /// A folder for the qlogs of both ends, if wanted.
    pub qlog: Option<PathBuf>,
    /// How each [`Side`] generates connection ids.
    pub ids: [ConnectionIdGenerator; 2],
    /// Timers expire only at multiples of this, by [`Side`]; zero: when they are due.
    pub timer_resolution: [Duration; 2],
    /// The most bundles that a connection sends at a time, by [`Side`]; the others wait for its
    /// next turn.
    pub bundles_a_turn: [usize; 2],
    /// Changes the settings of one side's endpoint.
    pub tune: fn(Side, &mut EndpointConfig),
}

impl Setup {
    /// Usual settings on a good network.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            faults: Default::default(),
            transport: Default::default(),
            max_segments: 64,
            intrusion: Intrusion::default(),
            tls: tls(),
            token_store: None,
            qlog: None,
            ids: Default::default(),
            timer_resolution: Default::default(),
            bundles_a_turn: [usize::MAX; 2],
            tune: |_, _| {},
        }
    }
}

/// A connection that an endpoint has.
struct Member {
    handle: ConnectionHandle,
    connection: Connection,
    guard: Guard,
    events: VecDeque<Event>,
    /// Whether its handshake has been completed.
    connected: bool,
    /// Whether the endpoint has forgotten it.
    removed: bool,
}

/// One end.
struct Host {
    side: Side,
    endpoint: Endpoint,
    /// The first is the subject of the run. A server may have more: an Initial replayed after the
    /// handshake opens a connection that goes nowhere, and so does one of an attempt that the
    /// client has given up for another version.
    members: Vec<Member>,
    /// Whether it neither receives nor sends anything.
    vanished: bool,
    /// Whether it refuses connections.
    refuses: bool,
    /// Until then it does nothing, as a process that the system has suspended.
    suspended: Time,
    /// Its timers expire at multiples of this, unless it is zero.
    timer_resolution: Duration,
    /// The most bundles that a connection sends in a turn, and when the next turn is if one has
    /// more.
    bundles_a_turn: usize,
    next_turn: Option<Time>,
    /// Where the log of its first connection goes.
    qlog: Option<PathBuf>,
    transport: Arc<TransportConfig>,
}

/// Two ends and the network between them.
pub struct Pair {
    seed: u64,
    now: Time,
    network: Network,
    intruder: Intruder,
    hosts: [Host; 2],
    max_segments: usize,
    buffer: Vec<u8>,
    /// Bytes of the connection ids that each side issues.
    id_lengths: [usize; 2],
    /// What each side received last, unchanged.
    latest: [Option<Delivery>; 2],
    /// Datagrams that connections have sent.
    sent: u64,
    started: bool,
    steps: u64,
    steps_now: u32,
}

impl Pair {
    /// A client that has begun to connect, and a server.
    ///
    /// # Panics
    /// If the settings are refused.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let Setup {
            seed,
            faults,
            transport,
            max_segments,
            intrusion,
            tls: (client_tls, server_tls),
            token_store,
            tune,
            qlog,
            ids,
            timer_resolution,
            bundles_a_turn,
        } = setup;
        let [client_transport, server_transport] = transport.map(Arc::new);
        let mut rng = Rng::new(seed ^ 0x0065_6e64_706f_696e);
        let mut secret = || {
            let mut bytes = [0; 32];
            rng.fill(&mut bytes);
            bytes
        };
        let config = EndpointConfig::new(secret());
        let id_lengths = ids.each_ref().map(ConnectionIdGenerator::len);
        let server = ServerConfig::new(server_tls).transport(Arc::clone(&server_transport));
        let hosts = [
            (Side::Client, None, client_transport),
            (Side::Server, Some(Arc::new(server)), server_transport),
        ]
        .map(|(side, server, transport)| {
            let ids = ids[side as usize].clone();
            let mut config = config.clone().cid_generator(ids);
            tune(side, &mut config);
            Host {
                side,
                endpoint: Endpoint::new(config, server, secret()),
                members: Vec::new(),
                vanished: false,
                refuses: false,
                suspended: Time::ZERO,
                timer_resolution: timer_resolution[side as usize],
                bundles_a_turn: bundles_a_turn[side as usize],
                next_turn: None,
                qlog: qlog
                    .as_ref()
                    .map(|folder| folder.join(format!("{seed}-{side:?}.sqlog").to_lowercase())),
                transport,
            }
        });
        let mut pair = Self {
            seed,
            now: START,
            network: Network::new(seed, faults),
            intruder: Intruder::new(seed, intrusion),
            hosts,
            max_segments,
            buffer: vec![0; BUFFER],
            id_lengths,
            latest: [None, None],
            sent: 0,
            started: false,
            steps: 0,
            steps_now: 0,
        };
        let path = pair.network.path_from(Side::Client);
        let client = &mut pair.hosts[Side::Client as usize];
        let mut config = ClientConfig::new(client_tls).transport(Arc::clone(&client.transport));
        if let Some(store) = token_store {
            config = config.token_store(store);
        }
        let (handle, connection) = client
            .endpoint
            .connect(START, config, path, SERVER_NAME)
            .expect("settings and name are good");
        client.adopt(handle, connection, path.remote, START);
        pair
    }

    /// The virtual time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// When the run began.
    #[must_use]
    pub const fn start() -> Time {
        START
    }

    /// Points in time at which something happened.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// The network, to change what it does.
    pub const fn network(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Datagrams that neither end sent.
    #[must_use]
    pub const fn intrusions(&self) -> u64 {
        self.intruder.made
    }

    /// The connection of one side; the server has none before the client's first Initial.
    pub fn connection(&mut self, side: Side) -> Option<&mut Connection> {
        let member = self.hosts[side as usize].members.first_mut()?;
        Some(&mut member.connection)
    }

    /// Whether one side has a connection; the server has none before the client's first Initial.
    #[must_use]
    pub fn has_connection(&self, side: Side) -> bool {
        !self.hosts[side as usize].members.is_empty()
    }

    /// The figures of one side's connection; zero before there is one.
    #[must_use]
    pub fn stats(&self, side: Side) -> Stats {
        self.hosts[side as usize]
            .members
            .first()
            .map_or_else(Stats::default, |m| m.connection.stats())
    }

    /// Connections that the endpoint of one side still routes to.
    #[must_use]
    pub fn live(&self, side: Side) -> usize {
        self.hosts[side as usize].endpoint.connections()
    }

    /// Retry packets that the endpoint of one side has sent.
    #[must_use]
    pub fn retries(&self, side: Side) -> u64 {
        self.hosts[side as usize].endpoint.counts().retries
    }

    /// Tokens of NEW_TOKEN that the endpoint of one side has accepted.
    #[must_use]
    pub fn tokens_spent(&self, side: Side) -> u64 {
        self.hosts[side as usize].endpoint.counts().tokens_spent
    }

    /// Stateless resets that the endpoint of one side has sent.
    #[must_use]
    pub fn stateless_resets(&self, side: Side) -> u64 {
        self.hosts[side as usize].endpoint.counts().stateless_resets
    }

    /// The next event of one side's connection.
    pub fn poll_event(&mut self, side: Side) -> Option<Event> {
        let member = self.hosts[side as usize].members.first_mut()?;
        member.events.pop_front()
    }

    /// From now on, one side neither receives nor sends anything.
    pub const fn vanish(&mut self, side: Side) {
        let host = &mut self.hosts[side as usize];
        host.vanished = true;
        host.next_turn = None;
    }

    /// From now on, the server refuses connections.
    pub const fn refuse_connections(&mut self) {
        self.hosts[Side::Server as usize].refuses = true;
    }

    /// For this long from now, one side does nothing. What arrives meanwhile waits in its socket.
    pub fn suspend(&mut self, side: Side, time: Duration) {
        self.hosts[side as usize].suspended = self.now + time;
    }

    /// Whether one side does nothing for the time being.
    #[must_use]
    pub fn is_suspended(&self, side: Side) -> bool {
        self.hosts[side as usize].suspended > self.now
    }

    /// One side loses all state of its connections, like a restarted process.
    pub fn forget(&mut self, side: Side) {
        let Host {
            endpoint, members, ..
        } = &mut self.hosts[side as usize];
        for member in members.iter_mut().filter(|m| !m.removed) {
            endpoint.remove(member.handle);
            member.removed = true;
        }
    }

    /// Delivers to `to` a datagram that neither end sent.
    ///
    /// # Errors
    /// A guard has found a violation.
    pub fn inject(&mut self, to: Side, source: SocketAddr, bytes: Vec<u8>) -> Result<(), Failure> {
        let segment_size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let path = Path {
            remote: source,
            local: self.network.path_from(to).local,
        };
        let delivery = Delivery {
            path,
            destination: self.network.address(to),
            ecn: Ecn::NotEct,
            segment_size,
            bytes,
        };
        self.receive(to, delivery);
        self.pump(to)
    }

    /// Moves the client to another of its interfaces.
    ///
    /// # Errors
    /// The connection refuses, or a guard has found a violation.
    pub fn migrate(&mut self, local: IpAddr, how: Move) -> Result<(), Failure> {
        let path = Path {
            remote: self.hosts[Side::Client as usize]
                .members
                .first()
                .map_or(self.network.address(Side::Server), |m| {
                    m.connection.path().remote
                }),
            local: Some(local),
        };
        let now = self.now;
        let result = self
            .connection(Side::Client)
            .map_or(Err(MigrateError::Closed), |c| c.migrate(now, path, how));
        result.map_err(|refused| self.failure(refused.to_string()))?;
        self.pump(Side::Client)
    }

    /// Makes one side send a PING.
    ///
    /// # Errors
    /// A guard has found a violation.
    pub fn ping(&mut self, side: Side) -> Result<(), Failure> {
        if let Some(connection) = self.connection(side) {
            connection.ping();
        }
        self.pump(side)
    }

    /// Delivers the last bundle that arrived at `to` again.
    ///
    /// # Errors
    /// A guard has found a violation.
    pub fn replay(&mut self, to: Side) -> Result<(), Failure> {
        if let Some(delivery) = self.latest[to as usize].clone() {
            self.receive(to, delivery);
        }
        self.pump(to)
    }

    /// A failure of this run, now.
    #[must_use]
    pub fn failure(&self, what: impl Into<String>) -> Failure {
        Failure {
            seed: self.seed,
            at: Time::from_nanos((self.now - START).as_nanos() as u64),
            what: what.into(),
        }
    }

    /// Lets time pass until the next thing happens, at the latest until `limit`; returns whether
    /// something did.
    ///
    /// # Errors
    /// A guard has found a violation, or time stands still.
    pub fn step(&mut self, limit: Time) -> Result<bool, Failure> {
        if !self.started {
            self.started = true;
            self.pump(Side::Client)?;
        }
        let next = self.next_happening();
        if next.is_none_or(|time| time > limit) {
            self.now = self.now.max(limit);
            self.steps_now = 0;
            return Ok(false);
        }
        let next = next.unwrap_or(limit).max(self.now);
        self.steps_now = if next == self.now {
            self.steps_now + 1
        } else {
            0
        };
        if self.steps_now > MAX_STEPS_AT_ONCE {
            return Err(self.failure("time stands still: something is always due"));
        }
        self.now = next;
        self.steps += 1;
        for side in [Side::Client, Side::Server] {
            if self.is_suspended(side) {
                continue;
            }
            while let Some(delivery) = self.network.deliver(self.now, side) {
                // What was in flight to an address that the host has left is lost.
                if self.network.local(side, delivery.destination).is_none() {
                    continue;
                }
                self.latest[side as usize] = Some(delivery.clone());
                for member in &mut self.hosts[side.peer() as usize].members {
                    member.guard.on_reached(delivery.destination);
                }
                let forged = self.intruder.follow(side, &delivery, self.sent);
                self.receive(side, delivery);
                for (source, bytes) in forged {
                    self.inject(side, source, bytes)?;
                }
            }
            let host = &mut self.hosts[side as usize];
            if !host.vanished {
                host.time_out(self.now);
            }
            self.pump(side)?;
        }
        Ok(true)
    }

    fn next_happening(&self) -> Option<Time> {
        let next = self.hosts.iter().filter_map(|host| {
            if self.is_suspended(host.side) {
                return Some(host.suspended);
            }
            let members = host.members.iter().filter(|m| !m.removed && !host.vanished);
            let timeouts = members
                .filter_map(|m| m.connection.next_timeout())
                .map(|due| host.timer_expiry(due).max(self.now));
            let others = self.network.next_arrival(host.side);
            timeouts.chain(others).chain(host.next_turn).min()
        });
        next.min()
    }

    fn receive(&mut self, to: Side, delivery: Delivery) {
        let host = &mut self.hosts[to as usize];
        if host.vanished {
            return;
        }
        let responses = host.receive(self.now, delivery);
        for (path, bytes) in responses {
            let transmit = Transmit {
                path,
                ecn: Ecn::NotEct,
                segment_size: u16::try_from(bytes.len()).unwrap_or(u16::MAX),
                len: bytes.len(),
            };
            self.network.send(self.now, to, &transmit, &bytes);
        }
    }

    /// Lets one side send what it has, and takes its events. Call it after acting on that side.
    ///
    /// # Errors
    /// A guard has found a violation.
    pub fn pump(&mut self, side: Side) -> Result<(), Failure> {
        let suspended = self.is_suspended(side);
        let host = &mut self.hosts[side as usize];
        if host.vanished || suspended {
            return Ok(());
        }
        let id_length = self.id_lengths[side.peer() as usize];
        let mut violation = None;
        // An early turn does no harm.
        host.next_turn = None;
        for member in &mut host.members {
            if member.removed {
                continue;
            }
            let mut bundles = 0;
            while let Some(transmit) = member.connection.transmit(
                self.now,
                &mut self.buffer,
                self.max_segments,
                &mut Stages::off(),
            ) {
                let bytes = &self.buffer[..transmit.len];
                let system_source = self.network.path_from(side).local;
                member.guard.set_system_source(system_source);
                let checked = member.guard.on_sent(&transmit, bytes, id_length);
                bundles += 1;
                if bundles > MAX_BUNDLES {
                    violation = Some("transmit never ends".to_owned());
                    break;
                }
                violation = violation.or(checked.err());
                self.sent += transmit.count() as u64;
                self.network.send(self.now, side, &transmit, bytes);
                if let Some(source) = self.network.refused_source(side, &transmit.path) {
                    member.connection.on_source_lost(self.now, source);
                }
                if bundles >= host.bundles_a_turn {
                    host.next_turn = Some(self.now + TURN);
                    break;
                }
            }
            while let Some(event) = member.connection.poll_event() {
                member.connected |= event == Event::Connected;
                member.events.push_back(event);
            }
            while let Some(event) = member.connection.poll_endpoint_event() {
                host.endpoint.apply(member.handle, event);
            }
            if member.connection.is_drained() {
                host.endpoint.remove(member.handle);
                member.removed = true;
            }
        }
        host.put_the_connected_first();
        match violation {
            None => Ok(()),
            Some(what) => Err(self.failure(format!("{side:?}: {what}"))),
        }
    }
}

impl Host {
    fn adopt(
        &mut self,
        handle: ConnectionHandle,
        mut connection: Connection,
        peer: SocketAddr,
        now: Time,
    ) -> usize {
        if let Some(log) = self.qlog.take() {
            let file = std::fs::File::create(&log);
            let file = file.unwrap_or_else(|error| panic!("{}: {error}", log.display()));
            connection.set_qlog(now, Box::new(std::io::BufWriter::new(file)));
        }
        self.members.push(Member {
            handle,
            connection,
            guard: Guard::new(self.side, self.transport.max_udp_payload, peer),
            events: VecDeque::new(),
            connected: false,
            removed: false,
        });
        self.members.len() - 1
    }

    /// Makes the connection that completes the handshake, if there is one, the subject of the run.
    /// One that its application has closed remains the subject.
    fn put_the_connected_first(&mut self) {
        let replaceable = |member: &Member| !member.connected && !member.connection.is_closed();
        if self.members.first().is_some_and(replaceable)
            && let Some(connected) = self.members.iter().position(|member| member.connected)
        {
            self.members.swap(0, connected);
        }
    }

    /// When a timer expires that is due at this time.
    fn timer_expiry(&self, due: Time) -> Time {
        let resolution = self.timer_resolution.as_nanos() as u64;
        match resolution {
            0 => due,
            _ => Time::from_nanos(due.as_nanos().next_multiple_of(resolution)),
        }
    }

    fn time_out(&mut self, now: Time) {
        let expired = |due: &Time| self.timer_expiry(*due) <= now;
        let members = self.members.iter().enumerate().filter(|(_, m)| {
            !m.removed && m.connection.next_timeout().as_ref().is_some_and(expired)
        });
        for at in members.map(|(at, _)| at).collect::<Vec<_>>() {
            self.members[at].connection.on_timeout(now);
        }
    }

    /// Routes a bundle; returns the endpoint's own responses.
    fn receive(&mut self, now: Time, delivery: Delivery) -> Vec<(Path, Vec<u8>)> {
        let Delivery {
            path,
            ecn,
            segment_size,
            mut bytes,
            ..
        } = delivery;
        let mut responses = Vec::new();
        let mut rest = &mut bytes[..];
        while !rest.is_empty() {
            let run = self.endpoint.route(now, path, rest, segment_size);
            let (datagrams, behind) = rest.split_at_mut(run.len);
            rest = behind;
            let index = match run.to {
                Route::Connection(handle) => self
                    .members
                    .iter()
                    .position(|m| !m.removed && m.handle == handle),
                Route::Incoming(incoming) if self.refuses => {
                    responses.push((path, self.endpoint.refuse(incoming)));
                    None
                }
                Route::Incoming(incoming) => {
                    let validated = incoming.remote_address_validated();
                    match self.endpoint.accept(now, incoming) {
                        Ok((handle, connection)) => {
                            let index = self.adopt(handle, connection, path.remote, now);
                            if validated {
                                self.members[index].guard.on_validated();
                            }
                            Some(index)
                        }
                        Err(refused) => {
                            responses.extend(refused.response.map(|bytes| (path, bytes)));
                            None
                        }
                    }
                }
                Route::Respond(response) => {
                    responses.push((path, response));
                    None
                }
                Route::Worker(_) | Route::Predecessor | Route::Discard => None,
            };
            let Some(member) = index.and_then(|i| self.members.get_mut(i)) else {
                continue;
            };
            let guard = &mut member.guard;
            guard.on_received(path.remote, datagrams, segment_size);
            let run = DatagramBatch {
                path,
                ecn,
                segment_size,
                bytes: datagrams,
            };
            member.connection.receive(now, run, &mut Stages::off());
        }
        responses
    }
}
