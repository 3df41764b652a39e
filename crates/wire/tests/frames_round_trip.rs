//! Frames as properties: what is written is read again, and hostile input is refused.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use squall_wire::frame::{ty, write};
use squall_wire::{
    AckFrequency, ConnectionId, Direction, EcnCounts, Frame, Frames, StreamId, TransportErrorCode,
    Writer, varint,
};
use std::ops::RangeInclusive;

const ENCODING: TransportErrorCode = TransportErrorCode::FRAME_ENCODING_ERROR;
const VIOLATION: TransportErrorCode = TransportErrorCode::PROTOCOL_VIOLATION;

/// A frame with owned data, as made by a generator.
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

/// Writes a frame without data, and checks it against the maximum size that `write` states.
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
        Frame::ResetStreamAt {
            id,
            error_code,
            final_size,
            reliable_size,
        } => {
            write::reset_stream_at(w, id, error_code, final_size, reliable_size);
            write::RESET_STREAM_AT_MAX_SIZE
        }
        Frame::AckFrequency(request) => {
            write::ack_frequency(w, &request);
            write::ACK_FREQUENCY_MAX_SIZE
        }
        Frame::ImmediateAck => {
            write::immediate_ack(w);
            write::IMMEDIATE_ACK_SIZE
        }
        frame => panic!("{frame:?} has data"),
    };
    assert!(w.len() - before <= most, "{frame:?}");
}

/// Integers of all four lengths, not only the eight-byte ones that a uniform choice would give.
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
        Just(Frame::ImmediateAck),
        (id(), int(), int(), int()).prop_map(|(id, error_code, a, b)| Frame::ResetStreamAt {
            id,
            error_code,
            final_size: a.max(b),
            reliable_size: a.min(b),
        }),
        (int(), int(), int(), int()).prop_map(|(sequence, threshold, delay, reordering)| {
            Frame::AckFrequency(AckFrequency {
                sequence,
                ack_eliciting_threshold: threshold,
                max_ack_delay_us: delay,
                reordering_threshold: reordering,
            })
        }),
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

    // Cut anywhere, a frame with lengths is an error; none is mistaken for another.
    #[test]
    fn a_truncated_frame_is_an_encoding_error(frame in any_frame()) {
        let mut buf = vec![0; 40_000];
        let mut w = Writer::new(&mut buf);
        frame.write(&mut w, false);
        let len = w.len();
        for cut in 1..len {
            let mut frames = Frames::new(&buf[..cut]);
            match (frames.next(), &frame) {
                (Some(Ok(Frame::Padding(n))), Owned::Plain(Frame::Padding(_))) => prop_assert_eq!(n, cut),
                (Some(Err(error)), _) => {
                    // A two-byte type that is itself cut cannot be known.
                    let ty = match buf[0] {
                        0x40.. if cut == 1 => 0,
                        0x40.. => ty::ACK_FREQUENCY,
                        one => one.into(),
                    };
                    prop_assert_eq!((error.code, error.frame_type), (ENCODING, ty));
                    prop_assert_eq!(frames.next(), None);
                }
                (other, _) => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_rejected(payload in vec(prop_oneof![0u8..0x40, any::<u8>()], 0..200)) {
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

    // Random bytes are seldom an ACK with ranges; these are close to one.
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

    // test: RFC 9000 §16 — a number may take more bytes than it needs.
    #[test]
    fn a_lengthened_ack_means_the_same(
        ranges in ranges(), delay in int(), ecn in ecn(), before in 0usize..3, more in 0usize..40,
    ) {
        let mut buf = vec![0; 2000];
        let mut w = Writer::new(&mut buf);
        for _ in 0..before {
            write::ping(&mut w);
        }
        write::ack(&mut w, ranges.iter().cloned(), delay, ecn);
        let len = w.len();
        write::lengthen_ack(&mut w, before, len - before + more);
        prop_assert!(!w.overflow());
        prop_assert!(w.len() == len + more || w.len() == len);
        let whole = w.len();
        let Some(Ok(Frame::Ack(ack))) = Frames::new(&buf[before..whole]).next() else { panic!() };
        prop_assert_eq!(ack.ranges().collect::<Vec<_>>(), ranges);
        prop_assert_eq!((ack.delay, ack.ecn), (delay, ecn));
    }

    // An ACK that does not fit as a whole holds the largest ranges, and has no room for another.
    #[test]
    fn an_ack_contains_the_ranges_that_fit(ranges in ranges(), ecn in ecn(), room in 0usize..400) {
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
