//! A peer whose every packet is made by hand, against a real connection: it sends what honest
//! software never would.
//!
//! ```text
//!  RawPeer   a TLS session, keys of every level, and packets with whatever payload the test wants
//!  Duel      the RawPeer and its victim, connected directly; the test advances the time
//! ```

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use squall_core::{
    ClientConfig, CloseReason, Connection, ConnectionHandle, Endpoint, EndpointConfig, Event,
    Route, ServerConfig, Stages, Time, TransportConfig,
};
use squall_protect::{HeaderKey, KeyMaterial, Outcome, PacketKey, PacketSpan, TAG_LEN, initial};
use squall_tls::{DirectionMaterial, KeyChange, LevelMaterial, Secrets, Session};
use squall_wire::{
    ConnectionId, DatagramBatch, Ecn, Frame, Frames, Header, LongType, PacketType, Path, Side,
    TransportErrorCode, TransportParameters, VERSION_1, Writer, frame, header, packet_number,
};

use crate::certificate::{Configs, SERVER_NAME, tls};
use crate::guard::Guard;

/// Bytes of the connection ids of both ends.
const CID_LEN: usize = 8;
/// RFC 9000 §14.1.
const MIN_INITIAL: usize = 1200;

/// The peer's address unless stated otherwise.
const HOME: ([u8; 4], u16) = ([10, 0, 0, 9], 999);
/// More datagrams than this in one burst, or timeouts at one instant, count as endless. A large
/// window goes out in one burst.
const ENDLESS: u64 = 100_000;

/// Keys of one level and direction.
struct Keys {
    packet: PacketKey,
    header: HeaderKey,
}

impl Keys {
    fn new(material: &DirectionMaterial) -> Self {
        Self {
            packet: PacketKey::new(&material.packet),
            header: HeaderKey::new(&material.header),
        }
    }
}

/// Keys of one level.
struct Level {
    local: Keys,
    remote: Keys,
}

impl Level {
    fn new(material: &LevelMaterial) -> Self {
        Self {
            local: Keys::new(&material.local),
            remote: Keys::new(&material.remote),
        }
    }
}

/// How a packet differs from what an honest peer would send; by default, not at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odd {
    /// Bits of the first byte that are flipped before protection.
    pub first_byte: u8,
    /// The packet number; by default the next one.
    pub number: Option<u64>,
    /// Whether the other key phase is claimed, with the keys in use.
    pub key_phase: bool,
}

/// The peer made by hand.
pub struct RawPeer {
    /// Which role it plays.
    pub side: Side,
    session: Session,
    levels: [Option<Level>; 4],
    secrets: Option<Secrets>,
    /// The id that the victim sends to.
    pub local_id: ConnectionId,
    /// The id of the victim.
    pub remote_id: ConnectionId,
    /// The token of Initial packets.
    pub token: Vec<u8>,
    /// The next packet number in each space.
    pub next_number: [u64; 3],
    largest: [Option<u64>; 3],
    crypto_in: [u64; 3],
    crypto_out: [u64; 3],
    /// Handshake bytes of each level that are still to be sent.
    pending: [Vec<u8>; 3],
    writes_at: PacketType,
    phase: bool,
    /// Payloads received, oldest first.
    pub received: Vec<(PacketType, Vec<u8>)>,
    /// The packet numbers received in each space, oldest first.
    pub numbers: [Vec<RangeInclusive<u64>>; 3],
}

fn elapsed(clock: Option<fn() -> Duration>, began: Option<Duration>) -> Duration {
    let both = clock.zip(began);
    both.map_or(Duration::ZERO, |(clock, began)| {
        clock().saturating_sub(began)
    })
}

const fn space(ty: PacketType) -> usize {
    match ty {
        PacketType::Initial => 0,
        PacketType::Handshake => 1,
        PacketType::ZeroRtt | PacketType::OneRtt => 2,
    }
}

impl RawPeer {
    fn new(side: Side, session: Session, remote_id: ConnectionId, first_dcid: &[u8]) -> Self {
        let local_id = ConnectionId::new(&[0xaa; CID_LEN]).unwrap_or(ConnectionId::EMPTY);
        let mut peer = Self {
            side,
            session,
            levels: [None, None, None, None],
            secrets: None,
            local_id,
            remote_id,
            token: Vec::new(),
            next_number: [0; 3],
            largest: [None; 3],
            crypto_in: [0; 3],
            crypto_out: [0; 3],
            pending: Default::default(),
            writes_at: PacketType::Initial,
            phase: false,
            received: Vec::new(),
            numbers: Default::default(),
        };
        peer.derive_initial(first_dcid);
        peer
    }

    /// Takes the Initial keys of another first destination, as after a Retry.
    pub fn derive_initial(&mut self, first_dcid: &[u8]) {
        let pair = initial::keys(VERSION_1, first_dcid, self.side == Side::Client);
        let keys = |k: squall_protect::Keys| Keys {
            packet: k.packet,
            header: k.header,
        };
        self.levels[PacketType::Initial as usize] = Some(Level {
            local: keys(pair.local),
            remote: keys(pair.remote),
        });
    }

    /// Whether it has keys for this kind of packet.
    #[must_use]
    pub fn has_keys(&self, ty: PacketType) -> bool {
        self.levels[ty as usize].is_some()
    }

    /// The largest number of a 1-RTT packet that it has opened.
    #[must_use]
    pub const fn largest_received(&self) -> Option<u64> {
        self.largest[space(PacketType::OneRtt)]
    }

    /// A packet with this payload. Too short a payload is padded for the header-protection sample
    /// (RFC 9001 §5.4.2).
    ///
    /// # Panics
    /// If there are no keys for it, or if it is larger than a datagram.
    pub fn packet(&mut self, ty: PacketType, payload: &[u8], odd: Odd) -> Vec<u8> {
        let space = space(ty);
        let number = odd.number.unwrap_or(self.next_number[space]);
        self.next_number[space] = self.next_number[space].max(number + 1);
        let mut bytes = vec![0; payload.len() + self.token.len() + 128];
        let mut w = Writer::new(&mut bytes);
        let pn_len = 4;
        let length = match ty {
            PacketType::OneRtt => {
                let phase = self.phase ^ odd.key_phase;
                header::write_short(&mut w, &self.remote_id, false, phase, number, pn_len);
                None
            }
            _ => {
                let long = match ty {
                    PacketType::Initial => LongType::Initial,
                    PacketType::ZeroRtt => LongType::ZeroRtt,
                    _ => LongType::Handshake,
                };
                let token = match ty {
                    PacketType::Initial => &self.token[..],
                    _ => &[],
                };
                let (dcid, scid) = (&self.remote_id, &self.local_id);
                Some(header::write_long(
                    &mut w, long, VERSION_1, dcid, scid, token, number, pn_len,
                ))
            }
        };
        let header_len = w.len();
        w.bytes(payload);
        let size = w.len() + TAG_LEN;
        bytes.truncate(size);
        bytes[0] ^= odd.first_byte;
        if let Some(length) = length {
            header::patch_length(&mut bytes, length, size - (header_len - pn_len));
        }
        let keys = self.levels[ty as usize]
            .as_mut()
            .expect("keys of the level");
        let mut span = PacketSpan::new(0, size as u32, (header_len - pn_len) as u16);
        (span.header_len, span.packet_number) = (header_len as u16, number);
        keys.local
            .packet
            .seal(&keys.local.header, &mut bytes, &mut [span], &[]);
        bytes
    }

    /// A datagram of one packet; an Initial is padded to 1200 bytes.
    ///
    /// # Panics
    /// As [`packet`](Self::packet).
    pub fn datagram(&mut self, ty: PacketType, payload: &[u8]) -> Vec<u8> {
        let mut payload = payload.to_vec();
        if ty == PacketType::Initial {
            let overhead = header::long_header_size(CID_LEN, CID_LEN, Some(self.token.len()), 4);
            let room = MIN_INITIAL - TAG_LEN - overhead;
            payload.resize(payload.len().max(room), 0);
        }
        self.packet(ty, &payload, Odd::default())
    }

    /// The waiting handshake bytes, in datagrams of one packet.
    pub fn flush(&mut self) -> Vec<Vec<u8>> {
        self.advance();
        let mut datagrams = Vec::new();
        for ty in [
            PacketType::Initial,
            PacketType::Handshake,
            PacketType::OneRtt,
        ] {
            for piece in std::mem::take(&mut self.pending[space(ty)]).chunks(1000) {
                let offset = &mut self.crypto_out[space(ty)];
                let payload = frames(|w| {
                    frame::write::crypto_header(w, *offset, piece.len());
                    w.bytes(piece);
                });
                *offset += piece.len() as u64;
                datagrams.push(self.datagram(ty, &payload));
            }
        }
        datagrams
    }

    /// Lets TLS write what it has, and installs the keys that it provides.
    fn advance(&mut self) {
        loop {
            let pending = &mut self.pending[space(self.writes_at)];
            let before = pending.len();
            let change = self.session.write(pending).expect("our own provider");
            let wrote = pending.len() > before;
            match change {
                Some(KeyChange::Handshake(material)) => {
                    self.levels[PacketType::Handshake as usize] = Some(Level::new(&material));
                    self.writes_at = PacketType::Handshake;
                }
                Some(KeyChange::OneRtt(material, secrets)) => {
                    self.levels[PacketType::OneRtt as usize] = Some(Level::new(&material));
                    self.secrets = Some(secrets);
                    self.writes_at = PacketType::OneRtt;
                }
                None if !wrote => return,
                None => {}
            }
        }
    }

    /// Handshake bytes sent at the level of this kind of packet.
    #[must_use]
    pub const fn crypto_sent(&self, ty: PacketType) -> u64 {
        self.crypto_out[space(ty)]
    }

    /// Takes the handshake's first bytes, which the caller must then send.
    pub fn handshake_bytes(&mut self) -> Vec<u8> {
        self.advance();
        std::mem::take(&mut self.pending[space(PacketType::Initial)])
    }

    /// Seals and opens with the next keys from now on (RFC 9001 §6.1).
    ///
    /// # Panics
    /// Before the handshake is done.
    pub fn update_keys(&mut self) {
        let (local, remote) = self.next_keys();
        let level = self.levels[PacketType::OneRtt as usize].as_mut();
        let level = level.expect("1-RTT keys");
        level.local.packet = PacketKey::new(&local);
        level.remote.packet = PacketKey::new(&remote);
        self.phase = !self.phase;
    }

    fn next_keys(&mut self) -> (KeyMaterial, KeyMaterial) {
        self.secrets.as_mut().expect("1-RTT keys").next()
    }

    /// Opens the packets of a datagram, keeps their payloads, and hands handshake bytes to TLS.
    pub fn receive(&mut self, datagram: &[u8]) {
        let mut rest = datagram;
        while !rest.is_empty() {
            let Ok(parsed) = header::parse_with(rest, CID_LEN, squall_wire::FixedBit::Greased)
            else {
                return;
            };
            let (ty, len, pn_offset, scid) = match parsed {
                Header::Long {
                    ty,
                    len,
                    pn_offset,
                    scid,
                    ..
                } => (
                    match ty {
                        LongType::Initial => PacketType::Initial,
                        LongType::ZeroRtt => PacketType::ZeroRtt,
                        _ => PacketType::Handshake,
                    },
                    len,
                    pn_offset,
                    Some(scid),
                ),
                Header::Short { .. } => (PacketType::OneRtt, rest.len(), 1 + CID_LEN, None),
                _ => return,
            };
            let (packet, behind) = rest.split_at(len);
            rest = behind;
            self.open(ty, packet, pn_offset);
            if let Some(scid) = scid {
                self.remote_id = scid;
            }
        }
    }

    fn open(&mut self, ty: PacketType, packet: &[u8], pn_offset: usize) {
        let Some(level) = &mut self.levels[ty as usize] else {
            return;
        };
        let mut bytes = packet.to_vec();
        let mut spans = [PacketSpan::new(0, bytes.len() as u32, pn_offset as u16)];
        level.remote.header.unprotect(&mut bytes, &mut spans);
        let span = &mut spans[0];
        let pn_len = usize::from(span.header_len - span.pn_offset);
        let largest = &mut self.largest[space(ty)];
        span.packet_number = packet_number::expand(span.packet_number, pn_len, *largest);
        level.remote.packet.open(&mut bytes, &mut spans, 0);
        let [span] = spans;
        if span.outcome != Outcome::Open {
            return;
        }
        *largest = (*largest).max(Some(span.packet_number));
        let numbers = &mut self.numbers[space(ty)];
        match numbers.last_mut() {
            Some(last) if *last.end() + 1 == span.packet_number => {
                *last = *last.start()..=span.packet_number;
            }
            // An end that is closing sends its last packet again (RFC 9000 §10.2.1).
            Some(last) if last.contains(&span.packet_number) => {}
            _ => numbers.push(span.packet_number..=span.packet_number),
        }
        let payload = bytes[span.header_len.into()..bytes.len() - TAG_LEN].to_vec();
        self.take_crypto(ty, &payload);
        self.received.push((ty, payload));
    }

    fn take_crypto(&mut self, ty: PacketType, payload: &[u8]) {
        for frame in Frames::new(payload).flatten() {
            if let Frame::Crypto { offset, data } = frame {
                let read = &mut self.crypto_in[space(ty)];
                // Nothing is lost between the two; retransmitted bytes are already known.
                if offset == *read {
                    *read += data.len() as u64;
                    // A peer that is made to break rules may be refused by its own TLS.
                    let _ = self.session.read(data);
                    self.advance();
                }
            }
        }
    }
}

/// A payload made by frame writers.
pub fn frames(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = vec![0; 2000];
    let mut w = Writer::new(&mut bytes);
    write(&mut w);
    let len = w.len();
    bytes.truncate(len);
    bytes
}

/// The initial settings of a duel.
pub struct Terms {
    /// Settings of the victim.
    pub transport: TransportConfig,
    /// TLS configurations of the client and the server.
    pub tls: Configs,
    /// Changes the transport parameters that the peer declares, before they are encoded.
    pub parameters: Box<dyn Fn(&mut TransportParameters)>,
    /// Bytes appended to the encoded parameters.
    pub more_parameters: Vec<u8>,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            transport: TransportConfig::default(),
            tls: tls(),
            parameters: Box::new(|_| {}),
            more_parameters: Vec::new(),
        }
    }
}

/// The victim's work, if measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Time by the given clock in `route`, `receive` and `on_timeout`.
    pub receiving: Duration,
    /// Time by the given clock in `transmit`.
    pub sending: Duration,
    /// Bytes received and sent.
    pub bytes: [u64; 2],
    /// Datagrams received and sent.
    pub datagrams: [u64; 2],
}

/// The peer made by hand and its victim.
pub struct Duel {
    /// The time, which only the test advances.
    pub now: Time,
    /// The peer made by hand.
    pub peer: RawPeer,
    /// The victim's endpoint.
    pub endpoint: Endpoint,
    victim: Option<(ConnectionHandle, Connection)>,
    /// Checks every datagram of the victim; absent if the guard's own memory would be counted as
    /// the victim's.
    guard: Option<Guard>,
    /// The destination of the client's first packet.
    pub first_destination: ConnectionId,
    /// Events that the victim reported to its application.
    pub events: Vec<Event>,
    path: Path,
    buffer: Vec<u8>,
    /// Datagrams that the victim has sent.
    pub datagrams: u64,
    /// Bytes of the largest burst that the victim has sent in answer to one datagram.
    pub largest_answer: usize,
    /// What the victim has done since `measure` was called.
    pub work: Work,
    clock: Option<fn() -> Duration>,
}

impl Duel {
    /// A victim in the role of `victim`. The client's first datagram is made, but nothing is sent
    /// yet.
    ///
    /// # Panics
    /// If settings are refused.
    #[must_use]
    pub fn new(victim: Side, terms: Terms) -> Self {
        let Terms {
            transport,
            tls: (client_tls, server_tls),
            parameters,
            more_parameters,
        } = terms;
        let transport = Arc::new(transport);
        let now = Time::from_nanos(1_000_000_000);
        let path = Path {
            remote: HOME.into(),
            local: None,
        };
        let guard = Guard::new(
            victim,
            transport.max_udp_payload.max(MIN_INITIAL as u16),
            path.remote,
        );
        let server = (victim == Side::Server).then(|| {
            Arc::new(ServerConfig::new(Arc::clone(&server_tls)).transport(Arc::clone(&transport)))
        });
        let mut endpoint = Endpoint::new(EndpointConfig::new([1; 32]), server, [2; 32]);
        let mut declared = TransportParameters {
            initial_max_data: 1 << 20,
            initial_max_stream_data_bidi_local: 1 << 18,
            initial_max_stream_data_bidi_remote: 1 << 18,
            initial_max_stream_data_uni: 1 << 18,
            initial_max_streams_bidi: 10,
            initial_max_streams_uni: 10,
            active_connection_id_limit: 4,
            max_datagram_frame_size: Some(1 << 16),
            min_ack_delay_us: Some(1000),
            reset_stream_at: true,
            initial_source_connection_id: ConnectionId::new(&[0xaa; CID_LEN]),
            ..TransportParameters::default()
        };
        let encode = |declared: &mut TransportParameters| {
            parameters(declared);
            let mut bytes = Vec::new();
            declared.encode(&mut bytes, None);
            bytes.extend_from_slice(&more_parameters);
            bytes
        };
        let name = ServerName::try_from(SERVER_NAME).expect("a good name");
        let (peer, victim, first_destination) = match victim {
            Side::Server => {
                let first = ConnectionId::new(&[0xdd; CID_LEN]).expect("8 bytes");
                let params = encode(&mut declared);
                let session = Session::client(&client_tls, VERSION_1, name, params);
                let session = session.expect("our own provider");
                let peer = RawPeer::new(Side::Client, session, first, first.as_slice());
                (peer, None, first)
            }
            Side::Client => {
                let config = ClientConfig::new(client_tls).transport(transport);
                let (handle, mut connection) = endpoint
                    .connect(now, config, path, SERVER_NAME)
                    .expect("good settings");
                let mut first = vec![0; 2000];
                let sent = connection.transmit(now, &mut first, 1, &mut Stages::off());
                first.truncate(sent.expect("a ClientHello").len);
                let Ok(Header::Long { dcid, scid, .. }) = header::parse(&first, CID_LEN) else {
                    panic!("the first packet has a long header");
                };
                declared.original_destination_connection_id = Some(dcid);
                let params = encode(&mut declared);
                let session = Session::server(&server_tls, VERSION_1, VERSION_1, params, &[]);
                let session = session.expect("our own provider");
                let mut peer = RawPeer::new(Side::Server, session, scid, dcid.as_slice());
                peer.receive(&first);
                (peer, Some((handle, connection)), dcid)
            }
        };
        let mut duel = Self {
            now,
            peer,
            endpoint,
            victim,
            guard: Some(guard),
            first_destination,
            events: Vec::new(),
            path,
            buffer: vec![0; 65_536],
            datagrams: 0,
            largest_answer: 0,
            work: Work::default(),
            clock: None,
        };
        // A ClientHello may take several datagrams.
        duel.answer();
        duel
    }

    /// A duel whose handshake is done and confirmed on both sides.
    ///
    /// # Panics
    /// If the handshake fails.
    #[must_use]
    pub fn connected(victim: Side, terms: Terms) -> Self {
        let mut duel = Self::new(victim, terms);
        duel.shake_hands();
        assert!(duel.events.contains(&Event::Connected), "{:?}", duel.events);
        if victim == Side::Client {
            duel.send(PacketType::OneRtt, &frames(frame::write::handshake_done));
        }
        duel
    }

    /// Removes the guard: it keeps an account of every address, which a test that counts memory
    /// would attribute to the victim.
    pub fn unwatch(&mut self) {
        self.guard = None;
    }

    /// Measures the victim's work from now on, in `work`, by this clock. Work of the peer and the
    /// test is not counted.
    pub fn measure(&mut self, clock: fn() -> Duration) {
        (self.work, self.clock) = (Work::default(), Some(clock));
    }

    /// Exchanges the handshake's bytes until neither side has any.
    pub fn shake_hands(&mut self) {
        for _ in 0..20 {
            let datagrams = self.peer.flush();
            if datagrams.is_empty() {
                return;
            }
            for datagram in datagrams {
                self.deliver(&datagram);
            }
        }
    }

    /// Sends the victim a packet with this payload.
    pub fn send(&mut self, ty: PacketType, payload: &[u8]) {
        let datagram = self.peer.datagram(ty, payload);
        self.deliver(&datagram);
    }

    /// Hands a datagram to the victim, and the victim's responses to the peer.
    pub fn deliver(&mut self, datagram: &[u8]) {
        self.deliver_from(self.path, datagram);
    }

    /// As [`deliver`](Self::deliver), from another path.
    pub fn deliver_from(&mut self, path: Path, datagram: &[u8]) {
        let len = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
        self.deliver_run(path, Ecn::NotEct, len, datagram);
    }

    /// Hands a bundle of datagrams, `segment_size` bytes each, to the victim's endpoint, and the
    /// responses to the peer. An existing victim stays the only one.
    pub fn deliver_run(&mut self, path: Path, ecn: Ecn, segment_size: u16, datagrams: &[u8]) {
        let mut bytes = datagrams.to_vec();
        let mut rest = &mut bytes[..];
        self.work.bytes[0] += datagrams.len() as u64;
        self.work.datagrams[0] += datagrams.len().div_ceil(segment_size.max(1).into()) as u64;
        while !rest.is_empty() {
            let began = self.clock.map(|clock| clock());
            let run = self.endpoint.route(self.now, path, rest, segment_size);
            self.work.receiving += elapsed(self.clock, began);
            let (front, behind) = rest.split_at_mut(run.len);
            rest = behind;
            match run.to {
                Route::Incoming(incoming) if self.victim.is_none() => {
                    if incoming.remote_address_validated()
                        && let Some(guard) = &mut self.guard
                    {
                        guard.on_validated();
                    }
                    let made = self.endpoint.accept(self.now, incoming);
                    self.victim = Some(made.expect("a good Initial"));
                }
                Route::Connection(_) => {}
                Route::Incoming(_)
                | Route::Respond(_)
                | Route::Worker(_)
                | Route::Predecessor
                | Route::Discard => {
                    continue;
                }
            }
            if let Some((_, connection)) = &mut self.victim {
                if let Some(guard) = &mut self.guard {
                    guard.on_received(path.remote, front, segment_size);
                }
                let batch = DatagramBatch {
                    path,
                    ecn,
                    segment_size,
                    bytes: front,
                };
                let began = self.clock.map(|clock| clock());
                connection.receive(self.now, batch, &mut Stages::off());
                self.work.receiving += elapsed(self.clock, began);
            }
        }
        self.answer();
    }

    /// Lets time pass, the victim's timers included.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        let mut at_once = 0;
        loop {
            let Some((_, connection)) = &mut self.victim else {
                return;
            };
            match connection.next_timeout().filter(|due| *due <= until) {
                Some(due) if due > self.now => (self.now, at_once) = (due, 0),
                Some(_) => at_once += 1,
                None => break,
            }
            assert!(at_once < ENDLESS, "the next timeout is never later");
            let began = self.clock.map(|clock| clock());
            connection.on_timeout(self.now);
            self.work.receiving += elapsed(self.clock, began);
            self.answer();
        }
        self.now = until;
    }

    fn answer(&mut self) {
        let Some((handle, connection)) = &mut self.victim else {
            return;
        };
        let (mut bytes, before) = (0, self.datagrams);
        loop {
            let began = self.clock.map(|clock| clock());
            let transmit = connection.transmit(self.now, &mut self.buffer, 64, &mut Stages::off());
            self.work.sending += elapsed(self.clock, began);
            let Some(transmit) = transmit else { break };
            bytes += transmit.len;
            self.work.bytes[1] += transmit.len as u64;
            let sent = &self.buffer[..transmit.len];
            if let Some(guard) = &mut self.guard {
                let checked = guard.on_sent_to_any_id(&transmit, sent);
                assert!(checked.is_ok(), "{checked:?}");
                guard.on_reached(transmit.path.remote);
            }
            for datagram in sent.chunks(transmit.segment_size.into()) {
                self.datagrams += 1;
                self.work.datagrams[1] += 1;
                self.peer.receive(datagram);
            }
            assert!(self.datagrams < before + ENDLESS, "transmit never ends");
        }
        self.largest_answer = self.largest_answer.max(bytes);
        while let Some(event) = connection.poll_event() {
            self.events.push(event);
        }
        while let Some(event) = connection.poll_endpoint_event() {
            self.endpoint.apply(*handle, event);
        }
    }

    /// The victim.
    ///
    /// # Panics
    /// If the peer has not yet sent a server anything that can be opened.
    pub fn victim(&mut self) -> &mut Connection {
        &mut self.victim.as_mut().expect("there is a connection").1
    }

    /// Lets the endpoint forget the victim, as its owner does once it is drained.
    pub fn forget(&mut self) {
        if let Some((handle, _)) = self.victim.take() {
            self.endpoint.remove(handle);
        }
    }

    /// Whether the victim has state for the peer.
    #[must_use]
    pub const fn has_victim(&self) -> bool {
        self.victim.is_some()
    }

    /// Lets the victim send what its application has just handed over.
    pub fn pump(&mut self) {
        self.answer();
    }

    /// The code with which the victim closed, as it reports it.
    #[must_use]
    pub fn closed(&self) -> Option<TransportErrorCode> {
        self.events.iter().find_map(|event| match event {
            Event::Closed(CloseReason::Transport {
                code,
                remote: false,
                ..
            }) => Some(*code),
            _ => None,
        })
    }

    /// The code of the CONNECTION_CLOSE that the peer received.
    #[must_use]
    pub fn close_code_received(&self) -> Option<TransportErrorCode> {
        self.peer.received.iter().find_map(|(_, payload)| {
            Frames::new(payload).flatten().find_map(|f| match f {
                Frame::ConnectionClose {
                    error_code,
                    frame_type: Some(_),
                    ..
                } => Some(TransportErrorCode(error_code)),
                _ => None,
            })
        })
    }
}
