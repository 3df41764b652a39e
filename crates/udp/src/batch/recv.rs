//! The buffer that bundles are received into.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use squall_wire::{DatagramBatch, Ecn, Path, Transmit};

/// The largest datagram that is copied to join others: a copy of one of the usual size costs about
/// 30 ns, and a run of its own several times that.
const MAX_JOINED_BYTES: usize = 2048;

/// One received message; its bytes are in the slot of the same index.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: Path,
    pub(crate) ecn: Ecn,
    pub(crate) segment_size: u16,
    pub(crate) len: usize,
}

impl Entry {
    /// The entry of a slot before its first message.
    const EMPTY: Self = Self {
        path: Path {
            remote: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            local: None,
        },
        ecn: Ecn::NotEct,
        segment_size: 0,
        len: 0,
    };
}

/// Bytes between slots: without them the first bytes of all slots, whose length is a power of two,
/// would share a few lines of each cache.
const SKEW: usize = 25 * 64;

/// The buffer of a receive call: some slots of one message each.
#[derive(Debug)]
pub struct RecvBatch {
    buffer: Box<[u8]>,
    slot_bytes: usize,
    /// Slots that the next call may fill, and the bytes that they should hold together.
    room: usize,
    within: usize,
    entries: Box<[Entry]>,
    filled: usize,
    drained: bool,
    dropped: u64,
}

impl RecvBatch {
    /// A batch of `messages` slots (at least 1) of `bytes` bytes each. With GRO a slot should hold
    /// 65,536 bytes.
    #[must_use]
    pub fn new(messages: usize, bytes: usize) -> Self {
        Self::within(messages, bytes, usize::MAX)
    }

    /// As [`new`](Self::new), but a call asks for fewer messages if they are long: as many as fill
    /// `within` bytes if they are like the previous ones, and at least two. Received data is then
    /// still in the level-2 cache when it is opened.
    #[must_use]
    pub fn within(messages: usize, bytes: usize, within: usize) -> Self {
        let messages = messages.max(1);
        let slot_bytes = bytes.max(1);
        Self {
            buffer: vec![0; messages * (slot_bytes + SKEW)].into_boxed_slice(),
            slot_bytes,
            room: messages,
            within,
            entries: vec![Entry::EMPTY; messages].into_boxed_slice(),
            filled: 0,
            drained: false,
            dropped: 0,
        }
    }

    /// The bundles of the last receive call, in order of arrival. Single datagrams of one path and
    /// size share a bundle, with GRO or without. Empty datagrams are left out; they are counted as
    /// received messages.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = DatagramBatch<'_>> {
        let slots = self.buffer.chunks_exact_mut(self.slot_bytes + SKEW);
        self.entries
            .iter()
            .take(self.filled)
            .zip(slots)
            .filter_map(|(entry, slot)| {
                let bytes = slot
                    .get_mut(..entry.len)
                    .filter(|bytes| !bytes.is_empty())?;
                Some(DatagramBatch {
                    path: entry.path,
                    ecn: entry.ecn,
                    segment_size: entry.segment_size,
                    bytes,
                })
            })
    }

    /// Bytes received by the last call.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries
            .iter()
            .take(self.filled)
            .map(|entry| entry.len)
            .sum()
    }

    /// Fills the batch from a source other than a [`Socket`](crate::Socket): `next` receives a
    /// message into the given slot and describes it. Returns the number of messages.
    ///
    /// # Errors
    /// That of the first call. A later one is not returned, since it will recur; if it is
    /// `WouldBlock`, the batch counts as [`drained`](Self::drained).
    pub fn fill(
        &mut self,
        mut next: impl FnMut(&mut [u8]) -> io::Result<Transmit>,
    ) -> io::Result<usize> {
        let (slots, entries) = self.parts();
        let (mut filled, mut drained, mut first) = (0, false, Ok(()));
        for (slot, entry) in slots.zip(entries) {
            match next(slot) {
                Ok(Transmit {
                    path,
                    ecn,
                    segment_size,
                    len,
                }) => {
                    let len = len.min(slot.len());
                    *entry = Entry {
                        path,
                        ecn,
                        segment_size,
                        len,
                    };
                    filled += 1;
                }
                Err(error) => {
                    drained = error.kind() == io::ErrorKind::WouldBlock;
                    if filled == 0 {
                        first = Err(error);
                    }
                    break;
                }
            }
        }
        self.received(filled, drained, 0);
        first.map(|()| filled)
    }

    /// Number of messages from the last receive call, including empty ones.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.filled
    }

    /// Limits the next receive call to this many messages (at least 1). Each later call may double
    /// the number.
    pub fn limit_next(&mut self, messages: usize) {
        self.room = self.room.min(messages.max(1));
    }

    /// Whether the last receive call emptied the socket's queue. A caller that sleeps on readiness
    /// may then sleep without another call that only returns `WouldBlock`.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.drained
    }

    /// Datagrams that the kernel reported as dropped because the receive buffer was full, summed
    /// over the calls with this batch.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The slots to receive into and the entries to describe them with.
    pub(crate) fn parts(&mut self) -> (impl Iterator<Item = &mut [u8]>, &mut [Entry]) {
        self.filled = 0;
        self.drained = false;
        let slot_bytes = self.slot_bytes;
        let slots = self.buffer.chunks_exact_mut(slot_bytes + SKEW);
        let slots = slots.take(self.room);
        let slots = slots.filter_map(move |slot| slot.get_mut(..slot_bytes));
        (slots, &mut self.entries[..self.room])
    }

    /// Records the result of a receive call: `filled` messages of `asked`, and the number of new
    /// drops.
    pub(crate) fn received(&mut self, filled: usize, drained: bool, dropped: u64) {
        self.filled = filled.min(self.entries.len());
        self.drained = drained;
        self.dropped += dropped;
        let total = self.within.saturating_mul(self.filled);
        if let Some(like_these) = total.checked_div(self.bytes()) {
            // In small steps: one short message says nothing about long ones that follow it.
            self.room = like_these.clamp(2, 2 * self.room).min(self.entries.len());
        }
        self.join_singles();
    }

    /// Makes bundles of single datagrams, as the kernel does with GRO: each is copied behind what
    /// came before it, if that has the same path and mark and datagrams of the same size. A
    /// shorter one ends a bundle.
    fn join_singles(&mut self) {
        let stride = self.slot_bytes + SKEW;
        let mut head = 0;
        for at in 1..self.filled {
            let [first, .., next] = &mut self.entries[head..=at] else {
                continue;
            };
            let size = usize::from(first.segment_size);
            let end = first.len + next.len;
            let joins = (1..=size.min(MAX_JOINED_BYTES)).contains(&next.len)
                && usize::from(next.segment_size) >= next.len
                && first.len.is_multiple_of(size)
                && end <= self.slot_bytes
                && (next.path, next.ecn) == (first.path, first.ecn);
            if !joins {
                head = at;
                continue;
            }
            let from = at * stride;
            self.buffer
                .copy_within(from..from + next.len, head * stride + first.len);
            first.len = end;
            next.len = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_empty_datagrams_are_skipped() {
        let mut batch = RecvBatch::new(3, 16);
        let (_, entries) = batch.parts();
        entries[0].len = 4;
        entries[1].len = 0;
        entries[2].len = 5;
        batch.received(3, true, 2);
        let lens: Vec<usize> = batch.iter_mut().map(|b| b.bytes.len()).collect();
        assert_eq!(lens, [4, 5]);
        assert_eq!(batch.dropped(), 2);
    }

    #[test]
    fn single_datagrams_are_joined_to_preceding_ones() {
        const SLOT: usize = 4096;
        let path = |port| Path {
            remote: SocketAddr::from(([127, 0, 0, 1], port)),
            local: None,
        };
        let mut batch = RecvBatch::new(16, SLOT);
        // Port, length and segment size of each message, and how many it is joined with.
        let messages: [(u16, usize, u16); 16] = [
            (1, 300, 100), // a bundle
            (1, 100, 100),
            (1, 90, 90), // ends it
            (1, 100, 100),
            (2, 100, 100), // another path
            (2, 100, 100),
            (2, 120, 120), // longer
            (2, 120, 60),  // a bundle joins nothing
            (2, 60, 60),
            (2, 0, 0), // empty
            (2, 60, 60),
            (3, 2048, 2048), // a slot holds two
            (3, 2048, 2048),
            (3, 2048, 2048),
            (4, 2049, 2049), // too long to copy
            (4, 2049, 2049),
        ];
        let (slots, entries) = batch.parts();
        for (at, ((entry, slot), message)) in
            entries.iter_mut().zip(slots).zip(messages).enumerate()
        {
            let (port, len, segment_size) = message;
            *entry = Entry {
                path: path(port),
                segment_size,
                len,
                ..Entry::EMPTY
            };
            slot[..len].fill(at as u8);
        }
        batch.entries[3].ecn = Ecn::Ce;
        batch.received(16, true, 0);
        assert_eq!(
            batch.bytes(),
            messages.iter().map(|message| message.1).sum()
        );
        let bundles: Vec<(u16, u16, Vec<u8>)> = (batch.iter_mut())
            .map(|bundle| {
                let sizes = bundle.bytes.chunks(usize::from(bundle.segment_size));
                let datagrams = sizes.map(|datagram| {
                    assert!(datagram.iter().all(|byte| *byte == datagram[0]));
                    datagram[0]
                });
                (
                    bundle.path.remote.port(),
                    bundle.segment_size,
                    datagrams.collect(),
                )
            })
            .collect();
        assert_eq!(
            bundles,
            [
                (1, 100, vec![0, 0, 0, 1, 2]),
                (1, 100, vec![3]),
                (2, 100, vec![4, 5]),
                (2, 120, vec![6]),
                (2, 60, vec![7, 7, 8]),
                (2, 60, vec![10]),
                (3, 2048, vec![11, 12]),
                (3, 2048, vec![13]),
                (4, 2049, vec![14]),
                (4, 2049, vec![15]),
            ]
        );
    }

    #[test]
    fn the_number_of_receive_slots_grows_while_messages_are_short() {
        let mut batch = RecvBatch::within(16, 1000, 2000);
        let mut room = |lens: &[usize]| {
            let (_, entries) = batch.parts();
            for (entry, len) in entries.iter_mut().zip(lens) {
                entry.len = *len;
            }
            batch.received(lens.len(), true, 0);
            batch.parts().0.count()
        };
        assert_eq!(room(&[1000; 16]), 2, "enough slots for 2,000 bytes");
        assert_eq!(room(&[10]), 4);
        assert_eq!(room(&[10; 4]), 8);
        assert_eq!(room(&[0; 8]), 8, "empty messages reveal no length");
        assert_eq!(room(&[10; 8]), 16);
        assert_eq!(room(&[10; 16]), 16, "the batch has no more slots");
        assert_eq!(room(&[400; 16]), 5);
    }

    #[test]
    fn a_slot_limit_applies_to_one_call() {
        let mut batch = RecvBatch::within(16, 1000, 2000);
        let mut room = |filled: usize, limit: usize| {
            batch.parts().1[..filled]
                .iter_mut()
                .for_each(|entry| entry.len = 10);
            batch.received(filled, true, 0);
            batch.limit_next(limit);
            batch.parts().0.count()
        };
        assert_eq!(room(16, 3), 3);
        assert_eq!(room(3, 16), 6, "the number of slots doubles");
        assert_eq!(room(6, 0), 1, "at least one slot is used");
        assert_eq!(room(1, 16), 2);
    }
}
