//! The effects of the handshake on the connection (RFC 9001 §4): CRYPTO bytes in and out, keys
//! installed and discarded, transport parameters taken, early data, Retry, version negotiation.

use std::time::Duration;

use squall_tls::{Alert, KeyChange, Session};
use squall_wire::{Side, TransportError, TransportErrorCode, TransportParameters};

use super::handshake::early::Awaited;
use super::handshake::keyring::KeyRing;
use super::handshake::tls::{Begun, Refusal};
use super::handshake::version::Negotiation;
use super::handshake::zero_rtt::{EarlyData, handshake_keys, zero_rtt_keys};
use super::parts::clock::Timer;
use super::parts::handshake::{PeerParameters, Retry};
use super::{Connection, State};
use crate::config::{MAX_CRYPTO_BUFFER_AFTER, MAX_CRYPTO_PIECES};
use crate::error::CloseReason;
use crate::event::{EndpointEvent, Event};
use crate::sent_frame::SentFrame;
use crate::space::{Space, SpaceId};
use crate::time::Time;

const fn crypto_error(code: TransportErrorCode, reason: &'static str) -> TransportError {
    TransportError {
        code,
        frame_type: 0x06,
        reason,
    }
}

impl Connection {
    // ---- CRYPTO frames --------------------------------------------------------------------------

    /// Takes the data of a CRYPTO frame.
    pub(super) fn on_crypto(
        &mut self,
        id: SpaceId,
        offset: u64,
        data: &[u8],
    ) -> Result<(), TransportError> {
        let established = matches!(self.state, State::Established);
        let most = if established {
            MAX_CRYPTO_BUFFER_AFTER
        } else {
            self.config.crypto_buffer_size as u64
        };
        let level = if established {
            SpaceId::Data
        } else {
            self.spaces.highest_handshake_level()
        };
        let received = &mut self.spaces[id].crypto_recv;
        let end = offset + data.len() as u64;
        // RFC 9000 §7.5.
        if end > received.read_offset() + most {
            return Err(crypto_error(
                TransportErrorCode::CRYPTO_BUFFER_EXCEEDED,
                "handshake data beyond the buffer",
            ));
        }
        // RFC 9001 §4.1.3: nothing new may arrive at a level that TLS has left. Initial packets can
        // be made by anyone.
        if id < level && end > received.read_offset() {
            return Err(crypto_error(
                TransportErrorCode::PROTOCOL_VIOLATION,
                "handshake data at a level that is done",
            ));
        }
        if end <= received.read_offset() {
            return Ok(());
        }
        let inserted = received.insert(offset, data, &mut self.streams.pool);
        if inserted.is_err() || received.pieces() > MAX_CRYPTO_PIECES {
            return Err(crypto_error(
                TransportErrorCode::CRYPTO_BUFFER_EXCEEDED,
                "handshake data in too many pieces",
            ));
        }
        Ok(())
    }

    /// Passes data that has arrived in order to TLS, once per packet: when called for every
    /// one-byte frame, TLS took 330 ns each time.
    pub(super) fn read_crypto(&mut self, id: SpaceId, now: Time) -> Result<(), TransportError> {
        let mut progress = false;
        while let Some(bytes) = self.spaces[id]
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
            self.spaces[id].idle_acks = 0;
            self.advance_handshake(now);
        }
        Ok(())
    }

    fn read_tls(&mut self, id: SpaceId, bytes: &[u8]) -> Result<(), Refusal> {
        let original = self.handshake.original_version();
        let tls = &mut self.handshake.tls;
        let Some(begun) = tls.read(id, bytes, self.side, original, &self.config)? else {
            return Ok(());
        };
        let Begun {
            version,
            early_keys,
            refusal,
        } = begun;
        self.change_version(version);
        if let Some(material) = early_keys {
            self.spaces[SpaceId::Data].keys = Some(zero_rtt_keys(&material));
            self.answer_early_data(true);
        }
        refusal.map_or(Ok(()), |alert| Err(alert.into()))
    }

    /// The handshake continues in this version (RFC 9368 §2.3).
    pub(super) fn change_version(&mut self, version: u32) {
        self.log.version(self.handshake.version, version);
        let initial = &mut self.spaces[SpaceId::Initial];
        self.handshake.change_version(version, initial);
    }

    /// Sends the output of TLS, installs its keys, and notes its end.
    pub(super) fn advance_handshake(&mut self, now: Time) {
        self.flush_tls(now);
        if self.is_closed() {
            return;
        }
        if matches!(self.state, State::Handshaking)
            && self.spaces.ring.is_some()
            && !(self.handshake.tls.running()).is_none_or(Session::is_handshaking)
        {
            self.complete_handshake(now);
        }
    }

    fn complete_handshake(&mut self, now: Time) {
        let version = self.handshake.version;
        self.state = State::Established;
        self.clock.set(Timer::Handshake, None);
        self.streams.events.push_back(Event::Connected);
        let tls = &self.handshake.tls;
        self.log.handshake_completed(now, version, tls);
        self.restart_idle_timer(now);
        if self.side == Side::Server {
            // RFC 9001 §4.1.2: for a server, complete means confirmed.
            self.duties.on_handshake_complete();
            let complete = EndpointEvent::HandshakeComplete;
            self.endpoint.events.push_back(complete);
            self.confirm_handshake(now);
        }
        self.endpoint.issue_ids(&mut self.paths.local_ids);
        self.handshake.tls.retire(self.side, version, &self.config);
    }

    /// Moves the output of TLS into the CRYPTO streams, level by level.
    fn flush_tls(&mut self, now: Time) {
        // A handshake changes keys twice; more often would be a loop in the TLS driver.
        for _ in 0..4 {
            let level = self.spaces.highest_level();
            let Some(session) = self.handshake.tls.running_mut() else {
                return;
            };
            let mut out = Vec::new();
            let change = match session.write(&mut out) {
                Ok(change) => change,
                Err(error) => {
                    let alert = Alert {
                        code: None,
                        reason: error.to_string(),
                    };
                    return self.close_with_alert(now, &alert);
                }
            };
            let wrote = !out.is_empty();
            if wrote && !self.spaces[level].discarded {
                self.spaces[level].crypto_send.write(out.into());
            }
            match change {
                Some(KeyChange::Handshake(material)) => {
                    self.spaces[SpaceId::Handshake].keys = Some(handshake_keys(&material));
                }
                Some(KeyChange::OneRtt(material, secrets)) => {
                    self.spaces.ring = Some(KeyRing::new(&material, secrets));
                    if self.side == Side::Client {
                        // RFC 9001 §4.9.3.
                        self.spaces[SpaceId::Data].keys = None;
                    }
                    if let Err(error) = self.take_peer_parameters(now) {
                        return self.close_with_error(now, &error);
                    }
                }
                None if !wrote => return,
                None => {}
            }
        }
    }

    // ---- transport parameters -------------------------------------------------------------------

    /// Checks and takes the peer's transport parameters (RFC 9000 §7.3, §7.4).
    fn take_peer_parameters(&mut self, now: Time) -> Result<(), TransportError> {
        let session = self.handshake.tls.running();
        let bytes = session.and_then(Session::peer_transport_parameters);
        let missing = crypto_error(
            TransportErrorCode::crypto(109),
            "the peer sent no transport parameters",
        );
        let params = TransportParameters::decode(bytes.ok_or(missing)?, self.side.peer())?;
        self.handshake.check_versions(&params, &self.config)?;
        self.handshake.check_ids(&params)?;
        if !self.handshake.begin_parameters() {
            return Ok(());
        }
        if self.side == Side::Client {
            if let Some(token) = params.stateless_reset_token {
                self.paths.remote_ids.set_first_token(token);
                self.endpoint
                    .report_reset_tokens(&mut self.paths.remote_ids);
            }
            if let Some(preferred) = &params.preferred_address {
                let follow = self.config.follow_preferred_address;
                self.paths.take_preferred(preferred, follow)?;
            }
        }
        if let Some(log) = &mut self.log.qlog {
            log.parameters_set(now, "remote", &params);
        }
        match self.handshake.settle_early_data(&params)? {
            EarlyData::None => {}
            EarlyData::Accepted => self.answer_early_data(true),
            EarlyData::Rejected => self.reject_early_data(&params),
        }
        self.handshake.peer = PeerParameters::of(&params, self.endpoint.fixed_bit);
        let theirs = Duration::from_millis(params.max_idle_timeout_ms);
        self.clock.limit_idle_timeout(theirs);
        self.paths.active.mtu.limit(params.max_udp_payload_size);
        self.paths
            .local_ids
            .set_peer_limit(params.active_connection_id_limit);
        self.streams.set_peer_parameters(&params);
        self.streams.events.push_back(Event::HandshakeData);
        Ok(())
    }

    // ---- confirmation ---------------------------------------------------------------------------

    /// The handshake is confirmed (RFC 9001 §4.1.2): Handshake keys are discarded, and address and
    /// peer are known. Anything else dropped with them goes at the end of the run (`settle`).
    pub(super) fn confirm_handshake(&mut self, now: Time) {
        if std::mem::replace(&mut self.handshake.confirmed, true) {
            return;
        }
        self.log.handshake_confirmed(now);
        // RFC 9001 §4.9.3: data in further 0-RTT packets is sent again in 1-RTT packets.
        self.spaces[SpaceId::Data].keys = None;
        self.duties.ack_frequency.begin();
        self.discard_space(SpaceId::Initial, now);
        self.discard_space(SpaceId::Handshake, now);
        self.set_loss_timer(now);
        self.seek_preferred_address(now);
        if self.side == Side::Client && !self.paths.active.validated {
            // The system began to send from another address during the handshake.
            self.revalidate(now);
        }
    }

    /// Drops a level's keys and everything outstanding there (RFC 9001 §4.9, RFC 9002 §6.4).
    pub(super) fn discard_space(&mut self, id: SpaceId, now: Time) {
        let space = &mut self.spaces[id];
        if space.discarded {
            return;
        }
        space.crypto_recv.clear(0);
        let dropped = space.crypto_recv.take_cleared();
        self.streams.pool.settle(dropped);
        self.paths.active.flow.leave(space.discard());
        match id {
            SpaceId::Initial => self.handshake.forget_other_version(),
            _ => drop(self.handshake.take_early(Awaited::Handshake)),
        }
        self.clock.reset_probe_timeout();
        self.set_loss_timer(now);
    }

    // ---- early data -----------------------------------------------------------------------------

    /// Offers a client's early data, if TLS has a ticket for it.
    pub(super) fn offer_early_data(&mut self) {
        if let Some((keys, remembered)) = self.handshake.offer_early_data() {
            self.streams.set_peer_parameters(remembered);
            self.spaces[SpaceId::Data].keys = Some(keys);
        }
    }

    /// The server has accepted none of the early data: all of it is sent again, within the limits
    /// of `params`.
    fn reject_early_data(&mut self, params: &TransportParameters) {
        let space = &mut self.spaces[SpaceId::Data];
        space.keys = None;
        // Streams send all that they have again, but limits would be announced only when they rise.
        for frame in space.sent.all_frames() {
            if matches!(frame, SentFrame::MaxData | SentFrame::MaxStreams(_)) {
                self.streams.on_control_lost(frame);
            }
        }
        self.paths.active.flow.leave(space.sent.discard());
        self.streams.rewind(params);
        self.answer_early_data(false);
    }

    /// Reports and logs whether the server has accepted the early data.
    fn answer_early_data(&mut self, accepted: bool) {
        self.log.early_data(accepted);
        self.streams.events.push_back(match accepted {
            true => Event::EarlyDataAccepted,
            false => Event::EarlyDataRejected,
        });
    }

    /// The server has sent a Retry, and dropped what arrived before it: the early data is sent
    /// again (RFC 9000 §17.2.5.3).
    fn repeat_early_data(&mut self) {
        if !self.handshake.has_early_data() {
            return;
        }
        let sent = &mut self.spaces[SpaceId::Data].sent;
        let frames: Vec<SentFrame> = sent
            .outstanding()
            .flat_map(|(_, packet)| sent.frames(packet))
            .collect();
        self.paths.active.flow.leave(sent.discard());
        for frame in frames {
            self.on_frame_lost(SpaceId::Data, frame);
        }
    }

    // ---- a client starts over -------------------------------------------------------------------

    /// Processes a Retry: the client starts over with the server's token and id; packet numbers
    /// continue (RFC 9000 §17.2.5, §12.3).
    pub(super) fn on_retry(&mut self, now: Time, retry: &Retry<'_>) {
        let dcid = self.paths.remote_ids.current();
        if !self.handshake.accepts_retry(retry, dcid) {
            self.stats.packets_dropped += 1;
            return;
        }
        self.log.retry(now, &retry.scid, retry.token);
        self.handshake.follow_retry(retry);
        self.paths.remote_ids.set_first(retry.scid);
        let space = &mut self.spaces[SpaceId::Initial];
        space.keys = Some(self.handshake.initial_keys(self.handshake.version));
        space.crypto_send.on_all_lost();
        self.paths.active.flow.leave(space.sent.discard());
        // RFC 9002 §6.3: loss recovery starts over.
        self.clock.reset_probe_timeout();
        self.repeat_early_data();
        self.set_loss_timer(now);
    }

    /// Processes a Version Negotiation packet (RFC 9000 §6.2). `ours`: it answers a packet of this
    /// connection.
    pub(super) fn on_version_negotiation(&mut self, now: Time, ours: bool, versions: &[u8]) {
        let negotiation = match self.state {
            State::Handshaking if ours => self.handshake.negotiate(versions, &self.config),
            _ => Negotiation::Ignored,
        };
        match negotiation {
            Negotiation::Ignored => self.stats.packets_dropped += 1,
            Negotiation::Anew(version) => {
                self.log.version_negotiation(now, versions, Some(version));
                self.begin_anew(now, version);
            }
            Negotiation::Failed => {
                self.log.version_negotiation(now, versions, None);
                self.abandon(now, CloseReason::VersionMismatch);
            }
        }
    }

    /// A client's new attempt, in another version (RFC 9368 §2.1).
    fn begin_anew(&mut self, now: Time, version: u32) {
        let rng = &mut self.endpoint.rng;
        let from = self.handshake.version;
        let Some(dcid) = self.handshake.begin_anew(version, &self.config, rng) else {
            return self.abandon(now, CloseReason::VersionMismatch);
        };
        self.log.version(from, version);
        // RFC 9369 §5: a ticket is good for one version. Data sent as early data goes into the new
        // attempt's handshake.
        if self.handshake.forget_early_data() {
            self.reject_early_data(&TransportParameters::default());
        }
        self.paths.remote_ids.set_first(dcid);
        let initial = &mut self.spaces[SpaceId::Initial];
        self.paths.active.flow.leave(initial.sent.discard());
        *initial = Space {
            keys: Some(self.handshake.initial_keys(version)),
            ..Space::default()
        };
        self.clock.reset_probe_timeout();
        self.advance_handshake(now);
        self.set_loss_timer(now);
    }
}
