//! Datagrams of the handshake and of the end: packets with long headers, coalesced (RFC 9000 §12.2, §10.2.3).

use squall_protect::{Outcome, PacketSpan, TAG_LEN};
use squall_wire::{LongType, PacketType, Side, Transmit, Writer, frame, header, packet_number};

use super::bundle::FILL;
use super::log::packet_type;
use super::transmit::Written;
use super::{Connection, State};
use crate::config::{MIN_PROTECTED, MIN_UDP_PAYLOAD};
use crate::qlog::Packet;
use crate::space::SpaceId;
use crate::stages::{Stage, Stages};
use crate::time::Time;

/// A packet written and not yet sealed.
#[derive(Clone, Copy)]
struct Draft {
    space: SpaceId,
    start: usize,
    header_len: usize,
    pn_len: usize,
    number: u64,
    /// Where the Length field of a long header lies.
    length: Option<header::LengthOffset>,
    /// Bytes written from `start` on, the tail included, without the tag.
    len: usize,
    ack_eliciting: bool,
    in_flight: bool,
    first_frame: u64,
}

impl Connection {
    /// Whether Initial or Handshake packets are due.
    pub(super) fn handshake_wants(&self, now: Time) -> bool {
        [SpaceId::Initial, SpaceId::Handshake]
            .into_iter()
            .any(|id| {
                let space = &self.spaces[id as usize];
                space.keys.is_some()
                    && (space.crypto_send.wants_to_send()
                        || space.probes > 0
                        || (space.received.must_ack(now) && self.may_acknowledge(id)))
            })
    }

    /// One datagram of coalesced packets (RFC 9000 §12.2), padded where it holds an Initial (§14.1).
    pub(super) fn transmit_handshake(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        stages: &mut Stages,
    ) -> Option<Transmit> {
        // RFC 9000 §14.1: an Initial that asks for an acknowledgement fills 1200 bytes; with less allowance (§8.1) or
        // room than that it waits.
        let limit = usize::from(MIN_UDP_PAYLOAD);
        if buffer.len() < limit || self.path.allowance() < limit as u64 {
            return None;
        }
        let mut drafts: [Option<Draft>; 3] = [None; 3];
        let (mut at, mut pad) = (0, false);
        let announces_version = std::mem::take(&mut self.announces_version);
        for id in SpaceId::ALL {
            // The first packet of a changed version only acknowledges, alone in its datagram. picoquic installs the new keys when
            // it sees that packet and acknowledges number 0 without having opened it: a ServerHello in there would be lost for good.
            if announces_version && id != SpaceId::Initial {
                break;
            }
            let Some(draft) = self.draft(id, now, &mut buffer[..limit], at, announces_version)
            else {
                continue;
            };
            at = draft.start + draft.len + TAG_LEN;
            // RFC 9000 §14.1: every Initial of a client, ack-eliciting ones of a server.
            pad |= id == SpaceId::Initial && (self.side == Side::Client || draft.ack_eliciting);
            drafts[id as usize] = Some(draft);
        }
        let last = drafts.iter_mut().flatten().last()?;
        if pad && at < limit {
            let end = last.start + last.len;
            buffer[end..end + (limit - at)].fill(0);
            last.len += limit - at;
            last.in_flight = true;
            at = limit;
        }
        stages.mark(Stage::PacketBuilding);
        for draft in drafts.into_iter().flatten() {
            self.seal_draft(now, &draft, buffer);
        }
        stages.mark(Stage::Aead);
        // RFC 9001 §4.9.1: a client drops Initial keys with its first Handshake packet.
        if self.side == Side::Client && drafts[SpaceId::Handshake as usize].is_some() {
            self.discard_space(SpaceId::Initial, now);
        }
        self.set_loss_timer(now);
        Some(self.transmit_of(at, at))
    }

    /// Writes one packet of a handshake datagram at `start`, without its tag.
    fn draft(
        &mut self,
        id: SpaceId,
        now: Time,
        buffer: &mut [u8],
        start: usize,
        ack_only: bool,
    ) -> Option<Draft> {
        let window_open = self.path.flow.bytes_in_flight < self.path.flow.congestion.window();
        let space = &self.spaces[id as usize];
        let zero_rtt = id == SpaceId::Data && self.sends_zero_rtt();
        let ready = match id {
            // 1-RTT packets ride along for the client's first data only once TLS is done with the server.
            SpaceId::Data if self.side == Side::Client => {
                zero_rtt || (self.ring.is_some() && matches!(self.state, State::Established))
            }
            SpaceId::Data => self.ring.is_some(),
            _ => space.keys.is_some(),
        };
        if !ready {
            return None;
        }
        let wants = space.crypto_send.wants_to_send() || (id == SpaceId::Data && self.wants_data());
        let ack_only = ack_only || !(space.probes > 0 || (window_open && wants));
        if ack_only && !(space.received.may_ack() && self.may_acknowledge(id)) {
            return None;
        }
        let number = space.sent.next_number();
        let pn_len = packet_number::encoded_len(number, space.largest_acked).max(2);
        let (dcid, scid) = (self.remote_ids.current(), self.local_ids.current());
        let token_len = (id == SpaceId::Initial).then_some(self.token.len());
        let header_len = match id {
            SpaceId::Data if !zero_rtt => 1 + dcid.len() + pn_len,
            _ => header::long_header_size(dcid.len(), scid.len(), token_len, pn_len),
        };
        let room = buffer.len().checked_sub(start)?;
        if room < header_len + MIN_PROTECTED + FILL + TAG_LEN {
            return None;
        }
        let end = buffer.len() - TAG_LEN;
        let mut w = Writer::new(&mut buffer[start..end]);
        let length = self.write_header(id, number, pn_len, &mut w);
        let first_frame = self.spaces[id as usize].sent.frame_mark();
        let contents = self.write_frames(id, now, &mut w, true, ack_only);
        if w.len() == header_len {
            return None;
        }
        let short = (MIN_PROTECTED + header_len - pn_len).saturating_sub(w.len());
        frame::write::padding(&mut w, short);
        let len = w.len();
        if let Some(tail) = contents.tail {
            // Few bytes, in a packet whose end may yet be padded: copied.
            let at = start + len - tail.len as usize;
            self.streams.copy_head(&tail, &mut buffer[at..start + len]);
        }
        // The packet's number is taken now, its size is known when the datagram is complete.
        let (ack_eliciting, in_flight) = (contents.ack_eliciting, contents.in_flight);
        Some(Draft {
            space: id,
            start,
            header_len,
            pn_len,
            number,
            length,
            len,
            ack_eliciting,
            in_flight,
            first_frame,
        })
    }

    /// Writes a packet's header; where the Length field lies, if its form has one.
    fn write_header(
        &self,
        id: SpaceId,
        number: u64,
        pn_len: usize,
        w: &mut Writer<'_>,
    ) -> Option<header::LengthOffset> {
        let (dcid, scid) = (self.remote_ids.current(), self.local_ids.current());
        let mut version = self.version;
        let (ty, token) = match id {
            SpaceId::Data if self.sends_zero_rtt() => {
                // RFC 9369 §4.1.
                version = self.original_version;
                (LongType::ZeroRtt, &[][..])
            }
            SpaceId::Initial => (LongType::Initial, &self.token[..]),
            SpaceId::Handshake => (LongType::Handshake, &[][..]),
            SpaceId::Data => {
                let ring = self.ring.as_ref();
                let phase = ring.is_some_and(super::keyring::KeyRing::phase);
                let spin = self.path.spin.value();
                header::write_short(w, &dcid, spin, phase, number, pn_len);
                return None;
            }
        };
        let length = header::write_long(w, ty, version, &dcid, &scid, token, number, pn_len);
        Some(length)
    }

    fn seal_draft(&mut self, now: Time, draft: &Draft, buffer: &mut [u8]) {
        let size = draft.len + TAG_LEN;
        if let Some(length) = draft.length {
            header::patch_length(
                &mut buffer[draft.start..],
                length,
                size - (draft.header_len - draft.pn_len),
            );
        }
        if self.qlog.is_some() {
            let packet = Packet {
                ty: match draft.space {
                    SpaceId::Data if self.ring.is_none() => PacketType::ZeroRtt,
                    space => packet_type(space),
                },
                number: draft.number,
                len: size,
                payload: &buffer[draft.start + draft.header_len..draft.start + draft.len],
            };
            self.log_sent(now, packet, false);
        }
        let counted = if draft.in_flight { size as u16 } else { 0 };
        let space = &mut self.spaces[draft.space as usize];
        space.sent.push(
            now,
            counted,
            draft.ack_eliciting,
            self.path.flow.tag,
            true,
            draft.first_frame,
        );
        space.probes = space.probes.saturating_sub(1);
        let contents = Written {
            ack_eliciting: draft.ack_eliciting,
            in_flight: draft.in_flight,
            tail: None,
        };
        self.note_sent(draft.space, now, &contents, u64::from(counted));
        let mut span = PacketSpan::new(
            draft.start as u32,
            size as u32,
            (draft.header_len - draft.pn_len) as u16,
        );
        (span.header_len, span.packet_number) = (draft.header_len as u16, draft.number);
        self.seal_one(draft.space, buffer, span);
        self.stats.packets_sent += 1;
    }

    fn seal_one(&mut self, id: SpaceId, buffer: &mut [u8], span: PacketSpan) {
        let mut spans = [span];
        self.spaces[id as usize].sent.check_sealed(&spans);
        match (&mut self.ring, &mut self.spaces[id as usize].keys) {
            (Some(ring), _) if id == SpaceId::Data => {
                ring.local.seal(&ring.local_header, buffer, &mut spans, &[]);
                ring.on_sealed(1);
            }
            (_, Some(keys)) => keys
                .local
                .packet
                .seal(&keys.local.header, buffer, &mut spans, &[]),
            _ => return,
        }
        self.stats.seal_calls += 1;
        debug_assert!(
            spans[0].outcome == Outcome::Open,
            "what is written here can be sealed"
        );
    }

    /// CONNECTION_CLOSE at every level that the peer may be able to open (RFC 9000 §10.2.3).
    pub(super) fn transmit_close(&mut self, now: Time, buffer: &mut [u8]) -> Option<Transmit> {
        let State::Closing(close) = &mut self.state else {
            return None;
        };
        close.due = false;
        let (code, frame_type, reason) = (close.code, close.frame_type, close.reason.clone());
        let limit = usize::from(MIN_UDP_PAYLOAD)
            .min(buffer.len())
            .min(usize::try_from(self.path.allowance()).unwrap_or(usize::MAX));
        let (dcid, scid) = (self.remote_ids.current(), self.local_ids.current());
        let mut at = 0;
        for id in SpaceId::ALL {
            let ready = if id == SpaceId::Data {
                self.ring.is_some()
            } else {
                self.spaces[id as usize].keys.is_some()
            };
            let needed = 64 + dcid.len() + scid.len() + self.token.len() + TAG_LEN;
            if !ready || limit < at + needed {
                continue;
            }
            // RFC 9000 §10.2.3: an application's code and words do not go out before the handshake is done.
            let hidden = frame_type.is_none() && id != SpaceId::Data;
            let (code, frame_type) = if hidden {
                (0x0c, Some(0))
            } else {
                (code, frame_type)
            };
            let number = self.spaces[id as usize].sent.next_number();
            let pn_len = 4;
            let mut w = Writer::new(&mut buffer[at..limit - TAG_LEN]);
            let length = self.write_header(id, number, pn_len, &mut w);
            let header_len = w.len();
            let room = w.remaining().saturating_sub(24);
            let words = if hidden {
                &[][..]
            } else {
                &reason[..reason.len().min(room)]
            };
            frame::write::connection_close(&mut w, code, frame_type, words);
            if id == SpaceId::Initial && self.side == Side::Client {
                let rest = w.remaining();
                frame::write::padding(&mut w, rest);
            }
            let size = w.len() + TAG_LEN;
            if let Some(length) = length {
                header::patch_length(&mut buffer[at..], length, size - (header_len - pn_len));
            }
            if self.qlog.is_some() {
                let packet = Packet {
                    ty: packet_type(id),
                    number,
                    len: size,
                    payload: &buffer[at + header_len..at + size - TAG_LEN],
                };
                self.log_sent(now, packet, false);
            }
            self.stats.packets_sent += 1;
            let sent = &mut self.spaces[id as usize].sent;
            let mark = sent.frame_mark();
            sent.push(now, 0, false, 0, false, mark);
            let mut span = PacketSpan::new(at as u32, size as u32, (header_len - pn_len) as u16);
            (span.header_len, span.packet_number) = (header_len as u16, number);
            self.seal_one(id, buffer, span);
            at += size;
        }
        (at > 0).then(|| self.transmit_of(at, at))
    }
}
