//! Selects the contents of a packet, most urgent first.

use squall_wire::{Writer, frame};

use crate::connection::Connection;
use crate::event::Event;
use crate::sent_frame::SentFrame;
use crate::space::sent::SentPackets;
use crate::space::{Space, SpaceId};
use crate::stream::Streams;
use crate::stream::send::StreamRange;
use crate::time::Time;
use crate::token;

/// ACK-only packets after which a PING asks for a sign that they arrive (RFC 9000 §13.2.4).
const MAX_ACK_ONLY: u32 = 64;

/// The lengths of ACK frames that share bundles with those of other connections: this one, which
/// has room for about five ranges, ...
const ACK_LEN: usize = 22;
/// ... and those that exceed it by multiples of this. The numbers in a frame can be encoded to make
/// up for nearly any smaller difference.
const ACK_STEP: usize = 12;

/// The next such length from `len` on.
const fn common_ack_len(len: usize) -> usize {
    ACK_LEN + len.saturating_sub(ACK_LEN).next_multiple_of(ACK_STEP)
}

/// The contents of a packet.
pub(super) struct Written {
    /// Whether it asks for an acknowledgement.
    pub(super) ack_eliciting: bool,
    /// Whether congestion control counts it.
    pub(super) in_flight: bool,
    /// Stream data at the packet's end, read from where it lies when the packet is sealed.
    pub(super) tail: Option<StreamRange>,
}

impl Connection {
    /// Fills the rest of a packet with frames. Acknowledgements and control frames go into the
    /// `first` packet of a datagram or bundle.
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
            // A probe also repeats which packets have arrived: if the last acknowledgement was
            // lost, the peer backs off (RFC 9002 §6.2.1) until it gets another.
            let probe = self.spaces[id].probes > 0 || self.duties.ping;
            let repeat = id == SpaceId::Data && probe;
            let at = w.len();
            let acked = self.spaces.write_ack(id, now, repeat, w);
            self.stats.acks_sent += u64::from(acked);
            if ack_only {
                written.ack_eliciting = self.finish_ack(id, w, at);
                return written;
            }
        }
        let before = w.len();
        let space = &self.spaces[id];
        let (probing, has_crypto) = (space.probes > 0, space.crypto_send.wants_to_send());
        if first && id == SpaceId::Data {
            if probing && self.handshake.peer.min_ack_delay.is_some() && w.remaining() > 0 {
                // draft-ietf-quic-ack-frequency §7: a probe asks for an immediate acknowledgement.
                frame::write::immediate_ack(w);
            }
            self.write_control(now, w);
        }
        if has_crypto {
            write_crypto(&mut self.spaces[id], w);
        }
        if id == SpaceId::Data {
            if self.datagrams.wants_to_send() {
                self.write_datagrams(w);
            }
            let sent = &mut self.spaces[SpaceId::Data].sent;
            written.tail = write_streams(&mut self.streams, sent, w);
            if written.tail.is_none() && self.streams.is_blocked() {
                // Determined only now, and perhaps all that there is to send.
                self.write_stream_control(now, w);
            }
        }
        // One is enough. Without padding the bundle ends with it, because it is short.
        let alone = first || !self.config.pad_to_mtu;
        if probing && alone && w.len() == before && w.remaining() > 0 {
            frame::write::ping(w);
        }
        written.ack_eliciting = w.len() > before;
        written.in_flight = written.ack_eliciting;
        written
    }

    /// Ends a packet that holds only the ACK frame at `at`; returns whether it is ack-eliciting.
    fn finish_ack(&self, id: SpaceId, w: &mut Writer<'_>, at: usize) -> bool {
        // RFC 9000 §13.2.4: an endpoint that only acknowledges asks for an acknowledgement now and
        // then.
        let asks = id == SpaceId::Data && self.spaces.ack_only_run >= MAX_ACK_ONLY;
        let ping = usize::from(asks);
        let shares = id == SpaceId::Data && self.paths.active.flow.together > 0;
        if shares && w.len() > at {
            // The acknowledgements of many connections share a bundle if they have the same size.
            let len = common_ack_len(w.len() - at + ping);
            frame::write::lengthen_ack(w, at, len - ping);
        }
        if asks {
            frame::write::ping(w);
        }
        asks
    }

    /// Frames of the connection as a whole, and control frames of streams.
    fn write_control(&mut self, now: Time, w: &mut Writer<'_>) {
        let (sent, duties) = (&mut self.spaces[SpaceId::Data].sent, &mut self.duties);
        if duties.ack_frequency.due
            && w.remaining() >= frame::write::ACK_FREQUENCY_MAX_SIZE
            && let Some(request) = duties.ack_frequency.take(&mut self.handshake.peer)
        {
            frame::write::ack_frequency(w, &request);
            sent.push_frame(SentFrame::AckFrequency(request.sequence));
        }
        if duties.handshake_done && w.remaining() > 0 {
            duties.handshake_done = false;
            frame::write::handshake_done(w);
            sent.push_frame(SentFrame::HandshakeDone);
        }
        if duties.ping && w.remaining() > 0 {
            duties.ping = false;
            frame::write::ping(w);
        }
        let (local_ids, endpoint) = (&mut self.paths.local_ids, &mut self.endpoint);
        while local_ids.has_pending() && w.remaining() >= frame::write::NEW_CONNECTION_ID_MAX_SIZE {
            let Some(new) = local_ids.next_pending() else {
                break;
            };
            let token = endpoint.ids.reset_token(new.id.as_slice());
            frame::write::new_connection_id(w, new.sequence, new.retire_prior_to, &new.id, &token);
            sent.push_frame(SentFrame::NewConnectionId(new.sequence));
        }
        // Type and length precede the token.
        while duties.new_tokens > 0 && w.remaining() >= 3 + token::LONGEST {
            duties.new_tokens -= 1;
            let (remote, version) = (self.paths.active.path.remote, self.handshake.version);
            let token = (endpoint.tokens).new_token(&mut endpoint.rng, now, remote, version);
            frame::write::new_token(w, &token);
            sent.push_frame(SentFrame::NewToken);
        }
        let remote_ids = &mut self.paths.remote_ids;
        while remote_ids.has_pending()
            && w.remaining() >= frame::write::RETIRE_CONNECTION_ID_MAX_SIZE
        {
            let Some(sequence) = remote_ids.next_pending() else {
                break;
            };
            frame::write::retire_connection_id(w, sequence);
            sent.push_frame(SentFrame::RetireConnectionId(sequence));
        }
        if self.streams.has_control() || self.streams.gives_credit_early() {
            self.write_stream_control(now, w);
        }
    }

    /// Datagrams that fit into the packet.
    fn write_datagrams(&mut self, w: &mut Writer<'_>) {
        while let Some(data) = self.datagrams.peek() {
            let size = frame::write::datagram_header_size(Some(data.len())) + data.len();
            if size > w.remaining() {
                // RFC 9221 §5: the path became smaller than the datagram, which cannot be split.
                let most = self.datagram_room();
                if most.is_none_or(|most| data.len() > most) {
                    self.datagrams.next();
                    self.stats.datagram_frames_dropped += 1;
                    continue;
                }
                break;
            }
            frame::write::datagram_header(w, Some(data.len()));
            w.bytes(data);
            self.datagrams.next();
            self.stats.datagram_frames_sent += 1;
        }
        if (self.datagrams).tells_writer(self.config.datagram_send_buffer) {
            self.streams.events.push_back(Event::DatagramsWritable);
        }
    }

    fn write_stream_control(&mut self, now: Time, w: &mut Writer<'_>) {
        let sent = &mut self.spaces[SpaceId::Data].sent;
        let rtt = self.paths.active.flow.rtt.smoothed();
        self.streams
            .write_control(now, rtt, w, |frame| sent.push_frame(frame));
    }
}

/// Handshake data of a space.
#[inline(never)]
fn write_crypto(space: &mut Space, w: &mut Writer<'_>) {
    let crypto = &mut space.crypto_send;
    while let Some(range) = crypto.next_range(w.remaining() as u64, u64::MAX) {
        let start = range.start;
        let header = frame::write::crypto_header_size(start, w.remaining());
        if w.remaining() <= header {
            return;
        }
        let len = (w.remaining() - header).min((range.end - start) as usize);
        frame::write::crypto_header(w, start, len);
        crypto.copy_to(start, &mut w.spare()[..len]);
        w.advance(len);
        crypto.on_sent(&(start..start + len as u64));
        let len = len as u32;
        space.sent.push_frame(SentFrame::Crypto { start, len });
    }
}

/// Stream data until the packet is full or nothing is left. For the last piece, only room is
/// reserved: sealing reads it from where it lies.
fn write_streams(
    streams: &mut Streams,
    sent: &mut SentPackets,
    w: &mut Writer<'_>,
) -> Option<StreamRange> {
    let mut tail: Option<(StreamRange, usize)> = None;
    while let Some((range, fills)) = streams.next_range(w.remaining()) {
        if let Some((previous, at)) = tail.take() {
            // Another frame follows: the previous piece is not a tail, and is copied.
            let place = &mut w.written_mut()[at..at + previous.len as usize];
            streams.copy_head(&previous, place);
        }
        let len = (!fills).then_some(range.len as usize);
        frame::write::stream_header(w, range.id, range.start, len, range.fin);
        if range.len > 0 {
            tail = Some((range, w.len()));
            w.advance(range.len as usize);
        }
        streams.on_sent(&range);
        sent.push_frame(SentFrame::Stream {
            id: range.id,
            start: range.start,
            len: range.len,
            fin: range.fin,
        });
        if fills {
            break;
        }
    }
    tail.map(|(range, _)| range)
}
