//! Datagrams that probe: for the path MTU (RFC 9000 §14.4), and for paths (RFC 9000 §8.2) with
//! challenges and responses. They are separate datagrams, so that no bundle of the active path is
//! affected.

use rand::Rng;
use squall_wire::{Ecn, Side, Transmit, frame};

use super::packet::{Accounting, PacketWriter};
use crate::config::{MAX_PATH_RESPONSES, MAX_PATHS, MIN_UDP_PAYLOAD};
use crate::connection::parts::paths::Probed;
use crate::connection::{Connection, State};
use crate::space::SpaceId;
use crate::stages::{Stage, Stages};
use crate::time::Time;

/// Bytes that a connection sends before it searches for the path MTU. A short exchange gains
/// nothing from larger packets, and most connections send little: probes and their acknowledgements
/// would be a good part of their cost (decision 50).
const SEARCH_FROM: u64 = 32 * MIN_UDP_PAYLOAD as u64;

impl Connection {
    // ---- path MTU -------------------------------------------------------------------------------

    /// One datagram larger than any before, to learn whether the path carries it. `spare` bytes of
    /// the congestion window stay free.
    pub(super) fn transmit_mtu_probe(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        spare: u64,
        stages: &mut Stages,
    ) -> Option<Transmit> {
        // Not to an address that the peer has merely claimed: probes are large.
        let allowed = self.handshake.confirmed && self.paths.active.validated;
        let wanted = self.stats.bytes_sent >= SEARCH_FROM || self.duties.large_packets;
        let path = &mut self.paths.active;
        if !(allowed && wanted && path.mtu.wants_probe(now)) {
            return None;
        }
        let room = path.flow.room().saturating_sub(spare);
        let idle = spare == 0 && path.flow.in_flight() == 0;
        let size = usize::from(path.mtu.next_probe(room, idle)?);
        if buffer.len() < size {
            path.mtu.limit(buffer.len() as u64);
            return None;
        }
        let spin = path.spin.value();
        let header = self.short_header(self.paths.remote_ids.current(), spin);
        let (number, _) = self.spaces.next_number(SpaceId::Data);
        let space = &self.spaces[SpaceId::Data];
        let (packet, mut w) =
            PacketWriter::begin(buffer, 0..size, SpaceId::Data, &header, number, space);
        frame::write::ping(&mut w);
        PacketWriter::fill(&mut w);
        let draft = packet.finish(
            &w,
            Accounting {
                is_mtu_probe: true,
                ..Accounting::PROBE
            },
        );
        let span = self.book_single(now, &draft, buffer);
        self.paths.active.mtu.on_probe_sent(number, size as u16);
        self.seal_one(SpaceId::Data, buffer, span);
        self.set_loss_timer(now);
        stages.mark(Stage::Aead);
        Some(self.paths.transmit(size, size))
    }

    // ---- paths ----------------------------------------------------------------------------------

    /// One datagram with the responses and the challenge that a path is owed.
    pub(in crate::connection) fn transmit_path_probe(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        stages: &mut Stages,
    ) -> Option<Transmit> {
        if !matches!(self.state, State::Established) {
            return None;
        }
        // Probes of other paths are not counted in flight, but are remembered all the same
        // (`SECURITY.md` rows 1 and 34).
        if !self.spaces.may_acknowledge(SpaceId::Data) {
            return None;
        }
        // RFC 9000 §8.2.2: congestion control may hold back a response on the active path, except
        // for one per round trip: the acknowledgements that would open the window may wait for it,
        // while the peer moves to another path.
        let flow = &self.paths.active.flow;
        let inactive = self.paths.inactive.as_ref();
        let last = inactive.and_then(|p| p.response_beyond_window);
        let window_open =
            !flow.is_full() || last.is_none_or(|last| now - last >= flow.rtt.smoothed());
        for _ in 0..=MAX_PATHS + MAX_PATH_RESPONSES {
            let tag = self.paths.next_probe(now, window_open)?;
            let room = buffer.len().min(self.config.max_udp_payload.into());
            if let Some(probed) = self.paths.probed(now, room, tag) {
                let sent = self.write_path_probe(now, buffer, &probed);
                stages.mark(Stage::Aead);
                self.arm_path_timer(now);
                return sent;
            }
            // Responses that cannot be sent there now are no longer owed: the peer challenges
            // again.
            if let Some(paths) = &mut self.paths.inactive {
                paths.drop_responses(tag);
            }
        }
        None
    }

    fn write_path_probe(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        probed: &Probed,
    ) -> Option<Transmit> {
        let &Probed {
            tag, active, size, ..
        } = probed;
        let state = self.paths.iter().find(|p| p.tag == tag)?;
        let (route, flow, spin) = (state.route(), state.flow.tag, state.spin.value());
        let header = self.short_header(self.paths.remote_ids.of(tag), spin);
        let (number, _) = self.spaces.next_number(SpaceId::Data);
        let space = &self.spaces[SpaceId::Data];
        let (packet, mut w) =
            PacketWriter::begin(buffer, 0..size, SpaceId::Data, &header, number, space);
        let paths = self.paths.inactive.get_or_insert_default();
        let mut responded = false;
        while w.remaining() >= frame::write::PATH_CHALLENGE_SIZE
            && let Some(data) = paths.take_response(tag)
        {
            // RFC 9000 §13.3: never repeated.
            frame::write::path_response(&mut w, data);
            responded = true;
        }
        if probed.challenge && w.remaining() >= frame::write::PATH_CHALLENGE_SIZE {
            let data: [u8; 8] = self.endpoint.rng.random();
            frame::write::path_challenge(&mut w, data);
            paths.has_challenged = true;
            let state = self.paths.get_mut(tag);
            if let Some(validation) = state.and_then(|s| s.validation.as_mut()) {
                validation.on_sent(now, data, size);
            }
        }
        if active && self.side == Side::Client && w.remaining() > 0 {
            // A packet that is not a probe makes the server follow to the client's address: back,
            // if an attacker has led it astray (RFC 9000 §9.3.3), or again, if it has given up the
            // path. Nothing else might leave once lost challenges fill the window.
            frame::write::ping(&mut w);
        }
        PacketWriter::fill(&mut w);
        let span = if active {
            let window_full = self.paths.active.flow.is_full();
            if let Some(paths) = &mut self.paths.inactive
                && (responded && window_full)
            {
                paths.response_beyond_window = Some(now);
            }
            let draft = packet.finish(&w, Accounting::PROBE);
            let span = self.book_single(now, &draft, buffer);
            self.set_loss_timer(now);
            span
        } else {
            // Neither its loss nor its acknowledgement says anything about the active path (RFC
            // 9000 §9.4), and there are few: they are not counted in flight.
            let draft = packet.finish(&w, Accounting::UNCOUNTED);
            if let Some(state) = self.paths.get_mut(tag) {
                state.on_sent(size);
            }
            self.record_sent(now, &draft, flow, buffer)
        };
        self.seal_one(SpaceId::Data, buffer, span);
        let transmit = self.paths.transmit(size, size);
        let ecn = if active { transmit.ecn } else { Ecn::NotEct };
        Some(Transmit {
            path: route,
            ecn,
            ..transmit
        })
    }
}
