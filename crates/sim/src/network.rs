//! A network of two hosts in virtual time.
//!
//! ```text
//!  send(bundle) ─▶ cut into datagrams ─▶ lost? too large? queue full? ─▶ corrupted? ─▶ delayed
//!                                                         duplicated: once more through the delay
//!  deliver(now) ◀─ bundles of what arrived within a tick, as GRO makes them ◀─ by time of arrival
//! ```
//!
//! Every datagram meets its own fate, drawn from the seed; the sender's bundles are taken apart on
//! the way, and the receiver's are formed anew.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use squall_core::Time;
use squall_wire::{Ecn, Path, Side, Transmit, is_long};

use crate::rng::Rng;

/// The interval at which the receiver reads its socket: whatever arrives in between becomes one
/// bundle.
const TICK_NANOS: u64 = 50_000;

/// The limits of GRO: bytes and datagrams of one bundle.
const MAX_BUNDLE_BYTES: usize = 65_507;
const MAX_BUNDLE_DATAGRAMS: usize = 64;

/// Where the hosts are at first, by [`Side`].
const HOMES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 50_000),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4433),
];

/// What one direction does to datagrams. Chances are from 0 to 1, each per datagram.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// One-way delay of every datagram.
    pub delay: Duration,
    /// Additional random delay, up to this: datagrams overtake each other.
    pub jitter: Duration,
    /// Chance of being delayed by the jitter at all.
    pub reordering: f64,
    /// Chance of being lost.
    pub loss: f64,
    /// Chance of arriving twice.
    pub duplication: f64,
    /// Chance of one flipped bit.
    pub corruption: f64,
    /// Chance of being cut short.
    pub truncation: f64,
    /// Bytes per second that the narrowest link carries; `None`: no limit.
    pub rate: Option<u64>,
    /// Bytes that may wait before that link; more are dropped.
    pub queue: u64,
    /// Above this many bytes waiting there, ECN-capable datagrams are marked CE (RFC 3168).
    pub mark_above: u64,
    /// What happens to ECN marks.
    pub ecn: EcnFault,
    /// The largest UDP payload that gets through.
    pub max_payload: usize,
    /// What is different if one of the hosts is not at its first address.
    pub elsewhere: Option<Elsewhere>,
}

/// A path between other addresses than the first. Ports make no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// One-way delay of every datagram.
    pub delay: Duration,
    /// The largest UDP payload that gets through.
    pub max_payload: usize,
}

/// What a network does to ECN marks besides adding CE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnFault {
    /// Nothing.
    #[default]
    Kept,
    /// They are erased.
    Erased,
    /// ECT(0) becomes ECT(1).
    Changed,
    /// Every marked datagram gets CE.
    AllCongested,
    /// Marked datagrams are dropped.
    Dropped,
}

impl Default for Faults {
    /// A good network: 10 ms, nothing else.
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(10),
            jitter: Duration::ZERO,
            reordering: 0.0,
            loss: 0.0,
            duplication: 0.0,
            corruption: 0.0,
            truncation: 0.0,
            rate: None,
            queue: u64::MAX,
            mark_above: u64::MAX,
            ecn: EcnFault::Kept,
            max_payload: 1472,
            elsewhere: None,
        }
    }
}

/// What happened to the datagrams of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed to the network.
    pub sent: u64,
    /// Handed to the receiver, duplicates included.
    pub delivered: u64,
    /// Bundles in which they were handed over.
    pub bundles: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delivered with a flipped bit.
    pub corrupted: u64,
    /// Delivered without their end.
    pub truncated: u64,
    /// Dropped by the full queue.
    pub queue_dropped: u64,
    /// Marked CE.
    pub marked: u64,
    /// Dropped for their size.
    pub too_large: u64,
    /// Sent to an address at which there is no host.
    pub unroutable: u64,
    /// Edges of the spin bit in short headers (RFC 9000 §17.4), as an observer at the sender sees
    /// them.
    pub spin_edges: u64,
}

/// A bundle that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// As the receiver sees it: the sender is `remote`.
    pub path: Path,
    /// Where it was sent to.
    pub destination: SocketAddr,
    /// The mark of all datagrams in it.
    pub ecn: Ecn,
    /// Bytes of every datagram except the last, which may be shorter.
    pub segment_size: u16,
    /// The datagrams.
    pub bytes: Vec<u8>,
}

/// Two hosts and the path between them.
#[derive(Debug)]
pub struct Network {
    rng: Rng,
    /// By [`Side`]: the address put on the host's datagrams instead of its own.
    spoofed: [Option<SocketAddr>; 2],
    /// By [`Side`]: the host's interfaces, the usual one first.
    interfaces: [Vec<Interface>; 2],
    /// By [`Side`] of the sender.
    directions: [DirectionState; 2],
}

/// Where a host is.
#[derive(Clone, Copy, Debug)]
struct Interface {
    /// The address that the host itself knows.
    local: IpAddr,
    /// The address that others see, after any translation.
    seen_as: SocketAddr,
}

impl Interface {
    const fn plain(address: SocketAddr) -> Self {
        Self {
            local: address.ip(),
            seen_as: address,
        }
    }
}

#[derive(Debug)]
struct DirectionState {
    faults: Faults,
    flights: BinaryHeap<Reverse<Flight>>,
    /// When the narrowest link will have sent everything that waits.
    link_free: Time,
    /// The spin bit of the last short header.
    spin: bool,
    counters: Counters,
}

impl DirectionState {
    fn observe(&mut self, datagram: &[u8]) {
        self.counters.sent += 1;
        let first = datagram[0];
        if !is_long(first) {
            let spin = first & 0x20 != 0;
            self.counters.spin_edges += u64::from(spin != self.spin);
            self.spin = spin;
        }
    }

    fn next_arrival(&self) -> Option<Time> {
        let Reverse(flight) = self.flights.peek()?;
        Some(tick(flight.arrival))
    }
}

/// A datagram on its way. Ordered by arrival, then by send time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    arrival: Time,
    number: u64,
    source: SocketAddr,
    destination: SocketAddr,
    ecn_bits: u8,
    bytes: Vec<u8>,
}

impl Network {
    /// A network whose chances come from `seed`, with `faults` from the client to the server and
    /// back.
    #[must_use]
    pub fn new(seed: u64, faults: [Faults; 2]) -> Self {
        Self {
            rng: Rng::new(seed),
            spoofed: [None; 2],
            interfaces: HOMES.map(|address| vec![Interface::plain(address)]),
            directions: faults.map(|faults| DirectionState {
                faults,
                flights: BinaryHeap::new(),
                link_free: Time::ZERO,
                spin: false,
                counters: Counters::default(),
            }),
        }
    }

    /// Where others see the host.
    #[must_use]
    pub fn address(&self, host: Side) -> SocketAddr {
        self.interfaces[host as usize][0].seen_as
    }

    /// Others see the host at another address from now on, as after a NAT rebinding: what it sends
    /// comes from there, and what is sent to the old address is lost. The host itself sees no
    /// difference.
    pub fn rebind(&mut self, host: Side, address: SocketAddr) {
        self.interfaces[host as usize][0].seen_as = address;
    }

    /// Makes a device on the way put another address on the host's datagrams; `None` ends that. The
    /// host stays where it is.
    pub fn spoof(&mut self, host: Side, address: Option<SocketAddr>) {
        self.spoofed[host as usize] = address;
    }

    /// Gives the host another interface with this address. A datagram leaves by the interface that
    /// its path names as `local`, otherwise by the first.
    pub fn add_address(&mut self, host: Side, address: SocketAddr) {
        self.interfaces[host as usize].push(Interface::plain(address));
    }

    /// Removes the host's first interface; the next one, if any, takes its place.
    pub fn remove_address(&mut self, host: Side) {
        let interfaces = &mut self.interfaces[host as usize];
        if interfaces.len() > 1 {
            interfaces.remove(0);
        }
    }

    /// The host's interface that others see at this address.
    #[must_use]
    pub fn local(&self, host: Side, address: SocketAddr) -> Option<IpAddr> {
        let interfaces = &self.interfaces[host as usize];
        let found = interfaces.iter().find(|i| i.seen_as == address)?;
        Some(found.local)
    }

    /// The source address that others see on the host's datagrams on this path; `None`: it has no
    /// such interface.
    fn source(&self, host: Side, path: &Path) -> Option<SocketAddr> {
        let interfaces = &self.interfaces[host as usize];
        let found = interfaces
            .iter()
            .find(|i| path.local.is_none_or(|local| local == i.local));
        found.map(|i| self.spoofed[host as usize].unwrap_or(i.seen_as))
    }

    /// The local address of this path if the host does not have it, so that its system refuses to
    /// send from it.
    pub(crate) fn refused_source(&self, host: Side, path: &Path) -> Option<IpAddr> {
        path.local.filter(|_| self.source(host, path).is_none())
    }

    /// The path to the other host, as `host` sees it.
    #[must_use]
    pub fn path_from(&self, host: Side) -> Path {
        Path {
            remote: self.address(host.peer()),
            local: Some(self.interfaces[host as usize][0].local),
        }
    }

    /// Changes what happens to datagrams sent by `from` from now on.
    pub fn set_faults(&mut self, from: Side, faults: Faults) {
        self.directions[from as usize].faults = faults;
    }

    /// What happened to the datagrams sent by `from`.
    #[must_use]
    pub fn counters(&self, from: Side) -> Counters {
        self.directions[from as usize].counters
    }

    /// Takes a bundle that `from` sends; `bytes` are the first `transmit.len` of its buffer.
    ///
    /// # Panics
    /// If the bundle's description does not match its bytes, which is a bug of the sender.
    pub fn send(&mut self, now: Time, from: Side, transmit: &Transmit, bytes: &[u8]) {
        assert_eq!(transmit.len, bytes.len(), "a bundle of {transmit:?}");
        assert!(
            transmit.segment_size > 0 && transmit.len > 0,
            "an empty bundle: {transmit:?}"
        );
        let source = self.source(from, &transmit.path);
        let at_home = source.is_some_and(|source| {
            let ends = match from {
                Side::Client => [source, transmit.path.remote],
                Side::Server => [transmit.path.remote, source],
            };
            ends.map(|end| end.ip()) == HOMES.map(|home| home.ip())
        });
        let routable = self.local(from.peer(), transmit.path.remote).is_some();
        for datagram in bytes.chunks(transmit.segment_size.into()) {
            self.directions[from as usize].observe(datagram);
            if let Some(source) = source.filter(|_| routable) {
                self.send_one(now, from, (source, at_home), transmit, datagram);
            } else {
                self.directions[from as usize].counters.unroutable += 1;
            }
        }
    }

    fn send_one(
        &mut self,
        now: Time,
        from: Side,
        (source, at_home): (SocketAddr, bool),
        transmit: &Transmit,
        datagram: &[u8],
    ) {
        let Self {
            rng, directions, ..
        } = self;
        let direction = &mut directions[from as usize];
        // All chances are drawn for every datagram, so that one fault more or less does not affect
        // all the others.
        let (faults, counters) = (&direction.faults, &mut direction.counters);
        let lost = rng.chance(faults.loss);
        let corrupted = rng.chance(faults.corruption);
        let flip = rng.below(8 * datagram.len() as u64) as usize;
        let truncated = rng.chance(faults.truncation);
        let kept = 1 + rng.below(datagram.len() as u64) as usize;
        let copies = 1 + u64::from(rng.chance(faults.duplication));
        let jitter = [(); 2].map(|()| match rng.chance(faults.reordering) {
            true => rng.duration(faults.jitter),
            false => Duration::ZERO,
        });
        let elsewhere = faults.elsewhere.filter(|_| !at_home);
        let max_payload = elsewhere.map_or(faults.max_payload, |path| path.max_payload);
        let delay = elsewhere.map_or(faults.delay, |path| path.delay);
        if datagram.len() > max_payload {
            counters.too_large += 1;
            return;
        }
        if lost {
            counters.lost += 1;
            return;
        }
        let marked = transmit.ecn != Ecn::NotEct;
        let mut ecn = match faults.ecn {
            EcnFault::Erased => Ecn::NotEct,
            EcnFault::Changed if marked => Ecn::Ect1,
            EcnFault::AllCongested if marked => Ecn::Ce,
            EcnFault::Dropped if marked => {
                counters.lost += 1;
                return;
            }
            _ => transmit.ecn,
        };
        let mut leaves = now;
        if let Some(rate) = faults.rate {
            let waits = direction.link_free - now;
            let backlog = waits.as_secs_f64() * rate as f64;
            if backlog + datagram.len() as f64 > faults.queue as f64 {
                counters.queue_dropped += 1;
                return;
            }
            if backlog > faults.mark_above as f64 && ecn != Ecn::NotEct {
                counters.marked += 1;
                ecn = Ecn::Ce;
            }
            let takes = Duration::from_secs_f64(datagram.len() as f64 / rate as f64);
            leaves = direction.link_free.max(now) + takes;
            direction.link_free = leaves;
        }
        let mut bytes = datagram.to_vec();
        if corrupted {
            counters.corrupted += 1;
            // Not the bit that turns version 1 into 0: anyone on the path can end a client's
            // attempt with a Version Negotiation packet (RFC 9000 §6.2); on real networks UDP's
            // checksum prevents this by chance.
            let flip = flip + usize::from(flip == 32);
            bytes[flip / 8] ^= 1 << (flip % 8);
        }
        if truncated {
            counters.truncated += 1;
            bytes.truncate(kept);
        }
        counters.duplicated += copies - 1;
        for copy in 0..copies {
            direction.flights.push(Reverse(Flight {
                arrival: leaves + delay + jitter[copy as usize],
                number: 2 * counters.sent + copy,
                source,
                destination: transmit.path.remote,
                ecn_bits: ecn.bits(),
                bytes: bytes.clone(),
            }));
        }
    }

    /// When the next bundle for `to` is available.
    #[must_use]
    pub fn next_arrival(&self, to: Side) -> Option<Time> {
        self.directions[to.peer() as usize].next_arrival()
    }

    /// The next bundle available for `to` at `now`.
    pub fn deliver(&mut self, now: Time, to: Side) -> Option<Delivery> {
        let interfaces = &self.interfaces[to as usize];
        let direction = &mut self.directions[to.peer() as usize];
        if direction.next_arrival() > Some(now) {
            return None;
        }
        let Reverse(first) = direction.flights.pop()?;
        let due = tick(first.arrival);
        let stride = first.bytes.len();
        let mut bytes = first.bytes;
        let mut count = 1;
        // A shorter datagram ends a bundle, as in GRO.
        while bytes.len() == count * stride && count < MAX_BUNDLE_DATAGRAMS {
            let Some(Reverse(next)) = direction.flights.peek() else {
                break;
            };
            let belongs = tick(next.arrival) == due
                && next.source == first.source
                && next.destination == first.destination
                && next.ecn_bits == first.ecn_bits
                && next.bytes.len() <= stride
                && bytes.len() + next.bytes.len() <= MAX_BUNDLE_BYTES;
            if !belongs {
                break;
            }
            if let Some(Reverse(next)) = direction.flights.pop() {
                bytes.extend_from_slice(&next.bytes);
                count += 1;
            }
        }
        direction.counters.delivered += count as u64;
        direction.counters.bundles += 1;
        let local = interfaces.iter().find(|i| i.seen_as == first.destination);
        let local = local.map(|i| i.local);
        Some(Delivery {
            path: Path {
                remote: first.source,
                local: local.or(Some(first.destination.ip())),
            },
            destination: first.destination,
            ecn: Ecn::from_bits(first.ecn_bits),
            // No datagram is longer than MAX_BUNDLE_BYTES: UDP could not carry it.
            segment_size: u16::try_from(stride).unwrap_or(u16::MAX),
            bytes,
        })
    }
}

/// When the receiver reads what arrived at `arrival`.
fn tick(arrival: Time) -> Time {
    Time::from_nanos(arrival.as_nanos().div_ceil(TICK_NANOS) * TICK_NANOS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn network(faults: Faults) -> Network {
        Network::new(1, [faults, Faults::default()])
    }

    /// Sends `count` datagrams of `size` bytes in bundles of up to 40, at ZERO; each datagram
    /// begins with its number.
    fn send(network: &mut Network, count: u32, size: usize) {
        let path = network.path_from(Side::Client);
        let datagrams: Vec<u8> = (0..count)
            .flat_map(|number| {
                let mut datagram = vec![0; size];
                datagram[..4].copy_from_slice(&number.to_be_bytes());
                datagram
            })
            .collect();
        for bundle in datagrams.chunks(40 * size) {
            let transmit = Transmit {
                path,
                ecn: Ecn::Ect0,
                segment_size: size.try_into().unwrap(),
                len: bundle.len(),
            };
            network.send(Time::ZERO, Side::Client, &transmit, bundle);
        }
    }

    /// Everything that arrives: time, datagram number, ECN.
    fn receive(network: &mut Network) -> Vec<(Time, u32, Ecn)> {
        let mut arrived = Vec::new();
        while let Some(now) = network.next_arrival(Side::Server) {
            let before = Time::from_nanos(now.as_nanos() - 1);
            assert_eq!(network.deliver(before, Side::Server), None);
            let bundle = network.deliver(now, Side::Server).unwrap();
            assert_eq!(bundle.path.remote, network.address(Side::Client));
            for datagram in bundle.bytes.chunks(bundle.segment_size.into()) {
                let number = datagram.first_chunk().map_or(0, |n| u32::from_be_bytes(*n));
                arrived.push((now, number, bundle.ecn));
            }
        }
        arrived
    }

    #[test]
    fn a_good_network_keeps_order_and_bundles() {
        let mut network = network(Faults::default());
        send(&mut network, 100, 1200);
        let arrived = receive(&mut network);
        let expected: Vec<_> = (0..100)
            .map(|number| (Time::ZERO + ms(10), number, Ecn::Ect0))
            .collect();
        assert_eq!(arrived, expected);
        let counters = network.counters(Side::Client);
        assert_eq!((counters.sent, counters.delivered), (100, 100));
        // 65,507 bytes hold 54 datagrams.
        assert_eq!(counters.bundles, 2);
        assert_eq!(network.next_arrival(Side::Client), None);
    }

    #[test]
    fn a_shorter_datagram_ends_a_bundle() {
        let mut network = network(Faults::default());
        let transmit = Transmit {
            path: network.path_from(Side::Client),
            ecn: Ecn::NotEct,
            segment_size: 1000,
            len: 2500,
        };
        for _ in 0..2 {
            network.send(Time::ZERO, Side::Client, &transmit, &[7; 2500]);
        }
        let now = Time::ZERO + ms(10);
        for _ in 0..2 {
            let bundle = network.deliver(now, Side::Server).unwrap();
            assert_eq!((bundle.segment_size, bundle.bytes.len()), (1000, 2500));
        }
        assert_eq!(network.deliver(now, Side::Server), None);
    }

    #[test]
    fn a_seed_always_gives_the_same_run() {
        let faults = Faults {
            jitter: ms(5),
            reordering: 0.5,
            loss: 0.1,
            duplication: 0.1,
            corruption: 0.1,
            truncation: 0.1,
            ..Faults::default()
        };
        let run = |seed| {
            let mut network = Network::new(seed, [faults.clone(), faults.clone()]);
            send(&mut network, 500, 100);
            receive(&mut network)
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    #[test]
    fn faults_occur_with_their_configured_chance() {
        let mut network = network(Faults {
            jitter: ms(5),
            reordering: 0.3,
            loss: 0.2,
            duplication: 0.1,
            corruption: 0.05,
            truncation: 0.05,
            ..Faults::default()
        });
        send(&mut network, 20_000, 100);
        let arrived = receive(&mut network);
        let counters = network.counters(Side::Client);
        let near = |value: u64, expected: f64| (value as f64 / expected - 1.0).abs() < 0.1;
        assert!(near(counters.lost, 4_000.0), "{counters:?}");
        assert!(near(counters.duplicated, 1_600.0), "{counters:?}");
        assert!(near(counters.corrupted, 800.0), "{counters:?}");
        assert!(near(counters.truncated, 800.0), "{counters:?}");
        assert_eq!(
            counters.delivered,
            counters.sent - counters.lost + counters.duplicated
        );
        let late = arrived
            .iter()
            .filter(|flight| flight.0 > Time::ZERO + ms(10));
        assert!(near(late.count() as u64, 17_600.0 * 0.3));
        assert!(arrived.iter().all(|flight| flight.0 <= Time::ZERO + ms(15)));
        assert!(!arrived.is_sorted_by_key(|flight| flight.1), "overtaking");
    }

    #[test]
    fn a_narrow_link_paces_marks_and_drops() {
        let mut network = network(Faults {
            // A datagram of 1,000 bytes each millisecond.
            rate: Some(1_000_000),
            queue: 20_000,
            mark_above: 10_000,
            ..Faults::default()
        });
        send(&mut network, 30, 1000);
        let arrived = receive(&mut network);
        assert_eq!(network.counters(Side::Client).queue_dropped, 10);
        assert_eq!(arrived.len(), 20);
        for (index, (time, _, ecn)) in arrived.into_iter().enumerate() {
            let expected = ms(11 + index as u64);
            let off = (time - Time::ZERO).abs_diff(expected);
            assert!(off <= Duration::from_nanos(TICK_NANOS), "{off:?}");
            assert_eq!(ecn, if index > 10 { Ecn::Ce } else { Ecn::Ect0 });
        }
    }

    #[test]
    fn oversized_and_unaddressed_datagrams_are_dropped() {
        let mut network = network(Faults {
            max_payload: 1200,
            ..Faults::default()
        });
        send(&mut network, 3, 1201);
        send(&mut network, 3, 1200);
        assert_eq!(network.counters(Side::Client).too_large, 3);
        // The server moves: datagrams in flight arrive, those sent to the old address do not.
        let old = network.path_from(Side::Client);
        network.rebind(Side::Server, SocketAddr::from(([10, 0, 0, 9], 9)));
        let transmit = Transmit {
            path: old,
            ecn: Ecn::NotEct,
            segment_size: 50,
            len: 50,
        };
        network.send(Time::ZERO, Side::Client, &transmit, &[0; 50]);
        assert_eq!(network.counters(Side::Client).unroutable, 1);
        assert_eq!(receive(&mut network).len(), 3);
        // And its datagrams come from the new one.
        let back = Transmit {
            path: network.path_from(Side::Server),
            ..transmit
        };
        network.send(Time::ZERO, Side::Server, &back, &[0; 50]);
        let bundle = network.deliver(Time::ZERO + ms(10), Side::Client).unwrap();
        assert_eq!(bundle.path.remote, network.address(Side::Server));
    }

    #[test]
    fn faults_can_change_during_a_run() {
        let mut network = network(Faults::default());
        send(&mut network, 5, 100);
        network.set_faults(
            Side::Client,
            Faults {
                loss: 1.0,
                ..Faults::default()
            },
        );
        send(&mut network, 5, 100);
        assert_eq!(receive(&mut network).len(), 5);
        assert_eq!(network.counters(Side::Client).lost, 5);
    }
}
