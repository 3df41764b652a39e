//! Step 5 for ACK frames: settles the contents of acknowledged packets (RFC 9000 §13, RFC 9002 §5).

use squall_wire::{Ack, StreamId, TransportError, TransportErrorCode};

use super::Trip;
use crate::connection::Connection;
use crate::path::ecn::Counting;
use crate::recovery::reordering::Spurious;
use crate::sent_frame::SentFrame;
use crate::space::SpaceId;
use crate::space::sent::{Acked, AckedRun, SentPacket};
use crate::time::Time;

/// Probe timeouts after which the acknowledgement of a packet that was declared lost is no longer
/// awaited.
const SPURIOUS_PROBE_TIMEOUTS: u32 = 2;

const NEVER_SENT: TransportError = TransportError {
    code: TransportErrorCode::PROTOCOL_VIOLATION,
    frame_type: 0x02,
    reason: "an acknowledgement of a packet that was never sent",
};

/// Neighbouring stream ranges, merged before they reach the stream: work per range, not per packet.
#[derive(Default)]
struct StreamRun {
    run: Option<(StreamId, u64, u64, bool)>,
}

impl StreamRun {
    /// Adds a range; returns the run before it if it does not continue that.
    #[inline]
    fn add(
        &mut self,
        id: StreamId,
        start: u64,
        end: u64,
        fin: bool,
    ) -> Option<(StreamId, u64, u64, bool)> {
        match &mut self.run {
            Some((run_id, _, run_end, run_fin)) if *run_id == id && *run_end == start => {
                *run_end = end;
                *run_fin |= fin;
                None
            }
            run => run.replace((id, start, end, fin)),
        }
    }
}

/// The part of a frame's new acknowledgements that a round-trip sample needs (RFC 9002 §5.1).
#[derive(Default)]
struct Newly {
    /// When the largest number of the frame was sent, if that is newly acknowledged.
    largest_sent: Option<Time>,
    /// Whether a packet was ack-eliciting.
    eliciting: bool,
}

impl Connection {
    /// Processes an ACK frame.
    pub(in crate::connection) fn on_ack(
        &mut self,
        id: SpaceId,
        ack: &Ack<'_>,
        trip: &mut Trip<'_>,
    ) -> Result<(), TransportError> {
        self.stats.acks_received += 1;
        let space = &self.spaces[id];
        // RFC 9000 §13.1.
        if ack.largest >= space.sent.next_number() {
            return Err(NEVER_SENT);
        }
        let first_open = space.sent.first_open();
        let flow = &self.paths.active.flow;
        // A frame that was overtaken, or repeats another: everything it could settle has been
        // settled.
        let known = Some(ack.largest) <= space.largest_acked;
        let no_loss = id != SpaceId::Data || flow.reordering.oldest().is_none();
        if known && no_loss && ack.largest < first_open {
            return Ok(());
        }
        trip.acked.counting = flow.ecn.counting(first_open);
        let (packets_before, marked_before) = (trip.acked.packets, trip.acked.marked);
        let newly = self.take_ranges(id, ack, trip)?;
        if id == SpaceId::Data && self.paths.active.flow.reordering.oldest().is_some() {
            self.find_spurious_losses(ack, trip.now);
        }
        let marked = match trip.acked.counting {
            Counting::All => trip.acked.packets - packets_before,
            _ => trip.acked.marked - marked_before,
        };
        // RFC 9000 §13.4.2.1: not for frames that may have been overtaken.
        if marked > 0 && self.spaces[id].largest_acked < Some(ack.largest) {
            let next = self.spaces[SpaceId::Data].sent.next_number();
            let ecn = &mut self.paths.active.flow.ecn;
            trip.acked.congested += ecn.on_counts(&mut self.paths.ecn, ack.ecn, marked, next);
        }
        let space = &mut self.spaces[id];
        space.largest_acked = space.largest_acked.max(Some(ack.largest));
        space.sent.forget_settled(ack.largest);
        if id == SpaceId::Data
            && let Some(ring) = &mut self.spaces.ring
        {
            ring.on_acked(ack.largest);
        }
        // RFC 9002 §5.1: a sample needs the largest newly acknowledged and an ack-eliciting one.
        if let Some(time_sent) = newly.largest_sent.filter(|_| newly.eliciting) {
            let received = &self.spaces[id].received;
            if let Some(delay) = self.handshake.ack_delay(id, ack.delay, received) {
                let rtt = &mut self.paths.active.flow.rtt;
                rtt.update(trip.now - time_sent, delay);
            }
        }
        Ok(())
    }

    /// Settles the packets in the ranges of an ACK frame.
    fn take_ranges(
        &mut self,
        id: SpaceId,
        ack: &Ack<'_>,
        trip: &mut Trip<'_>,
    ) -> Result<Newly, TransportError> {
        let largest_before = self.spaces[id].largest_acked;
        let mut newly = Newly::default();
        let mut run = StreamRun::default();
        for range in ack.ranges() {
            let first = self.spaces[id].sent.first_open();
            if *range.end() < first {
                // Ranges descend: all that follows is settled too.
                break;
            }
            let (mut number, last) = ((*range.start()).max(first), *range.end());
            loop {
                number = self.spaces[id].sent.skip_acknowledged(number);
                if number > last {
                    break;
                }
                if let Some(acked) = self.take_acked_run(id, number..=last, &mut run, trip) {
                    if largest_before > Some(number) {
                        let flow = &mut self.paths.active.flow;
                        flow.note_late(largest_before, number, acked.first_sent, trip.now);
                    }
                    if number + acked.count > ack.largest {
                        newly.largest_sent = Some(acked.time_sent);
                    }
                    newly.eliciting = true;
                    number += acked.count;
                    continue;
                }
                match self.spaces[id].sent.acknowledge(number) {
                    Acked::Newly(packet) => {
                        let here = packet.flow == self.paths.active.flow.tag;
                        if here && number == ack.largest {
                            newly.largest_sent = Some(packet.time_sent);
                        }
                        newly.eliciting |= packet.ack_eliciting;
                        if here && largest_before > Some(number) {
                            let flow = &mut self.paths.active.flow;
                            flow.note_late(largest_before, number, packet.time_sent, trip.now);
                        }
                        self.on_packet_acked(id, number, &packet, &mut run, trip);
                    }
                    Acked::AfterLoss(packet) => {
                        if packet.flow == self.paths.active.flow.tag {
                            self.paths.active.on_passed(packet.size);
                        }
                        self.settle_acked_frames(id, &packet, &mut run);
                    }
                    Acked::Already => {}
                    Acked::NeverSent => return Err(NEVER_SENT),
                }
                number += 1;
            }
        }
        if let Some((id, start, end, fin)) = run.run {
            self.streams.on_acked(id, start, end - start, fin);
        }
        Ok(newly)
    }

    /// Undoes losses that turn out to be acknowledged after all.
    #[cold]
    fn find_spurious_losses(&mut self, ack: &Ack<'_>, now: Time) {
        let patience = SPURIOUS_PROBE_TIMEOUTS * self.probe_timeout();
        let largest = self.spaces[SpaceId::Data].largest_acked;
        let largest = largest.max(Some(ack.largest)).unwrap_or(0);
        let flow = &mut self.paths.active.flow;
        let mut spurious = Spurious::default();
        for range in ack.ranges() {
            let Some(oldest) = flow.reordering.oldest().filter(|o| o <= range.end()) else {
                break;
            };
            let range = oldest.max(*range.start())..=*range.end();
            (flow.reordering).on_acked(now, &range, largest, &flow.rtt, &mut spurious);
        }
        flow.reordering.expire(now, patience);
        if spurious.packets > 0 {
            self.stats.spurious_losses += spurious.packets;
            if let Some(number) = spurious.large {
                self.paths.active.mtu.on_large_acked(number);
            }
            let congestion = &mut self.paths.active.flow.congestion;
            let undone = congestion.on_spurious_loss(spurious.bytes, spurious.undo);
            self.stats.reductions_undone += u64::from(undone);
        }
    }

    /// Settles packets from the first of `numbers` on that carried only the next bytes of one
    /// stream: does once what `on_packet_acked` does for each.
    fn take_acked_run(
        &mut self,
        id: SpaceId,
        numbers: std::ops::RangeInclusive<u64>,
        run: &mut StreamRun,
        trip: &mut Trip<'_>,
    ) -> Option<AckedRun> {
        if trip.acked.counting == Counting::EachByNumber {
            return None;
        }
        #[cfg(test)]
        if trip.acked.singly {
            return None;
        }
        let (number, last) = numbers.into_inner();
        let path = &mut self.paths.active;
        let acked = (self.spaces[id].sent).acknowledge_run(number, last, path.flow.tag)?;
        path.flow.leave(acked.bytes);
        if acked.bytes > u64::from(path.mtu.floor()) * acked.count {
            path.mtu.on_large_acked(number + acked.count - 1);
        }
        let totals = &mut trip.acked;
        #[cfg(test)]
        {
            totals.in_runs += acked.count;
        }
        totals.spaces[id] = true;
        totals.packets += acked.count;
        totals.bytes += acked.bytes;
        totals.newest_sent = totals.newest_sent.max(acked.time_sent);
        totals.window_limited |= acked.window_limited;
        if let Some((id, start, end, fin)) = run.add(acked.id, acked.start, acked.end, false) {
            self.streams.on_acked(id, start, end - start, fin);
        }
        Some(acked)
    }

    #[inline]
    fn on_packet_acked(
        &mut self,
        id: SpaceId,
        number: u64,
        packet: &SentPacket,
        run: &mut StreamRun,
        trip: &mut Trip<'_>,
    ) {
        let totals = &mut trip.acked;
        totals.spaces[id] = true;
        let path = &mut self.paths.active;
        if packet.flow != path.flow.tag {
            // RFC 9000 §9.4: it says nothing about the path in use.
            self.paths.settle_elsewhere(packet);
            self.settle_acked_frames(id, packet, run);
            return;
        }
        path.flow.leave(packet.size.into());
        totals.packets += 1;
        if totals.counting == Counting::EachByNumber {
            totals.marked += u64::from(path.flow.ecn.covers(number));
        }
        totals.bytes += u64::from(packet.size);
        totals.newest_sent = totals.newest_sent.max(packet.time_sent);
        totals.window_limited |= packet.window_limited;
        if packet.size > path.mtu.floor() {
            path.mtu.on_large_acked(number);
        }
        if id == SpaceId::Data && path.mtu.is_probe(number) {
            let before = path.mtu.current();
            path.on_probe_acked(number);
            self.log.mtu(before, path.mtu.current());
            return;
        }
        self.settle_acked_frames(id, packet, run);
    }

    #[inline]
    fn settle_acked_frames(&mut self, id: SpaceId, packet: &SentPacket, run: &mut StreamRun) {
        let space = &mut self.spaces[id];
        let (sent, received, crypto) = (&space.sent, &mut space.received, &mut space.crypto_send);
        for frame in sent.frames(packet) {
            match frame {
                SentFrame::Stream {
                    id,
                    start,
                    len,
                    fin,
                } => {
                    let end = start + u64::from(len);
                    if let Some((id, start, end, fin)) = run.add(id, start, end, fin) {
                        self.streams.on_acked(id, start, end - start, fin);
                    }
                }
                SentFrame::Ack { largest } => received.on_ack_acked(largest),
                SentFrame::Crypto { start, len } => {
                    crypto.on_acked(start..start + u64::from(len));
                }
                SentFrame::ResetStream(id) => self.streams.on_reset_acked(id, 0),
                SentFrame::ResetStreamAt { id, reliable } => {
                    self.streams.on_reset_acked(id, reliable);
                }
                SentFrame::RetireConnectionId(sequence) => {
                    self.paths.remote_ids.on_acked(sequence);
                }
                SentFrame::AckFrequency(sequence) => {
                    let peer = &mut self.handshake.peer;
                    self.duties.ack_frequency.on_acked(sequence, peer);
                }
                _ => {}
            }
        }
    }
}
