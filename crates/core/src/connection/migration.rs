//! Paths that come and go (RFC 9000 §8.2, §9).
//!
//! ```text
//!  server  a packet from elsewhere ─▶ probing: answer there, challenge ─▶ forgotten after a while
//!                                  └▶ newest, not probing: follow ─▶ challenge both paths
//!                                        answered: stay       not answered: back to the last one
//!  client  packets from server addresses that it chose; from elsewhere they are dropped
//! ```
//!
//! `parts/paths.rs` defines what a path is; `transmit/probe.rs` writes the datagrams that probe.

use std::net::IpAddr;
use std::time::Duration;

use squall_wire::{Path, Side, TransportError, TransportErrorCode};

use super::parts::clock::Timer;
use super::receive::Trip;
use super::{Connection, State};
use crate::config::DEFAULT_INITIAL_RTT;
use crate::error::{CloseReason, MigrateError};
use crate::event::Event;
use crate::observation::{Observation, PathChanged};
use crate::path;
use crate::recovery::rtt::RttEstimator;
use crate::time::Time;

/// Probe timeouts for which an unused path, and an id that the peer has retired, are remembered,
/// for packets still on their way.
const LINGER: u32 = 3;

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
    // ---- a packet from elsewhere ----------------------------------------------------------------

    /// The tag of the path on which a run arrived. A server creates one for an authentic packet
    /// from elsewhere.
    fn path_of(&mut self, trip: &mut Trip<'_>) -> u8 {
        if trip.home || self.side == Side::Client {
            let known = self.paths.tag_of(&trip.path).filter(|_| !trip.home);
            return known.unwrap_or(self.paths.active.tag);
        }
        if let Some(tag) = self.paths.tag_of(&trip.path) {
            return tag;
        }
        let tag = (self.paths).add(trip.path, &self.config, &mut self.endpoint);
        let credit = std::mem::take(&mut trip.uncredited);
        if let Some(state) = self.paths.get_mut(tag) {
            state.on_received(credit);
        }
        // RFC 9000 §9.6.3: a peer that probes may move there.
        self.validate(trip.now, tag, false);
        tag
    }

    /// Processes a PATH_CHALLENGE (RFC 9000 §8.2.2).
    pub(super) fn on_path_challenge(&mut self, data: [u8; 8], trip: &mut Trip<'_>) {
        let tag = self.path_of(trip);
        let paths = self.paths.inactive.get_or_insert_default();
        paths.owe_response(tag, data);
    }

    /// Processes a PATH_RESPONSE, which counts on whatever path it arrived (RFC 9000 §8.2.3).
    pub(super) fn on_path_response(
        &mut self,
        now: Time,
        data: [u8; 8],
    ) -> Result<(), TransportError> {
        if !self
            .paths
            .inactive
            .as_ref()
            .is_some_and(|p| p.has_challenged)
        {
            // RFC 9000 §19.18.
            return Err(TransportError {
                code: TransportErrorCode::PROTOCOL_VIOLATION,
                frame_type: 0x1b,
                reason: "a PATH_RESPONSE to no PATH_CHALLENGE",
            });
        }
        let found = self.paths.iter().find_map(|state| {
            let validation = state.validation.as_ref()?;
            let answer = validation.answer(now, data)?;
            Some((state.tag, answer, validation.then_move))
        });
        // A late response whose challenge is forgotten is not an offence.
        let Some((tag, answer, then_move)) = found else {
            return Ok(());
        };
        let linger = self.linger();
        let active = self.paths.active.tag == tag;
        // RFC 9000 §9.5: a client does not move to a path whose id the server has retired in the
        // meantime, before it has another.
        let ids = &self.paths.remote_ids;
        let may_move = self.side == Side::Server || ids.is_without() || ids.has_lent(tag);
        self.paths.clear_given_up(tag);
        let Some(state) = self.paths.get_mut(tag) else {
            return Ok(());
        };
        let first = !std::mem::replace(&mut state.validated, true);
        if !state.flow.rtt.has_sample() {
            // RFC 9002 §6.2.2: better than the initial guess of an estimate, but not a sample.
            let most = self.config.initial_rtt.max(DEFAULT_INITIAL_RTT);
            state.flow.rtt = RttEstimator::new(answer.time.min(most));
        }
        let moves = then_move && !active;
        if answer.size && (may_move || !moves) {
            state.validation = None;
            state.forget_at = (!active).then_some(now + linger);
            if moves {
                self.activate(now, tag, false);
            }
        } else {
            // RFC 9000 §8.2.3: the address is validated, but not yet that 1200 bytes get through.
            // Or the path waits for an id.
            self.validate(now, tag, then_move);
        }
        if self.paths.active.tag == tag {
            self.on_active_validated(first, active);
        }
        self.stats.paths_validated += 1;
        self.arm_path_timer(now);
        self.set_loss_timer(now);
        Ok(())
    }

    /// The path in use was validated: for the `first` time; it was in use (`active`) before.
    fn on_active_validated(&mut self, first: bool, active: bool) {
        let searched = std::mem::take(&mut self.paths.left_at_once);
        if searched && self.is_back(active) {
            // The address that was left answers, but not the one that the client moved to.
        } else if first || !active {
            self.report_move(Event::Migrated(self.paths.active.path));
        }
        if first && self.side == Side::Server {
            self.duties.on_client_moved();
        }
    }

    // ---- moving ---------------------------------------------------------------------------------

    /// The newest packet came from elsewhere and was not a probe: the peer is there (RFC 9000
    /// §9.3).
    pub(super) fn follow(&mut self, trip: &mut Trip<'_>) {
        let now = trip.now;
        if self.side == Side::Client {
            return;
        }
        let tag = self.path_of(trip);
        let home = self.paths.active.path;
        let Some(state) = self.paths.get_mut(tag) else {
            return;
        };
        if !state.validated && state.path.remote == home.remote {
            // RFC 9000 §9.6.2: move to our own other address only once that path is validated.
            match &mut state.validation {
                Some(validation) => validation.then_move = true,
                None => self.validate(now, tag, true),
            }
            return;
        }
        let old = self.paths.active.tag;
        self.activate(now, tag, path::same_host(&trip.path, &home));
        if !self.paths.active.validated && self.paths.active.validation.is_none() {
            self.validate(now, tag, false);
        }
        // RFC 9000 §9.3.3: a peer that is still at the old address answers there.
        self.validate(now, old, false);
        if self.paths.active.validated {
            self.report_move(Event::Migrated(self.paths.active.path));
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
        if !self.handshake.confirmed {
            return Err(MigrateError::NotConfirmed);
        }
        if self.handshake.peer.forbids_migration {
            return Err(MigrateError::Forbidden);
        }
        if path.remote != self.paths.active.path.remote {
            return Err(MigrateError::OtherServer);
        }
        // An IPv4-mapped address is an IPv4 address.
        let is_ipv4 = |address: IpAddr| address.to_canonical().is_ipv4();
        if path
            .local
            .is_some_and(|local| is_ipv4(local) != is_ipv4(path.remote.ip()))
        {
            return Err(MigrateError::OtherFamily);
        }
        if how == Move::WhenValidated && path::same(&path, &self.paths.active.path) {
            return Err(MigrateError::SamePath);
        }
        // Where the system chooses the address, it is not known: `local` is where a packet arrived.
        let chosen = path.local.is_some();
        let known = self.paths.others().iter().find(|p| {
            let same = p.path.remote == path.remote && (!chosen || p.path.local == path.local);
            same && p.pinned == chosen && self.paths.remote_ids.has_lent(p.tag)
        });
        let known = known.map(|p| p.tag);
        let tag = match known {
            Some(tag) => tag,
            // RFC 9000 §9.5: neither the id of another path nor an empty one, which would reveal as
            // much.
            None if !self.paths.remote_ids.can_lend() => return Err(MigrateError::NoConnectionId),
            None => (self.paths).add(path, &self.config, &mut self.endpoint),
        };
        if let Some(state) = self.paths.get_mut(tag) {
            state.pinned = path.local.is_some();
        }
        if how == Move::AtOnce {
            // The way back leads from the address that is left, and from no other: if the system
            // chose the new one, an answer would say nothing about the old one, and its id would be
            // seen in two places (RFC 9000 §9.5).
            let active = &mut self.paths.active;
            active.pinned |= path.local.is_some() && active.path.local.is_some();
            self.activate(now, tag, false);
            self.paths.active.validated = false;
            self.paths.left_at_once = true;
        }
        self.validate(now, tag, how == Move::WhenValidated);
        Ok(())
    }

    /// A client tries the server's preferred address once the handshake is confirmed (RFC 9000
    /// §9.6.1).
    pub(super) fn seek_preferred_address(&mut self, now: Time) {
        let inactive = self.paths.inactive.as_mut();
        let Some(remote) = inactive.and_then(|p| p.preferred.take()) else {
            return;
        };
        let path = Path {
            remote,
            ..self.paths.active.path
        };
        // RFC 9000 §21.5.3: a server could point at another host.
        if path::plausible(&self.paths.active.path, &path) && self.paths.remote_ids.can_lend() {
            let tag = (self.paths).add(path, &self.config, &mut self.endpoint);
            self.validate(now, tag, true);
        }
    }

    /// Reports where the connection is now, or that it could not move.
    pub(super) fn report_move(&mut self, event: Event) {
        let Path { remote, local } = self.paths.active.path;
        let failed = match &event {
            Event::MigrationFailed(failed) => Some(failed.remote),
            _ => None,
        };
        self.log.observe(|| {
            Observation::PathChanged(PathChanged {
                remote,
                local,
                failed,
            })
        });
        self.streams.events.push_back(event);
        self.endpoint.report_address(self.side, &self.paths.active);
    }

    /// Sends on another path from now on. `keep_flow`: what is known about the path's capacity
    /// still applies.
    fn activate(&mut self, now: Time, tag: u8, keep_flow: bool) {
        let linger = self.linger();
        let Some(mut old) = self.paths.swap_active(tag, keep_flow) else {
            return;
        };
        if old.path.remote != self.paths.active.path.remote {
            // RFC 9000 §18.2: a move to the preferred address lifts disable_active_migration.
            self.handshake.peer.forbids_migration = false;
        }
        if old.validated {
            old.forget_at = Some(now + linger);
            self.paths.inactive.get_or_insert_default().others.push(old);
        } else {
            self.paths.forget(&old, &mut self.endpoint);
        }
        self.endpoint
            .report_reset_tokens(&mut self.paths.remote_ids);
        self.stats.migrations += 1;
        self.clock.reset_probe_timeout();
        // A packet that is not a probe tells the peer of the move, and its reply says what arrived.
        self.duties.ping = true;
        self.clock.set(Timer::Pacing, None);
        self.arm_path_timer(now);
        self.set_loss_timer(now);
    }

    /// Starts validating a path, again if need be.
    fn validate(&mut self, now: Time, tag: u8, then_move: bool) {
        let interval = self.validation_interval(tag);
        self.paths.validate(now, tag, interval, then_move);
        self.arm_path_timer(now);
    }

    /// The time between two challenges (RFC 9000 §8.2.4): the larger of the probe timeouts of the
    /// path in use and of an unknown path, whatever RTT the application expects of the first one.
    /// It grows with each attempt to validate an address: if every response came after the end of
    /// its attempt, a server would otherwise alternate between that address and an earlier one for
    /// ever.
    pub(super) fn validation_interval(&self, tag: u8) -> Duration {
        let next = self.paths.interval_after_giving_up(tag);
        let expected = self.config.initial_rtt.max(DEFAULT_INITIAL_RTT);
        let unknown = RttEstimator::new(expected).pto_base();
        let unknown = unknown + self.handshake.peer.max_ack_delay;
        self.probe_timeout().max(unknown).max(next)
    }

    /// Ends a client's search with the path in use, the one that it had left. `active`: it was
    /// already in use. `false` if the client was not searching.
    fn is_back(&mut self, active: bool) -> bool {
        let sought = self.paths.sought().filter(|_| active);
        let Some(sought) = sought.and_then(|tag| self.paths.get_mut(tag)) else {
            return false;
        };
        // `on_path_timer` forgets it.
        (sought.validation, sought.forget_at) = (None, Some(Time::ZERO));
        let failed = Event::MigrationFailed(sought.path);
        self.report_move(failed);
        true
    }

    // ---- a client's addresses that change by themselves -----------------------------------------

    /// The newest packet arrived at a different address of the client than earlier ones: the system
    /// now sends from there. The path is validated, under an id of the server's that was not used
    /// elsewhere (RFC 9000 §9.5).
    pub(super) fn on_new_source(&mut self, now: Time, path: Path) {
        self.paths.active.path.local = path.local;
        self.stats.migrations += 1;
        self.revalidate(now);
    }

    /// Reports that the system refuses to send from `local`, an address of this machine. A client
    /// that migrated immediately switches to the other of its two addresses; any other connection
    /// then sends from an address that the system chooses. Returns whether that changes anything.
    pub fn on_source_lost(&mut self, now: Time, local: IpAddr) -> bool {
        let concerned = self.side == Side::Client
            && !self.is_closed()
            && self.paths.active.pinned
            && self.paths.active.path.local == Some(local);
        if concerned && !(self.paths.is_searching() && self.leave_lost_source(now)) {
            self.paths.active.pinned = false;
            self.paths.active.path.local = None;
            self.stats.migrations += 1;
            self.revalidate(now);
        }
        concerned
    }

    /// Continues from the other address of a client that moved at once; `false` if there is none.
    /// The lost one is forgotten, so that two lost addresses do not alternate.
    fn leave_lost_source(&mut self, now: Time) -> bool {
        let lost = self.paths.active.path;
        if let Some(tag) = self.paths.sought() {
            // The way back is lost: the client stays at its new address.
            self.activate(now, tag, false);
            self.validate(now, tag, false);
            return true;
        }
        let Some(back) = self.paths.last_validated().map(|p| p.tag) else {
            return false;
        };
        self.paths.left_at_once = false;
        self.activate(now, back, false);
        self.report_move(Event::MigrationFailed(lost));
        true
    }

    /// Reports that this machine's addresses changed: a client sends a packet, so that a server
    /// that sends to a vanished address learns of the current one (RFC 9000 §9.2).
    pub fn on_addresses_changed(&mut self) {
        if self.side == Side::Client && matches!(self.state, State::Established) {
            self.duties.ping = true;
        }
    }

    /// Shows the server the client's address, with a packet on the active path that is not a probe.
    pub(super) fn revalidate(&mut self, now: Time) {
        self.duties.ping = true;
        self.paths.active.validated = false;
        if !self.handshake.confirmed {
            // RFC 9000 §9: not yet. `confirm_handshake` calls this again.
            return;
        }
        let _ = (self.paths).rotate_remote_id(&self.config, &mut self.endpoint);
        self.paths.active.forget_size();
        let _ = self.paths.inactive.get_or_insert_default();
        self.validate(now, self.paths.active.tag, false);
    }

    // ---- connection ids -------------------------------------------------------------------------

    /// Replaces the connection ids of both directions, so that an observer cannot link later
    /// packets to this connection by their ids (RFC 9000 §5.1.2, §9.5): asks the peer to retire all
    /// of our ids and issues new ones, and switches to another id of the peer's. Returns whether
    /// both were possible. They are not before the handshake is confirmed, during the previous
    /// rotation, or without a spare id of the peer's.
    pub fn rotate_ids(&mut self) -> bool {
        if self.is_closed() || !self.handshake.confirmed {
            return false;
        }
        let ours = self.paths.local_ids.rotate();
        self.endpoint.issue_ids(&mut self.paths.local_ids);
        let theirs = (self.paths).rotate_remote_id(&self.config, &mut self.endpoint);
        ours && theirs
    }

    // ---- time -----------------------------------------------------------------------------------

    /// How long an unused path, and an id that the peer has retired, are remembered.
    pub(super) fn linger(&self) -> Duration {
        LINGER * self.probe_timeout()
    }

    pub(super) fn arm_path_timer(&mut self, now: Time) {
        self.clock.set(Timer::Path, self.paths.next_due(now));
    }

    /// Challenges fall due by themselves; this ends attempts and forgets paths.
    pub(super) fn on_path_timer(&mut self, now: Time) {
        if self.paths.active.has_failed(now) {
            self.fall_back(now);
            if self.is_closed() {
                return;
            }
        }
        let linger = self.linger();
        let undecided = self.paths.active.validation.is_some();
        let searching = self.paths.is_searching();
        let Some(paths) = &mut self.paths.inactive else {
            return;
        };
        let mut gone = Vec::new();
        for state in std::mem::take(&mut paths.others) {
            let mut state = state;
            if state.has_failed(now) {
                let validation = state.validation.take();
                if searching && let Some(failed) = validation.as_ref().filter(|v| v.then_move) {
                    state.validation = Some(Box::new(failed.again(now)));
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
                // It is the way back while the path in use is not validated.
                state.forget_at = Some(now + linger);
            } else if over {
                gone.push(state);
                continue;
            }
            paths.others.push(state);
        }
        for state in &gone {
            self.paths.forget(state, &mut self.endpoint);
        }
        self.arm_path_timer(now);
    }

    /// The path in use could not be validated: back to the last validated one (RFC 9000 §9.3.2).
    fn fall_back(&mut self, now: Time) {
        let failed = self.paths.active.path;
        let pinned = self.paths.active.pinned;
        let validation = self.paths.active.validation.take();
        if self.side == Side::Server && self.paths.active.validated {
            // The client is there, but no challenge of 1200 bytes has been answered: all may have
            // been lost. Its earlier addresses do not reach it any better.
            let again = validation.filter(|v| !v.is_slowest());
            self.paths.active.validation = again.map(|v| Box::new(v.again(now)));
            return;
        }
        let back = self.paths.last_validated();
        let back = back.map(|p| (p.tag, path::same_host(&p.path, &failed)));
        let Some((tag, same_host)) = back else {
            if self.side == Side::Client {
                // There is nowhere else to go: all challenges may have been lost.
                let again = validation.filter(|v| self.paths.is_searching() || !v.is_slowest());
                self.paths.active.validation = again.map(|v| Box::new(v.again(now)));
            }
            if self.side == Side::Server && !self.paths.active.validated {
                // RFC 9000 §9.3.2: without CONNECTION_CLOSE, which would reach no one.
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
        self.paths.active.validated = false;
        if self.side == Side::Server
            && let Some((validation, inactive)) = validation.zip(self.paths.inactive.as_mut())
        {
            inactive.given_up = Some((failed.remote, validation.next_interval()));
        }
        let keep_flow = self.side == Side::Server && same_host;
        self.activate(now, tag, keep_flow);
        if self.paths.left_at_once {
            self.try_both(now, failed, pinned);
        } else {
            self.report_move(Event::MigrationFailed(failed));
        }
    }

    /// A client left an address at once because it was about to vanish, and has heard nothing on
    /// the new path: all challenges may have been lost. Both paths are tried in turn until one of
    /// them answers, or the connection times out.
    fn try_both(&mut self, now: Time, failed: Path, pinned: bool) {
        self.paths.active.validated = false;
        self.validate(now, self.paths.active.tag, false);
        let tag = match self.paths.tag_of(&failed) {
            Some(tag) => tag,
            None if self.paths.remote_ids.can_lend() => {
                (self.paths).add(failed, &self.config, &mut self.endpoint)
            }
            None => return,
        };
        if let Some(state) = self.paths.get_mut(tag) {
            state.pinned = pinned;
        }
        self.validate(now, tag, true);
    }
}
