//! Frames (RFC 9114 §7): a type, a length, and a payload.
//!
//! ```text
//!   chunks of a stream ─ push ─> FrameReader ─ next ─> Piece::Frame   a whole payload, bounded
//!                                                      Piece::Data    payload as it arrives
//! ```
//! The reader does not know which frames are allowed where. For each frame header it asks its
//! caller, which rejects the frame, takes it whole, takes it as it arrives, or has it skipped.

use bytes::{Buf, Bytes, BytesMut};
use squall_wire::varint;

/// Frame types (RFC 9114 §7.2, §11.2.1; RFC 9218 §7).
pub(crate) mod kind {
    pub(crate) const DATA: u64 = 0x00;
    pub(crate) const HEADERS: u64 = 0x01;
    pub(crate) const CANCEL_PUSH: u64 = 0x03;
    pub(crate) const SETTINGS: u64 = 0x04;
    pub(crate) const PUSH_PROMISE: u64 = 0x05;
    pub(crate) const GOAWAY: u64 = 0x07;
    pub(crate) const MAX_PUSH_ID: u64 = 0x0d;
    pub(crate) const PRIORITY_UPDATE_REQUEST: u64 = 0x0f_0700;
    pub(crate) const PRIORITY_UPDATE_PUSH: u64 = 0x0f_0701;

    /// Not a frame: a bidirectional WebTransport stream begins with it (draft-ietf-webtrans-http3
    /// §4.3).
    pub(crate) const WEBTRANSPORT_STREAM: u64 = 0x41;

    /// HTTP/2 types that have no meaning here and are errors (RFC 9114 §7.2.8).
    pub(crate) const fn is_reserved(kind: u64) -> bool {
        matches!(kind, 0x02 | 0x06 | 0x08 | 0x09)
    }
}

/// Types of unidirectional streams (RFC 9114 §6.2, RFC 9204 §4.2).
pub(crate) mod stream_type {
    pub(crate) const CONTROL: u64 = 0x00;
    pub(crate) const PUSH: u64 = 0x01;
    pub(crate) const QPACK_ENCODER: u64 = 0x02;
    pub(crate) const QPACK_DECODER: u64 = 0x03;
    /// draft-ietf-webtrans-http3 §4.2.
    pub(crate) const WEBTRANSPORT: u64 = 0x54;
}

/// The longest frame header: two variable-length integers.
const MAX_HEADER: usize = 16;

/// How to handle a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Returned in one piece. The caller has checked the length.
    Whole,
    /// Returned as it arrives.
    Stream,
    /// Dropped as it arrives.
    Skip,
    /// There is no payload: what follows is not framed. See [`FrameReader::take_rest`].
    NoFrame,
}

/// A piece of a stream of frames.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A frame with its whole payload.
    Frame(u64, Bytes),
    /// Some payload of a frame whose fate is [`Fate::Stream`].
    Data(Bytes),
    /// The stream is not framed from here on: the first two integers of what would be a frame.
    NoFrame(u64, u64),
}

/// Where the reader is.
#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    Whole { kind: u64, left: usize },
    Stream { left: u64 },
    Skip { left: u64 },
    NoFrame,
}

/// Splits a stream into frames. Payloads are slices of the chunks, unless a frame taken whole spans
/// several.
#[derive(Debug)]
pub(crate) struct FrameReader {
    input: Bytes,
    state: State,
    /// The beginning of a header that spans chunks.
    header: [u8; MAX_HEADER],
    header_len: usize,
    /// The beginning of a payload that spans chunks.
    payload: BytesMut,
}

impl FrameReader {
    pub(crate) fn new() -> Self {
        Self {
            input: Bytes::new(),
            state: State::Header,
            header: [0; MAX_HEADER],
            header_len: 0,
            payload: BytesMut::new(),
        }
    }

    /// Adds the next chunk. The previous one must be used up: [`next`](Self::next) has returned
    /// `None`.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.input.is_empty());
        self.input = chunk;
    }

    /// Whether the stream may end here: between two frames, with nothing left to read.
    pub(crate) fn is_between_frames(&self) -> bool {
        let at_boundary = match self.state {
            State::Header => self.header_len == 0,
            State::NoFrame => true,
            _ => false,
        };
        at_boundary && self.input.is_empty()
    }

    /// The rest of the last chunk.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        std::mem::take(&mut self.input)
    }

    /// The next piece; `None` if another chunk is needed. `begin` is called once for each frame,
    /// with its type and the length of its payload, as soon as they are known.
    ///
    /// # Errors
    /// Those of `begin`.
    #[inline]
    pub(crate) fn next<E>(
        &mut self,
        mut begin: impl FnMut(u64, u64) -> Result<Fate, E>,
    ) -> Result<Option<Piece>, E> {
        loop {
            match self.state {
                State::Header => {
                    let Some((kind, len)) = self.read_header() else {
                        return Ok(None);
                    };
                    self.state = match begin(kind, len)? {
                        Fate::Whole => State::Whole {
                            kind,
                            left: usize::try_from(len).unwrap_or(usize::MAX),
                        },
                        Fate::Stream => State::Stream { left: len },
                        Fate::Skip => State::Skip { left: len },
                        Fate::NoFrame => {
                            self.state = State::NoFrame;
                            return Ok(Some(Piece::NoFrame(kind, len)));
                        }
                    };
                }
                State::Whole { kind, left } => {
                    if self.input.len() >= left {
                        let rest = self.input.split_to(left);
                        self.state = State::Header;
                        return Ok(Some(Piece::Frame(kind, self.complete(rest))));
                    }
                    self.state = State::Whole {
                        kind,
                        left: left - self.input.len(),
                    };
                    // Grows with what arrives, not with what the header promises.
                    self.payload.extend_from_slice(&self.input);
                    self.input.clear();
                    return Ok(None);
                }
                State::Stream { left: 0 } | State::Skip { left: 0 } => self.state = State::Header,
                State::Stream { left } => {
                    if self.input.is_empty() {
                        return Ok(None);
                    }
                    let data = self.take(left);
                    let left = left - data.len() as u64;
                    self.state = State::Stream { left };
                    return Ok(Some(Piece::Data(data)));
                }
                State::Skip { left } => {
                    if self.input.is_empty() {
                        return Ok(None);
                    }
                    let left = left - self.take(left).len() as u64;
                    self.state = State::Skip { left };
                }
                State::NoFrame => return Ok(None),
            }
        }
    }

    /// At most `max` bytes from the front of the input.
    fn take(&mut self, max: u64) -> Bytes {
        match usize::try_from(max) {
            Ok(max) if max < self.input.len() => self.input.split_to(max),
            _ => std::mem::take(&mut self.input),
        }
    }

    /// The whole payload, of which these are the last bytes.
    fn complete(&mut self, rest: Bytes) -> Bytes {
        if self.payload.is_empty() {
            return rest;
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.extend_from_slice(&rest);
        payload.freeze()
    }

    /// The type and length of the next frame; `None` if a part of them is missing.
    #[inline]
    fn read_header(&mut self) -> Option<(u64, u64)> {
        if self.header_len == 0
            && let Some((kind, len, bytes)) = parse_header(&self.input)
        {
            self.input.advance(bytes);
            return Some((kind, len));
        }
        self.read_split_header()
    }

    fn read_split_header(&mut self) -> Option<(u64, u64)> {
        while let Some(&byte) = self.input.first() {
            *self.header.get_mut(self.header_len)? = byte;
            self.header_len += 1;
            self.input.advance(1);
            let header = self.header.get(..self.header_len)?;
            if let Some((kind, len, _)) = parse_header(header) {
                self.header_len = 0;
                return Some((kind, len));
            }
        }
        None
    }
}

/// Type, length, and the size of both together.
#[inline]
fn parse_header(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let mut reader = squall_wire::Reader::new(bytes);
    let kind = reader.varint().ok()?;
    let len = reader.varint().ok()?;
    Some((kind, len, reader.position()))
}

/// Appends a variable-length integer of at most 2^62 - 1; larger ones are clamped.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, value: u64) {
    let mut bytes = [0; 8];
    let mut writer = squall_wire::Writer::new(&mut bytes);
    writer.varint(value.min(varint::MAX));
    let len = writer.len();
    out.extend_from_slice(bytes.get(..len).unwrap_or_default());
}

/// Appends a frame's header.
#[inline]
pub(crate) fn put_header(out: &mut Vec<u8>, kind: u64, len: u64) {
    put_varint(out, kind);
    put_varint(out, len);
}

/// Appends a whole frame.
pub(crate) fn put_frame(out: &mut Vec<u8>, kind: u64, payload: &[u8]) {
    put_header(out, kind, payload.len() as u64);
    out.extend_from_slice(payload);
}

/// Bytes before a payload that [`close_frame`] may use for its header, which is one byte of type
/// and up to 4 of length.
const HEADER_ROOM: usize = 5;

/// Begins a frame whose payload is about to be appended: leaves room for its header.
#[inline]
pub(crate) fn open_frame(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; HEADER_ROOM]);
    out.len()
}

/// Writes the header of a frame of a one-byte type right before its payload, which begins at
/// `payload`, and returns where the frame begins. The room before that is left as it is: nothing
/// may precede it.
#[inline]
pub(crate) fn close_frame(out: &mut [u8], payload: usize, kind: u8) -> usize {
    let len = (out.len() - payload) as u64;
    let size = varint::size(len);
    let begin = payload - size - 1;
    // A field section is below 2^30 bytes, so the length takes at most four.
    if let Some(place) = out.get_mut(begin..payload) {
        let mut writer = squall_wire::Writer::new(place);
        writer.u8(kind);
        writer.varint(len);
    }
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<u8> {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, kind::HEADERS, b"section");
        put_frame(&mut bytes, kind::DATA, &[7; 300]);
        put_frame(&mut bytes, 0x21, &[1; 100]);
        put_frame(&mut bytes, kind::DATA, b"");
        put_frame(&mut bytes, 0x1f * 1_000_000 + 0x21, b"x");
        put_frame(&mut bytes, kind::GOAWAY, b"\0");
        bytes
    }

    fn fate(kind: u64, _: u64) -> Result<Fate, ()> {
        Ok(match kind {
            kind::DATA => Fate::Stream,
            kind::HEADERS | kind::GOAWAY => Fate::Whole,
            _ => Fate::Skip,
        })
    }

    #[test]
    fn frames_are_parsed_however_the_stream_is_split() {
        let bytes = frames();
        for size in (1..40).chain([bytes.len()]) {
            let mut reader = FrameReader::new();
            let (mut whole, mut data) = (Vec::new(), Vec::new());
            for chunk in bytes.chunks(size) {
                reader.push(Bytes::copy_from_slice(chunk));
                while let Some(piece) = reader.next(fate).unwrap() {
                    match piece {
                        Piece::Frame(kind, payload) => whole.push((kind, payload)),
                        Piece::Data(bytes) => data.extend_from_slice(&bytes),
                        Piece::NoFrame(..) => unreachable!(),
                    }
                }
            }
            assert!(reader.is_between_frames());
            let expected = [
                (kind::HEADERS, Bytes::from_static(b"section")),
                (kind::GOAWAY, Bytes::from_static(b"\0")),
            ];
            assert_eq!((&whole[..], &data[..]), (&expected[..], &[7; 300][..]));
        }
    }

    #[test]
    fn a_stream_may_end_between_frames_only() {
        let bytes = frames();
        let mut ends = Vec::new();
        for len in 0..=bytes.len() {
            let mut reader = FrameReader::new();
            reader.push(Bytes::copy_from_slice(&bytes[..len]));
            while reader.next(fate).unwrap().is_some() {}
            if reader.is_between_frames() {
                ends.push(len);
            }
        }
        assert_eq!(ends, [0, 9, 312, 415, 417, 423, 426]);
    }

    #[test]
    fn a_declared_length_allocates_no_memory() {
        let mut reader = FrameReader::new();
        let mut bytes = Vec::new();
        put_header(&mut bytes, kind::HEADERS, varint::MAX);
        bytes.push(0);
        reader.push(bytes.into());
        assert_eq!(reader.next(fate), Ok(None));
        assert!(reader.payload.capacity() < 1000);
    }

    #[test]
    fn a_frame_is_rejected_before_its_payload_arrives() {
        let mut reader = FrameReader::new();
        reader.push(Bytes::from_static(&[0, 9]));
        assert_eq!(reader.next(|_, _| Err("no")), Err("no"));
    }

    #[test]
    fn a_header_is_written_before_a_payload_of_any_length() {
        for len in [0, 1, 63, 64, 16_383, 16_384, 100_000] {
            let mut out = Vec::new();
            let payload = open_frame(&mut out);
            out.resize(payload + len, 7);
            let begin = close_frame(&mut out, payload, 1);
            let mut expected = Vec::new();
            put_frame(&mut expected, kind::HEADERS, &vec![7; len]);
            assert_eq!(&out[begin..], expected);
        }
    }

    #[test]
    fn data_that_is_not_a_frame_is_left_unread() {
        let mut reader = FrameReader::new();
        reader.push(Bytes::from_static(&[0x40, 0x41, 4, 1, 2, 3]));
        let piece = reader.next(|_, _| Ok::<_, ()>(Fate::NoFrame));
        assert_eq!(piece, Ok(Some(Piece::NoFrame(0x41, 4))));
        assert_eq!(&reader.take_rest()[..], [1, 2, 3]);
    }
}
