//! Early data (RFC 9001 §4.6): what a client sends in 0-RTT packets, before the handshake, with what it remembers of an
//! earlier connection.
//!
//! It is off unless asked for: with `enable_early_data` of the client's rustls configuration, and with
//! `max_early_data_size` of the server's. The server then takes each ticket once, out of the session storage that all
//! workers share (`SECURITY.md` row 33); what comes in 0-RTT packets is marked ([`Connection::is_early`]).

use squall_protect::{HeaderKey, Keys, PacketKey};
use squall_tls::{DirectionMaterial, Session};
use squall_wire::{
    Side, StreamId, TransportError, TransportErrorCode, TransportParameters, Writer,
};

use super::{Connection, State};
use crate::event::Event;
use crate::sent_frame::SentFrame;
use crate::space::{LevelKeys, SpaceId};

/// What a client remembers and a server must not lower (RFC 9000 §7.4.1, RFC 9221 §3).
fn remembered_limits(params: &TransportParameters) -> [u64; 8] {
    [
        params.initial_max_data,
        params.initial_max_stream_data_bidi_local,
        params.initial_max_stream_data_bidi_remote,
        params.initial_max_stream_data_uni,
        params.initial_max_streams_bidi,
        params.initial_max_streams_uni,
        params.active_connection_id_limit,
        params.max_datagram_frame_size.unwrap_or(0),
    ]
}

/// The same as bytes, to bind tickets to.
pub(super) fn limits(params: &TransportParameters) -> Vec<u8> {
    let mut bytes = vec![0; 8 * 8 + 1];
    let mut w = Writer::new(&mut bytes);
    for limit in remembered_limits(params) {
        w.u64(limit);
    }
    w.u8(params.reset_stream_at.into());
    bytes
}

impl Connection {
    /// Whether a client may send data before the handshake is complete, as early data. It may be repeated by an attacker,
    /// and the server may not accept it: `Event::EarlyDataAccepted` or `Event::EarlyDataRejected` says so.
    #[must_use]
    pub fn has_early_data(&self) -> bool {
        self.remembered.is_some() && !self.is_closed()
    }

    /// Servers: whether data of the stream came in 0-RTT packets. Until the handshake is complete (`Event::Connected`)
    /// it may be a repetition by an attacker (RFC 9001 §9.2, RFC 8470).
    #[must_use]
    pub fn is_early(&self, id: StreamId) -> bool {
        self.streams.is_early(id)
    }

    /// 0-RTT keys exist in one direction only, client to server: one of the two here is never used.
    pub(super) fn install_zero_rtt_keys(&mut self, material: &DirectionMaterial) {
        let keys = || Keys {
            packet: PacketKey::new(&material.packet),
            header: HeaderKey::new(&material.header),
        };
        self.space(SpaceId::Data).keys = Some(LevelKeys {
            local: keys(),
            remote: keys(),
        });
    }

    /// A client's: offers early data if TLS has a ticket for it.
    pub(super) fn offer_early_data(&mut self) {
        let Some(session) = self.tls.running() else {
            return;
        };
        let Some(material) = session.early_keys(self.original_version) else {
            return;
        };
        // rustls keeps the parameters with the ticket, and gives them out until those of this connection come.
        let remembered = (session.peer_transport_parameters())
            .and_then(|bytes| TransportParameters::decode(bytes, Side::Server).ok());
        let Some(remembered) = remembered else {
            return;
        };
        self.install_zero_rtt_keys(&material);
        self.streams.set_peer_parameters(&remembered);
        self.peer.max_datagram_frame = remembered.max_datagram_frame_size.unwrap_or(0);
        self.peer.reset_stream_at = remembered.reset_stream_at;
        self.remembered = Some(Box::new(remembered));
    }

    /// Whether data goes into 0-RTT packets now.
    pub(super) fn sends_zero_rtt(&self) -> bool {
        self.side == Side::Client
            && self.ring.is_none()
            && self.spaces[SpaceId::Data as usize].keys.is_some()
    }

    /// Whether a datagram with a 0-RTT packet is due.
    pub(super) fn early_data_wants(&self) -> bool {
        self.sends_zero_rtt()
            && matches!(self.state, State::Handshaking)
            && self.wants_data()
            && self.path.flow.bytes_in_flight < self.path.flow.congestion.window()
    }

    /// The server has answered.
    pub(super) fn settle_early_data(
        &mut self,
        params: &TransportParameters,
    ) -> Result<(), TransportError> {
        let Some(remembered) = self.remembered.take() else {
            return Ok(());
        };
        let session = self.tls.running();
        if !session.is_some_and(Session::is_early_data_accepted) {
            self.remembered = Some(remembered);
            self.reject_early_data(params);
            return Ok(());
        }
        let (before, now) = (remembered_limits(&remembered), remembered_limits(params));
        if before.iter().zip(now).any(|(before, now)| now < *before) {
            return Err(TransportError {
                code: TransportErrorCode::PROTOCOL_VIOLATION,
                frame_type: 0x06,
                reason: "the server accepted early data and lowered the limits for it",
            });
        }
        self.streams.events.push_back(Event::EarlyDataAccepted);
        Ok(())
    }

    /// The server took nothing of the early data: all of it is sent again, within the limits of `params`.
    pub(super) fn reject_early_data(&mut self, params: &TransportParameters) {
        if self.remembered.take().is_none() {
            return;
        }
        let space = self.space(SpaceId::Data);
        space.keys = None;
        let in_flight = space.sent.discard();
        self.path.flow.bytes_in_flight -= in_flight;
        self.streams.rewind(params);
        self.streams.events.push_back(Event::EarlyDataRejected);
    }

    /// The server has sent a Retry, and dropped what came before it: the early data goes to the new address of the
    /// attempt (RFC 9000 §17.2.5.3).
    pub(super) fn repeat_early_data(&mut self) {
        if self.remembered.is_none() {
            return;
        }
        let sent = &mut self.space(SpaceId::Data).sent;
        let frames: Vec<SentFrame> = sent
            .outstanding()
            .flat_map(|(_, packet)| sent.frames(packet))
            .collect();
        let in_flight = sent.discard();
        self.path.flow.bytes_in_flight -= in_flight;
        for frame in frames {
            self.on_frame_lost(SpaceId::Data, frame);
        }
    }
}
