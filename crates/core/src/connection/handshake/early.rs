//! Packets that arrived before their keys: copied aside within bounds, and replayed when the keys
//! are there.

use squall_wire::Ecn;

use crate::config::{MAX_EARLY_BYTES, MAX_EARLY_PACKETS};
use crate::time::Time;

/// The keys that a packet waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// 0-RTT keys, which come with the whole ClientHello.
    ZeroRtt,
    /// Handshake keys.
    Handshake,
    /// 1-RTT keys.
    OneRtt,
}

/// One packet, from its header to the end of its datagram.
pub(crate) struct EarlyPacket {
    /// The keys that it waits for.
    pub(crate) awaited: Awaited,
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// Its ECN mark.
    pub(crate) ecn: Ecn,
    /// When it arrived.
    pub(crate) arrived: Time,
}

/// Packets that wait for keys.
#[derive(Default)]
pub(crate) struct EarlyPackets {
    packets: Vec<EarlyPacket>,
    bytes: usize,
}

impl EarlyPackets {
    /// Bytes of memory that the packets take.
    pub(crate) fn memory(&self) -> usize {
        self.bytes + self.packets.capacity() * size_of::<EarlyPacket>()
    }

    /// Keeps a packet if there is room; returns whether it did.
    pub(crate) fn keep(&mut self, awaited: Awaited, bytes: &[u8], ecn: Ecn, arrived: Time) -> bool {
        if self.packets.len() >= MAX_EARLY_PACKETS || self.bytes + bytes.len() > MAX_EARLY_BYTES {
            return false;
        }
        self.bytes += bytes.len();
        self.packets.push(EarlyPacket {
            awaited,
            bytes: bytes.to_vec(),
            ecn,
            arrived,
        });
        true
    }

    /// Takes the packets that wait for these keys, in order of arrival.
    pub(crate) fn take(&mut self, awaited: Awaited) -> Vec<EarlyPacket> {
        if !self.packets.iter().any(|p| p.awaited == awaited) {
            return Vec::new();
        }
        let (taken, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.packets)
            .into_iter()
            .partition(|p| p.awaited == awaited);
        self.bytes = kept.iter().map(|p| p.bytes.len()).sum();
        self.packets = kept;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffered_early_packets_are_bounded_in_number_and_bytes() {
        let mut early = EarlyPackets::default();
        let kept = (0..100)
            .filter(|_| early.keep(Awaited::OneRtt, &[0; 100], Ecn::NotEct, Time::ZERO))
            .count();
        assert_eq!(kept, MAX_EARLY_PACKETS);
        assert_eq!(early.take(Awaited::Handshake).len(), 0);
        assert_eq!(early.take(Awaited::OneRtt).len(), MAX_EARLY_PACKETS);
        let kept = (0..100)
            .filter(|_| early.keep(Awaited::OneRtt, &[0; 5000], Ecn::NotEct, Time::ZERO))
            .count();
        assert_eq!(kept, MAX_EARLY_BYTES / 5000);
    }
}
