//! Every rule of packets and frames with an error code: each offence must produce its code (RFC
//! 9000 §12.4, §17, §19).
//!
//! The offender is a peer made by hand, so each packet is authentic and only its content is wrong.

use squall_core::TransportConfig;
use squall_sim::{Duel, Odd, Terms, frames};
use squall_wire::frame::{ty, write};
use squall_wire::{
    AckFrequency, ConnectionId, Direction, Frames, PacketType, Side, StreamId, TransportErrorCode,
    Writer, varint,
};

use PacketType::{Handshake, Initial, OneRtt};
use TransportErrorCode as Code;

/// Streams that the victim allows of each kind.
const STREAMS: u64 = 4;
/// Bytes that it allows on each, and on all.
const STREAM_WINDOW: u64 = 10_000;
const WINDOW: u64 = 15_000;

pub(crate) fn transport() -> TransportConfig {
    TransportConfig::default()
        .max_concurrent_bidi_streams(STREAMS)
        .max_concurrent_uni_streams(STREAMS)
        .initial_stream_window(STREAM_WINDOW)
        .stream_receive_window(STREAM_WINDOW)
        .initial_window(WINDOW)
        .receive_window(WINDOW)
}

pub(crate) fn terms() -> Terms {
    Terms {
        transport: transport(),
        ..Terms::default()
    }
}

/// One offence in 1-RTT packets, after what leads up to it; against both roles unless one is named.
struct Offence {
    what: &'static str,
    victim: Option<Side>,
    payloads: Vec<Vec<u8>>,
    code: Code,
}

fn offence(what: &'static str, code: Code, payloads: impl IntoIterator<Item = Vec<u8>>) -> Offence {
    Offence {
        what,
        victim: None,
        payloads: payloads.into_iter().collect(),
        code,
    }
}

fn one(what: &'static str, code: Code, write: impl FnOnce(&mut Writer<'_>)) -> Offence {
    offence(what, code, [frames(write)])
}

impl Offence {
    fn to(mut self, victim: Side) -> Self {
        self.victim = Some(victim);
        self
    }
}

/// A frame of integers after its type.
fn integers(ty: u64, values: &[u64]) -> Vec<u8> {
    frames(|w| {
        w.varint(ty);
        values.iter().for_each(|v| w.varint(*v));
    })
}

fn stream(id: StreamId, offset: u64, data: &[u8], fin: bool) -> Vec<u8> {
    frames(|w| {
        write::stream_header(w, id, offset, Some(data.len()), fin);
        w.bytes(data);
    })
}

fn new_id(sequence: u64, retire_prior_to: u64, id: u8, token: u8) -> Vec<u8> {
    let id = ConnectionId::new(&[id; 8]).expect("8 bytes");
    frames(|w| write::new_connection_id(w, sequence, retire_prior_to, &id, &[token; 16]))
}

/// The `index`th stream of a kind that `opener` opens.
fn id(opener: Side, direction: Direction, index: u64) -> StreamId {
    StreamId::new(opener, direction, index)
}

fn run(offence: &Offence, victim: Side) {
    let what = format!("{} to a {victim:?}", offence.what);
    let mut duel = Duel::connected(victim, terms());
    for (i, payload) in offence.payloads.iter().enumerate() {
        assert_eq!(duel.closed(), None, "{what}: closed before payload {i}");
        duel.send(OneRtt, payload);
    }
    assert_eq!(duel.closed(), Some(offence.code), "{what}");
    assert_eq!(
        duel.close_code_received(),
        Some(offence.code),
        "{what}: the code in CONNECTION_CLOSE"
    );
}

fn run_all(offences: &[Offence]) {
    for offence in offences {
        for victim in [Side::Client, Side::Server] {
            if offence.victim.is_none_or(|only| only == victim) {
                run(offence, victim);
            }
        }
    }
}

/// Rules of a frame's own layout.
#[test]
fn malformed_frames_have_their_error() {
    run_all(&[
        // RFC 9000 §12.4
        offence(
            "a packet without frames",
            Code::PROTOCOL_VIOLATION,
            [vec![]],
        ),
        offence("an unknown type", Code::FRAME_ENCODING_ERROR, [vec![0x21]]),
        offence(
            "an unknown type of four bytes",
            Code::FRAME_ENCODING_ERROR,
            [vec![0xa0, 0, 0x12, 0x34]],
        ),
        offence(
            "a type in more bytes than necessary",
            Code::PROTOCOL_VIOLATION,
            [vec![0x40, 0x01]],
        ),
        offence(
            "a frame that ends in the middle",
            Code::FRAME_ENCODING_ERROR,
            [vec![0x1b, 1, 2, 3]],
        ),
        // §19.3.1
        offence(
            "an ACK whose first range goes below zero",
            Code::FRAME_ENCODING_ERROR,
            [integers(ty::ACK, &[0, 0, 0, 1])],
        ),
        offence(
            "an ACK whose gap goes below zero",
            Code::FRAME_ENCODING_ERROR,
            [integers(ty::ACK, &[1, 0, 1, 0, 0, 0])],
        ),
        // §19.6, §19.8
        offence(
            "CRYPTO beyond 2^62 - 1",
            Code::FRAME_ENCODING_ERROR,
            [[integers(ty::CRYPTO, &[varint::MAX, 1]), vec![0]].concat()],
        ),
        offence(
            "STREAM beyond 2^62 - 1",
            Code::FRAME_ENCODING_ERROR,
            [[integers(ty::STREAM | 0x06, &[0, varint::MAX, 1]), vec![0]].concat()],
        ),
        // §19.7
        offence(
            "NEW_TOKEN without a token",
            Code::FRAME_ENCODING_ERROR,
            [integers(ty::NEW_TOKEN, &[0])],
        ),
        // §19.11, §19.14
        offence(
            "MAX_STREAMS above 2^60",
            Code::FRAME_ENCODING_ERROR,
            [integers(ty::MAX_STREAMS_BIDI, &[(1 << 60) + 1])],
        ),
        offence(
            "STREAMS_BLOCKED above 2^60",
            Code::FRAME_ENCODING_ERROR,
            [integers(ty::STREAMS_BLOCKED_UNI, &[(1 << 60) + 1])],
        ),
        // §19.15
        offence(
            "NEW_CONNECTION_ID that retires itself",
            Code::FRAME_ENCODING_ERROR,
            [[
                integers(ty::NEW_CONNECTION_ID, &[1, 2]),
                vec![8],
                vec![0; 24],
            ]
            .concat()],
        ),
        offence(
            "NEW_CONNECTION_ID of no bytes",
            Code::FRAME_ENCODING_ERROR,
            [[
                integers(ty::NEW_CONNECTION_ID, &[1, 0]),
                vec![0],
                vec![0; 16],
            ]
            .concat()],
        ),
        offence(
            "NEW_CONNECTION_ID of 21 bytes",
            Code::FRAME_ENCODING_ERROR,
            [[
                integers(ty::NEW_CONNECTION_ID, &[1, 0]),
                vec![21],
                vec![0; 37],
            ]
            .concat()],
        ),
        // draft-ietf-quic-reliable-stream-reset §4
        offence(
            "RESET_STREAM_AT that promises more than there is",
            Code::FRAME_ENCODING_ERROR,
            [integers(ty::RESET_STREAM_AT, &[0, 0, 1, 2])],
        ),
    ]);
}

/// Rules of streams: whose they are, how many, and how long.
#[test]
fn stream_violations_have_their_error() {
    use Direction::{Bidirectional as Bidi, Unidirectional as Uni};
    let mut offences = Vec::new();
    for victim in [Side::Client, Side::Server] {
        let offender = victim.peer();
        let own_uni = id(offender, Uni, 0);
        let its_uni = id(victim, Uni, 0);
        let its_bidi = id(victim, Bidi, 0);
        let beyond = id(offender, Bidi, STREAMS);
        let beyond_uni = id(offender, Uni, STREAMS);
        let state = Code::STREAM_STATE_ERROR;
        let limit = Code::STREAM_LIMIT_ERROR;
        for (what, code, payload) in [
            // RFC 9000 §19.8
            (
                "STREAM on a stream that only it sends on",
                state,
                stream(its_uni, 0, b"x", false),
            ),
            (
                "STREAM on a stream that it has not opened",
                state,
                stream(its_bidi, 0, b"x", false),
            ),
            (
                "STREAM beyond the number of streams",
                limit,
                stream(beyond, 0, b"x", false),
            ),
            (
                "STREAM beyond the number of uni streams",
                limit,
                stream(beyond_uni, 0, b"x", false),
            ),
            // §19.4
            (
                "RESET_STREAM on a stream that only it sends on",
                state,
                integers(ty::RESET_STREAM, &[its_uni.0, 0, 0]),
            ),
            (
                "RESET_STREAM on a stream that it has not opened",
                state,
                integers(ty::RESET_STREAM, &[its_bidi.0, 0, 0]),
            ),
            (
                "RESET_STREAM beyond the number of streams",
                limit,
                integers(ty::RESET_STREAM, &[beyond.0, 0, 0]),
            ),
            (
                "RESET_STREAM_AT on a stream that only it sends on",
                state,
                integers(ty::RESET_STREAM_AT, &[its_uni.0, 0, 0, 0]),
            ),
            (
                "RESET_STREAM_AT beyond the number of streams",
                limit,
                integers(ty::RESET_STREAM_AT, &[beyond.0, 0, 0, 0]),
            ),
            // §19.5
            (
                "STOP_SENDING on a stream that only the peer sends on",
                state,
                integers(ty::STOP_SENDING, &[own_uni.0, 0]),
            ),
            (
                "STOP_SENDING on a stream that it has not opened",
                state,
                integers(ty::STOP_SENDING, &[its_bidi.0, 0]),
            ),
            (
                "STOP_SENDING on a uni stream that it has not opened",
                state,
                integers(ty::STOP_SENDING, &[its_uni.0, 0]),
            ),
            (
                "STOP_SENDING beyond the number of streams",
                limit,
                integers(ty::STOP_SENDING, &[beyond.0, 0]),
            ),
            // §19.10
            (
                "MAX_STREAM_DATA on a stream that only the peer sends on",
                state,
                integers(ty::MAX_STREAM_DATA, &[own_uni.0, 0]),
            ),
            (
                "MAX_STREAM_DATA on a stream that it has not opened",
                state,
                integers(ty::MAX_STREAM_DATA, &[its_bidi.0, 0]),
            ),
            (
                "MAX_STREAM_DATA beyond the number of streams",
                limit,
                integers(ty::MAX_STREAM_DATA, &[beyond.0, 0]),
            ),
            // §19.13
            (
                "STREAM_DATA_BLOCKED on a stream that only it sends on",
                state,
                integers(ty::STREAM_DATA_BLOCKED, &[its_uni.0, 0]),
            ),
            (
                "STREAM_DATA_BLOCKED on a stream that it has not opened",
                state,
                integers(ty::STREAM_DATA_BLOCKED, &[its_bidi.0, 0]),
            ),
            (
                "STREAM_DATA_BLOCKED beyond the number of streams",
                limit,
                integers(ty::STREAM_DATA_BLOCKED, &[beyond.0, 0]),
            ),
            // §4.1
            (
                "STREAM beyond the stream's credit",
                Code::FLOW_CONTROL_ERROR,
                stream(own_uni, STREAM_WINDOW, b"x", false),
            ),
            (
                "STREAM at a huge offset",
                Code::FLOW_CONTROL_ERROR,
                stream(own_uni, varint::MAX - 1, b"x", false),
            ),
            (
                "RESET_STREAM beyond the stream's credit",
                Code::FLOW_CONTROL_ERROR,
                integers(ty::RESET_STREAM, &[own_uni.0, 0, STREAM_WINDOW + 1]),
            ),
            (
                "RESET_STREAM_AT beyond the stream's credit",
                Code::FLOW_CONTROL_ERROR,
                integers(ty::RESET_STREAM_AT, &[own_uni.0, 0, STREAM_WINDOW + 1, 0]),
            ),
        ] {
            offences.push(offence(what, code, [payload]).to(victim));
        }
        let other = id(offender, Uni, 1);
        let at_end = |id, fin| stream(id, STREAM_WINDOW - 1, b"x", fin);
        for (what, code, payloads) in [
            (
                "STREAM beyond the connection's credit",
                Code::FLOW_CONTROL_ERROR,
                vec![at_end(own_uni, false), at_end(other, false)],
            ),
            (
                "RESET_STREAM beyond the connection's credit",
                Code::FLOW_CONTROL_ERROR,
                vec![
                    at_end(own_uni, false),
                    integers(ty::RESET_STREAM, &[other.0, 0, STREAM_WINDOW]),
                ],
            ),
            // §4.5
            (
                "data behind the end",
                Code::FINAL_SIZE_ERROR,
                vec![
                    stream(own_uni, 5, b"", true),
                    stream(own_uni, 5, b"x", false),
                ],
            ),
            (
                "another end",
                Code::FINAL_SIZE_ERROR,
                vec![stream(own_uni, 5, b"", true), stream(own_uni, 4, b"", true)],
            ),
            (
                "an end before data that has come",
                Code::FINAL_SIZE_ERROR,
                vec![
                    stream(own_uni, 5, b"x", false),
                    stream(own_uni, 5, b"", true),
                ],
            ),
            (
                "a reset at another size than the end",
                Code::FINAL_SIZE_ERROR,
                vec![
                    stream(own_uni, 5, b"", true),
                    integers(ty::RESET_STREAM, &[own_uni.0, 0, 6]),
                ],
            ),
            (
                "a reset before data that has come",
                Code::FINAL_SIZE_ERROR,
                vec![
                    stream(own_uni, 5, b"x", false),
                    integers(ty::RESET_STREAM, &[own_uni.0, 0, 5]),
                ],
            ),
            (
                "resets with two sizes",
                Code::FINAL_SIZE_ERROR,
                vec![
                    integers(ty::RESET_STREAM, &[own_uni.0, 0, 5]),
                    integers(ty::RESET_STREAM, &[own_uni.0, 0, 6]),
                ],
            ),
            // draft-ietf-quic-reliable-stream-reset §5.2
            (
                "partial resets with two codes",
                Code::STREAM_STATE_ERROR,
                vec![
                    integers(ty::RESET_STREAM_AT, &[own_uni.0, 1, 9, 5]),
                    integers(ty::RESET_STREAM_AT, &[own_uni.0, 2, 9, 4]),
                ],
            ),
            (
                "partial resets with two sizes",
                Code::FINAL_SIZE_ERROR,
                vec![
                    integers(ty::RESET_STREAM_AT, &[own_uni.0, 1, 9, 5]),
                    integers(ty::RESET_STREAM_AT, &[own_uni.0, 1, 8, 4]),
                ],
            ),
        ] {
            offences.push(offence(what, code, payloads).to(victim));
        }
    }
    run_all(&offences);
}

/// Rules of the connection as a whole.
#[test]
fn connection_violations_have_their_error() {
    let limit = Code::CONNECTION_ID_LIMIT_ERROR;
    run_all(&[
        // RFC 9000 §13.1
        offence(
            "an ACK of what was never sent",
            Code::PROTOCOL_VIOLATION,
            [integers(ty::ACK, &[1 << 40, 0, 0, 0])],
        ),
        // §7.5
        offence(
            "CRYPTO beyond the buffer",
            Code::CRYPTO_BUFFER_EXCEEDED,
            [[integers(ty::CRYPTO, &[1 << 20, 1]), vec![0]].concat()],
        ),
        // §19.7
        one("NEW_TOKEN from a client", Code::PROTOCOL_VIOLATION, |w| {
            write::new_token(w, b"token");
        })
        .to(Side::Server),
        // §19.15
        offence(
            "one sequence number for two ids",
            Code::PROTOCOL_VIOLATION,
            [new_id(1, 0, 1, 1), new_id(1, 0, 2, 1)],
        ),
        offence(
            "one id under two sequence numbers",
            Code::PROTOCOL_VIOLATION,
            [new_id(1, 0, 1, 1), new_id(2, 0, 1, 1)],
        ),
        offence(
            "one id with two tokens",
            Code::PROTOCOL_VIOLATION,
            [new_id(1, 0, 1, 1), new_id(1, 0, 1, 2)],
        ),
        // §5.1.1
        offence(
            "more ids than the victim holds",
            limit,
            (1..=4).map(|i| new_id(i, 0, i as u8, i as u8)),
        ),
        // §19.16
        offence(
            "RETIRE_CONNECTION_ID for an id never issued",
            Code::PROTOCOL_VIOLATION,
            [integers(ty::RETIRE_CONNECTION_ID, &[1 << 20])],
        ),
        offence(
            "RETIRE_CONNECTION_ID for the id that it came to",
            Code::PROTOCOL_VIOLATION,
            [integers(ty::RETIRE_CONNECTION_ID, &[0])],
        ),
        // §19.20
        one(
            "HANDSHAKE_DONE from a client",
            Code::PROTOCOL_VIOLATION,
            write::handshake_done,
        )
        .to(Side::Server),
        // draft-ietf-quic-ack-frequency §4
        one(
            "a max_ack_delay below the least",
            Code::PROTOCOL_VIOLATION,
            |w| {
                write::ack_frequency(w, &request(999));
            },
        ),
        one(
            "a max_ack_delay of 2^14 ms",
            Code::PROTOCOL_VIOLATION,
            |w| {
                write::ack_frequency(w, &request(1000 << 14));
            },
        ),
    ]);
}

const fn request(max_ack_delay_us: u64) -> AckFrequency {
    AckFrequency {
        sequence: 0,
        ack_eliciting_threshold: 1,
        max_ack_delay_us,
        reordering_threshold: 1,
    }
}

// test: RFC 9221 §3
#[test]
fn a_datagram_without_support_is_a_protocol_violation() {
    for victim in [Side::Client, Side::Server] {
        let mut terms = terms();
        terms.transport.datagram_receive_buffer = 0;
        let mut duel = Duel::connected(victim, terms);
        duel.send(OneRtt, &[ty::DATAGRAM as u8, 1]);
        assert_eq!(duel.closed(), Some(Code::PROTOCOL_VIOLATION));
    }
}

// test: RFC 9221 §3 — the type and the length of the frame count.
#[test]
fn a_datagram_frame_above_the_limit() {
    const MAX: u16 = 100;
    // Without a length; with one of two bytes, and with one of eight.
    let headers: [&[u8]; 3] = [
        &[ty::DATAGRAM as u8],
        &[ty::DATAGRAM_LEN as u8, 0x40],
        &[ty::DATAGRAM_LEN as u8, 0xc0, 0, 0, 0, 0, 0, 0],
    ];
    for victim in [Side::Client, Side::Server] {
        for header in headers {
            for size in [MAX, MAX + 1] {
                let mut terms = terms();
                terms.transport.max_datagram_frame_size = MAX;
                let mut duel = Duel::connected(victim, terms);
                let mut payload = header.to_vec();
                if header[0] == ty::DATAGRAM_LEN as u8 {
                    payload.push((usize::from(size) - header.len() - 1) as u8);
                }
                payload.resize(size.into(), 7);
                duel.send(OneRtt, &payload);
                let expected = (size > MAX).then_some(Code::PROTOCOL_VIOLATION);
                assert_eq!(duel.closed(), expected, "{header:?}, {size} bytes");
            }
        }
    }
}

/// RFC 9000 §12.4, table 3: frames where they do not belong.
#[test]
fn frames_in_forbidden_packets_are_errors() {
    let one_of_each: &[(u64, Vec<u8>)] = &[
        (ty::RESET_STREAM, integers(ty::RESET_STREAM, &[0, 0, 0])),
        (ty::STOP_SENDING, integers(ty::STOP_SENDING, &[0, 0])),
        (
            ty::NEW_TOKEN,
            [integers(ty::NEW_TOKEN, &[1]), vec![1]].concat(),
        ),
        (ty::STREAM, integers(ty::STREAM, &[0])),
        (ty::MAX_DATA, integers(ty::MAX_DATA, &[1])),
        (ty::MAX_STREAM_DATA, integers(ty::MAX_STREAM_DATA, &[0, 1])),
        (ty::MAX_STREAMS_BIDI, integers(ty::MAX_STREAMS_BIDI, &[1])),
        (ty::DATA_BLOCKED, integers(ty::DATA_BLOCKED, &[1])),
        (
            ty::STREAM_DATA_BLOCKED,
            integers(ty::STREAM_DATA_BLOCKED, &[0, 1]),
        ),
        (
            ty::STREAMS_BLOCKED_BIDI,
            integers(ty::STREAMS_BLOCKED_BIDI, &[1]),
        ),
        (ty::NEW_CONNECTION_ID, new_id(1, 0, 1, 1)),
        (
            ty::RETIRE_CONNECTION_ID,
            integers(ty::RETIRE_CONNECTION_ID, &[1]),
        ),
        (ty::PATH_CHALLENGE, [vec![0x1a], vec![0; 8]].concat()),
        (ty::PATH_RESPONSE, [vec![0x1b], vec![0; 8]].concat()),
        (
            ty::CONNECTION_CLOSE_APPLICATION,
            integers(ty::CONNECTION_CLOSE_APPLICATION, &[0, 0]),
        ),
        (ty::HANDSHAKE_DONE, vec![0x1e]),
        (ty::DATAGRAM, vec![0x30]),
        (
            ty::RESET_STREAM_AT,
            integers(ty::RESET_STREAM_AT, &[0, 0, 0, 0]),
        ),
        (
            ty::ACK_FREQUENCY,
            integers(ty::ACK_FREQUENCY, &[0, 1, 2000, 1]),
        ),
        (ty::IMMEDIATE_ACK, vec![0x1f]),
    ];
    for (ty, payload) in one_of_each {
        assert!(Frames::new(payload).all(|f| f.is_ok_and(|f| f.ty() == *ty)));
        for packet in [Initial, Handshake] {
            let mut duel = unfinished(Side::Server, packet);
            // A PING first: a packet with only a STREAM frame takes another path through the code.
            for payload in [payload.clone(), [&[1], &payload[..]].concat()] {
                duel.send(packet, &payload);
                let told = duel.closed();
                assert_eq!(
                    told,
                    Some(Code::PROTOCOL_VIOLATION),
                    "{ty:#x} in {packet:?}"
                );
            }
        }
    }
}

/// A duel that has reached the keys for this kind of packet, and no further.
pub(crate) fn unfinished(victim: Side, packet: PacketType) -> Duel {
    let mut duel = Duel::new(victim, terms());
    if packet == Initial {
        if victim == Side::Server {
            duel.send(Initial, &[ty::PING as u8]);
        }
        return duel;
    }
    for datagram in duel.peer.flush() {
        // A client gets only the ServerHello: with more it would be done with both levels.
        if victim == Side::Server || datagram[0] & 0x30 == 0 {
            duel.deliver(&datagram);
        }
    }
    // A client's answer that completes the handshake is made but not delivered.
    if victim == Side::Server {
        let _ = duel.peer.flush();
    }
    assert!(duel.peer.has_keys(packet));
    duel
}

// test: RFC 9000 §17.2, §17.3.1
#[test]
fn reserved_bits_are_checked() {
    for victim in [Side::Client, Side::Server] {
        for (packet, bits) in [(Initial, 0x0c), (Handshake, 0x0c), (OneRtt, 0x18)] {
            let mut duel = match packet {
                OneRtt => Duel::connected(victim, terms()),
                _ => unfinished(victim, packet),
            };
            let odd = Odd {
                first_byte: bits,
                ..Odd::default()
            };
            let mut payload = vec![ty::PING as u8];
            if packet == Initial {
                payload.resize(1150, 0);
            }
            let mut bytes = duel.peer.packet(packet, &payload, odd);
            if packet == Initial {
                bytes.resize(1200, 0);
            }
            duel.deliver(&bytes);
            let code = duel.closed();
            assert_eq!(
                code,
                Some(Code::PROTOCOL_VIOLATION),
                "{packet:?} to a {victim:?}"
            );
        }
    }
}
