//! The kinds of packets, as values.

use crate::connection_id::ConnectionId;
use crate::cursor::Truncated;
use std::fmt;

/// The fixed bit (RFC 9000 §17.2, §17.3.1). The bit of a first byte that is 1 in every packet of
/// versions 1 and 2, unless it is greased (RFC 9287).
pub const FIXED_BIT: u8 = 0x40;
/// QUIC version 1 (RFC 9000 §15).
pub const VERSION_1: u32 = 1;
/// QUIC version 2 (RFC 9369 §3.1).
pub const VERSION_2: u32 = 0x6b33_43cf;

/// The types of packets with a long header.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum LongType {
    /// Initial (RFC 9000 §17.2.2).
    Initial,
    /// 0-RTT (RFC 9000 §17.2.3).
    ZeroRtt,
    /// Handshake (RFC 9000 §17.2.4).
    Handshake,
    /// Retry (RFC 9000 §17.2.5).
    Retry,
}

impl LongType {
    /// The type that the two bits with mask 0x30 of a first byte stand for in this version.
    #[inline]
    #[must_use]
    pub const fn from_first_byte(first: u8, version: u32) -> Self {
        match ((first >> 4) & 3).wrapping_sub(Self::Initial.number(version)) & 3 {
            0 => Self::Initial,
            1 => Self::ZeroRtt,
            2 => Self::Handshake,
            _ => Self::Retry,
        }
    }

    /// The number of this type in this version, 0 to 3. Every version except 2 counts as version 1.
    #[inline]
    #[must_use]
    pub const fn number(self, version: u32) -> u8 {
        // RFC 9369 §3.2: version 2 has the numbers of version 1 (RFC 9000 §17.2, table 5), rotated
        // by one.
        let shift = if version == VERSION_2 { 1 } else { 0 };
        (self as u8 + shift) & 3
    }
}

/// One packet's header, as far as it can be read before header protection is removed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Header<'a> {
    /// Initial, 0-RTT or Handshake of version 1 or 2.
    Long {
        /// Which of them; never [`LongType::Retry`].
        ty: LongType,
        /// [`VERSION_1`] or [`VERSION_2`].
        version: u32,
        /// Destination connection id.
        dcid: ConnectionId,
        /// Source connection id.
        scid: ConnectionId,
        /// The token of an Initial; empty for the others.
        token: &'a [u8],
        /// Where the packet number starts, in bytes from the start of the packet.
        pn_offset: usize,
        /// Bytes of the packet, from the first of the header to the last of the tag. Any bytes
        /// after it in the datagram are another packet (RFC 9000 §12.2).
        len: usize,
    },
    /// 1-RTT; it takes the rest of the datagram.
    Short {
        /// Destination connection id.
        dcid: ConnectionId,
        /// Where the packet number starts, in bytes from the start of the packet.
        pn_offset: usize,
        /// Bytes of the packet.
        len: usize,
    },
    /// Retry of version 1 or 2; it takes the rest of the datagram.
    Retry {
        /// [`VERSION_1`] or [`VERSION_2`].
        version: u32,
        /// Destination connection id.
        dcid: ConnectionId,
        /// Source connection id.
        scid: ConnectionId,
        /// The token that the client has to return; not empty.
        token: &'a [u8],
        /// The Retry integrity tag (RFC 9001 §5.8).
        tag: [u8; 16],
        /// The bytes that the tag covers, except for the original destination connection id.
        without_tag: &'a [u8],
    },
    /// Version negotiation (RFC 8999 §6); it takes the rest of the datagram.
    VersionNegotiation {
        /// Destination connection id, of any length up to 255.
        dcid: &'a [u8],
        /// Source connection id, of any length up to 255.
        scid: &'a [u8],
        /// The versions that the server offers, 4 bytes each; at least one.
        versions: &'a [u8],
    },
    /// A long header of a version that is neither 1 nor 2.
    Unsupported {
        /// That version; not 0.
        version: u32,
        /// Destination connection id, of any length up to 255.
        dcid: &'a [u8],
        /// Source connection id, of any length up to 255.
        scid: &'a [u8],
    },
}

/// Why the bytes are not a packet. All of these are dropped without a reply (RFC 9000 §5.2).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum HeaderError {
    /// The datagram ends in the middle of the header.
    Truncated,
    /// The fixed bit of version 1 and 2 is zero (RFC 9000 §17.2, §17.3.1).
    FixedBit,
    /// A connection id of more than 20 bytes in version 1 or 2 (RFC 9000 §17.2).
    ConnectionId,
    /// A Length beyond the end of the datagram, a Retry without a token (RFC 9000 §17.2.5.2), or a
    /// list of versions that is empty or cut off (RFC 8999 §6).
    Length,
}

impl From<Truncated> for HeaderError {
    #[inline]
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "datagram ends in the middle of a header",
            Self::FixedBit => "fixed bit is zero",
            Self::ConnectionId => "connection id is longer than 20 bytes",
            Self::Length => "a length in the header does not match the datagram",
        })
    }
}

impl std::error::Error for HeaderError {}

/// How a receiver treats the fixed bit.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum FixedBit {
    /// It has to be 1: the rule of RFC 9000.
    Required,
    /// It may be anything, because this endpoint has sent grease_quic_bit (RFC 9287 §3).
    Greased,
}

impl FixedBit {
    /// Whether a packet of version 1 or 2 may start with this byte.
    #[inline]
    #[must_use]
    pub const fn admits(self, first: u8) -> bool {
        first & FIXED_BIT != 0 || matches!(self, Self::Greased)
    }
}
