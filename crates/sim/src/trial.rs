//! A run as drawn by its seed: settings, faults, what both sides send, and how it has to end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::server::ServerSessionMemoryCache;
use squall_core::{
    AckFrequencyConfig, AckFrequencyRequest, CongestionAlgorithm, EndpointConfig, MemoryTokenStore,
    TransportConfig,
};
use squall_wire::{Side, VERSION_1, VERSION_2};

use crate::failure::Failure;
use crate::happening::Happening;
use crate::intruder::Intrusion;
use crate::network::Faults;
use crate::pair::Setup;
use crate::party::{Reading, Writing};
use crate::plan::{Outgoing, Plan};
use crate::rng::Rng;
use crate::simulation::Simulation;

/// Bytes that each side sends: normally, and in a trial with much data.
const BYTES: usize = 100_000;
const MUCH: usize = 20_000_000;
/// One seed in this many moves much data over a long, fat network.
const MUCH_EVERY: u64 = 160;
/// One seed in this many ends in silence.
const SILENCE_EVERY: u64 = 97;

/// A named fault; a trial has any number of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// 10 to 30 % of the datagrams of each direction are lost.
    HeavyLoss,
    /// Fewer are lost.
    Loss,
    /// Up to 10 % arrive twice.
    Duplication,
    /// Up to 10 % arrive with a flipped bit.
    Corruption,
    /// Datagrams overtake each other.
    Reordering,
    /// The client's address changes, once or more often, without its knowledge.
    Rebinding,
    /// Nothing gets through for a while.
    Blackhole,
    /// The largest datagram that gets through becomes smaller or larger.
    MtuChange,
    /// A queue marks datagrams instead of growing.
    EcnMarks,
    /// Datagrams that neither end sent: replays, damaged copies, noise.
    Intrusion,
    /// 20 MB each way over 1 Gbit/s and 100 ms, some packets held back by thousands of others.
    MuchData,
    /// From some point on, nothing ever gets through: both ends have to notice.
    Silence,
    /// The network treats the server's datagrams otherwise than the client's.
    Asymmetry,
    /// ECN marks are erased, changed, set on everything, or get datagrams dropped.
    EcnDamage,
    /// The client moves to another of its addresses, once or more often.
    Migration,
    /// The server prefers another of its addresses.
    PreferredAddress,
    /// The client's address is replaced, and it notices at once or later.
    NewAddress,
    /// One end's process is suspended for a while.
    Suspension,
    /// Applications ask for other ids, keys and limits.
    Wishes,
    /// Applications read whatever arrives first.
    UnorderedReader,
    /// Streams have priorities.
    Priorities,
    /// Streams are reset except for their first bytes.
    PartialReset,
    /// An application reads slowly.
    SlowReader,
    /// Both ends send unreliable datagrams, too.
    Datagrams,
    /// The server has lost its tickets since the earlier connection.
    LostTickets,
    /// The client has a token of the earlier connection.
    Token,
    /// The client has a token of a server that had other keys.
    StrangeToken,
    /// One end closes the connection before all is done.
    EarlyClose,
    /// The handshake has a large certificate, one of the client, or a HelloRetryRequest.
    Demands,
    /// Connection ids have other lengths than usual.
    Ids,
    /// Paths between other addresses have another delay and MTU.
    Elsewhere,
    /// New datagrams take the place of old ones.
    NewestDatagrams,
    /// One end loses its state, like a restarted process.
    Restart,
    /// Settings have values that are seldom used.
    Settings,
    /// An application writes and opens streams now and then, a little at a time.
    SlowWriter,
    /// Timers expire late, as those of a runtime with a coarse clock.
    LateTimers,
    /// Connections send a few bundles at a time.
    ShortTurns,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 37] = [
        Self::HeavyLoss,
        Self::Loss,
        Self::Duplication,
        Self::Corruption,
        Self::Reordering,
        Self::Rebinding,
        Self::Blackhole,
        Self::MtuChange,
        Self::EcnMarks,
        Self::Intrusion,
        Self::MuchData,
        Self::Silence,
        Self::Asymmetry,
        Self::EcnDamage,
        Self::Migration,
        Self::PreferredAddress,
        Self::NewAddress,
        Self::Suspension,
        Self::Wishes,
        Self::UnorderedReader,
        Self::Priorities,
        Self::PartialReset,
        Self::SlowReader,
        Self::Datagrams,
        Self::LostTickets,
        Self::Token,
        Self::StrangeToken,
        Self::EarlyClose,
        Self::Demands,
        Self::Ids,
        Self::Elsewhere,
        Self::NewestDatagrams,
        Self::Restart,
        Self::Settings,
        Self::SlowWriter,
        Self::LateTimers,
        Self::ShortTurns,
    ];

    /// Its name in the list of counts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HeavyLoss => "loss of 10 to 30 %",
            Self::Loss => "loss below 10 %",
            Self::Duplication => "duplication",
            Self::Corruption => "corruption",
            Self::Reordering => "reordering",
            Self::Rebinding => "rebinding",
            Self::Blackhole => "blackhole",
            Self::MtuChange => "MTU change",
            Self::EcnMarks => "ECN marks",
            Self::Intrusion => "intrusion",
            Self::MuchData => "20 MB each way, reordering by thousands",
            Self::Silence => "silence for ever",
            Self::Asymmetry => "asymmetry",
            Self::EcnDamage => "damaged ECN marks",
            Self::Migration => "migration",
            Self::PreferredAddress => "preferred address",
            Self::NewAddress => "new address",
            Self::Suspension => "suspension",
            Self::Wishes => "wishes of applications",
            Self::UnorderedReader => "unordered reader",
            Self::Priorities => "priorities",
            Self::PartialReset => "partial resets",
            Self::SlowReader => "slow reader",
            Self::Datagrams => "unreliable datagrams",
            Self::LostTickets => "lost tickets",
            Self::Token => "a token",
            Self::StrangeToken => "a token of another server",
            Self::EarlyClose => "early close",
            Self::Demands => "demanding handshake",
            Self::Ids => "ids of other lengths",
            Self::Elsewhere => "paths that differ",
            Self::NewestDatagrams => "newest datagrams",
            Self::Restart => "restart",
            Self::Settings => "uncommon settings",
            Self::SlowWriter => "slow writer",
            Self::LateTimers => "late timers",
            Self::ShortTurns => "short turns",
        }
    }
}

/// The kind of handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// With a certificate.
    Full,
    /// With a ticket of an earlier connection.
    Resumed,
    /// With a ticket, and data in the first flight.
    Early,
}

/// A run that has not started.
pub struct Trial {
    /// Its number.
    pub seed: u64,
    /// Settings and the network at its beginning.
    pub setup: Setup,
    /// What both sides send.
    pub plan: Plan,
    /// What happens to the network, with the time after the start.
    pub happenings: Vec<(Duration, Happening)>,
    /// What happens to it once both ends have completed the handshake, with the time after that.
    /// RFC 9000 §9: an address does not change earlier.
    pub later: Vec<(Duration, Happening)>,
    /// The faults that it has.
    pub faults: Vec<Fault>,
    /// Its handshake.
    pub handshake: Handshake,
    /// How both applications read, by [`Side`].
    pub reading: [Reading; 2],
    /// How both applications write, by [`Side`].
    pub writing: [Writing; 2],
    /// Another address of the server.
    pub second_address: Option<SocketAddr>,
    /// The end that closes the connection early, and the time after the start.
    pub early_close: Option<(Side, Duration)>,
    /// The end that loses its state, and the time after the start.
    pub restart: Option<(Side, Duration)>,
    /// Virtual time within which the handshake must be complete; also the idle timeout.
    pub patience: Duration,
    /// Virtual time after the handshake within which everything must be over.
    pub transfer: Duration,
    /// Longest acceptable virtual time without a byte for an application.
    pub silence: Duration,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Trial {
    /// The trial of a seed, before it is varied.
    pub(crate) fn unvaried(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0074_7269_616c);
        if seed % MUCH_EVERY == 7 {
            return Self::of_much_data(seed, &mut rng);
        }
        let mut setup = Setup::new(seed);
        let mut faults = Vec::new();
        let drawn = |rng: &mut Rng, faults: &mut Vec<Fault>, fault: Fault, chance: f64| {
            let has = rng.chance(chance);
            faults.extend(has.then_some(fault));
            has
        };
        let share = |rng: &mut Rng, most: f64| most * (1 + rng.below(100)) as f64 / 100.0;
        let mut network = Faults {
            delay: ms(5) + rng.duration(ms(45)),
            max_payload: [1200, 1280, 1452, 1472, 9000][rng.below(5) as usize],
            ..Faults::default()
        };
        if drawn(&mut rng, &mut faults, Fault::HeavyLoss, 0.28) {
            network.loss = 0.1 + share(&mut rng, 0.2);
        } else if drawn(&mut rng, &mut faults, Fault::Loss, 0.4) {
            network.loss = share(&mut rng, 0.1);
        }
        if drawn(&mut rng, &mut faults, Fault::Duplication, 0.25) {
            network.duplication = share(&mut rng, 0.1);
        }
        if drawn(&mut rng, &mut faults, Fault::Corruption, 0.25) {
            network.corruption = share(&mut rng, 0.1);
            network.truncation = share(&mut rng, 0.01);
        }
        if drawn(&mut rng, &mut faults, Fault::Reordering, 0.4) {
            network.jitter = ms(1) + rng.duration(ms(30));
            network.reordering = share(&mut rng, 0.5);
        }
        if drawn(&mut rng, &mut faults, Fault::EcnMarks, 0.3) {
            // Slow enough for a queue to build up, long enough for marks to come before drops.
            network.rate = Some(400_000 << rng.below(3));
            network.queue = 60_000;
            network.mark_above = 6_000 + rng.below(12_000);
        } else if rng.chance(0.2) {
            network.rate = Some(1_000_000 << rng.below(5));
            network.queue = 100_000;
        }
        if drawn(&mut rng, &mut faults, Fault::Intrusion, 0.15) {
            setup.intrusion = Intrusion {
                replay: 0.05,
                damage: 0.05,
                noise: 0.05,
                elsewhere: 0.02,
            };
        }
        // Probe timeouts back off far in a run of bad luck, or after a blackhole: with this many in
        // a row, at least one gets through in every one of a million seeds.
        let patience = Duration::from_secs(if network.loss > 0.15 { 4000 } else { 1000 });
        setup.faults = [network.clone(), network.clone()];
        setup.max_segments = [1, 10, 64][rng.below(3) as usize];
        for transport in &mut setup.transport {
            *transport = transport_of(&mut rng, patience);
        }
        draw_sizes(seed, &mut setup.transport);
        if rng.chance(0.2) {
            setup.tune = always_retry;
        }
        let cuts = if rng.chance(0.25) { 0.3 } else { 0.0 };
        let mut trial = Self {
            seed,
            plan: Plan::from_seed(&mut rng, BYTES, cuts),
            setup,
            happenings: Vec::new(),
            later: Vec::new(),
            faults,
            handshake: match rng.below(8) {
                0..4 => Handshake::Full,
                4..7 => Handshake::Resumed,
                _ => Handshake::Early,
            },
            reading: [Reading::AtOnce(usize::MAX); 2],
            writing: [Writing::AtOnce; 2],
            second_address: None,
            early_close: None,
            restart: None,
            patience,
            transfer: 2 * patience,
            silence: patience * 4 / 5,
        };
        trial.draw_happenings(&mut rng, &network);
        trial
    }

    fn draw_happenings(&mut self, rng: &mut Rng, network: &Faults) {
        // Most transfers are over in a second, so changes must happen early to have an effect.
        let soon = |rng: &mut Rng| rng.duration(2 * network.delay + ms(100));
        let both = |faults: &Faults, at: Duration| {
            [Side::Client, Side::Server].map(|side| (at, Happening::Faults(side, faults.clone())))
        };
        if rng.chance(0.2) {
            self.faults.push(Fault::Rebinding);
            // A server cannot find a client that only listens: an end behind such a NAT must send
            // something now and then.
            let client = &mut self.setup.transport[Side::Client as usize];
            client.keep_alive = Some(Duration::from_secs(1));
            let mut at = soon(rng);
            for port in 0..=rng.below(4) {
                let address = ([10, 0, rng.below(2) as u8, 1], 50_001 + port as u16).into();
                self.later.push((at, Happening::Rebinding(address)));
                at += rng.duration(ms(400));
            }
        }
        let mut now = network.clone();
        if rng.chance(0.2) {
            self.faults.push(Fault::MtuChange);
            let at = soon(rng);
            now.max_payload = [1200, 1300, 1472, 9000, 65_000][rng.below(5) as usize];
            if now.max_payload == network.max_payload {
                now.max_payload = 1400;
            }
            self.later.extend(both(&now, at));
        }
        if rng.chance(0.2) {
            self.faults.push(Fault::Blackhole);
            // Shorter than half the idle timeout.
            let time = ms(100) + rng.duration(Duration::from_secs(10));
            let one_way = rng.below(3) as usize;
            let dark = |faults: &Faults, at| {
                let nothing = Faults {
                    loss: 1.0,
                    ..faults.clone()
                };
                let sides = both(&nothing, at).into_iter().enumerate();
                let sides = sides.filter(move |(i, _)| one_way != *i);
                sides
                    .map(|(_, happening)| happening)
                    .chain(both(faults, at + time))
            };
            let at = soon(rng);
            if rng.chance(0.2) {
                self.happenings.extend(dark(network, at));
            } else {
                self.later.extend(dark(&now, at + ms(100)));
            }
        }
        if self.seed % SILENCE_EVERY == 5 {
            self.faults.push(Fault::Silence);
            let at = rng.duration(ms(400));
            self.happenings.clear();
            self.later.clear();
            let nothing = Faults { loss: 1.0, ..now };
            self.happenings.extend(both(&nothing, at));
        }
    }

    fn of_much_data(seed: u64, rng: &mut Rng) -> Self {
        let mut setup = Setup::new(seed);
        let network = Faults {
            delay: ms(50),
            // At 83,000 datagrams a second, 60 ms let 5,000 pass.
            jitter: ms(60),
            reordering: 0.000_1 * (1 + rng.below(20)) as f64,
            rate: Some(125_000_000),
            queue: 12_500_000,
            max_payload: 1500,
            ..Faults::default()
        };
        setup.faults = [network.clone(), network];
        let patience = Duration::from_secs(30);
        for transport in &mut setup.transport {
            *transport = TransportConfig::default()
                .initial_window(32 << 20)
                .initial_stream_window(32 << 20)
                .receive_window(32 << 20)
                .stream_receive_window(32 << 20)
                .stream_send_window(32 << 20)
                .send_window(32 << 20)
                .max_idle_timeout(patience)
                .handshake_timeout(patience)
                .congestion(congestion(rng));
        }
        let streams = 1 + rng.below(20) as usize;
        let one = vec![Outgoing::both_ways(MUCH / streams, MUCH / streams); streams];
        Self {
            seed,
            setup,
            plan: Plan {
                streams: [one, Vec::new()],
                ..Plan::default()
            },
            happenings: Vec::new(),
            later: Vec::new(),
            faults: vec![Fault::Reordering, Fault::MuchData],
            handshake: Handshake::Full,
            reading: [Reading::AtOnce(usize::MAX); 2],
            writing: [Writing::AtOnce; 2],
            second_address: None,
            early_close: None,
            restart: None,
            patience,
            transfer: Duration::from_secs(100),
            silence: Duration::from_secs(8),
        }
    }

    /// Whether the connection must end with its work unfinished.
    #[must_use]
    pub fn ends_in_silence(&self) -> bool {
        self.faults.contains(&Fault::Silence)
    }

    /// What was drawn, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let Setup {
            faults,
            transport,
            max_segments,
            intrusion,
            ..
        } = &self.setup;
        format!(
            "{:?}, {:?}\n{:#?}\n{:#?}\nsegments {max_segments}, {intrusion:?}\nstreams {:?}, {:?}, datagrams {:?}\n{:?}, {:?}, {:?}\n{:#?}",
            self.faults,
            self.handshake,
            faults,
            transport,
            self.plan.streams.each_ref().map(Vec::len),
            self.plan.chunk,
            self.plan.datagrams,
            self.reading,
            self.writing,
            (self.early_close, self.restart),
            (&self.happenings, &self.later),
        )
    }

    /// The simulation, ready to run. A trial with resumption makes the earlier connection first, on
    /// a good network.
    ///
    /// # Errors
    /// Anything that goes wrong with the earlier connection.
    pub fn begin(mut self) -> Result<Simulation, Failure> {
        if self.handshake != Handshake::Full {
            let (client, server) = self.setup.tls.clone();
            let (mut client, mut server) = ((*client).clone(), (*server).clone());
            client.resumption = Resumption::in_memory_sessions(8);
            server.session_storage = ServerSessionMemoryCache::new(8);
            if self.handshake == Handshake::Early {
                client.enable_early_data = true;
                server.max_early_data_size = u32::MAX;
            }
            let mut configs = (Arc::new(client), Arc::new(server));
            // The keys of a server's tokens come from the seed.
            let is_strange = self.faults.contains(&Fault::StrangeToken);
            let mut first = Setup::new(self.seed ^ u64::from(is_strange));
            first.tls = configs.clone();
            if is_strange || self.faults.contains(&Fault::Token) {
                let store = Arc::new(MemoryTokenStore::default());
                first.token_store = Some(store.clone());
                self.setup.token_store = Some(store);
            }
            let mut sim = Simulation::new(first, Plan::one_stream(10));
            sim.run_until(Duration::from_secs(5), "a ticket", Simulation::is_complete)?;
            if self.faults.contains(&Fault::LostTickets) {
                let mut server = (*configs.1).clone();
                server.session_storage = ServerSessionMemoryCache::new(8);
                configs.1 = Arc::new(server);
            }
            self.setup.tls = configs;
        }
        let mut sim = Simulation::new(self.setup, self.plan);
        if let Some(address) = self.second_address {
            sim.pair.network().add_address(Side::Server, address);
        }
        for (side, party) in sim.parties.iter_mut().enumerate() {
            party.set_reading(self.reading[side]);
            party.set_writing(self.writing[side]);
        }
        sim.schedule(self.happenings);
        Ok(sim)
    }
}

fn always_retry(side: Side, config: &mut EndpointConfig) {
    if side == Side::Server {
        config.retry_from = 0;
        // A client that was silent for a while is still accepted.
        config.retry_token_lifetime = Duration::from_secs(3600);
    }
}

fn congestion(rng: &mut Rng) -> CongestionAlgorithm {
    let all = CongestionAlgorithm::ALL;
    all[rng.below(all.len() as u64) as usize]
}

/// Draws whether ends pad their datagrams, and how large the datagrams that they receive may be.
/// Uses its own generator, so that the rest of a seed's trial stays the same.
fn draw_sizes(seed: u64, transports: &mut [TransportConfig; 2]) {
    let mut rng = Rng::new(seed ^ 0x0073_697a_6573);
    for transport in transports {
        transport.pad_to_mtu = rng.chance(0.15);
        let most = [1200, 1350, 65_527, 65_527, 65_527];
        transport.max_received_udp_payload = most[rng.below(5) as usize];
    }
}

fn transport_of(rng: &mut Rng, patience: Duration) -> TransportConfig {
    let pick = |rng: &mut Rng, values: &[u64]| values[rng.below(values.len() as u64) as usize];
    let window = pick(rng, &[16 << 10, 64 << 10, 1 << 20]);
    let versions = [
        vec![VERSION_1, VERSION_2],
        vec![VERSION_2, VERSION_1],
        vec![VERSION_1],
    ];
    TransportConfig::default()
        .handshake_timeout(patience)
        .max_idle_timeout(patience)
        .initial_window(window)
        .initial_stream_window(window / 4)
        .stream_send_window(pick(rng, &[8 << 10, 32 << 10, 4 << 20]))
        .send_window(pick(rng, &[16 << 10, 64 << 10, 16 << 20]))
        .max_concurrent_bidi_streams(pick(rng, &[1, 7, 100]))
        .max_concurrent_uni_streams(pick(rng, &[1, 7, 100]))
        .max_udp_payload(pick(rng, &[1200, 1472, 9000]) as u16)
        .congestion(congestion(rng))
        .pacing(rng.chance(0.75))
        .key_update_after(pick(rng, &[20, 300, 7 << 20]))
        .max_ack_delay(ms(pick(rng, &[1, 25, 25])))
        .versions(versions[rng.below(3) as usize].clone())
        .ack_frequency(if rng.chance(0.2) {
            AckFrequencyRequest::Fixed(AckFrequencyConfig {
                ack_eliciting_threshold: rng.below(20),
                max_ack_delay: ms(1 + rng.below(50)),
                reordering_threshold: rng.below(4),
            })
        } else {
            AckFrequencyRequest::Adaptive
        })
}
