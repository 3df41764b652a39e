//! What a trial has besides the usual faults of its network. It is drawn with a generator of its
//! own, so that a seed keeps its settings, streams and network.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use squall_core::{ConnectionIdGenerator, Move, QuicLb, TransportConfig};
use squall_wire::{Direction, Side};

use crate::certificate::Demands;
use crate::happening::{Happening, Wish};
use crate::network::{EcnFault, Elsewhere, Faults};
use crate::party::{Reading, Writing};
use crate::plan::Cut;
use crate::rng::Rng;
use crate::trial::{Fault, Handshake, Trial};

/// The server's second address.
const PREFERRED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 7, 0, 2), 4433);

impl Trial {
    /// The trial of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut trial = Self::unvaried(seed);
        if !trial.faults.contains(&Fault::MuchData) {
            vary(&mut trial);
            draw_ends(&mut trial);
            draw_owners(&mut trial);
        }
        trial
    }
}

/// Draws all variations of a trial.
fn vary(trial: &mut Trial) {
    let mut rng = Rng::new(trial.seed ^ 0x0076_6172_6961);
    let rng = &mut rng;
    draw_network(trial, rng);
    if rng.chance(0.15) {
        trial.faults.push(Fault::SlowReader);
        let slow = Reading::Slowly(
            2_000 + rng.below(30_000) as usize,
            ms(1) + rng.duration(ms(60)),
        );
        trial.reading[rng.below(2) as usize] = slow;
    }
    if rng.chance(0.1) {
        trial.faults.push(Fault::UnorderedReader);
        let most = [1, 1_000, usize::MAX][rng.below(3) as usize];
        trial.reading[rng.below(2) as usize] = Reading::Unordered(most);
    }
    if rng.chance(0.2) {
        trial.faults.push(Fault::Priorities);
        trial.plan.priorities = true;
    }
    if rng.chance(0.1) {
        trial.faults.push(Fault::PartialReset);
        for stream in trial.plan.streams.iter_mut().flatten() {
            if rng.chance(0.3) {
                let after = rng.below(stream.size as u64 + 1);
                let reliable = rng.below(after + 1);
                stream.cut = Cut::ResetAt(after as usize, reliable as usize);
            }
        }
    }
    if rng.chance(0.25) {
        trial.faults.push(Fault::Datagrams);
        trial.plan.datagrams = [rng.below(200), rng.below(200)];
    }
    if trial.handshake != Handshake::Full && rng.chance(0.2) {
        trial.faults.push(Fault::LostTickets);
    }
    if trial.ends_in_silence() {
        return;
    }
    if rng.chance(0.15) {
        trial.faults.push(Fault::Migration);
        let mut at = rng.duration(ms(300));
        for _ in 0..=rng.below(4) {
            let how = match rng.chance(0.5) {
                true => Move::WhenValidated,
                false => Move::AtOnce,
            };
            trial.later.push((at, Happening::Migration(how)));
            at += rng.duration(ms(600));
        }
    }
    // Not with migrations: if the system chooses another address, too, a client cannot know where
    // its packets come from, and the guard would find ids in two places (RFC 9000 §9.5).
    if rng.chance(0.1) && !trial.faults.contains(&Fault::Migration) {
        trial.faults.push(Fault::NewAddress);
        // It may be listening only, and must then show the server where it is.
        let client = &mut trial.setup.transport[Side::Client as usize];
        client.keep_alive = Some(Duration::from_secs(1));
        let mut at = rng.duration(ms(300));
        for _ in 0..=rng.below(3) {
            let happening = match rng.chance(0.5) {
                true => Happening::NewSocket,
                false => Happening::OtherAddress,
            };
            trial.later.push((at, happening));
            at += rng.duration(ms(600));
        }
    }
    if rng.chance(0.2) {
        trial.faults.push(Fault::Wishes);
        for _ in 0..=rng.below(30) {
            let side = [Side::Client, Side::Server][rng.below(2) as usize];
            let direction = [Direction::Bidirectional, Direction::Unidirectional];
            let wish = match rng.below(7) {
                0 => Wish::RotateIds,
                1 => Wish::UpdateKeys,
                2 => Wish::Ping,
                3 => Wish::ReceiveWindow(4_096 << rng.below(10)),
                4 => Wish::SendWindow(4_096 << rng.below(10)),
                5 => Wish::MaxStreams(direction[rng.below(2) as usize], 1 + rng.below(50)),
                _ => Wish::AddressesChanged,
            };
            let at = rng.duration(ms(1_000));
            let when = match rng.chance(0.5) {
                true => &mut trial.happenings,
                false => &mut trial.later,
            };
            when.push((at, Happening::Wish(side, wish)));
        }
    }
    if rng.chance(0.1) {
        trial.faults.push(Fault::PreferredAddress);
        let server = &mut trial.setup.transport[Side::Server as usize];
        server.preferred_ipv4 = Some(PREFERRED);
        // Sometimes nothing is there.
        trial.second_address = rng.chance(0.8).then_some(SocketAddr::V4(PREFERRED));
    }
    if rng.chance(0.15) {
        trial.faults.push(Fault::Suspension);
        let side = [Side::Client, Side::Server][rng.below(2) as usize];
        let most = ms(10 << rng.below(10));
        let time = ms(1) + rng.duration(most);
        let suspension = Happening::Suspension(side, time);
        let at = rng.duration(ms(300));
        let when = match rng.chance(0.5) {
            true => &mut trial.happenings,
            false => &mut trial.later,
        };
        when.push((at, suspension));
    }
    if rng.chance(0.04) {
        trial.faults.push(Fault::EarlyClose);
        let side = [Side::Client, Side::Server][rng.below(2) as usize];
        let most = ms(50 << rng.below(5));
        trial.early_close = Some((side, rng.duration(most)));
    }
}

/// Draws what both ends are like, how they shake hands, and whether one of them is restarted.
fn draw_ends(trial: &mut Trial) {
    let mut rng = Rng::new(trial.seed ^ 0x656e_6473);
    let rng = &mut rng;
    if rng.chance(0.2) {
        trial.faults.push(Fault::Demands);
        let demands = Demands {
            names: [0, 80, 300][rng.below(3) as usize],
            identity: rng.chance(0.5),
            other_group: rng.chance(0.5),
        };
        trial.setup.tls = demands.tls();
    }
    if rng.chance(0.2) {
        trial.faults.push(Fault::Ids);
        trial.setup.ids = [(); 2].map(|()| match rng.below(4) {
            0 => ConnectionIdGenerator::Plain { len: 4 },
            1 => ConnectionIdGenerator::Plain { len: 20 },
            2 => ConnectionIdGenerator::QuicLb(QuicLb::new(1, [7, 1], 9).key([3; 16])),
            _ => ConnectionIdGenerator::default(),
        });
    }
    if rng.chance(0.3) {
        trial.faults.push(Fault::Elsewhere);
        let elsewhere = [(); 2].map(|()| Elsewhere {
            delay: ms(1) + rng.duration(ms(150)),
            max_payload: [1200, 1280, 1452, 9000][rng.below(4) as usize],
        });
        for_all(trial, |from, faults| {
            faults.elsewhere = Some(elsewhere[from as usize]);
        });
    }
    if trial.faults.contains(&Fault::Datagrams) && rng.chance(0.3) {
        trial.faults.push(Fault::NewestDatagrams);
        trial.plan.newest_datagrams = true;
        for transport in &mut trial.setup.transport {
            transport.datagram_send_buffer = 2_000 << rng.below(6);
        }
    }
    if !trial.ends_in_silence() && trial.early_close.is_none() && rng.chance(0.03) {
        trial.faults.push(Fault::Restart);
        let side = [Side::Client, Side::Server][rng.below(2) as usize];
        let most = ms(50 << rng.below(5));
        trial.restart = Some((side, rng.duration(most)));
    }
}

/// Draws seldom used settings, and how applications write and timers expire.
fn draw_owners(trial: &mut Trial) {
    let mut rng = Rng::new(trial.seed ^ 0x6f77_6e65_7273);
    let rng = &mut rng;
    if rng.chance(0.4) {
        trial.faults.push(Fault::Settings);
        for transport in &mut trial.setup.transport {
            for _ in 0..rng.below(5) {
                draw_setting(transport, rng);
            }
        }
    }
    if rng.chance(0.3) {
        trial.faults.push(Fault::SlowWriter);
        let sides = 1 + rng.below(3);
        for side in 0..2 {
            if sides & (1 << side) != 0 {
                let bytes = 500 << rng.below(8) as usize;
                let most = ms(1 << rng.below(10));
                trial.writing[side] = Writing::Slowly(bytes, ms(1) + rng.duration(most));
            }
        }
    }
    if rng.chance(0.2) {
        trial.faults.push(Fault::LateTimers);
        trial.setup.timer_resolution = [(); 2].map(|()| ms([1, 4, 16, 100][rng.below(4) as usize]));
    }
    if rng.chance(0.2) {
        trial.faults.push(Fault::ShortTurns);
        trial.setup.bundles_a_turn = [(); 2].map(|()| 1 + rng.below(3) as usize);
    }
    if trial.handshake != Handshake::Full && rng.chance(0.5) {
        let token = [Fault::Token, Fault::Token, Fault::StrangeToken][rng.below(3) as usize];
        trial.faults.push(token);
    }
}

/// Draws one setting.
fn draw_setting(transport: &mut TransportConfig, rng: &mut Rng) {
    let mut below = |bound| rng.below(bound);
    match below(18) {
        0 => transport.initial_rtt = ms(1 << below(11)),
        1 => transport.packet_threshold = 3 + below(60) as u32,
        2 => transport.time_threshold = 1.0 + (1 + below(28)) as f32 / 4.0,
        3 => transport.persistent_congestion_threshold = 1 + below(4) as u32,
        4 => transport.spin_bit = !transport.spin_bit,
        5 => transport.ecn = !transport.ecn,
        6 => transport.mtu_discovery = false,
        7 => transport.mtu_discovery_interval = ms(10_000 + below(50_000)),
        8 => transport.initial_udp_payload = [1_300, 1_452, 9_000][below(3) as usize],
        9 => transport.max_packets_in_flight = 256 << below(3),
        10 => transport.new_tokens = below(9) as u8,
        11 => transport.keep_alive = Some(ms(1_000 << below(6))),
        12 => transport.keep_alive_with_streams = true,
        13 => transport.initial_stream_window = 500 << below(6),
        14 => transport.stream_receive_window = 500 << below(12),
        15 => transport.receive_window = 1_000 << below(12),
        16 => transport.max_ack_delay = ms(1 << below(11)),
        _ => transport.stream_send_window = 500 << below(7),
    }
    // Windows do not shrink.
    let (stream, all) = (transport.stream_receive_window, transport.receive_window);
    transport.initial_stream_window = transport.initial_stream_window.min(stream);
    transport.initial_window = transport.initial_window.min(all);
}

/// Changes what the network does, whatever else happens to it.
fn draw_network(trial: &mut Trial, rng: &mut Rng) {
    if rng.chance(0.2) {
        trial.faults.push(Fault::Asymmetry);
        let delay = ms(1) + rng.duration(ms(80));
        let loses = rng.chance(0.5);
        let rate = rng.chance(0.3).then(|| 150_000 << rng.below(5));
        for_all(trial, |from, faults| {
            if from == Side::Client {
                return;
            }
            faults.delay = delay;
            if !loses && faults.loss < 1.0 {
                faults.loss = 0.0;
            }
            if let Some(rate) = rate {
                faults.rate = Some(rate);
                faults.queue = faults.queue.min(60_000);
            }
        });
    }
    if rng.chance(0.15) {
        trial.faults.push(Fault::EcnDamage);
        let all = [
            EcnFault::Erased,
            EcnFault::Changed,
            EcnFault::AllCongested,
            EcnFault::Dropped,
        ];
        let ecn = [(); 2].map(|()| all[rng.below(4) as usize]);
        let sides = 1 + rng.below(3);
        for_all(trial, |from, faults| {
            if sides & (1 << from as u64) != 0 {
                faults.ecn = ecn[from as usize];
            }
        });
    }
}

/// Calls `change` with the faults of both sides' datagrams, at the beginning and later.
fn for_all(trial: &mut Trial, mut change: impl FnMut(Side, &mut Faults)) {
    for side in [Side::Client, Side::Server] {
        change(side, &mut trial.setup.faults[side as usize]);
    }
    for (_, happening) in trial.happenings.iter_mut().chain(&mut trial.later) {
        if let Happening::Faults(side, faults) = happening {
            change(*side, faults);
        }
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
