//! Frames: RFC 9000 §12.4, §12.5 and §19, RFC 9221 §4.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use squall_wire::frame::{allowed, ty, write};
use squall_wire::{
    ConnectionId, Direction, EcnCounts, Frame, Frames, PacketType, StreamId, TransportErrorCode,
    Writer, varint,
};
use std::ops::RangeInclusive;

const ENCODING: TransportErrorCode = TransportErrorCode::FRAME_ENCODING_ERROR;
const VIOLATION: TransportErrorCode = TransportErrorCode::PROTOCOL_VIOLATION;

/// A frame with data of its own, as a generator makes it.
#[derive(Clone, Debug)]
enum Owned {
    /// A frame without data of variable length.
    Plain(Frame<'static>),
    Ack {
        ranges: Vec<RangeInclusive<u64>>,
        delay: u64,
        ecn: Option<EcnCounts>,
    },
    Crypto {
        offset: u64,
        data: Vec<u8>,
    },
    NewToken {
        token: Vec<u8>,
    },
    Stream {
        id: StreamId,
        offset: u64,
        fin: bool,
        data: Vec<u8>,
    },
    ConnectionClose {
        error_code: u64,
        frame_type: Option<u64>,
        reason: Vec<u8>,
    },
    Datagram {
        data: Vec<u8>,
    },
}

impl Owned {
    /// Writes the frame; `last` leaves out the lengths that the end of the packet can stand for.
    fn write(&self, w: &mut Writer<'_>, last: bool) {
        let before = w.len();
        match self {
            Self::Plain(frame) => write_plain(w, frame),
            Self::Ack { ranges, delay, ecn } => {
                assert_eq!(
                    write::ack(w, ranges.iter().cloned(), *delay, *ecn),
                    ranges.len()
                );
            }
            Self::Crypto { offset, data } => {
                write::crypto_header(w, *offset, data.len());
                assert_eq!(
                    w.len() - before,
                    write::crypto_header_size(*offset, data.len())
                );
                w.bytes(data);
            }
            Self::NewToken { token } => {
                write::new_token(w, token);
                assert_eq!(w.len() - before, write::new_token_size(token.len()));
            }
            Self::Stream {
                id,
                offset,
                fin,
                data,
            } => {
                let len = (!last).then_some(data.len());
                write::stream_header(w, *id, *offset, len, *fin);
                assert_eq!(
                    w.len() - before,
                    write::stream_header_size(*id, *offset, len)
                );
                w.bytes(data);
            }
            Self::ConnectionClose {
                error_code,
                frame_type,
                reason,
            } => {
                write::connection_close(w, *error_code, *frame_type, reason);
                let size = write::connection_close_size(*error_code, *frame_type, reason.len());
                assert_eq!(w.len() - before, size);
            }
            Self::Datagram { data } => {
                let len = (!last).then_some(data.len());
                write::datagram_header(w, len);
                assert_eq!(w.len() - before, write::datagram_header_size(len));
                w.bytes(data);
            }
        }
        assert!(!w.overflow());
    }

    /// Whether the frame that was read is this one.
    fn matches(&self, frame: &Frame<'_>) -> bool {
        match (self, frame) {
            (Self::Plain(own), frame) => own == frame,
            (Self::Ack { ranges, delay, ecn }, Frame::Ack(ack)) => {
                ack.ranges().eq(ranges.iter().cloned())
                    && (ack.largest, ack.delay, ack.ecn) == (*ranges[0].end(), *delay, *ecn)
                    && ack.first_range == ranges[0].end() - ranges[0].start()
                    && ack.range_count == ranges.len() as u64 - 1
            }
            (Self::Crypto { offset, data }, frame) => {
                *frame
                    == Frame::Crypto {
                        offset: *offset,
                        data,
                    }
            }
            (Self::NewToken { token }, frame) => *frame == Frame::NewToken { token },
            (
                Self::Stream {
                    id,
                    offset,
                    fin,
                    data,
                },
                frame,
            ) => {
                *frame
                    == Frame::Stream {
                        id: *id,
                        offset: *offset,
                        fin: *fin,
                        data,
                    }
            }
            (
                Self::ConnectionClose {
                    error_code,
                    frame_type,
                    reason,
                },
                frame,
            ) => {
                let (error_code, frame_type) = (*error_code, *frame_type);
                *frame
                    == Frame::ConnectionClose {
                        error_code,
                        frame_type,
                        reason,
                    }
            }
            (Self::Datagram { data }, frame) => *frame == Frame::Datagram { data },
            _ => false,
        }
    }
}

/// Writes a frame without data, and holds it to the size that `write` gives as its most.
fn write_plain(w: &mut Writer<'_>, frame: &Frame<'_>) {
    let before = w.len();
    let most = match *frame {
        Frame::Padding(n) => {
            write::padding(w, n);
            n
        }
        Frame::Ping => {
            write::ping(w);
            write::PING_SIZE
        }
        Frame::ResetStream {
            id,
            error_code,
            final_size,
        } => {
            write::reset_stream(w, id, error_code, final_size);
            write::RESET_STREAM_MAX_SIZE
        }
        Frame::StopSending { id, error_code } => {
            write::stop_sending(w, id, error_code);
            write::STOP_SENDING_MAX_SIZE
        }
        Frame::MaxData(maximum) => {
            write::max_data(w, maximum);
            write::MAX_DATA_MAX_SIZE
        }
        Frame::MaxStreamData { id, maximum } => {
            write::max_stream_data(w, id, maximum);
            write::MAX_STREAM_DATA_MAX_SIZE
        }
        Frame::MaxStreams { direction, maximum } => {
            write::max_streams(w, direction, maximum);
            write::MAX_STREAMS_MAX_SIZE
        }
        Frame::DataBlocked(limit) => {
            write::data_blocked(w, limit);
            write::MAX_DATA_MAX_SIZE
        }
        Frame::StreamDataBlocked { id, limit } => {
            write::stream_data_blocked(w, id, limit);
            write::MAX_STREAM_DATA_MAX_SIZE
        }
        Frame::StreamsBlocked { direction, limit } => {
            write::streams_blocked(w, direction, limit);
            write::MAX_STREAMS_MAX_SIZE
        }
        Frame::NewConnectionId {
            sequence,
            retire_prior_to,
            id,
            reset_token,
        } => {
            write::new_connection_id(w, sequence, retire_prior_to, &id, &reset_token);
            write::NEW_CONNECTION_ID_MAX_SIZE
        }
        Frame::RetireConnectionId { sequence } => {
            write::retire_connection_id(w, sequence);
            write::RETIRE_CONNECTION_ID_MAX_SIZE
        }
        Frame::PathChallenge(data) => {
            write::path_challenge(w, data);
            write::PATH_CHALLENGE_SIZE
        }
        Frame::PathResponse(data) => {
            write::path_response(w, data);
            write::PATH_CHALLENGE_SIZE
        }
        Frame::HandshakeDone => {
            write::handshake_done(w);
            write::HANDSHAKE_DONE_SIZE
        }
        frame => panic!("{frame:?} has data"),
    };
    assert!(w.len() - before <= most, "{frame:?}");
}

/// Integers of all four lengths, not only the eight-byte ones that a uniform choice gives.
fn int() -> impl Strategy<Value = u64> {
    int_up_to(varint::MAX)
}

fn int_up_to(most: u64) -> impl Strategy<Value = u64> {
    (0u32..62).prop_flat_map(move |bits| (0..=1u64 << bits).prop_map(move |v| v.min(most)))
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![
        Just(Direction::Bidirectional),
        Just(Direction::Unidirectional)
    ]
}

fn bytes(least: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), least..100)
}

fn plain() -> impl Strategy<Value = Frame<'static>> {
    let id = || int().prop_map(StreamId);
    let connection_id = || {
        bytes(1).prop_map(|b| ConnectionId::new(&b[..b.len().min(20)]).expect("at most 20 bytes"))
    };
    prop_oneof![
        (1usize..100).prop_map(Frame::Padding),
        Just(Frame::Ping),
        Just(Frame::HandshakeDone),
        (id(), int(), int()).prop_map(|(id, error_code, final_size)| {
            Frame::ResetStream {
                id,
                error_code,
                final_size,
            }
        }),
        (id(), int()).prop_map(|(id, error_code)| Frame::StopSending { id, error_code }),
        int().prop_map(Frame::MaxData),
        int().prop_map(Frame::DataBlocked),
        (id(), int()).prop_map(|(id, maximum)| Frame::MaxStreamData { id, maximum }),
        (id(), int()).prop_map(|(id, limit)| Frame::StreamDataBlocked { id, limit }),
        (direction(), int_up_to(1 << 60))
            .prop_map(|(direction, maximum)| Frame::MaxStreams { direction, maximum }),
        (direction(), int_up_to(1 << 60))
            .prop_map(|(direction, limit)| Frame::StreamsBlocked { direction, limit }),
        (int(), int(), connection_id(), any::<[u8; 16]>()).prop_map(|(a, b, id, reset_token)| {
            Frame::NewConnectionId {
                sequence: a.max(b),
                retire_prior_to: a.min(b),
                id,
                reset_token,
            }
        }),
        int().prop_map(|sequence| Frame::RetireConnectionId { sequence }),
        any::<[u8; 8]>().prop_map(Frame::PathChallenge),
        any::<[u8; 8]>().prop_map(Frame::PathResponse),
    ]
}

/// Descending ranges with a gap between each two, from pairs of missing and present numbers.
fn ranges() -> impl Strategy<Value = Vec<RangeInclusive<u64>>> {
    vec((int_up_to(1 << 50), int_up_to(1 << 50)), 1..80).prop_map(|steps| {
        let mut smallest = varint::MAX - 1;
        steps
            .into_iter()
            .map(|(missing, more)| {
                let largest = smallest - 2 - missing;
                smallest = largest - more;
                smallest..=largest
            })
            .collect()
    })
}

fn ecn() -> impl Strategy<Value = Option<EcnCounts>> {
    option::of((int(), int(), int()).prop_map(|(ect0, ect1, ce)| EcnCounts { ect0, ect1, ce }))
}

fn any_frame() -> impl Strategy<Value = Owned> {
    let offset = || int_up_to(varint::MAX - 100);
    prop_oneof![
        4 => plain().prop_map(Owned::Plain),
        1 => (ranges(), int(), ecn()).prop_map(|(ranges, delay, ecn)| Owned::Ack { ranges, delay, ecn }),
        1 => (offset(), bytes(0)).prop_map(|(offset, data)| Owned::Crypto { offset, data }),
        1 => bytes(1).prop_map(|token| Owned::NewToken { token }),
        2 => (int(), offset(), any::<bool>(), bytes(0)).prop_map(|(id, offset, fin, data)| {
            Owned::Stream { id: StreamId(id), offset, fin, data }
        }),
        1 => (int(), option::of(int()), bytes(0)).prop_map(|(error_code, frame_type, reason)| {
            Owned::ConnectionClose { error_code, frame_type, reason }
        }),
        1 => bytes(0).prop_map(|data| Owned::Datagram { data }),
    ]
}

proptest! {
    #[test]
    fn frames_round_trip(frames in vec(any_frame(), 1..12), open_ended: bool) {
        // Two runs of PADDING in a row are one: put a PING between.
        let mut sequence: Vec<Owned> = Vec::new();
        for frame in frames {
            if let (Owned::Plain(Frame::Padding(_)), Some(Owned::Plain(Frame::Padding(_)))) =
                (&frame, sequence.last())
            {
                sequence.push(Owned::Plain(Frame::Ping));
            }
            sequence.push(frame);
        }
        let mut buf = vec![0xee; 40_000];
        let mut w = Writer::new(&mut buf);
        for (i, frame) in sequence.iter().enumerate() {
            frame.write(&mut w, open_ended && i + 1 == sequence.len());
        }
        let len = w.len();
        let read: Vec<_> = Frames::new(&buf[..len]).map(Result::unwrap).collect();
        prop_assert_eq!(read.len(), sequence.len());
        for (owned, frame) in sequence.iter().zip(&read) {
            prop_assert!(owned.matches(frame), "wrote {:?}, read {:?}", owned, frame);
        }
    }

    // Cut anywhere, a frame with lengths is an error; none is taken for another.
    #[test]
    fn a_cut_frame_is_an_encoding_error(frame in any_frame()) {
        let mut buf = vec![0; 40_000];
        let mut w = Writer::new(&mut buf);
        frame.write(&mut w, false);
        let len = w.len();
        for cut in 1..len {
            let mut frames = Frames::new(&buf[..cut]);
            match (frames.next(), &frame) {
                (Some(Ok(Frame::Padding(n))), Owned::Plain(Frame::Padding(_))) => prop_assert_eq!(n, cut),
                (Some(Err(error)), _) => {
                    prop_assert_eq!((error.code, error.frame_type), (ENCODING, u64::from(buf[0])));
                    prop_assert_eq!(frames.next(), None);
                }
                (other, _) => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(payload in vec(prop_oneof![0u8..0x40, any::<u8>()], 0..200)) {
        let mut frames = Frames::new(&payload);
        let mut position = 0;
        while let Some(frame) = frames.next() {
            match frame {
                Ok(frame) => {
                    prop_assert!(frames.position() > position);
                    position = frames.position();
                    if let Frame::Ack(ack) = frame {
                        check_ranges(&ack)?;
                    }
                }
                Err(error) => {
                    prop_assert!(error.code == ENCODING || error.code == VIOLATION);
                    prop_assert_eq!(frames.next(), None);
                }
            }
        }
        prop_assert_eq!(frames.next(), None);
    }

    // Random bytes are seldom an ACK with ranges; these are nearly one.
    #[test]
    fn any_ack_has_descending_ranges(
        largest in int(),
        count in 0u64..6,
        fields in vec(int_up_to(1 << 20), 1..12),
    ) {
        let mut buf = [0; 200];
        let mut w = Writer::new(&mut buf);
        w.u8(ty::ACK as u8);
        w.varint(largest);
        w.varint(0);
        w.varint(count);
        for field in fields {
            w.varint(field);
        }
        let len = w.len();
        match Frames::new(&buf[..len]).next() {
            Some(Ok(Frame::Ack(ack))) => check_ranges(&ack)?,
            Some(Err(error)) => prop_assert_eq!(error.code, ENCODING),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    // An ACK that does not fit whole holds the largest ranges, and no more could have been put in.
    #[test]
    fn an_ack_takes_the_ranges_that_fit(ranges in ranges(), ecn in ecn(), room in 0usize..400) {
        let mut buf = vec![0; 2000];
        let whole = {
            let mut w = Writer::new(&mut buf);
            write::ack(&mut w, ranges.iter().cloned(), 7, ecn);
            w.len()
        };
        let mut buf = vec![0; room];
        let mut w = Writer::new(&mut buf);
        let written = write::ack(&mut w, ranges.iter().cloned(), 7, ecn);
        let len = w.len();
        prop_assert!(!w.overflow());
        prop_assert_eq!(written == ranges.len(), whole <= room);
        if written == 0 {
            prop_assert_eq!(len, 0);
            return Ok(());
        }
        let Some(Ok(Frame::Ack(ack))) = Frames::new(&buf[..len]).next() else { panic!() };
        prop_assert_eq!(ack.ranges().collect::<Vec<_>>(), &ranges[..written]);
        // One more range takes two varints, and perhaps a second byte for the count.
        prop_assert!(written == ranges.len() || room - len < 17);
    }
}

fn check_ranges(ack: &squall_wire::Ack<'_>) -> Result<(), TestCaseError> {
    let mut below = ack.largest + 2;
    let mut count = 0;
    for range in ack.ranges() {
        prop_assert!(range.start() <= range.end() && range.end() + 1 < below);
        below = *range.start();
        count += 1;
    }
    prop_assert_eq!(count, ack.range_count + 1);
    Ok(())
}

/// What the first frame of these bytes gives.
fn first(payload: &[u8]) -> Result<Frame<'_>, (TransportErrorCode, u64)> {
    Frames::new(payload)
        .next()
        .expect("an empty payload is an error too")
        .map_err(|error| (error.code, error.frame_type))
}

#[test]
fn malformed_frames_give_the_error_of_the_rfc() {
    let cases: [(&str, &[u8], TransportErrorCode, u64); 27] = [
        // RFC 9000 §12.4
        ("no frame", &[], VIOLATION, 0),
        ("unknown type 0x1f", &[0x1f], ENCODING, 0x1f),
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
fn limits_themselves_are_legal() {
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
fn frames_before_an_error_are_given() {
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
fn frames_are_allowed_where_the_table_says() {
    use PacketType::{Handshake, Initial, OneRtt, ZeroRtt};
    let table = [
        (0x00..=0x01, "IH01"),
        (0x02..=0x03, "IH_1"),
        (0x04..=0x05, "__01"),
        (0x06..=0x06, "IH_1"),
        (0x07..=0x07, "___1"),
        (0x08..=0x18, "__01"),
        // §12.5 takes 0-RTT away from what table 3 says of RETIRE_CONNECTION_ID.
        (0x19..=0x19, "___1"),
        (0x1a..=0x1a, "__01"),
        (0x1b..=0x1b, "___1"),
        (0x1c..=0x1c, "IH01"),
        (0x1d..=0x1d, "__01"),
        (0x1e..=0x1e, "___1"),
        (0x1f..=0x2f, "____"),
        (0x30..=0x31, "__01"),
        (0x32..=0x200, "____"),
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
    ] {
        assert_eq!(
            (frame.ty(), frame.is_ack_eliciting(), frame.is_probing()),
            (ty, eliciting, probing),
            "{frame:?}"
        );
    }
}

#[test]
fn a_reason_is_cut_at_a_character() {
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
    // Bytes that are no text at all are cut where the room ends.
    let mut buf = [0; 6];
    let mut w = Writer::new(&mut buf);
    write::connection_close(&mut w, 1, None, &[0x80; 10]);
    assert!(!w.overflow());
    assert_eq!(buf, [0x1d, 1, 3, 0x80, 0x80, 0x80]);
}

// The 64th range behind the first makes the count take a second byte.
#[test]
fn the_count_of_ranges_has_its_room_too() {
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
