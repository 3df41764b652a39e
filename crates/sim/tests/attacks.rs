//! Peers that hold all the keys and want to cost us memory or work: rows 1, 2, 4, 5, 6, 8, 17, 19,
//! 26 and 40 of the threat table in `SECURITY.md`. A server connection's memory is counted by the
//! allocator: beyond the data that its application has granted room for, at most 256 kB and 64
//! bytes for each packet that may be in flight.

#[path = "../../core/tests/common/counting.rs"]
mod counting;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use counting::held;
use squall_core::{CloseReason, Event, TransportConfig};
use squall_sim::{Duel, Odd, Terms, frames};
use squall_wire::frame::{ty, write};
use squall_wire::{
    ConnectionId, Direction, Frame, Frames, PacketType, Path, Side, StreamId, TransportErrorCode,
};

use PacketType::{Handshake, Initial, OneRtt};

/// Packets that the victims may have in flight, and what an attack may cost besides data, in bytes.
const IN_FLIGHT: usize = 256;
const MOST: isize = 256 * 1024 + 64 * IN_FLIGHT as isize;

/// Room for data: small, so that it hides nothing.
const WINDOW: u64 = 64 * 1024;

fn terms() -> Terms {
    Terms {
        transport: TransportConfig::default()
            .max_packets_in_flight(IN_FLIGHT)
            .initial_window(WINDOW)
            .receive_window(WINDOW)
            .initial_stream_window(WINDOW)
            .stream_receive_window(WINDOW),
        ..Terms::default()
    }
}

/// With a window so large that its smallest pieces may cost more than it grants for them.
fn roomy() -> Terms {
    let window = 8 * WINDOW;
    Terms {
        transport: terms()
            .transport
            .initial_window(window)
            .receive_window(window)
            .initial_stream_window(window)
            .stream_receive_window(window),
        ..terms()
    }
}

/// A duel, and the most memory that the victim has held since it began.
struct Siege {
    duel: Duel,
    before: isize,
    most: isize,
}

impl Siege {
    fn new(mut duel: Duel) -> Self {
        duel.unwatch();
        duel.peer.received = Vec::new();
        duel.events = Vec::new();
        let before = held();
        Self {
            duel,
            before,
            most: 0,
        }
    }

    fn connected() -> Self {
        Self::new(Duel::connected(Side::Server, terms()))
    }

    /// Drops what the test has recorded, and counts.
    fn count(&mut self) -> isize {
        self.duel.peer.received = Vec::new();
        self.duel.events.retain(|e| matches!(e, Event::Closed(_)));
        let held = held() - self.before;
        self.most = self.most.max(held);
        held
    }

    fn send(&mut self, packet: PacketType, payload: &[u8]) {
        self.duel.send(packet, payload);
        self.count();
    }

    /// Checks that the most that was held is within the limit, with `room` for what else the victim
    /// has granted.
    #[track_caller]
    fn check(&mut self, what: &str, room: u64) {
        self.count();
        println!("{what}: {} bytes at most, {room} granted", self.most);
        assert!(
            self.most <= MOST + room as isize,
            "{what}: {} bytes",
            self.most
        );
    }
}

fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn stream(id: StreamId, offset: u64, data: &[u8], fin: bool) -> Vec<u8> {
    frames(|w| {
        write::stream_header(w, id, offset, Some(data.len()), fin);
        w.bytes(data);
    })
}

fn challenges(n: u64) -> Vec<u8> {
    let frame = |i: u64| {
        [
            &[ty::PATH_CHALLENGE as u8][..],
            &(100 * n + i).to_be_bytes(),
        ]
        .concat()
    };
    let mut payload: Vec<u8> = (0..100).flat_map(frame).collect();
    payload.resize(1100, 0);
    payload
}

// test: SECURITY.md row 1: nothing that the victim sends is ever acknowledged
#[test]
fn challenges_cost_no_memory_on_the_active_or_another_path() {
    let there = Path {
        remote: SocketAddr::from(([10, 0, 9, 9], 999)),
        local: None,
    };
    for elsewhere in [false, true] {
        let mut duel = Duel::connected(Side::Server, terms());
        // A separate id for the other path, or nothing would be sent there (RFC 9000 §9.5).
        let id = ConnectionId::new(&[0xbb; 8]).expect("8 bytes");
        duel.send(
            OneRtt,
            &frames(|w| write::new_connection_id(w, 1, 0, &id, &[1; 16])),
        );
        let mut siege = Siege::new(duel);
        for n in 0..10_000 {
            let datagram = siege.duel.peer.datagram(OneRtt, &challenges(n));
            if elsewhere {
                siege.duel.deliver_from(there, &datagram);
            } else {
                siege.duel.deliver(&datagram);
            }
            siege.duel.pass(micros(100));
            siege.count();
        }
        siege.check("a million challenges", 0);
        assert_eq!(siege.duel.closed(), None);
    }
}

// test: SECURITY.md row 34: each address is one that the victim has not seen
#[test]
fn a_peer_that_migrates_with_every_packet_costs_no_memory() {
    let mut siege = Siege::connected();
    for n in 0..20_000_u32 {
        let [_, a, b, c] = n.to_be_bytes();
        let there = Path {
            remote: SocketAddr::from(([10, a, b, c], 1000)),
            local: None,
        };
        let datagram = siege.duel.peer.datagram(OneRtt, &[ty::PING as u8; 1100]);
        siege.duel.deliver_from(there, &datagram);
        siege.duel.pass(micros(100));
        siege.count();
        if siege.duel.closed().is_some() {
            break;
        }
    }
    siege.check("20,000 addresses", 0);
}

// test: SECURITY.md row 2: every id retires the one before it, and no retirement is acknowledged
#[test]
fn issued_ids_cost_no_memory() {
    let mut siege = Siege::connected();
    for n in 1..100_000_u64 {
        let id = ConnectionId::new(&n.to_be_bytes()).expect("8 bytes");
        let token = [n.to_be_bytes(), n.to_be_bytes()].concat();
        let token = token.as_slice().try_into().expect("16 bytes");
        let payload = frames(|w| write::new_connection_id(w, n, n, &id, &token));
        siege.send(OneRtt, &payload);
        if siege.duel.closed().is_some() {
            break;
        }
    }
    siege.check("ids", 0);
    let expected = TransportErrorCode::CONNECTION_ID_LIMIT_ERROR;
    assert_eq!(siege.duel.closed(), Some(expected));
}

// test: SECURITY.md row 3: every id is retired as soon as it is announced, and what announces it is
// acknowledged
#[test]
fn retired_ids_cost_no_memory() {
    let mut siege = Siege::connected();
    for n in 1..10_000_u64 {
        let newest = siege.duel.peer.largest_received().unwrap_or(0);
        let mut payload = frames(|w| write::retire_connection_id(w, n));
        payload.extend(acknowledge(&[newest..=newest]));
        siege.send(OneRtt, &payload);
        assert_eq!(siege.duel.closed(), None, "after {n}");
    }
    // Routes here and in the endpoint: a few ids, whatever the peer retires.
    println!("retired ids: {} bytes at most", siege.most);
    assert!(siege.most < 32 * 1024, "{} bytes", siege.most);
}

/// A server with the keys for this kind of packet, whose TLS has not read the last of it.
fn prepared(packet: PacketType) -> Duel {
    if packet == OneRtt {
        return Duel::connected(Side::Server, terms());
    }
    let mut duel = Duel::new(Side::Server, terms());
    if packet == Handshake {
        for datagram in duel.peer.flush() {
            duel.deliver(&datagram);
        }
    } else {
        duel.send(Initial, &[ty::PING as u8]);
    }
    duel
}

// test: SECURITY.md row 4
#[test]
fn handshake_bytes_cost_no_more_than_their_limit() {
    for packet in [Initial, Handshake, OneRtt] {
        // Behind a gap: the smallest pieces first and then large ones, as far as it allows.
        let small = (0..1000).map(|i| (5000 + 60 * i, 1));
        let large = (0..1000).map(|i| (8000 + 1000 * i, 1000));
        for pieces in [small.collect::<Vec<_>>(), large.collect()] {
            let mut siege = Siege::new(prepared(packet));
            for (offset, len) in pieces {
                let payload = frames(|w| {
                    write::crypto_header(w, offset, len);
                    w.bytes(&vec![1; len]);
                });
                siege.send(packet, &payload);
            }
            siege.check("handshake bytes", 0);
            let expected = TransportErrorCode::CRYPTO_BUFFER_EXCEEDED;
            assert_eq!(siege.duel.closed(), Some(expected));
        }
    }
}

// test: RFC 9000 §21.7, SECURITY.md row 5
#[test]
fn pieces_between_gaps_cost_no_more_than_their_budget() {
    let mut siege = Siege::connected();
    let kinds = [Direction::Unidirectional, Direction::Bidirectional];
    for (kind, index) in kinds.iter().flat_map(|k| (0..8).map(move |i| (*k, i))) {
        let id = StreamId::new(Side::Client, kind, index);
        // No more than the window over all streams: pieces that do not fit must not be lost to flow
        // control.
        for base in (1..WINDOW / 16).step_by(400) {
            let end = (base + 400).min(WINDOW / 16);
            let pieces = (base..end).step_by(2);
            let payload = pieces
                .flat_map(|at| stream(id, at, &[1], false))
                .collect::<Vec<u8>>();
            siege.send(OneRtt, &payload);
        }
        assert_eq!(siege.duel.closed(), None);
    }
    siege.check("pieces of one byte", WINDOW);
}

// test: RFC 9000 §12.3, §21.4; SECURITY.md row 5: the frames before the one that has no room have
// acted
#[test]
fn a_packet_dropped_for_lack_of_room_acts_once_and_is_never_acknowledged() {
    let mut duel = Duel::connected(Side::Server, roomy());
    let id = StreamId::new(Side::Client, Direction::Unidirectional, 0);
    // Far enough apart for each to cost one.
    let mut pieces = (1..5000).map(|i| stream(id, 64 * i, &[1], false));
    let datagram = |n: u32| {
        frames(|w| {
            write::datagram_header(w, Some(4));
            w.bytes(&n.to_be_bytes());
        })
    };
    let (mut read, mut dropped) = (Vec::new(), Vec::new());
    for n in 0.. {
        let Some(piece) = pieces.next() else { break };
        let before = duel.victim().stats().packets_dropped;
        let number = duel.peer.next_number[2];
        let packet = duel.peer.datagram(OneRtt, &[datagram(n), piece].concat());
        duel.deliver(&packet);
        if duel.victim().stats().packets_dropped > before {
            dropped.push((number, packet));
        }
        read.extend(std::iter::from_fn(|| duel.victim().read_datagram()));
    }
    assert!(dropped.len() > 100 && read.len() > 2 * dropped.len());
    let before = read.len();
    for (_, packet) in dropped.iter().chain(&dropped) {
        duel.deliver(packet);
    }
    read.extend(std::iter::from_fn(|| duel.victim().read_datagram()));
    assert_eq!(read.len(), before, "a duplicate acted again");
    // The victim acknowledges no more until its acknowledgements are (row 8).
    let seen: Vec<_> = duel.peer.numbers[2]
        .iter()
        .rev()
        .take(60)
        .cloned()
        .collect();
    duel.send(OneRtt, &acknowledge(&seen));
    duel.send(OneRtt, &[ty::PING as u8]);
    duel.pass(Duration::from_millis(100));
    let payloads = duel.peer.received.iter();
    let acknowledged: Vec<_> = payloads
        .flat_map(|(_, payload)| Frames::new(payload).flatten())
        .filter_map(|frame| match frame {
            Frame::Ack(ack) => Some(ack.ranges().collect::<Vec<_>>()),
            _ => None,
        })
        .flatten()
        .collect();
    // Among them those of the last packets, which came between and after the dropped ones.
    let newest = acknowledged.iter().map(|range| *range.end()).max();
    assert_eq!(newest, Some(duel.peer.next_number[2] - 1));
    for (number, _) in dropped {
        assert!(
            !acknowledged.iter().any(|range| range.contains(&number)),
            "{number}"
        );
    }
    assert_eq!(duel.closed(), None);
}

// test: SECURITY.md row 5: half of all packets come 5,000 packets late, and the connection goes on
#[test]
fn a_sender_with_delayed_packets_finishes() {
    // Within the window, but in pieces whose overhead is not: some are not accepted, and are sent
    // again.
    const PIECE: usize = 60;
    const PACKETS: usize = 8_000;
    let mut duel = Duel::connected(Side::Server, roomy());
    let id = StreamId::new(Side::Client, Direction::Unidirectional, 0);
    let byte = |at: usize| (at * 31 % 251) as u8;
    let piece = |n: usize| -> Vec<u8> {
        let data: Vec<u8> = (n * PIECE..(n + 1) * PIECE).map(byte).collect();
        stream(id, (n * PIECE) as u64, &data, n + 1 == PACKETS)
    };
    // By time of arrival.
    let mut order: Vec<usize> = (0..PACKETS).collect();
    order.sort_by_key(|n| if n % 2 == 0 { *n } else { n + 5000 });
    let mut read = Vec::new();
    let mut accepted = false;
    // Dropped pieces are sent again once, in order.
    for round in 0.. {
        assert!(round < 2, "{} bytes came", read.len());
        if round > 0 {
            order.sort_unstable();
        }
        for n in &order {
            duel.send(OneRtt, &piece(*n));
            accepted |= duel.victim().accept(Direction::Unidirectional).is_some();
            while let Ok(Some(bytes)) = duel.victim().read(id, usize::MAX) {
                read.extend_from_slice(&bytes);
            }
        }
        assert_eq!(duel.closed(), None, "round {round}");
        if read.len() == PIECE * PACKETS {
            assert!(round > 0, "nothing was dropped");
            break;
        }
    }
    assert!(accepted);
    assert!(read.iter().enumerate().all(|(at, b)| *b == byte(at)));
}

// test: SECURITY.md row 8: a peer that acknowledges nothing
#[test]
fn unacknowledged_acknowledgements_are_bounded() {
    for (in_flight, pings) in [(IN_FLIGHT, 1_000_000), (65_536, 200_000)] {
        let mut terms = terms();
        terms.transport.max_packets_in_flight = in_flight;
        let mut siege = Siege::new(Duel::connected(Side::Server, terms));
        for n in 0..pings {
            siege.duel.send(OneRtt, &[ty::PING as u8]);
            if n % 64 == 0 {
                siege.duel.pass(micros(100));
                siege.count();
            }
        }
        // Beyond what `MOST` already includes.
        siege.check("PINGs", 64 * (in_flight - IN_FLIGHT) as u64);
        // Probes use up what acknowledgements leave. From then on, each takes the place of an older
        // packet: if it could not be sent, its timeout would be due for ever.
        let before = siege.duel.victim().stats().probe_timeouts;
        for _ in 0..200 {
            siege.send(OneRtt, &[ty::PING as u8]);
            siege.duel.pass(Duration::from_secs(20));
        }
        let probed = siege.duel.victim().stats().probe_timeouts - before;
        assert!((12..200).contains(&probed), "{probed} probe timeouts");
        // Probes hold several frames.
        siege.check("probes", 72 * (in_flight - IN_FLIGHT) as u64);
        assert_eq!(siege.duel.closed(), None);
    }
}

// test: SECURITY.md row 8: before the handshake is done
#[test]
fn unacknowledged_handshake_acknowledgements_are_bounded() {
    for (packet, victim) in [
        (Initial, Side::Server),
        (Initial, Side::Client),
        (Handshake, Side::Server),
    ] {
        let mut duel = Duel::new(victim, terms());
        if packet == Handshake {
            for datagram in duel.peer.flush() {
                duel.deliver(&datagram);
            }
        }
        duel.send(packet, &[ty::PING as u8]);
        let mut siege = Siege::new(duel);
        for _ in 0..20_000 {
            siege.send(packet, &[ty::PING as u8]);
        }
        siege.check("PINGs of the handshake", 0);
        assert_eq!(siege.duel.closed(), None);
    }
}

// test: SECURITY.md row 8: a client that pings and does not go on is acknowledged a limited number
// of times
#[test]
fn a_stalled_handshake_is_acknowledged_64_times() {
    for packet in [Initial, Handshake] {
        let mut duel = Duel::new(Side::Server, Terms::default());
        if packet == Handshake {
            for datagram in duel.peer.flush() {
                duel.deliver(&datagram);
            }
        }
        duel.send(packet, &[ty::PING as u8]);
        let sent = duel.victim().stats().datagrams_sent;
        for _ in 0..20_000 {
            duel.send(packet, &[ty::PING as u8]);
        }
        let sent = duel.victim().stats().datagrams_sent - sent;
        assert!((32..=64).contains(&sent), "{packet:?}: {sent}");
        // Once the client continues, so does the handshake.
        duel.shake_hands();
        assert!(duel.events.contains(&Event::Connected), "{packet:?}");
    }
}

// test: SECURITY.md row 8: a packet that comes after every other number leaves the oldest forgotten
#[test]
fn gaps_among_packet_numbers_cost_no_memory() {
    let mut siege = Siege::connected();
    for n in 0..100_000 {
        let odd = Odd {
            number: Some(1000 + 2 * n),
            ..Odd::default()
        };
        let datagram = siege.duel.peer.packet(OneRtt, &[ty::PING as u8; 4], odd);
        siege.duel.deliver(&datagram);
        siege.count();
    }
    siege.check("gaps", 0);
    assert_eq!(siege.duel.closed(), None);
}

/// The ranges of packet numbers that ACK frames may name: the packets that the victim has sent.
fn acknowledge(ranges: &[std::ops::RangeInclusive<u64>]) -> Vec<u8> {
    frames(|w| {
        write::ack(w, ranges.iter().cloned(), 0, None);
    })
}

// test: RFC 9000 §13.1, §21.4; SECURITY.md row 6
#[test]
fn acknowledging_packets_never_sent_closes_the_connection() {
    // A number just beyond all sent ones, and one far beyond.
    for largest in [1000, (1 << 62) - 1] {
        let mut duel = Duel::connected(Side::Server, terms());
        duel.send(OneRtt, &acknowledge(&[0..=largest]));
        let expected = TransportErrorCode::PROTOCOL_VIOLATION;
        assert_eq!(duel.closed(), Some(expected), "{largest}");
    }
    // A peer that acknowledges every packet as it arrives, and every number between: sooner or
    // later, one number is skipped.
    let mut duel = Duel::connected(Side::Server, terms());
    let mut acknowledged = 0;
    while duel.closed().is_none() {
        duel.send(OneRtt, &[ty::PING as u8]);
        duel.send(OneRtt, &[ty::PING as u8]);
        let next = duel.peer.largest_received().map_or(0, |n| n + 1);
        for number in acknowledged..next {
            duel.send(OneRtt, &acknowledge(&[number..=number]));
        }
        acknowledged = next;
        assert!(acknowledged < 10_000, "no packet number was skipped");
    }
    let expected = TransportErrorCode::PROTOCOL_VIOLATION;
    assert_eq!(duel.closed(), Some(expected));
    assert!(acknowledged >= 300, "{acknowledged}");
}

// test: RFC 9000 §4.6, SECURITY.md row 19
#[test]
fn streams_that_are_opened_and_reset_cost_no_memory() {
    let allowed = TransportConfig::default().max_concurrent_uni_streams;
    for accepts in [true, false] {
        let mut siege = Siege::connected();
        let mut limit = allowed;
        let mut opened = 0;
        for n in 0..100_000 {
            let id = StreamId::new(Side::Client, Direction::Unidirectional, n);
            if n == limit {
                break;
            }
            opened += 1;
            siege
                .duel
                .send(OneRtt, &frames(|w| write::reset_stream(w, id, 7, 10)));
            if accepts {
                assert_eq!(
                    siege.duel.victim().accept(Direction::Unidirectional),
                    Some(id)
                );
                assert!(
                    siege.duel.victim().read(id, 1).is_err(),
                    "a reset stream cannot be read"
                );
            }
            // Acknowledge what the victim sends, as any peer can.
            let next = siege.duel.peer.largest_received().map_or(0, |n| n + 1);
            if n % 16 == 0 && next > 0 {
                siege
                    .duel
                    .send(OneRtt, &acknowledge(&[next - 1..=next - 1]));
            }
            siege.duel.pass(micros(10));
            for (_, payload) in &siege.duel.peer.received {
                for frame in Frames::new(payload).flatten() {
                    if let Frame::MaxStreams { maximum: new, .. } = frame {
                        limit = limit.max(new);
                    }
                }
            }
            siege.count();
            assert!(
                limit <= n + 1 + allowed,
                "the limit grants no more than may be open at a time"
            );
        }
        siege.check("resets", 0);
        assert_eq!(siege.duel.closed(), None);
        assert_eq!(opened, if accepts { 100_000 } else { allowed });
        let open = siege.duel.victim().stats().open_streams as u64;
        assert_eq!(open, if accepts { 0 } else { allowed });
    }
}

// test: RFC 9000 §12.3, SECURITY.md row 26: every packet comes twice, at once or later
#[test]
fn duplicate_packets_act_once() {
    let mut duel = Duel::connected(Side::Server, Terms::default());
    let mut got = BTreeMap::new();
    let mut late = Vec::new();
    for n in 0..1000_u32 {
        let payload = frames(|w| {
            write::datagram_header(w, None);
            w.bytes(&n.to_be_bytes());
        });
        let datagram = duel.peer.datagram(OneRtt, &payload);
        duel.deliver(&datagram);
        if n % 2 == 0 {
            duel.deliver(&datagram);
        } else {
            late.push(datagram);
        }
        if late.len() == 20 {
            for datagram in late.drain(..) {
                duel.deliver(&datagram);
            }
        }
        while let Some(bytes) = duel.victim().read_datagram() {
            *got.entry(bytes).or_insert(0) += 1;
        }
    }
    assert_eq!(got.len(), 1000);
    assert!(got.values().all(|times| *times == 1));
    assert_eq!(duel.victim().stats().packets_duplicate, 1000);
}

// test: RFC 9000 §10.2.1, SECURITY.md row 40
#[test]
fn close_answers_become_rarer() {
    let mut duel = Duel::connected(Side::Server, terms());
    let now = duel.now;
    duel.victim().close(now, 7, b"enough");
    duel.pump();
    let before = duel.datagrams;
    for _ in 0..10_000 {
        duel.send(OneRtt, &[ty::PING as u8]);
    }
    let answers = duel.datagrams - before;
    assert!((1..=20).contains(&answers), "{answers} answers");
    // Nor for longer than necessary.
    duel.pass(Duration::from_secs(10));
    duel.send(OneRtt, &[ty::PING as u8]);
    assert_eq!(duel.datagrams - before, answers);
}

// test: RFC 9000 §10.1, §21.6; SECURITY.md row 17: a handshake a byte at a time, and a connection
// that says nothing
#[test]
fn a_slow_handshake_times_out() {
    let mut duel = Duel::new(Side::Server, terms());
    let hello = duel.peer.handshake_bytes();
    for (at, byte) in hello.iter().enumerate() {
        let payload = frames(|w| {
            write::crypto_header(w, at as u64, 1);
            w.bytes(&[*byte]);
        });
        duel.send(Initial, &payload);
        duel.pass(Duration::from_millis(500));
        if duel.events.iter().any(|e| matches!(e, Event::Closed(_))) {
            assert!((18..=20).contains(&at), "after {at} bytes");
            break;
        }
    }
    assert_eq!(duel.events, [Event::Closed(CloseReason::HandshakeTimeout)]);
}
