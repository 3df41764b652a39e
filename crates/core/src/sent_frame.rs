//! The record of a sent frame: ids and ranges, never bytes.

use squall_wire::{Direction, StreamId};

/// The contents of a sent frame, as far as its loss or acknowledgement matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentFrame {
    /// Bytes of a stream.
    Stream {
        id: StreamId,
        start: u64,
        len: u32,
        fin: bool,
    },
    /// Bytes of the handshake.
    Crypto { start: u64, len: u32 },
    /// An acknowledgement up to `largest`.
    Ack { largest: u64 },
    /// RESET_STREAM.
    ResetStream(StreamId),
    /// RESET_STREAM_AT with this promise.
    ResetStreamAt { id: StreamId, reliable: u64 },
    /// STOP_SENDING.
    StopSending(StreamId),
    /// MAX_DATA.
    MaxData,
    /// MAX_STREAM_DATA.
    MaxStreamData(StreamId),
    /// MAX_STREAMS.
    MaxStreams(Direction),
    /// DATA_BLOCKED.
    DataBlocked,
    /// STREAM_DATA_BLOCKED.
    StreamDataBlocked(StreamId),
    /// STREAMS_BLOCKED.
    StreamsBlocked(Direction),
    /// NEW_CONNECTION_ID.
    NewConnectionId(u64),
    /// RETIRE_CONNECTION_ID.
    RetireConnectionId(u64),
    /// HANDSHAKE_DONE.
    HandshakeDone,
    /// NEW_TOKEN.
    NewToken,
    /// ACK_FREQUENCY with this sequence number.
    AckFrequency(u64),
}

const _: () = assert!(size_of::<SentFrame>() <= 24);
