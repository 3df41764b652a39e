//! Whole runs out of a number.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use squall_core::{CloseReason, CongestionAlgorithm, Stats, Time, TransportConfig};
use squall_wire::Side;

use crate::failure::Failure;
use crate::intruder::Intrusion;
use crate::network::{Counters, Faults};
use crate::pair::{Pair, Setup};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::simulation::Simulation;

/// Bytes that each side sends.
const BYTES: usize = 1_000_000;
/// Virtual time in which the handshake has to be done; in one seed of many thousands most of its datagrams are lost.
const HANDSHAKE: Duration = Duration::from_secs(60);
/// Virtual time in which everything has to be over.
const TRANSFER: Duration = Duration::from_secs(60);
/// Virtual time in which some byte has to arrive: a few probe timeouts in a row that come to nothing.
const SILENCE: Duration = Duration::from_secs(8);
/// Virtual time in which the last acknowledgements have to come.
const SETTLE: Duration = Duration::from_secs(20);
/// Silence that is waited for, and the datagrams that may be sent in it: a late probe for the path's size, a ticket.
const QUIET: (Duration, u64) = (Duration::from_secs(5), 20);

const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Virtual time until both ends had completed the handshake.
    pub handshake: Duration,
    /// Virtual time from then until the last byte was read and acknowledged.
    pub transfer: Duration,
    /// The longest virtual time of the transfer in which no application got a byte.
    pub longest_silence: Duration,
    /// Points in time at which something happened.
    pub steps: u64,
    /// Figures of both ends.
    pub stats: [Stats; 2],
    /// What the network did, by the sender's side.
    pub counters: [Counters; 2],
    /// Datagrams made up.
    pub intrusions: u64,
    /// How the server's end came to know that the client had closed.
    pub server_end: CloseReason,
}

/// The network and settings of a seed: always a loss of 10 % and reordering, in both directions; the rest is drawn.
#[must_use]
pub fn setup_of(seed: u64) -> (Setup, Plan) {
    let mut rng = Rng::new(seed);
    let mut setup = Setup::new(seed);
    let ms = Duration::from_millis;
    // RTT of 20 to 50 ms.
    let delay = ms(10) + rng.duration(ms(15));
    let odd = |rng: &mut Rng, chance: f64| if rng.chance(0.25) { chance } else { 0.0 };
    let max_payload = 1200 + rng.below(300) as usize;
    let rate = rng.chance(0.25).then(|| 1_000_000 << rng.below(5));
    for faults in &mut setup.faults {
        *faults = Faults {
            delay,
            jitter: ms(1) + rng.duration(ms(15)),
            reordering: 0.05 + rng.below(45) as f64 / 100.0,
            loss: 0.1,
            duplication: odd(&mut rng, 0.05),
            corruption: odd(&mut rng, 0.02),
            truncation: odd(&mut rng, 0.01),
            rate,
            queue: 100_000,
            max_payload,
            ..Faults::default()
        };
    }
    if rng.chance(0.25) {
        setup.intrusion = Intrusion {
            replay: 0.05,
            damage: 0.05,
            noise: 0.05,
            elsewhere: 0.02,
        };
    }
    setup.max_segments = [1, 10, 64][rng.below(3) as usize];
    for transport in &mut setup.transport {
        *transport = transport_of(&mut rng);
    }
    let cuts = odd(&mut rng, 0.3);
    let plan = Plan::from_seed(&mut rng, BYTES, cuts);
    (setup, plan)
}

fn transport_of(rng: &mut Rng) -> TransportConfig {
    let pick = |rng: &mut Rng, values: &[u64]| values[rng.below(values.len() as u64) as usize];
    let window = pick(rng, &[64 << 10, 256 << 10, 1 << 20]);
    TransportConfig {
        handshake_timeout: HANDSHAKE,
        // A probe timeout backs off beyond the usual 30 s while the handshake's luck is bad.
        max_idle_timeout: HANDSHAKE,
        initial_window: window,
        initial_stream_window: window / 4,
        stream_send_window: pick(rng, &[32 << 10, 4 << 20]),
        send_window: pick(rng, &[64 << 10, 16 << 20]),
        max_concurrent_bidi_streams: pick(rng, &[1, 7, 100]),
        max_concurrent_uni_streams: pick(rng, &[1, 7, 100]),
        congestion: if rng.chance(0.5) {
            CongestionAlgorithm::Cubic
        } else {
            CongestionAlgorithm::NewReno
        },
        pacing: rng.chance(0.75),
        key_update_after: pick(rng, &[50, 300, 7 << 20]),
        max_ack_delay: Duration::from_millis(pick(rng, &[1, 25, 25])),
        ..TransportConfig::default()
    }
}

/// Moves 1 MB each way, byte for byte, on the network of the seed; closes; and looks that nothing is left over.
///
/// # Errors
/// Whatever goes wrong, a panic included.
pub fn run_seed(seed: u64) -> Result<Report, Failure> {
    catch(seed, || {
        let (setup, plan) = setup_of(seed);
        let mut sim = Simulation::new(setup, plan);
        run(seed, &mut sim)
    })
}

fn run(seed: u64, sim: &mut Simulation) -> Result<Report, Failure> {
    let open = |sim: &Simulation| sim.parties.iter().all(|p| p.closed.is_none());
    sim.run_until(HANDSHAKE, "both ends are connected", |sim| {
        sim.connected().is_some() || !open(sim)
    })?;
    let began = sim.pair.now();
    let (mut last_read, mut longest_silence) = (began, Duration::ZERO);
    sim.run_until(TRANSFER, "all bytes are read and acknowledged", |sim| {
        let newest = sim.parties.iter().map(|p| p.last_read).max();
        let newest = newest.unwrap_or(began).max(began);
        longest_silence = longest_silence.max(newest - last_read);
        last_read = newest;
        sim.is_complete() || !open(sim)
    })?;
    if longest_silence > SILENCE {
        return Err(sim
            .pair
            .failure(format!("nothing arrived for {longest_silence:?}")));
    }
    if !open(sim) {
        let parties = sim.parties.each_ref().map(crate::Party::describe);
        return Err(sim
            .pair
            .failure(format!("it ended: {}", parties.join("; "))));
    }
    let transfer = sim.pair.now() - began;
    sim.run_until(SETTLE, "nothing is in flight", |sim| {
        SIDES
            .iter()
            .all(|s| sim.pair.stats(*s).bytes_in_flight == 0)
    })?;
    check_silence(sim)?;
    let stats = SIDES.map(|side| sim.pair.stats(side));
    sim.close(Side::Client, 7, b"done")?;
    // The longest wait is for the server's idle timeout, when every word of the end is lost.
    sim.run_until(3 * HANDSHAKE, "both endpoints are empty", |sim| {
        SIDES.iter().all(|s| sim.pair.live(*s) == 0)
    })?;
    let server_end = check_end(sim)?;
    let (start, connected) = sim.connected().unwrap_or((Time::ZERO, Time::ZERO));
    Ok(Report {
        seed,
        handshake: connected - start,
        transfer,
        longest_silence,
        steps: sim.pair.steps(),
        stats,
        counters: SIDES.map(|side| sim.pair.network().counters(side)),
        intrusions: sim.pair.intrusions(),
        server_end,
    })
}

/// With all said, nothing is left: no streams, no datagrams without end.
fn check_silence(sim: &mut Simulation) -> Result<(), Failure> {
    let sent = |sim: &Simulation| SIDES.map(|s| sim.pair.stats(s).datagrams_sent);
    let before = sent(sim);
    sim.run_for(QUIET.0)?;
    for (side, (before, after)) in SIDES.into_iter().zip(before.into_iter().zip(sent(sim))) {
        if after - before > QUIET.1 {
            return Err(sim.pair.failure(format!(
                "{side:?} sends {} datagrams in {:?} with nothing to say",
                after - before,
                QUIET.0
            )));
        }
        let stats = sim.pair.stats(side);
        if stats.open_streams > 0 {
            return Err(sim
                .pair
                .failure(format!("{side:?} still has {} streams", stats.open_streams)));
        }
    }
    Ok(())
}

/// The client closed with a code and words: the server hears of it, or of nothing more.
fn check_end(sim: &mut Simulation) -> Result<CloseReason, Failure> {
    let [client, server] = sim.parties.each_ref().map(|p| p.closed.clone());
    let close = |remote| CloseReason::Application {
        code: 7,
        reason: bytes::Bytes::from_static(b"done"),
        remote,
    };
    let fine = client == Some(close(false))
        && (server == Some(close(true)) || server == Some(CloseReason::IdleTimeout));
    match server {
        Some(server) if fine => Ok(server),
        server => Err(sim
            .pair
            .failure(format!("the ends: client {client:?}, server {server:?}"))),
    }
}

/// Runs `run` and makes a failure of a panic.
///
/// # Errors
/// What `run` returns, or its panic.
pub fn catch<T>(seed: u64, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let words = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("without words");
        Err(Failure {
            seed,
            at: Pair::start(),
            what: format!("a panic: {words}"),
        })
    })
}
