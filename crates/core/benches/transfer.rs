//! What the transport costs without sockets: one endpoint's transmit buffer is handed straight to the other's `receive`.
//!
//! `cargo bench -p squall-core --bench transfer` prints CPU ns a packet for both ends together, and the ticks of each
//! stage as shares. An argument is the number of megabytes to move (default 2000).

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use bytes::Bytes;
use common::Pair;
use squall_core::{Stage, TransportConfig};
use squall_wire::{Direction, Side};

fn main() {
    let megabytes: u64 = std::env::args()
        .skip(1)
        .find_map(|a| a.parse().ok())
        .unwrap_or(2000);
    let mut pair = Pair::with(TransportConfig {
        pacing: false,
        ..TransportConfig::default()
    });
    pair.run();
    let id = pair
        .connection(Side::Server)
        .open(Direction::Unidirectional)
        .expect("within the limit");
    let source = Bytes::from(vec![7; 1_000_000]);
    let (mut sent, mut received) = (0, 0);
    let goal = megabytes * 1_000_000;
    let begin = Instant::now();
    pair.account();
    while received < goal {
        let mut piece = source.clone();
        while let Ok(n) = pair.connection(Side::Server).write(id, &mut piece) {
            sent += n as u64;
            if piece.is_empty() {
                piece = source.clone();
            }
        }
        while pair.pump(Side::Server) {}
        pair.now += std::time::Duration::from_micros(50);
        let client = pair.connection(Side::Client);
        while client.accept(Direction::Unidirectional).is_some() {}
        while let Ok(Some(bytes)) = client.read(id, usize::MAX) {
            received += bytes.len() as u64;
        }
        while pair.pump(Side::Client) {}
        pair.now += std::time::Duration::from_micros(50);
    }
    let elapsed = begin.elapsed();
    let stats = pair.connection(Side::Server).stats();
    let packets = stats.packets_sent as f64;
    println!(
        "{:.0} ns a packet, {:.2} Gbit/s, {sent} bytes written",
        elapsed.as_nanos() as f64 / packets,
        received as f64 * 8.0 / elapsed.as_nanos() as f64
    );
    println!("{stats:?}");
    for (side, stages) in [
        ("server", pair.stages(Side::Server)),
        ("client", pair.stages(Side::Client)),
    ] {
        let total: u64 = stages.ticks().iter().sum();
        print!("{side}:");
        for stage in Stage::ALL {
            let ticks = stages.ticks()[stage as usize];
            if ticks > 0 {
                print!(
                    " {} {:.1} %,",
                    stage.name(),
                    ticks as f64 * 100.0 / total as f64
                );
            }
        }
        println!();
    }
}
