//! `squall bench core`: what the transport costs without sockets.
//!
//! ```text
//!   turn:  write, transmit up to 4 bundles      the sender's time
//!          route, receive, read, transmit ACKs  the receiver's
//!          route, receive the ACKs              the sender's
//! ```
//! One endpoint's transmit buffers go straight into the other's `receive`. A copy of one packet's bytes from memory that
//! no cache holds is measured in turns with it, and an empty loop with as many looks at the clock is taken off.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use squall_core::{
    ClientConfig, Connection, ConnectionHandle, Endpoint, EndpointConfig, Route, ServerConfig,
    Stage, Stages, Time, TransportConfig,
};
use squall_wire::{DatagramBatch, Direction, Ecn, Path, StreamId};
use squall_yard::certificate::{Certificate, NAME};
use squall_yard::error::{Failure, Result, context};
use squall_yard::stats::Spread;
use squall_yard::sys;

use super::args::Core;
use super::{ModeReport, Setup};
use crate::output::{print_json, say};

/// Bytes of stream data in a full packet.
const PAYLOAD: usize = 1450;
/// UDP payload of such a packet: short header with an id of 8 bytes and a number of 2 to 4, a frame header of up to 12,
/// the tag.
const UDP_PAYLOAD: u16 = 1490;
/// Bundles that a worker takes in one turn.
const BUNDLES: usize = 4;
/// Bytes of a bundle's buffer.
const BUNDLE: usize = 65_507;
/// Bytes that the application sends from, again and again: more than any cache holds.
const SOURCE: usize = 256 << 20;
/// Bytes of one write.
const PIECE: usize = 256 << 10;

/// One end of the connection.
struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    address: SocketAddr,
    stages: Stages,
}

impl End {
    fn new(endpoint: Endpoint, host: u8) -> Self {
        Self {
            endpoint,
            connection: None,
            address: SocketAddr::from(([192, 0, 2, host], 443)),
            stages: Stages::off(),
        }
    }

    fn connection(&mut self) -> Result<&mut Connection> {
        match &mut self.connection {
            Some((_, connection)) => Ok(connection),
            None => Err(Failure::new("there is no connection".to_owned())),
        }
    }

    /// Routes and receives a bundle, as a worker does.
    fn receive(&mut self, now: Time, from: SocketAddr, bundle: &mut Bundle) -> Result<()> {
        let path = Path {
            remote: from,
            local: None,
        };
        let mut rest = &mut bundle.bytes[..bundle.len];
        while !rest.is_empty() {
            let run = self.endpoint.route(now, path, rest, bundle.segment);
            let (bytes, behind) = rest.split_at_mut(run.len);
            rest = behind;
            match run.to {
                Route::Connection(_) => {}
                Route::Incoming(incoming) => {
                    let made = self.endpoint.accept(now, incoming);
                    self.connection = Some(made.map_err(context("the handshake"))?);
                }
                Route::Respond(_) | Route::Worker(_) | Route::Discard => continue,
            }
            if let Some((_, connection)) = &mut self.connection {
                let batch = DatagramBatch {
                    path,
                    ecn: Ecn::NotEct,
                    segment_size: bundle.segment,
                    bytes,
                };
                connection.receive(now, batch, &mut self.stages);
            }
        }
        Ok(())
    }

    /// Fills bundles with what there is to send; says how many.
    fn transmit(&mut self, now: Time, bundles: &mut [Bundle; BUNDLES]) -> usize {
        let Some((handle, connection)) = &mut self.connection else {
            return 0;
        };
        let mut filled = 0;
        for bundle in bundles {
            let sent = connection.transmit(now, &mut bundle.bytes, 64, &mut self.stages);
            let Some(sent) = sent else { break };
            (bundle.segment, bundle.len) = (sent.segment_size, sent.len);
            filled += 1;
        }
        while connection.poll_event().is_some() {}
        while let Some(event) = connection.poll_endpoint_event() {
            self.endpoint.apply(*handle, event);
        }
        filled
    }

    fn on_timeout(&mut self, now: Time) {
        if let Some((_, connection)) = &mut self.connection
            && connection.next_timeout().is_some_and(|due| due <= now)
        {
            connection.on_timeout(now);
        }
    }
}

/// The datagrams of one transmission.
struct Bundle {
    bytes: Vec<u8>,
    segment: u16,
    len: usize,
}

impl Bundle {
    fn new() -> Self {
        Self {
            bytes: vec![0; BUNDLE],
            segment: 0,
            len: 0,
        }
    }
}

/// What a turn cost each end, by the wall clock.
#[derive(Clone, Copy, Default)]
struct Shares {
    sender: Duration,
    receiver: Duration,
}

/// Both ends.
struct Link {
    now: Time,
    sender: End,
    receiver: End,
    bundles: [Bundle; BUNDLES],
    source: Bytes,
    at: usize,
}

impl Link {
    /// Connected, the path's size known.
    fn new(source: Bytes) -> Result<Self> {
        let certificate = Certificate::generate()?;
        let transport = Arc::new(TransportConfig {
            max_udp_payload: UDP_PAYLOAD,
            pacing: false,
            ..TransportConfig::default()
        });
        let mut server_tls = certificate.server(squall::provider())?;
        let mut client_tls = certificate.client(squall::provider())?;
        server_tls.alpn_protocols = vec![b"bench".to_vec()];
        client_tls.alpn_protocols = vec![b"bench".to_vec()];
        let server = ServerConfig {
            tls: Arc::new(server_tls),
            transport: Arc::clone(&transport),
        };
        let client = ClientConfig {
            tls: Arc::new(client_tls),
            transport,
        };
        let now = Time::from_nanos(1_000_000_000);
        // Neither end is reached by anybody: nothing here has to be unpredictable.
        let endpoint =
            |server, seed| Endpoint::new(EndpointConfig::new([7; 32]), server, [seed; 32]);
        let sender = End::new(endpoint(Some(Arc::new(server)), 1), 1);
        let mut receiver = End::new(endpoint(None, 2), 2);
        let path = Path {
            remote: sender.address,
            local: None,
        };
        let begun = receiver.endpoint.connect(now, client, path, NAME);
        receiver.connection = Some(begun.map_err(context("the handshake"))?);
        let mut link = Self {
            now,
            sender,
            receiver,
            bundles: std::array::from_fn(|_| Bundle::new()),
            source,
            at: 0,
        };
        let mut quiet = 0;
        while quiet < 3 {
            let busy = link.hand_over(true)? + link.hand_over(false)?;
            quiet = if busy == 0 { quiet + 1 } else { 0 };
            link.now += Duration::from_millis(30);
            sender_and_receiver(&mut link, End::on_timeout);
        }
        link.sender.connection()?;
        Ok(link)
    }

    fn hand_over(&mut self, from_receiver: bool) -> Result<usize> {
        let (from, to) = if from_receiver {
            (&mut self.receiver, &mut self.sender)
        } else {
            (&mut self.sender, &mut self.receiver)
        };
        let filled = from.transmit(self.now, &mut self.bundles);
        for bundle in &mut self.bundles[..filled] {
            to.receive(self.now, from.address, bundle)?;
        }
        Ok(filled)
    }

    /// Opens streams of the server, each with something written so that both ends know them.
    fn open(&mut self, streams: usize) -> Result<Vec<StreamId>> {
        let connection = self.sender.connection()?;
        let mut ids = Vec::new();
        for _ in 0..streams {
            let id = connection.open(Direction::Unidirectional);
            ids.push(id.ok_or_else(|| Failure::new("no more streams are allowed".to_owned()))?);
        }
        Ok(ids)
    }

    /// One turn of sender and receiver.
    fn turn(&mut self, streams: &[StreamId], shares: &mut Shares) -> Result<()> {
        let began = Instant::now();
        let connection = self.sender.connection()?;
        for id in streams {
            loop {
                let mut piece = self.source.slice(self.at..self.at + PIECE);
                match connection.write(*id, &mut piece) {
                    Ok(taken) => self.at = (self.at + taken) % (SOURCE - PIECE),
                    Err(_) => break,
                }
            }
        }
        let filled = self.sender.transmit(self.now, &mut self.bundles);
        let sent = Instant::now();
        for bundle in &mut self.bundles[..filled] {
            self.receiver
                .receive(self.now, self.sender.address, bundle)?;
        }
        let receiver = self.receiver.connection()?;
        while receiver.accept(Direction::Unidirectional).is_some() {}
        for id in streams {
            while let Ok(Some(_)) = receiver.read(*id, usize::MAX) {}
        }
        self.now += Duration::from_micros(100);
        self.receiver.on_timeout(self.now);
        let answers = self.receiver.transmit(self.now, &mut self.bundles);
        let received = Instant::now();
        for bundle in &mut self.bundles[..answers] {
            self.sender
                .receive(self.now, self.receiver.address, bundle)?;
        }
        self.now += Duration::from_micros(100);
        self.sender.on_timeout(self.now);
        let ended = Instant::now();
        shares.sender += (sent - began) + (ended - received);
        shares.receiver += received - sent;
        Ok(())
    }
}

fn sender_and_receiver(link: &mut Link, act: impl Fn(&mut End, Time)) {
    act(&mut link.sender, link.now);
    act(&mut link.receiver, link.now);
}

/// CPU ns a packet, of one round.
struct Round {
    sender: f64,
    receiver: f64,
    /// AEAD and header protection, both ends.
    protection: f64,
}

fn packets(link: &mut Link) -> Result<u64> {
    Ok(link.sender.connection()?.stats().packets_sent)
}

fn protection_ticks(link: &Link) -> u64 {
    let of = |stages: &Stages| {
        stages.ticks()[Stage::Aead as usize] + stages.ticks()[Stage::HeaderProtection as usize]
    };
    of(&link.sender.stages) + of(&link.receiver.stages)
}

/// Moves so many packets on these streams.
fn round(link: &mut Link, streams: &[StreamId], wanted: u64) -> Result<Round> {
    let before = packets(link)?;
    let (mut shares, mut turns) = (Shares::default(), 0_u32);
    let protection = protection_ticks(link);
    let (cpu, ticks, wall) = (sys::thread_cpu(), squall::ticks(), Instant::now());
    while packets(link)? - before < wanted {
        link.turn(streams, &mut shares)?;
        turns += 1;
    }
    let (cpu, ticks, wall) = (
        sys::thread_cpu() - cpu,
        squall::ticks() - ticks,
        wall.elapsed(),
    );
    let cpu = cpu.saturating_sub(empty_loop(turns));
    let count = (packets(link)? - before) as f64;
    let parts = (shares.sender + shares.receiver).as_nanos() as f64;
    let ns = cpu.as_nanos() as f64 / count;
    let protection = (protection_ticks(link) - protection) as f64;
    Ok(Round {
        sender: ns * shares.sender.as_nanos() as f64 / parts,
        receiver: ns * shares.receiver.as_nanos() as f64 / parts,
        // Ticks are of the wall's clock; while another process has the core both stand for more than was worked.
        protection: protection / ticks.max(1) as f64 * wall.as_nanos() as f64 / count
            * (cpu.as_nanos() as f64 / wall.as_nanos() as f64).min(1.0),
    })
}

/// What the looks at the clock of so many turns cost, and the loop around them.
fn empty_loop(turns: u32) -> Duration {
    let began = sys::thread_cpu();
    let mut shares = Shares::default();
    for _ in 0..turns {
        let marks: [Instant; 4] = std::array::from_fn(|_| Instant::now());
        shares.sender += marks[1] - marks[0];
        shares.receiver += marks[3] - marks[2];
        std::hint::black_box(&shares);
    }
    sys::thread_cpu() - began
}

/// CPU ns of a copy of one packet's bytes out of memory that is in no cache, into a buffer that is.
fn cold_copy(source: &[u8], packets: u64) -> f64 {
    let mut target = vec![0; 44 * PAYLOAD];
    let count = usize::try_from(packets)
        .unwrap_or(usize::MAX)
        .min(source.len() / PAYLOAD);
    let began = sys::thread_cpu();
    for (i, piece) in source.chunks_exact(PAYLOAD).take(count).enumerate() {
        let at = i % 44 * PAYLOAD;
        target[at..at + PAYLOAD].copy_from_slice(piece);
        std::hint::black_box(&mut target);
    }
    (sys::thread_cpu() - began).as_nanos() as f64 / count as f64
}

/// One line of the table: CPU ns a packet.
#[derive(Debug, Serialize)]
struct Row {
    streams: usize,
    sender_ns: f64,
    receiver_ns: f64,
    total_ns: f64,
    /// AEAD and header protection of both ends, in the total; zero in the build without.
    protection_ns: f64,
    /// The total without them.
    transport_ns: f64,
    /// `transport_ns` in copies.
    copies: f64,
}

/// Everything that `--json` prints.
#[derive(Debug, Serialize)]
struct CoreReport {
    #[serde(flatten)]
    report: ModeReport<Row>,
    /// Whether packets were protected: `false` in the build of `cargo xtask bench-core`.
    protected: bool,
    payload_bytes: usize,
    /// Transport work of one stream, send and receive together, without protection.
    transport_ns_per_packet: f64,
    /// A cold copy of a packet's payload.
    copy_ns: f64,
}

/// The mode.
pub(super) fn main(args: &Core) -> Result<()> {
    let setup = Setup::new(args.rounds);
    if let Some(&core) = sys::allowed_cores().last() {
        // Where pinning is refused the rounds are only noisier, and say so.
        let _ = sys::pin(core);
    }
    let mut source = vec![0_u8; SOURCE];
    for (i, byte) in source.iter_mut().enumerate() {
        *byte = (i % 251) as u8;
    }
    let source = Bytes::from(source);
    let mut links = Vec::new();
    for &streams in &args.streams {
        let mut link = Link::new(source.clone())?;
        let ids = link.open(streams)?;
        for end in [&mut link.sender, &mut link.receiver] {
            end.stages = Stages::on(squall::ticks);
        }
        // Windows grow, buffers come into being.
        round(&mut link, &ids, args.packets)?;
        links.push((streams, link, ids, Vec::new()));
    }
    let mut copies = Vec::new();
    for _ in 0..args.rounds {
        for (_, link, ids, rounds) in &mut links {
            rounds.push(round(link, ids, args.packets)?);
        }
        copies.push(cold_copy(&source, args.packets));
    }
    let copy_ns = Spread::of(copies).median;
    let rows: Vec<Row> = links
        .iter()
        .map(|(streams, _, _, rounds)| {
            let median = |f: fn(&Round) -> f64| Spread::of(rounds.iter().map(f).collect()).median;
            let total_ns = median(|r| r.sender + r.receiver);
            let protected = !cfg!(squall_unprotected);
            let protection_ns = if protected {
                median(|r| r.protection)
            } else {
                0.0
            };
            Row {
                streams: *streams,
                sender_ns: median(|r| r.sender),
                receiver_ns: median(|r| r.receiver),
                total_ns,
                protection_ns,
                transport_ns: total_ns - protection_ns,
                copies: (total_ns - protection_ns) / copy_ns,
            }
        })
        .collect();
    let report = CoreReport {
        transport_ns_per_packet: rows.first().map_or(0.0, |row| row.transport_ns),
        protected: !cfg!(squall_unprotected),
        payload_bytes: PAYLOAD,
        copy_ns,
        report: ModeReport {
            mode: "core",
            setup,
            rows,
        },
    };
    if args.json {
        return print_json(&report);
    }
    print(&report, args);
    Ok(())
}

fn print(report: &CoreReport, args: &Core) {
    say(&format!(
        "{}\nCPU ns per packet of {PAYLOAD} bytes, medians of {} rounds of {} packets; an uncached copy of its bytes: {:.0} ns\n",
        report.report.setup.machine(),
        args.rounds,
        args.packets,
        report.copy_ns
    ));
    say("streams   sender  receiver     total  protection  transport  in copies");
    for row in &report.report.rows {
        say(&format!(
            "{:>7} {:>8.0} {:>9.0} {:>9.0} {:>11.0} {:>10.0} {:>10.1}",
            row.streams,
            row.sender_ns,
            row.receiver_ns,
            row.total_ns,
            row.protection_ns,
            row.transport_ns,
            row.copies
        ));
    }
    say(if report.protected {
        "\nProtection is the time of the stages AEAD and header protection. Sealing reads the source directly, so the\n\
         sender's transport figure contains no copy. `cargo xtask bench-core` measures a build without protection."
    } else {
        "\nThis build has no packet protection (--cfg squall_unprotected): payloads are copied into packets instead of sealed."
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_full_and_all_arrive() {
        let source = Bytes::from(vec![7; SOURCE]);
        let mut link = Link::new(source).expect("a link");
        let ids = link.open(3).expect("streams");
        round(&mut link, &ids, 2000).expect("a round");
        let sent = link.sender.connection().expect("a connection").stats();
        let received = link.receiver.connection().expect("a connection").stats();
        assert_eq!(sent.packets_lost, 0);
        assert!(received.packets_received >= 2000);
        let full = sent.bytes_sent / sent.packets_sent;
        assert!(full > 1400, "{full} bytes a packet");
        assert_eq!(received.packets_forged + received.packets_dropped, 0);
    }
}
