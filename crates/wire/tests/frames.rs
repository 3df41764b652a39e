//! Frames by example: RFC 9000 §12.4, §12.5 and §19, RFC 9221 §4.

use squall_wire::frame::{allowed, write};
use squall_wire::{
    ConnectionId, Direction, EcnCounts, Frame, Frames, PacketType, StreamId, TransportErrorCode,
    Writer, varint,
};

const ENCODING: TransportErrorCode = TransportErrorCode::FRAME_ENCODING_ERROR;
const VIOLATION: TransportErrorCode = TransportErrorCode::PROTOCOL_VIOLATION;

/// Parses the first frame of these bytes.
fn first(payload: &[u8]) -> Result<Frame<'_>, (TransportErrorCode, u64)> {
    Frames::new(payload)
        .next()
        .expect("an empty payload is an error too")
        .map_err(|error| (error.code, error.frame_type))
}

#[test]
fn malformed_frames_have_the_error_of_the_rfc() {
    let cases: [(&str, &[u8], TransportErrorCode, u64); 29] = [
        // RFC 9000 §12.4
        ("no frame", &[], VIOLATION, 0),
        ("unknown type 0x20", &[0x20], ENCODING, 0x20),
        (
            "RESET_STREAM_AT that promises too much",
            &[0x24, 0, 0, 1, 2],
            ENCODING,
            0x24,
        ),
        (
            "a short ACK_FREQUENCY",
            &[0x40, 0xaf, 0, 0, 0],
            ENCODING,
            0xaf,
        ),
        ("unknown type 0x2f", &[0x2f], ENCODING, 0x2f),
        ("unknown type 0x32", &[0x32], ENCODING, 0x32),
        ("unknown type 0x40", &[0x40, 0x40], ENCODING, 0x40),
        ("unknown type of 8 bytes", &[0xff; 8], ENCODING, varint::MAX),
        ("PING in two bytes", &[0x40, 0x01], VIOLATION, 1),
        ("PING in four bytes", &[0x80, 0, 0, 0x01], VIOLATION, 1),
        ("PADDING in two bytes", &[0x40, 0x00], VIOLATION, 0),
        ("type cut off", &[0x40], ENCODING, 0),
        // RFC 9000 §19.3.1
        ("first ACK range below 0", &[0x02, 4, 0, 0, 5], ENCODING, 2),
        ("ACK gap below 0", &[0x02, 4, 0, 1, 3, 0, 0], ENCODING, 2),
        ("ACK range below 0", &[0x02, 9, 0, 1, 3, 1, 4], ENCODING, 2),
        (
            "more ACK ranges than bytes",
            &[0x02, 9, 0, 0x3f, 0, 0, 0],
            ENCODING,
            2,
        ),
        (
            "ACK without its ECN counts",
            &[0x03, 9, 0, 0, 0, 1, 1],
            ENCODING,
            3,
        ),
        // RFC 9000 §19.6
        (
            "CRYPTO beyond 2^62 - 1",
            &[0x06, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0],
            ENCODING,
            6,
        ),
        (
            "CRYPTO longer than the packet",
            &[0x06, 0, 2, 0],
            ENCODING,
            6,
        ),
        // RFC 9000 §19.7
        ("NEW_TOKEN without a token", &[0x07, 0], ENCODING, 7),
        // RFC 9000 §19.8
        (
            "STREAM beyond 2^62 - 1",
            &[0x0c, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
            ENCODING,
            0x0c,
        ),
        (
            "STREAM longer than the packet",
            &[0x0a, 0, 0x7f, 0xff, 0],
            ENCODING,
            0x0a,
        ),
        // RFC 9000 §19.11, §19.14
        (
            "MAX_STREAMS of 2^60 + 1",
            &[0x12, 0xd0, 0, 0, 0, 0, 0, 0, 1],
            ENCODING,
            0x12,
        ),
        (
            "STREAMS_BLOCKED of 2^60 + 1",
            &[0x17, 0xd0, 0, 0, 0, 0, 0, 0, 1],
            ENCODING,
            0x17,
        ),
        // RFC 9000 §19.15
        (
            "NEW_CONNECTION_ID retires itself",
            &[[0x18, 1, 2, 1, 9].as_slice(), &[0; 16]].concat(),
            ENCODING,
            0x18,
        ),
        (
            "NEW_CONNECTION_ID, empty",
            &[[0x18, 1, 0, 0].as_slice(), &[0; 16]].concat(),
            ENCODING,
            0x18,
        ),
        (
            "NEW_CONNECTION_ID, 21",
            &[[0x18, 1, 0, 21].as_slice(), &[0; 37]].concat(),
            ENCODING,
            0x18,
        ),
        // RFC 9000 §19.19
        (
            "CONNECTION_CLOSE, reason cut",
            &[0x1c, 0, 0, 2, b'a'],
            ENCODING,
            0x1c,
        ),
        // RFC 9221 §4
        (
            "DATAGRAM longer than the packet",
            &[0x31, 2, 0],
            ENCODING,
            0x31,
        ),
    ];
    for (name, payload, code, ty) in cases {
        assert_eq!(first(payload), Err((code, ty)), "{name}");
        let mut frames = Frames::new(payload);
        assert!(frames.next().is_some_and(|frame| frame.is_err()), "{name}");
        assert_eq!(frames.next(), None, "{name}: nothing comes after an error");
    }
}

// The largest values that are still allowed.
#[test]
fn values_at_the_limits_are_legal() {
    let most = [0xff; 8];
    // The last byte of a stream has offset 2^62 - 2.
    let stream = [&[0x0c, 0], &[0xff; 7][..], &[0xfe, 0]].concat();
    let data = &[0][..];
    let (id, offset) = (StreamId(0), varint::MAX - 1);
    assert_eq!(
        first(&stream),
        Ok(Frame::Stream {
            id,
            offset,
            fin: false,
            data
        })
    );
    let crypto = [&[0x06], &most[..], &[0]].concat();
    assert_eq!(
        first(&crypto),
        Ok(Frame::Crypto {
            offset: varint::MAX,
            data: &[]
        })
    );
    let max_streams = [0x13, 0xd0, 0, 0, 0, 0, 0, 0, 0];
    let direction = Direction::Unidirectional;
    assert_eq!(
        first(&max_streams),
        Ok(Frame::MaxStreams {
            direction,
            maximum: 1 << 60
        })
    );
    let ack = [0x02, 9, 0, 1, 3, 0, 4];
    let Ok(Frame::Ack(ack)) = first(&ack) else {
        panic!()
    };
    assert_eq!(ack.ranges().collect::<Vec<_>>(), [6..=9, 0..=4]);
}

#[test]
fn frames_before_an_error_are_returned() {
    let mut frames = Frames::new(&[0x01, 0x00, 0x00, 0x1e, 0x02]);
    assert_eq!(frames.next(), Some(Ok(Frame::Ping)));
    assert_eq!(frames.next(), Some(Ok(Frame::Padding(2))));
    assert_eq!(frames.next(), Some(Ok(Frame::HandshakeDone)));
    assert_eq!(frames.next().unwrap().unwrap_err().code, ENCODING);
    assert_eq!(frames.next(), None);
}

#[test]
fn padding_is_one_run_of_any_length() {
    for n in 1..100 {
        for behind in [&[][..], &[0x01], &[0x01, 0x00]] {
            let payload = [&vec![0; n], behind].concat();
            let mut frames = Frames::new(&payload);
            assert_eq!(frames.next(), Some(Ok(Frame::Padding(n))));
            assert_eq!(frames.position(), n);
        }
    }
}

// test: RFC 9000 §12.4, table 3; §12.5; RFC 9221 §4
#[test]
fn frames_are_allowed_as_the_table_says() {
    use PacketType::{Handshake, Initial, OneRtt, ZeroRtt};
    let table = [
        (0x00..=0x01, "IH01"),
        (0x02..=0x03, "IH_1"),
        (0x04..=0x05, "__01"),
        (0x06..=0x06, "IH_1"),
        (0x07..=0x07, "___1"),
        (0x08..=0x18, "__01"),
        // §12.5 removes 0-RTT from what table 3 says about RETIRE_CONNECTION_ID.
        (0x19..=0x19, "___1"),
        (0x1a..=0x1a, "__01"),
        (0x1b..=0x1b, "___1"),
        (0x1c..=0x1c, "IH01"),
        (0x1d..=0x1d, "__01"),
        (0x1e..=0x1e, "___1"),
        // draft-ietf-quic-ack-frequency §3: none of it in 0-RTT.
        (0x1f..=0x1f, "___1"),
        (0x20..=0x23, "____"),
        // draft-ietf-quic-reliable-stream-reset §3.
        (0x24..=0x24, "__01"),
        (0x25..=0x2f, "____"),
        (0x30..=0x31, "__01"),
        (0x32..=0xae, "____"),
        (0xaf..=0xaf, "___1"),
        (0xb0..=0x200, "____"),
        (varint::MAX..=u64::MAX, "____"),
    ];
    let far = [varint::MAX, 1 << 32, 1 << 61];
    for ty in (0..=0x200).chain(far) {
        let packets = table
            .iter()
            .find(|(types, _)| types.contains(&ty))
            .map_or("____", |row| row.1);
        for (letter, packet) in [
            ('I', Initial),
            ('H', Handshake),
            ('0', ZeroRtt),
            ('1', OneRtt),
        ] {
            assert_eq!(
                allowed(ty, packet),
                packets.contains(letter),
                "{ty:#x} in {packet:?}"
            );
        }
    }
}

// test: RFC 9000 §12.4, table 3, columns N and P
#[test]
fn frames_are_ack_eliciting_and_probing_as_the_table_says() {
    let id = ConnectionId::new(&[1]).unwrap();
    let (error_code, reason) = (0, &[][..]);
    for (frame, ty, eliciting, probing) in [
        (Frame::Padding(3), 0x00, false, true),
        (Frame::Ping, 0x01, true, false),
        (first(&[2, 0, 0, 0, 0]).unwrap(), 0x02, false, false),
        (
            first(&[3, 0, 0, 0, 0, 0, 0, 0]).unwrap(),
            0x03,
            false,
            false,
        ),
        (
            Frame::Crypto {
                offset: 0,
                data: &[],
            },
            0x06,
            true,
            false,
        ),
        (
            Frame::Stream {
                id: StreamId(0),
                offset: 0,
                fin: true,
                data: &[],
            },
            0x09,
            true,
            false,
        ),
        (
            Frame::Stream {
                id: StreamId(0),
                offset: 1,
                fin: false,
                data: &[],
            },
            0x0c,
            true,
            false,
        ),
        (
            Frame::MaxStreams {
                direction: Direction::Unidirectional,
                maximum: 1,
            },
            0x13,
            true,
            false,
        ),
        (
            Frame::StreamsBlocked {
                direction: Direction::Bidirectional,
                limit: 1,
            },
            0x16,
            true,
            false,
        ),
        (
            Frame::NewConnectionId {
                sequence: 1,
                retire_prior_to: 0,
                id,
                reset_token: [0; 16],
            },
            0x18,
            true,
            true,
        ),
        (Frame::PathChallenge([0; 8]), 0x1a, true, true),
        (Frame::PathResponse([0; 8]), 0x1b, true, true),
        (
            Frame::ConnectionClose {
                error_code,
                frame_type: Some(0),
                reason,
            },
            0x1c,
            false,
            false,
        ),
        (
            Frame::ConnectionClose {
                error_code,
                frame_type: None,
                reason,
            },
            0x1d,
            false,
            false,
        ),
        (Frame::HandshakeDone, 0x1e, true, false),
        (Frame::Datagram { data: &[] }, 0x30, true, false),
        (first(&[0x24, 0, 0, 1, 1]).unwrap(), 0x24, true, false),
        (first(&[0x40, 0xaf, 1, 2, 3, 4]).unwrap(), 0xaf, true, false),
        (Frame::ImmediateAck, 0x1f, true, false),
    ] {
        assert_eq!(
            (frame.ty(), frame.is_ack_eliciting(), frame.is_probing()),
            (ty, eliciting, probing),
            "{frame:?}"
        );
    }
}

#[test]
fn a_reason_is_truncated_at_a_character_boundary() {
    let reason = "größer"; // g r ö(2) ß(2) e r
    for (room, kept) in [
        (0, ""),
        (1, "g"),
        (3, "gr"),
        (4, "grö"),
        (5, "grö"),
        (6, "größ"),
        (8, reason),
    ] {
        let mut buf = vec![0; 4 + room];
        let mut w = Writer::new(&mut buf);
        write::connection_close(&mut w, 1, Some(2), reason.as_bytes());
        assert!(!w.overflow());
        let len = w.len();
        let expected = Frame::ConnectionClose {
            error_code: 1,
            frame_type: Some(2),
            reason: kept.as_bytes(),
        };
        assert_eq!(first(&buf[..len]), Ok(expected), "{room}");
    }
    // Bytes that are not text are cut where the room ends.
    let mut buf = [0; 6];
    let mut w = Writer::new(&mut buf);
    write::connection_close(&mut w, 1, None, &[0x80; 10]);
    assert!(!w.overflow());
    assert_eq!(buf, [0x1d, 1, 3, 0x80, 0x80, 0x80]);
}

// The 64th range after the first makes the count take a second byte.
#[test]
fn the_range_count_is_included_in_the_size() {
    let ranges = |n: u64| (0..n).rev().map(|i| 2 * i..=2 * i);
    for (n, size) in [(64, 6 + 2 * 63), (65, 7 + 2 * 64)] {
        for (room, written) in [(size, n), (size - 1, n - 1)] {
            let mut buf = vec![0; room];
            let mut w = Writer::new(&mut buf);
            assert_eq!(write::ack(&mut w, ranges(n), 0, None), written as usize);
            assert!(!w.overflow());
        }
    }
}

#[test]
fn an_ack_without_ranges_or_room_is_not_written() {
    let mut buf = [0; 5];
    let mut w = Writer::new(&mut buf);
    assert_eq!(write::ack(&mut w, std::iter::empty(), 0, None), 0);
    // 5 bytes hold one small range, ECN counts would take three more.
    assert_eq!(
        write::ack(&mut w, [3..=9].into_iter(), 0, Some(EcnCounts::default())),
        0
    );
    assert_eq!((w.len(), w.overflow()), (0, false));
    assert_eq!(write::ack(&mut w, [3..=9].into_iter(), 0, None), 1);
    assert_eq!(buf, [2, 9, 0, 0, 6]);
}

// test: RFC 9000 §16
#[test]
fn an_ack_is_padded_to_the_exact_length() {
    // Largest 300, delay 5, one range of four more and one further down: 8 bytes.
    let ranges = [296..=300, 280..=289];
    for (len, end) in [(7, 8), (8, 8), (9, 9), (16, 16), (24, 24), (80, 8)] {
        let mut buf = [0; 40];
        let mut w = Writer::new(&mut buf);
        write::ack(&mut w, ranges.iter().cloned(), 5, None);
        write::lengthen_ack(&mut w, 0, len);
        assert_eq!((w.len(), w.overflow()), (end, false), "{len}");
    }
    let mut buf = [0; 10];
    let mut w = Writer::new(&mut buf);
    write::ack(&mut w, ranges.iter().cloned(), 5, None);
    write::lengthen_ack(&mut w, 0, 11);
    assert_eq!((w.len(), w.overflow()), (8, false), "there is no room");
    write::lengthen_ack(&mut w, 0, 10);
    assert_eq!((w.len(), w.overflow()), (10, false));
}
