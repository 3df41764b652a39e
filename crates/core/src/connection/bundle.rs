//! The packets of a bundle: what they have in common, and runs of them that one stream fills.
//!
//! A bulk transfer's packets are alike but for the packet number and the offset of their one STREAM frame. Header and frame header
//! are made once a run; a packet costs three stores and its place in the records. What such a run writes and
//! books is what `write_packet` would have, packet by packet: the tests below compare both.

use std::ops::Range;

use rand::RngCore;
use squall_protect::{MAX_GROUP, PacketSpan, TAG_LEN};
use squall_wire::{
    ConnectionId, PacketType, StreamId, Writer, frame, header, packet_number, varint,
};

use super::Connection;
use super::keyring::KeyRing;
use super::transmit::NO_RANGE;
use crate::config::MIN_PROTECTED;
use crate::qlog::Packet;
use crate::space::SpaceId;
use crate::space::sent::SentPacket;
use crate::stream::send::StreamRange;
use crate::time::Time;

/// A packet with less room than this left is filled with PADDING rather than ending its bundle.
pub(super) const FILL: usize = 32;
/// Room for a short header and a STREAM frame's header: 1 + 20 + 4 and 1 + 8 + 8 bytes.
const TEMPLATE: usize = 48;

/// What the packets of a bundle have in common.
pub(super) struct Form {
    /// Bytes from one packet to the next.
    segment: usize,
    /// The peer's connection id.
    dcid: ConnectionId,
    /// The spin bit.
    spin: bool,
    /// The key phase bit.
    phase: bool,
    /// Whether the fixed bit is 0 (RFC 9287).
    greased: bool,
    /// Number of the first packet.
    first: u64,
    /// Bytes of the packet numbers.
    pn_len: usize,
    /// Whether the congestion window is the limit.
    window_limited: bool,
    /// Whether packets that one stream fills may be written as a run.
    runs: bool,
}

impl Form {
    /// Bytes of each header, packet number included.
    fn header_len(&self) -> usize {
        header::short_header_size(self.dcid.len(), self.pn_len)
    }

    /// As if the congestion window were the limit, or not.
    #[cfg(test)]
    pub(super) const fn limited_by_window(&mut self, limited: bool) {
        self.window_limited = limited;
    }

    /// Number of packet `i`.
    const fn number(&self, i: usize) -> u64 {
        self.first + i as u64
    }

    /// Puts the header of packet `i`.
    #[inline]
    fn write_header(&self, w: &mut Writer<'_>, i: usize) {
        header::write_short(
            w,
            &self.dcid,
            self.spin,
            self.phase,
            self.number(i),
            self.pn_len,
        );
        if self.greased {
            w.written_mut()[0] &= !header::FIXED_BIT;
        }
    }

    /// Where packet `i` of `size` bytes lies.
    #[inline]
    fn span(&self, i: usize, size: usize) -> PacketSpan {
        let pn_offset = self.header_len() - self.pn_len;
        let start = (i * self.segment) as u32;
        let mut span = PacketSpan::new(start, size as u32, pn_offset as u16);
        (span.header_len, span.packet_number) = (self.header_len() as u16, self.number(i));
        span
    }
}

/// The beginning of every packet of a run, and the two places in it that differ.
struct Template {
    bytes: [u8; TEMPLATE],
    /// The four bytes from the packet number on, number zero.
    number: (usize, u32),
    /// The eight bytes from the offset on, offset zero and nothing behind.
    offset: (usize, u64),
    /// How far a number and an offset are moved to the left in those.
    shifts: (u32, u32),
}

impl Template {
    /// `offset` is of the run's first packet; the offsets of the others are written as wide.
    fn new(form: &Form, id: StreamId, offset: u64) -> Option<Self> {
        let mut bytes = [0; TEMPLATE];
        let mut w = Writer::new(&mut bytes);
        form.write_header(&mut w, 0);
        frame::write::stream_header(&mut w, id, offset, None, false);
        let len = w.len();
        let (at_number, width) = (form.header_len() - form.pn_len, varint::size(offset));
        let at_offset = len - width;
        let shifts = (32 - 8 * form.pn_len as u32, 64 - 8 * width as u32);
        let number = u32::from_be_bytes(*bytes.get(at_number..)?.first_chunk()?);
        // The two bits that tell the width.
        let width_bits = u64::from(*bytes.get(at_offset)? & 0xc0) << 56;
        Some(Self {
            number: (at_number, number & !(u32::MAX << shifts.0)),
            offset: (at_offset, width_bits),
            bytes,
            shifts,
        })
    }

    /// Puts the beginning of the packet with this number and offset.
    #[inline]
    fn write(&self, packet: &mut [u8], number: u64, offset: u64) {
        let Some(place) = packet.first_chunk_mut::<{ TEMPLATE + 8 }>() else {
            return;
        };
        if let Some(place) = place.first_chunk_mut() {
            *place = self.bytes;
        }
        let (at, rest) = self.number;
        if let Some(place) = place.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            // Of a number its low bytes.
            *place = (((number as u32) << self.shifts.0) | rest).to_be_bytes();
        }
        let (at, width) = self.offset;
        if let Some(place) = place.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            // What lies behind the offset is the data's place.
            *place = ((offset << self.shifts.1) | width).to_be_bytes();
        }
    }
}

impl Connection {
    /// Writes up to `count` packets; one with acknowledgements alone if `count` is zero.
    /// Returns how many, and the bytes from the first to the last with its tag.
    pub(super) fn write_bundle(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        form: &Form,
        count: usize,
        spans: &mut [PacketSpan; MAX_GROUP],
        tails: &mut [StreamRange; MAX_GROUP],
    ) -> (usize, usize) {
        let segment = form.segment;
        let (mut written, mut len) = (0, 0);
        for i in 0..count.max(1) {
            if i < written {
                // A run of packets has been written.
                continue;
            }
            let run = if i > 0 && form.runs {
                self.write_stream_run(now, buffer, form, i..count, spans, tails)
            } else {
                0
            };
            if run > 0 {
                (written, len) = (i + run, (i + run) * segment);
                continue;
            }
            let Some(packet) = buffer.get_mut(i * segment..(i + 1) * segment) else {
                break;
            };
            let Some((size, tail)) = self.write_packet(now, packet, form, i, count) else {
                break;
            };
            spans[i] = form.span(i, size);
            tails[i] = tail.unwrap_or(NO_RANGE);
            (written, len) = (i + 1, i * segment + size);
            if size < segment {
                break;
            }
        }
        self.streams.rotate();
        (written, len)
    }

    /// What the packets of the next bundle have in common.
    pub(super) fn form(&mut self, segment: usize, count: usize) -> Form {
        let space = &self.spaces[SpaceId::Data as usize];
        let first = space.sent.next_number();
        Form {
            segment,
            dcid: self.remote_ids.current(),
            spin: self.path.spin.value(),
            phase: self.ring.as_ref().is_some_and(KeyRing::phase),
            // RFC 9287 §3: unpredictable, a bundle at a time.
            greased: self.peer.greased && self.rng.next_u32() & 1 != 0,
            first,
            // One width for all, wide enough for the last; two bytes at least, so that the sample never needs padding.
            pn_len: packet_number::encoded_len(first + count as u64, space.largest_acked).max(2),
            window_limited: self.window_limited(segment * count),
            // What is logged is written packet by packet.
            runs: self.qlog.is_none(),
        }
    }

    /// Writes packet `i` of a bundle of `count`, and books it; returns its size with the tag, and what sealing puts at its
    /// end. `None`: there is nothing to say.
    fn write_packet(
        &mut self,
        now: Time,
        packet: &mut [u8],
        form: &Form,
        i: usize,
        count: usize,
    ) -> Option<(usize, Option<StreamRange>)> {
        let mut w = Writer::new(&mut packet[..form.segment - TAG_LEN]);
        form.write_header(&mut w, i);
        let header_len = form.header_len();
        let first_frame = self.spaces[SpaceId::Data as usize].sent.frame_mark();
        let contents = self.write_frames(SpaceId::Data, now, &mut w, i == 0, count == 0);
        if w.len() == header_len {
            return None;
        }
        let room = w.remaining();
        let more = i + 1 < count;
        if contents.tail.is_none() {
            // RFC 9001 §5.4.2: room for the sample. And a packet almost full is filled, for a shorter one ends the bundle.
            let short = (MIN_PROTECTED + header_len - form.pn_len).saturating_sub(w.len());
            frame::write::padding(&mut w, if more && room < FILL { room } else { short });
        }
        let size = w.len() + TAG_LEN;
        if self.qlog.is_some() {
            let packet = Packet {
                ty: PacketType::OneRtt,
                number: form.number(i),
                len: size,
                payload: &w.written_mut()[header_len..],
            };
            self.log_sent(now, packet, false);
        }
        let counted = if contents.in_flight { size as u16 } else { 0 };
        self.spaces[SpaceId::Data as usize].sent.push(
            now,
            counted,
            contents.ack_eliciting,
            self.path.flow.tag,
            form.window_limited,
            first_frame,
        );
        self.note_sent(SpaceId::Data, now, &contents, u64::from(counted));
        Some((size, contents.tail))
    }

    /// Writes and books packets of the bundle, from the first of `packets` on, as long as the stream in front fills them by
    /// itself and nobody else has anything to say; returns how many. None at all is no end: `write_packet` knows better.
    fn write_stream_run(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        form: &Form,
        packets: Range<usize>,
        spans: &mut [PacketSpan; MAX_GROUP],
        tails: &mut [StreamRange; MAX_GROUP],
    ) -> usize {
        let others = self.datagrams.wants_to_send()
            || self.spaces[SpaceId::Data as usize]
                .crypto_send
                .wants_to_send();
        if others {
            return 0;
        }
        let Some((id, start, ready)) = self.streams.ahead() else {
            return 0;
        };
        let frame_header = frame::write::stream_header_size(id, start, None);
        let len = (form.segment - TAG_LEN) - form.header_len() - frame_header;
        // Offsets that are written as wide as the first one.
        let as_wide = varint::last_of_size(start) - start;
        let count = (ready / len as u64)
            .min(as_wide / len as u64 + 1)
            .min(packets.len() as u64) as usize;
        let Some(template) = Template::new(form, id, start).filter(|_| count > 0) else {
            return 0;
        };
        let places = buffer
            .chunks_exact_mut(form.segment)
            .zip(spans.iter_mut().zip(tails.iter_mut()))
            .enumerate()
            .skip(packets.start)
            .take(count);
        let mut offset = start;
        for (i, (packet, (span, tail))) in places {
            template.write(packet, form.number(i), offset);
            *span = form.span(i, form.segment);
            *tail = StreamRange {
                id,
                start: offset,
                len: len as u32,
                fin: false,
            };
            offset += len as u64;
        }
        let like = SentPacket::with_one_frame(
            now,
            form.segment as u16,
            self.path.flow.tag,
            form.window_limited,
        );
        self.spaces[SpaceId::Data as usize]
            .sent
            .push_run(like, count, (id, start, len as u32));
        self.streams.on_sent(&StreamRange {
            id,
            start,
            len: (count * len) as u32,
            fin: false,
        });
        self.note_eliciting(SpaceId::Data, now);
        self.note_in_flight((count * form.segment) as u64);
        count
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use squall_wire::{Direction, Side};

    use super::*;
    use crate::common::Pair;
    use crate::config::TransportConfig;
    use crate::sent_frame::SentFrame;
    use crate::stream::Priority;

    /// What a bundle is, its connection id and the data that sealing puts in aside.
    #[derive(Debug, PartialEq)]
    struct Seen {
        extent: (usize, usize),
        in_flight: u64,
        /// Of each packet: length, number, header length, the range at its end, and its bytes up to there.
        packets: Vec<(u32, u64, u16, StreamRange, Vec<u8>)>,
        /// What is remembered of each.
        records: Vec<(u16, bool, Vec<SentFrame>)>,
    }

    /// Writes a bundle; with or without runs.
    fn write(pair: &mut Pair, runs: bool, segment: usize, count: usize) -> Seen {
        let now = pair.now;
        let server = pair.connection(Side::Server);
        let mut buffer = vec![0; 65_536];
        let (mut spans, mut tails) = ([PacketSpan::new(0, 0, 0); MAX_GROUP], [NO_RANGE; MAX_GROUP]);
        let mut form = server.form(segment, count);
        (form.runs, form.greased) = (runs, false);
        let extent = server.write_bundle(now, &mut buffer, &form, count, &mut spans, &mut tails);
        let id_len = form.dcid.len();
        let packets = spans[..extent.0].iter().zip(tails).map(|(span, tail)| {
            let start = span.start as usize;
            let end = start + span.len as usize - TAG_LEN - tail.len as usize;
            let bytes = buffer[start + 1 + id_len..end].to_vec();
            (span.len, span.packet_number, span.header_len, tail, bytes)
        });
        let packets = packets.collect();
        let sent = &server.spaces[SpaceId::Data as usize].sent;
        let records = sent.outstanding().map(|(_, packet)| {
            (
                packet.size,
                packet.ack_eliciting,
                sent.frames(packet).collect(),
            )
        });
        let mut records: Vec<_> = records.collect();
        let records = records.split_off(records.len().saturating_sub(MAX_GROUP));
        Seen {
            extent,
            in_flight: server.path.flow.bytes_in_flight,
            packets,
            records,
        }
    }

    /// What a server writes that is told the same things for the same seed, and how many packets came in runs.
    fn bundles(seed: u64, runs: bool) -> Vec<Seen> {
        let mut pair = Pair::with(TransportConfig {
            initial_stream_window: 400_000,
            initial_window: 600_000,
            ..TransportConfig::default()
        });
        pair.run();
        let mut rng = StdRng::seed_from_u64(seed);
        let server = pair.connection(Side::Server);
        server.skip_number = u64::MAX;
        let ids: Vec<_> = (0..rng.random_range(1..4))
            .filter_map(|_| server.open(Direction::Unidirectional))
            .collect();
        let mut seen = Vec::new();
        for _ in 0..30 {
            let server = pair.connection(Side::Server);
            let id = ids[rng.random_range(0..ids.len())];
            // Whether it is taken is part of what is compared: a refusal leaves nothing to send.
            match rng.random_range(0..24) {
                0 => drop(server.finish(id)),
                1 => drop(server.reset(id, 7)),
                2 => drop(server.reset_at(id, 7, 20_000)),
                3 | 4 => server.streams.on_lost(id, 3000, 5000, false),
                5 => server.ping(),
                6 => drop(server.send_datagram(Bytes::from(vec![2; 900]))),
                _ => {
                    let mut chunk = Bytes::from(vec![1; rng.random_range(1..60_000)]);
                    let _ = server.write(id, &mut chunk);
                }
            }
            let segment = [1200, 1452, 1472, 9000][rng.random_range(0..4)];
            let count = rng.random_range(0..=65_536 / segment).min(MAX_GROUP);
            seen.push(write(&mut pair, runs, segment, count));
        }
        seen
    }

    /// A run is what its packets would have been one by one: with streams of all lengths, chunks of all sizes, credit that ends,
    /// losses, FIN, resets, and offsets that become wider.
    #[test]
    fn a_run_is_its_packets_one_by_one() {
        let mut written = 0;
        for seed in 0..60 {
            let (runs, singly) = (bundles(seed, true), bundles(seed, false));
            for (i, (run, single)) in runs.iter().zip(&singly).enumerate() {
                assert!(
                    run == single,
                    "seed {seed}, bundle {i}:\n{run:x?}\n{single:x?}"
                );
            }
            written += singly.iter().map(|s| s.extent.0).sum::<usize>();
        }
        assert!(written > 5000, "{written}");
    }

    /// Streams that end with a packet or a byte before or behind that, with a FIN or without, and another one after them.
    #[test]
    fn a_run_ends_where_its_stream_does() {
        let bundles = [true, false].map(|runs| {
            let mut pair = Pair::with(TransportConfig {
                max_concurrent_uni_streams: 10_000,
                initial_window: 64 << 20,
                receive_window: 64 << 20,
                send_window: 64 << 20,
                ..TransportConfig::default()
            });
            pair.run();
            let urgent = Priority {
                level: 1,
                incremental: false,
            };
            let mut seen = Vec::new();
            // Every length from one full packet to the next, behind some that are full.
            for len in 5_000..6_250 {
                let server = pair.connection(Side::Server);
                server.skip_number = u64::MAX;
                for (len, rank) in [(len, urgent), (4_000, Priority::default())] {
                    let id = server.open(Direction::Unidirectional).expect("a stream");
                    let mut data = Bytes::from(vec![1; len]);
                    assert_eq!(server.write(id, &mut data), Ok(len));
                    server.set_priority(id, rank).expect("it is open");
                    if len % 2 == 0 {
                        server.finish(id).expect("it is open");
                    }
                }
                // A packet that is not full ends a bundle.
                seen.extend([(); 3].map(|()| write(&mut pair, runs, 1200, 20)));
            }
            seen
        });
        for (i, (run, single)) in bundles[0].iter().zip(&bundles[1]).enumerate() {
            assert!(run == single, "bundle {i}:\n{run:x?}\n{single:x?}");
        }
    }

    /// Numbers and offsets of every width, written into a template as the writers of `wire` write them.
    #[test]
    fn a_template_takes_every_number_and_offset() {
        let id = ConnectionId::new(&[0xab; 20]).expect("a connection id");
        for (dcid, pn_len) in [(ConnectionId::EMPTY, 2), (id, 3), (id, 4)] {
            let form = Form {
                segment: 1472,
                dcid,
                spin: true,
                phase: true,
                greased: true,
                first: 0x0123_4567,
                pn_len,
                window_limited: false,
                runs: true,
            };
            for stream in [StreamId(3), StreamId(0x3333), StreamId(varint::MAX)] {
                for first in [
                    1,
                    60,
                    64,
                    16_300,
                    16_384,
                    (1 << 30) - 1,
                    1 << 30,
                    varint::MAX - 9,
                ] {
                    for offset in [first, varint::last_of_size(first)] {
                        let template = Template::new(&form, stream, first).expect("it fits");
                        let (mut packet, mut expected) = ([0; 100], [0; 100]);
                        template.write(&mut packet, form.number(5), offset);
                        let mut w = Writer::new(&mut expected);
                        form.write_header(&mut w, 5);
                        frame::write::stream_header(&mut w, stream, offset, None, false);
                        let len = w.len();
                        assert_eq!(packet[..len], expected[..len], "{stream:?} {offset}");
                    }
                }
            }
        }
    }
}
