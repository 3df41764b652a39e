//! Finds and handles losses (RFC 9002 §6, §7).

use crate::connection::Connection;
use crate::connection::parts::log::packet_type;
use crate::connection::parts::spaces::PROBE_RECORDS;
use crate::observation::CongestionCause;
use crate::recovery::loss::{self, Lost};
use crate::sent_frame::SentFrame;
use crate::space::SpaceId;
use crate::space::sent::SentPacket;
use crate::time::Time;

/// The losses on the active path found in one pass.
struct Found {
    /// The first of them, if packets of its space are remembered.
    first: Option<u64>,
    /// When the newest of them was sent.
    newest_sent: Option<Time>,
    /// Bytes, and the number of runs of consecutive numbers.
    bytes: u64,
    ranges: u32,
    /// The number after the last one.
    next: u64,
    /// Number of lost packets whose size may no longer get through.
    large: u32,
    packets: u64,
}

impl Connection {
    /// Finds and handles the losses of a space.
    pub(in crate::connection) fn detect_losses(&mut self, id: SpaceId, now: Time) {
        let space = &mut self.spaces[id];
        let oldest = space.sent.pass_settled();
        if space.largest_acked.is_none_or(|largest| oldest > largest) {
            // Most often: no packet was overtaken by an acknowledged one.
            space.loss_time = None;
            return;
        }
        let persistent = self.probe_timeout() * self.config.persistent_congestion_threshold;
        let mut lost = std::mem::take(&mut self.spaces.lost);
        let flow = &self.paths.active.flow;
        let path = (&flow.rtt, &flow.reordering);
        let space = &mut self.spaces[id];
        loss::detect(space, now, path, flow.tag, persistent, &mut lost);
        self.declare_lost(id, now, &lost);
        let space = &mut self.spaces[id];
        space.sent.forget_settled(space.largest_acked.unwrap_or(0));
        self.spaces.lost = lost;
    }

    /// Declares the oldest packets lost if so many are remembered that a probe could not be
    /// (`SECURITY.md` row 8). A peer that acknowledges nothing would otherwise keep the probe
    /// timeout due for ever, and one that returns after a long time would hear nothing more.
    pub(in crate::connection) fn make_room_for_probes(&mut self, now: Time) {
        if self.spaces.may_probe() {
            return;
        }
        let mut lost = std::mem::take(&mut self.spaces.lost);
        let sent = &self.spaces[SpaceId::Data].sent;
        let oldest = sent.outstanding().take(PROBE_RECORDS);
        lost.numbers.clear();
        lost.numbers.extend(oldest.map(|(number, _)| number));
        lost.persistent = false;
        self.declare_lost(SpaceId::Data, now, &lost);
        // Skipped numbers among them are no longer recognised if they are acknowledged.
        self.spaces[SpaceId::Data].sent.forget_settled(u64::MAX);
        self.spaces.lost = lost;
    }

    /// Handles the losses that were found in a space.
    fn declare_lost(&mut self, id: SpaceId, now: Time, lost: &Lost) {
        if lost.numbers.is_empty() {
            return;
        }
        let mut found = Found {
            first: None,
            newest_sent: None,
            bytes: 0,
            ranges: 0,
            next: u64::MAX,
            large: 0,
            packets: 0,
        };
        for number in &lost.numbers {
            if let Some(packet) = self.spaces[id].sent.declare_lost(*number) {
                self.on_packet_lost(id, *number, &packet, now, &mut found);
            }
        }
        let before = self.paths.active.mtu.current();
        let swallowed = self.paths.active.on_large_lost(found.large);
        self.log.mtu(before, self.paths.active.mtu.current());
        self.stats.black_holes += u64::from(swallowed);
        if let Some(newest_sent) = found.newest_sent {
            self.reduce_window(now, newest_sent, &found, lost.persistent);
        }
    }

    /// A packet was declared lost.
    fn on_packet_lost(
        &mut self,
        id: SpaceId,
        number: u64,
        packet: &SentPacket,
        now: Time,
        found: &mut Found,
    ) {
        self.stats.packets_lost += 1;
        let probe = id == SpaceId::Data && self.paths.is_mtu_probe(number);
        if let Some(log) = &mut self.log.qlog {
            log.packet_lost(now, packet_type(id), number, probe);
        }
        let path = &mut self.paths.active;
        let here = packet.flow == path.flow.tag;
        if here {
            path.flow.leave(packet.size.into());
            path.flow.ecn.on_lost(number);
        } else {
            self.paths.settle_elsewhere(packet);
        }
        let path = &mut self.paths.active;
        if probe {
            // RFC 9000 §14.4: the loss of a probe is not a sign of congestion.
            if path.mtu.is_probe(number) {
                path.mtu.on_probe_lost(number);
            }
            return;
        }
        // RFC 9000 §9.4: a loss on another path says nothing about this one.
        if here && packet.size > 0 {
            found.newest_sent = Some(packet.time_sent);
            found.packets += 1;
            found.bytes += u64::from(packet.size);
            let next = std::mem::replace(&mut found.next, number + 1);
            found.ranges += u32::from(next != number);
            if id == SpaceId::Data {
                found.first = found.first.or(Some(number));
                (path.flow.reordering).on_lost(number, packet.time_sent, packet.size);
                found.large += u32::from(path.mtu.is_suspicious(number, packet.size));
            }
        }
        let frames = self.spaces[id].sent.frame_count(packet);
        for i in 0..frames {
            let Some(frame) = self.spaces[id].sent.frame(packet, i) else {
                break;
            };
            self.on_frame_lost(id, frame);
        }
    }

    /// Tells congestion control about losses (RFC 9002 §7).
    fn reduce_window(&mut self, now: Time, newest_sent: Time, found: &Found, persistent: bool) {
        let flow = &mut self.paths.active.flow;
        let before = flow.congestion.window();
        let (bytes, ranges) = (found.bytes, found.ranges);
        let reduced = (flow.congestion).on_lost(now, bytes, ranges, newest_sent, &flow.rtt);
        let fell = flow.congestion.window() < before;
        self.stats.congestion_events += u64::from(fell);
        match found.first {
            Some(first) if reduced => flow.reordering.begin_episode(first),
            // Handshake packets are not remembered.
            None => flow.reordering.end_episode(),
            Some(_) => {}
        }
        if persistent {
            flow.congestion.on_persistent_congestion();
            flow.reordering.end_episode();
            // RFC 9002 §5.2.
            flow.rtt.reset_min();
        }
        if fell || persistent {
            let cause = match persistent {
                true => CongestionCause::PersistentCongestion,
                false => CongestionCause::Loss,
            };
            self.log
                .congestion(cause, before, found.packets, &self.paths.active.flow);
        }
    }

    /// Content of a lost frame is owed again if it still matters.
    pub(in crate::connection) fn on_frame_lost(&mut self, id: SpaceId, frame: SentFrame) {
        let space = &mut self.spaces[id];
        (self.duties).on_lost(frame, space, &mut self.paths, &mut self.streams);
    }
}
