//! Packets acknowledged together settle as they would one by one.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use squall_protect::MAX_GROUP;
use squall_wire::frame::{self, EcnCounts};
use squall_wire::{
    ConnectionId, Direction, Ecn, Frame, Frames, Path, Side, StreamId, TransportError, Writer,
};

use super::twins::{Way, assert_equal};
use crate::common::Pair;
use crate::config::TransportConfig;
use crate::congestion::Acknowledged;
use crate::connection::Connection;
use crate::connection::receive::Trip;
use crate::connection::transmit::run::Bundle;
use crate::space::SpaceId;
use crate::stages::Stages;
use crate::stream::Priority;
use crate::time::Time;

/// Everything that acknowledgements change, by name.
type State = Vec<(&'static str, String)>;

/// Bytes of a packet: few, so that runs are long and the compared data is short.
const SEGMENT: usize = 120;

/// A server with a history of sent packets, and the peer's acknowledgements of them.
struct History {
    pair: Pair,
    rng: StdRng,
    streams: Vec<StreamId>,
    /// Packets sent with an ECN mark, and those of them that were acknowledged.
    marked: BTreeSet<u64>,
    reported: BTreeSet<u64>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut pair = Pair::with(
            TransportConfig::default()
                .initial_stream_window(400_000)
                .initial_window(600_000)
                .ecn(rng.random()),
        );
        pair.run();
        let server = pair.connection(Side::Server);
        if rng.random_ratio(1, 3) {
            // As if the peer did not support RESET_STREAM_AT.
            server.streams.without_partial_resets();
        }
        let streams = (0..rng.random_range(1..4))
            .filter_map(|_| server.open(Direction::Unidirectional))
            .collect();
        // A second path: packets are settled on the path that they were sent on.
        let elsewhere = Path {
            remote: "198.51.100.7:7000".parse().expect("an address"),
            local: None,
        };
        server
            .paths
            .add(elsewhere, &server.config, &mut server.endpoint);
        Self {
            pair,
            rng,
            streams,
            marked: BTreeSet::new(),
            reported: BTreeSet::new(),
        }
    }

    /// Queues something to be sent, or something that makes packets differ.
    fn happen(&mut self) {
        let now = self.pair.now;
        let rng = &mut self.rng;
        let server = self.pair.connection(Side::Server);
        let id = self.streams[rng.random_range(0..self.streams.len())];
        // Whether it is accepted is part of the comparison: a refusal leaves nothing to send.
        match rng.random_range(0..25) {
            0 => drop(server.finish(id)),
            11 => drop(server.streams.on_stop_sending(id, 7)),
            1 => drop(server.reset(id, 7)),
            2 => drop(server.reset_at(id, 7, 500)),
            3 => server.ping(),
            4 => drop(server.send_datagram(Bytes::from(vec![b'd'; 50]))),
            5 | 6 => server.spaces[SpaceId::Data].sent.skip_number(now),
            7 | 8 => {
                let space = &mut server.spaces[SpaceId::Data];
                space.received.extend(1, Ecn::NotEct, now);
            }
            9 => {
                // A probe for the path's size, as `transmit_mtu_probe` books it.
                let flow = &mut server.paths.active.flow;
                flow.enter(1400);
                let sent = &mut server.spaces[SpaceId::Data].sent;
                server
                    .paths
                    .active
                    .mtu
                    .on_probe_sent(sent.next_number(), 1400);
                let mark = sent.frame_mark();
                sent.push(now, 1400, true, flow.tag, false, mark);
            }
            10 => {
                // Packets take a different path from now on.
                let others = server.paths.inactive.as_mut().map(|p| &mut p.others);
                if let Some(other) = others.and_then(|o| o.first_mut()) {
                    std::mem::swap(&mut server.paths.active.flow, &mut other.flow);
                }
            }
            _ => {
                let mut chunk = Bytes::from(vec![b'a'; rng.random_range(1..4_000)]);
                let _ = server.write(id, &mut chunk);
            }
        }
    }

    /// Lets the streams send in turn, a packet each: one continues at the offset where another's
    /// packet ended.
    fn take_turns(&mut self) {
        for id in self.streams.clone() {
            let server = self.pair.connection(Side::Server);
            let _ = server.write(id, &mut Bytes::from(vec![b'a'; 2_000]));
            let in_turn = Priority {
                incremental: true,
                ..Priority::default()
            };
            server
                .set_priority(id, in_turn)
                .expect("the stream is open");
        }
        for _ in 0..12 {
            self.send(1);
        }
    }

    /// Sends a bundle of up to this many packets.
    fn send(&mut self, count: usize) {
        let now = self.pair.now;
        let server = self.pair.connection(Side::Server);
        let next = server.spaces[SpaceId::Data].sent.next_number();
        server.paths.active.flow.ecn.begin(next);
        let mut form = server.form(SEGMENT, count);
        form.window_limited = self.rng.random();
        let mut buffer = [0; SEGMENT * MAX_GROUP];
        server.write_bundle(now, &mut buffer, &form, count, &mut Bundle::default());
        let end = server.spaces[SpaceId::Data].sent.next_number();
        if server.paths.active.flow.ecn.mark() != Ecn::NotEct {
            server.paths.active.flow.ecn.on_sent(end - next, end);
            server.paths.ecn.on_sent(end - next);
            self.marked.extend(next..end);
        }
    }

    /// Ranges of sent numbers, descending, with gaps between; now and then with one that was not
    /// sent.
    fn ranges(&mut self) -> Vec<RangeInclusive<u64>> {
        let sent = &self.pair.connection(Side::Server).spaces[SpaceId::Data].sent;
        let (first, next) = (sent.first_open(), sent.next_number());
        let skipped = sent.skipped();
        let honest = !self.rng.random_ratio(1, 60);
        let mut ranges = Vec::new();
        let mut end = next - 1 - self.rng.random_range(0..8).min(next - 1);
        loop {
            let mut len = self.rng.random_range(1..60);
            if self.rng.random_ratio(1, 3) {
                len = self.rng.random_range(1..4);
            }
            let mut start = (end + 1).saturating_sub(len);
            if honest && let Some(hole) = skipped.iter().rev().find(|s| **s <= end) {
                start = start.max(hole + 1);
            }
            if start <= end {
                ranges.push(start..=end);
            }
            let gap = self.rng.random_range(1..4);
            if start <= gap + first.saturating_sub(10) || ranges.len() > 8 {
                return ranges;
            }
            end = start - 1 - gap;
        }
    }

    /// Processes an ACK frame.
    fn acknowledge(&mut self, trip: &mut Trip<'_>) -> Result<(), TransportError> {
        let ranges = self.ranges();
        let covers = |n: &&u64| ranges.iter().any(|r| r.contains(*n));
        self.reported
            .extend(self.marked.iter().filter(covers).copied());
        let counts = EcnCounts {
            ect0: self.reported.len() as u64,
            ..EcnCounts::default()
        };
        let counts = match self.rng.random_range(0..40) {
            0 => None,
            1..5 => Some(EcnCounts {
                ect0: counts.ect0.saturating_sub(1),
                ce: counts.ect0.min(1),
                ect1: 0,
            }),
            _ => Some(counts).filter(|c| c.ect0 > 0),
        };
        let (mut buffer, delay) = ([0; 500], self.rng.random_range(0..2_000));
        let mut w = Writer::new(&mut buffer);
        if frame::write::ack(&mut w, ranges.into_iter(), delay, counts) == 0 {
            return Ok(());
        }
        let len = w.len();
        let Some(Ok(Frame::Ack(ack))) = Frames::new(&buffer[..len]).next() else {
            panic!("the frame just written is an ACK");
        };
        let server = self.pair.connection(Side::Server);
        server.on_ack(SpaceId::Data, &ack, trip)
    }

    /// Everything that acknowledgements change, by name.
    fn state(&mut self, trip: &Trip<'_>) -> State {
        let server = self.pair.connection(Side::Server);
        let space = &server.spaces[SpaceId::Data];
        let totals = &trip.acked;
        let other = server.paths.others().first();
        vec![
            ("records", format!("{:?}", space.sent)),
            ("largest", format!("{:?}", space.largest_acked)),
            ("received", format!("{:?}", space.received)),
            ("flow", format!("{:?}", server.paths.active.flow)),
            ("elsewhere", format!("{:?}", other.map(|o| &o.flow))),
            ("size", format!("{:?}", server.paths.active.mtu)),
            ("ecn", format!("{:?}", server.paths.ecn)),
            ("streams", server.streams.departures()),
            ("stats", format!("{:?}", server.stats)),
            ("timer", format!("{:?}", server.next_timeout())),
            ("newly", format!("{:?}", totals.spaces)),
            ("bytes", format!("{:?}", (totals.packets, totals.bytes))),
            (
                "newest",
                format!("{:?}", (totals.newest_sent, totals.window_limited)),
            ),
            ("marks", format!("{:?}", (totals.marked, totals.congested))),
        ]
    }
}

/// The final state of a server whose history is drawn from the seed; adds the packets acknowledged
/// in runs to `in_runs`.
fn history(seed: u64, way: Way, in_runs: &Cell<u64>) -> Vec<State> {
    let mut history = History::new(seed);
    let mut states = Vec::new();
    let path = history.pair.connection(Side::Server).paths.active.path;
    if seed.is_multiple_of(3) {
        history.take_turns();
    }
    for _ in 0..25 {
        for _ in 0..history.rng.random_range(1..4) {
            history.happen();
            let passed = history.rng.random_range(0..9_000);
            history.pair.now += Duration::from_micros(passed);
            let count = history.rng.random_range(0..=MAX_GROUP);
            history.send(count);
        }
        history.pair.now += Duration::from_micros(history.rng.random_range(100..40_000));
        let (now, mut stages) = (history.pair.now, Stages::off());
        let mut trip = trip(now, path, &mut stages);
        trip.acked.singly = way == Way::Alone;
        for _ in 0..history.rng.random_range(1..3) {
            let taken = history.acknowledge(&mut trip);
            states.push(history.state(&trip));
            if let Err(error) = taken {
                states.push(vec![("error", format!("{error:?}"))]);
                in_runs.update(|n| n + trip.acked.in_runs);
                return states;
            }
        }
        in_runs.update(|n| n + trip.acked.in_runs);
        let server = history.pair.connection(Side::Server);
        server.settle_acks(now, &trip.acked);
        states.push(history.state(&trip));
    }
    states
}

/// A run on the active path.
fn trip(now: Time, path: Path, stages: &mut Stages) -> Trip<'_> {
    Trip::new(now, ConnectionId::EMPTY, path, true, Ecn::NotEct, stages)
}

/// A run settles as its packets do one by one: with ranges that begin and end anywhere and are
/// repeated, losses, skipped numbers, other frames, other paths, probes, FIN, resets and ECN marks.
#[test]
fn packets_acknowledged_in_runs_settle_as_they_do_singly() {
    let (together, alone) = (Cell::new(0), Cell::new(0));
    let histories = assert_equal(0..200, |seed, way| match way {
        Way::Together => history(seed, way, &together),
        Way::Alone => history(seed, way, &alone),
    });
    let refused = |states: &&Vec<State>| states.last().is_some_and(|s| s.len() == 1);
    let refused = histories.iter().filter(refused).count();
    assert_eq!(
        alone.get(),
        0,
        "packets were acknowledged in runs although runs are off"
    );
    assert!(
        together.get() > 10_000 && refused > 10,
        "{together:?} packets in runs, {refused} histories refused"
    );
}

/// Whatever the window does, acknowledgements are requested for every eighth of it.
#[test]
fn the_requested_ack_frequency_follows_the_window() {
    let mut pair = Pair::with(TransportConfig::default());
    pair.run();
    let now = pair.now;
    let server = pair.connection(Side::Server);
    let grown = Acknowledged {
        bytes: 2_000 * u64::from(server.paths.active.mtu.current()),
        newest_sent: now,
        app_limited: false,
        in_flight: 0,
        idle: false,
    };
    let flow = &mut server.paths.active.flow;
    flow.congestion.on_ack(now, &grown, &flow.rtt);
    assert!(server.handshake.peer.min_ack_delay.is_some());
    for reduction in 1..10 {
        server.adapt_ack_frequency();
        let packets = server.paths.active.flow.congestion.window()
            / u64::from(server.paths.active.mtu.current());
        let threshold = server.duties.ack_frequency.threshold();
        assert!(
            packets / 12 < threshold && threshold * 6 <= packets,
            "one for {threshold} of {packets} packets after {reduction} reductions"
        );
        let later = now + reduction * Duration::from_secs(1);
        server.paths.active.flow.congestion.on_marked(later, later);
    }
}

/// Processes an ACK frame of one range of sent packets.
fn acknowledge(server: &mut Connection, range: RangeInclusive<u64>, trip: &mut Trip<'_>) {
    let mut buffer = [0; 50];
    let mut w = Writer::new(&mut buffer);
    frame::write::ack(&mut w, std::iter::once(range), 0, None);
    let len = w.len();
    let Some(Ok(Frame::Ack(ack))) = Frames::new(&buffer[..len]).next() else {
        panic!("the frame just written is an ACK");
    };
    let taken = server.on_ack(SpaceId::Data, &ack, trip);
    taken.expect("only packets that were sent are acknowledged");
}

// test: RFC 9438 §4.9 — all up to its largest number is settled, and it still shows that a loss was
// spurious.
#[test]
fn a_reordered_ack_undoes_spurious_losses() {
    let mut pair = Pair::with(TransportConfig::default());
    pair.run();
    let server = pair.connection(Side::Server);
    let first = server.spaces[SpaceId::Data].sent.next_number();
    let id = server.open(Direction::Unidirectional).expect("a stream");
    let mut data = Bytes::from(vec![b'a'; 10 * SEGMENT]);
    server.write(id, &mut data).expect("room");
    let (mut buffer, mut now) = ([0; SEGMENT * MAX_GROUP], pair.now);
    let server = pair.connection(Side::Server);
    let form = server.form(SEGMENT, 8);
    server.write_bundle(now, &mut buffer, &form, 8, &mut Bundle::default());
    let mut settle = |range: RangeInclusive<u64>| {
        now += Duration::from_millis(1);
        let path = server.paths.active.path;
        let mut stages = Stages::off();
        let mut trip = trip(now, path, &mut stages);
        acknowledge(server, range, &mut trip);
        server.settle_acks(now, &trip.acked);
        (server.stats.packets_lost, server.stats.spurious_losses)
    };
    assert_eq!(settle(first + 4..=first + 7), (4, 0));
    assert_eq!(settle(first..=first + 3), (4, 4));
}

// test: RFC 9002 §7.8 — pacing is not the application: the window was full, if only for the first
// of these packets.
#[test]
fn a_window_grows_if_it_was_full_at_any_time() {
    for singly in [false, true] {
        for (full, grows) in [
            ([true, false], true),
            ([false, true], true),
            ([false, false], false),
        ] {
            let mut pair = Pair::with(TransportConfig::default());
            pair.run();
            let now = pair.now;
            let server = pair.connection(Side::Server);
            let id = server.open(Direction::Unidirectional).expect("a stream");
            let mut data = Bytes::from(vec![b'a'; 6 * SEGMENT]);
            server.write(id, &mut data).expect("room");
            let sent = &server.spaces[SpaceId::Data].sent;
            let first = sent.next_number();
            for limited in full {
                let mut form = server.form(SEGMENT, 2);
                form.window_limited = limited;
                let mut buffer = [0; SEGMENT * MAX_GROUP];
                server.write_bundle(now, &mut buffer, &form, 2, &mut Bundle::default());
            }
            let path = server.paths.active.path;
            let (later, mut stages) = (now + Duration::from_millis(50), Stages::off());
            let mut trip = trip(later, path, &mut stages);
            trip.acked.singly = singly;
            acknowledge(server, first..=first + 3, &mut trip);
            assert_eq!(trip.acked.packets, 4);
            let before = server.paths.active.flow.congestion.window();
            server.settle_acks(later, &trip.acked);
            let after = server.paths.active.flow.congestion.window();
            assert_eq!(after > before, grows, "{full:?}, singly: {singly}");
        }
    }
}
