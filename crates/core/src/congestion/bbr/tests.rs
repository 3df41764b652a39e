//! The controller on a path with a bottleneck.

use std::collections::VecDeque;

use super::*;

const DATAGRAM: u64 = 1200;

/// A path with a bottleneck and a queue, and a sender that always has data.
struct Link {
    bbr: Bbr,
    rtt: RttEstimator,
    now: u64,
    /// Bytes a millisecond.
    rate: u64,
    queue: u64,
    /// Sent data, and when the sender hears of its arrival.
    flight: VecDeque<(u64, u64)>,
    /// When the bottleneck is free, in nanoseconds.
    free: u64,
    in_flight: u64,
    delivered: u64,
    lost: u64,
    /// The bytes released by the pacer.
    credit: u64,
}

const MS: u64 = 1_000_000;
const RTT: u64 = 40 * MS;

impl Link {
    fn new(rate: u64, queue: u64) -> Self {
        Self {
            bbr: Bbr::new(DATAGRAM as u16),
            rtt: RttEstimator::new(Duration::from_millis(100)),
            now: 1000 * MS,
            rate,
            queue,
            flight: VecDeque::new(),
            free: 0,
            in_flight: 0,
            delivered: 0,
            lost: 0,
            credit: 0,
        }
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += MS;
            let now = Time::from_nanos(self.now);
            let (mut bytes, mut newest) = (0, 0);
            while let Some((sent, back)) = self.flight.front().copied()
                && back <= self.now
            {
                self.flight.pop_front();
                bytes += DATAGRAM;
                newest = sent;
            }
            if bytes > 0 {
                self.in_flight -= bytes;
                self.delivered += bytes;
                let sample = Duration::from_nanos(self.now - newest);
                self.rtt.update(sample, Duration::ZERO);
                let acked = Acknowledged {
                    bytes,
                    newest_sent: Time::from_nanos(newest),
                    app_limited: false,
                    in_flight: self.in_flight,
                    idle: false,
                };
                self.bbr.on_ack(now, &acked, &self.rtt);
            }
            // Like the pacer: as much as a late worker may catch up with, and no more.
            let mut credit = match self.bbr.pacing_rate() {
                Some(rate) => (self.credit + rate / 1000).min(3 * rate / 1000 + 2 * DATAGRAM),
                None => u64::MAX / 2,
            };
            let (mut sent, mut lost) = (0, 0);
            while self.in_flight + DATAGRAM <= self.bbr.window() && credit >= DATAGRAM {
                credit -= DATAGRAM;
                sent += DATAGRAM;
                let waits = self.free.saturating_sub(self.now);
                if waits * self.rate / MS > self.queue {
                    lost += DATAGRAM;
                    continue;
                }
                self.in_flight += DATAGRAM;
                self.free = self.free.max(self.now) + DATAGRAM * MS / self.rate;
                self.flight.push_back((self.now, self.free + RTT));
            }
            self.credit = credit;
            if sent > 0 {
                self.bbr.on_sent(now, sent, self.in_flight);
            }
            if lost > 0 {
                self.lost += lost;
                self.bbr.on_lost(now, lost, 1, now);
            }
        }
    }
}

// test: draft-ietf-ccwg-bbr §5.3
#[test]
fn fills_the_pipe_without_filling_the_queue() {
    // 100 Mbit/s, 40 ms, a queue of four bandwidth-delay products.
    let rate = 12_500;
    let bdp = rate * 40;
    let mut link = Link::new(rate, 4 * bdp);
    link.run(2000);
    assert!(link.bbr.full_bw_reached, "{:?}", link.bbr.state);
    let before = link.delivered;
    link.run(10_000);
    let throughput = (link.delivered - before) / 10_000;
    assert!(
        throughput * 100 >= rate * 90,
        "{throughput} of {rate} bytes a ms"
    );
    assert!(
        link.in_flight < 2 * bdp + bdp / 2,
        "{} bytes in flight, the pipe holds {bdp}",
        link.in_flight
    );
    let estimate = link.bbr.max_bw.max() / 1000;
    assert!(
        estimate * 100 >= rate * 90 && estimate * 100 <= rate * 115,
        "{estimate}"
    );
    assert!(link.bbr.min_rtt < Duration::from_millis(45));
    assert_eq!(link.lost, 0);
}

// test: draft-ietf-ccwg-bbr §5.5.10: a shallow queue loses little, and few bytes are wasted.
#[test]
fn a_shallow_queue_bounds_what_is_in_flight() {
    let rate = 12_500;
    let mut link = Link::new(rate, rate * 4);
    link.run(3000);
    let (before, lost) = (link.delivered, link.lost);
    link.run(20_000);
    let throughput = (link.delivered - before) / 20_000;
    assert!(
        throughput * 100 >= rate * 80,
        "{throughput} of {rate} bytes a ms"
    );
    let lost = link.lost - lost;
    assert!(
        lost * 100 < 4 * (link.delivered - before),
        "{lost} bytes lost"
    );
}

// test: draft-ietf-ccwg-bbr §5.3.4
#[test]
fn the_round_trip_time_is_probed_every_five_seconds() {
    let mut link = Link::new(1250, 1250 * 400);
    let mut probes = 0;
    let mut probing = false;
    for _ in 0..21_000 {
        link.run(1);
        let now = link.bbr.state == State::ProbeRtt;
        probes += u32::from(now && !probing);
        probing = now;
    }
    assert!((2..=5).contains(&probes), "{probes} in 21 s");
}

#[test]
fn a_faster_path_is_detected() {
    let mut link = Link::new(1250, 1250 * 100);
    link.run(5000);
    link.rate = 6250;
    link.queue = 6250 * 100;
    link.run(20_000);
    let estimate = link.bbr.max_bw.max() / 1000;
    assert!(estimate > 5000, "{estimate} bytes a ms of 6250");
}
