//! Packets that arrive before their keys: kept for a while, and processed once the keys exist.

use squall_wire::{ConnectionId, header};

use super::Trip;
use crate::connection::Connection;
use crate::connection::handshake::early::Awaited;
use crate::space::SpaceId;

impl Connection {
    /// Keeps a packet that waits for its keys, if the peer has earned memory for that.
    pub(super) fn keep_early(&mut self, awaited: Awaited, packet: &[u8], trip: &Trip<'_>) {
        // Only a peer that has sent a valid Initial gets memory (`SECURITY.md` row 9).
        let initial = &self.spaces[SpaceId::Initial];
        let known = initial.received.largest().is_some() || initial.discarded;
        let kept = known && (self.handshake).keep_early(awaited, packet, trip.ecn, trip.now);
        self.stats.packets_dropped += u64::from(!kept);
    }

    /// Processes the packets whose keys have become available, with their own time of arrival.
    pub(super) fn replay_early(&mut self, trip: &mut Trip<'_>) {
        for awaited in [Awaited::ZeroRtt, Awaited::Handshake, Awaited::OneRtt] {
            let ready = match awaited {
                // Those that still lack keys are dropped.
                Awaited::ZeroRtt => !self.handshake.tls.is_waiting(),
                Awaited::OneRtt => self.opens_one_rtt(),
                Awaited::Handshake => self.spaces[SpaceId::Handshake].keys.is_some(),
            };
            if !ready {
                continue;
            }
            for mut early in self.handshake.take_early(awaited) {
                let run = (trip.now, trip.ecn, trip.dcid);
                (trip.now, trip.ecn) = (early.arrived, early.ecn);
                if let Some(dcid) = header::destination(&early.bytes, self.endpoint.ids.len) {
                    trip.dcid = ConnectionId::new(dcid).unwrap_or(trip.dcid);
                }
                let len = early.bytes.len();
                self.split_run(&mut early.bytes, len.max(1), trip);
                (trip.now, trip.ecn, trip.dcid) = run;
            }
        }
    }
}
