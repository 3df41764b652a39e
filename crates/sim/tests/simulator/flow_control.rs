//! Flow control (RFC 9000 §4): a slow reader holds back the writer, memory stays bounded, and
//! nothing stalls.

use squall_core::TransportConfig;
use squall_sim::{Cut, Failure, Faults, Outgoing, Plan, Reading, Simulation};
use squall_wire::Side;

use crate::common::{lossy, ms, secs, seeds, setup, sweep};

const RECEIVE: u64 = 128 << 10;
const SEND: u64 = 96 << 10;

fn small_windows() -> [TransportConfig; 2] {
    [(); 2].map(|()| {
        TransportConfig::default()
            .initial_window(64 << 10)
            .receive_window(RECEIVE)
            .initial_stream_window(16 << 10)
            .stream_receive_window(64 << 10)
            .send_window(SEND)
            .stream_send_window(32 << 10)
    })
}

/// Data that one side has written and the other not read is in buffers that have limits.
fn check_memory(sim: &Simulation) -> Result<(), Failure> {
    let [client, server] = &sim.parties;
    for (writer, reader) in [(client, server), (server, client)] {
        let held = writer.written - reader.read;
        if held > RECEIVE + SEND {
            return Err(sim.pair.failure(format!("{held} bytes in buffers")));
        }
    }
    Ok(())
}

/// 400,000 bytes each way over eight streams.
fn plan() -> Plan {
    let stream = Outgoing::both_ways(50_000, 50_000);
    Plan {
        streams: [vec![stream; 4], vec![stream; 4]],
        ..Plan::default()
    }
}

#[test]
fn a_slow_reader_gets_everything_in_bounded_memory() {
    sweep(&seeds(10), |seed| {
        let mut setup = setup(seed, lossy(0.05));
        setup.transport = small_windows();
        let mut sim = Simulation::new(setup, plan());
        sim.party_mut(Side::Client)
            .set_reading(Reading::Slowly(4_000, ms(50)));
        let mut memory = Ok(());
        sim.run_until(secs(60), "all bytes", |sim| {
            memory = memory.clone().and_then(|()| check_memory(sim));
            memory.is_err() || sim.is_complete()
        })?;
        memory
    });
}

#[test]
fn a_paused_reader_blocks_the_writer_until_it_resumes() {
    sweep(&seeds(10), |seed| {
        let mut setup = setup(seed, lossy(0.05));
        setup.transport = small_windows();
        let plan = Plan {
            streams: [vec![Outgoing::one_way(1_000_000)], Vec::new()],
            ..Plan::default()
        };
        let mut sim = Simulation::new(setup, plan);
        // Ten bytes at the first sign of data, the next ten 20 seconds later.
        sim.party_mut(Side::Server)
            .set_reading(Reading::Slowly(10, secs(20)));
        sim.run_for(secs(15))?;
        let written = sim.party(Side::Client).written;
        if !(16 << 10..=RECEIVE + SEND).contains(&written) {
            return Err(sim
                .pair
                .failure(format!("{written} bytes written against no reader")));
        }
        let before = sim.pair.stats(Side::Client).datagrams_sent;
        sim.run_for(secs(4))?;
        let sent = sim.pair.stats(Side::Client).datagrams_sent - before;
        if sent > 10 {
            return Err(sim
                .pair
                .failure(format!("{sent} datagrams against a closed window")));
        }
        sim.party_mut(Side::Server)
            .set_reading(Reading::Slowly(100_000, ms(10)));
        sim.run_until(secs(90), "all bytes", Simulation::is_complete)
    });
}

// test: RFC 9000 §4.6
#[test]
fn streams_beyond_the_limit_wait_for_their_turn() {
    sweep(&seeds(10), |seed| {
        let mut setup = setup(seed, lossy(0.1));
        for transport in &mut setup.transport {
            transport.max_concurrent_bidi_streams = 2;
            transport.max_concurrent_uni_streams = 3;
        }
        let stream = |n: usize| {
            if n.is_multiple_of(2) {
                Outgoing::both_ways(100 * n, 50 * n)
            } else {
                Outgoing::one_way(100 * n)
            }
        };
        let plan = Plan {
            streams: [
                (0..200).map(stream).collect(),
                (0..100).map(stream).collect(),
            ],
            ..Plan::default()
        };
        let mut sim = Simulation::new(setup, plan);
        let mut most = 0;
        sim.run_until(secs(200), "300 streams", |sim| {
            most = most.max(sim.pair.stats(Side::Server).open_streams);
            sim.is_complete()
        })?;
        // Two kinds from two sides, and as many whose end is in flight.
        if most > 2 * 2 * (2 + 3) {
            return Err(sim.pair.failure(format!("{most} streams at once")));
        }
        Ok(())
    });
}

#[test]
fn windows_grow_with_the_path() {
    // 100 MB/s and 100 ms: the initial windows would allow 10 MB/s.
    let mut setup = setup(
        1,
        Faults {
            delay: ms(50),
            rate: Some(100_000_000),
            queue: 2_000_000,
            ..Faults::default()
        },
    );
    for transport in &mut setup.transport {
        transport.initial_stream_window = 128 << 10;
        transport.initial_window = 128 << 10;
    }
    let mut sim = Simulation::new(setup, Plan::one_stream(2_000_000));
    sim.run_until(secs(3), "2 MB each way", Simulation::is_complete)
        .unwrap();
    let time = sim.pair.now() - squall_sim::Pair::start();
    // At 128 kB per round trip it would take 1.6 s.
    assert!(time < ms(1300), "{time:?}");
}

// test: RFC 9000 §3.5, §4.5 — what is given up on both sides goes back to the connection's credit,
// or 9 MB would not fit through a window of 128 kB.
#[test]
fn cancelled_streams_return_their_credit() {
    sweep(&seeds(10), |seed| {
        let mut setup = setup(seed, lossy(0.03));
        setup.transport = small_windows();
        let stream = |n: usize| Outgoing {
            cut: match n % 5 {
                0 | 1 => Cut::Reset(n * 97 % 30_000),
                2 | 3 => Cut::Stop(n * 89 % 30_000),
                _ => Cut::Never,
            },
            ..Outgoing::one_way(30_000)
        };
        let plan = Plan {
            streams: [
                (0..150).map(stream).collect(),
                (0..150).map(stream).collect(),
            ],
            ..Plan::default()
        };
        let mut sim = Simulation::new(setup, plan);
        sim.run_until(secs(300), "300 streams", Simulation::is_complete)?;
        sim.run_for(secs(5))?;
        let open = [Side::Client, Side::Server].map(|side| sim.pair.stats(side).open_streams);
        if open != [0, 0] {
            return Err(sim.pair.failure(format!("{open:?} streams are left")));
        }
        Ok(())
    });
}
