//! Step 4 for groups that bulk data fills: stream data is opened into the chunk that the reader
//! gets, and is not copied.
//!
//! Where a packet's data begins is a guess: in the same place as in the packets before. The chunk
//! belongs to no stream until all tags are verified and the headers of the frames are read. Data
//! that turns out not to belong there is moved back to its packet.
//!
//! ```text
//!   packets   | header | number, frame's head | data | tag | header | number, frame's head | ..
//!                      <----- run_skips ----->                     <----- run_skips ----->
//!   chunk     | data of the first packet | data of the second packet | ..
//! ```
//! The guess depends only on what is visible on the wire and on earlier, authentic packets. If
//! something that header protection hides entered into it, the time that a forged packet takes
//! would reveal it (RFC 9001 §9.5).

use std::ops::Range;

use bytes::BytesMut;
use squall_protect::{MAX_GROUP, Outcome, PacketSpan, TAG_LEN};
use squall_wire::StreamId;

use super::Trip;
use super::run::{BULK, Head, payload_alone, skipped};
use crate::connection::Connection;
use crate::connection::handshake::keyring::CURRENT;
use crate::space::SpaceId;
use crate::stream::chunk_pool::LARGEST;

/// A chunk for the data of a group.
pub(super) struct Ahead {
    chunk: BytesMut,
    /// Bytes between the beginning of the packet number and the data.
    skip: usize,
}

impl Ahead {
    /// The part of the chunk for each packet.
    pub(super) fn targets(&mut self, spans: &[PacketSpan]) -> [&mut [u8]; MAX_GROUP] {
        let mut targets: [&mut [u8]; MAX_GROUP] = std::array::from_fn(|_| &mut [][..]);
        let mut chunk = &mut self.chunk[..];
        for (span, target) in spans.iter().zip(&mut targets) {
            let len = data_len(span, self.skip).unwrap_or(0);
            *target = chunk.split_off_mut(..len).unwrap_or_default();
        }
        targets
    }
}

/// Data that was opened into the right places.
struct Run {
    /// The packets, by their places in the group.
    packets: Range<usize>,
    id: StreamId,
    /// The offset in the stream.
    start: u64,
    /// Where it lies in the chunk.
    part: Range<usize>,
}

/// The length of the data that follows these bytes.
fn data_len(span: &PacketSpan, skip: usize) -> Option<usize> {
    (span.len as usize).checked_sub(usize::from(span.pn_offset) + skip + TAG_LEN)
}

/// The stream and the offset of the data in an opened packet, if it lies where it was expected.
fn at_its_place(bytes: &[u8], span: &PacketSpan, skip: usize) -> Option<(StreamId, u64)> {
    let payload = payload_alone(bytes, span)?;
    let (id, head) = Head::of(payload)?;
    let (offset, data) = head.data_after(payload)?;
    (skipped(span, data) == skip && span.slot == CURRENT).then_some((id, offset))
}

impl Connection {
    /// A chunk for the data of a group, if bulk data is expected to fill at least half of it.
    #[inline]
    pub(super) fn room_ahead(
        &mut self,
        id: SpaceId,
        spans: &[PacketSpan],
        trip: &Trip<'_>,
    ) -> Option<Ahead> {
        let bulk = self.run_skips > 0 && id == SpaceId::Data && self.takes_runs(trip);
        if !bulk || !self.spaces.opens_into_targets() {
            return None;
        }
        let skip = usize::from(self.run_skips);
        let mut total = 0;
        for span in spans {
            total += data_len(span, skip)?;
        }
        if !(BULK..=LARGEST).contains(&total) {
            return None;
        }
        let chunk = self.streams.whole_chunk()?;
        Some(Ahead { chunk, skip })
    }

    /// Step 5 for packets that were opened into a chunk: the part with the next bytes of a stream
    /// goes to that stream. All other packets are taken as if they had been opened in place.
    pub(super) fn take_ahead(
        &mut self,
        bytes: &mut [u8],
        spans: &[PacketSpan],
        mut ahead: Ahead,
        trip: &mut Trip<'_>,
    ) {
        let run = run_ahead(bytes, spans, ahead.skip);
        let packets = run.as_ref().map_or(0..0, |run| run.packets.clone());
        move_back(bytes, spans, &ahead, |i| !packets.contains(&i));
        self.take_packets(bytes, SpaceId::Data, &spans[..packets.start], trip);
        if self.is_closed() {
            return;
        }
        let taken = run.is_some_and(|run| self.take_chunk(spans, run, &mut ahead.chunk, trip));
        let mut next = packets.end;
        if !taken {
            next = packets.start;
            move_back(bytes, spans, &ahead, |i| packets.contains(&i));
            self.run_skips = 0;
            self.streams.give_whole_chunk(ahead.chunk);
        }
        self.take_packets(bytes, SpaceId::Data, &spans[next..], trip);
    }

    /// Takes the packets of a run, with their data in the chunk, as `take_stream_run` does.
    fn take_chunk(
        &mut self,
        spans: &[PacketSpan],
        run: Run,
        chunk: &mut BytesMut,
        trip: &mut Trip<'_>,
    ) -> bool {
        let Some(first) = spans.get(run.packets.start) else {
            return false;
        };
        let received = &self.spaces[SpaceId::Data].received;
        if !received.expects(first.packet_number) || self.note_key_slot(first, trip).is_err() {
            return false;
        }
        if !(self.streams).on_stream_chunk(run.id, run.start, chunk, run.part) {
            return false;
        }
        self.note_run(run.packets.len(), trip);
        #[cfg(test)]
        {
            self.stats.packets_ahead += run.packets.len() as u64;
        }
        true
    }
}

/// The run of packets that begins with the first one, or with the second one if the first also
/// carries something else, such as an acknowledgement. `None` if it is too short for a chunk.
fn run_ahead(bytes: &[u8], spans: &[PacketSpan], skip: usize) -> Option<Run> {
    let mut before = 0;
    let mut places = spans.iter().enumerate().map(|(i, span)| {
        let len = data_len(span, skip).unwrap_or(0);
        let part = before..before + len;
        before = part.end;
        (i, span, part)
    });
    let (first, span, part, (id, start)) = places
        .by_ref()
        .take(2)
        .find_map(|(i, span, part)| Some((i, span, part, at_its_place(bytes, span, skip)?)))?;
    let mut run = Run {
        packets: first..first + 1,
        id,
        start,
        part,
    };
    for (i, next, part) in places {
        let number = span.packet_number + (i - first) as u64;
        let offset = start + run.part.len() as u64;
        if next.packet_number != number || at_its_place(bytes, next, skip) != Some((id, offset)) {
            break;
        }
        run.packets.end = i + 1;
        run.part.end = part.end;
    }
    (run.part.len() >= BULK).then_some(run)
}

/// Copies the data of some packets back to where it would be if they had been opened in place.
fn move_back(
    bytes: &mut [u8],
    spans: &[PacketSpan],
    ahead: &Ahead,
    is_moved: impl Fn(usize) -> bool,
) {
    let mut chunk = &ahead.chunk[..];
    for (i, span) in spans.iter().enumerate() {
        let len = data_len(span, ahead.skip).unwrap_or(0);
        let Some(data) = chunk.split_off(..len) else {
            return;
        };
        let end = (span.start + span.len) as usize - TAG_LEN;
        if is_moved(i) && span.slot == CURRENT && span.outcome == Outcome::Open {
            bytes[end - len..end].copy_from_slice(data);
        }
    }
}
