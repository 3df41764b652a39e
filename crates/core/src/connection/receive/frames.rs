//! Step 5: the frames of opened packets are processed in order (RFC 9000 §19).

use bytes::Bytes;
use squall_protect::{Outcome, PacketSpan, TAG_LEN};
use squall_wire::{
    Frame, Frames, PacketType, Reader, Side, StreamId, TransportError, TransportErrorCode, frame,
    is_long,
};

use super::Trip;
use crate::config::MAX_NEW_TOKENS;
use crate::connection::Connection;
use crate::connection::parts::log::packet_type;
use crate::error::CloseReason;
use crate::event::{EndpointEvent, Event};
use crate::qlog::Packet;
use crate::space::SpaceId;
use crate::stream::Streams;
use crate::token_store::MAX_TOKEN_LEN;

/// The result of processing a packet's frames.
pub(in crate::connection) struct Taken {
    /// Whether one of them asks for an acknowledgement.
    pub(in crate::connection) ack_eliciting: bool,
    /// Whether the packet is acknowledged at all.
    pub(in crate::connection) acknowledge: bool,
}

const fn violation(frame_type: u64, reason: &'static str) -> TransportError {
    TransportError {
        code: TransportErrorCode::PROTOCOL_VIOLATION,
        frame_type,
        reason,
    }
}

impl Connection {
    /// Processes the packets of a group in order, taking those that continue one stream together.
    pub(super) fn take_packets(
        &mut self,
        bytes: &[u8],
        id: SpaceId,
        mut spans: &[PacketSpan],
        trip: &mut Trip<'_>,
    ) {
        while let Some((span, rest)) = spans.split_first() {
            if id == SpaceId::Data {
                let run = self.take_stream_run(bytes, spans, trip);
                if run > 0 {
                    spans = &spans[run..];
                    continue;
                }
            }
            spans = rest;
            let taken = match span.outcome {
                Outcome::Open => self.take_packet(bytes, id, span, trip),
                Outcome::Forged => self.on_forged(bytes, id, span, trip),
                _ => {
                    self.stats.packets_dropped += 1;
                    continue;
                }
            };
            if let Err(error) = taken {
                self.close_with_error(trip.now, &error);
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
        bytes: &[u8],
        id: SpaceId,
        span: &PacketSpan,
        trip: &mut Trip<'_>,
    ) -> Result<(), TransportError> {
        let now = trip.now;
        if id == SpaceId::Data {
            self.note_key_slot(span, trip)?;
        }
        let start = span.start as usize;
        // RFC 9000 §17.2, §17.3.1: reserved bits are checked only once the packet is authentic.
        let reserved = if is_long(bytes[start]) { 0x0c } else { 0x18 };
        if bytes[start] & reserved != 0 {
            return Err(violation(0, "reserved header bits are set"));
        }
        if !self.spaces[id].received.insert(span.packet_number, now) {
            self.stats.packets_duplicate += 1;
            self.log.packet_dropped(now, id, span.len, "duplicate");
            return Ok(());
        }
        // Not for a duplicate: anyone can repeat a packet, and the idle timer restarts only for
        // processed packets (RFC 9000 §10.1).
        trip.opened = true;
        self.stats.packets_received += 1;
        let payload = start + usize::from(span.header_len)..start + span.len as usize - TAG_LEN;
        let payload = &bytes[payload];
        if let Some(log) = &mut self.log.qlog {
            let packet = Packet {
                ty: received_type(id, trip.early),
                number: span.packet_number,
                len: span.len as usize,
                payload,
            };
            log.packet_received(now, packet);
        }
        let taken = self.take_frames(id, payload, trip)?;
        let received = &mut self.spaces[id].received;
        if trip.new_address && id == SpaceId::Data {
            // RFC 9000 §9.3: only the newest packet moves the connection, not one that was
            // overtaken.
            trip.moved |= received.largest() == Some(span.packet_number) && !is_probing(payload);
        }
        if taken.acknowledge {
            received.note(taken.ack_eliciting, trip.ecn);
            trip.eliciting[id] |= taken.ack_eliciting;
        } else {
            received.leave_out(span.packet_number);
            self.stats.packets_dropped += 1;
        }
        Ok(())
    }

    /// Records under which keys a packet opened: the first under the next keys commits the peer's
    /// key update, which this end follows (RFC 9001 §6.2).
    #[inline]
    pub(super) fn note_key_slot(
        &mut self,
        span: &PacketSpan,
        trip: &Trip<'_>,
    ) -> Result<(), TransportError> {
        let Some(ring) = &mut self.spaces.ring else {
            return Ok(());
        };
        if ring.on_opened(span.slot, span.packet_number) {
            return self.answer_key_update(span.packet_number, trip);
        }
        if ring.previous_keys_lack_end() {
            self.schedule_key_discard(trip.now);
        }
        Ok(())
    }

    #[cold]
    fn answer_key_update(&mut self, number: u64, trip: &Trip<'_>) -> Result<(), TransportError> {
        let next_sent = self.spaces[SpaceId::Data].sent.next_number();
        let Some(ring) = &mut self.spaces.ring else {
            return Ok(());
        };
        if !ring.commit_remote_update(number, next_sent) {
            return Err(TransportError {
                code: TransportErrorCode::KEY_UPDATE_ERROR,
                frame_type: 0,
                reason: "a second key update before the first was acknowledged",
            });
        }
        self.log.key_updated(trip.now, true, ring.updates());
        self.schedule_key_discard(trip.now);
        Ok(())
    }

    /// A packet failed authentication.
    #[cold]
    fn on_forged(
        &mut self,
        bytes: &[u8],
        id: SpaceId,
        span: &PacketSpan,
        trip: &Trip<'_>,
    ) -> Result<(), TransportError> {
        self.stats.packets_forged += 1;
        self.log
            .packet_dropped(trip.now, id, span.len, "decryption_failure");
        self.check_reset(trip.now, &bytes[..(span.start + span.len) as usize]);
        self.spaces.on_forged(id, self.config.integrity_limit)
    }

    /// Processes the frames of one packet in order.
    #[inline]
    pub(in crate::connection) fn take_frames(
        &mut self,
        id: SpaceId,
        payload: &[u8],
        trip: &mut Trip<'_>,
    ) -> Result<Taken, TransportError> {
        // The common packet of a transfer: one STREAM frame without a length fills it.
        if id == SpaceId::Data
            && let Some(&ty) = payload.first()
            && ty & 0xfa == 0x08
            && let Some((id, offset, data)) = stream_to_end(ty, payload)
        {
            let fin = ty & 1 != 0;
            let acknowledge = take_stream(&mut self.streams, id, offset, data, fin)?;
            if trip.early {
                self.streams.note_early(id);
            }
            return Ok(Taken {
                ack_eliciting: true,
                acknowledge,
            });
        }
        self.take_any_frames(id, payload, trip)
    }

    fn take_any_frames(
        &mut self,
        id: SpaceId,
        payload: &[u8],
        trip: &mut Trip<'_>,
    ) -> Result<Taken, TransportError> {
        // RFC 9000 §12.4: a packet without frames.
        if payload.is_empty() {
            return Err(violation(0, "a packet without frames"));
        }
        let mut taken = Taken {
            ack_eliciting: false,
            acknowledge: true,
        };
        let mut crypto = false;
        let mut frames = Frames::new(payload);
        let packet = received_type(id, trip.early);
        while !frames.is_empty() {
            let start = frames.position();
            // Read in place: a copy right after the stores that wrote it stalls, for half the time
            // of a small frame.
            let frame = frames.read();
            let frame = frame.as_ref().map_err(|error| *error)?;
            if packet != PacketType::OneRtt && !frame::allowed(frame.ty(), packet) {
                return Err(violation(
                    frame.ty(),
                    "a frame that this type of packet must not carry",
                ));
            }
            taken.ack_eliciting |= frame.is_ack_eliciting();
            taken.acknowledge &= self.take_frame(id, frame, frames.position() - start, trip)?;
            frames.skip_repeated(frame);
            if trip.early
                && let Frame::Stream { id, .. } = frame
            {
                self.streams.note_early(*id);
            }
            if self.is_closed() {
                return Ok(taken);
            }
            crypto |= matches!(frame, Frame::Crypto { .. });
        }
        if crypto {
            self.read_crypto(id, trip.now)?;
        }
        Ok(taken)
    }

    /// Whether a RETIRE_CONNECTION_ID repeats an earlier one. If a number does, it does so for the
    /// rest of the run, so it is looked up once.
    #[inline]
    fn is_retired_again(&self, sequence: u64, trip: &mut Trip<'_>) -> bool {
        let bit = if sequence < 64 { 1 << sequence } else { 0 };
        if trip.retired & bit != 0 {
            return true;
        }
        let again = self.paths.local_ids.is_repetition(sequence, trip.dcid);
        trip.retired |= if again { bit } else { 0 };
        again
    }

    /// Processes one frame of `size` bytes; `Ok(false)` if the packet is dropped unacknowledged.
    fn take_frame(
        &mut self,
        id: SpaceId,
        frame: &Frame<'_>,
        size: usize,
        trip: &mut Trip<'_>,
    ) -> Result<bool, TransportError> {
        match *frame {
            Frame::Padding(_) | Frame::Ping => {}
            Frame::Ack(ref ack) => self.on_ack(id, ack, trip)?,
            Frame::Crypto { offset, data } => self.on_crypto(id, offset, data)?,
            Frame::Stream {
                id,
                offset,
                fin,
                data,
            } => return take_stream(&mut self.streams, id, offset, data, fin),
            Frame::PathChallenge(data) => self.on_path_challenge(data, trip),
            Frame::PathResponse(data) => self.on_path_response(trip.now, data)?,
            Frame::NewToken { token } => self.on_new_token(token, trip)?,
            Frame::HandshakeDone => {
                // RFC 9000 §19.20.
                if self.side == Side::Server {
                    return Err(violation(frame.ty(), "a HANDSHAKE_DONE from a client"));
                }
                self.confirm_handshake(trip.now);
            }
            Frame::ConnectionClose {
                error_code,
                frame_type,
                reason,
            } => self.drain(trip.now, close_reason(error_code, frame_type, reason)),
            Frame::AckFrequency(ref request) => self.spaces.on_ack_frequency(request)?,
            Frame::ImmediateAck => self.spaces[id].received.ask(),
            Frame::Datagram { data } => self.on_datagram(data, size)?,
            Frame::DataBlocked(_) => self.stats.data_blocked_received += 1,
            Frame::StreamsBlocked { direction, limit } => {
                self.stats.streams_blocked_received += 1;
                self.streams.on_peer_blocked(direction, limit);
            }
            // Thousands may fit into a packet.
            Frame::RetireConnectionId { sequence } if self.is_retired_again(sequence, trip) => {}
            Frame::NewConnectionId { .. } | Frame::RetireConnectionId { .. } => {
                let expires = trip.now + self.linger();
                let (dcid, endpoint) = (trip.dcid, &mut self.endpoint);
                let taken = self.paths.take_id_frame(frame, dcid, expires, endpoint);
                taken.map_err(offence(frame.ty()))?;
            }
            _ => {
                let blocked = matches!(frame, Frame::StreamDataBlocked { .. });
                self.stats.stream_data_blocked_received += u64::from(blocked);
                let taken = take_stream_control(&mut self.streams, frame);
                taken.map_err(offence(frame.ty()))?;
            }
        }
        Ok(true)
    }

    /// Processes a NEW_TOKEN frame (RFC 9000 §19.7).
    #[cold]
    fn on_new_token(&mut self, token: &[u8], trip: &mut Trip<'_>) -> Result<(), TransportError> {
        if self.side == Side::Server {
            return Err(violation(frame::ty::NEW_TOKEN, "a NEW_TOKEN from a client"));
        }
        // More tokens than our own servers ever issue are useless: a packet could hold hundreds.
        if token.len() <= MAX_TOKEN_LEN && trip.tokens < MAX_NEW_TOKENS {
            trip.tokens += 1;
            self.endpoint.events.push_back(EndpointEvent::NewToken {
                version: self.handshake.version,
                token: token.into(),
            });
        }
        Ok(())
    }

    /// Processes a DATAGRAM frame of `size` bytes, with its type and length.
    fn on_datagram(&mut self, data: &[u8], size: usize) -> Result<(), TransportError> {
        // RFC 9221 §3.
        if size as u64 > self.config.accepted_datagram_frame() {
            return Err(violation(
                frame::ty::DATAGRAM,
                "a DATAGRAM frame larger than max_datagram_frame_size",
            ));
        }
        let limit = self.config.datagram_receive_buffer;
        let pool = &mut self.streams.pool;
        self.stats.datagram_frames_dropped += self.datagrams.receive(data, limit, pool);
        self.stats.datagram_frames_received += 1;
        if !std::mem::replace(&mut self.datagrams.reader_told, true) {
            self.streams.events.push_back(Event::DatagramsReadable);
        }
        Ok(())
    }
}

/// The error for an invalid frame of this type.
fn offence(frame_type: u64) -> impl Fn((TransportErrorCode, &'static str)) -> TransportError {
    move |(code, reason)| TransportError {
        code,
        frame_type,
        reason,
    }
}

/// Processes a STREAM frame; `Ok(false)` if the packet is dropped unacknowledged.
#[inline]
fn take_stream(
    streams: &mut Streams,
    id: StreamId,
    offset: u64,
    data: &[u8],
    fin: bool,
) -> Result<bool, TransportError> {
    let taken = streams.on_stream(id, offset, data, fin);
    taken.map_err(|code| TransportError {
        code,
        frame_type: 0x08,
        reason: "a STREAM frame against the stream's state or limits",
    })
}

/// Processes a frame about a stream that carries none of its data.
#[inline(never)]
fn take_stream_control(
    streams: &mut Streams,
    frame: &Frame<'_>,
) -> Result<(), (TransportErrorCode, &'static str)> {
    let against = |reason| move |code| (code, reason);
    match *frame {
        Frame::MaxData(limit) => streams.on_max_data(limit),
        Frame::MaxStreams { direction, maximum } => streams.on_max_streams(direction, maximum),
        Frame::MaxStreamData { id, maximum } => streams
            .on_max_stream_data(id, maximum)
            .map_err(against("a MAX_STREAM_DATA for no stream to send on"))?,
        Frame::StreamDataBlocked { id, .. } => streams
            .on_stream_data_blocked(id)
            .map_err(against("a STREAM_DATA_BLOCKED for no stream to receive on"))?,
        Frame::StopSending { id, error_code } => streams
            .on_stop_sending(id, error_code)
            .map_err(against("a STOP_SENDING for no stream to stop"))?,
        Frame::ResetStream {
            id,
            error_code,
            final_size,
        } => streams
            .on_reset(id, error_code, final_size, 0)
            .map_err(against(
                "a RESET_STREAM against the stream's state or limits",
            ))?,
        Frame::ResetStreamAt {
            id,
            error_code,
            final_size,
            reliable_size,
        } => streams
            .on_reset(id, error_code, final_size, reliable_size)
            .map_err(against(
                "a RESET_STREAM_AT against the stream's state or limits",
            ))?,
        _ => {}
    }
    Ok(())
}

/// The reason in the peer's CONNECTION_CLOSE.
fn close_reason(code: u64, frame_type: Option<u64>, reason: &[u8]) -> CloseReason {
    match frame_type {
        Some(_) => CloseReason::Transport {
            code: TransportErrorCode(code),
            reason: String::from_utf8_lossy(reason).into_owned(),
            remote: true,
        },
        None => CloseReason::Application {
            code,
            reason: Bytes::copy_from_slice(reason),
            remote: true,
        },
    }
}

/// The type of a received packet; `early`: it is a 0-RTT packet.
const fn received_type(id: SpaceId, early: bool) -> PacketType {
    match id {
        SpaceId::Data if early => PacketType::ZeroRtt,
        _ => packet_type(id),
    }
}

/// Whether an already processed packet held only probing frames (RFC 9000 §9.1). Called only for
/// packets from elsewhere.
#[cold]
fn is_probing(payload: &[u8]) -> bool {
    Frames::new(payload).flatten().all(|frame| {
        matches!(
            frame,
            Frame::PathChallenge(_)
                | Frame::PathResponse(_)
                | Frame::NewConnectionId { .. }
                | Frame::Padding(_)
        )
    })
}

/// The fields of a STREAM frame without a length (RFC 9000 §19.8); `None` leaves the error to the
/// full parser.
#[inline]
pub(super) fn stream_to_end(ty: u8, payload: &[u8]) -> Option<(StreamId, u64, &[u8])> {
    let mut reader = Reader::new(payload.get(1..)?);
    let id = StreamId(reader.varint().ok()?);
    let offset = if ty & 0x04 == 0 {
        0
    } else {
        reader.varint().ok()?
    };
    let data = reader.rest();
    (offset + data.len() as u64 <= squall_wire::varint::MAX).then_some((id, offset, data))
}
