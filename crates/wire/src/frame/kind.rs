//! The frames as values, and where each of them may appear.

use super::ack::Ack;
use super::ty;
use crate::connection_id::ConnectionId;
use crate::stream_id::{Direction, StreamId};

/// One frame. Data, tokens, reasons and ACK ranges are borrowed from the packet.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// A number of consecutive PADDING frames (RFC 9000 §19.1).
    Padding(usize),
    /// PING (RFC 9000 §19.2).
    Ping,
    /// ACK (RFC 9000 §19.3).
    Ack(Ack<'a>),
    /// RESET_STREAM (RFC 9000 §19.4).
    ResetStream {
        /// The stream whose sending part is reset.
        id: StreamId,
        /// The application's error code.
        error_code: u64,
        /// Final size of the stream in bytes.
        final_size: u64,
    },
    /// STOP_SENDING (RFC 9000 §19.5).
    StopSending {
        /// The stream that is no longer read.
        id: StreamId,
        /// The application's error code.
        error_code: u64,
    },
    /// CRYPTO (RFC 9000 §19.6).
    Crypto {
        /// Where the data starts, in bytes.
        offset: u64,
        /// The data; its end is at most 2^62 - 1.
        data: &'a [u8],
    },
    /// NEW_TOKEN (RFC 9000 §19.7).
    NewToken {
        /// The token; not empty.
        token: &'a [u8],
    },
    /// STREAM (RFC 9000 §19.8).
    Stream {
        /// The stream.
        id: StreamId,
        /// Where the data starts, in bytes.
        offset: u64,
        /// Whether the stream ends with this data.
        fin: bool,
        /// The data; its end is at most 2^62 - 1.
        data: &'a [u8],
    },
    /// MAX_DATA: bytes that may be sent on the connection (RFC 9000 §19.9).
    MaxData(u64),
    /// MAX_STREAM_DATA (RFC 9000 §19.10).
    MaxStreamData {
        /// The stream.
        id: StreamId,
        /// Bytes that may be sent on it.
        maximum: u64,
    },
    /// MAX_STREAMS (RFC 9000 §19.11).
    MaxStreams {
        /// The kind of stream.
        direction: Direction,
        /// How many streams of that kind may be opened in total; at most 2^60.
        maximum: u64,
    },
    /// DATA_BLOCKED: the limit that blocks the sender (RFC 9000 §19.12).
    DataBlocked(u64),
    /// STREAM_DATA_BLOCKED (RFC 9000 §19.13).
    StreamDataBlocked {
        /// The stream.
        id: StreamId,
        /// The limit that blocks the sender.
        limit: u64,
    },
    /// STREAMS_BLOCKED (RFC 9000 §19.14).
    StreamsBlocked {
        /// The kind of stream.
        direction: Direction,
        /// The limit that blocks the sender; at most 2^60.
        limit: u64,
    },
    /// NEW_CONNECTION_ID (RFC 9000 §19.15).
    NewConnectionId {
        /// The number of the connection id.
        sequence: u64,
        /// Connection ids below this number are to be retired; at most `sequence`.
        retire_prior_to: u64,
        /// The connection id; not empty.
        id: ConnectionId,
        /// The stateless reset token that belongs to it.
        reset_token: [u8; 16],
    },
    /// RETIRE_CONNECTION_ID (RFC 9000 §19.16).
    RetireConnectionId {
        /// The number of the connection id.
        sequence: u64,
    },
    /// PATH_CHALLENGE (RFC 9000 §19.17).
    PathChallenge([u8; 8]),
    /// PATH_RESPONSE (RFC 9000 §19.18).
    PathResponse([u8; 8]),
    /// CONNECTION_CLOSE (RFC 9000 §19.19).
    ConnectionClose {
        /// A transport error code, or one of the application's.
        error_code: u64,
        /// Type 0x1c: the frame that caused the error, 0 when unknown. `None`: type 0x1d, the
        /// application closed.
        frame_type: Option<u64>,
        /// The reason, for people; should be UTF-8 but need not be.
        reason: &'a [u8],
    },
    /// HANDSHAKE_DONE (RFC 9000 §19.20).
    HandshakeDone,
    /// DATAGRAM (RFC 9221 §4).
    Datagram {
        /// The data; may be empty.
        data: &'a [u8],
    },
    /// RESET_STREAM_AT (draft-ietf-quic-reliable-stream-reset §4).
    ResetStreamAt {
        /// The stream whose sending part is reset.
        id: StreamId,
        /// The application's error code.
        error_code: u64,
        /// Final size of the stream in bytes.
        final_size: u64,
        /// Bytes of it that are delivered all the same; at most `final_size`.
        reliable_size: u64,
    },
    /// ACK_FREQUENCY (draft-ietf-quic-ack-frequency §4).
    AckFrequency(AckFrequency),
    /// IMMEDIATE_ACK (draft-ietf-quic-ack-frequency §5).
    ImmediateAck,
}

/// When the peer wants acknowledgements (draft-ietf-quic-ack-frequency §4).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AckFrequency {
    /// The number of the request; a later one has a larger number.
    pub sequence: u64,
    /// Ack-eliciting packets that may arrive without an immediate acknowledgement.
    pub ack_eliciting_threshold: u64,
    /// The longest time by which an acknowledgement may be delayed, in microseconds.
    pub max_ack_delay_us: u64,
    /// How far packets may be out of order before they are acknowledged at once; 0: any distance.
    pub reordering_threshold: u64,
}

impl Frame<'_> {
    /// The type, for error reports. The length bit of STREAM and DATAGRAM is not kept: it is always
    /// reported as clear.
    #[must_use]
    pub const fn ty(&self) -> u64 {
        match self {
            Self::Padding(_) => ty::PADDING,
            Self::Ping => ty::PING,
            Self::Ack(Ack { ecn: None, .. }) => ty::ACK,
            Self::Ack(Ack { ecn: Some(_), .. }) => ty::ACK_ECN,
            Self::ResetStream { .. } => ty::RESET_STREAM,
            Self::StopSending { .. } => ty::STOP_SENDING,
            Self::Crypto { .. } => ty::CRYPTO,
            Self::NewToken { .. } => ty::NEW_TOKEN,
            Self::Stream { offset, fin, .. } => {
                let off = if *offset == 0 { 0 } else { ty::STREAM_OFF };
                let fin = if *fin { ty::STREAM_FIN } else { 0 };
                ty::STREAM | off | fin
            }
            Self::MaxData(_) => ty::MAX_DATA,
            Self::MaxStreamData { .. } => ty::MAX_STREAM_DATA,
            Self::MaxStreams { direction, .. } => ty::MAX_STREAMS_BIDI + *direction as u64,
            Self::DataBlocked(_) => ty::DATA_BLOCKED,
            Self::StreamDataBlocked { .. } => ty::STREAM_DATA_BLOCKED,
            Self::StreamsBlocked { direction, .. } => ty::STREAMS_BLOCKED_BIDI + *direction as u64,
            Self::NewConnectionId { .. } => ty::NEW_CONNECTION_ID,
            Self::RetireConnectionId { .. } => ty::RETIRE_CONNECTION_ID,
            Self::PathChallenge(_) => ty::PATH_CHALLENGE,
            Self::PathResponse(_) => ty::PATH_RESPONSE,
            Self::ConnectionClose {
                frame_type: Some(_),
                ..
            } => ty::CONNECTION_CLOSE,
            Self::ConnectionClose {
                frame_type: None, ..
            } => ty::CONNECTION_CLOSE_APPLICATION,
            Self::HandshakeDone => ty::HANDSHAKE_DONE,
            Self::Datagram { .. } => ty::DATAGRAM,
            Self::ResetStreamAt { .. } => ty::RESET_STREAM_AT,
            Self::AckFrequency(_) => ty::ACK_FREQUENCY,
            Self::ImmediateAck => ty::IMMEDIATE_ACK,
        }
    }

    /// Whether a packet with this frame has to be acknowledged: all frames except those marked N in
    /// RFC 9000 §12.4.
    #[inline]
    #[must_use]
    pub const fn is_ack_eliciting(&self) -> bool {
        !matches!(
            self,
            Self::Padding(_) | Self::Ack(_) | Self::ConnectionClose { .. }
        )
    }

    /// Whether this is a probing frame: one marked P in RFC 9000 §12.4 (see §9.1).
    #[inline]
    #[must_use]
    pub const fn is_probing(&self) -> bool {
        matches!(
            self,
            Self::Padding(_)
                | Self::PathChallenge(_)
                | Self::PathResponse(_)
                | Self::NewConnectionId { .. }
        )
    }
}

/// The types of packets that contain frames.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum PacketType {
    /// Initial.
    Initial = 0,
    /// 0-RTT.
    ZeroRtt = 1,
    /// Handshake.
    Handshake = 2,
    /// 1-RTT.
    OneRtt = 3,
}

/// Whether a frame of type `ty` may appear in a packet of this type (RFC 9000 §12.4, table 3, and
/// §12.5). Unknown types may appear in none. Which *end* may send a frame is not checked.
#[inline]
#[must_use]
pub fn allowed(ty: u64, packet: PacketType) -> bool {
    let packets = usize::try_from(ty)
        .ok()
        .and_then(|ty| ALLOWED.get(ty))
        .copied()
        .unwrap_or(0);
    packets & (1 << packet as u8) != 0
}

/// For every frame type one bit for each [`PacketType`].
static ALLOWED: [u8; ty::ACK_FREQUENCY as usize + 1] = {
    let mut table = [0; ty::ACK_FREQUENCY as usize + 1];
    let mut frame = 0;
    while frame < table.len() {
        table[frame] = packets_of(frame as u64);
        frame += 1;
    }
    table
};

const fn packets_of(frame: u64) -> u8 {
    const I: u8 = 1 << PacketType::Initial as u8;
    const Z: u8 = 1 << PacketType::ZeroRtt as u8;
    const H: u8 = 1 << PacketType::Handshake as u8;
    const O: u8 = 1 << PacketType::OneRtt as u8;
    match frame {
        ty::PADDING | ty::PING | ty::CONNECTION_CLOSE => I | H | Z | O,
        ty::ACK | ty::ACK_ECN | ty::CRYPTO => I | H | O,
        // RFC 9000 §12.5: RETIRE_CONNECTION_ID cannot be sent in 0-RTT, although table 3 allows it.
        // draft-ietf-quic-ack-frequency §3: its parameter is not remembered for 0-RTT.
        ty::NEW_TOKEN
        | ty::PATH_RESPONSE
        | ty::HANDSHAKE_DONE
        | ty::RETIRE_CONNECTION_ID
        | ty::IMMEDIATE_ACK
        | ty::ACK_FREQUENCY => O,
        // RFC 9221 §4: DATAGRAM is protected with 0-RTT or 1-RTT keys.
        ty::RESET_STREAM
        | ty::STOP_SENDING
        | ty::STREAM..=ty::NEW_CONNECTION_ID
        | ty::PATH_CHALLENGE
        | ty::CONNECTION_CLOSE_APPLICATION
        | ty::RESET_STREAM_AT
        | ty::DATAGRAM
        | ty::DATAGRAM_LEN => Z | O,
        _ => 0,
    }
}
