//! Step 3 for one packet: it is written and booked, that is, recorded as sent. All packets pass
//! through here except the runs of `run`.
//!
//! ```text
//!  PacketWriter  header ─▶ frames ─▶ padding ─▶ finish ─▶ Draft ─▶ Connection::book ─▶ span
//! ```
//!
//! A draft may still grow: the last packet of a datagram that holds an Initial is padded when the
//! datagram is complete.

use std::ops::Range;

use squall_protect::{PacketSpan, TAG_LEN};
use squall_wire::{ConnectionId, LongType, PacketType, Writer, frame, header};

use crate::config::MIN_PROTECTED;
use crate::connection::Connection;
use crate::connection::parts::log::packet_type;
use crate::qlog::Packet;
use crate::space::{Space, SpaceId};
use crate::time::Time;

/// The header of 1-RTT packets without the number: the same for all packets of a bundle.
#[derive(Clone, Copy)]
pub(in crate::connection) struct ShortHeader {
    /// The peer's connection id.
    pub(in crate::connection) dcid: ConnectionId,
    /// The spin bit.
    pub(in crate::connection) spin: bool,
    /// The key phase bit.
    pub(in crate::connection) phase: bool,
    /// Whether the fixed bit is 0 (RFC 9287).
    pub(in crate::connection) greased: bool,
    /// Bytes of the packet number.
    pub(in crate::connection) pn_len: usize,
}

impl ShortHeader {
    /// Bytes of the header, packet number included.
    #[inline]
    pub(in crate::connection) fn len(&self) -> usize {
        header::short_header_size(self.dcid.len(), self.pn_len)
    }

    /// Writes the header.
    #[inline]
    pub(in crate::connection) fn write(&self, w: &mut Writer<'_>, number: u64) {
        header::write_short(w, &self.dcid, self.spin, self.phase, number, self.pn_len);
        if self.greased {
            w.written_mut()[0] &= !header::FIXED_BIT;
        }
    }

    /// Where a packet with this header lies.
    #[inline]
    pub(in crate::connection) fn span(&self, start: usize, size: usize, number: u64) -> PacketSpan {
        let len = self.len();
        let mut span = PacketSpan::new(start as u32, size as u32, (len - self.pn_len) as u16);
        (span.header_len, span.packet_number) = (len as u16, number);
        span
    }
}

/// A header complete except for the number.
pub(super) trait NumberedHeader {
    /// Bytes of the packet number.
    fn pn_len(&self) -> usize;

    /// Writes the header; returns where its Length field lies, if it has one.
    fn write_numbered(&self, w: &mut Writer<'_>, number: u64) -> Option<header::LengthOffset>;
}

impl NumberedHeader for ShortHeader {
    #[inline]
    fn pn_len(&self) -> usize {
        self.pn_len
    }

    #[inline]
    fn write_numbered(&self, w: &mut Writer<'_>, number: u64) -> Option<header::LengthOffset> {
        self.write(w, number);
        None
    }
}

/// The header of a packet of any type.
pub(super) enum Header<'a> {
    /// Of a 1-RTT packet.
    Short(ShortHeader),
    /// Of an Initial, 0-RTT or Handshake packet.
    Long {
        ty: LongType,
        version: u32,
        dcid: ConnectionId,
        scid: ConnectionId,
        token: &'a [u8],
        pn_len: usize,
    },
}

impl Header<'_> {
    /// Bytes of the header, packet number included.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Short(short) => short.len(),
            Self::Long {
                ty,
                dcid,
                scid,
                token,
                pn_len,
                ..
            } => {
                let token = (*ty == LongType::Initial).then_some(token.len());
                header::long_header_size(dcid.len(), scid.len(), token, *pn_len)
            }
        }
    }
}

impl NumberedHeader for Header<'_> {
    fn pn_len(&self) -> usize {
        match self {
            Self::Short(short) => short.pn_len,
            Self::Long { pn_len, .. } => *pn_len,
        }
    }

    fn write_numbered(&self, w: &mut Writer<'_>, number: u64) -> Option<header::LengthOffset> {
        match self {
            Self::Short(short) => short.write_numbered(w, number),
            Self::Long {
                ty,
                version,
                dcid,
                scid,
                token,
                pn_len,
            } => Some(header::write_long(
                w, *ty, *version, dcid, scid, token, number, *pn_len,
            )),
        }
    }
}

/// A packet that is written, but neither booked nor sealed. It is small, because it is copied.
#[derive(Clone, Copy)]
pub(super) struct Draft {
    number: u64,
    /// The mark of its first frame.
    first_frame: u64,
    /// Where the Length field of a long header lies.
    length: Option<header::LengthOffset>,
    /// Where it begins in the buffer.
    pub(super) start: u32,
    /// Bytes from `start` on, without the tag.
    pub(super) len: u32,
    header_len: u16,
    pn_len: u8,
    space: SpaceId,
    /// How it is booked.
    pub(super) accounting: Accounting,
}

/// Properties of a packet for booking.
#[derive(Clone, Copy)]
pub(super) struct Accounting {
    /// Whether it asks for an acknowledgement.
    pub(super) ack_eliciting: bool,
    /// Whether congestion control counts it (RFC 9002 §2): it holds more than ACK and
    /// CONNECTION_CLOSE. The PING that asks about acknowledgement-only packets is not counted, so
    /// that it may leave when the window is full.
    pub(super) in_flight: bool,
    /// Whether the congestion window, not the application, is the limit.
    pub(super) window_limited: bool,
    /// Whether it probes for the path MTU.
    pub(super) is_mtu_probe: bool,
}

impl Accounting {
    /// A probe of the active path.
    pub(super) const PROBE: Self = Self {
        ack_eliciting: true,
        in_flight: true,
        window_limited: false,
        is_mtu_probe: false,
    };
    /// A packet that is neither ack-eliciting nor in flight: its loss goes unnoticed.
    pub(super) const UNCOUNTED: Self = Self {
        ack_eliciting: false,
        in_flight: false,
        window_limited: false,
        is_mtu_probe: false,
    };
}

impl Draft {
    /// Where the packet ends in the buffer, with its tag.
    #[inline]
    pub(super) const fn end(&self) -> usize {
        self.start as usize + self.len as usize + TAG_LEN
    }

    /// Where it lies.
    #[inline]
    fn span(&self) -> PacketSpan {
        let pn_offset = self.header_len - u16::from(self.pn_len);
        let size = self.len + TAG_LEN as u32;
        let mut span = PacketSpan::new(self.start, size, pn_offset);
        (span.header_len, span.packet_number) = (self.header_len, self.number);
        span
    }
}

/// A packet whose header is written. The `Writer` of its frames is a separate value, so that the
/// compiler keeps these fields in registers.
#[derive(Clone, Copy)]
pub(super) struct PacketWriter {
    number: u64,
    first_frame: u64,
    length: Option<header::LengthOffset>,
    start: u32,
    header_len: u16,
    pn_len: u8,
    space: SpaceId,
}

impl PacketWriter {
    /// Writes the header of packet `number` at `place` in the buffer, which leaves room for the
    /// tag.
    #[inline]
    pub(super) fn begin<'a>(
        buffer: &'a mut [u8],
        place: Range<usize>,
        id: SpaceId,
        header: &impl NumberedHeader,
        number: u64,
        space: &Space,
    ) -> (Self, Writer<'a>) {
        let start = place.start;
        let mut w = Writer::new(&mut buffer[start..place.end - TAG_LEN]);
        let length = header.write_numbered(&mut w, number);
        let packet = Self {
            number,
            first_frame: space.sent.frame_mark(),
            length,
            start: start as u32,
            header_len: w.len() as u16,
            pn_len: header.pn_len() as u8,
            space: id,
        };
        (packet, w)
    }

    /// Whether no frame has been written.
    #[inline]
    pub(super) fn is_empty(self, w: &Writer<'_>) -> bool {
        w.len() == usize::from(self.header_len)
    }

    /// Pads the packet so that there is a sample for header protection (RFC 9001 §5.4.2).
    #[inline]
    pub(super) fn pad_for_sample(self, w: &mut Writer<'_>) {
        let least = MIN_PROTECTED + usize::from(self.header_len) - usize::from(self.pn_len);
        let short = least.saturating_sub(w.len());
        if short > 0 {
            frame::write::padding(w, short);
        }
    }

    /// Pads the packet to the end of its place.
    #[inline]
    pub(super) fn fill(w: &mut Writer<'_>) {
        let room = w.remaining();
        frame::write::padding(w, room);
    }

    /// Ends the packet.
    #[inline]
    pub(super) fn finish(self, w: &Writer<'_>, accounting: Accounting) -> Draft {
        Draft {
            number: self.number,
            first_frame: self.first_frame,
            length: self.length,
            start: self.start,
            len: w.len() as u32,
            header_len: self.header_len,
            pn_len: self.pn_len,
            space: self.space,
            accounting,
        }
    }
}

impl Connection {
    /// The header of 1-RTT packets to `dcid`.
    pub(super) fn short_header(&self, dcid: ConnectionId, spin: bool) -> ShortHeader {
        ShortHeader {
            dcid,
            spin,
            phase: self.spaces.phase(),
            greased: false,
            pn_len: self.spaces.next_number(SpaceId::Data).1,
        }
    }

    /// [`book`](Self::book), out of line: for packets that leave alone or with few others.
    #[cold]
    pub(super) fn book_single(
        &mut self,
        now: Time,
        draft: &Draft,
        buffer: &mut [u8],
    ) -> PacketSpan {
        self.book(now, draft, buffer)
    }

    /// Books a packet of the active path: as sent, in flight, and in the log. Returns where it
    /// lies, for sealing.
    #[inline(always)]
    pub(super) fn book(&mut self, now: Time, draft: &Draft, buffer: &mut [u8]) -> PacketSpan {
        let flow = self.paths.active.flow.tag;
        let span = self.record_sent(now, draft, flow, buffer);
        if draft.accounting.ack_eliciting {
            self.note_eliciting(draft.space, now);
        } else {
            self.spaces.ack_only_run += 1;
        }
        if draft.accounting.in_flight {
            self.paths.active.flow.enter(span.len.into());
        }
        span
    }

    /// Patches the Length field, logs the packet, and records it as sent on `flow`. Bytes in flight
    /// and timers are left to the caller. Returns where the packet lies, for sealing.
    #[inline(always)]
    pub(super) fn record_sent(
        &mut self,
        now: Time,
        draft: &Draft,
        flow: u8,
        buffer: &mut [u8],
    ) -> PacketSpan {
        let span = draft.span();
        if let Some(length) = draft.length {
            let rest = (span.len - u32::from(span.pn_offset)) as usize;
            header::patch_length(&mut buffer[draft.start as usize..], length, rest);
        }
        if self.log.is_on() {
            let start = draft.start as usize;
            let frames = start + usize::from(draft.header_len)..start + draft.len as usize;
            let packet = Packet {
                ty: match draft.space {
                    SpaceId::Data if draft.length.is_some() => PacketType::ZeroRtt,
                    space => packet_type(space),
                },
                number: draft.number,
                len: draft.end() - start,
                payload: &buffer[frames],
            };
            let is_mtu_probe = draft.accounting.is_mtu_probe;
            self.log.packet_sent(now, packet, is_mtu_probe);
        }
        let accounting = draft.accounting;
        let counted = if accounting.in_flight {
            span.len as u16
        } else {
            0
        };
        self.spaces[draft.space].sent.push(
            now,
            counted,
            accounting.ack_eliciting,
            flow,
            accounting.window_limited,
            draft.first_frame,
        );
        self.stats.packets_sent += 1;
        span
    }

    /// Notes that an ack-eliciting packet leaves.
    #[inline]
    pub(super) fn note_eliciting(&mut self, id: SpaceId, now: Time) {
        self.spaces.ack_only_run = 0;
        self.spaces[id].last_eliciting = now;
        if self.clock.on_eliciting_sent() {
            self.restart_idle_timer(now);
        }
    }
}
