//! Paths that come and go (RFC 9000 §8.2, §9).
//!
//! ```text
//!  server  a packet from elsewhere ─▶ probing: answer there, challenge ─▶ forgotten after a while
//!                                  └▶ newest, not probing: follow ─▶ challenge the new path and the one before
//!                                         answered: stay             not answered: back to the last that was validated
//!  client  packets from servers' addresses that it chose; from elsewhere they are dropped
//! ```
//!
//! Challenges and responses are in `probe`.

use std::net::IpAddr;
use std::time::Duration;

use squall_wire::{Path, Side, TransportErrorCode};

use super::Connection;
use super::receive::Trip;
use super::timers::Timer;
use crate::error::{CloseReason, MigrateError};
use crate::event::{EndpointEvent, Event};
use crate::path::cid::TokenChange;
use crate::path::spin::Spin;
use crate::path::validation::Validation;
use crate::path::{self, PathState};
use crate::recovery::rtt::RttEstimator;
use crate::space::sent::SentPacket;
use crate::time::Time;

/// Probe timeouts that a path out of use is remembered for packets on their way.
pub(super) const LINGER: u32 = 3;

/// How a client migrates to another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The path is validated first; until then, and if validation fails, the connection stays where
    /// it is.
    WhenValidated,
    /// Immediately: the current address is gone, or about to go. The path is validated while it is
    /// used.
    AtOnce,
}

impl Connection {
    // ---- where packets come from ------------------------------------------------------------------------------------

    /// Whether datagrams from a path that is not the active one are looked at.
    pub(super) fn admits(&self, path: &Path) -> bool {
        if self
            .paths
            .as_ref()
            .is_some_and(|p| p.position(path).is_some())
        {
            return true;
        }
        match self.side {
            // RFC 9000 §9.6: a client drops what comes from servers' addresses that it did not choose.
            Side::Client => {
                let origin = self.paths.as_ref().and_then(|p| p.origin);
                path.remote == self.path.path.remote || Some(path.remote) == origin
            }
            // RFC 9000 §9: not before the handshake is confirmed.
            Side::Server => {
                let allowed = self.config.allow_migration || self.is_own_move(path);
                allowed && self.handshake_confirmed && path::plausible(&self.path.path, path)
            }
        }
    }

    /// Whether a path differs from the active one by the server's own address alone: its preferred one, if it has one.
    fn is_own_move(&self, path: &Path) -> bool {
        let preferred = |ip: IpAddr| {
            self.config.preferred_ipv4.is_some_and(|a| *a.ip() == ip)
                || self.config.preferred_ipv6.is_some_and(|a| *a.ip() == ip)
        };
        path.remote == self.path.path.remote && path.local.is_some_and(preferred)
    }

    /// Credits a run to the path it came on; returns the bytes that no path has taken yet.
    pub(super) fn credit_elsewhere(&mut self, path: &Path, bytes: usize) -> usize {
        let known = self
            .paths
            .as_mut()
            .and_then(|p| p.position(path).and_then(|at| p.others.get_mut(at)));
        match known {
            Some(state) => {
                state.on_received(bytes);
                0
            }
            None => bytes,
        }
    }

    /// The tag of the path that a run came on. A server makes one for an authentic packet from elsewhere.
    pub(super) fn path_of(&mut self, now: Time, trip: &mut Trip) -> Option<u8> {
        if trip.home {
            return Some(self.path.tag);
        }
        if let Some(paths) = &self.paths
            && let Some(at) = paths.position(&trip.path)
        {
            return Some(paths.others[at].tag);
        }
        if self.side == Side::Client {
            return Some(self.path.tag);
        }
        let tag = self.add_path(trip.path);
        let credit = std::mem::take(&mut trip.uncredited);
        if let Some(state) = self.path_mut(tag) {
            state.on_received(credit);
        }
        // RFC 9000 §9.6.3: who probes may come to stay.
        self.validate(now, tag, false);
        Some(tag)
    }

    pub(super) fn path_mut(&mut self, tag: u8) -> Option<&mut PathState> {
        if self.path.tag == tag {
            return Some(&mut self.path);
        }
        let others = &mut self.paths.as_mut()?.others;
        others.iter_mut().find(|p| p.tag == tag)
    }

    /// Adds a path beside the active one, with a connection id of its own if there is one; returns its tag.
    pub(super) fn add_path(&mut self, path: Path) -> u8 {
        let paths = self.paths.get_or_insert_default();
        let gone = paths.make_room();
        let tag = paths.new_tag(&self.path);
        if let Some(gone) = gone {
            self.forget(&gone);
        }
        let _ = self.remote_ids.lend(tag);
        let mtu = self.path.mtu.anew();
        let mut state = PathState::new(path, tag, self.side == Side::Server, mtu, &self.config);
        state.spin = Spin::draw(self.config.spin_bit, &mut self.rng);
        self.paths.get_or_insert_default().others.push(state);
        self.note_tokens();
        tag
    }

    /// Drops what belongs to a path that was taken out.
    fn forget(&mut self, gone: &PathState) {
        self.remote_ids.release(gone.tag);
        self.note_tokens();
        if let Some(paths) = &mut self.paths {
            paths.drop_responses(gone.tag);
        }
    }

    /// Tells the endpoint which stateless resets count.
    pub(super) fn note_tokens(&mut self) {
        let changes = self.remote_ids.take_changes().map(|change| match change {
            TokenChange::Added(token) => EndpointEvent::AddResetToken(token),
            TokenChange::Removed(token) => EndpointEvent::RemoveResetToken(token),
        });
        self.endpoint_events.extend(changes);
    }

    /// A packet that was sent on another path than the active one is settled: only its bytes matter, and only there.
    #[cold]
    pub(super) fn settle_elsewhere(&mut self, packet: &SentPacket) {
        if let Some(paths) = &mut self.paths
            && let Some(state) = paths.others.iter_mut().find(|p| p.flow.tag == packet.flow)
        {
            state.flow.leave(packet.size.into());
        }
    }

    /// Whether packet `number` is a probe for a path's size, also of a path that was left.
    pub(super) fn is_mtu_probe(&self, number: u64) -> bool {
        let others = self.paths.as_ref().map_or(&[][..], |p| &p.others);
        self.path.mtu.is_probe(number) || others.iter().any(|p| p.mtu.is_probe(number))
    }

    // ---- moving -----------------------------------------------------------------------------------------------------

    /// The newest packet came from elsewhere and was no probe: the peer is there (RFC 9000 §9.3).
    pub(super) fn follow(&mut self, now: Time, trip: &mut Trip) {
        if self.side == Side::Client {
            return;
        }
        let Some(tag) = self.path_of(now, trip) else {
            return;
        };
        let home = self.path.path;
        let Some(state) = self.path_mut(tag) else {
            return;
        };
        if !state.validated && state.path.remote == home.remote {
            // RFC 9000 §9.6.2: to our own other address only once that path is validated.
            match &mut state.validation {
                Some(validation) => validation.then_move = true,
                None => self.validate(now, tag, true),
            }
            return;
        }
        let old = self.path.tag;
        self.activate(now, tag, path::same_host(&trip.path, &home));
        if !self.path.validated && self.path.validation.is_none() {
            self.validate(now, tag, false);
        }
        // RFC 9000 §9.3.3: whoever still is at the old address shall say so.
        self.validate(now, old, false);
        if self.path.validated {
            self.tell_moved(Event::Migrated(self.path.path));
        }
    }

    /// Migrates a client's connection to another path (RFC 9000 §9.2): from `path.local` to the
    /// server's current address. `Event::Migrated` or `Event::MigrationFailed` follows.
    ///
    /// # Errors
    /// See [`MigrateError`]; the connection is then unchanged.
    pub fn migrate(&mut self, now: Time, path: Path, how: Move) -> Result<(), MigrateError> {
        if self.is_closed() {
            return Err(MigrateError::Closed);
        }
        if self.side == Side::Server {
            return Err(MigrateError::NotAClient);
        }
        if !self.handshake_confirmed {
            return Err(MigrateError::NotConfirmed);
        }
        if self.peer.forbids_migration {
            return Err(MigrateError::Forbidden);
        }
        if path.remote != self.path.path.remote {
            return Err(MigrateError::OtherServer);
        }
        if how == Move::WhenValidated && path::same(&path, &self.path.path) {
            return Err(MigrateError::SamePath);
        }
        let known = self.paths.as_ref().and_then(|p| {
            let at = p.position(&path)?;
            Some(p.others[at].tag)
        });
        let known = known.filter(|tag| self.remote_ids.has_lent(*tag));
        let tag = match known {
            Some(tag) => tag,
            // RFC 9000 §9.5: neither the id of another path nor, for it would tell as much, an empty one.
            None if !self.remote_ids.can_lend() => return Err(MigrateError::NoConnectionId),
            None => self.add_path(path),
        };
        if let Some(state) = self.path_mut(tag) {
            state.pinned = path.local.is_some();
        }
        if how == Move::AtOnce {
            // The way back is from the address that is left, and from no other: should the system choose the new one, an answer
            // would say nothing about the old one, and its id would be seen in two places (RFC 9000 §9.5).
            self.path.pinned |= path.local.is_some() && self.path.path.local.is_some();
            self.activate(now, tag, false);
            self.path.validated = false;
            self.left_at_once = true;
        }
        self.validate(now, tag, how == Move::WhenValidated);
        Ok(())
    }

    /// A client tries the server's preferred address once the handshake is confirmed (RFC 9000 §9.6.1).
    pub(super) fn seek_preferred_address(&mut self, now: Time) {
        let Some(remote) = self.paths.as_mut().and_then(|p| p.preferred.take()) else {
            return;
        };
        let path = Path {
            remote,
            ..self.path.path
        };
        // RFC 9000 §21.5.3: a server could point at somebody else.
        if path::plausible(&self.path.path, &path) && self.remote_ids.can_lend() {
            let tag = self.add_path(path);
            self.validate(now, tag, true);
        }
    }

    /// Tells a server's endpoint the client's address once it is known to be its own, and when it changes.
    pub(super) fn note_validated_address(&mut self) {
        let address = self.path.path.remote.ip();
        if self.side == Side::Server && self.path.validated && self.told_address != Some(address) {
            self.told_address = Some(address);
            let event = EndpointEvent::AddressValidated(address);
            self.endpoint_events.push_back(event);
        }
    }

    /// Sends on another path from now on. `keep_flow`: what is known of the path's capacity still holds.
    pub(super) fn activate(&mut self, now: Time, tag: u8, keep_flow: bool) {
        let Some(paths) = &mut self.paths else { return };
        let Some(at) = paths.others.iter().position(|p| p.tag == tag) else {
            return;
        };
        let mut new = paths.others.remove(at);
        new.forget_at = None;
        new.mtu.resume();
        if keep_flow {
            std::mem::swap(&mut new.flow, &mut self.path.flow);
            let size = new.mtu.current();
            new.flow.congestion.set_max_datagram(size);
        }
        let linger = LINGER * self.probe_timeout();
        let mut old = std::mem::replace(&mut self.path, new);
        if old.path.remote != self.path.path.remote {
            // RFC 9000 §18.2: disable_active_migration ends with a move to the preferred address.
            self.peer.forbids_migration = false;
            if self.side == Side::Client {
                let origin = &mut self.paths.get_or_insert_default().origin;
                origin.get_or_insert(old.path.remote);
            }
        }
        self.remote_ids.activate(tag, old.tag);
        if old.validated {
            old.forget_at = Some(now + linger);
            self.paths.get_or_insert_default().others.push(old);
        } else {
            self.forget(&old);
        }
        self.note_tokens();
        self.stats.migrations += 1;
        self.pto_count = 0;
        // The peer learns of the move by a packet that is no probe, and says what arrived.
        self.ping_pending = true;
        self.timers.set(Timer::Pacing, None);
        self.arm_path_timer(now);
        self.set_loss_timer(now);
    }

    /// Begins to validate a path, again if need be.
    pub(super) fn validate(&mut self, now: Time, tag: u8, then_move: bool) {
        let pto = self.validation_interval();
        if let Some(state) = self.path_mut(tag) {
            state.validation = Some(Box::new(Validation::new(now, pto, then_move)));
        }
        self.arm_path_timer(now);
    }

    /// The time between two challenges.
    fn validation_interval(&self) -> Duration {
        // RFC 9000 §8.2.4: the larger of the probe timeouts of the path in use and of one that nothing is known of.
        let unknown = RttEstimator::new(self.config.initial_rtt).pto_base();
        (self.probe_timeout()).max(unknown + self.peer.max_ack_delay)
    }

    /// Ends a client's search with the path in use, which is the one that it had left; `active`: it was in use before. `false`
    /// if it was not searching.
    pub(super) fn is_back(&mut self, active: bool) -> bool {
        let others = self.paths.as_mut().map_or(&mut [][..], |p| &mut p.others);
        let Some(sought) = others.iter_mut().find(|p| p.is_sought()).filter(|_| active) else {
            return false;
        };
        // `on_path_timer` forgets it.
        (sought.validation, sought.forget_at) = (None, Some(Time::ZERO));
        let failed = Event::MigrationFailed(sought.path);
        self.tell_moved(failed);
        true
    }

    /// Whether a client has left its address at once and not heard from the server since.
    fn is_searching(&self) -> bool {
        self.left_at_once && !self.path.validated
    }

    // ---- a client's addresses that change by themselves ---------------------------------------------------------------

    /// Whether a client's datagrams on the active path may leave from any of its addresses, and be answered there.
    pub(super) fn follows_system(&self, path: &Path) -> bool {
        self.side == Side::Client
            && !self.path.pinned
            && path.remote == self.path.path.remote
            && self
                .paths
                .as_ref()
                .is_none_or(|p| p.position(path).is_none())
    }

    /// The newest packet came to another address of a client's than those before: the system sends from there now. The path
    /// is validated, under an id of the server's that was not used elsewhere (RFC 9000 §9.5).
    pub(super) fn note_new_source(&mut self, now: Time, path: Path) {
        self.path.path.local = path.local;
        self.stats.migrations += 1;
        self.revalidate(now);
    }

    /// Reports that the system refuses to send from `local`, an address of this machine. A client
    /// that migrated immediately switches to the other of its two addresses; any other connection
    /// then sends from an address that the system chooses. Returns whether that changes anything.
    pub fn on_source_lost(&mut self, now: Time, local: IpAddr) -> bool {
        let concerned = self.side == Side::Client
            && !self.is_closed()
            && self.path.pinned
            && self.path.path.local == Some(local);
        if concerned && !(self.is_searching() && self.leave_lost_source(now)) {
            self.path.pinned = false;
            self.path.path.local = None;
            self.stats.migrations += 1;
            self.revalidate(now);
        }
        concerned
    }

    /// Goes on from the other address of a client that moved at once; `false` if there is none. The lost one is forgotten, so
    /// that two lost addresses do not take turns.
    fn leave_lost_source(&mut self, now: Time) -> bool {
        let lost = self.path.path;
        let others = self.paths.as_ref().map_or(&[][..], |p| &p.others);
        if let Some(tag) = others.iter().find(|p| p.is_sought()).map(|p| p.tag) {
            // The way back is lost: the client stays where it went.
            self.activate(now, tag, false);
            self.validate(now, tag, false);
            return true;
        }
        let Some(back) = others.iter().rev().find(|p| p.validated).map(|p| p.tag) else {
            return false;
        };
        self.left_at_once = false;
        self.activate(now, back, false);
        self.tell_moved(Event::MigrationFailed(lost));
        true
    }

    /// Reports that this machine's addresses changed: a client sends a packet, so that a server
    /// that sends to a vanished address learns of the current one (RFC 9000 §9.2).
    pub fn on_addresses_changed(&mut self) {
        if self.side == Side::Client && matches!(self.state, super::State::Established) {
            self.ping_pending = true;
        }
    }

    /// Shows that the active path still leads to the server, with a packet that is no probe.
    pub(super) fn revalidate(&mut self, now: Time) {
        self.ping_pending = true;
        self.path.validated = false;
        if !self.handshake_confirmed {
            // RFC 9000 §9: not yet. `confirm_handshake` comes back to it.
            return;
        }
        if self.remote_ids.rotate() {
            self.path.spin = Spin::draw(self.config.spin_bit, &mut self.rng);
            self.note_tokens();
        }
        // The new route may carry less.
        self.path.mtu = self.path.mtu.anew();
        let size = self.path.mtu.current();
        self.path.flow.congestion.set_max_datagram(size);
        let _ = self.paths.get_or_insert_default();
        self.validate(now, self.path.tag, false);
    }

    // ---- connection ids ---------------------------------------------------------------------------------------------

    /// Replaces the connection ids of both directions, so that an observer cannot link later
    /// packets to this connection by their ids (RFC 9000 §5.1.2, §9.5): asks the peer to retire all
    /// of our ids and issues new ones, and switches to another id of the peer's. Returns whether
    /// both were possible: not before the handshake is confirmed, not during the previous rotation,
    /// and not without a spare id of the peer's.
    pub fn rotate_ids(&mut self) -> bool {
        if self.is_closed() || !self.handshake_confirmed {
            return false;
        }
        let ours = self.local_ids.rotate();
        self.issue_ids();
        let theirs = self.remote_ids.rotate();
        if theirs {
            self.path.spin = Spin::draw(self.config.spin_bit, &mut self.rng);
        }
        self.note_tokens();
        ours && theirs
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    pub(super) fn arm_path_timer(&mut self, now: Time) {
        let others = self.paths.as_ref().map_or(&[][..], |p| &p.others);
        let due = others
            .iter()
            .chain([&self.path])
            .filter_map(|p| match &p.validation {
                Some(validation) => Some(validation.wakes_at(now)),
                None => p.forget_at,
            })
            .min();
        self.timers.set(Timer::Path, due);
    }

    /// Challenges fall due by themselves; here attempts end and paths are forgotten.
    pub(super) fn on_path_timer(&mut self, now: Time) {
        let failed = |p: &PathState| p.validation.as_ref().is_some_and(|v| v.has_failed(now));
        if failed(&self.path) {
            self.fall_back(now);
            if self.is_closed() {
                return;
            }
        }
        let linger = LINGER * self.probe_timeout();
        let undecided = self.path.validation.is_some();
        let (searching, interval) = (self.is_searching(), self.validation_interval());
        let Some(paths) = &mut self.paths else { return };
        let mut gone = Vec::new();
        for state in std::mem::take(&mut paths.others) {
            let mut state = state;
            if failed(&state) {
                let validation = state.validation.take();
                if searching && validation.as_ref().is_some_and(|v| v.then_move) {
                    let again = Validation::new(now, interval, true);
                    state.validation = Some(Box::new(again));
                    paths.others.push(state);
                    continue;
                }
                if validation.is_some_and(|v| v.then_move) {
                    let event = Event::MigrationFailed(state.path);
                    self.streams.events.push_back(event);
                }
                state.forget_at = Some(now);
            }
            let over = state.validation.is_none() && state.forget_at.is_some_and(|t| t <= now);
            if over && undecided && state.validated {
                // The way back, while the path in use is not validated.
                state.forget_at = Some(now + linger);
            } else if over {
                gone.push(state);
                continue;
            }
            paths.others.push(state);
        }
        for state in &gone {
            self.forget(state);
        }
        self.arm_path_timer(now);
    }

    /// The path in use could not be validated: back to the last one that was (RFC 9000 §9.3.2).
    fn fall_back(&mut self, now: Time) {
        let failed = self.path.path;
        let pinned = self.path.pinned;
        let validation = self.path.validation.take();
        let others = self.paths.as_ref().map_or(&[][..], |p| &p.others);
        let back = others.iter().rev().find(|p| p.validated);
        let back = back.map(|p| (p.tag, path::same_host(&p.path, &failed)));
        let Some((tag, same_host)) = back else {
            if self.is_searching() {
                self.validate(now, self.path.tag, false);
            } else if self.side == Side::Client {
                // Nowhere else to go: all challenges may have been lost.
                let again = validation.and_then(|v| v.again(now));
                self.path.validation = again.map(Box::new);
            }
            if self.side == Side::Server && !self.path.validated {
                // RFC 9000 §9.3.2: without a word, for there is nobody to hear it.
                self.abandon(
                    now,
                    CloseReason::Transport {
                        code: TransportErrorCode::NO_VIABLE_PATH,
                        reason: "the peer's new address could not be validated".to_owned(),
                        remote: false,
                    },
                );
            }
            return;
        };
        self.path.validated = false;
        let keep_flow = self.side == Side::Server && same_host;
        self.activate(now, tag, keep_flow);
        if self.left_at_once {
            self.try_both(now, failed, pinned);
        } else {
            self.tell_moved(Event::MigrationFailed(failed));
        }
    }

    /// A client left an address at once, since it was about to go, and has heard nothing where it went: all challenges may
    /// have been lost. Both paths are asked in turn until one of them answers, or the connection times out.
    fn try_both(&mut self, now: Time, failed: Path, pinned: bool) {
        self.path.validated = false;
        self.validate(now, self.path.tag, false);
        let paths = self.paths.as_ref();
        let known = paths.and_then(|p| Some(p.others[p.position(&failed)?].tag));
        let tag = match known {
            Some(tag) => tag,
            None if self.remote_ids.can_lend() => self.add_path(failed),
            None => return,
        };
        if let Some(state) = self.path_mut(tag) {
            state.pinned = pinned;
        }
        self.validate(now, tag, true);
    }
}

#[cfg(test)]
mod tests {
    use crate::congestion::Acknowledged;
    use squall_wire::{DatagramBatch, Ecn};

    use super::*;
    use crate::common::Pair;
    use crate::stages::Stages;

    const ELSEWHERE: &str = "198.51.100.7:7000";

    fn connected() -> Pair {
        let mut pair = Pair::new();
        pair.run();
        pair
    }

    fn path(remote: &str) -> Path {
        Path {
            remote: remote.parse().unwrap(),
            local: None,
        }
    }

    // test: RFC 9000 §9.4, §9.5
    #[test]
    fn a_move_starts_over_unless_only_the_port_changed() {
        for (remote, keeps) in [("192.0.2.2:6000", true), (ELSEWHERE, false)] {
            let mut pair = connected();
            let now = pair.now;
            let server = pair.connection(Side::Server);
            let (rtt, id) = (server.path.flow.rtt.smoothed(), server.remote_ids.current());
            let window = server.path.flow.congestion.window() + 5000;
            server.path.flow.congestion.on_ack(
                now,
                &Acknowledged {
                    bytes: 5000,
                    newest_sent: now,
                    app_limited: false,
                    in_flight: 0,
                    idle: false,
                },
                &RttEstimator::new(rtt),
            );
            assert!(server.path.flow.rtt.has_sample());
            server.path.mtu.on_probe_sent(77, 1472);
            server.path.mtu.on_probe_acked(77);
            assert_eq!(server.path.mtu.current(), 1472);
            let mut trip = Trip::new(id, path(remote), false, Ecn::NotEct);
            trip.uncredited = 100;
            server.follow(now, &mut trip);
            assert_eq!(server.path(), path(remote));
            let flow = &server.path.flow;
            assert_eq!(flow.rtt.has_sample(), keeps);
            assert_eq!(flow.congestion.window() == window, keeps);
            assert_eq!(server.path.mtu.current(), 1200);
            assert!(!server.path.validated && server.path.credit() == 300);
            assert_ne!(server.remote_ids.current(), id);
            // Both paths are asked.
            let others = &server.paths.as_ref().unwrap().others;
            assert!(server.path.validation.is_some() && others[0].validation.is_some());
        }
    }

    // test: RFC 9000 §21.5 — SECURITY.md row 35
    #[test]
    fn nobody_is_followed_to_an_implausible_address() {
        let mut pair = connected();
        let (now, mut stages) = (pair.now, Stages::off());
        for remote in ["127.0.0.1:53", "[::1]:53", "224.0.0.1:53", "203.0.113.1:0"] {
            let mut datagram = pair.take_ping(Side::Client);
            let server = pair.connection(Side::Server);
            let dropped = server.stats().packets_dropped;
            let batch = DatagramBatch {
                path: path(remote),
                ecn: Ecn::NotEct,
                segment_size: datagram.len() as u16,
                bytes: &mut datagram,
            };
            server.receive(now, batch, &mut stages);
            assert_eq!(server.stats().packets_dropped, dropped + 1, "{remote}");
            assert_eq!(server.paths(), 1, "{remote}");
        }
    }
}
