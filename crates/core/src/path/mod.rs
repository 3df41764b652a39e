//! The network paths of a connection: addresses, validation, amplification limit, size, and what is
//! known about each path's capacity.
//!
//! ```text
//!  Paths.active ─── PathState        the active path: all packets but probes
//!  Paths.inactive ─ InactivePaths    made at the first probe or change of address; absent before
//!      others       PathState        the path before, to fall back to; paths being probed
//!      responses                     PATH_RESPONSE frames owed, each on the path of its challenge
//! ```

pub(crate) mod cid;
pub(crate) mod ecn;
pub(crate) mod local_ids;
pub(crate) mod mtu;
mod quic_lb;
pub(crate) mod spin;
pub(crate) mod validation;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use squall_wire::Path;

use crate::config::{MAX_PATH_RESPONSES, MAX_PATHS, MIN_UDP_PAYLOAD, TransportConfig};
use crate::congestion::Controller;
use crate::recovery::pacer::{Allowed, Pacer};
use crate::recovery::reordering::Reordering;
use crate::recovery::rtt::RttEstimator;
use crate::time::Time;
use ecn::EcnPath;
use mtu::Mtu;
use spin::Spin;
use validation::Validation;

/// RFC 9000 §8.1: bytes sent for each byte received before the peer's address is validated.
const AMPLIFICATION: u64 = 3;

/// What is known about a path's capacity. It stays with the connection if only the peer's port
/// changes (RFC 9000 §9.4).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Flow {
    /// Which sent packets belong to it (`SentPacket::flow`).
    pub(crate) tag: u8,
    bytes_in_flight: u64,
    /// Bytes per second that this connection and others send to the same address; 0: unknown.
    pub(crate) together: u64,
    /// Whether the path carries ECN marks.
    pub(crate) ecn: EcnPath,
    /// When it may be sent.
    pub(crate) pacer: Pacer,
    /// Round-trip times.
    pub(crate) rtt: RttEstimator,
    /// How much may be in flight.
    pub(crate) congestion: Controller,
    /// How late packets are, and which losses may have been spurious.
    pub(crate) reordering: Reordering,
}

impl Flow {
    fn new(tag: u8, max_datagram: u16, config: &TransportConfig) -> Self {
        Self {
            tag,
            rtt: RttEstimator::new(config.initial_rtt),
            reordering: Reordering::new(config),
            congestion: Controller::of(config, max_datagram),
            pacer: Pacer::new(config.pacing),
            bytes_in_flight: 0,
            together: 0,
            ecn: EcnPath::new(config.ecn),
        }
    }

    /// Bytes in flight.
    #[inline]
    #[must_use]
    pub(crate) const fn in_flight(&self) -> u64 {
        self.bytes_in_flight
    }

    /// Bytes that the congestion window leaves.
    #[inline]
    #[must_use]
    pub(crate) fn room(&self) -> u64 {
        let window = self.congestion.window();
        window.saturating_sub(self.bytes_in_flight)
    }

    /// Whether the congestion window leaves nothing.
    #[must_use]
    pub(crate) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Packets of `bytes` bytes that congestion control counts were sent.
    #[inline]
    pub(crate) fn enter(&mut self, bytes: u64) {
        self.bytes_in_flight += bytes;
        self.pacer.on_sent(bytes);
    }

    /// Packet `number`, overtaken by others up to `largest` and not declared lost, is acknowledged.
    #[cold]
    pub(crate) fn note_late(
        &mut self,
        largest: Option<u64>,
        number: u64,
        time_sent: Time,
        now: Time,
    ) {
        let distance = largest.map_or(0, |largest| largest - number);
        self.reordering.on_late(now, distance, time_sent, &self.rtt);
    }

    /// Bytes that congestion control and pacer allow now, and when the pacer releases more if it is
    /// the one that limits them. `segment` is the size of a datagram, `most` how many the bundle
    /// holds.
    pub(crate) fn budget(&mut self, now: Time, segment: usize, most: usize) -> (u64, Option<Time>) {
        let room = self.room();
        if room < segment as u64 {
            self.pacer.on_window_full();
            return (0, None);
        }
        let allowed = Allowed {
            rate: self.congestion.pacing_rate(),
            together: self.together,
            window: self.congestion.window(),
            slow_start: self.congestion.is_slow_start(),
            path_empty: self.bytes_in_flight == 0,
        };
        let (datagram, bundle) = (segment as u16, most * segment);
        let paced = self
            .pacer
            .budget(now, &allowed, &self.rtt, datagram, bundle);
        let holds = paced < segment as u64;
        let release = self.pacer.next_release(now).filter(|_| holds);
        (room.min(paced), release)
    }

    /// Packets of `bytes` bytes are no longer in flight.
    #[inline]
    pub(crate) fn leave(&mut self, bytes: u64) {
        self.bytes_in_flight = self.bytes_in_flight.saturating_sub(bytes);
    }
}

/// State of one path.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PathState {
    /// The size that passes; what only a search needs comes first in it.
    pub(crate) mtu: Mtu,
    /// How much may be sent.
    pub(crate) flow: Flow,
    /// Addresses of both ends.
    pub(crate) path: Path,
    received: u64,
    sent: u64,
    /// The validation in progress.
    pub(crate) validation: Option<Box<Validation>>,
    /// When a path that is not in use is forgotten.
    pub(crate) forget_at: Option<Time>,
    /// The spin bit, for observers of the round-trip time.
    pub(crate) spin: Spin,
    /// Identifies the path among those of the connection.
    pub(crate) tag: u8,
    /// Whether the peer has shown that it receives what we send there.
    pub(crate) validated: bool,
    /// Whether it is, or was, the active path. A server may not send anything but probes on a path
    /// that its client has only probed: the client may never move there.
    pub(crate) used: bool,
    /// Whether datagrams must leave from `path.local`. A server answers from the address at which
    /// it was contacted; a client lets the system choose, and so follows a change of its addresses,
    /// unless the application chose one.
    pub(crate) pinned: bool,
    /// Whether the amplification limit applies until then: it protects addresses that the peer has
    /// named. A client chooses where it sends.
    limited: bool,
}

impl PathState {
    /// A path. On a server it is `limited` until validated, on a client never.
    #[must_use]
    pub(crate) fn new(
        path: Path,
        tag: u8,
        limited: bool,
        mtu: Mtu,
        config: &TransportConfig,
    ) -> Self {
        Self {
            path,
            tag,
            validated: false,
            used: false,
            pinned: limited,
            limited,
            received: 0,
            sent: 0,
            flow: Flow::new(tag, mtu.current(), config),
            mtu,
            spin: Spin::default(),
            validation: None,
            forget_at: None,
        }
    }

    /// The path for the socket: without a source address if the system chooses it.
    #[must_use]
    pub(crate) const fn route(&self) -> Path {
        Path {
            remote: self.path.remote,
            local: if self.pinned { self.path.local } else { None },
        }
    }

    /// Credits received bytes; discarded datagrams count too (RFC 9000 §8.1).
    pub(crate) fn on_received(&mut self, bytes: usize) {
        self.received = self.received.saturating_add(bytes as u64);
    }

    /// Records sent bytes.
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes as u64);
    }

    /// Whether packet `number` probed for the path's size, and has arrived.
    #[inline]
    pub(crate) fn on_probe_acked(&mut self, number: u64) {
        if self.mtu.on_probe_acked(number) {
            self.note_size();
        }
    }

    /// A packet of `size` bytes arrived after it had been declared lost: it may be a probe for the
    /// path's size.
    pub(crate) fn on_passed(&mut self, size: u16) {
        // Only a probe is larger than the size known to pass.
        if size > self.mtu.current() && self.mtu.on_passed(size) {
            self.note_size();
        }
    }

    /// Suspiciously many large packets were lost at once; returns whether the path no longer
    /// carries them (RFC 8899 §4.3).
    pub(crate) fn on_large_lost(&mut self, packets: u32) -> bool {
        let swallowed = packets > 0 && self.mtu.on_large_lost(packets);
        if swallowed {
            self.note_size();
        }
        swallowed
    }

    /// Searches for the path's size from the start: a new route may carry less.
    pub(crate) fn forget_size(&mut self) {
        self.mtu = self.mtu.anew();
        self.note_size();
    }

    /// Takes over what is known about the capacity of `other`, whose packets now go this way.
    pub(crate) fn take_flow(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.flow, &mut other.flow);
        self.note_size();
    }

    /// Congestion control counts in packets of the path's size.
    fn note_size(&mut self) {
        let size = self.mtu.current();
        self.flow.congestion.set_max_datagram(size);
    }

    /// Whether the validation in progress has taken too long.
    #[must_use]
    pub(crate) fn has_failed(&self, now: Time) -> bool {
        self.validation.as_ref().is_some_and(|v| v.has_failed(now))
    }

    /// Whether the connection moves here once the path is validated.
    #[must_use]
    pub(crate) fn is_sought(&self) -> bool {
        self.validation.as_ref().is_some_and(|v| v.then_move)
    }

    /// Bytes that the amplification limit allows to be sent now.
    #[must_use]
    pub(crate) fn credit(&self) -> u64 {
        if self.validated || !self.limited {
            return u64::MAX;
        }
        self.received
            .saturating_mul(AMPLIFICATION)
            .saturating_sub(self.sent)
    }

    /// As [`credit`](Self::credit), for packets other than path probes.
    ///
    /// A remainder too small for a full datagram counts as nothing: an ack-eliciting Initial needs
    /// one (RFC 9000 §14.1), and a probe timer running for something that cannot be sent would be
    /// due without end.
    #[must_use]
    pub(crate) fn allowance(&self) -> u64 {
        match self.credit() {
            rest if rest < u64::from(MIN_UDP_PAYLOAD) => 0,
            rest => rest,
        }
    }
}

/// Whether both name the same path. A socket that does not report its address leaves out `local`.
#[must_use]
pub(crate) fn same(a: &Path, b: &Path) -> bool {
    a.remote == b.remote && (a.local == b.local || a.local.is_none() || b.local.is_none())
}

/// Whether only the peer's port differs: most likely a NAT that forgot its binding (RFC 9000 §9.4).
#[must_use]
pub(crate) fn same_host(a: &Path, b: &Path) -> bool {
    a.remote.ip() == b.remote.ip() && (a.local == b.local || a.local.is_none() || b.local.is_none())
}

/// Whether a peer at `from` may move to `to`: an outside peer cannot move to this machine, this
/// link or to no host at all (RFC 9000 §21.5.6).
#[must_use]
pub(crate) fn plausible(from: &Path, to: &Path) -> bool {
    let inner = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => (v4.is_loopback(), v4.is_link_local()),
        IpAddr::V6(v6) => (
            v6.is_loopback() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback()),
            v6.is_unicast_link_local(),
        ),
    };
    let ((from_loopback, from_link), (to_loopback, to_link)) =
        (inner(from.remote.ip()), inner(to.remote.ip()));
    to.remote.port() != 0
        && !to.remote.ip().is_unspecified()
        && !to.remote.ip().is_multicast()
        && to.remote.ip() != IpAddr::V4(std::net::Ipv4Addr::BROADCAST)
        && (from_loopback || !to_loopback)
        && (from_link || from_loopback || !to_link)
}

/// The paths other than the active one, and what is owed to them.
#[derive(Debug, Default)]
pub(crate) struct InactivePaths {
    /// At most `MAX_PATHS - 1`, oldest first.
    pub(crate) others: Vec<PathState>,
    /// PATH_RESPONSE frames owed: the tag of the path, and the challenge's data.
    responses: VecDeque<(u8, [u8; 8])>,
    last_tag: u8,
    /// Clients: the server's preferred address, until it is tried.
    pub(crate) preferred: Option<SocketAddr>,
    /// Clients: whichever of the server's two addresses was left last. The server sends from there
    /// until it has validated the other path, however long that takes (RFC 9000 §9.6.2).
    pub(crate) left_server: Option<SocketAddr>,
    /// Servers: the client's address that last could not be validated, and the interval of the
    /// next attempt there. The client may be there all the same, and all responses have come too
    /// late.
    pub(crate) given_up: Option<(SocketAddr, Duration)>,
    /// When a response last left although the window was full.
    pub(crate) response_beyond_window: Option<Time>,
    /// Whether this end has ever sent a challenge.
    pub(crate) has_challenged: bool,
}

impl InactivePaths {
    /// A tag for a new path. With 4 paths and 256 tags none is in use twice.
    pub(crate) fn new_tag(&mut self, active: &PathState) -> u8 {
        loop {
            self.last_tag = self.last_tag.wrapping_add(1);
            let tag = self.last_tag;
            let taken = |p: &PathState| p.tag == tag || p.flow.tag == tag;
            if !taken(active) && !self.others.iter().any(taken) {
                return tag;
            }
        }
    }

    /// The position of the path between these addresses among the others.
    #[must_use]
    pub(crate) fn position(&self, path: &Path) -> Option<usize> {
        let exact = self.others.iter().position(|p| p.path == *path);
        exact.or_else(|| self.others.iter().position(|p| same(&p.path, path)))
    }

    /// Makes room for one more path; returns the one removed: unvalidated ones first, oldest first.
    pub(crate) fn make_room(&mut self) -> Option<PathState> {
        if self.others.len() + 1 < MAX_PATHS {
            return None;
        }
        let at = self.others.iter().position(|p| !p.validated).unwrap_or(0);
        Some(self.others.remove(at))
    }

    /// Queues a response on a path; only the newest few of a flood are kept (`SECURITY.md` row 1).
    pub(crate) fn owe_response(&mut self, tag: u8, data: [u8; 8]) {
        if self.responses.len() == MAX_PATH_RESPONSES {
            self.responses.pop_front();
        }
        self.responses.push_back((tag, data));
    }

    /// The path of the oldest response owed.
    #[must_use]
    pub(crate) fn next_response(&self) -> Option<u8> {
        self.responses.front().map(|(tag, _)| *tag)
    }

    /// Takes a response owed on that path.
    pub(crate) fn take_response(&mut self, tag: u8) -> Option<[u8; 8]> {
        let at = self.responses.iter().position(|(t, _)| *t == tag)?;
        self.responses.remove(at).map(|(_, data)| data)
    }

    /// Forgets the responses owed on a path.
    pub(crate) fn drop_responses(&mut self, tag: u8) {
        self.responses.retain(|(t, _)| *t != tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(remote: &str) -> Path {
        Path {
            remote: remote.parse().unwrap(),
            local: None,
        }
    }

    // test: RFC 9000 §8.1, §14.1
    #[test]
    fn sending_is_limited_to_three_times_the_bytes_received() {
        let config = TransportConfig::default();
        let mut state = PathState::new(path("192.0.2.1:1"), 0, true, Mtu::new(&config), &config);
        assert_eq!(state.allowance(), 0);
        state.on_received(1200);
        assert_eq!(state.allowance(), 3600);
        state.on_sent(2400);
        assert_eq!(state.allowance(), 1200);
        state.on_sent(1);
        assert_eq!(
            state.allowance(),
            0,
            "1,199 bytes are too few for a full datagram"
        );
        assert_eq!(state.credit(), 1199, "the rest suffices for a probe");
        state.on_received(1);
        assert_eq!(state.allowance(), 1202);
        state.validated = true;
        assert_eq!(state.allowance(), u64::MAX);
    }

    // test: RFC 9000 §21.5.6
    #[test]
    fn a_peer_cannot_move_from_a_public_to_a_private_address() {
        for (from, to, may) in [
            ("192.0.2.1:1", "192.0.2.1:2", true),
            ("192.0.2.1:1", "[2001:db8::1]:2", true),
            ("127.0.0.1:1", "127.0.0.1:2", true),
            ("127.0.0.1:1", "192.0.2.1:2", true),
            ("192.0.2.1:1", "127.0.0.1:2", false),
            ("192.0.2.1:1", "[::1]:2", false),
            ("192.0.2.1:1", "[::ffff:127.0.0.1]:2", false),
            ("192.0.2.1:1", "169.254.1.1:2", false),
            ("[2001:db8::1]:1", "[fe80::1]:2", false),
            ("192.0.2.1:1", "224.0.0.1:2", false),
            ("192.0.2.1:1", "0.0.0.0:2", false),
            ("192.0.2.1:1", "255.255.255.255:2", false),
            ("192.0.2.1:1", "192.0.2.2:0", false),
        ] {
            assert_eq!(plausible(&path(from), &path(to)), may, "{from} {to}");
        }
    }

    // test: SECURITY.md row 34
    #[test]
    fn at_most_four_paths_are_kept_including_the_validated_one() {
        let config = TransportConfig::default();
        let mut paths = InactivePaths::default();
        let active = PathState::new(path("192.0.2.9:1"), 0, true, Mtu::new(&config), &config);
        for n in 1..100_u16 {
            let gone = paths.make_room();
            assert_eq!(gone.is_some(), n > MAX_PATHS as u16 - 1);
            assert!(gone.is_none_or(|p| p.tag != 1), "the validated one stays");
            let tag = paths.new_tag(&active);
            let path = path(&format!("192.0.2.1:{n}"));
            let mut state = PathState::new(path, tag, true, Mtu::new(&config), &config);
            state.validated = n == 1;
            paths.others.push(state);
            assert!(paths.others.len() < MAX_PATHS);
        }
    }

    // test: RFC 9000 §8.2.2, §13.3; SECURITY.md row 1
    #[test]
    fn only_the_newest_responses_are_kept() {
        let mut paths = InactivePaths::default();
        for n in 0..1_000_000_u64 {
            paths.owe_response(0, n.to_be_bytes());
        }
        for n in 999_996..1_000_000_u64 {
            assert_eq!(paths.take_response(0), Some(n.to_be_bytes()));
        }
        assert_eq!(paths.take_response(0), None);
        assert!(paths.responses.capacity() <= 8);
    }
}
