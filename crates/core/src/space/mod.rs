//! One packet number space (RFC 9000 §12.3): received numbers and whether an acknowledgement is
//! owed, sent packets that are not settled, and the CRYPTO stream of its level.

pub(crate) mod received;
pub(crate) mod sent;

use std::ops::{Index, IndexMut};

use squall_protect::{Keys, Pair};

use crate::stream::reassembly::Reassembly;
use crate::stream::send_buffer::SendBuffer;
use crate::time::Time;
use received::ReceivedPackets;
use sent::SentPackets;

/// The three packet number spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpaceId {
    /// Initial packets.
    Initial = 0,
    /// Handshake packets.
    Handshake = 1,
    /// 0-RTT and 1-RTT packets.
    Data = 2,
}

impl SpaceId {
    /// All spaces, in the order of the handshake.
    pub(crate) const ALL: [Self; 3] = [Self::Initial, Self::Handshake, Self::Data];
}

/// A value for each space.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PerSpace<T>([T; 3]);

impl<T> Index<SpaceId> for PerSpace<T> {
    type Output = T;

    #[inline]
    fn index(&self, id: SpaceId) -> &T {
        &self.0[id as usize]
    }
}

impl<T> IndexMut<SpaceId> for PerSpace<T> {
    #[inline]
    fn index_mut(&mut self, id: SpaceId) -> &mut T {
        &mut self.0[id as usize]
    }
}

/// State of one packet number space.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Space {
    // For every packet.
    /// Numbers received.
    pub(crate) received: ReceivedPackets,
    /// Packets sent.
    pub(crate) sent: SentPackets,
    /// The largest number that the peer has acknowledged.
    pub(crate) largest_acked: Option<u64>,
    /// When the earliest packet that is late, but not late enough, counts as lost.
    pub(crate) loss_time: Option<Time>,
    /// When the last ack-eliciting packet left.
    pub(crate) last_eliciting: Time,
    /// Acknowledgements of the handshake sent since the peer last sent something new to TLS.
    pub(crate) idle_acks: u32,
    /// Probe packets owed after a probe timeout (RFC 9002 §6.2.4).
    pub(crate) probes: u8,
    /// Whether the keys were dropped: late packets are ignored (RFC 9001 §4.9).
    pub(crate) discarded: bool,
    /// Handshake bytes to be sent.
    pub(crate) crypto_send: SendBuffer,

    // For the handshake, and hardly ever later.
    /// Handshake bytes received.
    pub(crate) crypto_recv: Reassembly,
    /// Keys of the level; in the data space only the 0-RTT keys, as the key ring holds the others.
    pub(crate) keys: Option<LevelKeys>,
}

impl Space {
    /// Prefetches the records of the packets that were sent and received last.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.sent.prefetch();
        self.received.prefetch();
    }

    /// A space whose keys were dropped long ago.
    pub(crate) fn gone() -> Self {
        Self {
            discarded: true,
            ..Self::default()
        }
    }

    /// Drops the keys and all records (RFC 9001 §4.9); returns the bytes that were in flight.
    pub(crate) fn discard(&mut self) -> u64 {
        self.discarded = true;
        self.keys = None;
        self.probes = 0;
        self.loss_time = None;
        self.crypto_send.clear();
        self.sent.discard()
    }
}

/// Keys of both directions of one level.
pub(crate) struct LevelKeys {
    /// The keys with which this end seals.
    pub(crate) local: Keys,
    /// The keys with which this end opens.
    pub(crate) remote: Keys,
}

impl From<Pair> for LevelKeys {
    fn from(Pair { local, remote }: Pair) -> Self {
        Self { local, remote }
    }
}
