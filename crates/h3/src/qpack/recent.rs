//! Recently encoded lines: an entry is worth its room only if its line occurs again.

/// Number of lines remembered. A line that recurs after more others than this is unlikely to be
/// remembered, and had it been inserted, unlikely to be still in a table of the usual 4096 bytes.
const SLOTS: usize = 128;

/// Hashes of the last lines, each with the time of its last occurrence. If two lines share a slot,
/// the later one takes it.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Empty until the first line.
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    fingerprint: u32,
    time: u32,
}

impl Recent {
    /// Remembers the line with this hash at `time`, which counts lines. Returns how many lines ago
    /// it last occurred, if known.
    pub(super) fn replace(&mut self, hash: u64, time: u32) -> Option<u32> {
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, Slot::default());
        }
        let slot = self.slots.get_mut(hash as usize % SLOTS)?;
        // The low bits are the same for all lines that share a slot. 0 means no line.
        let fingerprint = (hash >> 32) as u32 | 1;
        let known = slot.fingerprint == fingerprint;
        let distance = time.wrapping_sub(slot.time);
        *slot = Slot { fingerprint, time };
        known.then_some(distance)
    }
}
