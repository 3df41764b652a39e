//! Step 5 for packets that arrived in order and carry one stream's next bytes, as in a bulk
//! transfer. They are taken together, with each check of a single packet made once; all others are
//! taken packet by packet (`tests/twins.rs` compares).

use squall_protect::{MAX_GROUP, Outcome, PacketSpan, TAG_LEN};
use squall_wire::StreamId;

use super::Trip;
use super::frames::stream_to_end;
use crate::connection::Connection;
use crate::connection::handshake::keyring::CURRENT;
use crate::space::SpaceId;
use crate::stream::chunk_pool::LARGEST;

/// The least data of a run after which the next group is opened into a chunk, and the least data in
/// such a chunk.
pub(super) const BULK: usize = LARGEST / 2;

impl Connection {
    /// Takes packets that arrived in order and carry only the next bytes of one stream, making each
    /// check of `take_packet` once for all; returns how many. Zero does not mean that the first one
    /// is invalid.
    pub(super) fn take_stream_run(
        &mut self,
        bytes: &[u8],
        spans: &[PacketSpan],
        trip: &mut Trip<'_>,
    ) -> usize {
        let [first, _, ..] = spans else {
            return 0;
        };
        let received = &self.spaces[SpaceId::Data].received;
        if !self.takes_runs(trip) || !received.expects(first.packet_number) {
            return 0;
        }
        let Some((id, head)) = payload_alone(bytes, first).and_then(Head::of) else {
            return 0;
        };
        let mut pieces: [&[u8]; MAX_GROUP] = [&[]; MAX_GROUP];
        let (mut count, mut start, mut end, mut skip) = (0, 0, 0, 0);
        for (span, piece) in spans.iter().zip(&mut pieces) {
            let follows = span.packet_number == first.packet_number + count as u64;
            let next = payload_alone(bytes, span).and_then(|payload| head.data_after(payload));
            match next {
                Some((offset, data))
                    if follows && span.slot == CURRENT && (offset == end || count == 0) =>
                {
                    if count == 0 {
                        (start, end) = (offset, offset);
                    }
                    *piece = data;
                    end += data.len() as u64;
                    skip = skipped(span, data);
                    count += 1;
                }
                _ => break,
            }
        }
        if count < 2 || self.note_key_slot(first, trip).is_err() {
            return 0;
        }
        if !(self.streams).on_stream_run(id, start, end - start, &pieces[..count]) {
            return 0;
        }
        self.note_run(count, trip);
        self.run_skips = if end - start >= BULK as u64 {
            skip as u8
        } else {
            0
        };
        count
    }

    /// Whether packets may be taken together: not those that are logged, early or from elsewhere.
    pub(super) fn takes_runs(&self, trip: &Trip<'_>) -> bool {
        let plain = trip.home && !trip.early && !self.log.is_on();
        plain && !self.config.ablation.no_runs
    }

    /// Books packets that were taken together.
    pub(super) fn note_run(&mut self, count: usize, trip: &mut Trip<'_>) {
        let received = &mut self.spaces[SpaceId::Data].received;
        received.extend(count as u32, trip.ecn, trip.now);
        trip.opened = true;
        trip.eliciting[SpaceId::Data] = true;
        self.stats.packets_received += count as u64;
        #[cfg(test)]
        {
            self.stats.packets_in_runs += count as u64;
        }
    }
}

/// The frames of an opened 1-RTT packet whose header is valid.
#[inline]
pub(super) fn payload_alone<'a>(bytes: &'a [u8], span: &PacketSpan) -> Option<&'a [u8]> {
    let packet = bytes.get(span.start as usize..(span.start + span.len) as usize)?;
    // A short header without reserved bits.
    let plain = span.outcome == Outcome::Open && packet.first()? & 0x98 == 0;
    let payload = packet.get(span.header_len.into()..packet.len().checked_sub(TAG_LEN)?)?;
    plain.then_some(payload)
}

/// Bytes between the beginning of the number of an opened packet and the data at its end.
#[inline]
pub(super) fn skipped(span: &PacketSpan, data: &[u8]) -> usize {
    span.len as usize - usize::from(span.pn_offset) - TAG_LEN - data.len()
}

/// The type and the id of STREAM frames with an offset, without a length and without FIN (RFC 9000
/// §19.8): how the frames of a run begin.
pub(super) struct Head {
    bytes: u128,
    len: usize,
}

impl Head {
    /// The head of a packet's first frame, and the stream.
    #[inline]
    pub(super) fn of(payload: &[u8]) -> Option<(StreamId, Self)> {
        let ty = *payload.first().filter(|ty| **ty == 0x0c)?;
        let (id, ..) = stream_to_end(ty, payload)?;
        let len = 1 + (1 << (payload.get(1)? >> 6));
        // Type, id and an offset of any width are read at once.
        let bytes = u128::from_be_bytes(*payload.first_chunk()?) >> (128 - 8 * len);
        (len + 8 <= 16).then_some((id, Self { bytes, len }))
    }

    /// The offset and the data of a frame that begins like this and extends to the packet's end.
    #[inline]
    pub(super) fn data_after<'a>(&self, payload: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let first = u128::from_be_bytes(*payload.first_chunk()?);
        if first >> (128 - 8 * self.len) != self.bytes {
            return None;
        }
        // RFC 9000 §16: the two high bits of the first byte give the width.
        let rest = first << (8 * self.len);
        let width = 1 << (rest >> 126);
        let offset = (rest << 2 >> 2) >> (128 - 8 * width);
        Some((offset as u64, payload.get(self.len + width..)?))
    }
}
