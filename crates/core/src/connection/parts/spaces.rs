//! The packet number spaces of a connection, their keys, and the rules that span them (RFC 9000
//! §12.3, RFC 9001 §4.9, RFC 9002 §6).

use std::ops::{Index, IndexMut, Range};
use std::sync::LazyLock;
use std::time::Duration;

use rand::Rng;
use squall_protect::{HeaderKey, Outcome, PacketSpan, Suite, ablation};
use squall_wire::{
    AckFrequency, Side, TransportError, TransportErrorCode, Writer, frame, packet_number,
};

use crate::config::{LEAST_PACKETS_IN_FLIGHT, MIN_ACK_DELAY, TransportConfig};
use crate::connection::handshake::keyring::{CURRENT, KeyRing, NEXT, PREVIOUS};
use crate::recovery::loss::Lost;
use crate::sent_frame::SentFrame;
use crate::space::received::AckPolicy;
use crate::space::{LevelKeys, PerSpace, Space, SpaceId};
use crate::time::Time;

/// Probes that a probe timeout sends (RFC 9002 §6.2.4).
const PROBES: u8 = 2;
/// Acknowledgements sent to a peer at a handshake level without anything new from TLS.
const MAX_IDLE_ACKS: u32 = 64;
/// Records of packets kept free for probes: two more with every doubling of the timeout.
pub(crate) const PROBE_RECORDS: usize = 24;
/// The ack_delay_exponent that we declare: the default of RFC 9000 §18.2.
const ACK_DELAY_EXPONENT: u32 = 3;
/// Distance between packet numbers that are skipped on purpose (RFC 9000 §21.4).
const SKIP: Range<u64> = 300..6000;

const _: () = assert!(LEAST_PACKETS_IN_FLIGHT / 8 > PROBE_RECORDS);

/// Stands in for the handshake's spaces when they are gone.
static GONE: LazyLock<Space> = LazyLock::new(Space::gone);

/// The three spaces and their keys.
#[repr(C)]
pub(crate) struct Spaces {
    /// The 1-RTT keys; what only updates need comes first in them.
    pub(crate) ring: Option<KeyRing>,
    /// When acknowledgements of 1-RTT packets are due.
    pub(crate) ack_policy: AckPolicy,
    /// Initial and Handshake; dropped when the handshake is confirmed.
    early: Option<Box<[Space; 2]>>,
    /// The packet number to skip next (RFC 9000 §21.4).
    skip_number: u64,
    max_packets_in_flight: usize,
    /// Scratch space of loss detection.
    pub(crate) lost: Lost,
    /// ACK-only packets since the last ack-eliciting one.
    pub(crate) ack_only_run: u32,
    /// 0-RTT and 1-RTT packets; what only the handshake needs comes last in it.
    data: Space,
    /// Packets that failed authentication, under all keys.
    forged: u64,
}

impl Index<SpaceId> for Spaces {
    type Output = Space;

    #[inline]
    fn index(&self, id: SpaceId) -> &Space {
        match id {
            SpaceId::Data => &self.data,
            _ => self.early(id),
        }
    }
}

impl IndexMut<SpaceId> for Spaces {
    #[inline]
    fn index_mut(&mut self, id: SpaceId) -> &mut Space {
        match id {
            SpaceId::Data => &mut self.data,
            _ => self.early_mut(id),
        }
    }
}

impl Spaces {
    /// Spaces without keys.
    pub(crate) fn new(config: &TransportConfig, rng: &mut impl Rng) -> Self {
        let mut spaces = Self {
            data: Space::default(),
            early: Some(Box::default()),
            ring: None,
            ack_policy: AckPolicy::new(config.max_ack_delay),
            ack_only_run: 0,
            skip_number: 0,
            forged: 0,
            max_packets_in_flight: config.max_packets_in_flight,
            lost: Lost::default(),
        };
        spaces.choose_skip_number(rng);
        spaces
    }

    /// A space of the handshake. Out of line, since most packets are 1-RTT packets.
    #[inline(never)]
    fn early(&self, id: SpaceId) -> &Space {
        match (id, &self.early) {
            (_, None) => &GONE,
            (SpaceId::Initial, Some(early)) => &early[0],
            (_, Some(early)) => &early[1],
        }
    }

    #[inline(never)]
    fn early_mut(&mut self, id: SpaceId) -> &mut Space {
        // Nothing is written to a space that is gone; if it were, the space would stay discarded.
        let gone = || Box::new([Space::gone(), Space::gone()]);
        let early = self.early.get_or_insert_with(gone);
        match id {
            SpaceId::Initial => &mut early[0],
            _ => &mut early[1],
        }
    }

    /// The handshake is confirmed: its spaces are dropped.
    pub(crate) fn conclude(&mut self) {
        debug_assert!(
            self[SpaceId::Initial].discarded && self[SpaceId::Handshake].discarded,
            "the keys are discarded first"
        );
        self.early = None;
    }

    /// The spaces that still exist, in the order of the handshake.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Space> {
        let early = self.early.as_ref().map_or(&[][..], |early| &early[..]);
        early.iter().chain([&self.data])
    }

    /// Bytes of memory that packet records and handshake data take.
    pub(crate) fn memory(&self) -> usize {
        let early = self.early.as_ref().map_or(0, |early| size_of_val(&**early));
        let spaces = self.iter();
        let held = spaces.map(|space| space.sent.memory() + space.crypto_send.cost() as usize);
        early + held.sum::<usize>()
    }

    /// Frees memory that is needed only while packets are in flight.
    pub(crate) fn shed(&mut self) {
        self.data.sent.shed();
        self.data.received.shed();
        if let Some(ring) = &mut self.ring {
            ring.shed();
        }
        self.lost = Lost::default();
    }

    /// Whether packets of this space can be sealed and opened. In the data space: 1-RTT packets.
    pub(crate) fn has_keys(&self, id: SpaceId) -> bool {
        match id {
            SpaceId::Data => self.ring.is_some(),
            _ => self[id].keys.is_some(),
        }
    }

    /// The highest level with keys: where TLS writes.
    pub(crate) fn highest_level(&self) -> SpaceId {
        if self.ring.is_some() {
            SpaceId::Data
        } else {
            self.highest_handshake_level()
        }
    }

    /// The highest level of the handshake with keys.
    pub(crate) fn highest_handshake_level(&self) -> SpaceId {
        if self[SpaceId::Handshake].keys.is_some() {
            SpaceId::Handshake
        } else {
            SpaceId::Initial
        }
    }

    // ---- receiving ------------------------------------------------------------------------------

    /// The key that removes header protection.
    #[inline]
    pub(crate) fn header_key(&self, id: SpaceId) -> Option<&HeaderKey> {
        match (&self.ring, &self[id].keys) {
            (Some(ring), _) if id == SpaceId::Data => Some(&ring.remote_header),
            (_, Some(keys)) => Some(&keys.remote.header),
            _ => None,
        }
    }

    /// Expands the truncated numbers (RFC 9000 §A.3) and picks each packet's key slot; returns the
    /// slots in use.
    ///
    /// The base is the largest number opened before the group: an unauthenticated number never
    /// moves it.
    pub(crate) fn number(
        &mut self,
        bytes: &[u8],
        id: SpaceId,
        spans: &mut [PacketSpan],
    ) -> [bool; 3] {
        let largest = self[id].received.largest();
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

    /// Whether 1-RTT packets can be opened into targets without a copy.
    pub(crate) fn opens_into_targets(&self) -> bool {
        let key = self.ring.as_ref().and_then(|ring| ring.opening(CURRENT));
        key.is_some_and(squall_protect::PacketKey::opens_into_targets)
    }

    /// Opens the packets of a group, with one call for each key slot; returns the calls. Packets
    /// under the current keys are opened into their targets, if there are any
    /// ([`PacketKey::open_into`](squall_protect::PacketKey::open_into)).
    pub(crate) fn open<'a>(
        &self,
        bytes: &'a mut [u8],
        id: SpaceId,
        spans: &mut [PacketSpan],
        slots: [bool; 3],
        targets: &mut [&'a mut [u8]],
    ) -> u64 {
        let mut calls = 0;
        for slot in [PREVIOUS, NEXT] {
            if slots[usize::from(slot)] {
                calls += self.open_slot(bytes, id, spans, slot, &mut []);
            }
        }
        if slots[usize::from(CURRENT)] {
            calls += self.open_slot(bytes, id, spans, CURRENT, targets);
        }
        calls
    }

    fn open_slot<'a>(
        &self,
        bytes: &'a mut [u8],
        id: SpaceId,
        spans: &mut [PacketSpan],
        slot: u8,
        targets: &mut [&'a mut [u8]],
    ) -> u64 {
        let key = match &self.ring {
            Some(ring) if id == SpaceId::Data => ring.opening(slot),
            _ => (self[id].keys.as_ref()).map(|keys| &keys.remote.packet),
        };
        let Some(key) = key else {
            spans
                .iter_mut()
                .filter(|s| s.slot == slot && s.outcome == Outcome::Pending)
                .for_each(|s| s.outcome = Outcome::NoKey);
            return 0;
        };
        key.open_into(bytes, spans, slot, targets);
        1
    }

    /// Counts a packet that failed authentication. RFC 9001 §6.6: the sum over all keys is limited.
    ///
    /// # Errors
    /// `AEAD_LIMIT_REACHED`.
    pub(crate) fn on_forged(&mut self, id: SpaceId, limit: u64) -> Result<(), TransportError> {
        self.forged += 1;
        let suite = match &self.ring {
            Some(ring) if id == SpaceId::Data => ring.local.suite(),
            _ => Suite::Aes128Gcm,
        };
        if self.forged >= suite.integrity_limit().min(limit) {
            return Err(TransportError {
                code: TransportErrorCode::AEAD_LIMIT_REACHED,
                frame_type: 0,
                reason: "too many packets failed authentication",
            });
        }
        Ok(())
    }

    /// The peer requests fewer or different acknowledgements (draft-ietf-quic-ack-frequency §4).
    ///
    /// # Errors
    /// `PROTOCOL_VIOLATION` for a delay out of bounds.
    pub(crate) fn on_ack_frequency(
        &mut self,
        request: &AckFrequency,
    ) -> Result<(), TransportError> {
        let delay = Duration::from_micros(request.max_ack_delay_us);
        if delay < MIN_ACK_DELAY || delay >= Duration::from_millis(1 << 14) {
            return Err(TransportError {
                code: TransportErrorCode::PROTOCOL_VIOLATION,
                frame_type: frame::ty::ACK_FREQUENCY,
                reason: "a max_ack_delay out of bounds",
            });
        }
        if self.ack_policy.sequence < Some(request.sequence) {
            self.ack_policy = AckPolicy {
                sequence: Some(request.sequence),
                eliciting_threshold: request.ack_eliciting_threshold,
                max_ack_delay: delay,
                reordering_threshold: request.reordering_threshold,
            };
        }
        Ok(())
    }

    /// Decides when the packets of a run are acknowledged, in the spaces that received an
    /// ack-eliciting one; returns when a delayed acknowledgement is due.
    pub(crate) fn settle_received(
        &mut self,
        now: Time,
        eliciting: &PerSpace<bool>,
    ) -> Option<Time> {
        for id in SpaceId::ALL {
            if eliciting[id] {
                let policy = match id {
                    SpaceId::Data => self.ack_policy,
                    _ => AckPolicy::AT_ONCE,
                };
                self[id].received.settle(now, &policy);
            }
        }
        self[SpaceId::Data].received.deadline()
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Seals packets of one level that have been written and booked. For measuring, `apart` applies
    /// header protection to those of the 1-RTT level in a separate pass. Returns the number of
    /// passes.
    #[inline]
    pub(crate) fn seal(
        &mut self,
        id: SpaceId,
        apart: bool,
        buffer: &mut [u8],
        spans: &mut [PacketSpan],
        tails: &[&[u8]],
    ) -> u64 {
        self[id].sent.check_sealed(spans);
        let passes = match &mut self.ring {
            Some(ring) if id == SpaceId::Data => {
                let (key, header) = (&ring.local, &ring.local_header);
                let passes = if apart {
                    ablation::seal_in_two_passes(key, header, buffer, spans, tails);
                    2
                } else {
                    key.seal(header, buffer, spans, tails);
                    1
                };
                ring.on_sealed(spans.len() as u64);
                passes
            }
            _ => {
                let Some(LevelKeys { local, .. }) = &self[id].keys else {
                    return 0;
                };
                (local.packet).seal(&local.header, buffer, spans, tails);
                1
            }
        };
        debug_assert!(
            spans.iter().all(|s| s.outcome == Outcome::Open),
            "what is written here can be sealed"
        );
        passes
    }

    /// Writes an ACK frame for a space if one is owed, or to be repeated, and fits; returns whether
    /// it did.
    pub(crate) fn write_ack(
        &mut self,
        id: SpaceId,
        now: Time,
        repeat: bool,
        w: &mut Writer<'_>,
    ) -> bool {
        let space = &mut self[id];
        let received = &mut space.received;
        let wanted = received.may_ack() || repeat;
        let Some(largest) = received.largest_to_report().filter(|_| wanted) else {
            return false;
        };
        let delay = u64::try_from(received.delay(now).as_micros()).unwrap_or(0);
        let (delay, ecn) = (delay >> ACK_DELAY_EXPONENT, received.ecn_counts());
        if frame::write::ack(w, received.ranges(), delay, ecn) == 0 {
            return false;
        }
        received.on_ack_sent();
        space.idle_acks += u32::from(id != SpaceId::Data);
        space.sent.push_frame(SentFrame::Ack { largest });
        if let Some(ring) = self.ring.as_mut().filter(|_| id == SpaceId::Data) {
            ring.on_ack_sent();
        }
        true
    }

    /// Whether a client's data goes into 0-RTT packets now.
    pub(crate) fn send_zero_rtt(&self, side: Side) -> bool {
        side == Side::Client && self.ring.is_none() && self[SpaceId::Data].keys.is_some()
    }

    /// The key phase bit of packets to be sent.
    #[inline]
    pub(crate) fn phase(&self) -> bool {
        self.ring.as_ref().is_some_and(KeyRing::phase)
    }

    /// The next number of a space, and how many bytes it takes: at least two, so that the sample of
    /// header protection never needs padding.
    #[inline]
    pub(crate) fn next_number(&self, id: SpaceId) -> (u64, usize) {
        let space = &self[id];
        let number = space.sent.next_number();
        let len = packet_number::encoded_len(number, space.largest_acked);
        (number, len.max(2))
    }

    /// Whether one more packet of acknowledgements may be remembered. A peer that acknowledges
    /// nothing gets acknowledgements only with probes, and in the end not even those: a record of
    /// every packet is kept until its fate is known (`SECURITY.md` row 8). Data leaves an eighth of
    /// `max_packets_in_flight` for acknowledgements, which leave the rest for probes.
    ///
    /// A handshake that makes no progress is acknowledged `MAX_IDLE_ACKS` times. After that,
    /// acknowledgements go with probes.
    pub(crate) fn may_acknowledge(&self, id: SpaceId) -> bool {
        let space = &self[id];
        if id != SpaceId::Data && space.idle_acks >= MAX_IDLE_ACKS {
            return false;
        }
        space.sent.len() + PROBE_RECORDS < self.max_packets_in_flight
    }

    /// Whether probes of the 1-RTT level may be remembered.
    pub(crate) fn may_probe(&self) -> bool {
        // Two probes and the number that may be skipped before them, with some to spare.
        self[SpaceId::Data].sent.len() + 4 < self.max_packets_in_flight
    }

    /// Number of data packets that may still be remembered.
    pub(crate) fn records_left(&self) -> usize {
        let limit = self.max_packets_in_flight;
        (limit - limit / 8).saturating_sub(self[SpaceId::Data].sent.len())
    }

    /// Whether Initial or Handshake packets are due.
    pub(crate) fn handshake_wants(&self, now: Time) -> bool {
        [SpaceId::Initial, SpaceId::Handshake]
            .into_iter()
            .any(|id| {
                let space = &self[id];
                space.keys.is_some()
                    && (space.crypto_send.wants_to_send()
                        || space.probes > 0
                        || (space.received.must_ack(now) && self.may_acknowledge(id)))
            })
    }

    /// Skips a packet number now and then: a peer that acknowledges it has not received our packets
    /// (RFC 9000 §21.4).
    pub(crate) fn skip_a_number(&mut self, now: Time, rng: &mut impl Rng) {
        let sent = &mut self[SpaceId::Data].sent;
        if sent.next_number() >= self.skip_number {
            self.data.sent.skip_number(now);
            self.choose_skip_number(rng);
        }
    }

    fn choose_skip_number(&mut self, rng: &mut impl Rng) {
        let next = self[SpaceId::Data].sent.next_number();
        self.skip_number = next + rng.random_range(SKIP);
    }

    /// Skips no number from now on.
    #[cfg(test)]
    pub(crate) const fn skip_none(&mut self) {
        self.skip_number = u64::MAX;
    }

    /// The previous keys are dropped at `due` (RFC 9001 §6.5), unless the peer has not yet followed
    /// our update; returns when they are.
    pub(crate) fn schedule_key_discard(&mut self, due: Time) -> Option<Time> {
        let ring = self.ring.as_mut()?;
        if ring.previous_keys_lack_end() {
            ring.drop_previous_at = Some(due);
        }
        ring.drop_previous_at
    }

    // ---- losses ---------------------------------------------------------------------------------

    /// The space whose earliest late packet counts as lost at `now`.
    pub(crate) fn overdue(&self, now: Time) -> Option<SpaceId> {
        let overdue = |id: &SpaceId| self[*id].loss_time.is_some_and(|t| t <= now);
        SpaceId::ALL.into_iter().find(overdue)
    }

    /// When the earliest late packet counts as lost.
    pub(crate) fn loss_time(&self) -> Option<Time> {
        self.iter().filter_map(|s| s.loss_time).min()
    }

    /// The probe timeout that expires first, and its space (RFC 9002 §A.8).
    pub(crate) fn next_probe(&self, now: Time, asked: &ProbeTimeout) -> Option<(Time, SpaceId)> {
        let open = |id: SpaceId| self[id].sent.outstanding_eliciting() > 0;
        let handshake_over = self.early.is_none();
        let handshake_open =
            !handshake_over && (open(SpaceId::Initial) || open(SpaceId::Handshake));
        if !handshake_open && (!open(SpaceId::Data) || !asked.peer_validated_us) {
            // RFC 9002 §6.2.2.1: a client has to keep the server's amplification limit from
            // deadlocking both. Early data in flight does not help: it is not probed before the
            // handshake is confirmed.
            if asked.peer_validated_us {
                return None;
            }
            return Some((now + asked.timeout, self.highest_handshake_level()));
        }
        let last_sent = || self.iter().map(|s| s.last_eliciting).max();
        let mut earliest = None::<(Time, SpaceId)>;
        let spaces = match handshake_over {
            true => &[SpaceId::Data][..],
            false => &SpaceId::ALL,
        };
        for &id in spaces {
            let space = &self[id];
            // Lost handshake data may have to wait for a window full of 1-RTT packets, which the
            // peer acknowledges only after that data: a probe breaks the deadlock (RFC 9002 §7.5).
            let locked_out =
                asked.window_full && id != SpaceId::Data && space.crypto_send.wants_to_send();
            let sent = match space.sent.outstanding_eliciting() {
                0 if locked_out => last_sent().unwrap_or(now),
                0 => continue,
                _ => space.last_eliciting,
            };
            let mut due = sent + asked.timeout;
            if id == SpaceId::Data {
                // RFC 9002 §6.2.1: not before the handshake is confirmed.
                if !asked.confirmed {
                    continue;
                }
                // RFC 9002 §6.2.1 adds the time for which the peer may delay an acknowledgement. It
                // does not delay it if more packets are outstanding than it leaves unacknowledged
                // (RFC 9000 §13.2.2: two, unless we requested fewer), as in RFC 8985 §7.2.
                let held = space.sent.outstanding_eliciting() as u64;
                if held <= asked.ack_threshold {
                    due += asked.ack_delay;
                }
            }
            if earliest.is_none_or(|(time, _)| due < time) {
                earliest = Some((due, id));
            }
        }
        earliest
    }

    /// Owes the probes of a probe timeout that expired in space `id` (RFC 9002 §6.2.4); returns the
    /// contents of the oldest outstanding packets there: sent again, they make the probe useful.
    pub(crate) fn owe_probes(&mut self, id: SpaceId, established: bool) -> Vec<SentFrame> {
        self[id].probes = PROBES;
        // RFC 9002 §6.2.4: data of the other handshake level may go along.
        if id != SpaceId::Data {
            for id in [SpaceId::Initial, SpaceId::Handshake] {
                self[id].crypto_send.on_all_lost();
            }
            if self.ring.is_some() && established {
                // A server that has confirmed the handshake ignores all except 1-RTT packets; if
                // our address has changed since, only such a packet shows it where we are.
                self[SpaceId::Data].probes = 1;
            }
        }
        let sent = &self[id].sent;
        sent.outstanding()
            .filter(|(_, p)| p.ack_eliciting && p.frames > 0)
            .take(PROBES as usize)
            .flat_map(|(_, p)| sent.frames(p))
            .collect()
    }
}

/// Inputs of the probe timeout other than the spaces.
pub(crate) struct ProbeTimeout {
    /// The timeout with backoff, without `max_ack_delay`.
    pub(crate) timeout: Duration,
    /// The peer's `max_ack_delay` with backoff.
    pub(crate) ack_delay: Duration,
    /// Ack-eliciting packets that the peer leaves unacknowledged for that time.
    pub(crate) ack_threshold: u64,
    /// Whether the handshake is confirmed.
    pub(crate) confirmed: bool,
    /// Whether the peer is known to have validated our address.
    pub(crate) peer_validated_us: bool,
    /// Whether the congestion window is full.
    pub(crate) window_full: bool,
}
