//! Path probes (RFC 9000 §8.2): challenges, responses, and the datagrams that carry them. They are datagrams of their own, so
//! that no bundle of the active path knows of them.

use rand::Rng;
use squall_protect::{PacketSpan, TAG_LEN};
use squall_wire::{
    Ecn, Side, Transmit, TransportError, TransportErrorCode, Writer, frame, header, packet_number,
};

use super::migration::LINGER;
use super::receive::Trip;
use super::transmit::{NO_RANGE, Written};
use super::{Connection, State};
use crate::config::{MAX_PATH_RESPONSES, MAX_PATHS, MIN_UDP_PAYLOAD};
use crate::event::Event;
use crate::path::PathState;
use crate::recovery::rtt::RttEstimator;
use crate::space::SpaceId;
use crate::stages::{Stage, Stages};
use crate::time::Time;

impl Connection {
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
        if self.path.tag == tag && std::mem::take(&mut self.left_at_once) && self.is_back(active) {
            // The address that was left answers, and not the one that the client went to.
        } else if self.path.tag == tag && (first || !active) {
            self.tell_moved(Event::Migrated(self.path.path));
        }
        if first && self.side == Side::Server && self.path.tag == tag {
            // RFC 9000 §9.3: the client's tokens were made for another address.
            self.new_tokens_due = self.config.new_tokens.min(1);
        }
        self.stats.paths_validated += 1;
        self.arm_path_timer(now);
        self.set_loss_timer(now);
        Ok(())
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
        // Probes of other paths are in nobody's flight, and remembered all the same (`SECURITY.md` rows 1 and 34).
        if !self.may_acknowledge(SpaceId::Data) {
            return None;
        }
        // RFC 9000 §8.2.2: congestion control may hold a response on the active path back, but for one a round trip: the
        // acknowledgements that would open the window may wait for it, on the peer's way to another path.
        let flow = &self.path.flow;
        let last = self.paths.as_ref().and_then(|p| p.response_beyond_window);
        let window_open = flow.bytes_in_flight < flow.congestion.window()
            || last.is_none_or(|last| now - last >= flow.rtt.smoothed());
        for _ in 0..=MAX_PATHS + MAX_PATH_RESPONSES {
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
        let (path, flow, spin) = (state.route(), state.flow.tag, state.spin.value());
        let challenge = state.validation.as_ref().is_some_and(|v| v.is_due(now));
        let space = &self.spaces[SpaceId::Data as usize];
        let number = space.sent.next_number();
        let pn_len = packet_number::encoded_len(number, space.largest_acked).max(2);
        let mut w = Writer::new(&mut buffer[..size - TAG_LEN]);
        header::write_short(&mut w, &dcid, spin, phase, number, pn_len);
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
            let window_full = self.path.flow.bytes_in_flight >= self.path.flow.congestion.window();
            if let Some(paths) = self.paths.as_mut().filter(|_| responded && window_full) {
                paths.response_beyond_window = Some(now);
            }
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
        let transmit = self.transmit_of(size, size);
        let ecn = if active { transmit.ecn } else { Ecn::NotEct };
        Some(Transmit {
            path,
            ecn,
            ..transmit
        })
    }
}

#[cfg(test)]
mod tests {
    use squall_wire::{ConnectionId, Ecn, Path};

    use super::*;
    use crate::common::Pair;
    use crate::path;

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

    // test: RFC 9000 §8.2.2, §21.9 — SECURITY.md row 1
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

    // test: RFC 9000 §8.2.2 — SECURITY.md row 1: with a full window the newest wait.
    #[test]
    fn responses_wait_for_the_window_on_the_active_path() {
        let mut pair = connected();
        let now = pair.now;
        let home = pair.connection(Side::Server).path();
        let flow = &mut pair.connection(Side::Server).path.flow;
        flow.bytes_in_flight = flow.congestion.window();
        let mut buffer = vec![0; 65_536];
        let server = pair.connection(Side::Server);
        // One a round trip goes beyond the window.
        let rtt = server.path.flow.rtt.smoothed();
        for (later, sends) in [(0, true), (0, false), (1, true), (1, false)] {
            take(&mut pair, Side::Server, home, &challenges(100)).unwrap();
            let server = pair.connection(Side::Server);
            let now = now + rtt * later;
            let sent = server.transmit_path_probe(now, &mut buffer, &mut Stages::off());
            assert_eq!(sent.is_some(), sends, "{later}");
        }
        let server = pair.connection(Side::Server);
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
}
