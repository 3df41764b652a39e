//! What hostile bytes cost: row 48 of the threat table in `SECURITY.md`.
//!
//! Handling `n` bytes of input costs at most `a + b * n`: `b` is 20 times the cost of a byte of
//! bulk data, and `a` is stated for a datagram, a packet, a stream and a handshake. Bulk is
//! measured in the same run, by the same clock, which is the CPU time of the thread: so the
//! machine's speed and load do not matter. Each attack is tried a few times, alternating with bulk,
//! and only the best try has to keep the rule, since disturbances only ever add to a measurement.
//!
//! It needs optimised code and is ignored otherwise:
//!
//! ```sh
//! cargo test --profile sim -p squall-sim --test work -- --ignored --nocapture
//! ```
//! prints the ratio of each attack to what it may cost. `SQUALL_WORK_ONLY=pieces` runs one attack.

#![cfg(unix)]

mod attacks;
mod table;

use std::time::Duration;

use squall_sim::{Duel, Terms, Work, frames};
use squall_wire::frame::{ty, write};
use squall_wire::{Direction, Ecn, PacketType, Path, Side, StreamId};

use PacketType::OneRtt;

use table::attacks;

/// `b`, in bytes of bulk data.
const BYTE: f64 = 20.0;
/// `a` of a datagram, received or sent, in bytes of bulk data: about 4 µs on Zen 5, where bulk data
/// costs least (0.17 ns a byte) and ACK frames of five bytes, at 29 ns each, come closest to the
/// limit.
const DATAGRAM: f64 = 25_000.0;
/// `a` of each further packet in it, and of each packet sent whose fate becomes known: about the
/// cost of its bytes.
const PACKET: f64 = 1_200.0;
/// `a` of a stream that the peer opens and ends.
const STREAM: f64 = 1_000.0;
/// `a` of a handshake: about 500 µs.
const HANDSHAKE: f64 = 1_000_000.0;
/// Bytes of a packet's payload.
const PAYLOAD: usize = 1150;
/// Datagrams that arrive at once.
const BUNDLE: usize = 32;
/// How often an attack is measured, and how often at most while it costs too much.
const TRIES: usize = 3;
const MOST_TRIES: usize = 12;

/// CPU time of this thread.
fn cpu() -> Duration {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is a `timespec` that may be written.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut at) };
    assert_eq!(rc, 0, "every Unix has this clock");
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

fn path() -> Path {
    Path {
        remote: std::net::SocketAddr::from(([10, 0, 0, 9], 999)),
        local: None,
    }
}

/// Work done, and what `a` was spent on besides datagrams.
#[derive(Default)]
struct Cost {
    work: Work,
    streams: u64,
    handshakes: u64,
    packets: u64,
}

impl From<&Duel> for Cost {
    fn from(duel: &Duel) -> Self {
        Self {
            work: duel.work,
            ..Self::default()
        }
    }
}

impl Cost {
    /// What the rule grants, in bytes of bulk data.
    fn granted(&self) -> f64 {
        let Work {
            bytes, datagrams, ..
        } = self.work;
        BYTE * bytes[0] as f64
            + 2.0 * bytes[1] as f64
            + DATAGRAM * datagrams[0] as f64
            // What is sent is bulk data, or an answer in its own packet.
            + DATAGRAM / 4.0 * datagrams[1] as f64
            + PACKET * self.packets as f64
            + STREAM * self.streams as f64
            + HANDSHAKE * self.handshakes as f64
    }
}

/// A connected victim, whose work is measured from now on.
fn victim(side: Side, terms: Terms) -> Duel {
    let mut duel = Duel::connected(side, terms);
    duel.unwatch();
    duel.measure(cpu);
    duel
}

/// A payload of as many frames as fit.
fn filled(mut frame: impl FnMut() -> Vec<u8>) -> Vec<u8> {
    let mut payload = Vec::with_capacity(PAYLOAD + 50);
    while payload.len() < PAYLOAD - 30 {
        payload.extend(frame());
    }
    payload.resize(PAYLOAD, ty::PADDING as u8);
    payload
}

/// Delivers packets with these payloads, a bundle at a time.
fn flood(duel: &mut Duel, packet: PacketType, payloads: impl IntoIterator<Item = Vec<u8>>) {
    let mut payloads = payloads.into_iter().peekable();
    while payloads.peek().is_some() && duel.closed().is_none() {
        let (mut bundle, mut size) = (Vec::new(), 0);
        for payload in payloads.by_ref().take(BUNDLE) {
            let datagram = duel.peer.datagram(packet, &payload);
            assert!(
                size == 0 || size == datagram.len(),
                "the datagrams of a bundle have one size"
            );
            size = datagram.len();
            bundle.extend(datagram);
        }
        duel.deliver_run(path(), Ecn::NotEct, size as u16, &bundle);
        duel.peer.received.clear();
        duel.events
            .retain(|e| matches!(e, squall_core::Event::Closed(_)));
        duel.pass(Duration::from_millis(1));
    }
}

/// Bulk data of one stream, read as it arrives: nanoseconds per byte of payload.
fn bulk() -> f64 {
    let mut duel = victim(Side::Server, Terms::default());
    let id = StreamId::new(Side::Client, Direction::Unidirectional, 0);
    let mut offset = 0;
    for round in 0..110 {
        if round == 10 {
            duel.measure(cpu);
        }
        let payloads: Vec<Vec<u8>> = (0..BUNDLE)
            .map(|_| {
                let mut payload = frames(|w| write::stream_header(w, id, offset, None, false));
                offset += (PAYLOAD - payload.len()) as u64;
                payload.resize(PAYLOAD, 7);
                payload
            })
            .collect();
        flood(&mut duel, OneRtt, payloads);
        duel.victim().accept(Direction::Unidirectional);
        let began = cpu();
        while let Ok(Some(_)) = duel.victim().read(id, usize::MAX) {}
        duel.work.receiving += cpu() - began;
    }
    assert!(offset > 2 << 20 && duel.closed().is_none(), "{offset}");
    let Work {
        receiving,
        sending,
        bytes,
        ..
    } = duel.work;
    (receiving + sending).as_nanos() as f64 / bytes[0] as f64
}

// test: RFC 9000 §21, SECURITY.md row 48
#[test]
#[ignore = "measures optimised code: cargo test --profile sim -p squall-sim --test work -- --ignored"]
fn hostile_bytes_cost_at_most_twenty_times_bulk() {
    let mut worst = Vec::new();
    let only = std::env::var("SQUALL_WORK_ONLY").unwrap_or_default();
    for (name, attack) in attacks().into_iter().filter(|(n, _)| n.contains(&only)) {
        let mut best = (f64::MAX, String::new());
        for tried in 0..MOST_TRIES {
            if tried >= TRIES && best.0 <= 1.0 {
                break;
            }
            let byte = bulk().min(bulk());
            let cost = attack();
            let took = (cost.work.receiving + cost.work.sending).as_nanos() as f64 / byte;
            let ratio = took / cost.granted();
            if ratio < best.0 {
                let Work {
                    receiving,
                    sending,
                    bytes,
                    datagrams,
                } = cost.work;
                let line = format!(
                    "{ratio:5.2} {name}: {} + {} us, {:.1} ns a byte in; bytes {bytes:?}, datagrams {datagrams:?}, bulk {byte:.2} ns a byte",
                    receiving.as_micros(),
                    sending.as_micros(),
                    receiving.as_nanos() as f64 / bytes[0] as f64,
                );
                best = (ratio, line);
            }
        }
        println!("{}", best.1);
        if best.0 > 1.0 {
            worst.push(best.1);
        }
    }
    assert!(worst.is_empty(), "{}", worst.join("\n"));
}
