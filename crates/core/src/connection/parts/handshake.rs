//! The handshake: its results, which are kept, and the facts needed only until it is confirmed,
//! which are then dropped.

use std::time::Duration;

use squall_protect::initial;
use squall_wire::{ConnectionId, Ecn, FixedBit, Side, TransportError, TransportParameters};

use crate::connection::handshake::early::{Awaited, EarlyPacket, EarlyPackets};
use crate::connection::handshake::parameters::parameter_error;
use crate::connection::handshake::tls::{Restart, Tls};
use crate::space::received::ReceivedPackets;
use crate::space::{LevelKeys, SpaceId};
use crate::time::Time;

/// The peer's transport parameters, except those of streams and connection ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerParameters {
    /// Exponent of the ACK Delay field.
    pub(crate) ack_delay_exponent: u32,
    /// The longest time for which it delays acknowledgements.
    pub(crate) max_ack_delay: Duration,
    /// The shortest delay that may be requested; `None`: it does not support requests
    /// (draft-ietf-quic-ack-frequency §3).
    pub(crate) min_ack_delay: Option<Duration>,
    /// The largest DATAGRAM frame that it accepts; 0 means none (RFC 9221 §3).
    pub(crate) max_datagram_frame: u64,
    /// Whether packets to it are greased: it accepts any value of the fixed bit (RFC 9287 §3), and
    /// so does this end.
    pub(crate) greased: bool,
    /// Whether it accepts RESET_STREAM_AT.
    pub(crate) reset_stream_at: bool,
    /// Whether it forbids this end to migrate (RFC 9000 §18.2, disable_active_migration).
    pub(crate) forbids_migration: bool,
}

impl PeerParameters {
    /// The defaults of RFC 9000 §18.2.
    const UNKNOWN: Self = Self {
        ack_delay_exponent: 3,
        max_ack_delay: Duration::from_millis(25),
        min_ack_delay: None,
        max_datagram_frame: 0,
        greased: false,
        reset_stream_at: false,
        forbids_migration: false,
    };

    /// What a client remembers of the server for its early data.
    pub(crate) fn remember(&mut self, params: &TransportParameters) {
        self.max_datagram_frame = params.max_datagram_frame_size.unwrap_or(0);
        self.reset_stream_at = params.reset_stream_at;
    }

    /// From the peer's transport parameters, for an end with this rule about the fixed bit.
    pub(crate) fn of(params: &TransportParameters, fixed_bit: FixedBit) -> Self {
        Self {
            ack_delay_exponent: u32::try_from(params.ack_delay_exponent).unwrap_or(3),
            max_ack_delay: Duration::from_millis(params.max_ack_delay_ms),
            min_ack_delay: params.min_ack_delay_us.map(Duration::from_micros),
            max_datagram_frame: params.max_datagram_frame_size.unwrap_or(0),
            greased: params.grease_quic_bit && fixed_bit == FixedBit::Greased,
            reset_stream_at: params.reset_stream_at,
            forbids_migration: params.disable_active_migration,
        }
    }
}

/// The handshake of a connection, and its results.
pub(crate) struct Handshake {
    /// Client or server.
    pub(crate) side: Side,
    /// The QUIC version in use.
    pub(crate) version: u32,
    /// The destination id of the client's first packet, which the server has to confirm (RFC 9000
    /// §7.3).
    pub(crate) original_dcid: ConnectionId,
    /// The TLS session.
    pub(crate) tls: Tls,
    /// What the peer has declared.
    pub(crate) peer: PeerParameters,
    /// Whether the handshake is confirmed (RFC 9001 §4.1.2).
    pub(crate) confirmed: bool,
    /// Facts needed only until then; `None` afterwards.
    pub(crate) attempt: Option<Box<Attempt>>,
}

/// Facts about a handshake that are needed until it is confirmed.
pub(crate) struct Attempt {
    /// The version of the client's first packet (RFC 9368 §1.2), or of its first after a Version
    /// Negotiation packet.
    pub(crate) original_version: u32,
    /// A server has changed the version and has sent nothing in the new one yet.
    pub(crate) announces_version: bool,
    /// The source of the Initial keys: the destination id of the client's first packet, or of the
    /// first after a Retry.
    pub(crate) initial_dcid: ConnectionId,
    /// Servers: Initial keys of the original version, for a client that does not yet know that
    /// another was chosen.
    pub(crate) other_initial: Option<LevelKeys>,
    /// Clients, until the server's first packet: the data needed to start over in another version.
    pub(crate) restart: Option<Restart>,
    /// Clients that send early data: the server's remembered parameters, until it has answered.
    pub(crate) remembered: Option<Box<TransportParameters>>,
    /// Clients: whether a Version Negotiation packet made them start over.
    pub(crate) negotiated: bool,
    /// The source id of the Retry that the client followed.
    pub(crate) retry_scid: Option<ConnectionId>,
    /// The source id of the peer's first packet, once there was one.
    pub(crate) peer_scid: Option<ConnectionId>,
    /// The token for Initial packets.
    pub(crate) token: Vec<u8>,
    /// Whether the peer's transport parameters have been processed.
    pub(crate) has_parameters: bool,
    /// Packets that arrived before their keys.
    pub(crate) early: EarlyPackets,
}

impl Attempt {
    /// An attempt before its first packet.
    pub(crate) fn new(
        version: u32,
        initial_dcid: ConnectionId,
        peer_scid: Option<ConnectionId>,
        restart: Option<Restart>,
        token: Vec<u8>,
    ) -> Self {
        Self {
            original_version: version,
            announces_version: false,
            initial_dcid,
            other_initial: None,
            restart,
            remembered: None,
            negotiated: false,
            retry_scid: None,
            peer_scid,
            token,
            has_parameters: false,
            early: EarlyPackets::default(),
        }
    }
}

impl Handshake {
    /// A handshake before its first packet.
    pub(crate) fn new(
        side: Side,
        version: u32,
        original_dcid: ConnectionId,
        tls: Tls,
        attempt: Attempt,
    ) -> Self {
        Self {
            side,
            version,
            original_dcid,
            tls,
            peer: PeerParameters::UNKNOWN,
            confirmed: false,
            attempt: Some(Box::new(attempt)),
        }
    }

    /// Roughly the bytes of memory that the handshake takes.
    pub(crate) fn memory(&self) -> usize {
        let attempt = self.attempt.as_ref();
        let attempt = attempt.map_or(0, |a| size_of::<Attempt>() + a.early.memory());
        self.tls.memory() + attempt
    }

    /// The handshake is confirmed: drops the facts that are no longer needed.
    pub(crate) fn conclude(&mut self) {
        self.attempt = None;
    }

    /// The token that Initial packets carry.
    pub(crate) fn token(&self) -> &[u8] {
        self.attempt.as_ref().map_or(&[], |a| &a.token)
    }

    /// The version of the client's first packet.
    pub(crate) fn original_version(&self) -> u32 {
        let attempt = self.attempt.as_ref();
        attempt.map_or(self.version, |a| a.original_version)
    }

    /// Whether the next packet is the server's first in a version to which it changed.
    pub(crate) fn take_announcement(&mut self) -> bool {
        let attempt = self.attempt.as_mut();
        attempt.is_some_and(|a| std::mem::take(&mut a.announces_version))
    }

    /// The Initial keys of a version (RFC 9001 §5.2).
    pub(crate) fn initial_keys(&self, version: u32) -> LevelKeys {
        let attempt = self.attempt.as_ref();
        let dcid = attempt.map_or(self.original_dcid, |a| a.initial_dcid);
        initial::keys(version, dcid.as_slice(), self.side == Side::Client).into()
    }

    /// How long the peer delayed an acknowledgement (RFC 9002 §5.3): zero for Initial and Handshake
    /// packets, and no longer than promised once the handshake is confirmed.
    ///
    /// `None` if the RTT cannot be sampled: the delay is more than twice what was promised, and
    /// packets of the peer are missing, probably with an earlier acknowledgement (decision 55).
    pub(crate) fn ack_delay(
        &self,
        id: SpaceId,
        delay: u64,
        received: &ReceivedPackets,
    ) -> Option<Duration> {
        if id != SpaceId::Data {
            return Some(Duration::ZERO);
        }
        let delay = delay.checked_shl(self.peer.ack_delay_exponent);
        let delay = Duration::from_micros(delay.unwrap_or(u64::MAX));
        let promised = self.peer.max_ack_delay;
        match self.confirmed {
            true if delay > 2 * promised && received.has_gaps() => None,
            true => Some(delay.min(promised)),
            false => Some(delay),
        }
    }

    // ---- the peer's packets ---------------------------------------------------------------------

    /// Whether a packet with a long header does not come from the peer: its source id never changes
    /// after its first packet (RFC 9000 §7.2).
    pub(crate) fn is_foreign(&self, scid: ConnectionId) -> bool {
        let attempt = self.attempt.as_ref();
        let known = attempt.and_then(|a| a.peer_scid);
        known.is_some_and(|known| known != scid)
    }

    /// Whether a 0-RTT packet comes from the peer, in the version in which early data is sent.
    pub(crate) fn admits_zero_rtt(&self, scid: ConnectionId, version: u32) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_some_and(|a| a.peer_scid == Some(scid) && a.original_version == version)
    }

    /// A packet with a long header was opened; returns whether it is the first, so that its source
    /// id is the one to send to (RFC 9000 §7.2).
    pub(crate) fn on_opened(&mut self, scid: ConnectionId) -> bool {
        let Some(attempt) = &mut self.attempt else {
            return false;
        };
        attempt.restart = None;
        let first = attempt.peer_scid.is_none();
        attempt.peer_scid.get_or_insert(scid);
        first
    }

    /// Keeps a packet that arrived before its keys, if there is room; returns whether there was.
    pub(crate) fn keep_early(
        &mut self,
        awaited: Awaited,
        packet: &[u8],
        ecn: Ecn,
        now: Time,
    ) -> bool {
        let attempt = self.attempt.as_mut();
        attempt.is_some_and(|a| a.early.keep(awaited, packet, ecn, now))
    }

    /// Takes the packets that waited for these keys, in order of arrival.
    pub(crate) fn take_early(&mut self, awaited: Awaited) -> Vec<EarlyPacket> {
        let attempt = self.attempt.as_mut();
        attempt.map_or_else(Vec::new, |a| a.early.take(awaited))
    }

    // ---- Retry ----------------------------------------------------------------------------------

    /// Whether a client follows a Retry: only one, before any other packet, with a token and an id
    /// other than `dcid` (RFC 9000 §17.2.5.2).
    pub(crate) fn accepts_retry(&self, retry: &Retry<'_>, dcid: ConnectionId) -> bool {
        let attempt = self.attempt.as_ref();
        let fresh = attempt.is_some_and(|a| a.retry_scid.is_none() && a.peer_scid.is_none());
        self.side == Side::Client
            && fresh
            && !retry.token.is_empty()
            && retry.scid != dcid
            && squall_protect::retry::integrity_tag(
                self.version,
                self.original_dcid.as_slice(),
                retry.without_tag,
            ) == retry.tag
    }

    /// Starts over with the server's token and id (RFC 9000 §17.2.5).
    pub(crate) fn follow_retry(&mut self, retry: &Retry<'_>) {
        if let Some(attempt) = &mut self.attempt {
            attempt.retry_scid = Some(retry.scid);
            attempt.initial_dcid = retry.scid;
            attempt.token = retry.token.to_vec();
        }
    }

    // ---- the peer's transport parameters --------------------------------------------------------

    /// Checks that the connection ids in the peer's parameters are those of its packets (RFC 9000
    /// §7.3).
    ///
    /// # Errors
    /// `TRANSPORT_PARAMETER_ERROR`.
    pub(crate) fn check_ids(&self, params: &TransportParameters) -> Result<(), TransportError> {
        let Some(attempt) = &self.attempt else {
            return Ok(());
        };
        if params.initial_source_connection_id != attempt.peer_scid {
            return Err(parameter_error(
                "initial_source_connection_id is not the source of the peer's packets",
            ));
        }
        if self.side == Side::Server {
            return Ok(());
        }
        if params.original_destination_connection_id != Some(self.original_dcid) {
            return Err(parameter_error(
                "original_destination_connection_id is not what the first packet was sent to",
            ));
        }
        if params.retry_source_connection_id != attempt.retry_scid {
            return Err(parameter_error(
                "retry_source_connection_id is not the source of the Retry",
            ));
        }
        Ok(())
    }

    /// Whether the peer's parameters have yet to be processed; from now on they have been.
    pub(crate) fn begin_parameters(&mut self) -> bool {
        let attempt = self.attempt.as_mut();
        attempt.is_some_and(|a| !std::mem::replace(&mut a.has_parameters, true))
    }
}

/// A Retry packet (RFC 9000 §17.2.5).
pub(crate) struct Retry<'a> {
    /// The server's new id.
    pub(crate) scid: ConnectionId,
    /// The token for the next Initial packets.
    pub(crate) token: &'a [u8],
    /// The integrity tag.
    pub(crate) tag: [u8; 16],
    /// The bytes that the tag protects.
    pub(crate) without_tag: &'a [u8],
}
