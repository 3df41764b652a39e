//! Bundles of datagrams: what enters and leaves the machine in one system call.
//!
//! ```text
//!   bytes  ├── segment_size ──┼── segment_size ──┼── shorter ──┤     one path, one ECN mark
//! ```

use std::net::{IpAddr, SocketAddr};

/// The two addresses between which datagrams travel.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// The address of this machine that the peer uses; `None` if the socket does not report it.
    pub local: Option<IpAddr>,
}

/// The ECN field of the IP header (RFC 3168 §5).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, ECT(1).
    Ect1 = 1,
    /// ECN-capable transport, ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// From the two low bits of the traffic class or type-of-service byte; other bits are ignored.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The two bits of the IP header.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// The result of one receive: datagrams of the same path and mark, back to back in one buffer.
#[derive(Debug)]
pub struct DatagramBatch<'a> {
    /// The path on which they arrived.
    pub path: Path,
    /// The mark that they carried.
    pub ecn: Ecn,
    /// Bytes of every datagram but the last, which may be shorter.
    pub segment_size: u16,
    /// The datagrams.
    pub bytes: &'a mut [u8],
}

impl DatagramBatch<'_> {
    /// How many datagrams there are.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> usize {
        segments(self.bytes.len(), self.segment_size)
    }
}

/// The input of one send: a description of datagrams that lie in the caller's buffer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// The path on which they are sent.
    pub path: Path,
    /// The mark to send them with.
    pub ecn: Ecn,
    /// Bytes of every datagram but the last, which may be shorter.
    pub segment_size: u16,
    /// Bytes of all datagrams.
    pub len: usize,
}

impl Transmit {
    /// How many datagrams there are.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> usize {
        segments(self.len, self.segment_size)
    }
}

/// A stride of zero cannot split anything: the bytes count as one datagram.
const fn segments(len: usize, segment_size: u16) -> usize {
    match segment_size {
        0 => (len > 0) as usize,
        stride => len.div_ceil(stride as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn count_includes_the_shorter_last_datagram() {
        let path = Path {
            remote: (Ipv4Addr::LOCALHOST, 4433).into(),
            local: None,
        };
        for (len, segment_size, count) in [
            (0, 1200, 0),
            (1, 1200, 1),
            (1200, 1200, 1),
            (1201, 1200, 2),
            (3600, 1200, 3),
            (5, 0, 1),
        ] {
            let mut bytes = vec![0; len];
            let batch = DatagramBatch {
                path,
                ecn: Ecn::NotEct,
                segment_size,
                bytes: &mut bytes,
            };
            assert_eq!(batch.count(), count);
            assert_eq!(
                Transmit {
                    path,
                    ecn: Ecn::NotEct,
                    segment_size,
                    len
                }
                .count(),
                count
            );
        }
    }

    #[test]
    fn ecn_bits_round_trip_and_ignore_the_dscp() {
        for bits in 0..=255u8 {
            assert_eq!(Ecn::from_bits(bits).bits(), bits & 3);
        }
        assert_eq!(Ecn::from_bits(0b01), Ecn::Ect1);
        assert_eq!(Ecn::from_bits(0b10), Ecn::Ect0);
    }
}
