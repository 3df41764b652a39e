//! Acknowledgements and losses: what packets carried is settled (RFC 9000 §13, RFC 9002).

use std::time::Duration;

use squall_wire::{Ack, StreamId, TransportError, TransportErrorCode};

use super::Connection;
use super::log::packet_type;
use super::receive::Trip;
use crate::config::{AckFrequencyRequest, MIN_UDP_PAYLOAD};
use crate::congestion::Acknowledged;
use crate::path::ecn::Counting;
use crate::recovery::loss;
use crate::recovery::reordering::Spurious;
use crate::sent_frame::SentFrame;
use crate::space::SpaceId;
use crate::space::sent::{Acked, AckedRun, SentPacket};
use crate::time::Time;

/// Acknowledgements of a full congestion window, where they may be asked for: enough for slow start to see in time that round
/// trips take longer (RFC 9406 §4.2 wants 8 samples), and later for little of the window to be known late. What is not known to
/// have arrived takes up room in the window, but none on the path: with four of them, CUBIC was left with a third of a link that
/// it shared with another system's, which acknowledges every second packet.
const ACKS_OF_A_WINDOW: u64 = 8;
/// Fewer packets than this are not worth a request.
const LEAST_ACK_THRESHOLD: u64 = 4;
/// Packets between two acknowledgements, at most: about twenty bundles.
const MOST_ACK_THRESHOLD: u64 = 1024;
/// Probe timeouts after which a packet that was declared lost is: its acknowledgement is not waited for.
const SPURIOUS_PROBE_TIMEOUTS: u32 = 2;
/// The delays that are asked for, at least and at most: one that a busy machine can keep, for the probe timeout counts on it,
/// and what RFC 9000 §18.2 has without a request.
const ACK_DELAYS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(25)];

/// What the acknowledgements of one run came to, handed to congestion control once.
#[derive(Debug, Default)]
pub(super) struct AckTotals {
    /// Spaces with a packet newly acknowledged.
    spaces: [bool; 3],
    bytes: u64,
    newest_sent: Time,
    /// Whether the window was full when one of them was sent: a pacer refills it between two acknowledgements, so it is not full
    /// all the time (RFC 9002 §7.8).
    window_limited: bool,
    /// Packets of the active path.
    packets: u64,
    /// Which of them were sent with an ECN mark, and how many, where that is counted one by one.
    counting: Counting,
    marked: u64,
    /// Packets more that met congestion.
    congested: u64,
    /// For the twin test: whether no packets are taken together, and how many were.
    #[cfg(test)]
    singly: bool,
    #[cfg(test)]
    in_runs: u64,
}

/// Neighbouring stream ranges, merged before the stream hears of them: work by ranges, not by packets.
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

impl Connection {
    /// Takes an ACK frame.
    pub(super) fn on_ack(
        &mut self,
        id: SpaceId,
        ack: &Ack<'_>,
        now: Time,
        trip: &mut Trip,
    ) -> Result<(), TransportError> {
        self.stats.acks_received += 1;
        let never_sent = TransportError {
            code: TransportErrorCode::PROTOCOL_VIOLATION,
            frame_type: 0x02,
            reason: "an acknowledgement of a packet that was never sent",
        };
        // RFC 9000 §13.1.
        if ack.largest >= self.spaces[id as usize].sent.next_number() {
            return Err(never_sent);
        }
        let first_open = self.spaces[id as usize].sent.first_open();
        // A frame that was overtaken, or repeats another: everything that it could settle is settled.
        let known = Some(ack.largest) <= self.spaces[id as usize].largest_acked;
        let no_loss = id != SpaceId::Data || self.path.flow.reordering.oldest().is_none();
        if known && no_loss && ack.largest < first_open {
            return Ok(());
        }
        trip.acked.counting = (self.path.flow.ecn).counting(first_open);
        let (packets_before, marked_before) = (trip.acked.packets, trip.acked.marked);
        let largest_before = self.spaces[id as usize].largest_acked;
        let mut largest_newly = None;
        let mut eliciting_newly = false;
        let mut run = StreamRun::default();
        for range in ack.ranges() {
            let first = self.spaces[id as usize].sent.first_open();
            if *range.end() < first {
                // Ranges descend: what follows is settled too.
                break;
            }
            let (mut number, last) = ((*range.start()).max(first), *range.end());
            loop {
                number = self.spaces[id as usize].sent.skip_acknowledged(number);
                if number > last {
                    break;
                }
                if let Some(acked) = self.take_acked_run(id, number, last, &mut run, trip) {
                    if largest_before > Some(number) {
                        self.note_late(largest_before, number, acked.first_sent, now);
                    }
                    if number + acked.count > ack.largest {
                        largest_newly = Some(acked.time_sent);
                    }
                    eliciting_newly = true;
                    number += acked.count;
                    continue;
                }
                match self.spaces[id as usize].sent.acknowledge(number) {
                    Acked::Newly(packet) => {
                        if number == ack.largest && packet.flow == self.path.flow.tag {
                            largest_newly = Some(packet.time_sent);
                        }
                        eliciting_newly |= packet.ack_eliciting;
                        if largest_before > Some(number) && packet.flow == self.path.flow.tag {
                            self.note_late(largest_before, number, packet.time_sent, now);
                        }
                        self.on_packet_acked(id, number, &packet, &mut run, trip);
                    }
                    Acked::AfterLoss(packet) => {
                        // Only a probe is larger than what is known to pass.
                        if packet.flow == self.path.flow.tag
                            && packet.size > self.path.mtu.current()
                            && self.path.mtu.on_passed(packet.size)
                        {
                            let size = self.path.mtu.current();
                            self.path.flow.congestion.set_max_datagram(size);
                        }
                        self.settle_acked_frames(id, &packet, &mut run);
                    }
                    Acked::Already => {}
                    Acked::NeverSent => return Err(never_sent),
                }
                number += 1;
            }
        }
        if let Some((id, start, end, fin)) = run.run {
            self.streams.on_acked(id, start, end - start, fin);
        }
        if id == SpaceId::Data && self.path.flow.reordering.oldest().is_some() {
            self.find_spurious_losses(ack, now);
        }
        let marked = match trip.acked.counting {
            Counting::All => trip.acked.packets - packets_before,
            _ => trip.acked.marked - marked_before,
        };
        // RFC 9000 §13.4.2.1: not by frames that may have been overtaken.
        if marked > 0 && self.spaces[id as usize].largest_acked < Some(ack.largest) {
            let next = self.spaces[SpaceId::Data as usize].sent.next_number();
            let ecn = &mut self.path.flow.ecn;
            trip.acked.congested += ecn.on_counts(&mut self.ecn, ack.ecn, marked, next);
        }
        let space = self.space(id);
        space.largest_acked = space.largest_acked.max(Some(ack.largest));
        space.sent.forget_settled(ack.largest);
        if id == SpaceId::Data
            && let Some(ring) = &mut self.ring
        {
            ring.on_acked(ack.largest);
        }
        // RFC 9002 §5.1: a sample needs the largest newly acknowledged and one packet that asked.
        if let Some(time_sent) = largest_newly.filter(|_| eliciting_newly) {
            let delay = ack
                .delay
                .checked_shl(self.peer.ack_delay_exponent)
                .unwrap_or(u64::MAX);
            // RFC 9002 §5.3: Initial acknowledgements are not delayed; later ones no longer than promised.
            let mut delay = if id == SpaceId::Data {
                Duration::from_micros(delay)
            } else {
                Duration::ZERO
            };
            if self.handshake_confirmed {
                delay = delay.min(self.peer.max_ack_delay);
            }
            self.path.flow.rtt.update(now - time_sent, delay);
        }
        Ok(())
    }

    /// A packet is acknowledged that others overtook, and that is not declared lost.
    #[cold]
    fn note_late(&mut self, largest: Option<u64>, number: u64, time_sent: Time, now: Time) {
        let flow = &mut self.path.flow;
        let distance = largest.map_or(0, |largest| largest - number);
        (flow.reordering).on_late(now, distance, time_sent, &flow.rtt);
    }

    /// Takes back what was declared lost and is acknowledged after all.
    #[cold]
    fn find_spurious_losses(&mut self, ack: &Ack<'_>, now: Time) {
        let patience = SPURIOUS_PROBE_TIMEOUTS * self.probe_timeout();
        let largest = self.spaces[SpaceId::Data as usize].largest_acked;
        let largest = largest.max(Some(ack.largest)).unwrap_or(0);
        let flow = &mut self.path.flow;
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
                self.path.mtu.on_large_acked(number);
            }
            let undone = (flow.congestion).on_spurious_loss(spurious.bytes, spurious.undo);
            self.stats.reductions_undone += u64::from(undone);
        }
    }

    /// Settles packets from `number` on that carried nothing but the next bytes of one stream: what `on_packet_acked` does for
    /// each, once.
    fn take_acked_run(
        &mut self,
        id: SpaceId,
        number: u64,
        last: u64,
        run: &mut StreamRun,
        trip: &mut Trip,
    ) -> Option<AckedRun> {
        let flow = &mut self.path.flow;
        if trip.acked.counting == Counting::EachByNumber {
            return None;
        }
        #[cfg(test)]
        if trip.acked.singly {
            return None;
        }
        let acked = (self.spaces[id as usize].sent).acknowledge_run(number, last, flow.tag)?;
        flow.leave(acked.bytes);
        if acked.bytes > u64::from(MIN_UDP_PAYLOAD) * acked.count {
            self.path.mtu.on_large_acked(number + acked.count - 1);
        }
        let totals = &mut trip.acked;
        #[cfg(test)]
        {
            totals.in_runs += acked.count;
        }
        totals.spaces[id as usize] = true;
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
        trip: &mut Trip,
    ) {
        let totals = &mut trip.acked;
        totals.spaces[id as usize] = true;
        if packet.flow != self.path.flow.tag {
            // RFC 9000 §9.4: it says nothing about the path in use.
            self.settle_elsewhere(packet);
            self.settle_acked_frames(id, packet, run);
            return;
        }
        self.path.flow.leave(packet.size.into());
        totals.packets += 1;
        if totals.counting == Counting::EachByNumber {
            totals.marked += u64::from(self.path.flow.ecn.covers(number));
        }
        totals.bytes += u64::from(packet.size);
        totals.newest_sent = totals.newest_sent.max(packet.time_sent);
        totals.window_limited |= packet.window_limited;
        if packet.size > MIN_UDP_PAYLOAD {
            self.path.mtu.on_large_acked(number);
        }
        if id == SpaceId::Data && self.path.mtu.is_probe(number) {
            if self.path.mtu.on_probe_acked(number) {
                let size = self.path.mtu.current();
                self.path.flow.congestion.set_max_datagram(size);
            }
            return;
        }
        self.settle_acked_frames(id, packet, run);
    }

    #[inline]
    fn settle_acked_frames(&mut self, id: SpaceId, packet: &SentPacket, run: &mut StreamRun) {
        let Self {
            spaces,
            streams,
            remote_ids,
            ack_request,
            peer,
            ..
        } = self;
        let space = &mut spaces[id as usize];
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
                        streams.on_acked(id, start, end - start, fin);
                    }
                }
                SentFrame::Ack { largest } => received.on_ack_acked(largest),
                SentFrame::Crypto { start, len } => {
                    crypto.on_acked(start..start + u64::from(len));
                }
                SentFrame::ResetStream(id) => streams.on_reset_acked(id, 0),
                SentFrame::ResetStreamAt { id, reliable } => streams.on_reset_acked(id, reliable),
                SentFrame::RetireConnectionId(sequence) => remote_ids.on_acked(sequence),
                // draft-ietf-quic-ack-frequency §7: the peer follows the newest request from now on.
                SentFrame::AckFrequency(sequence) if sequence + 1 == ack_request.count => {
                    let least = peer.min_ack_delay.unwrap_or_default();
                    peer.max_ack_delay = ack_request.wanted.max_ack_delay.max(least);
                }
                _ => {}
            }
        }
    }

    /// The losses of a space, found and handled.
    pub(super) fn detect_and_handle_loss(&mut self, id: SpaceId, now: Time) {
        let pto = self.probe_timeout();
        let mut lost = std::mem::take(&mut self.lost);
        loss::detect(
            &mut self.spaces[id as usize],
            now,
            (&self.path.flow.rtt, &self.path.flow.reordering),
            self.path.flow.tag,
            pto,
            &mut lost,
        );
        let (mut congested, mut large) = (None, 0);
        let (mut bytes, mut ranges, mut next) = (0, 0, u64::MAX);
        let mut first = None;
        for number in &lost.numbers {
            let Some(packet) = self.spaces[id as usize].sent.declare_lost(*number) else {
                continue;
            };
            self.stats.packets_lost += 1;
            if self.qlog.is_some() {
                let probe = id == SpaceId::Data && self.is_mtu_probe(*number);
                if let Some(log) = &mut self.qlog {
                    log.packet_lost(now, packet_type(id), *number, probe);
                }
            }
            let here = packet.flow == self.path.flow.tag;
            if here {
                self.path.flow.leave(packet.size.into());
                self.path.flow.ecn.on_lost(*number);
            } else {
                self.settle_elsewhere(&packet);
            }
            if id == SpaceId::Data && self.is_mtu_probe(*number) {
                // RFC 9000 §14.4: the loss of a probe is no sign of congestion.
                if self.path.mtu.is_probe(*number) {
                    self.path.mtu.on_probe_lost(*number);
                }
                continue;
            }
            // RFC 9000 §9.4: what was lost on another path says nothing about this one.
            if here && packet.size > 0 {
                congested = Some(packet.time_sent);
                if id == SpaceId::Data {
                    first = first.or(Some(*number));
                    (self.path.flow.reordering).on_lost(*number, packet.time_sent, packet.size);
                }
                bytes += u64::from(packet.size);
                ranges += u32::from(std::mem::replace(&mut next, number + 1) != *number);
                let suspicious =
                    id == SpaceId::Data && self.path.mtu.is_suspicious(*number, packet.size);
                large += u32::from(suspicious);
            }
            let frames = self.spaces[id as usize].sent.frame_count(&packet);
            for i in 0..frames {
                let Some(frame) = self.spaces[id as usize].sent.frame(&packet, i) else {
                    break;
                };
                self.on_frame_lost(id, frame);
            }
        }
        // RFC 8899 §4.3
        if large > 0 && self.path.mtu.on_large_lost(large) {
            let size = self.path.mtu.current();
            self.path.flow.congestion.set_max_datagram(size);
            self.stats.black_holes += 1;
        }
        if let Some(newest_sent) = congested {
            let flow = &mut self.path.flow;
            let before = flow.congestion.window();
            let reduced = (flow.congestion).on_lost(now, bytes, ranges, newest_sent, &flow.rtt);
            self.stats.congestion_events += u64::from(flow.congestion.window() < before);
            match first {
                Some(first) if reduced => flow.reordering.begin_episode(first),
                // Packets of the handshake are not remembered.
                None => flow.reordering.end_episode(),
                Some(_) => {}
            }
            if lost.persistent {
                flow.congestion.on_persistent_congestion();
                flow.reordering.end_episode();
                // RFC 9002 §5.2.
                flow.rtt.reset_min();
            }
        }
        let space = self.space(id);
        space.sent.forget_settled(space.largest_acked.unwrap_or(0));
        self.lost = lost;
    }

    /// What a lost frame said is put back in line where it still matters (RFC 9000 §13.3).
    pub(super) fn on_frame_lost(&mut self, id: SpaceId, frame: SentFrame) {
        match frame {
            SentFrame::Stream {
                id,
                start,
                len,
                fin,
            } => self.streams.on_lost(id, start, len, fin),
            SentFrame::Crypto { start, len } => self
                .space(id)
                .crypto_send
                .on_lost(start..start + u64::from(len)),
            SentFrame::NewConnectionId(sequence) => self.local_ids.on_lost(sequence),
            SentFrame::RetireConnectionId(sequence) => self.remote_ids.on_lost(sequence),
            SentFrame::HandshakeDone => self.handshake_done_pending = true,
            // A fresh one does as well. A frame may be lost twice: by a probe timeout, and after it.
            SentFrame::NewToken => {
                let due = self.new_tokens_due.saturating_add(1);
                self.new_tokens_due = due.min(self.config.new_tokens);
            }
            SentFrame::AckFrequency(sequence) => {
                self.ack_request.due |= sequence + 1 == self.ack_request.count;
            }
            SentFrame::Ack { .. } => {}
            control => self.streams.on_control_lost(control),
        }
    }

    /// The part of settling that acknowledgements make: once a run (step 6 of the receive trip, `ARCHITECTURE.md`).
    pub(super) fn settle_acks(&mut self, now: Time, totals: &AckTotals) {
        if totals.congested > 0 {
            // RFC 9002 §7.1: as a loss, once a round trip.
            self.stats.ecn_ce += totals.congested;
            let before = self.path.flow.congestion.window();
            let congestion = &mut self.path.flow.congestion;
            congestion.on_marked(now, totals.newest_sent);
            // Whatever becomes of the losses, this is congestion.
            self.path.flow.reordering.end_episode();
            self.stats.congestion_events += u64::from(self.path.flow.congestion.window() < before);
        }
        for id in SpaceId::ALL {
            if totals.spaces[id as usize] {
                self.detect_and_handle_loss(id, now);
            }
        }
        if totals.bytes > 0 {
            let acked = Acknowledged {
                bytes: totals.bytes,
                newest_sent: totals.newest_sent,
                app_limited: !totals.window_limited,
                in_flight: self.path.flow.bytes_in_flight,
                idle: !self.wants_data(),
            };
            let flow = &mut self.path.flow;
            flow.congestion.on_ack(now, &acked, &flow.rtt);
            self.adapt_ack_frequency();
        }
        // RFC 9002 §6.2.1: a client that may be locked out keeps its backoff.
        if self.side == squall_wire::Side::Server
            || self.spaces[SpaceId::Handshake as usize]
                .largest_acked
                .is_some()
            || self.handshake_confirmed
        {
            self.pto_count = 0;
        }
        if self.qlog.is_some() {
            self.log_metrics(now);
        }
        self.set_loss_timer(now);
    }

    /// Asks for acknowledgements as rare as the congestion window allows, when that has doubled or become a quarter less
    /// (draft-ietf-quic-ack-frequency §6): each is a system call there, and one here.
    fn adapt_ack_frequency(&mut self) {
        if self.config.ack_frequency != AckFrequencyRequest::Adaptive
            || !self.handshake_confirmed
            || self.peer.min_ack_delay.is_none()
        {
            return;
        }
        let flow = &self.path.flow;
        let packets = flow.congestion.window() / u64::from(self.path.mtu.current()).max(1);
        let threshold = match packets / ACKS_OF_A_WINDOW {
            few if few < LEAST_ACK_THRESHOLD => 1,
            many => many.min(MOST_ACK_THRESHOLD),
        };
        let wanted = &mut self.ack_request.wanted;
        let before = wanted.ack_eliciting_threshold;
        // Sooner where they are too rare: a window that is reduced to 0.7 gets as many as before.
        if threshold >= 2 * before || 4 * threshold <= 3 * before {
            wanted.ack_eliciting_threshold = threshold;
            wanted.max_ack_delay = (flow.rtt.smoothed() / 4).clamp(ACK_DELAYS[0], ACK_DELAYS[1]);
            self.ack_request.due = true;
        }
    }

    /// Whether the run acknowledged anything.
    pub(super) fn any_acked(totals: &AckTotals) -> bool {
        totals.spaces.iter().any(|s| *s)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::RangeInclusive;

    use bytes::Bytes;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use squall_protect::{MAX_GROUP, PacketSpan};
    use squall_wire::frame::{self, EcnCounts};
    use squall_wire::{ConnectionId, Direction, Ecn, Frame, Frames, Path, Side, Writer};

    use super::*;
    use crate::common::Pair;
    use crate::config::TransportConfig;
    use crate::connection::transmit::NO_RANGE;
    use crate::stream::Priority;

    /// Bytes of a packet: few, so that runs are long and what is compared is short.
    const SEGMENT: usize = 120;

    /// A server with a history of sent packets, and what the peer has acknowledged of it.
    struct History {
        pair: Pair,
        rng: StdRng,
        streams: Vec<StreamId>,
        /// Packets sent with an ECN mark, and those of them that were acknowledged.
        marked: BTreeSet<u64>,
        reported: BTreeSet<u64>,
    }

    impl History {
        fn new(seed: u64) -> Self {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut pair = Pair::with(TransportConfig {
                initial_stream_window: 400_000,
                initial_window: 600_000,
                ecn: rng.random(),
                ..TransportConfig::default()
            });
            pair.run();
            let server = pair.connection(Side::Server);
            if rng.random_ratio(1, 3) {
                // As if the peer did not take RESET_STREAM_AT.
                server.streams.without_partial_resets();
            }
            let streams = (0..rng.random_range(1..4))
                .filter_map(|_| server.open(Direction::Unidirectional))
                .collect();
            // A path beside the active one: what was sent on either is settled there.
            server.add_path(Path {
                remote: "198.51.100.7:7000".parse().expect("an address"),
                local: None,
            });
            Self {
                pair,
                rng,
                streams,
                marked: BTreeSet::new(),
                reported: BTreeSet::new(),
            }
        }

        /// Something that is to be sent, or that makes packets differ.
        fn happen(&mut self) {
            let now = self.pair.now;
            let rng = &mut self.rng;
            let server = self.pair.connection(Side::Server);
            let id = self.streams[rng.random_range(0..self.streams.len())];
            // Whether it is taken is part of what is compared: a refusal leaves nothing to send.
            match rng.random_range(0..25) {
                0 => drop(server.finish(id)),
                11 => drop(server.streams.on_stop_sending(id, 7)),
                1 => drop(server.reset(id, 7)),
                2 => drop(server.reset_at(id, 7, 500)),
                3 => server.ping(),
                4 => drop(server.send_datagram(Bytes::from(vec![b'd'; 50]))),
                5 | 6 => server.space(SpaceId::Data).sent.skip_number(now),
                7 | 8 => {
                    let space = server.space(SpaceId::Data);
                    space.received.extend(1, Ecn::NotEct, now);
                }
                9 => {
                    // A probe for the path's size, as `transmit_mtu_probe` books it.
                    let flow = &mut server.path.flow;
                    flow.bytes_in_flight += 1400;
                    let sent = &mut server.spaces[SpaceId::Data as usize].sent;
                    server.path.mtu.on_probe_sent(sent.next_number(), 1400);
                    let mark = sent.frame_mark();
                    sent.push(now, 1400, true, flow.tag, false, mark);
                }
                10 => {
                    // Packets go another way from now on.
                    let others = server.paths.as_mut().map(|p| &mut p.others);
                    if let Some(other) = others.and_then(|o| o.first_mut()) {
                        std::mem::swap(&mut server.path.flow, &mut other.flow);
                    }
                }
                _ => {
                    let mut chunk = Bytes::from(vec![b'a'; rng.random_range(1..4_000)]);
                    let _ = server.write(id, &mut chunk);
                }
            }
        }

        /// Lets the streams send in turn, a packet each: one goes on at the offset that the packet of another ended at.
        fn take_turns(&mut self) {
            for id in self.streams.clone() {
                let server = self.pair.connection(Side::Server);
                let _ = server.write(id, &mut Bytes::from(vec![b'a'; 2_000]));
                let in_turn = Priority {
                    incremental: true,
                    ..Priority::default()
                };
                server.set_priority(id, in_turn).expect("it is open");
            }
            for _ in 0..12 {
                self.send(1);
            }
        }

        /// Sends a bundle of up to so many packets.
        fn send(&mut self, count: usize) {
            let now = self.pair.now;
            let server = self.pair.connection(Side::Server);
            let next = server.spaces[SpaceId::Data as usize].sent.next_number();
            server.path.flow.ecn.begin(next);
            let mut form = server.form(SEGMENT, count);
            form.limited_by_window(self.rng.random());
            let mut buffer = [0; SEGMENT * MAX_GROUP];
            let (mut spans, mut tails) =
                ([PacketSpan::new(0, 0, 0); MAX_GROUP], [NO_RANGE; MAX_GROUP]);
            server.write_bundle(now, &mut buffer, &form, count, &mut spans, &mut tails);
            let behind = server.spaces[SpaceId::Data as usize].sent.next_number();
            if server.path.flow.ecn.mark() != Ecn::NotEct {
                server.path.flow.ecn.on_sent(behind - next, behind);
                server.ecn.on_sent(behind - next);
                self.marked.extend(next..behind);
            }
        }

        /// Ranges of numbers that were sent, descending, with gaps between; now and then with one that was not.
        fn ranges(&mut self) -> Vec<RangeInclusive<u64>> {
            let sent = &self.pair.connection(Side::Server).spaces[SpaceId::Data as usize].sent;
            let (first, next) = (sent.first_open(), sent.next_number());
            let skipped = sent.skipped();
            let honest = !self.rng.random_ratio(1, 60);
            let mut ranges = Vec::new();
            let mut end = next - 1 - self.rng.random_range(0..8).min(next - 1);
            loop {
                let mut len = self.rng.random_range(1..60);
                if self.rng.random_ratio(1, 3) {
                    len = self.rng.random_range(1..4);
                }
                let mut start = (end + 1).saturating_sub(len);
                if honest && let Some(hole) = skipped.iter().rev().find(|s| **s <= end) {
                    start = start.max(hole + 1);
                }
                if start <= end {
                    ranges.push(start..=end);
                }
                let gap = self.rng.random_range(1..4);
                if start <= gap + first.saturating_sub(10) || ranges.len() > 8 {
                    return ranges;
                }
                end = start - 1 - gap;
            }
        }

        /// Takes an ACK frame.
        fn acknowledge(&mut self, trip: &mut Trip) -> Result<(), TransportError> {
            let ranges = self.ranges();
            let covers = |n: &&u64| ranges.iter().any(|r| r.contains(*n));
            self.reported
                .extend(self.marked.iter().filter(covers).copied());
            let counts = EcnCounts {
                ect0: self.reported.len() as u64,
                ..EcnCounts::default()
            };
            let counts = match self.rng.random_range(0..40) {
                0 => None,
                1..5 => Some(EcnCounts {
                    ect0: counts.ect0.saturating_sub(1),
                    ce: counts.ect0.min(1),
                    ect1: 0,
                }),
                _ => Some(counts).filter(|c| c.ect0 > 0),
            };
            let (mut buffer, delay) = ([0; 500], self.rng.random_range(0..2_000));
            let mut w = Writer::new(&mut buffer);
            if frame::write::ack(&mut w, ranges.into_iter(), delay, counts) == 0 {
                return Ok(());
            }
            let len = w.len();
            let Some(Ok(Frame::Ack(ack))) = Frames::new(&buffer[..len]).next() else {
                panic!("that was an ACK frame");
            };
            let now = self.pair.now;
            let server = self.pair.connection(Side::Server);
            server.on_ack(SpaceId::Data, &ack, now, trip)
        }

        /// All that acknowledgements change, by name.
        fn state(&mut self, trip: &Trip) -> Vec<(&'static str, String)> {
            let server = self.pair.connection(Side::Server);
            let space = &server.spaces[SpaceId::Data as usize];
            let totals = &trip.acked;
            let other = server.paths.as_ref().and_then(|p| p.others.first());
            vec![
                ("records", format!("{:?}", space.sent)),
                ("largest", format!("{:?}", space.largest_acked)),
                ("received", format!("{:?}", space.received)),
                ("flow", format!("{:?}", server.path.flow)),
                ("elsewhere", format!("{:?}", other.map(|o| &o.flow))),
                ("size", format!("{:?}", server.path.mtu)),
                ("ecn", format!("{:?}", server.ecn)),
                ("streams", server.streams.departures()),
                ("stats", format!("{:?}", server.stats)),
                ("timer", format!("{:?}", server.next_timeout())),
                ("newly", format!("{:?}", totals.spaces)),
                ("bytes", format!("{:?}", (totals.packets, totals.bytes))),
                (
                    "newest",
                    format!("{:?}", (totals.newest_sent, totals.window_limited)),
                ),
                ("marks", format!("{:?}", (totals.marked, totals.congested))),
            ]
        }
    }

    /// What a server comes to that is told the same things for the same seed, and how many packets came in runs.
    fn history(seed: u64, singly: bool) -> (Vec<Vec<(&'static str, String)>>, u64) {
        let mut history = History::new(seed);
        let (mut states, mut in_runs) = (Vec::new(), 0);
        let path = history.pair.connection(Side::Server).path.path;
        if seed.is_multiple_of(3) {
            history.take_turns();
        }
        for _ in 0..25 {
            for _ in 0..history.rng.random_range(1..4) {
                history.happen();
                let passed = history.rng.random_range(0..9_000);
                history.pair.now += Duration::from_micros(passed);
                let count = history.rng.random_range(0..=MAX_GROUP);
                history.send(count);
            }
            history.pair.now += Duration::from_micros(history.rng.random_range(100..40_000));
            let mut trip = Trip::new(ConnectionId::EMPTY, path, true, Ecn::NotEct);
            trip.acked.singly = singly;
            for _ in 0..history.rng.random_range(1..3) {
                let taken = history.acknowledge(&mut trip);
                states.push(history.state(&trip));
                if let Err(error) = taken {
                    states.push(vec![("error", format!("{error:?}"))]);
                    return (states, in_runs + trip.acked.in_runs);
                }
            }
            in_runs += trip.acked.in_runs;
            let now = history.pair.now;
            let server = history.pair.connection(Side::Server);
            server.settle_acks(now, &trip.acked);
            states.push(history.state(&trip));
        }
        (states, in_runs)
    }

    /// A run settles as its packets do one by one: with ranges that begin and end anywhere and come again, losses, numbers left
    /// out, other frames, other paths, probes, FIN, resets and ECN marks.
    #[test]
    fn packets_acknowledged_together_settle_as_they_do_alone() {
        let (mut taken, mut refused) = (0, 0);
        for seed in 0..200 {
            let (run, single) = (history(seed, false), history(seed, true));
            for (i, (run, single)) in run.0.iter().zip(&single.0).enumerate() {
                for (run, single) in run.iter().zip(single) {
                    assert!(run == single, "seed {seed}, step {i}:\n{run:?}\n{single:?}");
                }
            }
            assert_eq!((run.0.len(), single.1), (single.0.len(), 0), "seed {seed}");
            taken += run.1;
            refused += usize::from(run.0.last().is_some_and(|s| s.len() == 1));
        }
        assert!(
            taken > 10_000 && refused > 10,
            "{taken} packets in runs, {refused} histories refused"
        );
    }

    /// Whatever the window does, acknowledgements are asked for by the eighth of it.
    #[test]
    fn rare_acknowledgements_follow_the_window() {
        let mut pair = Pair::with(TransportConfig::default());
        pair.run();
        let now = pair.now;
        let server = pair.connection(Side::Server);
        let grown = Acknowledged {
            bytes: 2_000 * u64::from(server.path.mtu.current()),
            newest_sent: now,
            app_limited: false,
            in_flight: 0,
            idle: false,
        };
        let flow = &mut server.path.flow;
        flow.congestion.on_ack(now, &grown, &flow.rtt);
        assert!(server.peer.min_ack_delay.is_some());
        for reduction in 1..10 {
            server.adapt_ack_frequency();
            let packets =
                server.path.flow.congestion.window() / u64::from(server.path.mtu.current());
            let threshold = server.ack_request.wanted.ack_eliciting_threshold;
            assert!(
                packets / 12 < threshold && threshold * 6 <= packets,
                "one for {threshold} of {packets} packets after {reduction} reductions"
            );
            let later = now + reduction * Duration::from_secs(1);
            server.path.flow.congestion.on_marked(later, later);
        }
    }

    /// Takes an ACK frame of one range of packets that were sent.
    fn acknowledge(
        server: &mut Connection,
        range: RangeInclusive<u64>,
        now: Time,
        trip: &mut Trip,
    ) {
        let mut buffer = [0; 50];
        let mut w = Writer::new(&mut buffer);
        frame::write::ack(&mut w, std::iter::once(range), 0, None);
        let len = w.len();
        let Some(Ok(Frame::Ack(ack))) = Frames::new(&buffer[..len]).next() else {
            panic!("that was an ACK frame");
        };
        let taken = server.on_ack(SpaceId::Data, &ack, now, trip);
        taken.expect("they were sent");
    }

    // test: RFC 9438 §4.9 — all up to its largest number is settled, and it still shows that a loss was spurious.
    #[test]
    fn an_acknowledgement_that_was_overtaken_takes_losses_back() {
        let mut pair = Pair::with(TransportConfig::default());
        pair.run();
        let server = pair.connection(Side::Server);
        let first = server.spaces[SpaceId::Data as usize].sent.next_number();
        let id = server.open(Direction::Unidirectional).expect("a stream");
        let mut data = Bytes::from(vec![b'a'; 10 * SEGMENT]);
        server.write(id, &mut data).expect("room");
        let (mut buffer, mut now) = ([0; SEGMENT * MAX_GROUP], pair.now);
        let (mut spans, mut tails) = ([PacketSpan::new(0, 0, 0); MAX_GROUP], [NO_RANGE; MAX_GROUP]);
        let server = pair.connection(Side::Server);
        let form = server.form(SEGMENT, 8);
        server.write_bundle(now, &mut buffer, &form, 8, &mut spans, &mut tails);
        let mut settle = |range: RangeInclusive<u64>| {
            now += Duration::from_millis(1);
            let path = server.path.path;
            let mut trip = Trip::new(ConnectionId::EMPTY, path, true, Ecn::NotEct);
            acknowledge(server, range, now, &mut trip);
            server.settle_acks(now, &trip.acked);
            (server.stats.packets_lost, server.stats.spurious_losses)
        };
        assert_eq!(settle(first + 4..=first + 7), (4, 0));
        assert_eq!(settle(first..=first + 3), (4, 4));
    }

    // test: RFC 9002 §7.8 — pacing is not the application: the window was full, if only for the first of these packets.
    #[test]
    fn a_window_that_was_full_in_between_grows() {
        for singly in [false, true] {
            for (full, grows) in [
                ([true, false], true),
                ([false, true], true),
                ([false, false], false),
            ] {
                let mut pair = Pair::with(TransportConfig::default());
                pair.run();
                let now = pair.now;
                let server = pair.connection(Side::Server);
                let id = server.open(Direction::Unidirectional).expect("a stream");
                let mut data = Bytes::from(vec![b'a'; 6 * SEGMENT]);
                server.write(id, &mut data).expect("room");
                let sent = &server.spaces[SpaceId::Data as usize].sent;
                let first = sent.next_number();
                for limited in full {
                    let mut form = server.form(SEGMENT, 2);
                    form.limited_by_window(limited);
                    let mut buffer = [0; SEGMENT * MAX_GROUP];
                    let (mut spans, mut tails) =
                        ([PacketSpan::new(0, 0, 0); MAX_GROUP], [NO_RANGE; MAX_GROUP]);
                    server.write_bundle(now, &mut buffer, &form, 2, &mut spans, &mut tails);
                }
                let path = server.path.path;
                let mut trip = Trip::new(ConnectionId::EMPTY, path, true, Ecn::NotEct);
                trip.acked.singly = singly;
                let later = now + Duration::from_millis(50);
                acknowledge(server, first..=first + 3, later, &mut trip);
                assert_eq!(trip.acked.packets, 4);
                let before = server.path.flow.congestion.window();
                server.settle_acks(later, &trip.acked);
                let after = server.path.flow.congestion.window();
                assert_eq!(after > before, grows, "{full:?}, singly: {singly}");
            }
        }
    }
}
