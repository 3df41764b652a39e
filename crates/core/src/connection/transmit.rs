//! The send path: a bundle of datagrams out, in five steps (`ARCHITECTURE.md`, "The send trip").

use squall_protect::{MAX_GROUP, Outcome, PacketSpan, TAG_LEN};
use squall_wire::{
    AckFrequency, Ecn, PacketType, Transmit, TransportErrorCode, Writer, frame, header,
    packet_number, varint,
};

use super::timers::Timer;
use super::{Connection, State};
use crate::config::{LEAST_PACKETS_IN_FLIGHT, MIN_UDP_PAYLOAD};
use crate::error::CloseReason;
use crate::qlog::Packet;
use crate::sent_frame::SentFrame;
use crate::space::SpaceId;
use crate::stages::{Stage, Stages};
use crate::stream::send::StreamRange;
use crate::time::Time;
use crate::token;

/// ACK-only packets after which a PING asks for a sign that they arrive (RFC 9000 §13.2.4).
const MAX_ACK_ONLY: u32 = 64;
/// Acknowledgements that a peer gets at a level of the handshake without sending TLS anything new.
const MAX_IDLE_ACKS: u32 = 64;
/// Records of packets kept free for probes: with every doubling of the timeout two more.
const PROBE_RECORDS: usize = 24;
/// Distance between packet numbers left out on purpose, at least and at most (RFC 9000 §21.4).
const SKIP: std::ops::Range<u64> = 300..6000;
/// Packets after which probes for the path's size go before data.
const SHORT_EXCHANGE: u64 = 32;
/// ack_delay_exponent that we declare: the default of RFC 9000 §18.2.
const ACK_DELAY_EXPONENT: u32 = 3;

const _: () = assert!(LEAST_PACKETS_IN_FLIGHT / 8 > PROBE_RECORDS);

pub(super) const NO_RANGE: StreamRange = StreamRange {
    id: squall_wire::StreamId(0),
    start: 0,
    len: 0,
    fin: false,
};

/// What went into a packet.
pub(super) struct Written {
    pub(super) ack_eliciting: bool,
    /// Whether congestion control counts the packet (RFC 9002 §2): more than ACK and CONNECTION_CLOSE.
    pub(super) in_flight: bool,
    /// Stream data that ends the packet and is read from where it lies when the packet is sealed.
    pub(super) tail: Option<StreamRange>,
}

impl Connection {
    /// Writes the next datagrams to be sent into `buffer`: all of one size but perhaps the last, at most
    /// `max_segments`. `None`: nothing may or need be sent now. To be called until then.
    pub fn transmit(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        max_segments: usize,
        stages: &mut Stages,
    ) -> Option<Transmit> {
        let in_flight = self.path.flow.bytes_in_flight;
        let sent = match &self.state {
            State::Draining | State::Drained => None,
            State::Closing(close) if !close.due => None,
            State::Closing(_) => self.transmit_close(now, buffer),
            State::Handshaking | State::Established => {
                self.transmit_open(now, buffer, max_segments, stages)
            }
        };
        if let Some(transmit) = &sent {
            let flow = &mut self.path.flow;
            if flow.bytes_in_flight > in_flight {
                let bytes = flow.bytes_in_flight - in_flight;
                flow.congestion.on_sent(now, bytes, flow.bytes_in_flight);
            }
            if transmit.path == self.path.path {
                self.path.on_sent(transmit.len);
            }
            let datagrams = transmit.count() as u64;
            if transmit.ecn != Ecn::NotEct {
                // One packet a datagram: nothing is marked before the handshake is confirmed.
                let next = self.spaces[SpaceId::Data as usize].sent.next_number();
                self.path.flow.ecn.on_sent(datagrams, next);
                self.ecn.on_sent(datagrams);
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
        if self.handshake_wants(now) || self.early_data_wants() {
            return self.transmit_handshake(now, buffer, stages);
        }
        if self.spaces[SpaceId::Data as usize].sent.is_spent() {
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
        self.ring.as_ref()?;
        if self.paths.is_some()
            && let Some(probe) = self.transmit_path_probe(now, buffer, stages)
        {
            return Some(probe);
        }
        self.transmit_bundle(now, buffer, max_segments, stages)
    }

    pub(super) fn transmit_of(&self, segment_size: usize, len: usize) -> Transmit {
        Transmit {
            path: self.path.route(),
            ecn: self.path.flow.ecn.mark(),
            segment_size: segment_size as u16,
            len,
        }
    }

    // ---- 1-RTT bundles ----------------------------------------------------------------------------------------------

    fn transmit_bundle(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        max_segments: usize,
        stages: &mut Stages,
    ) -> Option<Transmit> {
        // 1 allow
        if self.handshake_confirmed {
            let next = self.spaces[SpaceId::Data as usize].sent.next_number();
            self.path.flow.ecn.begin(next);
        }
        // A search goes on under load, but does not hold a short exchange up.
        let next = self.spaces[SpaceId::Data as usize].sent.next_number();
        if next >= SHORT_EXCHANGE
            && let Some(probe) = self.transmit_mtu_probe(now, buffer, stages)
        {
            return Some(probe);
        }
        let mut probes = self.spaces[SpaceId::Data as usize].probes;
        if !self.may_probe() {
            probes = 0;
        }
        let mut segment = usize::from(self.path.mtu.current());
        let mut most = max_segments;
        if probes > 0 && std::mem::take(&mut self.small_probe_due) {
            (segment, most) = (segment.min(MIN_UDP_PAYLOAD.into()), 1);
            probes = 1;
        }
        let wants_data = self.wants_data();
        let records = self.spaces[SpaceId::Data as usize].sent.len();
        let limit = self.config.max_packets_in_flight;
        let must_ack = self.spaces[SpaceId::Data as usize].received.must_ack(now)
            && self.may_acknowledge(SpaceId::Data);
        if !wants_data && !must_ack && probes == 0 {
            return self.transmit_idle_probe(now, buffer, stages);
        }
        let most = most.min(buffer.len() / segment).min(MAX_GROUP);
        let budget = if wants_data || probes > 0 {
            self.budget(now, segment, most)
        } else {
            0
        };
        // 2 plan: probes go beyond the window (RFC 9002 §7.5), acknowledgements beside it.
        let allowed = self.path.allowance() as usize / segment;
        let count = (budget as usize / segment)
            .min((limit - limit / 8).saturating_sub(records))
            .max(usize::from(probes))
            .min(most)
            .min(allowed);
        if count == 0 && !(must_ack && most > 0 && allowed > 0) {
            return None;
        }
        // 3 write
        let (mut spans, mut tails) = ([PacketSpan::new(0, 0, 0); MAX_GROUP], [NO_RANGE; MAX_GROUP]);
        self.skip_a_number(now);
        let form = self.form(segment, count);
        let (written, len) = self.write_bundle(now, buffer, &form, count, &mut spans, &mut tails);
        stages.mark(Stage::PacketBuilding);
        if written == 0 {
            return self.transmit_idle_probe(now, buffer, stages);
        }
        // 4 seal
        self.seal_bundle(buffer, &mut spans[..written], &tails[..written]);
        stages.mark(Stage::Aead);
        // 5 settle
        self.settle_bundle(now, written, wants_data);
        Some(self.transmit_of(segment.min(len), len))
    }

    /// Whether one more packet of acknowledgements may be remembered. Who acknowledges nothing gets acknowledgements with
    /// probes only, and in the end not even those: a record of every packet is kept until its fate is known
    /// (`SECURITY.md` row 8). Data leaves an eighth of `max_packets_in_flight` for acknowledgements, these the rest for probes.
    ///
    /// A handshake is acknowledged `MAX_IDLE_ACKS` times while it stands still. Beyond that, acknowledgements go with probes.
    pub(super) fn may_acknowledge(&self, id: SpaceId) -> bool {
        if id != SpaceId::Data && self.spaces[id as usize].idle_acks >= MAX_IDLE_ACKS {
            return false;
        }
        let records = self.spaces[id as usize].sent.len();
        records + PROBE_RECORDS < self.config.max_packets_in_flight
    }

    /// Whether probes of the 1-RTT level may be remembered.
    pub(super) fn may_probe(&self) -> bool {
        // Two of them and a number left out, once in line and once of a timeout before.
        self.spaces[SpaceId::Data as usize].sent.len() + 4 < self.config.max_packets_in_flight
    }

    /// Whether the data space has anything to say but acknowledgements.
    pub(super) fn wants_data(&self) -> bool {
        self.streams.wants_to_send()
            || self.datagrams.wants_to_send()
            || self.ping_pending
            || self.ack_request.due
            || self.handshake_done_pending
            || self.new_tokens_due > 0
            || self.local_ids.has_pending()
            || self.remote_ids.has_pending()
            || self.spaces[SpaceId::Data as usize]
                .crypto_send
                .wants_to_send()
    }

    /// Bytes that congestion control and pacer let go now; arms the pacing timer if it is the pacer that holds.
    fn budget(&mut self, now: Time, segment: usize, most: usize) -> u64 {
        let window = self.path.flow.congestion.window();
        let room = window.saturating_sub(self.path.flow.bytes_in_flight);
        self.timers.set(Timer::Pacing, None);
        if room < segment as u64 {
            self.path.flow.pacer.on_window_full();
            return 0;
        }
        let slow_start = self.path.flow.congestion.is_slow_start();
        let rate = self.path.flow.congestion.pacing_rate();
        let paced = self.path.flow.pacer.budget(
            now,
            rate,
            window,
            &self.path.flow.rtt,
            slow_start,
            segment as u16,
            most * segment,
        );
        if paced < segment as u64 {
            self.timers
                .set(Timer::Pacing, self.path.flow.pacer.next_release(now));
        }
        room.min(paced)
    }

    /// Whether sending `bytes` more shows that the window, not the application, is the limit (RFC 9002 §7.8).
    pub(super) fn window_limited(&self, bytes: usize) -> bool {
        let (window, after) = (
            self.path.flow.congestion.window(),
            self.path.flow.bytes_in_flight + bytes as u64,
        );
        // What no full packet fits into is no room: of a small window that may be more than an eighth.
        let full = after + u64::from(self.path.mtu.current()) > window;
        full || if self.path.flow.congestion.is_slow_start() {
            2 * after >= window
        } else {
            after * 8 >= window * 7
        }
    }

    pub(super) fn seal_bundle(
        &mut self,
        buffer: &mut [u8],
        spans: &mut [PacketSpan],
        tails: &[StreamRange],
    ) {
        let mut sources: [&[u8]; MAX_GROUP] = [&[]; MAX_GROUP];
        let mut lookup = self.streams.tails();
        for ((span, range), source) in spans.iter().zip(tails).zip(&mut sources) {
            if range.len == 0 {
                continue;
            }
            // The last piece is encrypted from where it lies; what precedes it in another chunk is copied.
            let (head, tail) = lookup.tail(range);
            if head > 0 {
                let at = (span.start + span.len) as usize - TAG_LEN - range.len as usize;
                self.streams.copy_head(range, &mut buffer[at..at + head]);
            }
            *source = tail;
        }
        self.spaces[SpaceId::Data as usize].sent.check_sealed(spans);
        if let Some(ring) = &mut self.ring {
            ring.local
                .seal(&ring.local_header, buffer, spans, &sources[..spans.len()]);
            ring.on_sealed(spans.len() as u64);
        }
        self.stats.seal_calls += 1;
        debug_assert!(
            spans.iter().all(|s| s.outcome == Outcome::Open),
            "what is written here can be sealed"
        );
    }

    fn settle_bundle(&mut self, now: Time, packets: usize, wants_data: bool) {
        self.stats.packets_sent += packets as u64;
        let space = self.space(SpaceId::Data);
        space.probes = space.probes.saturating_sub(packets.min(255) as u8);
        self.timers.set(
            Timer::AckDelay,
            self.spaces[SpaceId::Data as usize].received.deadline(),
        );
        // A probe or an ack-eliciting acknowledgement restarts the timer too (RFC 9002 §A.5).
        if wants_data || self.spaces[SpaceId::Data as usize].last_eliciting == now {
            self.set_loss_timer(now);
        }
    }

    /// There is nothing else to send: a probe for the path's size, unless the handshake is just over.
    fn transmit_idle_probe(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        stages: &mut Stages,
    ) -> Option<Transmit> {
        if self.seeks_size_idly {
            self.transmit_mtu_probe(now, buffer, stages)
        } else {
            None
        }
    }

    /// One datagram larger than any before, to learn whether the path carries it (RFC 9000 §14.4).
    fn transmit_mtu_probe(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        stages: &mut Stages,
    ) -> Option<Transmit> {
        if !self.handshake_confirmed {
            return None;
        }
        // Not to an address that the peer has only named: probes are large.
        if !self.path.validated || !self.path.mtu.wants_probe(now) {
            return None;
        }
        let flow = &self.path.flow;
        let room = flow
            .congestion
            .window()
            .saturating_sub(flow.bytes_in_flight);
        let size = self.path.mtu.next_probe(room, flow.bytes_in_flight == 0)?;
        let size = usize::from(size);
        if buffer.len() < size {
            self.path.mtu.limit(buffer.len() as u64);
            return None;
        }
        let dcid = self.remote_ids.current();
        let phase = self
            .ring
            .as_ref()
            .is_some_and(super::keyring::KeyRing::phase);
        let space = &mut self.spaces[SpaceId::Data as usize];
        let number = space.sent.next_number();
        let pn_len = packet_number::encoded_len(number, space.largest_acked).max(2);
        let spin = self.path.spin.value();
        let mut w = Writer::new(&mut buffer[..size - TAG_LEN]);
        header::write_short(&mut w, &dcid, spin, phase, number, pn_len);
        frame::write::ping(&mut w);
        let room = w.remaining();
        frame::write::padding(&mut w, room);
        let mark = space.sent.frame_mark();
        space
            .sent
            .push(now, size as u16, true, self.path.flow.tag, false, mark);
        space.last_eliciting = now;
        self.path.flow.bytes_in_flight += size as u64;
        self.path.flow.pacer.on_sent(size as u64);
        self.path.mtu.on_probe_sent(number, size as u16);
        if self.qlog.is_some() {
            let packet = Packet {
                ty: PacketType::OneRtt,
                number,
                len: size,
                payload: &buffer[1 + dcid.len() + pn_len..size - TAG_LEN],
            };
            self.log_sent(now, packet, true);
        }
        let mut span = PacketSpan::new(0, size as u32, (1 + dcid.len()) as u16);
        (span.header_len, span.packet_number) = ((1 + dcid.len() + pn_len) as u16, number);
        self.seal_bundle(buffer, &mut [span], &[NO_RANGE]);
        self.stats.packets_sent += 1;
        self.set_loss_timer(now);
        stages.mark(Stage::Aead);
        Some(self.transmit_of(size, size))
    }

    /// Leaves a packet number out now and then: who acknowledges it has not received our packets (RFC 9000 §21.4).
    fn skip_a_number(&mut self, now: Time) {
        let sent = &mut self.spaces[SpaceId::Data as usize].sent;
        if sent.next_number() >= self.skip_number {
            sent.skip_number(now);
            self.choose_skip_number();
        }
    }

    pub(super) fn choose_skip_number(&mut self) {
        use rand::Rng;
        let next = self.spaces[SpaceId::Data as usize].sent.next_number();
        self.skip_number = next + self.rng.random_range(SKIP);
    }

    // ---- frames -----------------------------------------------------------------------------------------------------

    /// Fills the rest of a packet with frames, most urgent first.
    pub(super) fn write_frames(
        &mut self,
        id: SpaceId,
        now: Time,
        w: &mut Writer<'_>,
        first: bool,
        ack_only: bool,
    ) -> Written {
        let mut written = Written {
            ack_eliciting: false,
            in_flight: false,
            tail: None,
        };
        if first {
            self.write_ack(id, now, w);
        }
        if ack_only {
            // RFC 9000 §13.2.4: an endpoint that only acknowledges asks for an acknowledgement now and then.
            if id == SpaceId::Data && self.ack_only_run >= MAX_ACK_ONLY {
                frame::write::ping(w);
                written.ack_eliciting = true;
            }
            return written;
        }
        let before = w.len();
        if first && id == SpaceId::Data && self.spaces[id as usize].probes > 0 {
            self.ask_for_ack(w);
        }
        if first && id == SpaceId::Data {
            self.write_connection_control(now, w);
        }
        if self.spaces[id as usize].crypto_send.wants_to_send() {
            self.write_crypto(id, w);
        }
        if id == SpaceId::Data {
            if self.datagrams.wants_to_send() {
                self.write_datagrams(w);
            }
            written.tail = self.write_streams(w);
            if written.tail.is_none() && self.streams.is_blocked() {
                // Found out only now, and perhaps all that there is to say.
                self.write_stream_control(now, w);
            }
        }
        if w.len() == before && self.spaces[id as usize].probes > 0 && w.remaining() > 0 {
            frame::write::ping(w);
        }
        written.ack_eliciting = w.len() > before;
        written.in_flight = written.ack_eliciting;
        written
    }

    /// draft-ietf-quic-ack-frequency §7: a probe asks not to wait for the peer's delay.
    fn ask_for_ack(&self, w: &mut Writer<'_>) {
        if self.peer.min_ack_delay.is_some() && w.remaining() > 0 {
            frame::write::immediate_ack(w);
        }
    }

    /// Asks for fewer acknowledgements, or other ones (draft-ietf-quic-ack-frequency §4).
    fn write_ack_frequency(&mut self, w: &mut Writer<'_>) {
        if w.remaining() < frame::write::ACK_FREQUENCY_MAX_SIZE {
            return;
        }
        self.ack_request.due = false;
        let Some(least) = self.peer.min_ack_delay else {
            return;
        };
        let wanted = self.ack_request.wanted;
        let sequence = self.ack_request.count;
        self.ack_request.count += 1;
        let delay = wanted.max_ack_delay.max(least);
        let request = AckFrequency {
            sequence,
            ack_eliciting_threshold: wanted.ack_eliciting_threshold.min(varint::MAX),
            max_ack_delay_us: u64::try_from(delay.as_micros()).unwrap_or(varint::MAX),
            reordering_threshold: wanted.reordering_threshold.min(varint::MAX),
        };
        frame::write::ack_frequency(w, &request);
        // draft-ietf-quic-ack-frequency §7: the larger of both until it is acknowledged.
        self.peer.max_ack_delay = self.peer.max_ack_delay.max(delay);
        let sent = &mut self.spaces[SpaceId::Data as usize].sent;
        sent.push_frame(SentFrame::AckFrequency(sequence));
    }

    fn write_ack(&mut self, id: SpaceId, now: Time, w: &mut Writer<'_>) {
        let space = &mut self.spaces[id as usize];
        let Some(largest) = space
            .received
            .largest_to_report()
            .filter(|_| space.received.may_ack())
        else {
            return;
        };
        let delay =
            u64::try_from(space.received.delay(now).as_micros()).unwrap_or(0) >> ACK_DELAY_EXPONENT;
        if frame::write::ack(
            w,
            space.received.ranges(),
            delay,
            space.received.ecn_counts(),
        ) > 0
        {
            space.received.on_ack_sent();
            space.idle_acks += u32::from(id != SpaceId::Data);
            space.sent.push_frame(SentFrame::Ack { largest });
            self.stats.acks_sent += 1;
            if let Some(ring) = self.ring.as_mut().filter(|_| id == SpaceId::Data) {
                ring.on_ack_sent();
            }
        }
    }

    /// Frames of the connection as a whole, and control frames of streams.
    fn write_connection_control(&mut self, now: Time, w: &mut Writer<'_>) {
        if self.ack_request.due {
            self.write_ack_frequency(w);
        }
        let sent = &mut self.spaces[SpaceId::Data as usize].sent;
        if self.handshake_done_pending && w.remaining() > 0 {
            self.handshake_done_pending = false;
            frame::write::handshake_done(w);
            sent.push_frame(SentFrame::HandshakeDone);
        }
        if self.ping_pending && w.remaining() > 0 {
            self.ping_pending = false;
            frame::write::ping(w);
        }
        while self.local_ids.has_pending()
            && w.remaining() >= frame::write::NEW_CONNECTION_ID_MAX_SIZE
        {
            let Some(new) = self.local_ids.next_pending() else {
                break;
            };
            let token = self.ids.reset_token(new.id.as_slice());
            frame::write::new_connection_id(w, new.sequence, new.retire_prior_to, &new.id, &token);
            sent.push_frame(SentFrame::NewConnectionId(new.sequence));
        }
        // Type and length in front of it.
        while self.new_tokens_due > 0 && w.remaining() >= 3 + token::LONGEST {
            self.new_tokens_due -= 1;
            let remote = self.path.path.remote;
            let token = (self.tokens).new_token(&mut self.rng, now, remote, self.version);
            frame::write::new_token(w, &token);
            sent.push_frame(SentFrame::NewToken);
        }
        while self.remote_ids.has_pending()
            && w.remaining() >= frame::write::RETIRE_CONNECTION_ID_MAX_SIZE
        {
            let Some(sequence) = self.remote_ids.next_pending() else {
                break;
            };
            frame::write::retire_connection_id(w, sequence);
            sent.push_frame(SentFrame::RetireConnectionId(sequence));
        }
        if self.streams.has_control() {
            self.write_stream_control(now, w);
        }
    }

    fn write_stream_control(&mut self, now: Time, w: &mut Writer<'_>) {
        let sent = &mut self.spaces[SpaceId::Data as usize].sent;
        let rtt = self.path.flow.rtt.smoothed();
        self.streams
            .write_control(now, rtt, w, |frame| sent.push_frame(frame));
    }

    fn write_crypto(&mut self, id: SpaceId, w: &mut Writer<'_>) {
        let space = &mut self.spaces[id as usize];
        while let Some(range) = space.crypto_send.next_range(w.remaining() as u64, u64::MAX) {
            let header = frame::write::crypto_header_size(range.start, w.remaining());
            if w.remaining() <= header {
                return;
            }
            let len = (w.remaining() - header).min((range.end - range.start) as usize);
            frame::write::crypto_header(w, range.start, len);
            space
                .crypto_send
                .copy_to(range.start, &mut w.spare()[..len]);
            w.advance(len);
            space
                .crypto_send
                .on_sent(&(range.start..range.start + len as u64));
            space.sent.push_frame(SentFrame::Crypto {
                start: range.start,
                len: len as u32,
            });
        }
    }

    /// Stream data until the packet is full or nothing is left. The last piece is only given room: sealing reads it from
    /// where it lies.
    fn write_streams(&mut self, w: &mut Writer<'_>) -> Option<StreamRange> {
        let mut tail: Option<(StreamRange, usize)> = None;
        while let Some((range, fills)) = self.streams.next_range(w.remaining()) {
            if let Some((previous, at)) = tail.take() {
                // Another frame follows: the piece before is no tail, and copied.
                self.streams.copy_head(
                    &previous,
                    &mut w.written_mut()[at..at + previous.len as usize],
                );
            }
            let len = (!fills).then_some(range.len as usize);
            frame::write::stream_header(w, range.id, range.start, len, range.fin);
            if range.len > 0 {
                tail = Some((range, w.len()));
                w.advance(range.len as usize);
            }
            self.streams.on_sent(&range);
            let StreamRange {
                id,
                start,
                len,
                fin,
            } = range;
            self.spaces[SpaceId::Data as usize]
                .sent
                .push_frame(SentFrame::Stream {
                    id,
                    start,
                    len,
                    fin,
                });
            if fills {
                break;
            }
        }
        tail.map(|(range, _)| range)
    }

    /// Books a packet that is written.
    pub(super) fn note_sent(&mut self, id: SpaceId, now: Time, contents: &Written, size: u64) {
        if contents.ack_eliciting {
            self.note_eliciting(id, now);
        } else {
            self.ack_only_run += 1;
        }
        if size > 0 {
            self.note_in_flight(size);
        }
    }

    /// Books that something asks for an acknowledgement.
    pub(super) fn note_eliciting(&mut self, id: SpaceId, now: Time) {
        self.ack_only_run = 0;
        self.spaces[id as usize].last_eliciting = now;
        if !self.eliciting_since_receipt {
            // RFC 9000 §10.1: the first ack-eliciting packet since a receipt restarts the timer too.
            self.eliciting_since_receipt = true;
            self.restart_idle_timer(now);
        }
    }

    /// Books bytes that congestion control counts.
    pub(super) fn note_in_flight(&mut self, bytes: u64) {
        self.path.flow.bytes_in_flight += bytes;
        self.path.flow.pacer.on_sent(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Pair;
    use squall_wire::Side;

    // test: RFC 9000 §12.3; SECURITY.md row 25
    #[test]
    fn packet_numbers_end_without_a_word() {
        for (left, ends) in [(5000, false), (4096, true), (0, true)] {
            let mut pair = Pair::new();
            pair.run();
            let now = pair.now;
            let server = pair.connection(Side::Server);
            let sent = &mut server.spaces[SpaceId::Data as usize].sent;
            sent.discard();
            sent.continue_from(varint::MAX - left);
            server.skip_number = u64::MAX;
            server.ping();
            let mut buffer = vec![0; 65_536];
            let datagram = server.transmit(now, &mut buffer, 64, &mut Stages::off());
            assert_eq!(datagram.is_none(), ends, "{left}");
            assert_eq!(server.is_drained(), ends, "{left}");
            server.ping();
            let datagram = server.transmit(now, &mut buffer, 64, &mut Stages::off());
            assert_eq!(datagram.is_none(), ends, "{left}");
            let closed = std::iter::from_fn(|| server.poll_event())
                .find(|e| matches!(e, crate::event::Event::Closed(_)));
            assert_eq!(closed.is_some(), ends, "{left}");
        }
    }
}
