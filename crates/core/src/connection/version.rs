//! Version negotiation (RFC 9368, RFC 9369 §4): by the server within a connection, or by a Version Negotiation packet with
//! which a client begins anew.

use std::sync::Arc;

use rand::RngCore;
use rustls::pki_types::ServerName;
use squall_protect::initial;
use squall_tls::Session;
use squall_wire::{
    ConnectionId, LongType, Side, TransportError, TransportErrorCode, TransportParameters,
};

use super::tls::{Tls, encoded};
use super::{Connection, State};
use crate::config::TransportConfig;
use crate::error::CloseReason;
use crate::space::{LevelKeys, Space, SpaceId};
use crate::time::Time;

/// What a client needs to begin anew.
pub(super) struct Restart {
    pub(super) tls: Arc<rustls::ClientConfig>,
    pub(super) server_name: ServerName<'static>,
    pub(super) params: TransportParameters,
    pub(super) grease: (u64, u8),
}

impl Restart {
    /// The TLS session of an attempt in `version`.
    pub(super) fn session(
        &self,
        version: u32,
        config: &TransportConfig,
    ) -> Result<Session, squall_tls::Error> {
        let params = encoded(&self.params, version, config, self.grease);
        Session::client(
            Arc::clone(&self.tls),
            version,
            self.server_name.clone(),
            params,
        )
    }
}

const fn negotiation_error(reason: &'static str) -> TransportError {
    TransportError {
        code: TransportErrorCode::VERSION_NEGOTIATION_ERROR,
        frame_type: 0x06,
        reason,
    }
}

/// The version that a server goes on with, given the client's encoded transport parameters (RFC 9368 §2.3). Versions 1
/// and 2 are compatible with each other (RFC 9369 §4). Parameters that are wrong are complained about when the handshake
/// has authenticated them.
pub(super) fn choose(config: &TransportConfig, original: u32, params: Option<&[u8]>) -> u32 {
    params
        .and_then(|bytes| TransportParameters::decode(bytes, Side::Client).ok())
        .and_then(|params| params.version_information)
        .and_then(|info| config.choose_version(|v| info.available().contains(&v)))
        .unwrap_or(original)
}

impl Connection {
    pub(super) fn initial_keys(&self, version: u32) -> LevelKeys {
        let client = self.side == Side::Client;
        initial::keys(version, self.initial_dcid.as_slice(), client).into()
    }

    /// A server goes on in `version`. It keeps the keys of the original version until a Handshake packet shows that the
    /// client knows (RFC 9369 §4.1).
    pub(super) fn change_version(&mut self, version: u32) {
        if version == self.version {
            return;
        }
        self.version = version;
        let keys = self.initial_keys(version);
        let original = self.space(SpaceId::Initial).keys.replace(keys);
        self.other_initial = original.map(Box::new);
        self.announces_version = true;
    }

    /// Puts keys of another version in place for one Initial packet; returns those that they replace, or `None` if that
    /// version is not to be heard of.
    pub(super) fn begin_other_version(&mut self, version: u32, ty: LongType) -> Option<LevelKeys> {
        if ty != LongType::Initial || self.spaces[SpaceId::Initial as usize].discarded {
            return None;
        }
        let keys = match self.side {
            Side::Server if version == self.original_version => *self.other_initial.take()?,
            // RFC 9369 §4.1: the server's first CRYPTO frame settles the version.
            Side::Client
                if self.version == self.original_version
                    && self.config.versions.contains(&version)
                    && self.spaces[SpaceId::Initial as usize]
                        .crypto_recv
                        .read_offset()
                        == 0 =>
            {
                if let Some(session) = self.tls.running_mut() {
                    session.set_version(version);
                }
                self.version = version;
                self.initial_keys(version)
            }
            _ => return None,
        };
        self.space(SpaceId::Initial).keys.replace(keys)
    }

    /// The packet was worked: puts things back, or leaves them if a client has learned the negotiated version.
    pub(super) fn end_other_version(&mut self, replaced: LevelKeys, opened: bool) {
        match self.side {
            Side::Client if opened => {}
            Side::Client => {
                self.version = self.original_version;
                if let Some(session) = self.tls.running_mut() {
                    session.set_version(self.version);
                }
                self.space(SpaceId::Initial).keys = Some(replaced);
            }
            Side::Server => {
                let keys = self.space(SpaceId::Initial).keys.replace(replaced);
                self.other_initial = keys.map(Box::new);
            }
        }
    }

    /// Checks the peer's version information (RFC 9368 §4).
    pub(super) fn check_versions(
        &self,
        params: &TransportParameters,
    ) -> Result<(), TransportError> {
        let Some(info) = &params.version_information else {
            // A server without it chooses nothing: it cannot have changed the version.
            return if self.negotiated || self.version != self.original_version {
                Err(negotiation_error(
                    "the version was negotiated and the server's version_information is missing",
                ))
            } else {
                Ok(())
            };
        };
        if self.side == Side::Server {
            return if info.chosen == self.original_version {
                Ok(())
            } else {
                Err(negotiation_error(
                    "the client's chosen version is not that of its first packet",
                ))
            };
        }
        if info.chosen != self.version || !self.config.versions.contains(&info.chosen) {
            return Err(negotiation_error(
                "the server's chosen version is not the one in use",
            ));
        }
        if self.negotiated {
            let offers = |v| info.available().contains(&v);
            let chosen = self
                .config
                .choose_version(|v| offers(v) || v == self.version);
            if info.available().is_empty() || chosen != Some(self.original_version) {
                return Err(negotiation_error(
                    "the server's versions are not those of the Version Negotiation packet: a downgrade",
                ));
            }
        }
        Ok(())
    }

    /// Takes a Version Negotiation packet (RFC 9000 §6.2). `ours`: it answers a packet of this connection.
    pub(super) fn on_version_negotiation(&mut self, now: Time, ours: bool, versions: &[u8]) {
        let listed = |version: u32| {
            let bytes = version.to_be_bytes();
            versions.chunks_exact(4).any(|v| v == bytes)
        };
        // RFC 9000 §6.2, RFC 9368 §4: before any other packet only, once only, and not if our own version is listed.
        let fresh = self.side == Side::Client
            && matches!(self.state, State::Handshaking)
            && self.peer_scid.is_none()
            && self.retry_scid.is_none()
            && !self.negotiated;
        if !fresh || !ours || listed(self.version) {
            self.stats.packets_dropped += 1;
            return;
        }
        match self.config.choose_version(listed) {
            Some(version) => self.begin_anew(now, version),
            None => self.abandon(now, CloseReason::VersionMismatch),
        }
    }

    /// A client's new attempt, in another version (RFC 9368 §2.1): with ids, keys and a TLS session of its own.
    fn begin_anew(&mut self, now: Time, version: u32) {
        let Some(restart) = &self.restart else {
            return;
        };
        match restart.session(version, &self.config) {
            Ok(session) => self.tls = Tls::Running(Box::new(session)),
            Err(_) => return self.abandon(now, CloseReason::VersionMismatch),
        }
        self.negotiated = true;
        self.version = version;
        // RFC 9369 §5: the other version's ticket. What was sent goes into the new attempt's handshake.
        self.reject_early_data(&TransportParameters::default());
        self.original_version = version;
        // RFC 9369 §5: a token of the other version.
        self.token = Vec::new();
        let mut first = [0; 8];
        self.rng.fill_bytes(&mut first);
        let dcid = ConnectionId::new(&first).unwrap_or(ConnectionId::EMPTY);
        (self.original_dcid, self.initial_dcid) = (dcid, dcid);
        self.remote_ids.set_first(dcid);
        let in_flight = self.space(SpaceId::Initial).sent.discard();
        self.path.flow.bytes_in_flight -= in_flight;
        self.spaces[SpaceId::Initial as usize] = Space::default();
        self.pto_count = 0;
        self.install_initial_keys();
        self.advance_handshake(now);
        self.set_loss_timer(now);
    }
}
