//! The last datagrams: CONNECTION_CLOSE at every level that the peer may be able to open (RFC 9000
//! §10.2.3).

use squall_protect::TAG_LEN;
use squall_wire::{Side, Transmit, frame};

use super::packet::{Accounting, PacketWriter};
use crate::config::MIN_UDP_PAYLOAD;
use crate::connection::close::Closing;
use crate::connection::{Connection, State};
use crate::space::SpaceId;
use crate::time::Time;

/// Bytes of the packet numbers: no acknowledgement is awaited.
const PN_LEN: usize = 4;
/// Bytes of a CONNECTION_CLOSE frame and a long header, excluding ids, token and reason.
const OVERHEAD: usize = 64;
/// APPLICATION_ERROR, for a code that an application must not reveal yet (RFC 9000 §10.2.3).
const APPLICATION_ERROR: u64 = 0x0c;

impl Connection {
    /// One datagram that says why the connection is closed; the same one is sent every time.
    pub(super) fn transmit_close(&mut self, now: Time, buffer: &mut [u8]) -> Option<Transmit> {
        let State::Closing(close) = &mut self.state else {
            return None;
        };
        close.due = false;
        if let Some(Closing { datagram, .. }) = &close.sent {
            let again = buffer.get_mut(..datagram.len())?;
            again.copy_from_slice(datagram);
            return Some(self.paths.transmit(again.len(), again.len()));
        }
        let (code, frame_type, reason) = (close.code, close.frame_type, close.reason.clone());
        let limit = usize::from(MIN_UDP_PAYLOAD)
            .min(buffer.len())
            .min(usize::try_from(self.paths.active.allowance()).unwrap_or(usize::MAX));
        let ids = self.paths.remote_ids.current().len() + self.paths.local_ids.current().len();
        let needed = OVERHEAD + ids + self.handshake.token().len() + TAG_LEN;
        let mut at = 0;
        for id in SpaceId::ALL {
            if !self.spaces.has_keys(id) || limit < at + needed {
                continue;
            }
            let number = self.spaces[id].sent.next_number();
            let header = self.flight_header(id, PN_LEN);
            let space = &self.spaces[id];
            let (packet, mut w) =
                PacketWriter::begin(buffer, at..limit, id, &header, number, space);
            // RFC 9000 §10.2.3: an application's code and reason are not sent before the handshake
            // is complete.
            if frame_type.is_none() && id != SpaceId::Data {
                frame::write::connection_close(&mut w, APPLICATION_ERROR, Some(0), &[]);
            } else {
                let room = w.remaining().saturating_sub(24);
                let words = &reason[..reason.len().min(room)];
                frame::write::connection_close(&mut w, code, frame_type, words);
            }
            if id == SpaceId::Initial && self.side == Side::Client {
                PacketWriter::fill(&mut w);
            }
            let draft = packet.finish(&w, Accounting::UNCOUNTED);
            at = draft.end();
            let span = self.book_single(now, &draft, buffer);
            self.seal_one(id, buffer, span);
        }
        let transmit = (at > 0).then(|| self.paths.transmit(at, at))?;
        if let State::Closing(close) = &mut self.state {
            close.sent = Some(Closing::new(transmit.path.remote, &buffer[..at]));
        }
        Some(transmit)
    }
}
