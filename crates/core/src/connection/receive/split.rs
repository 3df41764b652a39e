//! Step 1: datagrams become packets. Packets with short headers are collected in a group; one with
//! a long header is processed at once, since its frames may bring the keys for those after it.

use std::ops::Range;

use arrayvec::ArrayVec;
use squall_protect::{MAX_GROUP, PacketSpan, TAG_LEN};
use squall_wire::{ConnectionId, Header, LongType, Side, header, is_long};

use super::Trip;
use crate::config::{MAX_COALESCED, MIN_PROTECTED, MIN_UDP_PAYLOAD};
use crate::connection::handshake::early::Awaited;
use crate::connection::parts::handshake::Retry;
use crate::connection::{Connection, State};
use crate::error::CloseReason;
use crate::space::SpaceId;
use crate::time::Time;

/// Packets with short headers that are opened together. Mostly there is one: the room for the
/// others is not cleared.
type Group = ArrayVec<PacketSpan, MAX_GROUP>;

/// The parts of a packet with a long header that are readable without keys.
struct LongPacket {
    ty: LongType,
    version: u32,
    scid: ConnectionId,
    span: PacketSpan,
}

impl LongPacket {
    /// Where it lies.
    const fn range(&self) -> Range<usize> {
        let start = self.span.start as usize;
        start..start + self.span.len as usize
    }
}

impl Connection {
    /// Splits a run of datagrams of `segment` bytes, and processes its packets.
    pub(super) fn split_run(&mut self, bytes: &mut [u8], segment: usize, trip: &mut Trip<'_>) {
        let mut group = Group::new();
        let mut start = 0;
        while start < bytes.len() && !self.is_closed() {
            let end = (start + segment).min(bytes.len());
            self.split(bytes, start..end, &mut group, trip);
            start = end;
        }
        self.open_short(bytes, &mut group, trip);
    }

    /// Opens the collected packets with short headers.
    #[inline]
    fn open_short(&mut self, bytes: &mut [u8], group: &mut Group, trip: &mut Trip<'_>) {
        self.open_group(bytes, SpaceId::Data, group, trip);
        group.clear();
    }

    /// Splits one datagram.
    #[inline]
    fn split(
        &mut self,
        bytes: &mut [u8],
        mut datagram: Range<usize>,
        group: &mut Group,
        trip: &mut Trip<'_>,
    ) {
        trip.datagram_len = datagram.len();
        for _ in 0..MAX_COALESCED {
            if datagram.is_empty() || self.is_closed() {
                return;
            }
            if !is_long(bytes[datagram.start]) {
                self.split_short(bytes, datagram, group, trip);
                return;
            }
            self.open_short(bytes, group, trip);
            match self.receive_long(bytes, datagram.clone(), trip) {
                Some(next) => datagram.start = next,
                None => return,
            }
        }
    }

    #[inline]
    fn split_short(
        &mut self,
        bytes: &mut [u8],
        packet: Range<usize>,
        group: &mut Group,
        trip: &mut Trip<'_>,
    ) {
        let Range { start, end } = packet;
        let pn_offset = 1 + self.endpoint.ids.len;
        let packet = &bytes[start..end];
        // RFC 9000 §12.2: the destination is that of the datagram. RFC 9287 §3: the fixed bit may
        // have any value if this end said so.
        let foreign = !packet.get(1..pn_offset).is_some_and(|id| trip.dcid.is(id))
            || !self.endpoint.fixed_bit.admits(packet[0]);
        if foreign || packet.len() < pn_offset + MIN_PROTECTED + TAG_LEN {
            self.stats.packets_dropped += 1;
            self.check_reset(trip.now, &bytes[..end]);
            return;
        }
        if !self.opens_one_rtt() {
            self.keep_early(Awaited::OneRtt, packet, trip);
            return;
        }
        if group.is_full() {
            self.open_short(bytes, group, trip);
        }
        let span = PacketSpan::new(start as u32, (end - start) as u32, pn_offset as u16);
        let _ = group.try_push(span);
    }

    /// RFC 9000 §10.3.1: a datagram that ends in a reset token of the peer's ends the connection.
    pub(super) fn check_reset(&mut self, now: Time, datagram: &[u8]) {
        if let Some(tail) = datagram.last_chunk::<16>()
            && self.paths.remote_ids.is_reset(tail)
        {
            self.drain(now, CloseReason::Reset);
        }
    }

    // ---- long headers ---------------------------------------------------------------------------

    /// Processes one packet with a long header; returns where the next one starts.
    fn receive_long(
        &mut self,
        bytes: &mut [u8],
        rest: Range<usize>,
        trip: &mut Trip<'_>,
    ) -> Option<usize> {
        let parsed = header::parse_with(
            &bytes[rest.clone()],
            self.endpoint.ids.len,
            self.endpoint.fixed_bit,
        );
        let packet = match parsed {
            Ok(Header::Long {
                ty,
                version,
                dcid,
                scid,
                pn_offset,
                len,
                ..
            }) if dcid == trip.dcid => LongPacket {
                ty,
                version,
                scid,
                span: PacketSpan::new(rest.start as u32, len as u32, pn_offset as u16),
            },
            Ok(Header::Retry {
                version,
                scid,
                token,
                tag,
                without_tag,
                ..
            }) if version == self.handshake.version => {
                let retry = Retry {
                    scid,
                    token,
                    tag,
                    without_tag,
                };
                self.on_retry(trip.now, &retry);
                return None;
            }
            Ok(Header::VersionNegotiation {
                versions,
                dcid,
                scid,
            }) => {
                // RFC 9000 §17.2.1: the ids of the packet that it answers, swapped.
                let ours = dcid == self.paths.local_ids.current().as_slice()
                    && scid == self.paths.remote_ids.current().as_slice();
                self.on_version_negotiation(trip.now, ours, versions);
                return None;
            }
            _ => {
                self.stats.packets_dropped += 1;
                return None;
            }
        };
        match packet.ty {
            LongType::Initial => self.receive_handshake(bytes, SpaceId::Initial, &packet, trip),
            LongType::Handshake => self.receive_handshake(bytes, SpaceId::Handshake, &packet, trip),
            LongType::ZeroRtt => self.receive_zero_rtt(bytes, &packet, trip),
            LongType::Retry => self.stats.packets_dropped += 1,
        }
        Some(packet.range().end)
    }

    /// Processes an Initial or Handshake packet.
    fn receive_handshake(
        &mut self,
        bytes: &mut [u8],
        id: SpaceId,
        packet: &LongPacket,
        trip: &mut Trip<'_>,
    ) {
        // RFC 9000 §14.1: a server discards an Initial in a datagram below 1200 bytes.
        let too_small = id == SpaceId::Initial
            && self.side == Side::Server
            && trip.datagram_len < usize::from(MIN_UDP_PAYLOAD);
        // RFC 9000 §7.2: the peer's id does not change within the handshake.
        let foreign = self.handshake.is_foreign(packet.scid);
        if self.spaces[id].discarded || too_small || foreign {
            let trigger = match (self.spaces[id].discarded, too_small) {
                (true, _) => "key_unavailable",
                (false, true) => "invalid",
                (false, false) => "connection_unknown",
            };
            self.stats.packets_dropped += 1;
            self.log
                .packet_dropped(trip.now, id, packet.span.len, trigger);
            return;
        }
        let same_version = packet.version == self.handshake.version;
        if self.spaces[id].keys.is_none() && same_version {
            // Initial keys exist from the beginning to the end.
            self.keep_early(Awaited::Handshake, &bytes[packet.range()], trip);
            return;
        }
        let mut replaced = None;
        let version_before = self.handshake.version;
        if !same_version {
            let initial = &mut self.spaces[SpaceId::Initial];
            let (version, ty) = (packet.version, packet.ty);
            replaced = (self.handshake).begin_other_version(version, ty, initial, &self.config);
            if replaced.is_none() {
                self.stats.packets_dropped += 1;
                return;
            }
        }
        let opened_before = std::mem::take(&mut trip.opened);
        self.open_group(bytes, id, &mut [packet.span], trip);
        if let Some(replaced) = replaced {
            let initial = &mut self.spaces[SpaceId::Initial];
            (self.handshake).end_other_version(replaced, trip.opened, initial);
            // A client follows the server's choice (RFC 9368 §2.3).
            self.log.version(version_before, self.handshake.version);
        }
        if trip.opened {
            self.on_handshake_packet(id, packet.scid, trip.now);
        }
        trip.opened |= opened_before;
    }

    /// An Initial or Handshake packet was opened.
    fn on_handshake_packet(&mut self, id: SpaceId, scid: ConnectionId, now: Time) {
        if self.handshake.on_opened(scid) {
            self.paths.remote_ids.set_first(scid);
        }
        if id == SpaceId::Handshake && self.side == Side::Server {
            // RFC 9000 §8.1: a peer that can seal a Handshake packet has received ours. RFC 9001
            // §4.9.1.
            self.paths.active.validated = true;
            self.endpoint.report_address(self.side, &self.paths.active);
            self.discard_space(SpaceId::Initial, now);
        }
    }

    /// Processes a 0-RTT packet (RFC 9001 §4.6), which only servers accept.
    fn receive_zero_rtt(&mut self, bytes: &mut [u8], packet: &LongPacket, trip: &mut Trip<'_>) {
        let admitted = self.side == Side::Server
            && (self.handshake).admits_zero_rtt(packet.scid, packet.version);
        if admitted && self.spaces[SpaceId::Data].keys.is_some() {
            // The space is that of 1-RTT packets, but the keys are different: while this packet is
            // processed they stand alone. No frame that a 0-RTT packet may carry needs the ring.
            let ring = self.spaces.ring.take();
            trip.early = true;
            self.open_group(bytes, SpaceId::Data, &mut [packet.span], trip);
            trip.early = false;
            self.spaces.ring = ring;
        } else if admitted && self.handshake.tls.is_waiting() && !self.is_closed() {
            // It has overtaken part of the ClientHello.
            self.keep_early(Awaited::ZeroRtt, &bytes[packet.range()], trip);
        } else {
            self.stats.packets_dropped += 1;
        }
    }

    /// Whether 1-RTT packets are processed: on a server, not before the handshake is complete (RFC
    /// 9001 §5.7).
    pub(super) fn opens_one_rtt(&self) -> bool {
        let complete = self.side == Side::Client || !matches!(self.state, State::Handshaking);
        self.spaces.ring.is_some() && complete
    }
}
