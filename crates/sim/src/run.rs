//! Complete runs from a seed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use squall_core::{CloseReason, Stats, Time};
use squall_wire::{Side, TransportErrorCode};

use crate::failure::Failure;
use crate::happening::Happening;
use crate::network::Counters;
use crate::pair::Pair;
use crate::simulation::Simulation;
use crate::trial::{Fault, Handshake, Trial};

/// Virtual time within which the last acknowledgements must arrive: a few probe timeouts with
/// backoff.
const SETTLE: Duration = Duration::from_secs(2000);
/// The silence to wait for, and the number of datagrams that may be sent in it: a late MTU probe, a
/// ticket.
const QUIET: (Duration, u64) = (Duration::from_secs(5), 20);
/// How many more may be sent in it by an end that keeps its NAT binding alive, or on a new path.
const AWAKE: u64 = 80;

const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The faults that the connection met, without those that came too late.
    pub faults: Vec<Fault>,
    /// Its handshake.
    pub handshake_kind: Handshake,
    /// Virtual time until both ends had completed the handshake.
    pub handshake: Duration,
    /// Virtual time from the handshake until the last byte was read and acknowledged.
    pub transfer: Duration,
    /// The longest virtual time of the transfer in which no application received a byte.
    pub longest_silence: Duration,
    /// Points in time at which something happened.
    pub steps: u64,
    /// Figures of both ends.
    pub stats: [Stats; 2],
    /// What the network did, by the sender's side.
    pub counters: [Counters; 2],
    /// Datagrams that the intruder fabricated.
    pub intrusions: u64,
    /// How the server learned that the connection had ended.
    pub server_end: CloseReason,
}

/// Runs the trial of a seed: moves bytes each way, compares every one, closes, and checks that
/// nothing is left over.
///
/// # Errors
/// Anything that goes wrong, panics included.
pub fn run_seed(seed: u64) -> Result<Report, Failure> {
    run_trial(Trial::of_seed(seed))
}

/// Runs a trial.
///
/// # Errors
/// Anything that goes wrong, panics included.
pub fn run_trial(mut trial: Trial) -> Result<Report, Failure> {
    catch(trial.seed, || {
        let course = Course {
            seed: trial.seed,
            faults: trial.faults.clone(),
            handshake: trial.handshake,
            patience: trial.patience,
            transfer: trial.transfer,
            silence: trial.silence,
            later: std::mem::take(&mut trial.later),
            happenings: trial.happenings.len(),
        };
        if let Some((side, after)) = trial.early_close {
            return course.close_early(&mut trial.begin()?, side, after);
        }
        if let Some((side, after)) = trial.restart {
            return course.restart(&mut trial.begin()?, side, after);
        }
        if trial.ends_in_silence() {
            course.end_in_silence(&mut trial.begin()?)
        } else {
            course.run(&mut trial.begin()?)
        }
    })
}

/// The limits of a trial.
struct Course {
    seed: u64,
    faults: Vec<Fault>,
    handshake: Handshake,
    patience: Duration,
    transfer: Duration,
    silence: Duration,
    later: Vec<(Duration, Happening)>,
    happenings: usize,
}

impl Course {
    fn run(mut self, sim: &mut Simulation) -> Result<Report, Failure> {
        let open = |sim: &Simulation| sim.parties.iter().all(|p| p.closed.is_none());
        sim.run_until(self.patience, "both ends are connected", |sim| {
            sim.connected().is_some() || !open(sim)
        })?;
        self.happenings += self.later.len();
        sim.schedule(std::mem::take(&mut self.later));
        let began = sim.pair.now();
        let (mut last_read, mut longest_silence) = (began, Duration::ZERO);
        sim.run_until(
            self.transfer,
            "all bytes are read and acknowledged",
            |sim| {
                let newest = sim.parties.iter().map(|p| p.last_read).max();
                let newest = newest.unwrap_or(began).max(began);
                longest_silence = longest_silence.max(newest - last_read);
                last_read = newest;
                sim.is_complete() || !open(sim)
            },
        )?;
        if longest_silence > self.silence {
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
        let met = self.happenings - sim.happenings_left();
        sim.run_until(SETTLE, "nothing is in flight", |sim| {
            SIDES
                .iter()
                .all(|s| sim.pair.stats(*s).bytes_in_flight == 0)
                && sim.happenings_left() == 0
        })?;
        check_datagrams(sim)?;
        let awake = [
            Fault::Rebinding,
            Fault::Migration,
            Fault::NewAddress,
            Fault::Wishes,
            Fault::PreferredAddress,
            // The search for a larger MTU may start again.
            Fault::Settings,
        ];
        let awake = awake.iter().any(|fault| self.faults.contains(fault));
        check_silence(sim, QUIET.1 + if awake { AWAKE } else { 0 })?;
        let stats = SIDES.map(|side| sim.pair.stats(side));
        sim.close(Side::Client, 7, b"done")?;
        // The longest wait is for the server's idle timeout, if every CONNECTION_CLOSE is lost.
        sim.run_until(3 * self.patience, "both endpoints are empty", |sim| {
            SIDES.iter().all(|s| sim.pair.live(*s) == 0)
        })?;
        let server_end = check_end(sim)?;
        Ok(self.report(sim, transfer, longest_silence, stats, met, server_end))
    }

    /// Nothing gets through any more: both ends must report it in time, with the right reason.
    fn end_in_silence(self, sim: &mut Simulation) -> Result<Report, Failure> {
        self.run_until_empty(sim)?;
        let connected = sim.parties.each_ref().map(|p| p.connected.is_some());
        for (side, connected) in SIDES.into_iter().zip(connected) {
            let end = sim.party(side).closed.clone();
            let fine = match end {
                // A server that has heard nothing has nothing to end.
                None => side == Side::Server && sim.pair.connection(side).is_none(),
                Some(CloseReason::IdleTimeout) => true,
                Some(CloseReason::HandshakeTimeout) => !connected,
                Some(_) => false,
            };
            if !fine {
                return Err(sim.pair.failure(format!("{side:?} ended with {end:?}")));
            }
        }
        Ok(self.report_unfinished(sim, None))
    }

    /// One end closes the connection while it is being established or used: the other must learn
    /// of it, and nothing may be left.
    fn close_early(
        mut self,
        sim: &mut Simulation,
        side: Side,
        after: Duration,
    ) -> Result<Report, Failure> {
        sim.schedule(std::mem::take(&mut self.later));
        sim.run_for(after)?;
        let side = if sim.pair.has_connection(side) {
            side
        } else {
            Side::Client
        };
        sim.close(side, 9, b"enough")?;
        sim.pair.refuse_connections();
        self.run_until_empty(sim)?;
        let ends = sim.parties.each_ref().map(|p| p.closed.clone());
        let known = sim.parties.each_ref().map(|p| p.connected.is_some());
        let fine = |of: Side| match &ends[of as usize] {
            Some(CloseReason::Application { code, remote, .. }) => {
                *code == 9 && *remote == (of != side)
            }
            // RFC 9000 §10.2.3: what an application says stays out of Initial and Handshake
            // packets. A client that has heard nothing tries again, with the same token.
            Some(CloseReason::Transport { code, remote, .. }) => {
                let again = of == Side::Client && !known[of as usize];
                *remote
                    && of != side
                    && (*code == TransportErrorCode::APPLICATION_ERROR || again && refuses(*code))
            }
            Some(CloseReason::IdleTimeout | CloseReason::Reset) => of != side,
            Some(CloseReason::HandshakeTimeout) => of != side && !known[of as usize],
            Some(_) => false,
            None => of == Side::Server && !sim.pair.has_connection(of),
        };
        if let Some(side) = SIDES.into_iter().find(|side| !fine(*side)) {
            return Err(sim
                .pair
                .failure(format!("{side:?} ended with {:?}", ends[side as usize])));
        }
        let end = ends[Side::Server as usize].clone();
        Ok(self.report_unfinished(sim, end))
    }

    /// One end loses its state: the other must learn of it, and nothing may be left.
    fn restart(
        mut self,
        sim: &mut Simulation,
        side: Side,
        after: Duration,
    ) -> Result<Report, Failure> {
        sim.schedule(std::mem::take(&mut self.later));
        sim.run_for(after)?;
        sim.pair.forget(side);
        sim.pair.refuse_connections();
        self.run_until_empty(sim)?;
        let other = side.peer();
        let end = sim.party(other).closed.clone();
        let known = sim.party(other).connected.is_some();
        let fine = match &end {
            Some(CloseReason::IdleTimeout | CloseReason::Reset) => true,
            Some(CloseReason::HandshakeTimeout) => !known,
            // A client that has heard nothing tries again, maybe with the same token.
            Some(CloseReason::Transport { code, remote, .. }) => {
                *remote && other == Side::Client && !known && refuses(*code)
            }
            Some(_) => false,
            None => other == Side::Server && !sim.pair.has_connection(other),
        };
        if !fine {
            return Err(sim.pair.failure(format!("{other:?} ended with {end:?}")));
        }
        Ok(self.report_unfinished(sim, end))
    }

    /// Lets time pass until no endpoint has a connection.
    fn run_until_empty(&self, sim: &mut Simulation) -> Result<(), Failure> {
        sim.run_until(5 * self.patience, "both endpoints are empty", |sim| {
            SIDES.iter().all(|s| sim.pair.live(*s) == 0) && sim.happenings_left() == 0
        })
    }

    /// The report of a run whose work was not to be finished.
    fn report_unfinished(self, sim: &mut Simulation, end: Option<CloseReason>) -> Report {
        let stats = SIDES.map(|side| sim.pair.stats(side));
        let met = self.happenings;
        let end = end.unwrap_or(CloseReason::IdleTimeout);
        self.report(sim, Duration::ZERO, Duration::ZERO, stats, met, end)
    }

    fn report(
        self,
        sim: &mut Simulation,
        transfer: Duration,
        longest_silence: Duration,
        stats: [Stats; 2],
        met: usize,
        server_end: CloseReason,
    ) -> Report {
        let counters = SIDES.map(|side| sim.pair.network().counters(side));
        let seen = |of: fn(&Counters) -> u64| counters.iter().any(|c| of(c) > 0);
        let intrusions = sim.pair.intrusions();
        let tokens = sim.pair.tokens_spent(Side::Server);
        let faults = self
            .faults
            .into_iter()
            .filter(|fault| match fault {
                Fault::HeavyLoss | Fault::Loss => seen(|c| c.lost),
                Fault::Duplication => seen(|c| c.duplicated),
                Fault::Corruption => seen(|c| c.corrupted),
                Fault::EcnMarks => seen(|c| c.marked),
                Fault::Intrusion => intrusions > 0,
                Fault::Token => tokens > 0,
                Fault::Rebinding
                | Fault::Blackhole
                | Fault::MtuChange
                | Fault::Migration
                | Fault::NewAddress
                | Fault::Wishes
                | Fault::Suspension => met > 0,
                _ => true,
            })
            .collect();
        let (start, connected) = sim.connected().unwrap_or((Time::ZERO, Time::ZERO));
        Report {
            seed: self.seed,
            faults,
            handshake_kind: self.handshake,
            handshake: connected - start,
            transfer,
            longest_silence,
            steps: sim.pair.steps(),
            stats,
            counters,
            intrusions,
            server_end,
        }
    }
}

/// Whether a server refuses a client with this code.
fn refuses(code: TransportErrorCode) -> bool {
    [
        TransportErrorCode::CONNECTION_REFUSED,
        TransportErrorCode::INVALID_TOKEN,
    ]
    .contains(&code)
}

/// At the end nothing must be left: no streams, and no endless datagrams.
fn check_silence(sim: &mut Simulation, most: u64) -> Result<(), Failure> {
    // The MTU search finishes; with a window of two packets it probes one size at a time.
    sim.run_for(2 * QUIET.0)?;
    let sent = |sim: &Simulation| SIDES.map(|s| sim.pair.stats(s).datagrams_sent);
    let before = sent(sim);
    sim.run_for(QUIET.0)?;
    for (side, (before, after)) in SIDES.into_iter().zip(before.into_iter().zip(sent(sim))) {
        if after - before > most {
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

/// Where the network loses nothing, every unreliable datagram must arrive.
fn check_datagrams(sim: &mut Simulation) -> Result<(), Failure> {
    for side in SIDES {
        let (sent, _) = sim.party(side).datagrams();
        let (_, received) = sim.party(side.peer()).datagrams();
        let lost = sim.pair.stats(side).packets_lost > 0
            || sim.party(side).early_data_accepted == Some(false)
            || SIDES
                .iter()
                .any(|s| sim.pair.stats(*s).datagram_frames_dropped > 0);
        if received > sent || (received < sent && !lost) {
            return Err(sim.pair.failure(format!(
                "{side:?} sent {sent} datagrams and lost none; {received} arrived"
            )));
        }
    }
    Ok(())
}

/// The client closed with a code and a reason: the server must receive them, or nothing more.
fn check_end(sim: &mut Simulation) -> Result<CloseReason, Failure> {
    let [client, server] = sim.parties.each_ref().map(|p| p.closed.clone());
    let close = |remote| CloseReason::Application {
        code: 7,
        reason: bytes::Bytes::from_static(b"done"),
        remote,
    };
    // If the client has forgotten everything by then, it answers the server with a stateless reset.
    let heard = [close(true), CloseReason::IdleTimeout, CloseReason::Reset];
    let fine = client == Some(close(false)) && server.as_ref().is_some_and(|s| heard.contains(s));
    match server {
        Some(server) if fine => Ok(server),
        server => Err(sim
            .pair
            .failure(format!("the ends: client {client:?}, server {server:?}"))),
    }
}

/// Runs `run` and turns a panic into a failure.
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
