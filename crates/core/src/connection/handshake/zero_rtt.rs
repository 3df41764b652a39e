//! Early data (RFC 9001 §4.6): data that a client sends in 0-RTT packets, before the handshake,
//! using what it remembers of an earlier connection.
//!
//! It is off unless requested: with `enable_early_data` in the client's rustls configuration, and
//! `max_early_data_size` in the server's. The server then accepts each ticket once, from the
//! session storage that all workers share (`SECURITY.md` row 33). Data from 0-RTT packets is marked
//! (`Connection::is_early`).

use squall_protect::{HeaderKey, Keys, PacketKey};
use squall_tls::{DirectionMaterial, LevelMaterial, Session};
use squall_wire::{Side, TransportError, TransportErrorCode, TransportParameters};

use super::parameters::remembered_limits;
use crate::connection::parts::handshake::Handshake;
use crate::space::LevelKeys;

/// The state of a client's early data.
pub(crate) enum EarlyData {
    /// None was sent.
    None,
    /// The server has accepted it.
    Accepted,
    /// The server has accepted none of it.
    Rejected,
}

fn keys(material: &DirectionMaterial) -> Keys {
    Keys {
        packet: PacketKey::new(&material.packet),
        header: HeaderKey::new(&material.header),
    }
}

/// The keys of the Handshake level.
pub(crate) fn handshake_keys(material: &LevelMaterial) -> LevelKeys {
    LevelKeys {
        local: keys(&material.local),
        remote: keys(&material.remote),
    }
}

/// The keys of 0-RTT packets. They exist in one direction only, client to server: one of the two
/// here is never used.
pub(crate) fn zero_rtt_keys(material: &DirectionMaterial) -> LevelKeys {
    LevelKeys {
        local: keys(material),
        remote: keys(material),
    }
}

impl Handshake {
    /// A client's early data: its keys, if TLS has a ticket for it, and the parameters that the
    /// server declared when it issued the ticket.
    pub(crate) fn offer_early_data(&mut self) -> Option<(LevelKeys, &TransportParameters)> {
        let session = self.tls.running()?;
        let attempt = self.attempt.as_mut()?;
        let material = session.early_keys(attempt.original_version)?;
        // rustls keeps the parameters with the ticket, and returns them until those of this
        // connection arrive.
        let bytes = session.peer_transport_parameters()?;
        let remembered = TransportParameters::decode(bytes, Side::Server).ok()?;
        self.peer.remember(&remembered);
        let remembered = attempt.remembered.insert(Box::new(remembered));
        Some((zero_rtt_keys(&material), remembered))
    }

    /// Whether a client has offered early data and not yet heard whether it is accepted.
    pub(crate) fn has_early_data(&self) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_some_and(|a| a.remembered.is_some())
    }

    /// Early data is no longer possible; returns whether any was offered.
    pub(crate) fn forget_early_data(&mut self) -> bool {
        let attempt = self.attempt.as_mut();
        attempt.is_some_and(|a| a.remembered.take().is_some())
    }

    /// The server has answered, with `params`.
    ///
    /// # Errors
    /// `PROTOCOL_VIOLATION` if it accepts early data but lowers the limits that applied to it (RFC
    /// 9000 §7.4.1).
    pub(crate) fn settle_early_data(
        &mut self,
        params: &TransportParameters,
    ) -> Result<EarlyData, TransportError> {
        let attempt = self.attempt.as_mut();
        let Some(remembered) = attempt.and_then(|a| a.remembered.take()) else {
            return Ok(EarlyData::None);
        };
        let session = self.tls.running();
        if !session.is_some_and(Session::is_early_data_accepted) {
            return Ok(EarlyData::Rejected);
        }
        let (before, now) = (remembered_limits(&remembered), remembered_limits(params));
        if before.iter().zip(now).any(|(before, now)| now < *before) {
            return Err(TransportError {
                code: TransportErrorCode::PROTOCOL_VIOLATION,
                frame_type: 0x06,
                reason: "the server accepted early data and lowered the limits for it",
            });
        }
        Ok(EarlyData::Accepted)
    }
}
