//! Handshake datagrams: packets with long headers, coalesced (RFC 9000 §12.2).

use squall_protect::TAG_LEN;
use squall_wire::{LongType, Side, Transmit};

use super::packet::{Accounting, Draft, Header, PacketWriter, ShortHeader};
use super::run::FILL;
use crate::config::{MIN_PROTECTED, MIN_UDP_PAYLOAD};
use crate::connection::{Connection, State};
use crate::space::SpaceId;
use crate::stages::{Stage, Stages};
use crate::time::Time;

impl Connection {
    /// Whether a datagram with a 0-RTT packet is due.
    pub(super) fn early_data_wants(&self) -> bool {
        self.spaces.send_zero_rtt(self.side)
            && matches!(self.state, State::Handshaking)
            && self.wants_data()
            && !self.paths.active.flow.is_full()
    }

    /// One datagram of coalesced packets, padded if it holds an Initial (RFC 9000 §14.1).
    pub(super) fn transmit_flight(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        stages: &mut Stages,
    ) -> Option<Transmit> {
        // RFC 9000 §14.1: an ack-eliciting Initial fills 1200 bytes; with less allowance (§8.1) or
        // room it waits.
        let limit = usize::from(MIN_UDP_PAYLOAD);
        if buffer.len() < limit || self.paths.active.allowance() < limit as u64 {
            return None;
        }
        let mut drafts: [Option<(SpaceId, Draft)>; 3] = [None; 3];
        let (mut at, mut pad) = (0, false);
        let announces_version = self.handshake.take_announcement();
        for (id, slot) in SpaceId::ALL.into_iter().zip(&mut drafts) {
            // The first packet of a changed version only acknowledges, alone in its datagram.
            // picoquic installs the new keys when it sees that packet and acknowledges number 0
            // without having opened it: a ServerHello in there would be lost for good.
            if announces_version && id != SpaceId::Initial {
                break;
            }
            let datagram = &mut buffer[..limit];
            let Some(draft) = self.draft(id, now, datagram, at, announces_version) else {
                continue;
            };
            at = draft.end();
            // RFC 9000 §14.1: every Initial of a client, ack-eliciting ones of a server.
            pad |= id == SpaceId::Initial
                && (self.side == Side::Client || draft.accounting.ack_eliciting);
            pad |= self.config.pad_to_mtu && id == SpaceId::Data && draft.accounting.ack_eliciting;
            *slot = Some((id, draft));
        }
        let (_, last) = drafts.iter_mut().flatten().last()?;
        if pad && at < limit {
            let end = last.end() - TAG_LEN;
            buffer[end..end + (limit - at)].fill(0);
            last.len += (limit - at) as u32;
            last.accounting.in_flight = true;
            at = limit;
        }
        stages.mark(Stage::PacketBuilding);
        let mut wrote_handshake = false;
        for (id, draft) in drafts.into_iter().flatten() {
            let span = self.book_single(now, &draft, buffer);
            self.seal_one(id, buffer, span);
            let space = &mut self.spaces[id];
            space.probes = space.probes.saturating_sub(1);
            wrote_handshake |= id == SpaceId::Handshake;
        }
        stages.mark(Stage::Aead);
        // RFC 9001 §4.9.1: a client drops Initial keys with its first Handshake packet.
        if self.side == Side::Client && wrote_handshake {
            self.discard_space(SpaceId::Initial, now);
        }
        self.set_loss_timer(now);
        Some(self.paths.transmit(at, at))
    }

    /// Writes one packet of a handshake datagram at `start`.
    fn draft(
        &mut self,
        id: SpaceId,
        now: Time,
        datagram: &mut [u8],
        start: usize,
        ack_only: bool,
    ) -> Option<Draft> {
        let space = &self.spaces[id];
        let ready = match id {
            // 1-RTT packets go along for the client's first data only once TLS is done with the
            // server.
            SpaceId::Data if self.side == Side::Client => {
                let established = matches!(self.state, State::Established);
                self.spaces.send_zero_rtt(self.side) || (self.spaces.ring.is_some() && established)
            }
            _ => self.spaces.has_keys(id),
        };
        if !ready {
            return None;
        }
        let wants = space.crypto_send.wants_to_send() || (id == SpaceId::Data && self.wants_data());
        let window_open = !self.paths.active.flow.is_full();
        let ack_only = ack_only || !(space.probes > 0 || (window_open && wants));
        if ack_only && !(space.received.may_ack() && self.spaces.may_acknowledge(id)) {
            return None;
        }
        let (number, pn_len) = self.spaces.next_number(id);
        let header = self.flight_header(id, pn_len);
        let least = header.len() + MIN_PROTECTED + FILL + TAG_LEN;
        if datagram.len().checked_sub(start)? < least {
            return None;
        }
        let place = start..datagram.len();
        let (packet, mut w) = PacketWriter::begin(datagram, place, id, &header, number, space);
        let contents = self.write_frames(id, now, &mut w, true, ack_only);
        if packet.is_empty(&w) {
            return None;
        }
        packet.pad_for_sample(&mut w);
        let accounting = Accounting {
            ack_eliciting: contents.ack_eliciting,
            in_flight: contents.in_flight,
            window_limited: true,
            is_mtu_probe: false,
        };
        let draft = packet.finish(&w, accounting);
        if let Some(tail) = contents.tail {
            // Few bytes, in a packet whose end may still be padded: copied.
            let end = draft.end() - TAG_LEN;
            let place = &mut datagram[end - tail.len as usize..end];
            self.streams.copy_head(&tail, place);
        }
        Some(draft)
    }

    /// The header of a packet in a datagram of the handshake, or of the close.
    pub(super) fn flight_header(&self, id: SpaceId, pn_len: usize) -> Header<'_> {
        let (dcid, scid) = (
            self.paths.remote_ids.current(),
            self.paths.local_ids.current(),
        );
        let version = self.handshake.version;
        let (ty, version, token) = match id {
            SpaceId::Initial => (LongType::Initial, version, self.handshake.token()),
            SpaceId::Handshake => (LongType::Handshake, version, &[][..]),
            SpaceId::Data if self.spaces.send_zero_rtt(self.side) => {
                // RFC 9369 §4.1.
                let original = self.handshake.original_version();
                (LongType::ZeroRtt, original, &[][..])
            }
            SpaceId::Data => {
                let spin = self.paths.active.spin.value();
                return Header::Short(ShortHeader {
                    pn_len,
                    ..self.short_header(dcid, spin)
                });
            }
        };
        Header::Long {
            ty,
            version,
            dcid,
            scid,
            token,
            pn_len,
        }
    }
}
