//! Transport parameters: RFC 9000 §7.4 and §18, RFC 9221 §3, RFC 9287 §3, RFC 9368 §3.

use crate::connection_id::ConnectionId;
use crate::cursor::{Reader, Truncated, Writer};
use crate::error_code::{TransportError, TransportErrorCode};
use crate::stream_id::{self, Side};
use crate::varint;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

/// Identifiers (RFC 9000 §18.2 and the RFCs that added to it).
mod id {
    pub(super) const ORIGINAL_DESTINATION_CONNECTION_ID: u64 = 0x00;
    pub(super) const MAX_IDLE_TIMEOUT: u64 = 0x01;
    pub(super) const STATELESS_RESET_TOKEN: u64 = 0x02;
    pub(super) const MAX_UDP_PAYLOAD_SIZE: u64 = 0x03;
    pub(super) const INITIAL_MAX_DATA: u64 = 0x04;
    pub(super) const INITIAL_MAX_STREAM_DATA_BIDI_LOCAL: u64 = 0x05;
    pub(super) const INITIAL_MAX_STREAM_DATA_BIDI_REMOTE: u64 = 0x06;
    pub(super) const INITIAL_MAX_STREAM_DATA_UNI: u64 = 0x07;
    pub(super) const INITIAL_MAX_STREAMS_BIDI: u64 = 0x08;
    pub(super) const INITIAL_MAX_STREAMS_UNI: u64 = 0x09;
    pub(super) const ACK_DELAY_EXPONENT: u64 = 0x0a;
    pub(super) const MAX_ACK_DELAY: u64 = 0x0b;
    pub(super) const DISABLE_ACTIVE_MIGRATION: u64 = 0x0c;
    pub(super) const PREFERRED_ADDRESS: u64 = 0x0d;
    pub(super) const ACTIVE_CONNECTION_ID_LIMIT: u64 = 0x0e;
    pub(super) const INITIAL_SOURCE_CONNECTION_ID: u64 = 0x0f;
    pub(super) const RETRY_SOURCE_CONNECTION_ID: u64 = 0x10;
    /// RFC 9368 §3.
    pub(super) const VERSION_INFORMATION: u64 = 0x11;
    /// RFC 9221 §3.
    pub(super) const MAX_DATAGRAM_FRAME_SIZE: u64 = 0x20;
    /// draft-ietf-quic-reliable-stream-reset §3.
    pub(super) const RESET_STREAM_AT: u64 = 0x1d;
    /// RFC 9287 §3.
    pub(super) const GREASE_QUIC_BIT: u64 = 0x2ab2;
    /// draft-ietf-quic-ack-frequency §3.
    pub(super) const MIN_ACK_DELAY: u64 = 0xff04_de1b;
}

/// The server's preferred address (RFC 9000 §9.6, §18.2).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PreferredAddress {
    /// The address for IPv4; `None` if the server sent 0.0.0.0:0.
    pub ipv4: Option<SocketAddrV4>,
    /// The address for IPv6; `None` if the server sent \[::\]:0.
    pub ipv6: Option<SocketAddrV6>,
    /// The connection id with sequence number 1; not empty.
    pub connection_id: ConnectionId,
    /// The stateless reset token that belongs to it.
    pub stateless_reset_token: [u8; 16],
}

/// Versions kept from a list that a peer sent.
const MAX_VERSIONS: usize = 16;

/// The version that one end has chosen, and those that it supports (RFC 9368 §3).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct VersionInformation {
    /// The version of this connection, as the sender sees it.
    pub chosen: u32,
    available: [u32; MAX_VERSIONS],
    len: usize,
}

impl VersionInformation {
    /// The information of an end with these `available` versions, its favourite first; any beyond
    /// 16 are omitted.
    #[must_use]
    pub fn new(chosen: u32, available: &[u32]) -> Self {
        let mut new = Self {
            chosen,
            available: [0; MAX_VERSIONS],
            len: 0,
        };
        available.iter().for_each(|version| new.push(*version));
        new
    }

    /// A client's versions that fit its first flight, its favourite first; a server's fully
    /// deployed ones in any order. Only the first 16 of a long list, not counting reserved ones
    /// (RFC 9000 §15), which are never selected.
    #[must_use]
    pub fn available(&self) -> &[u32] {
        &self.available[..self.len]
    }

    fn push(&mut self, version: u32) {
        if let Some(place) = self.available.get_mut(self.len) {
            *place = version;
            self.len += 1;
        }
    }

    /// RFC 9368 §4: the conditions for a parsing failure.
    fn read(value: Value<'_>, sender: Side) -> Result<Self, Invalid> {
        let mut r = Reader::new(value.0);
        let mut read = Self::new(r.u32()?, &[]);
        let mut offered = false;
        let mut zero = read.chosen == 0;
        while !r.is_empty() {
            let version = r.u32()?;
            zero |= version == 0;
            offered |= version == read.chosen;
            if version & 0x0f0f_0f0f != 0x0a0a_0a0a {
                read.push(version);
            }
        }
        if zero {
            return Err(Invalid("version_information with the version 0"));
        }
        if sender == Side::Client && !offered {
            return Err(Invalid(
                "version_information without the chosen version among the available ones",
            ));
        }
        Ok(read)
    }
}

/// One end's declarations in the handshake. [`Default`] is the meaning of absent parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct TransportParameters {
    /// Destination connection id of the client's first Initial. Server only.
    pub original_destination_connection_id: Option<ConnectionId>,
    /// Idle timeout in milliseconds; 0 means none.
    pub max_idle_timeout_ms: u64,
    /// Stateless reset token for the connection id of the handshake. Server only.
    pub stateless_reset_token: Option<[u8; 16]>,
    /// Largest UDP payload that this end receives, in bytes; at least 1200.
    pub max_udp_payload_size: u64,
    /// Bytes that the peer may send on the connection at first.
    pub initial_max_data: u64,
    /// Bytes that the peer may send at first on a bidirectional stream that this end opens.
    pub initial_max_stream_data_bidi_local: u64,
    /// Bytes that the peer may send at first on a bidirectional stream that it opens.
    pub initial_max_stream_data_bidi_remote: u64,
    /// Bytes that the peer may send at first on a unidirectional stream.
    pub initial_max_stream_data_uni: u64,
    /// Bidirectional streams that the peer may open at first; at most 2^60.
    pub initial_max_streams_bidi: u64,
    /// Unidirectional streams that the peer may open at first; at most 2^60.
    pub initial_max_streams_uni: u64,
    /// The shift of the delays in this end's ACK frames, in bits; at most 20.
    pub ack_delay_exponent: u64,
    /// How long this end delays acknowledgements, in milliseconds; below 2^14.
    pub max_ack_delay_ms: u64,
    /// The peer must not migrate to another address of its own.
    pub disable_active_migration: bool,
    /// Where the client should move after the handshake. Server only.
    pub preferred_address: Option<PreferredAddress>,
    /// How many of the peer's connection ids this end stores; at least 2.
    pub active_connection_id_limit: u64,
    /// Source connection id of this end's first Initial.
    pub initial_source_connection_id: Option<ConnectionId>,
    /// Source connection id of the Retry packet. Server only.
    pub retry_source_connection_id: Option<ConnectionId>,
    /// The chosen and available versions (RFC 9368 §3).
    pub version_information: Option<VersionInformation>,
    /// Largest DATAGRAM frame that this end receives, in bytes, type and length included; `None`
    /// means no DATAGRAM frames, and so does the value 0 (RFC 9221 §3).
    pub max_datagram_frame_size: Option<u64>,
    /// This end accepts packets with any value of the fixed bit (RFC 9287 §3).
    pub grease_quic_bit: bool,
    /// The shortest time, in microseconds, for which this end delays an acknowledgement on request;
    /// `None` means no ACK_FREQUENCY and no IMMEDIATE_ACK frames. At most `max_ack_delay_ms`
    /// (draft-ietf-quic-ack-frequency §3).
    pub min_ack_delay_us: Option<u64>,
    /// This end accepts RESET_STREAM_AT frames (draft-ietf-quic-reliable-stream-reset §3).
    pub reset_stream_at: bool,
}

impl Default for TransportParameters {
    fn default() -> Self {
        Self {
            original_destination_connection_id: None,
            max_idle_timeout_ms: 0,
            stateless_reset_token: None,
            max_udp_payload_size: 65_527,
            initial_max_data: 0,
            initial_max_stream_data_bidi_local: 0,
            initial_max_stream_data_bidi_remote: 0,
            initial_max_stream_data_uni: 0,
            initial_max_streams_bidi: 0,
            initial_max_streams_uni: 0,
            ack_delay_exponent: 3,
            max_ack_delay_ms: 25,
            disable_active_migration: false,
            preferred_address: None,
            active_connection_id_limit: 2,
            initial_source_connection_id: None,
            retry_source_connection_id: None,
            version_information: None,
            max_datagram_frame_size: None,
            grease_quic_bit: false,
            min_ack_delay_us: None,
            reset_stream_at: false,
        }
    }
}

impl TransportParameters {
    /// Appends the encoding to `out`. Parameters with their default value are omitted.
    ///
    /// `grease` adds a meaningless parameter with this identifier (of the form 31 * N + 27, RFC
    /// 9000 §18.1) and length, to keep peers tolerant of unknown ones.
    pub fn encode(&self, out: &mut Vec<u8>, grease: Option<(u64, u8)>) {
        let default = Self::default();
        put_id(
            out,
            id::ORIGINAL_DESTINATION_CONNECTION_ID,
            self.original_destination_connection_id,
        );
        if let Some(token) = &self.stateless_reset_token {
            put(out, id::STATELESS_RESET_TOKEN, token);
        }
        for (id, value, absent) in [
            (id::MAX_IDLE_TIMEOUT, self.max_idle_timeout_ms, 0),
            (
                id::MAX_UDP_PAYLOAD_SIZE,
                self.max_udp_payload_size,
                default.max_udp_payload_size,
            ),
            (id::INITIAL_MAX_DATA, self.initial_max_data, 0),
            (
                id::INITIAL_MAX_STREAM_DATA_BIDI_LOCAL,
                self.initial_max_stream_data_bidi_local,
                0,
            ),
            (
                id::INITIAL_MAX_STREAM_DATA_BIDI_REMOTE,
                self.initial_max_stream_data_bidi_remote,
                0,
            ),
            (
                id::INITIAL_MAX_STREAM_DATA_UNI,
                self.initial_max_stream_data_uni,
                0,
            ),
            (
                id::INITIAL_MAX_STREAMS_BIDI,
                self.initial_max_streams_bidi,
                0,
            ),
            (id::INITIAL_MAX_STREAMS_UNI, self.initial_max_streams_uni, 0),
            (
                id::ACK_DELAY_EXPONENT,
                self.ack_delay_exponent,
                default.ack_delay_exponent,
            ),
            (
                id::MAX_ACK_DELAY,
                self.max_ack_delay_ms,
                default.max_ack_delay_ms,
            ),
            (
                id::ACTIVE_CONNECTION_ID_LIMIT,
                self.active_connection_id_limit,
                default.active_connection_id_limit,
            ),
            (
                id::MAX_DATAGRAM_FRAME_SIZE,
                self.max_datagram_frame_size.unwrap_or(0),
                0,
            ),
        ] {
            if value != absent {
                put_integer(out, id, value);
            }
        }
        for (id, set) in [
            (id::DISABLE_ACTIVE_MIGRATION, self.disable_active_migration),
            (id::GREASE_QUIC_BIT, self.grease_quic_bit),
            (id::RESET_STREAM_AT, self.reset_stream_at),
        ] {
            if set {
                put(out, id, &[]);
            }
        }
        if let Some(delay) = self.min_ack_delay_us {
            put_integer(out, id::MIN_ACK_DELAY, delay);
        }
        if let Some(address) = &self.preferred_address {
            put(out, id::PREFERRED_ADDRESS, &address.to_bytes());
        }
        put_id(
            out,
            id::INITIAL_SOURCE_CONNECTION_ID,
            self.initial_source_connection_id,
        );
        put_id(
            out,
            id::RETRY_SOURCE_CONNECTION_ID,
            self.retry_source_connection_id,
        );
        if let Some(versions) = &self.version_information {
            let mut bytes = versions.chosen.to_be_bytes().to_vec();
            bytes.extend((versions.available().iter()).flat_map(|v| v.to_be_bytes()));
            put(out, id::VERSION_INFORMATION, &bytes);
        }
        if let Some((id, len)) = grease {
            debug_assert!(id % 31 == 27, "RFC 9000 §18.1 reserves 31 * N + 27");
            put(out, id, &vec![0; len.into()]);
        }
    }

    /// Reads the parameters that `sender` sent. Unknown ones are ignored (RFC 9000 §7.4.2).
    ///
    /// The connection ids are not compared with those of the packets: that is left to the caller,
    /// which knows them and detects a missing required one in the same comparison (RFC 9000 §7.3).
    ///
    /// # Errors
    /// TRANSPORT_PARAMETER_ERROR for any violation of RFC 9000 §7.4 or §18.2: a parameter that
    /// occurs twice, is out of range, has a wrong length, or may not come from this sender.
    /// (Repeated unknown parameters are ignored: detecting them would take a list of whatever a
    /// peer made up.)
    pub fn decode(bytes: &[u8], sender: Side) -> Result<Self, TransportError> {
        decode(bytes, sender).map_err(|Invalid(reason)| {
            TransportError::new(TransportErrorCode::TRANSPORT_PARAMETER_ERROR, reason)
        })
    }
}

/// Why a parameter is invalid.
struct Invalid(&'static str);

impl From<Truncated> for Invalid {
    fn from(_: Truncated) -> Self {
        Self("transport parameters end early")
    }
}

fn decode(bytes: &[u8], sender: Side) -> Result<TransportParameters, Invalid> {
    let mut parameters = TransportParameters::default();
    let mut seen = 0u64;
    let mut r = Reader::new(bytes);
    while !r.is_empty() {
        let id = r.varint()?;
        let len = r.varint()?;
        let value = Value(r.bytes_u64(len)?);
        // RFC 9000 §18.2: a client must not send what only a server knows.
        let server_only = matches!(
            id,
            id::ORIGINAL_DESTINATION_CONNECTION_ID
                | id::STATELESS_RESET_TOKEN
                | id::PREFERRED_ADDRESS
                | id::RETRY_SOURCE_CONNECTION_ID
        );
        if server_only && sender == Side::Client {
            return Err(Invalid(
                "client sent a parameter that only a server may send",
            ));
        }
        if !read_one(&mut parameters, id, value, sender)? {
            continue;
        }
        // RFC 9000 §7.4: no parameter occurs twice. All known identifiers except two are below 62.
        let bit = 1
            << match id {
                id::MIN_ACK_DELAY => 62,
                id => id.min(63),
            };
        if seen & bit != 0 {
            return Err(Invalid("a parameter occurs twice"));
        }
        seen |= bit;
    }
    // draft-ietf-quic-ack-frequency §3: not above max_ack_delay, which is in milliseconds.
    if parameters
        .min_ack_delay_us
        .is_some_and(|min| min > 1000 * parameters.max_ack_delay_ms)
    {
        return Err(Invalid("min_ack_delay above max_ack_delay"));
    }
    // RFC 9000 §18.2: a server with a zero-length connection id must not give a preferred address.
    if parameters.preferred_address.is_some()
        && parameters
            .initial_source_connection_id
            .is_some_and(|id| id.is_empty())
    {
        return Err(Invalid(
            "preferred_address of a server with a zero-length connection id",
        ));
    }
    Ok(parameters)
}

/// Stores one parameter; false when it is unknown.
fn read_one(
    p: &mut TransportParameters,
    id: u64,
    value: Value<'_>,
    sender: Side,
) -> Result<bool, Invalid> {
    match id {
        id::ORIGINAL_DESTINATION_CONNECTION_ID => {
            p.original_destination_connection_id = Some(value.connection_id()?);
        }
        id::MAX_IDLE_TIMEOUT => p.max_idle_timeout_ms = value.integer()?,
        id::STATELESS_RESET_TOKEN => p.stateless_reset_token = Some(value.array()?),
        id::MAX_UDP_PAYLOAD_SIZE => {
            let reason = "max_udp_payload_size below 1200";
            p.max_udp_payload_size = value.integer_in(1200, varint::MAX, reason)?;
        }
        id::INITIAL_MAX_DATA => p.initial_max_data = value.integer()?,
        id::INITIAL_MAX_STREAM_DATA_BIDI_LOCAL => {
            p.initial_max_stream_data_bidi_local = value.integer()?;
        }
        id::INITIAL_MAX_STREAM_DATA_BIDI_REMOTE => {
            p.initial_max_stream_data_bidi_remote = value.integer()?;
        }
        id::INITIAL_MAX_STREAM_DATA_UNI => p.initial_max_stream_data_uni = value.integer()?,
        id::INITIAL_MAX_STREAMS_BIDI => p.initial_max_streams_bidi = value.stream_count()?,
        id::INITIAL_MAX_STREAMS_UNI => p.initial_max_streams_uni = value.stream_count()?,
        id::ACK_DELAY_EXPONENT => {
            p.ack_delay_exponent = value.integer_in(0, 20, "ack_delay_exponent above 20")?;
        }
        id::MAX_ACK_DELAY => {
            let reason = "max_ack_delay of 2^14 or more";
            p.max_ack_delay_ms = value.integer_in(0, (1 << 14) - 1, reason)?;
        }
        id::DISABLE_ACTIVE_MIGRATION => p.disable_active_migration = value.flag()?,
        id::PREFERRED_ADDRESS => p.preferred_address = Some(PreferredAddress::read(value)?),
        id::ACTIVE_CONNECTION_ID_LIMIT => {
            let reason = "active_connection_id_limit below 2";
            p.active_connection_id_limit = value.integer_in(2, varint::MAX, reason)?;
        }
        id::INITIAL_SOURCE_CONNECTION_ID => {
            p.initial_source_connection_id = Some(value.connection_id()?);
        }
        id::RETRY_SOURCE_CONNECTION_ID => {
            p.retry_source_connection_id = Some(value.connection_id()?);
        }
        id::VERSION_INFORMATION => {
            p.version_information = Some(VersionInformation::read(value, sender)?);
        }
        id::MAX_DATAGRAM_FRAME_SIZE => {
            // RFC 9221 §3: the value 0 is equivalent to an absent parameter.
            p.max_datagram_frame_size = Some(value.integer()?).filter(|&size| size > 0);
        }
        id::GREASE_QUIC_BIT => p.grease_quic_bit = value.flag()?,
        id::MIN_ACK_DELAY => p.min_ack_delay_us = Some(value.integer()?),
        id::RESET_STREAM_AT => p.reset_stream_at = value.flag()?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// The bytes of one parameter. Every way of reading them takes all of them.
#[derive(Copy, Clone)]
struct Value<'a>(&'a [u8]);

impl Value<'_> {
    fn integer(self) -> Result<u64, Invalid> {
        let mut r = Reader::new(self.0);
        match (r.varint(), r.is_empty()) {
            (Ok(value), true) => Ok(value),
            _ => Err(Invalid("an integer parameter of a wrong length")),
        }
    }

    fn integer_in(self, least: u64, most: u64, reason: &'static str) -> Result<u64, Invalid> {
        let value = self.integer()?;
        if (least..=most).contains(&value) {
            Ok(value)
        } else {
            Err(Invalid(reason))
        }
    }

    /// RFC 9000 §4.6: there are no ids for more than 2^60 streams.
    fn stream_count(self) -> Result<u64, Invalid> {
        self.integer_in(0, stream_id::MAX_COUNT, "more than 2^60 streams")
    }

    fn array<const N: usize>(self) -> Result<[u8; N], Invalid> {
        self.0
            .try_into()
            .map_err(|_| Invalid("a parameter of a wrong length"))
    }

    fn flag(self) -> Result<bool, Invalid> {
        self.array::<0>().map(|[]| true)
    }

    fn connection_id(self) -> Result<ConnectionId, Invalid> {
        ConnectionId::new(self.0).ok_or(Invalid("a connection id of more than 20 bytes"))
    }
}

impl PreferredAddress {
    /// RFC 9000 §18.2, figure 22: two addresses with ports, a length, a connection id, a token.
    const MAX_LEN: usize = 4 + 2 + 16 + 2 + 1 + ConnectionId::MAX_LEN + 16;

    fn read(value: Value<'_>) -> Result<Self, Invalid> {
        let mut r = Reader::new(value.0);
        let ipv4 = SocketAddrV4::new(Ipv4Addr::from(r.array::<4>()?), r.u16()?);
        let ipv6 = SocketAddrV6::new(Ipv6Addr::from(r.array::<16>()?), r.u16()?, 0, 0);
        let len = r.u8()?;
        let connection_id = Value(r.bytes(len.into())?).connection_id()?;
        if connection_id.is_empty() {
            return Err(Invalid(
                "preferred_address with a zero-length connection id",
            ));
        }
        let stateless_reset_token = r.array()?;
        if !r.is_empty() {
            return Err(Invalid("preferred_address of a wrong length"));
        }
        // RFC 9000 §18.2: all zero if there is no address of that family.
        let ipv4 = Some(ipv4).filter(|a| !a.ip().is_unspecified() || a.port() != 0);
        let ipv6 = Some(ipv6).filter(|a| !a.ip().is_unspecified() || a.port() != 0);
        Ok(Self {
            ipv4,
            ipv6,
            connection_id,
            stateless_reset_token,
        })
    }

    fn to_bytes(self) -> Vec<u8> {
        let ipv4 = self
            .ipv4
            .unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        let ipv6 = self
            .ipv6
            .unwrap_or(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0));
        let mut bytes = Vec::with_capacity(Self::MAX_LEN);
        bytes.extend_from_slice(&ipv4.ip().octets());
        bytes.extend_from_slice(&ipv4.port().to_be_bytes());
        bytes.extend_from_slice(&ipv6.ip().octets());
        bytes.extend_from_slice(&ipv6.port().to_be_bytes());
        bytes.push(self.connection_id.len() as u8);
        bytes.extend_from_slice(self.connection_id.as_slice());
        bytes.extend_from_slice(&self.stateless_reset_token);
        bytes
    }
}

fn put(out: &mut Vec<u8>, id: u64, value: &[u8]) {
    put_varint(out, id);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn put_integer(out: &mut Vec<u8>, id: u64, value: u64) {
    put_varint(out, id);
    put_varint(out, varint::size(value) as u64);
    put_varint(out, value);
}

fn put_id(out: &mut Vec<u8>, id: u64, value: Option<ConnectionId>) {
    if let Some(value) = value {
        put(out, id, value.as_slice());
    }
}

fn put_varint(out: &mut Vec<u8>, value: u64) {
    let mut bytes = [0; 8];
    let mut w = Writer::new(&mut bytes);
    w.varint(value);
    debug_assert!(!w.overflow(), "a transport parameter holds less than 2^62");
    let len = w.len();
    out.extend_from_slice(bytes.get(..len).unwrap_or_default());
}
