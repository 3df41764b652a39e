//! Step 3 for a bundle: its packets one by one, and runs of packets that one stream fills.
//!
//! The packets of a bulk transfer differ only in the packet number and the offset of their one
//! STREAM frame. Header and frame header are made once per run; a packet costs three stores and an
//! entry in the records. Such a run writes and books exactly what `write_packet` would have, packet
//! by packet (`tests/twins.rs` compares).

use arrayvec::ArrayVec;
use squall_protect::{MAX_GROUP, PacketSpan, TAG_LEN};
use squall_wire::{StreamId, Writer, frame, packet_number, varint};

use super::packet::{Accounting, PacketWriter, ShortHeader};
use crate::connection::Connection;
use crate::space::SpaceId;
use crate::space::sent::SentPacket;
use crate::stream::send::StreamRange;
use crate::time::Time;

/// A packet with less room than this left is filled with PADDING rather than ending its bundle.
pub(super) const FILL: usize = 32;
/// Room for a short header and a STREAM frame's header: 1 + 20 + 4 and 1 + 8 + 8 bytes.
const TEMPLATE: usize = 48;

/// Properties common to the packets of a bundle.
pub(in crate::connection) struct Form {
    /// Bytes from one packet to the next.
    pub(in crate::connection) segment: usize,
    /// The header except for the number.
    pub(in crate::connection) header: ShortHeader,
    /// Number of the first packet.
    pub(in crate::connection) first: u64,
    /// Whether the congestion window is the limit.
    pub(in crate::connection) window_limited: bool,
    /// Whether packets that one stream fills may be written as a run.
    pub(in crate::connection) runs: bool,
    /// Whether packets are padded to the segment's size.
    pub(in crate::connection) pads: bool,
    /// A packet with less room than this left is filled rather than ending its bundle, if more
    /// datagrams wait.
    pub(in crate::connection) fill: usize,
}

impl Form {
    /// Number of packet `i`.
    pub(in crate::connection) const fn number(&self, i: usize) -> u64 {
        self.first + i as u64
    }
}

/// The beginning of every packet of a run, and the two places in it that differ.
pub(in crate::connection) struct Template {
    bytes: [u8; TEMPLATE],
    /// The four bytes from the packet number on, number zero.
    number: (usize, u32),
    /// The eight bytes from the offset on, offset zero and nothing after it.
    offset: (usize, u64),
    /// How far the number and the offset are shifted left in these.
    shifts: (u32, u32),
}

impl Template {
    /// `offset` is that of the run's first packet; the others are encoded with the same width.
    pub(in crate::connection) fn new(form: &Form, id: StreamId, offset: u64) -> Option<Self> {
        let mut bytes = [0; TEMPLATE];
        let mut w = Writer::new(&mut bytes);
        form.header.write(&mut w, form.first);
        frame::write::stream_header(&mut w, id, offset, None, false);
        let len = w.len();
        let pn_len = form.header.pn_len;
        let (at_number, width) = (form.header.len() - pn_len, varint::size(offset));
        let at_offset = len - width;
        let shifts = (32 - 8 * pn_len as u32, 64 - 8 * width as u32);
        let number = u32::from_be_bytes(*bytes.get(at_number..)?.first_chunk()?);
        // The two bits that give the width.
        let width_bits = u64::from(*bytes.get(at_offset)? & 0xc0) << 56;
        Some(Self {
            number: (at_number, number & !(u32::MAX << shifts.0)),
            offset: (at_offset, width_bits),
            bytes,
            shifts,
        })
    }

    /// Writes the beginning of the packet with this number and offset.
    #[inline]
    pub(in crate::connection) fn write(&self, packet: &mut [u8], number: u64, offset: u64) {
        let Some(place) = packet.first_chunk_mut::<{ TEMPLATE + 8 }>() else {
            return;
        };
        if let Some(place) = place.first_chunk_mut() {
            *place = self.bytes;
        }
        let (at, rest) = self.number;
        if let Some(place) = place.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            // The low bytes of the number.
            *place = (((number as u32) << self.shifts.0) | rest).to_be_bytes();
        }
        let (at, width) = self.offset;
        if let Some(place) = place.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            // The data's place follows the offset.
            *place = ((offset << self.shifts.1) | width).to_be_bytes();
        }
    }
}

/// The packets of a bundle. Mostly there is one: the room for the others is not cleared.
#[derive(Default)]
pub(in crate::connection) struct Bundle {
    pub(in crate::connection) spans: ArrayVec<PacketSpan, MAX_GROUP>,
    /// The stream data that sealing puts at the end of each packet.
    pub(in crate::connection) tails: ArrayVec<StreamRange, MAX_GROUP>,
}

impl Bundle {
    #[inline]
    fn push(&mut self, span: PacketSpan, tail: StreamRange) {
        let taken = (
            self.spans.try_push(span).is_ok(),
            self.tails.try_push(tail).is_ok(),
        );
        debug_assert!(taken == (true, true), "a bundle is planned for its room");
    }
}

impl Connection {
    /// Writes up to `count` packets, or one with only acknowledgements if `count` is zero. Returns
    /// how many, and the bytes from the first to the last with its tag.
    pub(in crate::connection) fn write_bundle(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        form: &Form,
        count: usize,
        bundle: &mut Bundle,
    ) -> (usize, usize) {
        let segment = form.segment;
        let mut len = 0;
        while let i = bundle.spans.len()
            && i < count.clamp(1, MAX_GROUP)
        {
            if i > 0 && form.runs {
                let run = self.write_stream_run(now, buffer, form, count, bundle);
                if run > 0 {
                    #[cfg(test)]
                    {
                        self.stats.packets_in_runs += run as u64;
                    }
                    len = (i + run) * segment;
                    continue;
                }
            }
            if buffer.len() < (i + 1) * segment {
                break;
            }
            let Some((span, tail)) = self.write_packet(now, buffer, form, i, count) else {
                break;
            };
            bundle.push(span, tail.unwrap_or(StreamRange::NONE));
            len = (span.start + span.len) as usize;
            if len < (i + 1) * segment {
                break;
            }
        }
        self.streams.rotate();
        (bundle.spans.len(), len)
    }

    /// The properties common to the packets of the next bundle.
    pub(in crate::connection) fn form(&mut self, segment: usize, count: usize) -> Form {
        let dcid = self.paths.remote_ids.current();
        let mut header = self.short_header(dcid, self.paths.active.spin.value());
        // RFC 9287 §3: unpredictable, for a bundle at a time.
        header.greased = self.handshake.peer.greased && self.endpoint.toss();
        let space = &self.spaces[SpaceId::Data];
        let first = space.sent.next_number();
        // One width for all numbers, wide enough for the last.
        let widest = packet_number::encoded_len(first + count as u64, space.largest_acked);
        header.pn_len = widest.max(2);
        Form {
            segment,
            header,
            first,
            window_limited: self.paths.is_window_limited(segment * count),
            // Logged packets are written one by one.
            runs: !self.log.is_on() && !self.config.ablation.no_runs,
            pads: self.config.pad_to_mtu,
            fill: FILL,
        }
    }

    /// Writes and books packet `i` of a bundle of `count`; returns where it lies, and the stream
    /// data that sealing puts at its end. `None`: there is nothing to send.
    #[inline]
    fn write_packet(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        form: &Form,
        i: usize,
        count: usize,
    ) -> Option<(PacketSpan, Option<StreamRange>)> {
        let place = i * form.segment..(i + 1) * form.segment;
        let space = &self.spaces[SpaceId::Data];
        let number = form.number(i);
        let (packet, mut w) =
            PacketWriter::begin(buffer, place, SpaceId::Data, &form.header, number, space);
        let mut contents = self.write_frames(SpaceId::Data, now, &mut w, i == 0, count == 0);
        if packet.is_empty(&w) {
            return None;
        }
        if form.pads && contents.in_flight && w.remaining() > 0 {
            self.pad(&mut w, contents.tail.take());
        } else if contents.tail.is_none() {
            // A packet that is almost full is filled, because a shorter one ends the bundle: this
            // includes the last one, since packets of other connections may follow it.
            let more = i + 1 < count;
            let fill = match more && self.datagrams.wants_to_send() {
                true => form.fill,
                false => FILL,
            };
            if (more || contents.in_flight) && w.remaining() < fill {
                PacketWriter::fill(&mut w);
            } else {
                packet.pad_for_sample(&mut w);
            }
        }
        let accounting = Accounting {
            ack_eliciting: contents.ack_eliciting,
            in_flight: contents.in_flight,
            window_limited: form.window_limited,
            is_mtu_probe: false,
        };
        let draft = packet.finish(&w, accounting);
        Some((self.book(now, &draft, buffer), contents.tail))
    }

    /// Fills a packet to its end with PADDING. Its stream data is then no longer at the end, so it
    /// is copied.
    #[cold]
    fn pad(&mut self, w: &mut Writer<'_>, tail: Option<StreamRange>) {
        if let Some(tail) = tail {
            let start = w.len() - tail.len as usize;
            self.streams.copy_head(&tail, &mut w.written_mut()[start..]);
        }
        PacketWriter::fill(w);
    }

    /// Writes and books the next packets of a bundle of `most`, as long as the stream in front
    /// fills them by itself and there is nothing else to send; returns how many. Zero is not the
    /// end: `write_packet` decides that.
    fn write_stream_run(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        form: &Form,
        most: usize,
        bundle: &mut Bundle,
    ) -> usize {
        let written = bundle.spans.len();
        let space = &self.spaces[SpaceId::Data];
        if self.datagrams.wants_to_send() || space.crypto_send.wants_to_send() {
            return 0;
        }
        let Some((id, start, ready)) = self.streams.ahead() else {
            return 0;
        };
        let frame_header = frame::write::stream_header_size(id, start, None);
        let len = (form.segment - TAG_LEN) - form.header.len() - frame_header;
        // Offsets that are encoded with the same width as the first one.
        let as_wide = varint::last_of_size(start) - start;
        let count = (ready / len as u64)
            .min(as_wide / len as u64 + 1)
            .min((most - written) as u64) as usize;
        let Some(template) = Template::new(form, id, start).filter(|_| count > 0) else {
            return 0;
        };
        let places = (buffer.chunks_exact_mut(form.segment).enumerate())
            .skip(written)
            .take(count);
        let mut offset = start;
        for (i, packet) in places {
            let number = form.number(i);
            template.write(packet, number, offset);
            let span = form.header.span(i * form.segment, form.segment, number);
            let tail = StreamRange {
                id,
                start: offset,
                len: len as u32,
                fin: false,
            };
            bundle.push(span, tail);
            offset += len as u64;
        }
        let (size, flow) = (form.segment as u16, &mut self.paths.active.flow);
        flow.enter((count * form.segment) as u64);
        let like = SentPacket::with_one_frame(now, size, flow.tag, form.window_limited);
        let sent = &mut self.spaces[SpaceId::Data].sent;
        sent.push_run(like, count, (id, start, len as u32));
        self.streams.on_sent(&StreamRange {
            id,
            start,
            len: (count * len) as u32,
            fin: false,
        });
        self.note_eliciting(SpaceId::Data, now);
        self.stats.packets_sent += count as u64;
        count
    }
}
