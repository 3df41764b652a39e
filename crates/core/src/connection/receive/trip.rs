//! One run on its way through the six steps.

use squall_wire::{ConnectionId, Ecn, Path};

use crate::path::ecn::Counting;
use crate::space::{PerSpace, SpaceId};
use crate::stages::Stages;
use crate::time::Time;

/// The state of a run and its results so far; settled once at its end.
pub(crate) struct Trip<'a> {
    /// When the run arrived; for a packet that waited for its keys, when that packet arrived.
    pub(crate) now: Time,
    /// Where the time is attributed.
    pub(crate) stages: &'a mut Stages,
    /// The destination id of the datagrams.
    pub(crate) dcid: ConnectionId,
    /// The path on which the run arrived.
    pub(crate) path: Path,
    /// Its ECN mark.
    pub(crate) ecn: Ecn,
    /// Whether the run counts as arriving on the active path. A client's own address may differ
    /// from that of the path, if it lets the system choose (`new_address`).
    pub(crate) home: bool,
    /// Whether the addresses of the run differ from those of the active path.
    pub(crate) new_address: bool,
    /// Bytes of a run from elsewhere that have not been credited to a path yet.
    pub(crate) uncredited: usize,
    /// Whether the newest packet came from elsewhere and was not a probe.
    pub(crate) moved: bool,
    /// Bytes of the datagram being split.
    pub(crate) datagram_len: usize,
    /// Whether a packet was opened: the peer is alive.
    pub(crate) opened: bool,
    /// Spaces with an ack-eliciting packet.
    pub(crate) eliciting: PerSpace<bool>,
    /// Whether the packet being processed is a 0-RTT packet.
    pub(crate) early: bool,
    /// Tokens kept from NEW_TOKEN frames.
    pub(crate) tokens: u8,
    /// A bit for each of our first 64 connection ids: whether it was retired before, as far as the
    /// run's frames have asked.
    pub(crate) retired: u64,
    /// The result of its ACK frames.
    pub(crate) acked: AckTotals,
}

impl<'a> Trip<'a> {
    /// A run of which nothing is processed yet.
    pub(crate) fn new(
        now: Time,
        dcid: ConnectionId,
        path: Path,
        home: bool,
        ecn: Ecn,
        stages: &'a mut Stages,
    ) -> Self {
        Self {
            now,
            stages,
            dcid,
            path,
            ecn,
            home,
            new_address: !home,
            uncredited: 0,
            moved: false,
            datagram_len: 0,
            opened: false,
            eliciting: PerSpace::default(),
            early: false,
            tokens: 0,
            retired: 0,
            acked: AckTotals::default(),
        }
    }
}

/// The totals over the ACK frames of one run, passed to congestion control once.
#[derive(Debug, Default)]
pub(crate) struct AckTotals {
    /// Spaces with a packet newly acknowledged.
    pub(crate) spaces: PerSpace<bool>,
    /// Packets of the active path, and their bytes.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// When the newest of them was sent.
    pub(crate) newest_sent: Time,
    /// Whether the window was full when one of them was sent: a pacer refills it between two
    /// acknowledgements, so it is not full all the time (RFC 9002 §7.8).
    pub(crate) window_limited: bool,
    /// Which of them were sent with an ECN mark, and how many, if that is counted one by one.
    pub(crate) counting: Counting,
    pub(crate) marked: u64,
    /// Packets that newly met congestion.
    pub(crate) congested: u64,
    /// For the twin test: whether packets are never taken together, and how many were.
    #[cfg(test)]
    pub(crate) singly: bool,
    #[cfg(test)]
    pub(crate) in_runs: u64,
}

impl AckTotals {
    /// Whether a packet of any space was newly acknowledged.
    pub(crate) fn any(&self) -> bool {
        SpaceId::ALL.into_iter().any(|id| self.spaces[id])
    }
}
