//! The paths of a connection, and the connection ids of both ends (RFC 9000 §5.1, §8, §9).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use squall_protect::{Outcome, PacketSpan};
use squall_wire::{
    ConnectionId, Frame, Path, PreferredAddress, Side, Transmit, TransportError, TransportErrorCode,
};

use crate::config::{MIN_UDP_PAYLOAD, TransportConfig};
use crate::connection::handshake::parameters::parameter_error;
use crate::event::EndpointEvent;
use crate::path::cid::RemoteIds;
use crate::path::ecn::EcnTotals;
use crate::path::local_ids::LocalIds;
use crate::path::mtu::Mtu;
use crate::path::spin::Spin;
use crate::path::validation::Validation;
use crate::path::{self, InactivePaths, PathState};
use crate::recovery::rtt::GRANULARITY;
use crate::space::sent::SentPacket;
use crate::time::Time;

use super::endpoint::EndpointLink;

/// Bytes of the shortest datagram that holds a PATH_CHALLENGE, without the connection id: first
/// byte, packet number, frame and tag.
const LEAST_PROBE: usize =
    1 + 4 + squall_wire::frame::write::PATH_CHALLENGE_SIZE + squall_protect::TAG_LEN;

/// A path that is being probed.
pub(crate) struct Probed {
    /// Its tag.
    pub(crate) tag: u8,
    /// Whether it is the active path.
    pub(crate) active: bool,
    /// Bytes of the datagram.
    pub(crate) size: usize,
    /// Whether a challenge is due.
    pub(crate) challenge: bool,
}

/// All paths of a connection.
#[repr(C)]
pub(crate) struct Paths {
    /// The path on which everything except probes is sent.
    pub(crate) active: PathState,
    /// The other paths; `None` until there is one.
    pub(crate) inactive: Option<Box<InactivePaths>>,
    /// ECN marks on all paths: the peer's counts do not tell them apart.
    pub(crate) ecn: EcnTotals,
    side: Side,
    /// Clients: whether the address in use was left at once, for a path that is not yet validated
    /// (`Move::AtOnce`).
    pub(crate) left_at_once: bool,
    /// The connection ids that the peer has issued.
    pub(crate) remote_ids: RemoteIds,
    /// The connection ids that this end has issued.
    pub(crate) local_ids: LocalIds,
}

impl Paths {
    /// The path of a connection's first packet, and the ids that both ends chose for themselves.
    pub(crate) fn new(
        side: Side,
        active: PathState,
        local: ConnectionId,
        remote: ConnectionId,
    ) -> Self {
        Self {
            side,
            active,
            inactive: None,
            local_ids: LocalIds::new(local),
            remote_ids: RemoteIds::new(remote),
            ecn: EcnTotals::default(),
            left_at_once: false,
        }
    }

    // ---- all paths ------------------------------------------------------------------------------

    /// The paths not in use, oldest first.
    pub(crate) fn others(&self) -> &[PathState] {
        self.inactive.as_ref().map_or(&[][..], |p| &p.others)
    }

    /// All paths, the active one last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PathState> {
        self.others().iter().chain([&self.active])
    }

    /// The path with this tag.
    pub(crate) fn get_mut(&mut self, tag: u8) -> Option<&mut PathState> {
        if self.active.tag == tag {
            return Some(&mut self.active);
        }
        let others = &mut self.inactive.as_mut()?.others;
        others.iter_mut().find(|p| p.tag == tag)
    }

    /// The tag of the inactive path between these addresses.
    pub(crate) fn tag_of(&self, path: &Path) -> Option<u8> {
        let paths = self.inactive.as_ref()?;
        Some(paths.others[paths.position(path)?].tag)
    }

    /// The last path that was in use and validated, apart from the active one, if it can be used
    /// again.
    pub(crate) fn last_validated(&self) -> Option<&PathState> {
        let usable = |p: &&PathState| p.validated && p.used && self.may_send_on(p);
        self.others().iter().rev().find(usable)
    }

    /// The inactive path to which the connection will move once it is validated.
    pub(crate) fn sought(&self) -> Option<u8> {
        self.others().iter().find(|p| p.is_sought()).map(|p| p.tag)
    }

    /// Bytes of memory that inactive paths and retired ids take.
    pub(crate) fn memory(&self) -> usize {
        let inactive = self.inactive.as_ref().map_or(0, |paths| {
            size_of_val(&**paths) + paths.others.capacity() * size_of::<PathState>()
        });
        inactive + self.local_ids.memory()
    }

    // ---- where packets come from ----------------------------------------------------------------

    /// Whether datagrams on a path other than the active one are processed.
    pub(crate) fn admits(&self, path: &Path, config: &TransportConfig, confirmed: bool) -> bool {
        if self.tag_of(path).is_some() {
            return true;
        }
        match self.side {
            // RFC 9000 §9.6: a client drops packets from server addresses that it did not choose.
            Side::Client => {
                let left = self.inactive.as_ref().and_then(|p| p.left_server);
                path.remote == self.active.path.remote || Some(path.remote) == left
            }
            // RFC 9000 §9: not before the handshake is confirmed.
            Side::Server => {
                let allowed = config.allow_migration || self.is_own_move(path, config);
                allowed && confirmed && path::plausible(&self.active.path, path)
            }
        }
    }

    /// Whether only the server's own address differs from that of the active path, and is its
    /// preferred address.
    fn is_own_move(&self, path: &Path, config: &TransportConfig) -> bool {
        let preferred = |ip: IpAddr| {
            config.preferred_ipv4.is_some_and(|a| *a.ip() == ip)
                || config.preferred_ipv6.is_some_and(|a| *a.ip() == ip)
        };
        path.remote == self.active.path.remote && path.local.is_some_and(preferred)
    }

    /// Whether a client's datagrams on the active path may leave from any of its addresses, and be
    /// answered there.
    pub(crate) fn follows_system(&self, path: &Path) -> bool {
        self.side == Side::Client
            && !self.active.pinned
            && path.remote == self.active.path.remote
            && self.tag_of(path).is_none()
    }

    /// Credits a run to the inactive path on which it arrived; returns the bytes not credited to
    /// any path yet.
    pub(crate) fn credit_elsewhere(&mut self, path: &Path, bytes: usize) -> usize {
        let tag = self.tag_of(path);
        match tag.and_then(|tag| self.get_mut(tag)) {
            Some(state) => {
                state.on_received(bytes);
                0
            }
            None => bytes,
        }
    }

    /// A packet that was sent on a path other than the active one is settled: only its bytes
    /// matter, and only there.
    #[cold]
    pub(crate) fn settle_elsewhere(&mut self, packet: &SentPacket) {
        if let Some(paths) = &mut self.inactive
            && let Some(state) = paths.others.iter_mut().find(|p| p.flow.tag == packet.flow)
        {
            state.flow.leave(packet.size.into());
        }
    }

    /// Follows the spin bit of the newest packet, once per group (RFC 9000 §17.4).
    pub(crate) fn follow_spin(&mut self, bytes: &[u8], spans: &[PacketSpan], newest: Option<u64>) {
        let is_newest =
            |s: &&PacketSpan| s.outcome == Outcome::Open && Some(s.packet_number) == newest;
        if let Some(span) = spans.iter().rev().find(is_newest) {
            let bit = bytes[span.start as usize] & 0x20 != 0;
            self.active.spin.on_newest(self.side, bit);
        }
    }

    /// Processes a frame about connection ids that arrived under the id `dcid` (RFC 9000 §19.15,
    /// §19.16). An id that it retires is routed until `expires`.
    ///
    /// # Errors
    /// The code, and the reason.
    #[cold]
    pub(crate) fn take_id_frame(
        &mut self,
        frame: &Frame<'_>,
        dcid: ConnectionId,
        expires: Time,
        endpoint: &mut EndpointLink,
    ) -> Result<(), (TransportErrorCode, &'static str)> {
        match *frame {
            Frame::NewConnectionId {
                sequence,
                retire_prior_to,
                id,
                reset_token,
            } => {
                let ids = &mut self.remote_ids;
                let taken = ids.on_new(sequence, retire_prior_to, id, reset_token);
                let offence = "a NEW_CONNECTION_ID against the limits or an earlier one";
                taken.map_err(|code| (code, offence))?;
                endpoint.report_reset_tokens(ids);
            }
            Frame::RetireConnectionId { sequence } => {
                let offence = "a RETIRE_CONNECTION_ID for an id not issued or in use";
                let retired = self.local_ids.retire(sequence, dcid, expires);
                let gone = retired.map_err(|code| (code, offence))?;
                endpoint.events.extend(gone.map(EndpointEvent::RemoveId));
                endpoint.issue_ids(&mut self.local_ids);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether packet `number` is an MTU probe, including on a path that was left.
    pub(crate) fn is_mtu_probe(&self, number: u64) -> bool {
        self.iter().any(|p| p.mtu.is_probe(number))
    }

    // ---- paths come and go ----------------------------------------------------------------------

    /// Adds an inactive path, with a connection id of its own if there is one; returns its tag.
    pub(crate) fn add(
        &mut self,
        path: Path,
        config: &TransportConfig,
        endpoint: &mut EndpointLink,
    ) -> u8 {
        let paths = self.inactive.get_or_insert_default();
        let gone = paths.make_room();
        let tag = paths.new_tag(&self.active);
        if let Some(gone) = gone {
            self.forget(&gone, endpoint);
        }
        self.remote_ids.lend(tag);
        let mtu = self.active.mtu.anew();
        let mut state = PathState::new(path, tag, self.side == Side::Server, mtu, config);
        state.spin = Spin::draw(config.spin_bit, &mut endpoint.rng);
        self.inactive.get_or_insert_default().others.push(state);
        endpoint.report_reset_tokens(&mut self.remote_ids);
        tag
    }

    /// Drops everything that belongs to a path that was removed.
    pub(crate) fn forget(&mut self, gone: &PathState, endpoint: &mut EndpointLink) {
        self.remote_ids.release(gone.tag);
        endpoint.report_reset_tokens(&mut self.remote_ids);
        if let Some(paths) = &mut self.inactive {
            paths.drop_responses(gone.tag);
        }
    }

    /// Makes the inactive path with this tag the active one; returns the previous one. `keep_flow`:
    /// what is known about the path's capacity still applies.
    pub(crate) fn swap_active(&mut self, tag: u8, keep_flow: bool) -> Option<PathState> {
        let paths = self.inactive.as_mut()?;
        let at = paths.others.iter().position(|p| p.tag == tag)?;
        let mut new = paths.others.remove(at);
        (new.forget_at, new.used) = (None, true);
        new.mtu.resume();
        if keep_flow {
            new.take_flow(&mut self.active);
        }
        let old = std::mem::replace(&mut self.active, new);
        if old.path.remote != self.active.path.remote && self.side == Side::Client {
            paths.left_server = Some(old.path.remote);
        }
        self.remote_ids.activate(tag, old.tag);
        Some(old)
    }

    /// Switches to another id of the peer's, if there is one; the spin bit starts over with it.
    pub(crate) fn rotate_remote_id(
        &mut self,
        config: &TransportConfig,
        endpoint: &mut EndpointLink,
    ) -> bool {
        let rotated = self.remote_ids.rotate();
        if rotated {
            self.active.spin = Spin::draw(config.spin_bit, &mut endpoint.rng);
        }
        endpoint.report_reset_tokens(&mut self.remote_ids);
        rotated
    }

    /// Starts validating a path, again if need be.
    pub(crate) fn validate(&mut self, now: Time, tag: u8, interval: Duration, then_move: bool) {
        if let Some(state) = self.get_mut(tag) {
            state.validation = Some(Box::new(Validation::new(now, interval, then_move)));
        }
    }

    /// The least interval of the next attempt to validate this path, if its address was given up.
    pub(crate) fn interval_after_giving_up(&self, tag: u8) -> Duration {
        let given_up = self.inactive.as_ref().and_then(|paths| paths.given_up);
        let Some((address, interval)) = given_up else {
            return Duration::ZERO;
        };
        let is_here = |p: &PathState| p.tag == tag && p.path.remote == address;
        match self.iter().any(is_here) {
            true => interval,
            false => Duration::ZERO,
        }
    }

    /// The path was validated: later attempts at its address begin anew.
    pub(crate) fn clear_given_up(&mut self, tag: u8) {
        let remote = self.get_mut(tag).map(|state| state.path.remote);
        if let Some(paths) = &mut self.inactive {
            let is_here = |(address, _): &mut (SocketAddr, Duration)| Some(*address) == remote;
            paths.given_up.take_if(is_here);
        }
    }

    /// Stores the server's preferred address (RFC 9000 §9.6, §18.2), to be tried if it is to be
    /// followed.
    ///
    /// # Errors
    /// `TRANSPORT_PARAMETER_ERROR` for its connection id.
    pub(crate) fn take_preferred(
        &mut self,
        preferred: &PreferredAddress,
        follow: bool,
    ) -> Result<(), TransportError> {
        let (id, token) = (preferred.connection_id, preferred.stateless_reset_token);
        // Not alongside an empty connection id, and not the same id again.
        if self.remote_ids.on_new(1, 0, id, token).is_err() {
            return Err(parameter_error(
                "a preferred_address with a connection id out of place",
            ));
        }
        // RFC 9000 §9.6.3: of the same family.
        let address = match self.active.path.remote {
            SocketAddr::V4(_) => preferred.ipv4.map(SocketAddr::V4),
            SocketAddr::V6(_) => preferred.ipv6.map(SocketAddr::V6),
        };
        if follow && address.is_some() {
            self.inactive.get_or_insert_default().preferred = address;
        }
        Ok(())
    }

    /// Whether a client has left its address at once and has not heard from the server since.
    pub(crate) const fn is_searching(&self) -> bool {
        self.left_at_once && !self.active.validated
    }

    /// Whether the validation of a path has taken too long.
    pub(crate) fn has_failed(&self, now: Time) -> bool {
        self.iter().any(|p| p.has_failed(now))
    }

    /// When a challenge, the end of a validation or the end of a path falls due.
    pub(crate) fn next_due(&self, now: Time) -> Option<Time> {
        self.iter()
            .filter_map(|p| match &p.validation {
                Some(validation) => Some(validation.wakes_at(now)),
                None => p.forget_at,
            })
            .min()
    }

    // ---- what is sent ---------------------------------------------------------------------------

    /// The datagrams of a bundle on the active path.
    pub(crate) fn transmit(&self, segment_size: usize, len: usize) -> Transmit {
        Transmit {
            path: self.active.route(),
            ecn: self.active.flow.ecn.mark(),
            segment_size: segment_size as u16,
            len,
        }
    }

    /// The probe timeout of the active path without backoff and `max_ack_delay` (RFC 9002 §6.2.1).
    pub(crate) fn pto_base(&self) -> Duration {
        self.active.flow.rtt.pto_base().max(GRANULARITY)
    }

    /// Whether sending `bytes` more shows that the window, not the application, is the limit (RFC
    /// 9002 §7.8).
    pub(crate) fn is_window_limited(&self, bytes: usize) -> bool {
        let flow = &self.active.flow;
        let (window, after) = (flow.congestion.window(), flow.in_flight() + bytes as u64);
        // Room for less than a full packet is no room: in a small window it may be more than an
        // eighth.
        let full = after + u64::from(self.active.mtu.current()) > window;
        full || if flow.congestion.is_slow_start() {
            2 * after >= window
        } else {
            after * 8 >= window * 7
        }
    }

    /// The path that has to be probed now; responses take precedence.
    pub(crate) fn next_probe(&self, now: Time, window_open: bool) -> Option<u8> {
        // RFC 9000 §8.2.2: on the active path a response waits for congestion control.
        let response = (self.inactive.as_ref())
            .and_then(|p| p.next_response())
            .filter(|tag| window_open || *tag != self.active.tag);
        response.or_else(|| {
            let due = |p: &&PathState| {
                p.validation.as_ref().is_some_and(|v| v.is_due(now))
                    && p.credit() >= self.least_probe(p.tag) as u64
                    && self.may_send_on(p)
            };
            self.iter().find(due).map(|p| p.tag)
        })
    }

    /// The probe for the path with this tag, in `room` bytes; `None` if none may be sent.
    pub(crate) fn probed(&self, now: Time, room: usize, tag: u8) -> Option<Probed> {
        let state = self.iter().find(|p| p.tag == tag)?;
        // RFC 9000 §8.2.1, §8.2.2: 1200 bytes, but no more than the amplification limit leaves.
        let size = usize::try_from(state.credit())
            .unwrap_or(usize::MAX)
            .min(MIN_UDP_PAYLOAD.into())
            .min(room);
        let fits = size >= self.least_probe(tag) && self.may_send_on(state);
        fits.then(|| Probed {
            tag,
            active: tag == self.active.tag,
            size,
            challenge: state.validation.as_ref().is_some_and(|v| v.is_due(now)),
        })
    }

    /// Whether a path has a connection id to send to: a new address must not see the id of another
    /// one, unless the peer has none, or is a client that was moved without knowing (RFC 9000
    /// §9.5).
    fn may_send_on(&self, state: &PathState) -> bool {
        state.tag == self.active.tag
            || (state.validated && self.side == Side::Server)
            || self.remote_ids.is_without()
            || self.remote_ids.has_lent(state.tag)
    }

    /// The smallest datagram that holds a challenge.
    fn least_probe(&self, tag: u8) -> usize {
        LEAST_PROBE + self.remote_ids.of(tag).len()
    }
}

/// The active path of a new connection.
pub(crate) fn first_path(
    path: Path,
    side: Side,
    validated: bool,
    config: &TransportConfig,
    rng: &mut impl rand::Rng,
) -> PathState {
    let mtu = Mtu::new(config);
    let mut state = PathState::new(path, 0, side == Side::Server, mtu, config);
    (state.validated, state.used) = (validated, true);
    state.spin = Spin::draw(config.spin_bit, rng);
    state
}
