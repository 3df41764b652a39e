//! `squall bench core`: the cost of the transport without sockets.
//!
//! ```text
//!   turn:  write, transmit up to 4 bundles      the sender's time
//!          route, receive, read, transmit ACKs  the receiver's
//!          route, receive the ACKs              the sender's
//! ```
//! One endpoint's transmit buffers go straight into the other's `receive`. Rounds alternate with a
//! copy of one packet's bytes from uncached memory. The time of an empty loop that reads the clock
//! as often is subtracted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use squall_core::{ClientConfig, Connection, ServerConfig, Stage, Stages, TransportConfig};
use squall_wire::{Direction, StreamId};
use squall_yard::certificate::Certificate;
use squall_yard::error::{Failure, Result};
use squall_yard::pair::{Bundles, Link, Pair, bundles};
use squall_yard::stats::Spread;
use squall_yard::sys;

use super::args::Core;
use super::{ModeReport, Setup};
use crate::output::{print_json, say};

/// Bytes of stream data in a full packet.
const PAYLOAD: usize = 1450;
/// UDP payload of such a packet: short header with an 8-byte id and a 2- to 4-byte number, a frame
/// header of up to 12 bytes, the tag.
const UDP_PAYLOAD: u16 = 1490;
/// Size of the buffer that the application sends from repeatedly: larger than any cache.
const SOURCE: usize = 256 << 20;
/// Bytes of one write.
const PIECE: usize = 256 << 10;

/// The cost of a turn to each end, in wall-clock time.
#[derive(Clone, Copy, Default)]
struct Shares {
    sender: Duration,
    receiver: Duration,
}

/// A connection whose server sends.
struct Transfer {
    pair: Pair,
    link: Link,
    bundles: Bundles,
    source: Bytes,
    at: usize,
}

impl Transfer {
    /// A transfer that is connected, with the path's size known.
    fn new(source: Bytes) -> Result<Self> {
        let certificate = Certificate::generate()?;
        let transport = Arc::new(
            TransportConfig::default()
                .max_udp_payload(UDP_PAYLOAD)
                .pacing(false),
        );
        let mut server_tls = certificate.server(squall::provider())?;
        let mut client_tls = certificate.client(squall::provider())?;
        server_tls.alpn_protocols = vec![b"bench".to_vec()];
        client_tls.alpn_protocols = vec![b"bench".to_vec()];
        let server = ServerConfig::new(server_tls).transport(Arc::clone(&transport));
        let client = ClientConfig::new(client_tls).transport(transport);
        let mut pair = Pair::new(server);
        let links = pair.connect(&client, 1)?;
        let link = links.first().copied();
        Ok(Self {
            pair,
            link: link.ok_or_else(|| Failure::new("there is no connection"))?,
            bundles: bundles(),
            source,
            at: 0,
        })
    }

    fn sender(&mut self) -> Result<&mut Connection> {
        self.pair.server.connection(self.link.server)
    }

    /// Opens streams of the server, each with something written so that both ends know it.
    fn open(&mut self, streams: usize) -> Result<Vec<StreamId>> {
        let connection = self.sender()?;
        let mut ids = Vec::new();
        for _ in 0..streams {
            let id = connection.open(Direction::Unidirectional);
            ids.push(id.ok_or_else(|| Failure::new("no more streams are allowed"))?);
        }
        Ok(ids)
    }

    /// One turn of sender and receiver.
    fn turn(&mut self, streams: &[StreamId], shares: &mut Shares) -> Result<()> {
        let Self {
            pair,
            link,
            bundles,
            source,
            at,
        } = self;
        let Pair {
            now,
            server: sender,
            client: receiver,
            ..
        } = pair;
        let began = Instant::now();
        let connection = sender.connection(link.server)?;
        for id in streams {
            loop {
                let mut piece = source.slice(*at..*at + PIECE);
                match connection.write(*id, &mut piece) {
                    Ok(taken) => *at = (*at + taken) % (SOURCE - PIECE),
                    Err(_) => break,
                }
            }
        }
        let filled = sender.transmit(*now, link.server, bundles);
        let sent = Instant::now();
        for bundle in &mut bundles[..filled] {
            receiver.receive(*now, sender.address, bundle)?;
        }
        let connection = receiver.connection(link.client)?;
        while connection.accept(Direction::Unidirectional).is_some() {}
        for id in streams {
            while let Ok(Some(_)) = connection.read(*id, usize::MAX) {}
        }
        *now += Duration::from_micros(100);
        receiver.on_timeout(*now, link.client);
        let answers = receiver.transmit(*now, link.client, bundles);
        let received = Instant::now();
        for bundle in &mut bundles[..answers] {
            sender.receive(*now, receiver.address, bundle)?;
        }
        *now += Duration::from_micros(100);
        sender.on_timeout(*now, link.server);
        let ended = Instant::now();
        shares.sender += (sent - began) + (ended - received);
        shares.receiver += received - sent;
        Ok(())
    }
}

/// CPU ns per packet in one round.
struct Round {
    sender: f64,
    receiver: f64,
    /// AEAD and header protection, both ends.
    protection: f64,
}

fn packets(link: &mut Transfer) -> Result<u64> {
    Ok(link.sender()?.stats().packets_sent)
}

fn protection_ticks(link: &Transfer) -> u64 {
    let of = |stages: &Stages| {
        stages.ticks()[Stage::Aead as usize] + stages.ticks()[Stage::HeaderProtection as usize]
    };
    of(&link.pair.server.stages) + of(&link.pair.client.stages)
}

/// Moves this many packets on these streams.
fn round(link: &mut Transfer, streams: &[StreamId], wanted: u64) -> Result<Round> {
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
        // Ticks are wall-clock time; if another process has the core, they include its time.
        protection: protection / ticks.max(1) as f64 * wall.as_nanos() as f64 / count
            * (cpu.as_nanos() as f64 / wall.as_nanos() as f64).min(1.0),
    })
}

/// CPU time of reading the clock in this many turns, and of the loop around it.
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

/// CPU ns to copy one packet's bytes from uncached memory into a cached buffer.
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

/// One line of the table: CPU ns per packet.
#[derive(Debug, Serialize)]
struct Row {
    streams: usize,
    sender_ns: f64,
    receiver_ns: f64,
    total_ns: f64,
    /// AEAD and header protection of both ends, part of the total; zero in the unprotected build.
    protection_ns: f64,
    /// The total without AEAD and header protection.
    transport_ns: f64,
    /// `transport_ns` as a multiple of the copy.
    copies: f64,
}

/// Everything printed with `--json`.
#[derive(Debug, Serialize)]
struct CoreReport {
    #[serde(flatten)]
    report: ModeReport<Row>,
    /// Whether packets were protected: `false` in the build of `cargo xtask bench-core`.
    protected: bool,
    payload_bytes: usize,
    /// Transport work for one stream, send and receive together, without protection.
    transport_ns_per_packet: f64,
    /// A cold copy of a packet's payload.
    copy_ns: f64,
}

/// Runs the mode.
pub(super) fn main(args: &Core) -> Result<()> {
    let setup = Setup::new(args.rounds);
    if let Some(&core) = sys::allowed_cores().last() {
        // If pinning is refused the rounds are only noisier, and are reported as such.
        let _ = sys::pin(core);
    }
    let mut source = vec![0_u8; SOURCE];
    for (i, byte) in source.iter_mut().enumerate() {
        *byte = (i % 251) as u8;
    }
    let source = Bytes::from(source);
    let mut links = Vec::new();
    for &streams in &args.streams {
        let mut link = Transfer::new(source.clone())?;
        let ids = link.open(streams)?;
        for end in [&mut link.pair.server, &mut link.pair.client] {
            end.stages = Stages::on(squall::ticks);
        }
        // Lets windows grow and buffers be allocated.
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
        let mut link = Transfer::new(source).expect("a link");
        let ids = link.open(3).expect("streams");
        round(&mut link, &ids, 2000).expect("a round");
        let sent = link.sender().expect("a connection").stats();
        let client = link.link.client;
        let received = link
            .pair
            .client
            .connection(client)
            .expect("a connection")
            .stats();
        assert_eq!(sent.packets_lost, 0);
        assert!(received.packets_received >= 2000);
        let full = sent.bytes_sent / sent.packets_sent;
        assert!(full > 1400, "{full} bytes a packet");
        assert_eq!(received.packets_forged + received.packets_dropped, 0);
    }
}
