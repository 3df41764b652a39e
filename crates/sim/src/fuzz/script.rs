//! A connection whose peer, application and clock do what the input says.
//!
//! ```text
//!  input    terms (settings of both ends), then operations until the input ends
//!  Script   a Duel, what the peer has learned, and packets that it holds back
//!     ├─ peer          packets that open, with any payload; frames in their place; datagrams of
//!     │                any bytes; old ones
//!     ├─ application   whatever it can call
//!     └─ time          milliseconds to half a minute
//! ```

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use bytes::Bytes;
use squall_core::{
    AckFrequencyConfig, AckFrequencyRequest, CloseReason, CongestionAlgorithm, Event, Move,
    Priority, TransportConfig,
};
use squall_wire::{
    ConnectionId, Direction, Ecn, Frame, Frames, PacketType, Path, PreferredAddress, Side,
    StreamId, TransportErrorCode, VERSION_1, Writer, frame, header,
};

use super::input::Input;
use crate::raw::{Duel, Odd, Terms, frames};

/// Operations that are run per input.
const MAX_OPERATIONS: usize = 200;
/// Datagrams in one bundle.
const MAX_HELD: usize = 16;
/// How many items of each kind the peer remembers.
const MAX_KNOWN: usize = 16;
/// Streams of each kind that the peer may have open.
const STREAMS: u64 = 8;
/// Bytes that the victim buffers for its application.
const SEND_WINDOW: u64 = 64 * 1024;
/// Datagrams that may answer a bundle or an application's call, besides what the congestion window
/// allows.
const ANSWERS: u64 = 64;
/// The address of the peer, and the first of its ports.
const PEER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 9), 999);
/// The data that is written and sent.
static DATA: [u8; 32 * 1024] = [0x5a; 32 * 1024];

/// Runs a client against whatever server the input describes.
///
/// # Panics
/// A property does not hold.
pub fn connection_client(input: &[u8]) {
    run(Side::Client, input);
}

/// Runs a server against whatever client the input describes.
///
/// # Panics
/// A property does not hold.
pub fn connection_server(input: &[u8]) {
    run(Side::Server, input);
}

fn run(victim: Side, input: &[u8]) {
    let mut input = Input::new(input);
    let begin = input.u8();
    let terms = terms(victim, &mut input);
    let mut script = Script::new(Duel::new(victim, terms));
    // Most inputs begin where most of the rules apply.
    if begin & 3 != 0 {
        script.duel.shake_hands();
        if begin & 3 != 1 && victim == Side::Client {
            script.send(PacketType::OneRtt, &frames(frame::write::handshake_done));
        }
    }
    for _ in 0..MAX_OPERATIONS {
        if input.is_empty() {
            break;
        }
        script.step(&mut input);
        script.learn();
    }
    script.end();
}

/// Settings of both ends: the victim's, and those that its peer declares.
fn terms(victim: Side, input: &mut Input<'_>) -> Terms {
    let [ours, theirs] = [input.u16(), input.u16()];
    let is = |bits: u16, n: u16| bits & (1 << n) != 0;
    let transport = TransportConfig::default()
        .congestion(CongestionAlgorithm::ALL[usize::from(ours & 3).min(2)])
        .ack_frequency(if is(ours, 2) {
            AckFrequencyRequest::Fixed(AckFrequencyConfig {
                ack_eliciting_threshold: 4,
                max_ack_delay: Duration::from_millis(20),
                reordering_threshold: 3,
            })
        } else {
            AckFrequencyRequest::Adaptive
        })
        .allow_migration(!is(ours, 3))
        .keep_alive(is(ours, 4).then_some(Duration::from_secs(5)))
        .key_update_after(if ours & 0x60 != 0 { 20 } else { 1 << 20 })
        .confidentiality_limit(if is(ours, 6) { 64 } else { u64::MAX })
        .integrity_limit(if is(ours, 7) { 8 } else { u64::MAX })
        .pacing(!is(ours, 8))
        .spin_bit(!is(ours, 9))
        .max_idle_timeout(Duration::from_secs(if is(ours, 10) { 1 } else { 30 }))
        .versions(if is(ours, 11) {
            vec![VERSION_1]
        } else {
            TransportConfig::default().versions
        })
        .max_packets_in_flight(if is(ours, 12) { 256 } else { 4096 })
        .datagram_receive_buffer(if is(ours, 13) { 0 } else { 4096 })
        .datagram_send_buffer(4096)
        .max_udp_payload(if is(ours, 14) { 1200 } else { 9000 })
        .initial_stream_window(4 * 1024)
        .initial_window(8 * 1024)
        .stream_receive_window(32 * 1024)
        .receive_window(64 * 1024)
        .stream_send_window(SEND_WINDOW / 2)
        .send_window(SEND_WINDOW)
        .max_concurrent_bidi_streams(STREAMS)
        .max_concurrent_uni_streams(STREAMS)
        .preferred_ipv4(is(ours, 15).then_some(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 1)));
    let more_parameters = match is(theirs, 15) {
        true => input.some_bytes().to_vec(),
        false => Vec::new(),
    };
    let preferred_address = PreferredAddress {
        ipv4: Some(SocketAddrV4::new(PEER.0, PEER.1 + 1)),
        ipv6: None,
        connection_id: made_up_id(1),
        stateless_reset_token: [1; 16],
    };
    Terms {
        transport,
        parameters: Box::new(move |declared| {
            if is(theirs, 0) {
                declared.initial_max_data = 0;
                declared.initial_max_stream_data_bidi_local = 100;
            }
            if is(theirs, 1) {
                declared.initial_max_data = (1 << 62) - 1;
                declared.initial_max_streams_bidi = 1 << 60;
            }
            if is(theirs, 2) {
                declared.max_datagram_frame_size = None;
            }
            if is(theirs, 3) {
                declared.min_ack_delay_us = None;
            }
            declared.reset_stream_at = !is(theirs, 4);
            declared.grease_quic_bit = is(theirs, 5);
            declared.disable_active_migration = is(theirs, 6);
            if is(theirs, 7) {
                declared.max_udp_payload_size = 1200;
            }
            if is(theirs, 8) {
                declared.ack_delay_exponent = 20;
            }
            if is(theirs, 9) {
                declared.max_ack_delay_ms = (1 << 14) - 1;
            }
            if is(theirs, 10) {
                declared.active_connection_id_limit = (1 << 62) - 1;
            }
            if is(theirs, 11) {
                declared.max_idle_timeout_ms = 1;
            }
            if is(theirs, 12) && victim == Side::Client {
                declared.preferred_address = Some(preferred_address);
            }
            if is(theirs, 13) {
                declared.initial_source_connection_id = None;
            }
        }),
        more_parameters,
        ..Terms::default()
    }
}

/// The id that the peer issues under this number, which also determines the token.
fn made_up_id(n: u8) -> ConnectionId {
    ConnectionId::new(&[n; 8]).unwrap_or(ConnectionId::EMPTY)
}

fn path(n: u8) -> Path {
    Path {
        remote: SocketAddr::from((PEER.0, PEER.1 + u16::from(n & 3))),
        local: None,
    }
}

fn direction(bits: u8) -> Direction {
    match bits & 1 {
        0 => Direction::Bidirectional,
        _ => Direction::Unidirectional,
    }
}

fn level(bits: u8) -> PacketType {
    match bits & 3 {
        0 => PacketType::Initial,
        1 => PacketType::Handshake,
        _ => PacketType::OneRtt,
    }
}

/// The exchange between one input's victim and its peer.
struct Script {
    duel: Duel,
    /// The path to the peer.
    path: Path,
    /// Datagrams to be delivered in one bundle.
    held: Vec<Vec<u8>>,
    /// Datagrams already delivered, to be delivered again.
    sent: Vec<Vec<u8>>,
    challenges: Vec<[u8; 8]>,
    /// The victim's ids.
    ids: Vec<ConnectionId>,
    /// Streams that the victim's application opened.
    opened: usize,
    /// Number of events already examined.
    seen: usize,
}

impl Script {
    const fn new(duel: Duel) -> Self {
        Self {
            duel,
            path: Path {
                remote: SocketAddr::V4(SocketAddrV4::new(PEER.0, PEER.1)),
                local: None,
            },
            held: Vec::new(),
            sent: Vec::new(),
            challenges: Vec::new(),
            ids: Vec::new(),
            opened: 0,
            seen: 0,
        }
    }

    /// Runs one operation.
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 24 {
            0..=3 => self.packet(input),
            4 => self.acknowledge(input),
            5 => self.stream(input),
            6 => self.credit(input),
            7 => self.handshake(input),
            8 => self.respond(),
            9 => self.ids(input),
            10 => self.raw(input),
            11 => self.again(input),
            12 => self.before_the_handshake(input),
            13 if self.duel.peer.has_keys(PacketType::OneRtt) => self.duel.peer.update_keys(),
            14..=16 => self.pass(input),
            17 => self.path = path(input.u8()),
            18 => self.deliver(Ecn::from_bits(input.u8())),
            19.. if self.duel.has_victim() => self.call(input),
            _ => {}
        }
    }

    /// Updates what the peer has learned from what it received.
    fn learn(&mut self) {
        for (_, payload) in std::mem::take(&mut self.duel.peer.received) {
            for frame in Frames::new(&payload) {
                match frame {
                    Ok(Frame::PathChallenge(data)) if self.challenges.len() < MAX_KNOWN => {
                        self.challenges.push(data);
                    }
                    Ok(Frame::NewConnectionId { id, .. }) if self.ids.len() < MAX_KNOWN => {
                        self.ids.push(id);
                    }
                    Ok(_) => {}
                    Err(error) => panic!("the victim sent an invalid frame: {error:?}"),
                }
            }
        }
        for event in &self.duel.events[self.seen..] {
            if let Event::Closed(CloseReason::Transport {
                code,
                remote: false,
                reason,
            }) = event
            {
                let ours = *code == TransportErrorCode::INTERNAL_ERROR;
                assert!(!ours, "the victim blames itself: {reason}");
            }
        }
        self.seen = self.duel.events.len();
        if self.duel.has_victim() {
            let stats = self.duel.victim().stats();
            assert!(stats.open_streams <= self.opened + 2 * STREAMS as usize);
        }
    }

    /// Does something to the victim, and checks how much it sends in response.
    fn bounded(&mut self, act: impl FnOnce(&mut Duel)) {
        let duel = &mut self.duel;
        let window = |duel: &mut Duel| match duel.has_victim() {
            true => duel.victim().stats().congestion_window,
            false => 0,
        };
        let (before, let_out) = (duel.datagrams, window(duel));
        act(duel);
        let let_out = let_out.max(window(duel)) / 500;
        let answers = duel.datagrams - before;
        assert!(
            answers <= ANSWERS + let_out,
            "{answers} datagrams at once, where {let_out} may be in flight"
        );
    }

    fn send(&mut self, ty: PacketType, payload: &[u8]) {
        if self.duel.peer.has_keys(ty) && !payload.is_empty() {
            let datagram = self.duel.peer.datagram(ty, payload);
            self.deliver_one(datagram);
        }
    }

    fn deliver_one(&mut self, datagram: Vec<u8>) {
        let path = self.path;
        self.bounded(|duel| duel.deliver_from(path, &datagram));
        if self.sent.len() < MAX_KNOWN {
            self.sent.push(datagram);
        }
    }

    /// Delivers the held datagrams, in bundles of one datagram size.
    fn deliver(&mut self, ecn: Ecn) {
        let held = std::mem::take(&mut self.held);
        let path = self.path;
        // The last datagram of a bundle may be shorter.
        for run in held.chunk_by(|a, b| a.len() == b.len()) {
            let segment_size = u16::try_from(run[0].len()).unwrap_or(u16::MAX);
            let bundle = run.concat();
            self.bounded(|duel| duel.deliver_run(path, ecn, segment_size, &bundle));
        }
    }

    /// Sends a packet with any payload, which may be odd, held back, or coalesced behind another.
    fn packet(&mut self, input: &mut Input<'_>) {
        let how = input.u8();
        let is = |n: u8| how & (1 << n) != 0;
        let ty = level(how);
        let odd = match is(2) {
            true => Odd {
                first_byte: input.u8(),
                number: Some(match input.u16() {
                    n @ ..1000 => n.into(),
                    n => self.next_number(ty) + u64::from(n) - 1000,
                }),
                key_phase: is(3),
            },
            false => Odd::default(),
        };
        let payload = input.some_bytes();
        if !self.duel.peer.has_keys(ty) {
            return;
        }
        let mut payload = payload.to_vec();
        if is(4) {
            payload.resize(1100, 0);
        }
        let packet = match (ty, is(2)) {
            (PacketType::Initial, false) if !is(5) => self.duel.peer.datagram(ty, &payload),
            _ => self.duel.peer.packet(ty, &payload, odd),
        };
        let room = self.held.len() < MAX_HELD;
        match self.held.last_mut() {
            Some(datagram) if is(5) && datagram.len() + packet.len() < 4000 => {
                datagram.extend_from_slice(&packet);
            }
            _ if is(6) && room => self.held.push(packet),
            _ => self.deliver_one(packet),
        }
    }

    fn next_number(&self, ty: PacketType) -> u64 {
        let space = match ty {
            PacketType::Initial => 0,
            PacketType::Handshake => 1,
            PacketType::ZeroRtt | PacketType::OneRtt => 2,
        };
        self.duel.peer.next_number[space]
    }

    /// Acknowledges what arrived, except what the input leaves out.
    fn acknowledge(&mut self, input: &mut Input<'_>) {
        let [how, holes] = [input.u8(), input.u8()];
        let ty = level(how);
        let space = match ty {
            PacketType::Initial => 0,
            PacketType::Handshake => 1,
            PacketType::ZeroRtt | PacketType::OneRtt => 2,
        };
        let mut ranges = self.duel.peer.numbers[space].clone();
        ranges.reverse();
        // One number in this many is not acknowledged.
        if let Some(first) = ranges.first_mut().filter(|_| holes > 1) {
            let (start, end) = (*first.start(), *first.end());
            let missing = end.saturating_sub(holes.into());
            if start < missing && missing < end {
                *first = missing + 1..=end;
                ranges.insert(1, start..=missing - 1);
            }
        }
        ranges.truncate(32);
        let ecn = (how & 4 != 0).then(|| frame::EcnCounts {
            ect0: input.u8().into(),
            ect1: 0,
            ce: input.u8().into(),
        });
        let delay = u64::from(how >> 3) << 6;
        let payload = frames(|w| {
            frame::write::ack(w, ranges.iter().cloned(), delay, ecn);
        });
        self.send(ty, &payload);
    }

    /// Sends data on a stream, without taking its bytes from the input.
    fn stream(&mut self, input: &mut Input<'_>) {
        let [id, how, size] = [input.u8(), input.u8(), input.u8()];
        let offset = u64::from(input.u16());
        let len = usize::from(size) * 4;
        let payload = frames(|w| {
            let (id, fin) = (StreamId(id.into()), how & 1 != 0);
            match how & 6 {
                0 => {
                    frame::write::stream_header(w, id, offset, Some(len), fin);
                    w.bytes(&DATA[..len]);
                }
                2 => frame::write::reset_stream(w, id, 7, offset),
                4 => frame::write::reset_stream_at(w, id, 7, offset, offset.min(size.into())),
                _ => frame::write::stop_sending(w, id, 7),
            }
        });
        self.send(PacketType::OneRtt, &payload);
    }

    /// Gives the victim more credit of every kind.
    fn credit(&mut self, input: &mut Input<'_>) {
        let [id, shift] = [input.u8(), input.u8()];
        let maximum = 1 << (shift % 60);
        let payload = frames(|w| {
            frame::write::max_data(w, maximum);
            frame::write::max_streams(w, direction(id), maximum);
            // A stream that only the peer sends on would be an error; `packet` covers those.
            let id = StreamId(id.into());
            if id.direction() == Direction::Bidirectional || shift & 64 != 0 {
                frame::write::max_stream_data(w, id, maximum);
            }
        });
        self.send(PacketType::OneRtt, &payload);
    }

    /// Delivers the waiting datagrams of the handshake, all or all but one.
    fn handshake(&mut self, input: &mut Input<'_>) {
        let lost = usize::from(input.u8());
        for (n, datagram) in self.duel.peer.flush().into_iter().enumerate() {
            if n + 1 != lost {
                self.deliver_one(datagram);
            }
        }
    }

    /// Answers all challenges.
    fn respond(&mut self) {
        let challenges = std::mem::take(&mut self.challenges);
        let payload = frames(|w| {
            for data in challenges {
                frame::write::path_response(w, data);
            }
        });
        self.send(PacketType::OneRtt, &payload);
    }

    /// Ids of both ends: issued, used, used for a reset.
    fn ids(&mut self, input: &mut Input<'_>) {
        let [how, n] = [input.u8(), input.u8()];
        match how & 3 {
            0 | 1 => {
                let retire = u64::from(how >> 2).min(n.into());
                let payload = frames(|w| {
                    let id = made_up_id(n);
                    frame::write::new_connection_id(w, n.into(), retire, &id, &[n; 16]);
                });
                self.send(PacketType::OneRtt, &payload);
            }
            2 => {
                if let Some(id) = self.ids.get(usize::from(n) % self.ids.len().max(1)) {
                    self.duel.peer.remote_id = *id;
                }
            }
            _ => {
                let mut reset = vec![0x41; 42];
                reset[26..].fill(n);
                self.deliver_one(reset);
            }
        }
    }

    /// Delivers a datagram of arbitrary bytes, some of which may be right.
    fn raw(&mut self, input: &mut Input<'_>) {
        let how = input.u8();
        let mut bytes = input.some_bytes().to_vec();
        let id = self.duel.peer.remote_id;
        // After the form, or after the form, the version and a length.
        let at = if how & 1 == 0 { 1 } else { 6 };
        if let Some(place) = bytes.get_mut(at..at + id.len()).filter(|_| how & 2 != 0) {
            place.copy_from_slice(id.as_slice());
        }
        if how & 4 != 0 {
            bytes.resize(1200, how);
        }
        if how & 8 != 0 && self.held.len() < MAX_HELD {
            self.held.push(bytes);
        } else {
            self.deliver_one(bytes);
        }
    }

    /// Delivers an earlier datagram again, perhaps damaged or cut.
    fn again(&mut self, input: &mut Input<'_>) {
        let [which, damage] = [input.u8(), input.u8()];
        let at = usize::from(input.u16());
        let Some(datagram) = self.sent.get(usize::from(which) % self.sent.len().max(1)) else {
            return;
        };
        let mut datagram = datagram.clone();
        match datagram.get_mut(at) {
            Some(byte) => *byte ^= damage,
            None => datagram.truncate(usize::from(damage)),
        }
        self.deliver_one(datagram);
    }

    /// Sends what only a client receives, and only at first: another version, or a Retry.
    fn before_the_handshake(&mut self, input: &mut Input<'_>) {
        let how = input.u8();
        let bytes = input.some_bytes();
        let (theirs, mine) = (self.duel.peer.remote_id, self.duel.peer.local_id);
        let mut datagram = vec![0; 600];
        let mut w = Writer::new(&mut datagram);
        if how & 1 == 0 {
            let versions: Vec<u32> = (bytes.as_chunks().0.iter())
                .map(|version| u32::from_be_bytes(*version))
                .collect();
            let from = match how & 2 {
                0 => self.duel.first_destination,
                _ => mine,
            };
            let (to, from) = (theirs.as_slice(), from.as_slice());
            header::write_version_negotiation(&mut w, to, from, &versions, how);
        } else {
            let original = self.duel.first_destination;
            header::write_retry(&mut w, VERSION_1, &theirs, &mine, bytes);
            let without_tag = w.written_mut();
            let original = original.as_slice();
            let tag = squall_protect::retry::integrity_tag(VERSION_1, original, without_tag);
            w.bytes(&tag);
        }
        let len = w.len();
        datagram.truncate(len);
        self.deliver_one(datagram);
        if how & 5 == 5 {
            self.duel.peer.derive_initial(mine.as_slice());
        }
    }

    /// Lets time pass, up to half a minute.
    fn pass(&mut self, input: &mut Input<'_>) {
        let how = input.u8();
        let ms = (1 << (how & 15)) + u64::from(how >> 4);
        self.duel.pass(Duration::from_millis(ms));
    }

    /// Makes a call of the application; impossible calls are refused.
    fn call(&mut self, input: &mut Input<'_>) {
        let [what, arg] = [input.u8(), input.u8()];
        let id = StreamId(arg.into());
        let now = self.duel.now;
        let path = path(arg);
        let victim = self.duel.victim();
        match what % 20 {
            0 | 1 => self.opened += usize::from(victim.open(direction(arg)).is_some()),
            2 => _ = victim.accept(direction(arg)),
            3 | 4 => {
                let len = DATA.len() >> (input.u8() & 15);
                let mut data = Bytes::from_static(&DATA[..len]);
                if let Ok(taken) = victim.write(id, &mut data) {
                    assert_eq!(taken + data.len(), len);
                }
            }
            5 => _ = victim.finish(id),
            6 => _ = victim.reset(id, arg.into()),
            7 => _ = victim.reset_at(id, arg.into(), input.u16().into()),
            8 | 9 => {
                let max = usize::from(input.u16());
                if let Ok(Some(data)) = victim.read(id, max) {
                    assert!(data.len() <= max);
                }
            }
            10 => _ = victim.stop_sending(id, arg.into()),
            11 => {
                let level = i32::from(input.u8());
                let incremental = level & 1 == 0;
                _ = victim.set_priority(id, Priority { level, incremental });
            }
            12 | 13 => {
                let data = Bytes::from_static(&DATA[..usize::from(arg) * 5]);
                if what & 32 == 0 {
                    _ = victim.send_datagram(data);
                } else {
                    _ = victim.send_newest_datagram(data);
                }
            }
            14 => drop(victim.read_datagram()),
            15 if what & 32 != 0 => victim.close(now, arg.into(), b"enough"),
            15 => victim.ping(),
            16 => _ = victim.migrate(now, path, Move::WhenValidated),
            17 => _ = victim.migrate(now, path, Move::AtOnce),
            18 => _ = victim.rotate_ids(),
            _ => {
                // Reads everything available, in the order in which it was reported.
                let events = &self.duel.events;
                let readable: Vec<StreamId> = (events.iter().rev().take(8))
                    .filter_map(|event| match event {
                        Event::Readable(id) => Some(*id),
                        _ => None,
                    })
                    .collect();
                for id in readable {
                    while let Ok(Some(_)) = self.duel.victim().read(id, 4096) {}
                }
            }
        }
        self.bounded(Duel::pump);
    }

    /// Silences the peer: the victim must end in time, report it once, and leave nothing behind.
    fn end(mut self) {
        self.deliver(Ecn::NotEct);
        if !self.duel.has_victim() {
            assert_eq!(self.duel.endpoint.connections(), 0);
            return;
        }
        for _ in 0..64 {
            if self.duel.victim().is_drained() {
                break;
            }
            let so_long = Duration::from_nanos(self.duel.now.as_nanos());
            self.duel.pass(so_long);
            self.learn();
        }
        assert!(self.duel.victim().is_drained(), "the connection never ends");
        let closed = |event: &Event| matches!(event, Event::Closed(_));
        let ends = self.duel.events.iter().filter(|e| closed(e)).count();
        assert_eq!(ends, 1, "{:?}", self.duel.events);
        assert!(self.duel.events.last().is_some_and(closed));
        self.duel.forget();
        let endpoint = &self.duel.endpoint;
        assert_eq!((endpoint.connections(), endpoint.handshakes()), (0, 0));
    }
}
