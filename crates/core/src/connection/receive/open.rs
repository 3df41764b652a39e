//! Steps 2 to 4: header protection is removed, packet numbers are expanded, packets are opened, for
//! up to 64 packets of one level at a time.

use squall_protect::PacketSpan;

use super::Trip;
use crate::connection::Connection;
use crate::space::SpaceId;
use crate::stages::Stage;

impl Connection {
    /// Opens the packets of a group, at most 64, and processes their frames.
    pub(super) fn open_group(
        &mut self,
        bytes: &mut [u8],
        id: SpaceId,
        spans: &mut [PacketSpan],
        trip: &mut Trip<'_>,
    ) {
        if spans.is_empty() {
            return;
        }
        trip.stages.mark(Stage::FrameParsing);
        // 2 unprotect
        let Some(key) = self.spaces.header_key(id) else {
            return;
        };
        key.unprotect(bytes, spans);
        self.stats.unprotect_calls += 1;
        trip.stages.mark(Stage::HeaderProtection);
        // 3 number
        let slots = self.spaces.number(bytes, id, spans);
        // 4 open
        let mut ahead = self.room_ahead(id, spans, trip);
        self.stats.open_calls += match &mut ahead {
            None => self.spaces.open(bytes, id, spans, slots, &mut []),
            Some(ahead) => {
                let mut targets = ahead.targets(spans);
                let targets = &mut targets[..spans.len()];
                self.spaces.open(bytes, id, spans, slots, targets)
            }
        };
        trip.stages.mark(Stage::Aead);
        // 5 frames
        let before = self.spaces[id].received.largest();
        match ahead {
            None => self.take_packets(bytes, id, spans, trip),
            Some(ahead) => self.take_ahead(bytes, spans, ahead, trip),
        }
        if id == SpaceId::Data && trip.home {
            let newest = self.spaces[id].received.largest();
            if newest > before {
                self.paths.follow_spin(bytes, spans, newest);
            }
        }
        // Before 1-RTT packets there are only handshake messages.
        trip.stages.mark(match id {
            SpaceId::Data => Stage::Streams,
            _ => Stage::Handshake,
        });
    }
}
