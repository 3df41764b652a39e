//! Version negotiation (RFC 9368, RFC 9369 §4): by the server within a connection, or by a Version
//! Negotiation packet after which a client starts over.

use rand::RngCore;
use rand::rngs::StdRng;
use squall_wire::{
    ConnectionId, LongType, Side, TransportError, TransportErrorCode, TransportParameters,
};

use super::tls::Tls;
use crate::config::TransportConfig;
use crate::connection::parts::handshake::Handshake;
use crate::space::{LevelKeys, Space};

const fn negotiation_error(reason: &'static str) -> TransportError {
    TransportError {
        code: TransportErrorCode::VERSION_NEGOTIATION_ERROR,
        frame_type: 0x06,
        reason,
    }
}

/// The outcome of a Version Negotiation packet.
pub(crate) enum Negotiation {
    /// It is dropped.
    Ignored,
    /// The client starts over in this version.
    Anew(u32),
    /// The server offers no version that the client knows.
    Failed,
}

impl Handshake {
    /// A server continues in `version`. It keeps the Initial keys of the original version until a
    /// Handshake packet shows that the client knows (RFC 9369 §4.1).
    pub(crate) fn change_version(&mut self, version: u32, initial: &mut Space) {
        if version == self.version {
            return;
        }
        self.version = version;
        let keys = self.initial_keys(version);
        if let Some(attempt) = &mut self.attempt {
            attempt.other_initial = initial.keys.replace(keys);
            attempt.announces_version = true;
        }
    }

    /// Puts the keys of another version in place for one Initial packet; returns those that they
    /// replace, or `None` if packets of that version are dropped.
    pub(crate) fn begin_other_version(
        &mut self,
        version: u32,
        ty: LongType,
        initial: &mut Space,
        config: &TransportConfig,
    ) -> Option<LevelKeys> {
        if ty != LongType::Initial || initial.discarded {
            return None;
        }
        let attempt = self.attempt.as_mut()?;
        let keys = match self.side {
            Side::Server if version == attempt.original_version => attempt.other_initial.take()?,
            // RFC 9369 §4.1: the server's first CRYPTO frame settles the version.
            Side::Client
                if self.version == attempt.original_version
                    && (config.available_versions(self.side, self.version)).contains(&version)
                    && initial.crypto_recv.read_offset() == 0 =>
            {
                self.set_version(version);
                self.initial_keys(version)
            }
            _ => return None,
        };
        initial.keys.replace(keys)
    }

    /// The packet was processed: restores the keys, unless a client has learned the negotiated
    /// version from it.
    pub(crate) fn end_other_version(
        &mut self,
        replaced: LevelKeys,
        opened: bool,
        initial: &mut Space,
    ) {
        match self.side {
            Side::Client if opened => {}
            Side::Client => {
                self.set_version(self.original_version());
                initial.keys = Some(replaced);
            }
            Side::Server => {
                let keys = initial.keys.replace(replaced);
                if let Some(attempt) = &mut self.attempt {
                    attempt.other_initial = keys;
                }
            }
        }
    }

    /// Initial packets are no longer processed, in any version.
    pub(crate) fn forget_other_version(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt.other_initial = None;
        }
    }

    fn set_version(&mut self, version: u32) {
        self.version = version;
        if let Some(session) = self.tls.running_mut() {
            session.set_version(version);
        }
    }

    /// Checks the peer's version information (RFC 9368 §4).
    ///
    /// # Errors
    /// `VERSION_NEGOTIATION_ERROR`.
    pub(crate) fn check_versions(
        &self,
        params: &TransportParameters,
        config: &TransportConfig,
    ) -> Result<(), TransportError> {
        let original = self.original_version();
        let negotiated = self.attempt.as_ref().is_some_and(|a| a.negotiated);
        let Some(info) = &params.version_information else {
            // A server that sends none chooses nothing: it cannot have changed the version.
            return if negotiated || self.version != original {
                Err(negotiation_error(
                    "the version was negotiated and the server's version_information is missing",
                ))
            } else {
                Ok(())
            };
        };
        if self.side == Side::Server {
            return if info.chosen == original {
                Ok(())
            } else {
                Err(negotiation_error(
                    "the client's chosen version is not that of its first packet",
                ))
            };
        }
        if info.chosen != self.version || !config.versions.contains(&info.chosen) {
            return Err(negotiation_error(
                "the server's chosen version is not the one in use",
            ));
        }
        if negotiated {
            let offers = |v| info.available().contains(&v);
            let chosen = config.choose_version(|v| offers(v) || v == self.version);
            if info.available().is_empty() || chosen != Some(original) {
                return Err(negotiation_error(
                    "the server's versions are not those of the Version Negotiation packet: a downgrade",
                ));
            }
        }
        Ok(())
    }

    /// Handles the versions of a Version Negotiation packet that answers a packet of ours (RFC 9000
    /// §6.2): only before any other packet, only once, and not if our own version is listed (RFC
    /// 9368 §4).
    pub(crate) fn negotiate(&self, versions: &[u8], config: &TransportConfig) -> Negotiation {
        let listed = |version: u32| {
            let bytes = version.to_be_bytes();
            versions.chunks_exact(4).any(|v| v == bytes)
        };
        let fresh = self.side == Side::Client
            && (self.attempt.as_ref())
                .is_some_and(|a| a.peer_scid.is_none() && a.retry_scid.is_none() && !a.negotiated);
        if !fresh || listed(self.version) {
            return Negotiation::Ignored;
        }
        let chosen = config.choose_version(listed);
        chosen.map_or(Negotiation::Failed, Negotiation::Anew)
    }

    /// A client starts over in another version (RFC 9368 §2.1), with new ids, keys and TLS session.
    /// Returns the destination id of its first packet; `None` if TLS refuses the version.
    pub(crate) fn begin_anew(
        &mut self,
        version: u32,
        config: &TransportConfig,
        rng: &mut StdRng,
    ) -> Option<ConnectionId> {
        let attempt = self.attempt.as_mut()?;
        let session = attempt.restart.as_ref()?.session(version, config).ok()?;
        let mut first = [0; 8];
        rng.fill_bytes(&mut first);
        let dcid = ConnectionId::new(&first).unwrap_or(ConnectionId::EMPTY);
        attempt.negotiated = true;
        attempt.original_version = version;
        attempt.initial_dcid = dcid;
        // RFC 9369 §5: a token from the other version.
        attempt.token = Vec::new();
        self.tls = Tls::Running(Box::new(session));
        self.version = version;
        self.original_dcid = dcid;
        Some(dcid)
    }
}
