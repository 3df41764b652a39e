//! The controls' frame: what plain TCP and TLS over TCP have in common.
//!
//! ```text
//!   receiving thread                   sending thread            (one pair per TCP connection)
//!   connect, handshake                 accept, handshake
//!   clocks on                          clock on
//!   request: 8 bytes, how much  ---->  read it
//!   read, read, read …          <----  write 256 KiB, write 256 KiB …
//!   all received, or time is up: clocks off, close
//! ```
//! Blocking sockets and one thread per end: no event loop can be leaner. A QUIC stream corresponds
//! to a connection here.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::channel::{Channel, Protocol, answer, prepare};
use super::threads::{End, join, spawn};
use crate::error::{Failure, Result, context};
use crate::outcome::Outcome;
use crate::source::{Digest, Sink, Source};
use crate::work::{Amount, Direction, Load};
use crate::{interrupt, sys};

/// The congestion control that the controls use on this machine.
pub fn congestion_control() -> Option<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let socket = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    prepare(&socket).ok()?;
    sys::congestion_control(&socket)
}

/// What a sending thread returns.
struct Sent {
    direction: Direction,
    cpu: Duration,
    digest: Option<Digest>,
}

/// What a receiving thread returns.
struct Received {
    direction: Direction,
    cpu: Duration,
    bytes: u64,
    begin: Instant,
    end: Instant,
    digest: Option<Digest>,
}

/// Runs one round: `connections × streams` TCP connections over loopback for each direction.
pub fn run<P: Protocol>(protocol: &Arc<P>, load: &Load) -> Result<Outcome> {
    let doing = format!("cannot listen on a TCP port of {}", load.loopback);
    let listener = TcpListener::bind((load.loopback, 0)).map_err(context(&doing))?;
    let address = listener.local_addr().map_err(context("local address"))?;
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    let directions = load.flow.directions();
    for index in 0..load.connections * load.streams * directions.len() {
        let direction = directions[index % directions.len()];
        let (near, far) = TcpStream::connect(address)
            .and_then(|near| Ok((near, listener.accept()?.0)))
            .map_err(context("cannot connect over loopback"))?;
        let seed = load.seed.map(|seed| seed.wrapping_add(index as u64));
        let (server, client) = (
            End::new(protocol, true, far, load.cores.server),
            End::new(protocol, false, near, load.cores.client),
        );
        let (sender, receiver) = match direction {
            Direction::Down => (server, client),
            Direction::Up => (client, server),
        };
        senders.push(serve(sender, load, direction, seed)?);
        receivers.push(fetch(receiver, load, direction)?);
    }
    let received = join(receivers);
    // A sender's own error says more than what its receiver saw.
    let sent = join(senders)?;
    let received = received?;
    let begin = received.iter().map(|one| one.begin).min();
    let end = received.iter().map(|one| one.end).max();
    let elapsed = begin.zip(end).map_or(Duration::ZERO, |(a, b)| b - a);
    let sent_cpu = |direction| {
        let own = sent.iter().filter(|one| one.direction == direction);
        own.map(|one| one.cpu).sum::<Duration>()
    };
    let received_cpu = |direction| {
        let own = received.iter().filter(|one| one.direction == direction);
        own.map(|one| one.cpu).sum::<Duration>()
    };
    let up = received.iter().filter(|one| one.direction == Direction::Up);
    Ok(Outcome {
        bytes: received.iter().map(|one| one.bytes).sum(),
        bytes_up: up.map(|one| one.bytes).sum(),
        elapsed,
        ended: end,
        server_cpu: sent_cpu(Direction::Down) + received_cpu(Direction::Up),
        client_cpu: sent_cpu(Direction::Up) + received_cpu(Direction::Down),
        sent: sent.iter().filter_map(|one| one.digest).collect(),
        received: received.iter().filter_map(|one| one.digest).collect(),
        used: None,
    })
}

fn serve<P: Protocol>(
    end: End<P>,
    load: &Load,
    direction: Direction,
    seed: Option<u64>,
) -> Result<JoinHandle<Result<Sent>>> {
    let timed = matches!(load.amount, Amount::Time(_));
    let bitrate = load.bitrate;
    let name = end.name();
    spawn(name.clone(), end.core, move || {
        let mut channel = end.open()?;
        let start = sys::thread_cpu();
        let mut source = Source::new(seed).paced(bitrate);
        let result = answer(&mut channel, &mut source);
        let cpu = sys::thread_cpu().saturating_sub(start);
        match result {
            // Time is up: the client left in the middle of an endless response.
            Err(error) if (timed || interrupt::raised()) && is_gone(&error) => {}
            result => result.map_err(context(&name))?,
        }
        Ok(Sent {
            direction,
            cpu,
            digest: source.digest(),
        })
    })
}

/// Whether an error means only that the peer closed.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

fn fetch<P: Protocol>(
    end: End<P>,
    load: &Load,
    direction: Direction,
) -> Result<JoinHandle<Result<Received>>> {
    let (amount, digests) = (load.amount, load.seed.is_some());
    let live = Arc::clone(direction.counter(&load.gauges));
    let name = end.name();
    spawn(name.clone(), end.core, move || {
        let mut channel = end.open()?;
        channel.prepare_to_receive().map_err(context(&name))?;
        let begin = Instant::now();
        let start = sys::thread_cpu();
        let mut sink = Sink::new(digests);
        let (wanted, deadline) = match amount {
            Amount::Bytes(bytes) => (bytes, None),
            Amount::Time(time) => (u64::MAX, Some(begin + time)),
        };
        let mut bytes = 0;
        let error = context(&name);
        channel.send(&wanted.to_be_bytes()).map_err(&error)?;
        while !interrupt::due(deadline) {
            let Some(count) = channel
                .receive(&mut |piece| sink.take(piece))
                .map_err(&error)?
            else {
                break;
            };
            bytes += count as u64;
            live.add(count as u64);
        }
        let cpu = sys::thread_cpu().saturating_sub(start);
        let end = Instant::now();
        if deadline.is_none() && bytes != wanted && !interrupt::raised() {
            return Err(Failure::new(format!(
                "{name}: the connection ended after {bytes} of {wanted} bytes"
            )));
        }
        Ok(Received {
            direction,
            cpu,
            bytes,
            begin,
            end,
            digest: sink.digest(),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::controls::operations::requests;
    use crate::controls::tcp::Plain;
    use crate::cpu::Cores;
    use crate::live::Gauges;
    use crate::pace::Begin;
    use crate::work::{Flow, Requests};

    #[test]
    fn controls_use_the_given_address() {
        // An address for documentation (RFC 5737): no machine has it.
        let nowhere = IpAddr::from([192, 0, 2, 254]);
        let load = Load {
            connections: 1,
            streams: 1,
            flow: Flow::Down,
            amount: Amount::Bytes(1),
            cores: Cores::NONE,
            loopback: nowhere,
            seed: None,
            bitrate: None,
            gauges: Gauges::default(),
        };
        let work = Requests {
            up: 8,
            down: 1,
            in_flight: 1,
            begin: Begin::AfterAnswer,
            time: Duration::from_millis(1),
        };
        let plain = Arc::new(Plain);
        let bulk = run(&plain, &load).map(drop);
        let requests = requests(&plain, &work, 1, Cores::NONE, nowhere, &Arc::default());
        for result in [bulk, requests.map(drop)] {
            let error = result.expect_err("no such address").to_string();
            assert!(error.contains("192.0.2.254"), "{error}");
        }
    }
}
