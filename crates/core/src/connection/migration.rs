//! Paths that come and go (RFC 9000 §8.2, §9).
//!
//! ```text
//!  server  a packet from elsewhere ─▶ probing: answer there, challenge ─▶ forgotten after a while
//!                                  └▶ newest, not probing: follow ─▶ challenge the new path and the one before
//!                                         answered: stay             not answered: back to the last that was validated
//!  client  packets from servers' addresses that it chose; from elsewhere they are dropped
//! ```
//!
//! Probes are datagrams of their own, so that no bundle of the active path knows of them.

use rand::Rng;
use squall_protect::{PacketSpan, TAG_LEN};
use squall_wire::{
    Path, Side, Transmit, TransportError, TransportErrorCode, Writer, frame, header, packet_number,
};

use super::receive::Trip;
use super::timers::Timer;
use super::transmit::{NO_RANGE, Written};
use super::{Connection, State};
use crate::config::MIN_UDP_PAYLOAD;
use crate::error::CloseReason;
use crate::event::{EndpointEvent, Event};
use crate::path::cid::TokenChange;
use crate::path::validation::Validation;
use crate::path::{self, PathState};
use crate::recovery::rtt::RttEstimator;
use crate::space::SpaceId;
use crate::space::sent::SentPacket;
use crate::stages::{Stage, Stages};
use crate::time::Time;

/// Probe timeouts that a path out of use is remembered for packets on their way.
const LINGER: u32 = 3;

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
            Side::Client => path.remote == self.path.path.remote,
            // RFC 9000 §9: not before the handshake is confirmed.
            Side::Server => {
                self.config.allow_migration
                    && self.handshake_confirmed
                    && path::plausible(&self.path.path, path)
            }
        }
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
    fn path_of(&mut self, now: Time, trip: &mut Trip) -> Option<u8> {
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

    fn path_mut(&mut self, tag: u8) -> Option<&mut PathState> {
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
        let state = PathState::new(path, tag, self.side == Side::Server, mtu, &self.config);
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
            state.flow.leave(packet.size);
        }
    }

    /// Whether packet `number` is a probe for a path's size, also of a path that was left.
    pub(super) fn is_mtu_probe(&self, number: u64) -> bool {
        let others = self.paths.as_ref().map_or(&[][..], |p| &p.others);
        self.path.mtu.is_probe(number) || others.iter().any(|p| p.mtu.is_probe(number))
    }

    // ---- frames -----------------------------------------------------------------------------------------------------

    /// RFC 9000 §8.2.2.
    pub(super) fn on_path_challenge(&mut self, now: Time, data: [u8; 8], trip: &mut Trip) {
        if let Some(tag) = self.path_of(now, trip) {
            self.paths.get_or_insert_default().owe_response(tag, data);
        }
    }

    /// RFC 9000 §8.2.3: an answer counts on whatever path it came.
    pub(super) fn on_path_response(
        &mut self,
        now: Time,
        data: [u8; 8],
    ) -> Result<(), TransportError> {
        let Some(paths) = self.paths.as_ref().filter(|p| p.has_challenged) else {
            // RFC 9000 §19.18.
            return Err(TransportError {
                code: TransportErrorCode::PROTOCOL_VIOLATION,
                frame_type: 0x1b,
                reason: "a PATH_RESPONSE to no PATH_CHALLENGE",
            });
        };
        // One that comes late, when its challenge is forgotten, is no offence.
        let found = paths.others.iter().chain([&self.path]).find_map(|state| {
            let validation = state.validation.as_ref()?;
            Some((
                state.tag,
                validation.answer(now, data)?,
                validation.then_move,
            ))
        });
        let Some((tag, answer, then_move)) = found else {
            return Ok(());
        };
        let linger = LINGER * self.probe_timeout();
        let initial_rtt = self.config.initial_rtt;
        let active = self.path.tag == tag;
        let Some(state) = self.path_mut(tag) else {
            return Ok(());
        };
        let first = !std::mem::replace(&mut state.validated, true);
        if !state.flow.rtt.has_sample() {
            // RFC 9002 §6.2.2: better than the guess that an estimate begins with, and no sample.
            state.flow.rtt = RttEstimator::new(answer.time.min(initial_rtt));
        }
        if answer.size {
            state.validation = None;
            state.forget_at = (!active).then_some(now + linger);
            if then_move && !active {
                self.activate(now, tag, false);
            }
        } else {
            // RFC 9000 §8.2.3: the address is validated; that 1200 bytes pass is still to be shown.
            self.validate(now, tag, then_move);
        }
        if self.path.tag == tag && (first || !active) {
            let event = Event::Migrated(self.path.path);
            self.streams.events.push_back(event);
        }
        self.stats.paths_validated += 1;
        self.arm_path_timer(now);
        self.set_loss_timer(now);
        Ok(())
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
            self.streams
                .events
                .push_back(Event::Migrated(self.path.path));
        }
    }

    /// Sends on another path from now on. `keep_flow`: what is known of the path's capacity still holds.
    fn activate(&mut self, now: Time, tag: u8, keep_flow: bool) {
        let Some(paths) = &mut self.paths else { return };
        let Some(at) = paths.others.iter().position(|p| p.tag == tag) else {
            return;
        };
        let mut new = paths.others.remove(at);
        new.forget_at = None;
        if keep_flow {
            std::mem::swap(&mut new.flow, &mut self.path.flow);
            let size = new.mtu.current();
            new.flow.congestion.set_max_datagram(size);
        }
        let linger = LINGER * self.probe_timeout();
        let mut old = std::mem::replace(&mut self.path, new);
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
        // RFC 9000 §8.2.4: the larger of the probe timeouts of the path in use and of one that nothing is known of.
        let unknown = RttEstimator::new(self.config.initial_rtt).pto_base();
        let pto = self.probe_timeout().max(unknown + self.peer.max_ack_delay);
        if let Some(state) = self.path_mut(tag) {
            state.validation = Some(Box::new(Validation::new(now, pto, then_move)));
        }
        self.arm_path_timer(now);
    }

    // ---- connection ids ---------------------------------------------------------------------------------------------

    /// Replaces the connection ids of both directions, so that an observer cannot tell packets from now on from another
    /// connection's by their ids (RFC 9000 §5.1.2, §9.5): asks the peer to retire all of ours and gives it others, and sends
    /// to another id of the peer's. Returns whether both was possible: not before the handshake is confirmed, not while
    /// the last rotation is under way, and not without a spare id of the peer's.
    pub fn rotate_ids(&mut self) -> bool {
        if self.is_closed() || !self.handshake_confirmed {
            return false;
        }
        let ours = self.local_ids.rotate();
        self.issue_ids();
        let theirs = self.remote_ids.rotate();
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
        let Some(paths) = &mut self.paths else { return };
        let mut gone = Vec::new();
        for state in std::mem::take(&mut paths.others) {
            let mut state = state;
            if failed(&state) {
                let validation = state.validation.take();
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
        self.path.validation = None;
        let others = self.paths.as_ref().map_or(&[][..], |p| &p.others);
        let back = others.iter().rev().find(|p| p.validated);
        let back = back.map(|p| (p.tag, path::same_host(&p.path, &failed)));
        let Some((tag, same_host)) = back else {
            if self.side == Side::Server && !self.path.validated {
                // RFC 9000 §9.3.2: without a word, for there is nobody to hear it.
                self.abandon(CloseReason::Transport {
                    code: TransportErrorCode::NO_VIABLE_PATH,
                    reason: "the peer's new address could not be validated".to_owned(),
                    remote: false,
                });
            }
            return;
        };
        self.path.validated = false;
        let keep_flow = self.side == Side::Server && same_host;
        self.activate(now, tag, keep_flow);
        self.streams
            .events
            .push_back(Event::MigrationFailed(failed));
    }

    // ---- probes -----------------------------------------------------------------------------------------------------

    /// One datagram with the responses and the challenge that a path is owed.
    pub(super) fn transmit_path_probe(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        stages: &mut Stages,
    ) -> Option<Transmit> {
        if self.ring.is_none() || !matches!(self.state, State::Established) {
            return None;
        }
        let window_open = self.path.flow.bytes_in_flight < self.path.flow.congestion.window();
        for _ in 0..=crate::config::MAX_PATHS + crate::config::MAX_PATH_RESPONSES {
            let tag = self.next_probe_path(now, window_open)?;
            let sent = self.write_path_probe(now, buffer, tag);
            if sent.is_some() {
                stages.mark(Stage::Aead);
                self.arm_path_timer(now);
                return sent;
            }
            // What cannot be sent there now is not owed any more: the peer challenges anew.
            if let Some(paths) = &mut self.paths {
                paths.drop_responses(tag);
            }
        }
        None
    }

    /// The path that has to be probed now: responses first.
    fn next_probe_path(&self, now: Time, window_open: bool) -> Option<u8> {
        let paths = self.paths.as_ref();
        // RFC 9000 §8.2.2: on the active path a response waits for congestion control.
        let response = paths
            .and_then(|p| p.next_response())
            .filter(|tag| window_open || *tag != self.path.tag);
        let others = paths.map_or(&[][..], |p| &p.others);
        response.or_else(|| {
            let due = |p: &&PathState| {
                p.validation.as_ref().is_some_and(|v| v.is_due(now))
                    && p.credit() >= self.least_probe(p.tag) as u64
                    && self.may_send_on(p)
            };
            others.iter().chain([&self.path]).find(due).map(|p| p.tag)
        })
    }

    /// Whether a path has a connection id to send to: a new address does not see the id of another one, unless the peer has
    /// none, or was moved without knowing (RFC 9000 §9.5).
    fn may_send_on(&self, state: &PathState) -> bool {
        state.tag == self.path.tag
            || state.validated
            || self.remote_ids.is_without()
            || self.remote_ids.has_lent(state.tag)
    }

    /// The smallest datagram that holds a challenge.
    fn least_probe(&self, tag: u8) -> usize {
        1 + self.remote_ids.of(tag).len() + 4 + frame::write::PATH_CHALLENGE_SIZE + TAG_LEN
    }

    fn write_path_probe(&mut self, now: Time, buffer: &mut [u8], tag: u8) -> Option<Transmit> {
        let active = tag == self.path.tag;
        let least = self.least_probe(tag);
        let dcid = self.remote_ids.of(tag);
        let phase = self.ring.as_ref()?.phase();
        let others = self.paths.as_ref().map_or(&[][..], |p| &p.others);
        let state = others.iter().chain([&self.path]).find(|p| p.tag == tag)?;
        // RFC 9000 §8.2.1, §8.2.2: 1200 bytes, but no more than the amplification limit leaves.
        let size = usize::try_from(state.credit())
            .unwrap_or(usize::MAX)
            .min(usize::from(
                MIN_UDP_PAYLOAD.min(self.config.max_udp_payload),
            ))
            .min(buffer.len());
        if size < least || !self.may_send_on(state) {
            return None;
        }
        let (path, flow) = (state.path, state.flow.tag);
        let challenge = state.validation.as_ref().is_some_and(|v| v.is_due(now));
        let space = &self.spaces[SpaceId::Data as usize];
        let number = space.sent.next_number();
        let pn_len = packet_number::encoded_len(number, space.largest_acked).max(2);
        let mut w = Writer::new(&mut buffer[..size - TAG_LEN]);
        header::write_short(&mut w, &dcid, false, phase, number, pn_len);
        let header_len = w.len();
        let mut responded = false;
        while w.remaining() >= frame::write::PATH_CHALLENGE_SIZE
            && let Some(data) = self.paths.as_mut().and_then(|p| p.take_response(tag))
        {
            // RFC 9000 §13.3: never repeated.
            frame::write::path_response(&mut w, data);
            responded = true;
        }
        if challenge && w.remaining() >= frame::write::PATH_CHALLENGE_SIZE {
            let data: [u8; 8] = self.rng.random();
            frame::write::path_challenge(&mut w, data);
            self.paths.get_or_insert_default().has_challenged = true;
            let state = self.path_mut(tag)?;
            if let Some(validation) = &mut state.validation {
                validation.on_sent(now, data, size);
            }
        }
        if responded && active && self.side == Side::Client && w.remaining() > 0 {
            // RFC 9000 §9.3.3: a packet that is no probe brings the peer back, should somebody have led it astray.
            frame::write::ping(&mut w);
        }
        let room = w.remaining();
        frame::write::padding(&mut w, room);
        let space = self.space(SpaceId::Data);
        let mark = space.sent.frame_mark();
        if active {
            space.sent.push(now, size as u16, true, flow, false, mark);
            let contents = Written {
                ack_eliciting: true,
                in_flight: true,
                tail: None,
            };
            self.note_sent(SpaceId::Data, now, &contents, size as u64);
            self.set_loss_timer(now);
        } else {
            // Neither its loss nor its acknowledgement says anything about the active path (RFC 9000 §9.4), and there are
            // few: they are in nobody's flight.
            space.sent.push(now, 0, false, flow, false, mark);
            if let Some(state) = self.path_mut(tag) {
                state.on_sent(size);
            }
        }
        let mut span = PacketSpan::new(0, size as u32, (1 + dcid.len()) as u16);
        (span.header_len, span.packet_number) = (header_len as u16, number);
        self.seal_bundle(buffer, &mut [span], &[NO_RANGE]);
        self.stats.packets_sent += 1;
        Some(Transmit {
            path,
            ..self.transmit_of(size, size)
        })
    }
}

#[cfg(test)]
mod tests {
    use squall_wire::{ConnectionId, DatagramBatch, Ecn};

    use super::*;
    use crate::common::Pair;

    const ELSEWHERE: &str = "198.51.100.7:7000";

    fn path(remote: &str) -> Path {
        Path {
            remote: remote.parse().unwrap(),
            local: None,
        }
    }

    fn connected() -> Pair {
        let mut pair = Pair::new();
        pair.run();
        pair
    }

    /// Lets the frames of a 1-RTT packet act that came from `from`.
    fn take(
        pair: &mut Pair,
        side: Side,
        from: Path,
        payload: &[u8],
    ) -> Result<Trip, TransportError> {
        let now = pair.now;
        let connection = pair.connection(side);
        let home = path::same(&from, &connection.path.path);
        let mut trip = Trip::new(ConnectionId::EMPTY, from, home, Ecn::NotEct);
        trip.uncredited = if home { 0 } else { payload.len() };
        connection.take_frames(SpaceId::Data, payload, now, &mut trip)?;
        Ok(trip)
    }

    fn challenges(count: usize) -> Vec<u8> {
        let mut payload = vec![0; 9 * count];
        for (n, frame) in payload.chunks_exact_mut(9).enumerate() {
            frame[0] = 0x1a;
            frame[1..].copy_from_slice(&(n as u64).to_be_bytes());
        }
        payload
    }

    // test: RFC 9000 §8.2.2, §21.9 — threats.md row 1
    #[test]
    fn a_million_challenges_leave_four_responses() {
        let mut pair = connected();
        let now = pair.now;
        let payload = challenges(100);
        let home = pair.connection(Side::Server).path();
        for _ in 0..10_000 {
            take(&mut pair, Side::Server, home, &payload).unwrap();
        }
        let mut buffer = vec![0; 65_536];
        let server = pair.connection(Side::Server);
        let frames = server.spaces[2].sent.frame_mark();
        let mut sent = Vec::new();
        while let Some(transmit) = server.transmit(now, &mut buffer, 64, &mut Stages::off()) {
            sent.push(transmit.len);
        }
        // One datagram with what is left of them; nothing is remembered that could be sent again.
        assert_eq!(sent, [1200]);
        assert_eq!(server.spaces[2].sent.frame_mark(), frames);
        assert!(
            server
                .paths
                .as_ref()
                .is_some_and(|p| p.next_response().is_none())
        );
    }

    // test: RFC 9000 §8.2.2 — threats.md row 1: with a full window the newest wait.
    #[test]
    fn responses_wait_for_the_window_on_the_active_path() {
        let mut pair = connected();
        let now = pair.now;
        let home = pair.connection(Side::Server).path();
        let flow = &mut pair.connection(Side::Server).path.flow;
        flow.bytes_in_flight = flow.congestion.window();
        take(&mut pair, Side::Server, home, &challenges(100)).unwrap();
        let mut buffer = vec![0; 65_536];
        let server = pair.connection(Side::Server);
        let none = server.transmit_path_probe(now, &mut buffer, &mut Stages::off());
        assert_eq!(none, None);
        server.path.flow.bytes_in_flight = 0;
        let one = server.transmit_path_probe(now, &mut buffer, &mut Stages::off());
        assert_eq!(one.map(|t| t.len), Some(1200));
        let paths = server.paths.as_mut().unwrap();
        assert_eq!(paths.take_response(server.path.tag), None);
    }

    // test: RFC 9000 §8.2.2, §9.3.1
    #[test]
    fn a_response_goes_where_the_challenge_came_from_and_no_further_than_three_times_its_size() {
        let mut pair = connected();
        let now = pair.now;
        let home = pair.connection(Side::Server).path();
        let there = path(ELSEWHERE);
        take(&mut pair, Side::Server, there, &challenges(1)).unwrap();
        let mut buffer = vec![0; 65_536];
        let server = pair.connection(Side::Server);
        // 9 bytes came: neither response nor challenge fits.
        assert_eq!(
            server.transmit(now, &mut buffer, 64, &mut Stages::off()),
            None
        );
        let mut payload = challenges(1);
        payload.resize(60, 0);
        let trip = take(&mut pair, Side::Server, there, &payload).unwrap();
        let server = pair.connection(Side::Server);
        assert_eq!(server.credit_elsewhere(&there, trip.uncredited), 0);
        let sent = server
            .transmit(now, &mut buffer, 64, &mut Stages::off())
            .unwrap();
        assert_eq!((sent.path, sent.len), (there, 3 * 69));
        assert_eq!(server.path(), home, "a probe moves nobody");
        assert!(!trip.has_moved());
        assert_eq!(
            server.transmit(now, &mut buffer, 64, &mut Stages::off()),
            None
        );
    }

    // test: RFC 9000 §19.18
    #[test]
    fn a_response_is_an_offence_only_where_nothing_was_ever_challenged() {
        let mut pair = connected();
        let home = pair.connection(Side::Server).path();
        let mut response = challenges(1);
        response[0] = 0x1b;
        let error = take(&mut pair, Side::Server, home, &response).err();
        assert_eq!(
            error.map(|e| e.code),
            Some(TransportErrorCode::PROTOCOL_VIOLATION)
        );
        let mut payload = challenges(1);
        payload.resize(1200, 0);
        take(&mut pair, Side::Server, path(ELSEWHERE), &payload).unwrap();
        let mut buffer = vec![0; 65_536];
        let now = pair.now;
        let server = pair.connection(Side::Server);
        let sent = server.transmit(now, &mut buffer, 64, &mut Stages::off());
        assert_eq!(sent.map(|t| t.path), Some(path(ELSEWHERE)));
        take(&mut pair, Side::Server, home, &response).unwrap();
        assert_eq!(pair.connection(Side::Server).stats().paths_validated, 0);
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
            server
                .path
                .flow
                .congestion
                .on_ack(now, 5000, now, false, &RttEstimator::new(rtt));
            assert!(server.path.flow.rtt.has_sample());
            server.path.mtu.on_probe_acked(1472);
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

    // test: RFC 9000 §21.5 — threats.md row 35
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
