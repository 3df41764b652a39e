//! Path MTU discovery with packets (RFC 8899, RFC 9000 §14.3). Messages that claim to come from
//! routers are ignored (RFC 9000 §14.2.1).
//!
//! ```text
//!  begin    when the connection has sent enough to gain from it, or its application needs large
//!           packets (`transmit/probe.rs`)
//!  round    up to four sizes at once, the largest first: the limit and sizes that many paths have,
//!           later the size that was lost last and three between it and what is known to pass
//!  result   what is acknowledged passes; what is lost is doubtful, and too large when it is lost
//!           three times, or a smaller size is lost as well
//!  end      nothing more to gain; again after ten minutes, or at once from the start when large
//!           packets vanish
//! ```

use std::time::Duration;

use crate::config::{MIN_UDP_PAYLOAD, TransportConfig};
use crate::time::Time;

/// RFC 8899 §5.1.2: losses of a probe before its size counts as too large.
const MAX_PROBES: u8 = 3;
/// Sizes tried at once.
const ROUND: usize = 4;
/// The search ends when there is less than this to gain, in bytes.
const RESOLUTION: u16 = 16;
/// UDP payloads of usual links: Ethernet with IPv6 and with IPv4, jumbo frames with IPv4.
const USUAL: [u16; 3] = [1452, 1472, 8972];
/// RFC 8899 §4.3: how often large packets have to be found lost, while a later, smaller one arrives
/// and none of them does, before the path counts as a black hole for them.
const BLACK_HOLE: u8 = 3;
/// And how many of them in total: with windows of a few packets, chance alone loses three in a row.
const BLACK_HOLE_PACKETS: u32 = 6;
/// No packet has this number (RFC 9000 §12.3).
const NONE: u64 = u64::MAX;

/// The UDP payload that the path carries.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Mtu {
    // Only for a search.
    /// Probes in flight: packet numbers and sizes.
    flying: [(u64, u16); ROUND],
    /// RFC 8899 §5.1.1, PMTU_RAISE_TIMER; `None` if there is never a search.
    raise_after: Option<Duration>,
    /// When to search again after the end.
    raise_at: Option<Time>,
    /// Losses of large packets up to this number do not count: one of them has arrived.
    passed: Option<u64>,
    /// Larger sizes are known or assumed not to pass.
    ceiling: u16,
    /// The smallest size that was lost but may still pass, and how often it was lost.
    doubtful: Option<(u16, u8)>,
    /// The size that a new path is assumed to carry.
    initial: u16,
    /// Times in a row that large packets were lost.
    suspicion: u8,
    /// The number of those packets.
    vanished: u32,

    // For every packet.
    is_done: bool,
    current: u16,
    /// The largest size that both this end and the peer allow.
    limit: u16,
    /// The size that every path is known to carry.
    floor: u16,
    /// Sizes of this round that are still to be sent, descending; zeros after them.
    planned: [u16; ROUND],
    /// The lowest packet number of a probe, or `NONE`: compared with that of every acknowledged
    /// packet.
    first: u64,
}

impl Mtu {
    /// Starts at the configured size, or at a smaller limit, and searches up to the limit.
    #[must_use]
    pub(crate) fn new(config: &TransportConfig) -> Self {
        let raise_after = (config.mtu_discovery).then_some(config.mtu_discovery_interval);
        let floor = config.min_udp_payload;
        let initial = config.initial_udp_payload.max(floor);
        Self::between(initial, floor, config.max_udp_payload, raise_after)
    }

    fn between(initial: u16, floor: u16, limit: u16, raise_after: Option<Duration>) -> Self {
        let mut mtu = Self {
            current: initial.min(limit),
            limit,
            initial,
            floor,
            raise_after,
            ceiling: limit,
            doubtful: None,
            planned: [0; ROUND],
            flying: [(NONE, 0); ROUND],
            first: NONE,
            is_done: false,
            raise_at: None,
            suspicion: 0,
            vanished: 0,
            passed: None,
        };
        mtu.plan_first();
        mtu
    }

    /// A search that starts over, for an unknown path.
    #[must_use]
    pub(crate) fn anew(&self) -> Self {
        Self::between(self.initial, self.floor, self.limit, self.raise_after)
    }

    /// Lowers the limit to the size that the peer accepts (max_udp_payload_size, RFC 9000 §18.2).
    pub(crate) fn limit(&mut self, limit: u64) {
        // RFC 9000 §18.2: values below 1200 are invalid and refused before.
        let limit = u16::try_from(limit).unwrap_or(u16::MAX);
        let limit = self.limit.min(limit.max(MIN_UDP_PAYLOAD));
        if limit < self.limit {
            self.limit = limit;
            *self = self.anew();
        }
    }

    /// The size that is known to pass, in bytes.
    #[must_use]
    pub(crate) const fn current(&self) -> u16 {
        self.current
    }

    /// The size that every path is known to carry, in bytes. Losses of larger packets may mean that
    /// they do not pass.
    #[inline]
    #[must_use]
    pub(crate) const fn floor(&self) -> u16 {
        self.floor
    }

    /// Whether sizes of this round are still to be sent.
    #[inline]
    #[must_use]
    pub(crate) const fn has_planned(&self) -> bool {
        self.planned[0] != 0
    }

    /// Whether a size is to be probed at `now`.
    #[inline]
    #[must_use]
    pub(crate) fn wants_probe(&mut self, now: Time) -> bool {
        if self.has_planned() {
            return true;
        }
        if self.is_done && self.current < self.limit {
            let Some(raise_after) = self.raise_after else {
                return false;
            };
            let at = *self.raise_at.get_or_insert(now + raise_after);
            if at <= now {
                let current = self.current;
                *self = self.anew();
                self.current = current;
                self.plan_first();
                return self.planned[0] != 0;
            }
        }
        false
    }

    /// The largest planned size that fits into `room` bytes. If none does and nothing else is in
    /// flight (`idle`), the smallest, because a small window may never grow to it.
    #[must_use]
    pub(crate) fn next_probe(&self, room: u64, idle: bool) -> Option<u16> {
        let mut planned = self.planned.into_iter().filter(|s| *s > 0);
        let fits = planned.clone().find(|s| u64::from(*s) <= room);
        fits.or(planned.next_back().filter(|_| idle))
    }

    /// A probe of `size` left as packet `number`.
    pub(crate) fn on_probe_sent(&mut self, number: u64, size: u16) {
        let mut kept = self.planned.into_iter().filter(|s| *s != size && *s != 0);
        self.planned = std::array::from_fn(|_| kept.next().unwrap_or(0));
        if let Some(free) = self.flying.iter_mut().find(|(n, _)| *n == NONE) {
            *free = (number, size);
        }
        self.first = self.first.min(number);
    }

    /// Whether packet `number` is a probe in flight.
    #[inline]
    #[must_use]
    pub(crate) fn is_probe(&self, number: u64) -> bool {
        number >= self.first && self.flying.iter().any(|(n, _)| *n == number)
    }

    fn land(&mut self, number: u64) -> Option<u16> {
        let probe = self.flying.iter_mut().find(|(n, _)| *n == number)?;
        let (_, size) = std::mem::replace(probe, (NONE, 0));
        self.first = self.flying.iter().map(|(n, _)| *n).min().unwrap_or(NONE);
        Some(size)
    }

    /// The probe with this number arrived: `true` if the path's size rose.
    pub(crate) fn on_probe_acked(&mut self, number: u64) -> bool {
        match self.land(number) {
            Some(size) => self.on_passed(size),
            None => false,
        }
    }

    /// A packet of `size` bytes has passed, perhaps a probe that had been given up: `true` if the
    /// path's size rose.
    pub(crate) fn on_passed(&mut self, size: u16) -> bool {
        let rose = size > self.current;
        self.current = self.current.max(size);
        self.doubtful = self.doubtful.filter(|(lost, _)| *lost > size);
        if rose {
            self.is_done = false;
            self.ceiling = self.ceiling.max(size);
            let mut kept = self.planned.into_iter().filter(|s| *s > size);
            self.planned = std::array::from_fn(|_| kept.next().unwrap_or(0));
        }
        self.plan_next();
        rose
    }

    /// The probe with this number was lost, which is not a sign of congestion (RFC 9000 §14.4).
    pub(crate) fn on_probe_lost(&mut self, number: u64) {
        let Some(size) = self.land(number) else {
            return;
        };
        if size > self.current {
            match &mut self.doubtful {
                Some((lost, times)) if *lost == size => *times += 1,
                Some((lost, _)) if *lost < size => {}
                doubtful => *doubtful = Some((size, 1)),
            }
            // Larger sizes need not be tried now.
            let mut kept = self.planned.into_iter().filter(|s| *s < size && *s > 0);
            self.planned = std::array::from_fn(|_| kept.next().unwrap_or(0));
            if let Some((lost, MAX_PROBES..)) = self.doubtful {
                self.ceiling = self.ceiling.min(lost - 1);
                self.doubtful = None;
            }
        }
        self.plan_next();
    }

    /// The path is used again: forgets probes that were in flight when it was left.
    pub(crate) fn resume(&mut self) {
        (self.flying, self.first) = ([(NONE, 0); ROUND], NONE);
        self.plan_next();
    }

    /// The limit, and the usual sizes well below it.
    fn plan_first(&mut self) {
        if self.raise_after.is_none() {
            self.is_done = true;
            return;
        }
        let far =
            |size: u16| size > self.current && u32::from(size) * 4 < u32::from(self.limit) * 3;
        let usual = USUAL.into_iter().rev().filter(|s| far(*s));
        let limit = Some(self.limit).filter(|l| *l > self.current);
        let mut sizes = limit.into_iter().chain(usual);
        self.planned = std::array::from_fn(|_| sizes.next().unwrap_or(0));
        self.is_done = self.planned[0] == 0;
    }

    /// Once a round is over: the next one, between the sizes that pass and those that do not.
    fn plan_next(&mut self) {
        if self.planned[0] != 0 || self.first != NONE || self.raise_after.is_none() {
            return;
        }
        // Larger sizes were lost, or are too large.
        let top = self.doubtful.map_or(self.ceiling, |(lost, _)| lost);
        let gap = top.saturating_sub(self.current);
        if gap < RESOLUTION {
            self.is_done = true;
            return;
        }
        let usual = USUAL
            .into_iter()
            .rev()
            .filter(|s| (self.current + 1..top).contains(s));
        let even = (1..ROUND as u32).rev();
        let even = even.map(|n| self.current + (u32::from(gap) * n / ROUND as u32) as u16);
        let mut sizes = [top; ROUND];
        for (place, size) in sizes[1..].iter_mut().zip(usual.chain(even)) {
            *place = size;
        }
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        for i in 1..ROUND {
            if sizes[..i].contains(&sizes[i]) || sizes[i] <= self.current {
                sizes[i] = 0;
            }
        }
        let mut kept = sizes.into_iter().filter(|s| *s > 0);
        self.planned = std::array::from_fn(|_| kept.next().unwrap_or(0));
    }

    /// Packet `number`, larger than the floor, arrived.
    #[inline]
    pub(crate) fn on_large_acked(&mut self, number: u64) {
        (self.suspicion, self.vanished) = (0, 0);
        self.passed = self.passed.max(Some(number));
    }

    /// Whether the loss of a packet of `size` bytes indicates that large packets may no longer
    /// pass.
    pub(crate) fn is_suspicious(&self, number: u64, size: u16) -> bool {
        size > self.floor && self.passed < Some(number)
    }

    /// Whether a probe timeout should also try a packet of a size that every path carries: after
    /// `timeouts` in a row, the cause may be that large packets do not pass, which looks the same
    /// as the loss of all packets.
    pub(crate) fn wants_small_probe(&self, timeouts: u32) -> bool {
        self.current > self.floor && (timeouts >= 2 || self.suspicion > 0)
    }

    /// Suspicious packets were found lost at once: `true` if the path swallows them, and the search
    /// starts over (RFC 8899 §4.3).
    pub(crate) fn on_large_lost(&mut self, packets: u32) -> bool {
        if self.current <= self.floor {
            return false;
        }
        self.suspicion = self.suspicion.saturating_add(1);
        self.vanished = self.vanished.saturating_add(packets);
        let swallowed = self.suspicion >= BLACK_HOLE && self.vanished >= BLACK_HOLE_PACKETS;
        if swallowed {
            *self = Self {
                initial: self.initial,
                ..Self::between(self.floor, self.floor, self.limit, self.raise_after)
            };
        }
        swallowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(1);

    const RAISE: Duration = Duration::from_secs(600);

    fn up_to(limit: u16) -> Mtu {
        Mtu::new(&TransportConfig::default().max_udp_payload(limit))
    }

    /// Searches on a path that carries `passes` bytes and loses every `loses`-th probe; returns
    /// rounds and probes.
    fn search(mtu: &mut Mtu, passes: u16, loses: u64) -> (u32, u64) {
        search_in(u64::MAX, mtu, passes, loses)
    }

    /// As [`search`], if the window holds this many bytes; with less than any probe, they go one
    /// after the other.
    fn search_in(window: u64, mtu: &mut Mtu, passes: u16, loses: u64) -> (u32, u64) {
        let (mut rounds, mut number) = (0, 0);
        while mtu.wants_probe(NOW) {
            rounds += 1;
            let mut sent = Vec::new();
            while let Some(size) = mtu.next_probe(window, true) {
                number += 1;
                assert!(size > mtu.current() && size <= mtu.limit);
                mtu.on_probe_sent(number, size);
                assert!(mtu.is_probe(number) && !mtu.is_probe(number + 1));
                sent.push((number, size));
                if window < u64::from(mtu.limit) {
                    break;
                }
            }
            assert!(sent.len() <= ROUND && sent.is_sorted_by(|a, b| a.1 > b.1));
            for (number, size) in sent {
                if size <= passes && !(loses > 0 && number % loses == 0) {
                    mtu.on_probe_acked(number);
                } else {
                    mtu.on_probe_lost(number);
                }
                assert!(!mtu.is_probe(number));
            }
        }
        (rounds, number)
    }

    // test: RFC 8899 §5.3
    #[test]
    fn finds_the_size_that_passes_in_few_rounds() {
        for (limit, most) in [(1472, 5), (8972, 7), (65_507, 8)] {
            for passes in [
                1200, 1232, 1280, 1350, 1400, 1452, 1472, 2000, 4000, 8972, 16_000, 65_507,
            ] {
                let mut mtu = up_to(limit);
                let (rounds, probes) = search(&mut mtu, passes, 0);
                let found = mtu.current();
                let best = passes.min(limit);
                assert!(
                    found <= best && found + RESOLUTION >= best,
                    "{found} of {best}"
                );
                assert!(rounds <= most, "{rounds} rounds for {best} of {limit}");
                assert!(probes <= 4 * u64::from(most));
                if best == limit || USUAL.contains(&best) {
                    assert_eq!(found, best);
                }
            }
        }
        // The usual cases take one round.
        for (limit, passes) in [(1472, 1472), (8972, 8972), (65_507, 65_507)] {
            assert_eq!(search(&mut up_to(limit), passes, 0).0, 1);
        }
    }

    #[test]
    fn a_randomly_lost_probe_is_sent_again() {
        for loses in 2..6 {
            for passes in [1280, 1400, 1452, 1472] {
                let mut mtu = up_to(1472);
                search(&mut mtu, passes, loses);
                let found = mtu.current();
                assert!(
                    found <= passes && found + 8 * RESOLUTION >= passes,
                    "{found} of {passes}"
                );
            }
        }
    }

    #[test]
    fn a_late_acknowledgement_of_a_probe_counts() {
        let mut mtu = up_to(1472);
        mtu.on_probe_sent(1, 1472);
        for _ in 0..2 {
            assert!(!mtu.on_probe_acked(9));
        }
        mtu.on_probe_lost(1);
        assert_eq!(mtu.current(), 1200);
        assert!(mtu.on_passed(1472));
        assert_eq!(mtu.current(), 1472);
        assert!(search(&mut mtu, 1472, 0).1 <= 4);
    }

    // test: RFC 8899 §5.1.1
    #[test]
    fn a_larger_path_mtu_is_found_after_ten_minutes() {
        let mut mtu = up_to(1472);
        search(&mut mtu, 1280, 0);
        assert!(mtu.current() <= 1280 && !mtu.wants_probe(NOW));
        assert!(!mtu.wants_probe(NOW + Duration::from_secs(599)));
        assert!(mtu.wants_probe(NOW + RAISE));
        assert!(mtu.current() > 1200, "the size found so far is kept");
        search(&mut mtu, 1472, 0);
        assert_eq!(mtu.current(), 1472);
        assert!(
            !mtu.wants_probe(NOW + RAISE * 3),
            "no larger size is left to probe"
        );
    }

    // test: RFC 8899 §4.3
    #[test]
    fn losing_only_large_packets_restarts_the_search() {
        let mut mtu = up_to(1472);
        assert!(
            (0..9).all(|_| !mtu.on_large_lost(9)),
            "no packet is larger than the minimum yet"
        );
        search(&mut mtu, 1472, 0);
        for number in 0..9 {
            assert!(!mtu.on_large_lost(9) && !mtu.on_large_lost(9));
            mtu.on_large_acked(number);
        }
        assert!(
            (0..5).all(|_| !mtu.on_large_lost(1)),
            "single losses may be random"
        );
        mtu.on_large_acked(20);
        assert!(!mtu.is_suspicious(20, 1400) && !mtu.is_suspicious(21, MIN_UDP_PAYLOAD));
        assert!(mtu.is_suspicious(21, 1400));
        assert!(!mtu.on_large_lost(2) && !mtu.on_large_lost(2) && mtu.on_large_lost(2));
        assert_eq!(mtu.current(), 1200);
        search(&mut mtu, 1300, 0);
        assert!((1284..=1300).contains(&mtu.current()));
    }

    #[test]
    fn probing_one_size_at_a_time_takes_few_more_probes() {
        for passes in [1200, 1472, 4000, 8972, 9000] {
            let mut mtu = up_to(9000);
            let (_, probes) = search_in(0, &mut mtu, passes, 0);
            let found = mtu.current();
            assert!(
                found <= passes && found + RESOLUTION >= passes,
                "{found} of {passes}"
            );
            assert!(probes <= 16, "{probes} for {passes}");
        }
    }

    #[test]
    fn a_small_window_limits_probes_to_what_fits() {
        let mut mtu = up_to(65_507);
        assert_eq!(mtu.next_probe(12_000, false), Some(8972));
        mtu.on_probe_sent(1, 8972);
        assert_eq!(mtu.next_probe(3_000, false), Some(1472));
        mtu.on_probe_sent(2, 1472);
        assert_eq!(mtu.next_probe(1_400, false), None);
        assert_eq!(mtu.next_probe(0, true), Some(1452));
        mtu.on_probe_sent(3, 1452);
        assert_eq!(mtu.next_probe(0, true), Some(65_507));
    }

    // test: RFC 9000 §18.2
    #[test]
    fn the_peers_limit_bounds_the_search() {
        let mut mtu = up_to(9000);
        mtu.limit(1400);
        search(&mut mtu, 9000, 0);
        assert_eq!(mtu.current(), 1400);
        mtu.limit(65_527);
        assert_eq!(mtu.anew().limit, 1400);
        let mut small = up_to(600);
        assert!(small.current() == 600 && !small.wants_probe(NOW));
    }

    #[test]
    fn a_configured_initial_size_is_used_until_it_fails() {
        let config = TransportConfig::default().initial_udp_payload(1400);
        let mut mtu = Mtu::new(&config);
        assert_eq!(mtu.current(), 1400);
        search(&mut mtu, 1472, 0);
        assert_eq!(mtu.current(), 1472);
        assert_eq!(mtu.anew().current(), 1400);
        for _ in 0..BLACK_HOLE {
            assert_eq!(mtu.current(), 1472);
            mtu.on_large_lost(BLACK_HOLE_PACKETS);
        }
        assert_eq!(mtu.current(), MIN_UDP_PAYLOAD);
        // Nothing is known about another path.
        assert_eq!(mtu.anew().current(), 1400);
        let small = Mtu::new(&config.max_udp_payload(1300));
        assert_eq!(small.current(), 1300);
    }

    // test: RFC 8899 §4.3, BASE_PLPMTU
    #[test]
    fn a_black_hole_falls_back_to_the_configured_minimum() {
        let config = TransportConfig::default().min_udp_payload(1400);
        let mut mtu = Mtu::new(&config);
        assert_eq!(mtu.current(), 1400, "a new path carries it too");
        assert!((0..9).all(|_| !mtu.on_large_lost(9)) && !mtu.wants_small_probe(9));
        search(&mut mtu, 1472, 0);
        assert!(mtu.wants_small_probe(2));
        assert!(!mtu.is_suspicious(1, 1400) && mtu.is_suspicious(1, 1401));
        for _ in 0..BLACK_HOLE {
            assert_eq!(mtu.current(), 1472);
            mtu.on_large_lost(BLACK_HOLE_PACKETS);
        }
        assert_eq!((mtu.current(), mtu.anew().current()), (1400, 1400));
        search(&mut mtu, 1430, 0);
        assert!((1400..=1430).contains(&mtu.current()));
        // A peer may accept less.
        mtu.limit(1300);
        assert_eq!(mtu.current(), 1300);
        assert!((0..9).all(|_| !mtu.on_large_lost(9)) && !mtu.wants_small_probe(9));
    }

    #[test]
    fn without_discovery_there_is_no_search() {
        let config = TransportConfig::default()
            .initial_udp_payload(1300)
            .mtu_discovery(false);
        let mut mtu = Mtu::new(&config);
        assert!(!mtu.wants_probe(NOW) && !mtu.wants_probe(NOW + RAISE * 3));
        mtu.resume();
        assert!(!mtu.on_passed(1300) && !mtu.wants_probe(NOW));
        for _ in 0..BLACK_HOLE {
            mtu.on_large_lost(BLACK_HOLE_PACKETS);
        }
        assert_eq!(mtu.current(), MIN_UDP_PAYLOAD);
        assert!(!mtu.wants_probe(NOW) && !mtu.wants_probe(NOW + RAISE * 3));
        mtu.limit(1250);
        assert!(!mtu.wants_probe(NOW) && !mtu.wants_probe(NOW + RAISE * 3));
    }

    #[test]
    fn the_search_begins_again_after_the_interval() {
        let interval = Duration::from_secs(7);
        let config = TransportConfig::default().mtu_discovery_interval(interval);
        let mut mtu = Mtu::new(&config);
        search(&mut mtu, 1300, 0);
        assert!(!mtu.wants_probe(NOW) && !mtu.wants_probe(NOW + interval * 6 / 7));
        assert!(mtu.wants_probe(NOW + interval));
    }
}
