//! Received frames: one match (RFC 9000 §19).

use std::time::Duration;

use bytes::Bytes;
use squall_wire::{
    AckFrequency, Frame, Frames, PacketType, Reader, Side, StreamId, TransportError,
    TransportErrorCode, frame,
};

use super::Connection;
use super::receive::Trip;
use crate::config::{MAX_NEW_TOKENS, MIN_ACK_DELAY};
use crate::error::CloseReason;
use crate::event::EndpointEvent;
use crate::space::SpaceId;
use crate::space::received::AckPolicy;
use crate::time::Time;
use crate::token_store::MAX_TOKEN_LEN;

/// What the frames of a packet came to.
pub(super) struct Taken {
    /// Whether one of them asks for an acknowledgement.
    pub(super) ack_eliciting: bool,
    /// Whether the packet is to be acknowledged at all.
    pub(super) acknowledge: bool,
}

const fn packet_type(id: SpaceId, early: bool) -> PacketType {
    match id {
        SpaceId::Initial => PacketType::Initial,
        SpaceId::Handshake => PacketType::Handshake,
        SpaceId::Data if early => PacketType::ZeroRtt,
        SpaceId::Data => PacketType::OneRtt,
    }
}

const fn violation(frame_type: u64, reason: &'static str) -> TransportError {
    TransportError {
        code: TransportErrorCode::PROTOCOL_VIOLATION,
        frame_type,
        reason,
    }
}

impl Connection {
    /// Takes the frames of one opened packet, in order.
    #[inline]
    pub(super) fn take_frames(
        &mut self,
        id: SpaceId,
        payload: &[u8],
        now: Time,
        trip: &mut Trip,
    ) -> Result<Taken, TransportError> {
        // The common packet of a transfer: one STREAM frame without a length fills it.
        if id == SpaceId::Data
            && let Some(&ty) = payload.first()
            && ty & 0xfa == 0x08
            && let Some((id, offset, data)) = stream_to_end(ty, payload)
        {
            let fin = ty & 1 != 0;
            let acknowledge = self.take_stream(id, offset, data, fin)?;
            if trip.early {
                self.streams.note_early(id);
            }
            return Ok(Taken {
                ack_eliciting: true,
                acknowledge,
            });
        }
        self.take_any_frames(id, payload, now, trip)
    }

    fn take_any_frames(
        &mut self,
        id: SpaceId,
        payload: &[u8],
        now: Time,
        trip: &mut Trip,
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
        let packet = packet_type(id, trip.early);
        while !frames.is_empty() {
            // Looked at where it is: a copy right behind the stores that made it stalls, for half the time of a small frame.
            let frame = frames.read();
            let frame = frame.as_ref().map_err(|error| *error)?;
            if packet != PacketType::OneRtt && !frame::allowed(frame.ty(), packet) {
                return Err(violation(
                    frame.ty(),
                    "a frame that this type of packet must not carry",
                ));
            }
            taken.ack_eliciting |= frame.is_ack_eliciting();
            taken.acknowledge &= self.take_frame(id, frame, now, trip)?;
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
            self.read_crypto(id, now)?;
        }
        Ok(taken)
    }

    fn take_stream(
        &mut self,
        id: StreamId,
        offset: u64,
        data: &[u8],
        fin: bool,
    ) -> Result<bool, TransportError> {
        self.streams
            .on_stream(id, offset, data, fin)
            .map_err(|code| TransportError {
                code,
                frame_type: 0x08,
                reason: "a STREAM frame against the stream's state or limits",
            })
    }

    /// Takes one frame; `Ok(false)` if the packet must be dropped unacknowledged.
    fn take_frame(
        &mut self,
        id: SpaceId,
        frame: &Frame<'_>,
        now: Time,
        trip: &mut Trip,
    ) -> Result<bool, TransportError> {
        let ty = frame.ty();
        let coded = |reason| {
            move |code| TransportError {
                code,
                frame_type: ty,
                reason,
            }
        };
        match *frame {
            Frame::Padding(_) | Frame::Ping => {}
            Frame::DataBlocked(_) => self.stats.data_blocked_received += 1,
            Frame::StreamsBlocked { .. } => self.stats.streams_blocked_received += 1,
            Frame::Ack(ref ack) => self.on_ack(id, ack, now, trip)?,
            Frame::Crypto { offset, data } => self.on_crypto(id, offset, data)?,
            Frame::Stream {
                id,
                offset,
                fin,
                data,
            } => return self.take_stream(id, offset, data, fin),
            Frame::ResetStream {
                id,
                error_code,
                final_size,
            } => self
                .streams
                .on_reset(id, error_code, final_size, 0)
                .map_err(coded("a RESET_STREAM against the stream's state or limits"))?,
            Frame::StopSending { id, error_code } => {
                self.streams
                    .on_stop_sending(id, error_code)
                    .map_err(coded("a STOP_SENDING for no stream to stop"))?;
            }
            Frame::MaxData(limit) => self.streams.on_max_data(limit),
            Frame::MaxStreamData { id, maximum } => self
                .streams
                .on_max_stream_data(id, maximum)
                .map_err(coded("a MAX_STREAM_DATA for no stream to send on"))?,
            Frame::MaxStreams { direction, maximum } => {
                self.streams.on_max_streams(direction, maximum);
            }
            Frame::StreamDataBlocked { id, .. } => {
                self.stats.stream_data_blocked_received += 1;
                self.streams
                    .on_stream_data_blocked(id)
                    .map_err(coded("a STREAM_DATA_BLOCKED for no stream to receive on"))?;
            }
            Frame::NewConnectionId {
                sequence,
                retire_prior_to,
                id,
                reset_token,
            } => {
                self.remote_ids
                    .on_new(sequence, retire_prior_to, id, reset_token)
                    .map_err(coded(
                        "a NEW_CONNECTION_ID against the limits or an earlier one",
                    ))?;
                self.note_tokens();
            }
            Frame::RetireConnectionId { sequence } => self.on_retire(sequence, trip).map_err(
                coded("a RETIRE_CONNECTION_ID for an id not issued or in use"),
            )?,
            Frame::PathChallenge(data) => self.on_path_challenge(now, data, trip),
            Frame::PathResponse(data) => self.on_path_response(now, data)?,
            Frame::NewToken { token } => {
                // RFC 9000 §19.7.
                if self.side == Side::Server {
                    return Err(violation(ty, "a NEW_TOKEN from a client"));
                }
                if token.is_empty() {
                    return Err(coded("an empty token")(
                        TransportErrorCode::FRAME_ENCODING_ERROR,
                    ));
                }
                // More than a server of ours ever gives are of no use: a packet could hold hundreds.
                if token.len() <= MAX_TOKEN_LEN && trip.tokens < MAX_NEW_TOKENS {
                    trip.tokens += 1;
                    self.endpoint_events.push_back(EndpointEvent::NewToken {
                        version: self.version,
                        token: token.into(),
                    });
                }
            }
            Frame::HandshakeDone => {
                // RFC 9000 §19.20.
                if self.side == Side::Server {
                    return Err(violation(ty, "a HANDSHAKE_DONE from a client"));
                }
                self.confirm_handshake(now);
            }
            Frame::ConnectionClose {
                error_code,
                frame_type,
                reason,
            } => self.on_close(error_code, frame_type, reason, now),
            Frame::ResetStreamAt {
                id,
                error_code,
                final_size,
                reliable_size,
            } => self
                .streams
                .on_reset(id, error_code, final_size, reliable_size)
                .map_err(coded(
                    "a RESET_STREAM_AT against the stream's state or limits",
                ))?,
            Frame::AckFrequency(ref request) => self.on_ack_frequency(request)?,
            Frame::ImmediateAck => self.spaces[id as usize].received.ask(),
            Frame::Datagram { data } => self.on_datagram(ty, data)?,
        }
        Ok(true)
    }

    /// draft-ietf-quic-ack-frequency §4.
    fn on_ack_frequency(&mut self, request: &AckFrequency) -> Result<(), TransportError> {
        let delay = Duration::from_micros(request.max_ack_delay_us);
        if delay < MIN_ACK_DELAY || delay >= Duration::from_millis(1 << 14) {
            return Err(violation(
                frame::ty::ACK_FREQUENCY,
                "a max_ack_delay out of bounds",
            ));
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

    fn on_retire(&mut self, sequence: u64, trip: &Trip) -> Result<(), TransportErrorCode> {
        if let Some(id) = self.local_ids.retire(sequence)? {
            // RFC 9000 §19.16: the id under which the frame itself came cannot be retired by it.
            if id == trip.dcid {
                return Err(TransportErrorCode::PROTOCOL_VIOLATION);
            }
            self.endpoint_events.push_back(EndpointEvent::RemoveId(id));
            self.issue_ids();
        }
        Ok(())
    }

    fn on_close(&mut self, code: u64, frame_type: Option<u64>, reason: &[u8], now: Time) {
        let reason = match frame_type {
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
        };
        self.drain(now, reason);
    }
}

/// Whether all frames of a packet, which has been taken, are probing frames (RFC 9000 §9.1). Asked of packets from elsewhere only.
#[cold]
pub(super) fn is_probing(payload: &[u8]) -> bool {
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

/// The fields of a STREAM frame without a length (RFC 9000 §19.8); `None` leaves the error to the full parser.
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
