//! The send path: a bundle of datagrams out, in five steps (`ARCHITECTURE.md`, "The send trip").
//!
//! | step | where |
//! |---|---|
//! | 1 allow, 2 plan | here |
//! | 3 write | `packet`: one packet; `frames`: what goes into it; `run`: a bundle and its runs |
//! | 4 seal, 5 settle | here |
//!
//! `flight` writes the datagrams of the handshake, `probe` those that probe paths and their size,
//! `close` the last ones.

mod close;
mod flight;
mod frames;
pub(in crate::connection) mod packet;
mod probe;
pub(in crate::connection) mod run;

use arrayvec::ArrayVec;
use squall_protect::{MAX_GROUP, PacketSpan, TAG_LEN};
use squall_wire::header::short_header_size;
use squall_wire::{Ecn, Transmit, TransportErrorCode, frame};

use self::run::{Bundle, FILL, Form};
use super::parts::clock::Timer;
use super::{Connection, State};
use crate::error::CloseReason;
use crate::space::SpaceId;
use crate::stages::{Stage, Stages};
use crate::stream::Streams;
use crate::time::Time;

/// Bytes of the longest packet number.
const LONGEST_NUMBER: usize = 4;
/// Room for an acknowledgement of one range in a packet with datagrams.
const ACK_ROOM: usize = 24;
const _: () = assert!(ACK_ROOM + LONGEST_NUMBER < FILL);

/// The dimensions of a bundle.
struct Plan {
    /// Bytes of a datagram.
    segment: usize,
    /// Number of packets; zero: one with only acknowledgements.
    count: usize,
    /// Whether there is anything to send besides acknowledgements and probes.
    wants_data: bool,
    /// A packet with less room than this left is filled with PADDING rather than ending its bundle.
    fill: usize,
}

/// What may leave next.
enum Next {
    NothingToSend,
    /// There is something to send, but it may not leave yet.
    Blocked,
    Bundle(Plan),
}

impl Connection {
    /// Writes the next datagrams to be sent into `buffer`: all of one size except perhaps the last,
    /// at most `max_segments`. Call it until it returns `None`: there is nothing to send, or it may
    /// not leave yet.
    pub fn transmit(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        max_segments: usize,
        stages: &mut Stages,
    ) -> Option<Transmit> {
        let in_flight = self.paths.active.flow.in_flight();
        let sent = match &self.state {
            State::Draining | State::Drained => None,
            State::Closing(close) if !close.due => None,
            State::Closing(_) => self.transmit_close(now, buffer),
            State::Handshaking | State::Established => {
                self.transmit_open(now, buffer, max_segments, stages)
            }
        };
        if let Some(transmit) = &sent {
            let path = &mut self.paths.active;
            let flow = &mut path.flow;
            if flow.in_flight() > in_flight {
                let bytes = flow.in_flight() - in_flight;
                flow.congestion.on_sent(now, bytes, flow.in_flight());
            }
            let datagrams = transmit.count() as u64;
            if transmit.ecn != Ecn::NotEct {
                // Datagrams equal packets here: none is marked before the handshake is confirmed.
                let next = self.spaces[SpaceId::Data].sent.next_number();
                flow.ecn.on_sent(datagrams, next);
                self.paths.ecn.on_sent(datagrams);
            }
            if transmit.path == path.path {
                path.on_sent(transmit.len);
            }
            self.stats.datagrams_sent += datagrams;
            self.stats.bytes_sent += transmit.len as u64;
        }
        stages.mark(Stage::AckLoss);
        sent
    }

    fn transmit_open(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        max_segments: usize,
        stages: &mut Stages,
    ) -> Option<Transmit> {
        if self.spaces.handshake_wants(now) || self.early_data_wants() {
            let flight = self.transmit_flight(now, buffer, stages);
            // RFC 9000 §8.2.2: handshake packets that wait for the window do not hold back a
            // response, for which the peer may be waiting with the acknowledgement that opens it.
            return match flight {
                None if self.spaces.ring.is_some() => self.transmit_path_probe(now, buffer, stages),
                flight => flight,
            };
        }
        if self.spaces[SpaceId::Data].sent.is_spent() {
            // RFC 9000 §12.3: without CONNECTION_CLOSE or anything else.
            let reason = CloseReason::Transport {
                code: TransportErrorCode::INTERNAL_ERROR,
                reason: "packet numbers are used up".to_owned(),
                remote: false,
            };
            self.abandon(now, reason);
            return None;
        }
        self.renew_keys(now);
        if self.is_closed() {
            return self.transmit_close(now, buffer);
        }
        self.spaces.ring.as_ref()?;
        if self.paths.inactive.is_some()
            && let Some(probe) = self.transmit_path_probe(now, buffer, stages)
        {
            return Some(probe);
        }
        self.transmit_bundle(now, buffer, max_segments, stages)
    }

    // ---- 1-RTT bundles --------------------------------------------------------------------------

    fn transmit_bundle(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        max_segments: usize,
        stages: &mut Stages,
    ) -> Option<Transmit> {
        let next = self.spaces[SpaceId::Data].sent.next_number();
        // A path that drops marked packets must not drop the challenges of its validation: they
        // share the packets' marks.
        if self.handshake.confirmed && self.paths.active.validation.is_none() {
            self.paths.active.flow.ecn.begin(next);
        }
        // The search for the path MTU continues under load, unless data would have to wait for it.
        let data = u64::from(self.paths.active.mtu.current());
        if let Some(probe) = self.transmit_mtu_probe(now, buffer, data, stages) {
            return Some(probe);
        }
        // 1 allow, 2 plan
        let plan = match self.plan(now, buffer.len(), max_segments) {
            Next::NothingToSend => return self.transmit_mtu_probe(now, buffer, 0, stages),
            Next::Blocked => return None,
            Next::Bundle(plan) => plan,
        };
        // 3 write
        let mut bundle = Bundle::default();
        self.spaces.skip_a_number(now, &mut self.endpoint.rng);
        let form = Form {
            fill: plan.fill,
            ..self.form(plan.segment, plan.count)
        };
        let (written, len) = self.write_bundle(now, buffer, &form, plan.count, &mut bundle);
        stages.mark(Stage::PacketBuilding);
        if written == 0 {
            return self.transmit_mtu_probe(now, buffer, 0, stages);
        }
        // 4 seal
        self.seal_bundle(buffer, &mut bundle);
        stages.mark(Stage::Aead);
        // 5 settle
        self.settle_bundle(now, written, plan.wants_data);
        Some(self.paths.transmit(plan.segment.min(len), len))
    }

    /// Steps 1 and 2: how much may leave, by congestion control, pacer, amplification limit,
    /// records and buffer, and how it is divided.
    fn plan(&mut self, now: Time, room: usize, max_segments: usize) -> Next {
        let space = &self.spaces[SpaceId::Data];
        let mut probes = usize::from(space.probes);
        if !self.spaces.may_probe() {
            probes = 0;
        }
        let must_ack = space.received.must_ack(now) && self.spaces.may_acknowledge(SpaceId::Data);
        let wants_data = self.wants_data();
        if !wants_data && !must_ack && probes == 0 {
            return Next::NothingToSend;
        }
        let (mut segment, mut most) = (usize::from(self.paths.active.mtu.current()), max_segments);
        if probes > 0 && std::mem::take(&mut self.duties.small_probe) {
            (segment, most, probes) = (segment.min(self.paths.active.mtu.floor().into()), 1, 1);
        }
        let most = most.min(room / segment).min(MAX_GROUP);
        let budget = if wants_data || probes > 0 {
            let (budget, release) = self.paths.active.flow.budget(now, segment, most);
            self.clock.set(Timer::Pacing, release);
            budget
        } else {
            0
        };
        let full = segment;
        segment = self.segment_for_datagrams(segment);
        // Probes may exceed the window (RFC 9002 §7.5), and acknowledgements do not count.
        let allowed = self.paths.active.allowance() as usize / segment;
        let count = (budget as usize / segment)
            .min(self.spaces.records_left())
            .max(probes)
            .min(most)
            .min(allowed);
        if count == 0 && !(must_ack && most > 0 && allowed > 0) {
            return Next::Blocked;
        }
        Next::Bundle(Plan {
            segment,
            count,
            wants_data,
            fill: if segment < full { segment / 4 } else { FILL },
        })
    }

    /// The size of packets that hold as many datagrams like the next one as fit into `segment`
    /// bytes, if nothing else would fill them: all packets of a bundle have the same size.
    fn segment_for_datagrams(&self, segment: usize) -> usize {
        let Some(next) = self.datagrams.peek() else {
            return segment;
        };
        let space = &self.spaces[SpaceId::Data];
        if self.streams.wants_to_send()
            || space.crypto_send.wants_to_send()
            || self.config.pad_to_mtu
        {
            return segment;
        }
        let dcid = self.paths.remote_ids.current();
        let overhead = short_header_size(dcid.len(), LONGEST_NUMBER) + TAG_LEN;
        let frame = frame::write::datagram_header_size(Some(next.len())) + next.len();
        // The first packet also has an acknowledgement. The others are filled.
        let ack = if space.received.may_ack() {
            ACK_ROOM
        } else {
            0
        };
        let Some(room) = segment.checked_sub(overhead + ack) else {
            return segment;
        };
        match room / frame {
            0 => segment,
            fit if room - fit * frame < FILL => segment,
            fit => fit * frame + overhead + ack,
        }
    }

    /// Whether the data space has anything to send except acknowledgements.
    pub(super) fn wants_data(&self) -> bool {
        self.streams.wants_to_send()
            || self.datagrams.wants_to_send()
            || self.duties.wants_to_send()
            || self.paths.local_ids.has_pending()
            || self.paths.remote_ids.has_pending()
            || self.spaces[SpaceId::Data].crypto_send.wants_to_send()
    }

    /// Seals packets of the 1-RTT level.
    fn seal_bundle(&mut self, buffer: &mut [u8], bundle: &mut Bundle) {
        let ablation = self.config.ablation;
        let mut sources = ArrayVec::new();
        let copies = ablation.copies_before_sealing;
        find_sources(&self.streams, copies, buffer, bundle, &mut sources);
        let (id, apart) = (SpaceId::Data, ablation.header_protection_apart);
        self.stats.seal_calls += (self.spaces).seal(id, apart, buffer, &mut bundle.spans, &sources);
    }

    /// Seals one packet that already holds all of its bytes.
    fn seal_one(&mut self, id: SpaceId, buffer: &mut [u8], span: PacketSpan) {
        let apart = self.config.ablation.header_protection_apart;
        self.stats.seal_calls += self.spaces.seal(id, apart, buffer, &mut [span], &[]);
    }

    fn settle_bundle(&mut self, now: Time, packets: usize, wants_data: bool) {
        let space = &mut self.spaces[SpaceId::Data];
        space.probes = space.probes.saturating_sub(packets.min(255) as u8);
        self.clock.set(Timer::AckDelay, space.received.deadline());
        // A probe or an ack-eliciting acknowledgement restarts the timer too (RFC 9002 §A.5).
        if wants_data || space.last_eliciting == now {
            self.set_loss_timer(now);
        }
    }
}

/// Adds the slices that supply the last bytes of each packet. The last piece of stream data is
/// encrypted from where it lies; an earlier piece in another chunk is copied, or all of it when
/// measuring that.
#[inline]
pub(in crate::connection) fn find_sources<'a>(
    streams: &'a Streams,
    copies: bool,
    buffer: &mut [u8],
    bundle: &Bundle,
    sources: &mut ArrayVec<&'a [u8], MAX_GROUP>,
) {
    let mut lookup = streams.tails();
    for (span, range) in bundle.spans.iter().zip(&bundle.tails) {
        let (head, tail) = match range.len {
            0 => (0, &[][..]),
            len if copies => (len as usize, &[][..]),
            _ => lookup.tail(range),
        };
        if head > 0 {
            let at = (span.start + span.len) as usize - TAG_LEN - range.len as usize;
            streams.copy_head(range, &mut buffer[at..at + head]);
        }
        let _ = sources.try_push(tail);
    }
}
