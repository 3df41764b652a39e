//! Where bundles do not pass, and for how long GSO stays off there.
//!
//! ```text
//! a bundle is refused (EIO) ─ its destination's prefix ─> table, for a minute; datagrams go singly
//! 32 refusals in a row, no bundle passed in between ────> GSO is off for every destination, for a
//!                                                         minute
//! ```
//! Whether a device can segment depends on the route (checksum offload, IPsec), which user space
//! cannot see: the destination's prefix stands for it. While nothing is refused, a send call costs
//! one relaxed load here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Prefixes remembered at a time; the oldest is replaced. More refusals in a row than that, without
/// a bundle that passes, are blamed on all routes: probing each destination separately would fail
/// once for each.
const PREFIXES: usize = 32;

/// Bundles refused in a row for their size, although their datagrams were then sent singly, after
/// which the route's MTU cannot be the reason.
const SIZE_STRIKES: u32 = 3;

/// The GSO state of a socket.
#[derive(Debug)]
pub(crate) struct Gso {
    /// The number that the kernel supports; 1: none.
    segments: usize,
    /// How long GSO stays off after a refusal.
    retry: Duration,
    /// Whether the table has an entry.
    restricted: AtomicBool,
    /// Whether GSO is off for every destination.
    everywhere: AtomicBool,
    /// Bundles refused by a device since the last one that passed.
    refusals: AtomicU32,
    /// Bundles refused for their size since the last one that passed.
    size_strikes: AtomicU32,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Oldest first, each with its time of expiry. Never grows beyond its initial capacity.
    prefixes: Vec<(IpAddr, Instant)>,
    everywhere: Option<Instant>,
}

impl Table {
    fn expire(&mut self, now: Instant) {
        self.prefixes.retain(|(_, until)| now < *until);
        self.everywhere = self.everywhere.filter(|until| now < *until);
    }

    fn covers(&self, remote: IpAddr) -> bool {
        let prefix = prefix(remote);
        self.everywhere.is_some() || self.prefixes.iter().any(|(entry, _)| *entry == prefix)
    }
}

impl Gso {
    pub(crate) fn new(segments: usize, retry: Duration) -> Self {
        Self {
            segments,
            retry,
            restricted: AtomicBool::new(false),
            everywhere: AtomicBool::new(false),
            refusals: AtomicU32::new(0),
            size_strikes: AtomicU32::new(0),
            table: Mutex::new(Table {
                prefixes: Vec::with_capacity(PREFIXES),
                everywhere: None,
            }),
        }
    }

    /// Datagrams that one bundle may currently carry; 1: bundles pass nowhere.
    pub(crate) fn segments(&self) -> usize {
        if self.everywhere.load(Ordering::Relaxed) {
            1
        } else {
            self.segments
        }
    }

    /// Whether bundles may be sent to every destination, so that no further check is needed.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.segments > 1 && !self.restricted.load(Ordering::Relaxed)
    }

    /// Calls `split` with a predicate: whether the bundles to a destination have to be sent as
    /// single datagrams.
    pub(crate) fn restrict(&self, now: Instant, split: impl FnOnce(&dyn Fn(IpAddr) -> bool)) {
        if self.segments <= 1 {
            return split(&|_| true);
        }
        let mut table = self.lock();
        table.expire(now);
        self.publish(&table);
        split(&|remote| table.covers(remote));
    }

    /// A device refused a bundle to `remote`.
    pub(crate) fn on_refused(&self, remote: IpAddr, now: Instant) {
        let refusals = self.refusals.fetch_add(1, Ordering::Relaxed) + 1;
        let until = now + self.retry;
        let mut table = self.lock();
        if refusals as usize >= PREFIXES {
            table.everywhere = Some(until);
            // When the minute is over, every destination is tried again.
            self.refusals.store(0, Ordering::Relaxed);
        }
        let prefix = prefix(remote);
        table.prefixes.retain(|(entry, _)| *entry != prefix);
        if table.prefixes.len() == PREFIXES {
            table.prefixes.remove(0);
        }
        table.prefixes.push((prefix, until));
        self.publish(&table);
    }

    /// A bundle to `remote` was refused for its size. Returns whether that switched GSO off there.
    pub(crate) fn on_size_refused(&self, remote: IpAddr, now: Instant) -> bool {
        let off = self.size_strikes.fetch_add(1, Ordering::Relaxed) + 1 >= SIZE_STRIKES;
        if off {
            self.forget_sizes();
            self.on_refused(remote, now);
        }
        off
    }

    /// A single datagram was too large: the cause is the route's MTU, not GSO.
    pub(crate) fn forget_sizes(&self) {
        self.size_strikes.store(0, Ordering::Relaxed);
    }

    /// A bundle passed.
    pub(crate) fn on_passed(&self) {
        self.forget_sizes();
        self.refusals.store(0, Ordering::Relaxed);
    }

    fn publish(&self, table: &Table) {
        let everywhere = table.everywhere.is_some();
        self.everywhere.store(everywhere, Ordering::Relaxed);
        let restricted = everywhere || !table.prefixes.is_empty();
        self.restricted.store(restricted, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The prefix that stands for the route to an address: its /24, or its /64.
fn prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & (u32::MAX << 8)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn splits(gso: &Gso, remote: IpAddr, now: Instant) -> bool {
        let mut splits = false;
        if !gso.is_unrestricted() {
            gso.restrict(now, |test| splits = test(remote));
        }
        splits
    }

    fn v4(third: u8, fourth: u8) -> IpAddr {
        IpAddr::from([192, 0, third, fourth])
    }

    #[test]
    fn a_refusal_disables_gso_for_its_prefix_and_a_minute() {
        let gso = Gso::new(64, MINUTE);
        let start = Instant::now();
        let v6 = |text: &str| text.parse::<IpAddr>().unwrap();
        gso.on_refused(v4(2, 1), start);
        gso.on_refused(v6("2001:db8::1"), start);
        let just_before = start + MINUTE - Duration::from_nanos(1);
        for now in [start, just_before] {
            assert!(splits(&gso, v4(2, 200), now));
            assert!(splits(&gso, v6("2001:db8::ffff"), now));
            assert!(!splits(&gso, v4(3, 1), now));
            assert!(!splits(&gso, v6("2001:db8:0:1::1"), now));
            assert_eq!(gso.segments(), 64);
        }
        assert!(!splits(&gso, v4(2, 1), start + MINUTE));
        assert!(gso.is_unrestricted(), "the table is empty again");
        // After another refusal it is off again.
        gso.on_refused(v4(2, 1), start + MINUTE);
        assert!(splits(&gso, v4(2, 1), start + MINUTE));
    }

    #[test]
    fn refusals_on_all_routes_disable_gso_everywhere_for_a_minute() {
        let gso = Gso::new(64, MINUTE);
        let start = Instant::now();
        for third in 0..PREFIXES as u8 - 1 {
            gso.on_refused(v4(third, 1), start);
        }
        assert!(!splits(&gso, v4(99, 1), start));
        gso.on_refused(v4(98, 1), start);
        assert!(splits(&gso, v4(99, 1), start));
        assert_eq!(gso.segments(), 1);
        assert!(!splits(&gso, v4(99, 1), start + MINUTE));
        assert_eq!(gso.segments(), 64);
    }

    #[test]
    fn a_passing_bundle_keeps_gso_on_other_routes_and_the_table_is_bounded() {
        let gso = Gso::new(64, MINUTE);
        let start = Instant::now();
        for third in 0..200 {
            gso.on_refused(v4(third, 1), start);
            gso.on_passed();
        }
        assert_eq!(gso.segments(), 64);
        assert!(!splits(&gso, v4(250, 1), start));
        assert!(splits(&gso, v4(199, 1), start));
        assert!(
            !splits(&gso, v4(0, 1), start),
            "the oldest entry was evicted"
        );
        let table = gso.lock();
        assert_eq!(
            (table.prefixes.len(), table.prefixes.capacity()),
            (PREFIXES, PREFIXES)
        );
    }

    #[test]
    fn only_consecutive_size_refusals_count() {
        let gso = Gso::new(64, MINUTE);
        let now = Instant::now();
        assert!(!gso.on_size_refused(v4(2, 1), now) && !gso.on_size_refused(v4(2, 1), now));
        gso.forget_sizes();
        assert!(!gso.on_size_refused(v4(2, 1), now) && !gso.on_size_refused(v4(2, 1), now));
        assert!(!splits(&gso, v4(2, 1), now));
        assert!(gso.on_size_refused(v4(2, 1), now));
        assert!(splits(&gso, v4(2, 1), now));
    }

    #[test]
    fn without_gso_every_bundle_is_split() {
        let gso = Gso::new(1, MINUTE);
        assert!(splits(&gso, v4(2, 1), Instant::now()));
    }
}
