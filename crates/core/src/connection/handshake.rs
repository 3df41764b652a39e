//! TLS inside QUIC (RFC 9001 §4): CRYPTO bytes in and out, keys installed and discarded, transport parameters checked.

use std::net::SocketAddr;
use std::time::Duration;

use squall_tls::{KeyChange, LevelMaterial, Session};
use squall_wire::{
    ConnectionId, PreferredAddress, Side, TransportError, TransportErrorCode, TransportParameters,
};

use super::early::Awaited;
use super::keyring::KeyRing;
use super::timers::Timer;
use super::tls::Refusal;
use super::{Connection, State};
use crate::config::{
    AckFrequencyRequest, MAX_CRYPTO_BUFFER, MAX_CRYPTO_BUFFER_AFTER, MAX_CRYPTO_PIECES,
    MAX_DATAGRAM_FRAME, MAX_REMOTE_IDS, MIN_ACK_DELAY, TransportConfig,
};
use crate::event::{EndpointEvent, Event};
use crate::space::{LevelKeys, SpaceId};
use crate::time::Time;

/// The transport parameters that either end declares (RFC 9000 §18.2).
pub(super) fn declared(config: &TransportConfig, local_id: ConnectionId) -> TransportParameters {
    TransportParameters {
        max_idle_timeout_ms: u64::try_from(config.max_idle_timeout.as_millis())
            .unwrap_or(u64::MAX)
            .min(squall_wire::varint::MAX),
        max_udp_payload_size: 65_527,
        initial_max_data: config.initial_window,
        initial_max_stream_data_bidi_local: config.initial_stream_window,
        initial_max_stream_data_bidi_remote: config.initial_stream_window,
        initial_max_stream_data_uni: config.initial_stream_window,
        initial_max_streams_bidi: config.max_concurrent_bidi_streams,
        initial_max_streams_uni: config.max_concurrent_uni_streams,
        max_ack_delay_ms: u64::try_from(config.max_ack_delay.as_millis()).unwrap_or(25),
        disable_active_migration: !config.allow_migration,
        active_connection_id_limit: MAX_REMOTE_IDS,
        initial_source_connection_id: Some(local_id),
        max_datagram_frame_size: (config.datagram_receive_buffer > 0).then_some(MAX_DATAGRAM_FRAME),
        grease_quic_bit: true,
        min_ack_delay_us: Some(MIN_ACK_DELAY.as_micros() as u64),
        reset_stream_at: true,
        ..TransportParameters::default()
    }
}

const fn parameter_error(reason: &'static str) -> TransportError {
    TransportError {
        code: TransportErrorCode::TRANSPORT_PARAMETER_ERROR,
        frame_type: 0x06,
        reason,
    }
}

impl Connection {
    /// Initial keys come from the destination of the client's first packet (RFC 9001 §5.2).
    pub(super) fn install_initial_keys(&mut self) {
        let keys = self.initial_keys(self.version);
        self.space(SpaceId::Initial).keys = Some(keys);
    }

    /// Takes the data of a CRYPTO frame.
    pub(super) fn on_crypto(
        &mut self,
        id: SpaceId,
        offset: u64,
        data: &[u8],
    ) -> Result<(), TransportError> {
        let error = |code, reason| TransportError {
            code,
            frame_type: 0x06,
            reason,
        };
        let most = if matches!(self.state, State::Established) {
            MAX_CRYPTO_BUFFER_AFTER
        } else {
            MAX_CRYPTO_BUFFER
        };
        let space = self.space(id);
        let end = offset + data.len() as u64;
        // RFC 9000 §7.5.
        if end > space.crypto_recv.read_offset() + most {
            return Err(error(
                TransportErrorCode::CRYPTO_BUFFER_EXCEEDED,
                "handshake data beyond the buffer",
            ));
        }
        // RFC 9001 §4.1.3: nothing new may come at a level that TLS has left. Initial packets can be made by anyone.
        if id < self.reading_level() && end > self.spaces[id as usize].crypto_recv.read_offset() {
            return Err(error(
                TransportErrorCode::PROTOCOL_VIOLATION,
                "handshake data at a level that is done",
            ));
        }
        let space = &mut self.spaces[id as usize];
        if end <= space.crypto_recv.read_offset() {
            return Ok(());
        }
        let inserted = (space.crypto_recv).insert(offset, data, &mut self.streams.pool);
        if inserted.is_err() || space.crypto_recv.pieces() > MAX_CRYPTO_PIECES {
            return Err(error(
                TransportErrorCode::CRYPTO_BUFFER_EXCEEDED,
                "handshake data in too many pieces",
            ));
        }
        Ok(())
    }

    /// Hands TLS what has come in order, once a packet: called for every frame of a byte, TLS took 330 ns for each.
    pub(super) fn read_crypto(&mut self, id: SpaceId, now: Time) -> Result<(), TransportError> {
        let mut progress = false;
        while let Some(bytes) = self.spaces[id as usize]
            .crypto_recv
            .read(usize::MAX, &mut self.streams.pool)
        {
            progress = true;
            match self.read_tls(id, &bytes) {
                Ok(()) => {}
                Err(Refusal::Transport(error)) => return Err(error),
                Err(Refusal::Alert(alert)) => {
                    self.flush_tls(now);
                    self.close_with_alert(now, &alert);
                    return Ok(());
                }
            }
        }
        if progress {
            self.space(id).idle_acks = 0;
            self.advance_handshake(now);
        }
        Ok(())
    }

    /// Lets TLS write what it has, installs the keys that it gives, and notes its end.
    pub(super) fn advance_handshake(&mut self, now: Time) {
        self.flush_tls(now);
        if self.is_closed() {
            return;
        }
        if matches!(self.state, State::Handshaking)
            && self.ring.is_some()
            && !self.tls.running().is_none_or(Session::is_handshaking)
        {
            self.state = State::Established;
            self.timers.set(Timer::Handshake, None);
            self.streams.events.push_back(Event::Connected);
            self.log_handshake(now, "handshake_complete");
            if let Some(log) = &mut self.qlog {
                log.alpn_information(now, self.tls.running().and_then(Session::alpn));
            }
            self.restart_idle_timer(now);
            if self.side == Side::Server {
                // RFC 9001 §4.1.2: for a server complete is confirmed.
                self.handshake_done_pending = true;
                self.new_tokens_due = self.config.new_tokens;
                self.endpoint_events
                    .push_back(EndpointEvent::HandshakeComplete);
                self.confirm_handshake(now);
            }
            self.issue_ids();
            self.retire_tls();
        }
    }

    /// Moves what TLS has written into the CRYPTO streams, level by level.
    fn flush_tls(&mut self, now: Time) {
        // A handshake changes keys twice; what is more would be a TLS driver that loops.
        for _ in 0..4 {
            let level = self.tls_level();
            let Some(session) = self.tls.running_mut() else {
                return;
            };
            let mut out = Vec::new();
            let change = match session.write(&mut out) {
                Ok(change) => change,
                Err(error) => {
                    let alert = squall_tls::Alert {
                        code: None,
                        reason: error.to_string(),
                    };
                    self.close_with_alert(now, &alert);
                    return;
                }
            };
            let wrote = !out.is_empty();
            if wrote && !self.spaces[level as usize].discarded {
                self.space(level).crypto_send.write(out.into());
            }
            match change {
                Some(KeyChange::Handshake(material)) => self.install_handshake_keys(&material),
                Some(KeyChange::OneRtt(material, secrets)) => {
                    self.ring = Some(KeyRing::new(&material, secrets));
                    if self.side == Side::Client {
                        // RFC 9001 §4.9.3.
                        self.space(SpaceId::Data).keys = None;
                    }
                    if let Err(error) = self.take_peer_parameters(now) {
                        self.close_with_error(now, &error);
                        return;
                    }
                }
                None if !wrote => return,
                None => {}
            }
        }
    }

    /// The level that TLS writes at: the highest with keys.
    fn tls_level(&self) -> SpaceId {
        if self.ring.is_some() {
            SpaceId::Data
        } else if self.spaces[SpaceId::Handshake as usize].keys.is_some() {
            SpaceId::Handshake
        } else {
            SpaceId::Initial
        }
    }

    /// The level that TLS reads at.
    fn reading_level(&self) -> SpaceId {
        if matches!(self.state, State::Established) {
            SpaceId::Data
        } else if self.spaces[SpaceId::Handshake as usize].keys.is_some() {
            SpaceId::Handshake
        } else {
            SpaceId::Initial
        }
    }

    fn install_handshake_keys(&mut self, material: &LevelMaterial) {
        use squall_protect::{HeaderKey, Keys, PacketKey};
        let keys = |m: &squall_tls::DirectionMaterial| Keys {
            packet: PacketKey::new(&m.packet),
            header: HeaderKey::new(&m.header),
        };
        self.space(SpaceId::Handshake).keys = Some(LevelKeys {
            local: keys(&material.local),
            remote: keys(&material.remote),
        });
    }

    /// Checks and takes the peer's transport parameters (RFC 9000 §7.3, §7.4).
    fn take_peer_parameters(&mut self, now: Time) -> Result<(), TransportError> {
        if self.peer_parameters_taken {
            return Ok(());
        }
        let missing = TransportError {
            code: TransportErrorCode::crypto(109),
            frame_type: 0x06,
            reason: "the peer sent no transport parameters",
        };
        let session = self.tls.running();
        let bytes = session.and_then(Session::peer_transport_parameters);
        let params = TransportParameters::decode(bytes.ok_or(missing)?, self.side.peer())?;
        self.check_versions(&params)?;
        if params.initial_source_connection_id != self.peer_scid {
            return Err(parameter_error(
                "initial_source_connection_id is not the source of the peer's packets",
            ));
        }
        if self.side == Side::Client {
            if params.original_destination_connection_id != Some(self.original_dcid) {
                return Err(parameter_error(
                    "original_destination_connection_id is not what the first packet was sent to",
                ));
            }
            if params.retry_source_connection_id != self.retry_scid {
                return Err(parameter_error(
                    "retry_source_connection_id is not the source of the Retry",
                ));
            }
            if let Some(token) = params.stateless_reset_token {
                self.remote_ids.set_first_token(token);
                self.note_tokens();
            }
            if let Some(preferred) = &params.preferred_address {
                self.take_preferred_address(preferred)?;
            }
        }
        self.peer_parameters_taken = true;
        if let Some(log) = &mut self.qlog {
            log.parameters_set(now, "remote", &params);
        }
        self.settle_early_data(&params)?;
        self.peer.ack_delay_exponent = u32::try_from(params.ack_delay_exponent).unwrap_or(3);
        self.peer.max_ack_delay = Duration::from_millis(params.max_ack_delay_ms);
        self.peer.min_ack_delay = params.min_ack_delay_us.map(Duration::from_micros);
        self.peer.max_datagram_frame = params.max_datagram_frame_size.unwrap_or(0);
        self.peer.greased = params.grease_quic_bit;
        self.peer.reset_stream_at = params.reset_stream_at;
        self.peer.forbids_migration = params.disable_active_migration;
        if params.max_idle_timeout_ms > 0 {
            // RFC 9000 §10.1: the smaller of both, where zero is none.
            let theirs = Duration::from_millis(params.max_idle_timeout_ms);
            self.idle_timeout = if self.idle_timeout.is_zero() {
                theirs
            } else {
                self.idle_timeout.min(theirs)
            };
        }
        self.path.mtu.limit(params.max_udp_payload_size);
        self.local_ids
            .set_peer_limit(params.active_connection_id_limit);
        self.streams.set_peer_parameters(&params);
        Ok(())
    }

    /// RFC 9000 §9.6, §18.2.
    fn take_preferred_address(
        &mut self,
        preferred: &PreferredAddress,
    ) -> Result<(), TransportError> {
        self.remote_ids
            .on_new(
                1,
                0,
                preferred.connection_id,
                preferred.stateless_reset_token,
            )
            // Not beside an empty connection id, not the same id again.
            .map_err(|_| {
                parameter_error("a preferred_address with a connection id out of place")
            })?;
        // RFC 9000 §9.6.3: of the same family.
        let address = match self.path.path.remote {
            SocketAddr::V4(_) => preferred.ipv4.map(SocketAddr::V4),
            SocketAddr::V6(_) => preferred.ipv6.map(SocketAddr::V6),
        };
        if self.config.follow_preferred_address && address.is_some() {
            self.paths.get_or_insert_default().preferred = address;
        }
        Ok(())
    }

    /// The handshake is confirmed (RFC 9001 §4.1.2): Handshake keys go, address and peer are known.
    pub(super) fn confirm_handshake(&mut self, now: Time) {
        if self.handshake_confirmed {
            return;
        }
        self.handshake_confirmed = true;
        self.log_handshake(now, "handshake_confirmed");
        // RFC 9001 §4.9.3: what still comes in 0-RTT packets comes again in 1-RTT ones.
        self.space(SpaceId::Data).keys = None;
        if let AckFrequencyRequest::Fixed(wanted) = self.config.ack_frequency {
            self.ack_request.wanted = wanted;
            self.ack_request.due = true;
        }
        self.discard_space(SpaceId::Initial, now);
        self.discard_space(SpaceId::Handshake, now);
        self.set_loss_timer(now);
        self.seek_preferred_address(now);
        if self.side == Side::Client && !self.path.validated {
            // The system began to send from another address during the handshake.
            self.revalidate(now);
        }
        // Who only asks one thing and leaves shall not pay for it.
        let rested = now + self.probe_timeout();
        self.timers.set(Timer::PathSize, Some(rested));
    }

    /// Drops a level's keys and all that is open there (RFC 9001 §4.9, RFC 9002 §6.4).
    pub(super) fn discard_space(&mut self, id: SpaceId, now: Time) {
        let space = self.space(id);
        if space.discarded {
            return;
        }
        space.discarded = true;
        space.keys = None;
        space.probes = 0;
        space.loss_time = None;
        space.crypto_send.clear();
        space.crypto_recv.clear(0);
        let dropped = space.crypto_recv.take_cleared();
        self.streams.pool.settle(dropped);
        if id == SpaceId::Initial {
            self.other_initial = None;
        }
        let space = self.space(id);
        let in_flight = space.sent.discard();
        self.path.flow.bytes_in_flight -= in_flight;
        self.pto_count = 0;
        if id == SpaceId::Handshake {
            drop(self.early.take(Awaited::Handshake));
        }
        self.set_loss_timer(now);
    }

    /// Hands the peer as many connection ids as it takes (RFC 9000 §5.1.1).
    pub(super) fn issue_ids(&mut self) {
        while self.local_ids.wants_more() {
            let id = self.ids.make(&mut self.rng);
            self.local_ids.issue(id);
            self.endpoint_events.push_back(EndpointEvent::AddId(id));
        }
    }
}
