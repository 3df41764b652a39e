//! One scenario of `cargo xtask cost`: works on two endpoints without sockets, for callgrind to
//! count the instructions of.
//!
//! ```text
//!   cost SCENARIO CONNECTIONS
//!     set-up     connect all, warm up                  not counted
//!     measured   the work, on the connections in turn  counted: `--toggle-collect=*cost*measured*`
//!     output     the number of units of work that were measured
//! ```
//! The same commit executes the same instructions every time: all seeds are fixed, and TLS does
//! without public-key cryptography (`tls.rs`).

mod tls;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use squall_core::{ClientConfig, ServerConfig, TransportConfig};
use squall_wire::{Direction, StreamId};
use squall_yard::error::{Failure, Result, context};
use squall_yard::pair::{Link, Pair};
use squall_yard::tickets::Watch;

/// UDP payload of a full packet. With it, a packet of `squall bench core` carries 1,450 bytes.
const UDP_PAYLOAD: u16 = 1490;
/// Bytes of one write.
const PIECE: usize = 256 << 10;
/// Time between the flights of a turn.
const STEP: Duration = Duration::from_micros(100);
/// Requests that are in flight on a connection at a time.
const REQUESTS: usize = 10;
/// Bytes of a request and of a response: the defaults of `squall perf --requests`.
const REQUEST: usize = 100;
const RESPONSE: usize = 1024;
/// Datagrams per turn.
const DATAGRAMS: usize = 40;
/// Turns of all connections together, before the measured part and in it.
const WARM_UP: usize = 300;
const TURNS: usize = 1_000;
/// Handshakes in the measured part.
const HANDSHAKES: usize = 1_000;

/// Runs the measured part. Callgrind counts from the entry of this function to its end, so it must
/// keep its name and its call.
#[inline(never)]
fn measured<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::hint::black_box(work())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [scenario, connections] => connections
            .parse()
            .map_err(context("the number of connections"))
            .and_then(|connections| run(scenario, connections)),
        _ => Err(Failure::new("usage: cost SCENARIO CONNECTIONS")),
    };
    match result {
        Ok(units) => {
            println!("{units}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("cost: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(scenario: &str, connections: usize) -> Result<u64> {
    match scenario {
        "bulk" => in_turn(connections, &mut Bulk::default()),
        "requests" => in_turn(connections, &mut Requests::default()),
        "datagrams" => in_turn(connections, &mut Datagrams::default()),
        "full" => handshakes(connections, false),
        "resumed" => handshakes(connections, true),
        other => Err(Failure::new(format!("there is no scenario {other}"))),
    }
}

/// The transport's settings, the same at both ends.
fn transport() -> TransportConfig {
    TransportConfig::default()
        .max_udp_payload(UDP_PAYLOAD)
        .pacing(false)
}

fn pair() -> Result<(Pair, ClientConfig, Arc<Watch>)> {
    let transport = Arc::new(transport());
    let (tls, watch) = tls::client()?;
    let server = ServerConfig::new(tls::server()?).transport(Arc::clone(&transport));
    let client = ClientConfig::new(tls).transport(transport);
    Ok((Pair::new(server), client, watch))
}

/// Work of which a connection does a part in each of its turns.
trait Work {
    /// Prepares a connection.
    fn begin(&mut self, pair: &mut Pair, link: Link) -> Result<()>;
    /// A turn of a connection.
    fn turn(&mut self, pair: &mut Pair, link: Link) -> Result<()>;
    /// Units of work done so far.
    fn units(&self) -> u64;
}

/// Gives connections their turns, one after the other.
fn in_turn(connections: usize, work: &mut impl Work) -> Result<u64> {
    let (mut pair, client, _) = pair()?;
    let links = pair.connect(&client, connections)?;
    for &link in &links {
        work.begin(&mut pair, link)?;
    }
    // A turn of each connection at least, so that buffers exist and windows have grown.
    let warm_up = WARM_UP.max(2 * connections);
    let mut turns = links.iter().copied().cycle();
    for link in turns.by_ref().take(warm_up) {
        work.turn(&mut pair, link)?;
    }
    let before = work.units();
    measured(|| {
        for link in turns.by_ref().take(TURNS) {
            work.turn(&mut pair, link)?;
        }
        Ok(())
    })?;
    Ok(work.units() - before)
}

/// Some bytes, the same every time.
fn bytes(len: usize) -> Bytes {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// The server sends on a stream of each connection as much as it may. The unit is a packet.
struct Bulk {
    source: Bytes,
    /// By the server's handle.
    streams: Vec<StreamId>,
    packets: u64,
}

impl Default for Bulk {
    fn default() -> Self {
        Self {
            source: bytes(PIECE),
            streams: Vec::new(),
            packets: 0,
        }
    }
}

impl Work for Bulk {
    fn begin(&mut self, pair: &mut Pair, link: Link) -> Result<()> {
        let stream = pair
            .server
            .connection(link.server)?
            .open(Direction::Unidirectional);
        self.streams
            .push(stream.ok_or_else(|| Failure::new("no stream is allowed"))?);
        Ok(())
    }

    fn turn(&mut self, pair: &mut Pair, link: Link) -> Result<()> {
        let stream = self.streams[link.server.0];
        let sender = pair.server.connection(link.server)?;
        let before = sender.stats().packets_sent;
        while sender.write(stream, &mut self.source.clone()).is_ok() {}
        pair.to_client(link)?;
        let receiver = pair.client.connection(link.client)?;
        while receiver.accept(Direction::Unidirectional).is_some() {}
        while let Ok(Some(_)) = receiver.read(stream, usize::MAX) {}
        pair.pass(STEP, link);
        pair.to_server(link)?;
        pair.pass(STEP, link);
        self.packets += pair.server.connection(link.server)?.stats().packets_sent - before;
        Ok(())
    }

    fn units(&self) -> u64 {
        self.packets
    }
}

/// The client sends requests, each on a stream of its own, and the server answers. The unit is a
/// request with its response.
struct Requests {
    request: Bytes,
    response: Bytes,
    answered: u64,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            request: bytes(REQUEST),
            response: bytes(RESPONSE),
            answered: 0,
        }
    }
}

impl Work for Requests {
    fn begin(&mut self, _pair: &mut Pair, _link: Link) -> Result<()> {
        Ok(())
    }

    fn turn(&mut self, pair: &mut Pair, link: Link) -> Result<()> {
        let client = pair.client.connection(link.client)?;
        let mut asked = [None; REQUESTS];
        for place in &mut asked {
            *place = client.open(Direction::Bidirectional);
            let stream = place.ok_or_else(|| Failure::new("no stream is allowed"))?;
            client
                .write(stream, &mut self.request.clone())
                .and_then(|_| client.finish(stream))
                .map_err(context("a request"))?;
        }
        pair.to_server(link)?;
        let server = pair.server.connection(link.server)?;
        while let Some(stream) = server.accept(Direction::Bidirectional) {
            while let Ok(Some(_)) = server.read(stream, usize::MAX) {}
            server
                .write(stream, &mut self.response.clone())
                .and_then(|_| server.finish(stream))
                .map_err(context("a response"))?;
        }
        pair.pass(STEP, link);
        pair.to_client(link)?;
        let client = pair.client.connection(link.client)?;
        for stream in asked.into_iter().flatten() {
            let mut len = 0;
            while let Ok(Some(piece)) = client.read(stream, usize::MAX) {
                len += piece.len();
            }
            if len != RESPONSE {
                return Err(Failure::new("a response is not complete"));
            }
            self.answered += 1;
        }
        pair.pass(STEP, link);
        Ok(())
    }

    fn units(&self) -> u64 {
        self.answered
    }
}

/// The client sends datagrams that fill a packet (RFC 9221). The unit is a datagram.
#[derive(Default)]
struct Datagrams {
    datagram: Bytes,
    arrived: u64,
}

impl Work for Datagrams {
    fn begin(&mut self, pair: &mut Pair, link: Link) -> Result<()> {
        let largest = pair.client.connection(link.client)?.max_datagram_size();
        self.datagram = bytes(largest.ok_or_else(|| Failure::new("no datagrams are allowed"))?);
        Ok(())
    }

    fn turn(&mut self, pair: &mut Pair, link: Link) -> Result<()> {
        let client = pair.client.connection(link.client)?;
        for _ in 0..DATAGRAMS {
            // What the window does not let out stays queued for the next turn.
            if client.send_datagram(self.datagram.clone()).is_err() {
                break;
            }
        }
        pair.to_server(link)?;
        let server = pair.server.connection(link.server)?;
        while server.read_datagram().is_some() {
            self.arrived += 1;
        }
        pair.pass(STEP, link);
        pair.to_client(link)?;
        pair.pass(STEP, link);
        Ok(())
    }

    fn units(&self) -> u64 {
        self.arrived
    }
}

/// Handshakes, `at_a_time` together, each from the first packet until both ends are at rest and
/// then closed. The unit is a handshake.
fn handshakes(at_a_time: usize, resumed: bool) -> Result<u64> {
    let (mut pair, client, watch) = pair()?;
    // A full handshake each, for the tickets, or for buffers alone.
    let links = pair.connect(&client, at_a_time)?;
    pair.close(&links)?;
    watch.give(resumed);
    let rounds = HANDSHAKES / at_a_time;
    let mut units = 0;
    measured(|| {
        for _ in 0..rounds {
            let links = pair.connect(&client, at_a_time)?;
            for link in &links {
                let kind = pair.client.connection(link.client)?.handshake_kind();
                if (kind == Some(rustls::HandshakeKind::Resumed)) != resumed {
                    return Err(Failure::new(format!("a handshake was {kind:?}")));
                }
                units += 1;
            }
            pair.close(&links)?;
        }
        Ok(units)
    })
}
