//! Failed calls by error number: a small table, so that an operator sees *why* datagrams are lost.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Error numbers counted separately. Linux has about thirty that a send can plausibly return; a
/// machine meets two or three.
const KINDS: usize = 16;

/// How often one error occurred.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorCount {
    /// The system's error number (`errno`). 0 collects errors without a number, and those that
    /// occurred when the table was full.
    pub errno: i32,
    /// Messages dropped because sending them failed with it.
    pub sends: u64,
    /// Receive calls that failed with it.
    pub receives: u64,
}

/// The errors of a socket's calls, by error number. At most 16 numbers are counted separately.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts([ErrorCount; KINDS]);

impl ErrorCounts {
    /// Each error that occurred, in order of first occurrence.
    pub fn iter(&self) -> impl Iterator<Item = ErrorCount> {
        let met = |count: &ErrorCount| count.sends > 0 || count.receives > 0;
        self.0.iter().copied().filter(met)
    }

    /// How often `errno` occurred.
    #[must_use]
    pub fn of(&self, errno: i32) -> ErrorCount {
        let found = self.iter().find(|count| count.errno == errno);
        found.unwrap_or(ErrorCount {
            errno,
            ..ErrorCount::default()
        })
    }
}

impl std::ops::AddAssign for ErrorCounts {
    /// The sum over several sockets.
    fn add_assign(&mut self, other: Self) {
        for count in other.iter() {
            let slot = slot_of(&mut self.0, count.errno);
            slot.sends += count.sends;
            slot.receives += count.receives;
        }
    }
}

/// The slot of `errno`: its own, a free one, or the first, which collects all others.
fn slot_of(counts: &mut [ErrorCount; KINDS], errno: i32) -> &mut ErrorCount {
    let own = counts
        .iter()
        .skip(1)
        .position(|count| count.errno == errno || count.errno == 0);
    let slot = &mut counts[own.filter(|_| errno != 0).map_or(0, |at| at + 1)];
    if errno != 0 && slot.errno == 0 && own.is_some() {
        slot.errno = errno;
    }
    slot
}

/// The table that a socket counts in. One thread counts at a time in practice; any thread may read.
#[derive(Debug, Default)]
pub(crate) struct ErrorTable([Slot; KINDS]);

#[derive(Debug, Default)]
struct Slot {
    errno: AtomicI32,
    sends: AtomicU64,
    receives: AtomicU64,
}

impl ErrorTable {
    /// A message was dropped.
    pub(crate) fn send(&self, error: &std::io::Error) {
        self.slot(error).sends.fetch_add(1, Ordering::Relaxed);
    }

    /// A receive call failed.
    pub(crate) fn receive(&self, error: &std::io::Error) {
        self.slot(error).receives.fetch_add(1, Ordering::Relaxed);
    }

    fn slot(&self, error: &std::io::Error) -> &Slot {
        let [others, own @ ..] = &self.0;
        let errno = error.raw_os_error().unwrap_or(0);
        if errno == 0 {
            return others;
        }
        own.iter()
            .find(|slot| {
                let claimed =
                    slot.errno
                        .compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
                claimed.is_ok() || claimed == Err(errno)
            })
            .unwrap_or(others)
    }

    pub(crate) fn read(&self) -> ErrorCounts {
        ErrorCounts(std::array::from_fn(|at| {
            let slot = &self.0[at];
            ErrorCount {
                errno: slot.errno.load(Ordering::Relaxed),
                sends: slot.sends.load(Ordering::Relaxed),
                receives: slot.receives.load(Ordering::Relaxed),
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn errors_are_counted_by_number_until_the_table_is_full() {
        let table = ErrorTable::default();
        for errno in 1..=40 {
            table.send(&io::Error::from_raw_os_error(errno));
        }
        table.receive(&io::Error::from_raw_os_error(3));
        table.send(&io::Error::other("without a number"));
        let mut counts = table.read();
        let of = |counts: &ErrorCounts, errno| {
            let count = counts.of(errno);
            (count.sends, count.receives)
        };
        assert_eq!(of(&counts, 3), (1, 1));
        assert_eq!(of(&counts, 15), (1, 0));
        // The 25 after the fifteenth, and the one without a number.
        assert_eq!(of(&counts, 0), (26, 0));
        assert_eq!(of(&counts, 16), (0, 0));
        // Two sockets: the sum loses nothing, in whatever order each saw the errors.
        let other = ErrorTable::default();
        other.receive(&io::Error::from_raw_os_error(77));
        other.send(&io::Error::from_raw_os_error(15));
        counts += other.read();
        assert_eq!(of(&counts, 15), (2, 0));
        assert_eq!(of(&counts, 0), (26, 1));
        let mut fresh = ErrorCounts::default();
        fresh += other.read();
        assert_eq!(of(&fresh, 77), (0, 1));
        assert_eq!(fresh.iter().count(), 2);
    }
}
