//! The receive path: a run of datagrams in, in six steps (`ARCHITECTURE.md`, "The receive trip").

use squall_protect::{MAX_GROUP, Outcome, PacketSpan, TAG_LEN};
use squall_wire::{
    ConnectionId, DatagramBatch, Ecn, FixedBit, Header, LongType, PacketType, Path, Side,
    TransportError, TransportErrorCode, header, is_long, packet_number,
};

use super::ack::AckTotals;
use super::early::Awaited;
use super::frames::is_probing;
use super::keyring::{CURRENT, NEXT, PREVIOUS};
use super::log::packet_type;
use super::{Connection, State};
use crate::config::{MAX_COALESCED, MIN_PROTECTED, MIN_UDP_PAYLOAD};
use crate::error::CloseReason;
use crate::path::same;
use crate::qlog::Packet;
use crate::space::SpaceId;
use crate::space::received::AckPolicy;
use crate::stages::{Stage, Stages};
use crate::time::Time;

/// What a run has come to so far; settled once at its end.
pub(super) struct Trip {
    pub(super) dcid: ConnectionId,
    /// Where the run came on.
    pub(super) path: Path,
    /// Whether that is the active path.
    pub(super) home: bool,
    /// Bytes of a run from elsewhere that no path was credited with yet.
    pub(super) uncredited: usize,
    /// Whether the newest packet came from elsewhere and was no probe.
    moved: bool,
    /// Whether its addresses are not those of the active path. Where a client lets the system choose its own, another one is
    /// strange but on the active path all the same.
    strange: bool,
    pub(super) acked: AckTotals,
    pub(super) ecn: Ecn,
    /// Bytes of the datagram being cut.
    datagram_len: usize,
    /// Whether a packet was opened: the peer lives.
    pub(super) opened: bool,
    /// Spaces with an ack-eliciting packet.
    pub(super) eliciting: [bool; 3],
    /// Whether the packet being worked is a 0-RTT one.
    pub(super) early: bool,
    /// Tokens kept of NEW_TOKEN frames.
    pub(super) tokens: u8,
}

impl Trip {
    pub(super) fn new(dcid: ConnectionId, path: Path, home: bool, ecn: Ecn) -> Self {
        Self {
            dcid,
            path,
            home,
            uncredited: 0,
            strange: !home,
            moved: false,
            acked: AckTotals::default(),
            ecn,
            datagram_len: 0,
            opened: false,
            eliciting: [false; 3],
            early: false,
            tokens: 0,
        }
    }

    #[cfg(test)]
    pub(super) const fn has_moved(&self) -> bool {
        self.moved
    }
}

/// Packets of one level that are worked together.
struct Group {
    spans: [PacketSpan; MAX_GROUP],
    len: usize,
}

impl Group {
    fn new() -> Self {
        Self {
            spans: [PacketSpan::new(0, 0, 0); MAX_GROUP],
            len: 0,
        }
    }
}

impl Connection {
    /// Takes a run: consecutive datagrams of one bundle whose first packets have the same destination.
    ///
    /// The bytes are opened in place; nothing of them is kept but copies of stream data.
    pub fn receive(&mut self, now: Time, run: DatagramBatch<'_>, stages: &mut Stages) {
        let DatagramBatch {
            path,
            ecn,
            segment_size,
            bytes,
        } = run;
        let datagrams = bytes.len().div_ceil(usize::from(segment_size).max(1)) as u64;
        self.stats.runs += 1;
        self.stats.datagrams_received += datagrams;
        self.stats.bytes_received += bytes.len() as u64;
        match self.state {
            State::Draining | State::Drained => return,
            State::Closing(_) => return self.answer_while_closing(datagrams),
            State::Handshaking | State::Established => {}
        }
        let home = same(&path, &self.path.path) || self.follows_system(&path);
        let mut uncredited = 0;
        if home {
            self.path.on_received(bytes.len());
            self.path.path.local = self.path.path.local.or(path.local);
        } else if self.admits(&path) {
            uncredited = self.credit_elsewhere(&path, bytes.len());
        } else {
            self.stats.packets_dropped += datagrams;
            return;
        }
        let dcid = header::destination(bytes, self.ids.len)
            .and_then(ConnectionId::new)
            .unwrap_or(ConnectionId::EMPTY);
        let mut trip = Trip::new(dcid, path, home, ecn);
        trip.strange = !same(&path, &self.path.path);
        trip.uncredited = uncredited;
        self.receive_datagrams(
            now,
            bytes,
            usize::from(segment_size).max(1),
            &mut trip,
            stages,
        );
        self.replay_early(&mut trip, stages);
        if trip.moved && !self.is_closed() {
            if trip.home {
                self.note_new_source(now, path);
            } else {
                self.follow(now, &mut trip);
            }
        }
        self.settle(now, &trip, stages);
    }

    fn receive_datagrams(
        &mut self,
        now: Time,
        bytes: &mut [u8],
        segment: usize,
        trip: &mut Trip,
        stages: &mut Stages,
    ) {
        let mut group = Group::new();
        let mut start = 0;
        while start < bytes.len() && !self.is_closed() {
            let end = (start + segment).min(bytes.len());
            self.split(now, bytes, start, end, &mut group, trip, stages);
            start = end;
        }
        self.work_group(now, bytes, SpaceId::Data, &mut group, trip, stages);
    }

    // ---- 1 split ----------------------------------------------------------------------------------------------------

    /// Cuts one datagram into packets. Short headers gather in the group; long ones are worked at once, since their
    /// frames may bring the keys of what follows.
    #[expect(clippy::too_many_arguments, reason = "the state of the trip, by part")]
    #[inline]
    fn split(
        &mut self,
        now: Time,
        bytes: &mut [u8],
        mut start: usize,
        end: usize,
        group: &mut Group,
        trip: &mut Trip,
        stages: &mut Stages,
    ) {
        trip.datagram_len = end - start;
        for _ in 0..MAX_COALESCED {
            if start >= end || self.is_closed() {
                return;
            }
            if !is_long(bytes[start]) {
                self.split_short(now, bytes, start, end, group, trip, stages);
                return;
            }
            self.work_group(now, bytes, SpaceId::Data, group, trip, stages);
            match self.receive_long(now, bytes, start, end, trip, stages) {
                Some(next) => start = next,
                None => return,
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the state of the trip, by part")]
    #[inline]
    fn split_short(
        &mut self,
        now: Time,
        bytes: &mut [u8],
        start: usize,
        end: usize,
        group: &mut Group,
        trip: &mut Trip,
        stages: &mut Stages,
    ) {
        let pn_offset = 1 + self.ids.len;
        let packet = &bytes[start..end];
        // RFC 9000 §12.2: the destination is that of the datagram. RFC 9287 §3: the fixed bit may be anything.
        let foreign = !packet.get(1..pn_offset).is_some_and(|id| trip.dcid.is(id));
        if foreign || packet.len() < pn_offset + MIN_PROTECTED + TAG_LEN {
            self.drop_short(now, end, bytes);
            return;
        }
        if self.ring.is_none()
            || (self.side == Side::Server && matches!(self.state, State::Handshaking))
        {
            // RFC 9001 §5.7: a server does not process 1-RTT packets before the handshake is complete.
            self.keep_early(Awaited::OneRtt, packet, trip.ecn, now);
            return;
        }
        if group.len == MAX_GROUP {
            self.work_group(now, bytes, SpaceId::Data, group, trip, stages);
        }
        group.spans[group.len] =
            PacketSpan::new(start as u32, (end - start) as u32, pn_offset as u16);
        group.len += 1;
    }

    /// A datagram's tail that is no packet of ours; perhaps the peer has lost its state.
    fn drop_short(&mut self, now: Time, end: usize, bytes: &[u8]) {
        self.stats.packets_dropped += 1;
        self.check_reset(now, &bytes[..end]);
    }

    /// RFC 9000 §10.3.1: a datagram that ends in a token of the peer's ends the connection.
    fn check_reset(&mut self, now: Time, datagram: &[u8]) {
        if let Some(tail) = datagram.last_chunk::<16>()
            && self.remote_ids.is_reset(tail)
        {
            self.drain(now, CloseReason::Reset);
        }
    }

    fn keep_early(&mut self, awaited: Awaited, packet: &[u8], ecn: Ecn, now: Time) {
        // Only a peer that has sent one valid Initial is given memory (`SECURITY.md` row 9).
        let known = self.spaces[SpaceId::Initial as usize]
            .received
            .largest()
            .is_some()
            || self.spaces[SpaceId::Initial as usize].discarded;
        if !known || !self.early.keep(awaited, packet, ecn, now) {
            self.stats.packets_dropped += 1;
        }
    }

    /// Works one packet with a long header; returns where the next one starts.
    fn receive_long(
        &mut self,
        now: Time,
        bytes: &mut [u8],
        start: usize,
        end: usize,
        trip: &mut Trip,
        stages: &mut Stages,
    ) -> Option<usize> {
        let (ty, version, len, pn_offset, scid) =
            match header::parse_with(&bytes[start..end], self.ids.len, FixedBit::Greased) {
                Ok(Header::Long {
                    ty,
                    version,
                    dcid,
                    scid,
                    pn_offset,
                    len,
                    ..
                }) if dcid == trip.dcid => (ty, version, len, pn_offset, scid),
                Ok(Header::Retry {
                    version,
                    scid,
                    token,
                    tag,
                    without_tag,
                    ..
                }) if version == self.version => {
                    let valid = self.check_retry(scid, token, tag, without_tag);
                    if valid {
                        let token = token.to_vec();
                        self.on_retry(now, scid, token);
                    } else {
                        self.stats.packets_dropped += 1;
                    }
                    return None;
                }
                Ok(Header::VersionNegotiation {
                    versions,
                    dcid,
                    scid,
                }) => {
                    // RFC 9000 §17.2.1: the ids of the packet that it answers, changed about.
                    let ours = dcid == self.local_ids.current().as_slice()
                        && scid == self.remote_ids.current().as_slice();
                    self.on_version_negotiation(now, ours, versions);
                    return None;
                }
                _ => {
                    self.stats.packets_dropped += 1;
                    return None;
                }
            };
        let next = Some(start + len);
        let id = match ty {
            LongType::Initial => SpaceId::Initial,
            LongType::Handshake => SpaceId::Handshake,
            LongType::ZeroRtt
                if self.peer_scid == Some(scid) && version == self.original_version =>
            {
                let span = PacketSpan::new(start as u32, len as u32, pn_offset as u16);
                self.receive_zero_rtt(now, bytes, span, trip, stages);
                return next;
            }
            LongType::ZeroRtt | LongType::Retry => {
                self.stats.packets_dropped += 1;
                return next;
            }
        };
        // RFC 9000 §14.1: a server discards an Initial in a datagram below 1200 bytes.
        let too_small = id == SpaceId::Initial
            && self.side == Side::Server
            && trip.datagram_len < usize::from(MIN_UDP_PAYLOAD);
        // RFC 9000 §7.2: the peer's source id stays what it was in its first packet.
        let foreign = self.peer_scid.is_some_and(|known| known != scid);
        if self.spaces[id as usize].discarded || too_small || foreign {
            self.stats.packets_dropped += 1;
            return next;
        }
        if self.spaces[id as usize].keys.is_none() && version == self.version {
            let packet = &bytes[start..start + len];
            // Initial keys are there from the beginning to the end.
            self.keep_early(Awaited::Handshake, packet, trip.ecn, now);
            return next;
        }
        let mut replaced = None;
        if version != self.version {
            replaced = self.begin_other_version(version, ty);
            if replaced.is_none() {
                self.stats.packets_dropped += 1;
                return next;
            }
        }
        let mut group = Group::new();
        group.spans[0] = PacketSpan::new(start as u32, len as u32, pn_offset as u16);
        group.len = 1;
        let opened = trip.opened;
        trip.opened = false;
        self.work_group(now, bytes, id, &mut group, trip, stages);
        if let Some(replaced) = replaced {
            self.end_other_version(replaced, trip.opened);
        }
        if trip.opened {
            self.restart = None;
        }
        if trip.opened && self.peer_scid.is_none() {
            // RFC 9000 §7.2: a client sends to what the server chose, from its first packet on.
            self.peer_scid = Some(scid);
            self.remote_ids.set_first(scid);
        }
        if trip.opened && id == SpaceId::Handshake && self.side == Side::Server {
            // RFC 9000 §8.1: who can seal a Handshake packet has received ours. RFC 9001 §4.9.1.
            self.path.validated = true;
            self.note_validated_address();
            self.discard_space(SpaceId::Initial, now);
        }
        trip.opened |= opened;
        next
    }

    /// Works a 0-RTT packet (RFC 9001 §4.6), a server's business.
    fn receive_zero_rtt(
        &mut self,
        now: Time,
        bytes: &mut [u8],
        span: PacketSpan,
        trip: &mut Trip,
        stages: &mut Stages,
    ) {
        if self.side == Side::Client || self.spaces[SpaceId::Data as usize].keys.is_none() {
            if self.side == Side::Server && self.tls.is_waiting() && !self.is_closed() {
                // It has overtaken a part of the ClientHello.
                let packet = &bytes[span.start as usize..][..span.len as usize];
                self.keep_early(Awaited::ZeroRtt, packet, trip.ecn, now);
            } else {
                self.stats.packets_dropped += 1;
            }
            return;
        }
        let mut group = Group::new();
        (group.spans[0], group.len) = (span, 1);
        // The space is that of 1-RTT packets, the keys are others: while this packet is worked they stand alone. No frame
        // that a 0-RTT packet may carry has to do with the ring.
        let ring = self.ring.take();
        trip.early = true;
        self.work_group(now, bytes, SpaceId::Data, &mut group, trip, stages);
        trip.early = false;
        self.ring = ring;
    }

    // ---- 2 unprotect, 3 number, 4 open ------------------------------------------------------------------------------

    /// Works the packets of a group, which share their level, and empties it.
    fn work_group(
        &mut self,
        now: Time,
        bytes: &mut [u8],
        id: SpaceId,
        group: &mut Group,
        trip: &mut Trip,
        stages: &mut Stages,
    ) {
        if group.len == 0 {
            return;
        }
        let spans = &mut group.spans[..std::mem::take(&mut group.len)];
        stages.mark(Stage::FrameParsing);
        let header_key = match (&self.ring, &self.spaces[id as usize].keys) {
            (Some(ring), _) if id == SpaceId::Data => &ring.remote_header,
            (_, Some(keys)) => &keys.remote.header,
            _ => return,
        };
        header_key.unprotect(bytes, spans);
        self.stats.unprotect_calls += 1;
        stages.mark(Stage::HeaderProtection);
        let slots = self.number(bytes, id, spans);
        self.open_spans(bytes, id, spans, slots);
        stages.mark(Stage::Aead);
        let before = self.spaces[id as usize].received.largest();
        self.frames(now, bytes, id, spans, trip);
        if id == SpaceId::Data && trip.home {
            self.follow_spin(bytes, spans, before);
        }
        // Before 1-RTT packets there is nothing but handshake messages.
        stages.mark(match id {
            SpaceId::Data => Stage::Streams,
            _ => Stage::Handshake,
        });
    }

    /// Takes the spin bit of the newest packet, once a group (RFC 9000 §17.4).
    fn follow_spin(&mut self, bytes: &[u8], spans: &[PacketSpan], before: Option<u64>) {
        let newest = self.spaces[SpaceId::Data as usize].received.largest();
        if newest > before
            && let Some(span) = spans
                .iter()
                .rev()
                .find(|s| s.outcome == Outcome::Open && Some(s.packet_number) == newest)
        {
            let bit = bytes[span.start as usize] & 0x20 != 0;
            self.path.spin.on_newest(self.side, bit);
        }
    }

    /// Expands the truncated numbers (RFC 9000 §A.3) and picks each packet's key slot; returns the slots in use.
    ///
    /// The base is the largest number opened before the group: an unauthenticated number never moves it.
    fn number(&mut self, bytes: &[u8], id: SpaceId, spans: &mut [PacketSpan]) -> [bool; 3] {
        let largest = self.spaces[id as usize].received.largest();
        let mut slots = [false; 3];
        if let Some(ring) = &mut self.ring {
            ring.begin_group();
        }
        for span in spans.iter_mut().filter(|s| s.outcome == Outcome::Pending) {
            let pn_len = usize::from(span.header_len - span.pn_offset);
            span.packet_number = packet_number::expand(span.packet_number, pn_len, largest);
            span.slot = match &self.ring {
                // RFC 9001 §6: the phase bit of short headers.
                Some(ring) if id == SpaceId::Data => {
                    ring.slot(bytes[span.start as usize] & 0x04 != 0, span.packet_number)
                }
                _ => CURRENT,
            };
            slots[usize::from(span.slot)] = true;
        }
        slots
    }

    fn open_spans(
        &mut self,
        bytes: &mut [u8],
        id: SpaceId,
        spans: &mut [PacketSpan],
        slots: [bool; 3],
    ) {
        for slot in [PREVIOUS, CURRENT, NEXT]
            .into_iter()
            .filter(|s| slots[usize::from(*s)])
        {
            let key = match (&mut self.ring, &mut self.spaces[id as usize].keys) {
                (Some(ring), _) if id == SpaceId::Data => ring.opening(slot),
                (_, Some(keys)) => Some(&mut keys.remote.packet),
                _ => None,
            };
            match key {
                Some(key) => {
                    key.open(bytes, spans, slot);
                    self.stats.open_calls += 1;
                }
                None => spans
                    .iter_mut()
                    .filter(|s| s.slot == slot && s.outcome == Outcome::Pending)
                    .for_each(|s| s.outcome = Outcome::NoKey),
            }
        }
    }

    // ---- 5 frames ---------------------------------------------------------------------------------------------------

    /// Lets the frames of the opened packets act, in order.
    fn frames(
        &mut self,
        now: Time,
        bytes: &[u8],
        id: SpaceId,
        mut spans: &[PacketSpan],
        trip: &mut Trip,
    ) {
        while let Some((span, rest)) = spans.split_first() {
            if id == SpaceId::Data {
                let run = self.take_stream_run(now, bytes, spans, trip);
                if run > 0 {
                    spans = &spans[run..];
                    continue;
                }
            }
            spans = rest;
            match span.outcome {
                Outcome::Open => {}
                Outcome::Forged => {
                    self.on_forged(now, bytes, id, span);
                    continue;
                }
                _ => {
                    self.stats.packets_dropped += 1;
                    continue;
                }
            }
            if let Err(error) = self.take_packet(now, bytes, id, span, trip) {
                self.close_with_error(now, &error);
            }
            if self.is_closed() {
                // A fatal frame stops at its packet.
                return;
            }
        }
    }

    #[inline]
    fn take_packet(
        &mut self,
        now: Time,
        bytes: &[u8],
        id: SpaceId,
        span: &PacketSpan,
        trip: &mut Trip,
    ) -> Result<(), TransportError> {
        if id == SpaceId::Data {
            self.note_key_slot(now, span)?;
        }
        let start = span.start as usize;
        // RFC 9000 §17.2, §17.3.1: reserved bits, looked at only now that the packet is authentic.
        let reserved = if is_long(bytes[start]) { 0x0c } else { 0x18 };
        if bytes[start] & reserved != 0 {
            return Err(TransportError {
                code: TransportErrorCode::PROTOCOL_VIOLATION,
                frame_type: 0,
                reason: "reserved header bits are set",
            });
        }
        if !self.spaces[id as usize]
            .received
            .insert(span.packet_number, now)
        {
            self.stats.packets_duplicate += 1;
            if let Some(log) = &mut self.qlog {
                log.packet_dropped(now, packet_type(id), span.len as usize, "duplicate");
            }
            return Ok(());
        }
        // Not for a duplicate: anybody can repeat a packet, and the idle timer is restarted by what is processed (RFC
        // 9000 §10.1).
        trip.opened = true;
        self.stats.packets_received += 1;
        let payload =
            &bytes[start + usize::from(span.header_len)..start + span.len as usize - TAG_LEN];
        if let Some(log) = &mut self.qlog {
            let early = id == SpaceId::Data && is_long(bytes[start]);
            let packet = Packet {
                ty: if early {
                    PacketType::ZeroRtt
                } else {
                    packet_type(id)
                },
                number: span.packet_number,
                len: span.len as usize,
                payload,
            };
            log.packet_received(now, packet);
        }
        let taken = self.take_frames(id, payload, now, trip)?;
        let received = &mut self.spaces[id as usize].received;
        if trip.strange && id == SpaceId::Data {
            // RFC 9000 §9.3: only the newest packet moves the connection, not one that was overtaken.
            trip.moved |= received.largest() == Some(span.packet_number) && !is_probing(payload);
        }
        if taken.acknowledge {
            received.note(taken.ack_eliciting, trip.ecn);
            trip.eliciting[id as usize] |= taken.ack_eliciting;
        } else {
            received.leave_out(span.packet_number);
            self.stats.packets_dropped += 1;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn note_key_slot(
        &mut self,
        now: Time,
        span: &PacketSpan,
    ) -> Result<(), TransportError> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        if ring.on_opened(span.slot, span.packet_number) {
            let next_sent = self.spaces[SpaceId::Data as usize].sent.next_number();
            if !ring.commit_remote_update(span.packet_number, next_sent) {
                return Err(TransportError {
                    code: TransportErrorCode::KEY_UPDATE_ERROR,
                    frame_type: 0,
                    reason: "a second key update before the first was acknowledged",
                });
            }
            let phase = ring.updates();
            self.schedule_key_discard(now);
            if let Some(log) = &mut self.qlog {
                log.key_updated(now, true, phase);
            }
        } else if ring.awaits_first_of_phase() {
            self.schedule_key_discard(now);
        }
        Ok(())
    }

    fn on_forged(&mut self, now: Time, bytes: &[u8], id: SpaceId, span: &PacketSpan) {
        self.stats.packets_forged += 1;
        self.forged += 1;
        if let Some(log) = &mut self.qlog {
            log.packet_dropped(
                now,
                packet_type(id),
                span.len as usize,
                "decryption_failure",
            );
        }
        self.check_reset(now, &bytes[..(span.start + span.len) as usize]);
        // RFC 9001 §6.6: the sum over all keys.
        let limit = match &self.ring {
            Some(ring) if id == SpaceId::Data => ring.local.suite().integrity_limit(),
            _ => squall_protect::Suite::Aes128Gcm.integrity_limit(),
        };
        if self.forged >= limit.min(self.config.integrity_limit) {
            self.close_with_error(
                now,
                &TransportError {
                    code: TransportErrorCode::AEAD_LIMIT_REACHED,
                    frame_type: 0,
                    reason: "too many packets failed authentication",
                },
            );
        }
    }

    // ---- 6 settle ---------------------------------------------------------------------------------------------------

    /// Once a run: acknowledgements owed, losses, congestion, timers.
    fn settle(&mut self, now: Time, trip: &Trip, stages: &mut Stages) {
        if self.is_closed() {
            stages.mark(Stage::AckLoss);
            return;
        }
        if trip.opened {
            self.eliciting_since_receipt = false;
            self.restart_idle_timer(now);
            if trip.eliciting[SpaceId::Data as usize] {
                self.note_server_heard(now);
            }
            self.streams.renew_used_up_credit();
        }
        for id in SpaceId::ALL {
            if trip.eliciting[id as usize] {
                let policy = match id {
                    SpaceId::Data => &self.ack_policy,
                    _ => &AckPolicy::AT_ONCE,
                };
                self.spaces[id as usize].received.settle(now, policy);
            }
        }
        self.timers.set(
            super::timers::Timer::AckDelay,
            self.spaces[SpaceId::Data as usize].received.deadline(),
        );
        if Self::any_acked(&trip.acked) {
            self.settle_acks(now, &trip.acked);
        } else if !self.path.validated {
            // More may be sent now: RFC 9002 §A.6.
            self.set_loss_timer(now);
        }
        stages.mark(Stage::AckLoss);
    }

    // ---- packets before their keys ----------------------------------------------------------------------------------

    /// Works the packets that waited for keys that are there now, with their own time of arrival.
    fn replay_early(&mut self, trip: &mut Trip, stages: &mut Stages) {
        for awaited in [Awaited::ZeroRtt, Awaited::Handshake, Awaited::OneRtt] {
            let ready = match awaited {
                // Without keys by now they are of no use.
                Awaited::ZeroRtt => !self.tls.is_waiting(),
                Awaited::OneRtt => {
                    self.ring.is_some()
                        && !(self.side == Side::Server && matches!(self.state, State::Handshaking))
                }
                Awaited::Handshake => self.spaces[SpaceId::Handshake as usize].keys.is_some(),
            };
            if !ready {
                continue;
            }
            for mut early in self.early.take(awaited) {
                let (ecn, dcid) = (trip.ecn, trip.dcid);
                trip.ecn = early.ecn;
                trip.dcid = header::destination(&early.bytes, self.ids.len)
                    .and_then(ConnectionId::new)
                    .unwrap_or(dcid);
                let len = early.bytes.len();
                self.receive_datagrams(early.arrived, &mut early.bytes, len.max(1), trip, stages);
                (trip.ecn, trip.dcid) = (ecn, dcid);
            }
        }
    }

    // ---- Retry ------------------------------------------------------------------------------------------------------

    fn check_retry(
        &self,
        scid: ConnectionId,
        token: &[u8],
        tag: [u8; 16],
        without_tag: &[u8],
    ) -> bool {
        // RFC 9000 §17.2.5.2: a client takes one Retry, before any other packet, with a token and another id.
        let fresh =
            self.side == Side::Client && self.retry_scid.is_none() && self.peer_scid.is_none();
        fresh
            && !token.is_empty()
            && scid != self.remote_ids.current()
            && squall_protect::retry::integrity_tag(
                self.version,
                self.original_dcid.as_slice(),
                without_tag,
            ) == tag
    }

    /// RFC 9000 §17.2.5: the client starts over with the server's token and id; packet numbers go on (§12.3).
    fn on_retry(&mut self, now: Time, scid: ConnectionId, token: Vec<u8>) {
        self.retry_scid = Some(scid);
        self.token = token;
        self.remote_ids.set_first(scid);
        self.initial_dcid = scid;
        self.install_initial_keys();
        let space = self.space(SpaceId::Initial);
        space.crypto_send.on_all_lost();
        let in_flight = space.sent.discard();
        self.path.flow.bytes_in_flight -= in_flight;
        self.repeat_early_data();
        self.set_loss_timer(now);
    }
}
