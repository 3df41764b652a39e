//! The controls' frame: what plain TCP and TLS over TCP have in common.
//!
//! ```text
//!   receiving thread                   sending thread            (one pair a TCP connection)
//!   connect, handshake                 accept, handshake
//!   clocks on                          clock on
//!   request: 8 bytes, how much  ---->  read it
//!   read, read, read …          <----  write 256 KiB, write 256 KiB …
//!   all there, or time is up: clocks off, close
//! ```
//! Blocking sockets and one thread an end: no loop of readiness events can be leaner. A stream
//! of QUIC is a connection here.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::source::{Digest, Sink, Source};
use super::{Amount, Flow, Load, Outcome};
use crate::error::{Failure, Result, context};
use crate::{interrupt, sys};

/// Plaintext bytes a write call and at most a read call. Plain TCP's CPU-seconds a GB with 64, 128,
/// 256, 512 and 1024 KiB (busy Zen 5, turn by turn): 0.48, 0.40, 0.34, 0.33, 0.34.
pub(crate) const BATCH: usize = 256 * 1024;

/// One end of a connection, after its handshake.
pub(crate) trait Channel {
    /// Sends at most [`BATCH`] bytes with one write call (more only where the kernel took a part).
    fn send(&mut self, data: &[u8]) -> io::Result<()>;
    /// Makes one read call, or none when a whole record is buffered, and gives what came to
    /// `sink`; returns how many bytes that was. `None`: the peer sent everything and said so.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> io::Result<Option<usize>>;
    /// Sets what a bulk receiver would set; after the handshake, whose messages are small.
    fn prepare_to_receive(&self) -> io::Result<()>;
    /// Says that everything was sent.
    fn finish(&mut self) -> io::Result<()>;
}

/// How to make the two ends of a contender.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Names the threads.
    const NAME: &'static str;
    type Channel: Channel;
    fn server(&self, socket: TcpStream) -> io::Result<Self::Channel>;
    fn client(&self, socket: TcpStream) -> io::Result<Self::Channel>;
}

/// The congestion control of the controls, where the kernel has it: Linux's own default, and the
/// algorithm that QUIC uses here. A machine set to BBR would pace loopback and pay for it (0.39
/// against 0.21 CPU-seconds a GB on a Zen 5).
const CONGESTION_CONTROL: &str = "cubic";

/// A receiver wakes for half a batch, not for a segment: the sender is the slower end, and reads
/// of what is just there would be small ones (0.27 against 0.32 CPU-seconds a GB, busy Zen 5).
const RECEIVE_LOW_WATER: i32 = BATCH as i32 / 2;

/// Sets what a bulk sender would set; before the handshake, at both ends.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    // A kernel without CUBIC keeps its own choice; the report shows which.
    let _ = sys::set_congestion_control(socket, CONGESTION_CONTROL);
    socket.set_nodelay(true)
}

/// Sets what a bulk receiver would set; after the handshake, whose messages are small.
pub(crate) fn prepare_receiver(socket: &TcpStream) -> io::Result<()> {
    sys::set_receive_low_water(socket, RECEIVE_LOW_WATER)
}

/// The congestion control that the controls get on this machine.
pub(crate) fn congestion_control() -> Option<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let socket = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    prepare(&socket).ok()?;
    sys::congestion_control(&socket)
}

/// What a sending thread brings back.
struct Sent {
    cpu: Duration,
    digest: Option<Digest>,
}

/// What a receiving thread brings back.
struct Received {
    cpu: Duration,
    bytes: u64,
    begin: Instant,
    end: Instant,
    digest: Option<Digest>,
}

/// Runs one round: `connections × streams` TCP connections over loopback.
pub(crate) fn run<P: Protocol>(protocol: &Arc<P>, load: &Load) -> Result<Outcome> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(context("no TCP port to listen on at 127.0.0.1"))?;
    let address = listener.local_addr().map_err(context("local address"))?;
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    for index in 0..load.connections * load.streams {
        let (near, far) = TcpStream::connect(address)
            .and_then(|near| Ok((near, listener.accept()?.0)))
            .map_err(context("cannot connect over loopback"))?;
        let seed = load.seed.map(|seed| seed.wrapping_add(index as u64));
        let (server, client) = (
            End::new(protocol, true, far, load.cores.server),
            End::new(protocol, false, near, load.cores.client),
        );
        let (sender, receiver) = match load.flow {
            Flow::Down => (server, client),
            Flow::Up => (client, server),
        };
        senders.push(serve(sender, load, seed)?);
        receivers.push(fetch(receiver, load)?);
    }
    let received = join(receivers);
    // A sender's own failure says more than what its receiver saw of it.
    let sent = join(senders)?;
    let received = received?;
    let begin = received.iter().map(|one| one.begin).min();
    let end = received.iter().map(|one| one.end).max();
    let elapsed = begin.zip(end).map_or(Duration::ZERO, |(a, b)| b - a);
    let sender_cpu = sent.iter().map(|one| one.cpu).sum();
    let receiver_cpu = received.iter().map(|one| one.cpu).sum();
    let (server_cpu, client_cpu) = match load.flow {
        Flow::Down => (sender_cpu, receiver_cpu),
        Flow::Up => (receiver_cpu, sender_cpu),
    };
    Ok(Outcome {
        bytes: received.iter().map(|one| one.bytes).sum(),
        elapsed,
        server_cpu,
        client_cpu,
        sent: sent.iter().filter_map(|one| one.digest).collect(),
        received: received.iter().filter_map(|one| one.digest).collect(),
        used: None,
    })
}

/// One end of a connection before its handshake.
struct End<P> {
    protocol: Arc<P>,
    is_server: bool,
    socket: TcpStream,
    core: Option<usize>,
}

impl<P: Protocol> End<P> {
    fn new(protocol: &Arc<P>, is_server: bool, socket: TcpStream, core: Option<usize>) -> Self {
        Self {
            protocol: Arc::clone(protocol),
            is_server,
            socket,
            core,
        }
    }

    fn name(&self) -> String {
        let side = if self.is_server { "server" } else { "client" };
        format!("{} {side}", P::NAME)
    }

    /// Makes the handshake.
    fn open(self) -> Result<P::Channel> {
        let doing = format!("{} handshake", self.name());
        let channel = if self.is_server {
            self.protocol.server(self.socket)
        } else {
            self.protocol.client(self.socket)
        };
        channel.map_err(context(&doing))
    }
}

fn join<T>(threads: Vec<JoinHandle<Result<T>>>) -> Result<Vec<T>> {
    threads
        .into_iter()
        .map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Failure::new("a thread of the control panicked")))
        })
        .collect()
}

fn spawn<T: Send + 'static>(
    name: String,
    core: Option<usize>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<JoinHandle<Result<T>>> {
    thread::Builder::new()
        .name(name)
        .spawn(move || {
            if let Some(core) = core {
                sys::pin(core).map_err(context("cannot pin a thread"))?;
            }
            work()
        })
        .map_err(context("cannot start a thread"))
}

fn serve<P: Protocol>(
    end: End<P>,
    load: &Load,
    seed: Option<u64>,
) -> Result<JoinHandle<Result<Sent>>> {
    let timed = matches!(load.amount, Amount::Time(_));
    let name = end.name();
    spawn(name.clone(), end.core, move || {
        let mut channel = end.open()?;
        let start = sys::thread_cpu();
        let mut source = Source::new(seed);
        let result = answer(&mut channel, &mut source);
        let cpu = sys::thread_cpu().saturating_sub(start);
        match result {
            // Time is up: the client went away in the middle of an endless answer.
            Err(error) if (timed || interrupt::raised()) && is_gone(&error) => {}
            result => result.map_err(context(&name))?,
        }
        Ok(Sent {
            cpu,
            digest: source.digest(),
        })
    })
}

/// The sender's side of one transfer: reads how much is wanted and sends it.
fn answer(channel: &mut impl Channel, source: &mut Source) -> io::Result<()> {
    let mut request = Vec::new();
    while request.len() < size_of::<u64>() {
        if channel
            .receive(&mut |bytes| request.extend_from_slice(bytes))?
            .is_none()
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut left = request
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes));
    while left > 0 {
        let len = usize::try_from(left).map_or(BATCH, |left| left.min(BATCH));
        let piece = source.next(len);
        channel.send(&piece)?;
        left -= piece.len() as u64;
    }
    channel.finish()
}

/// Whether an error says no more than that the peer closed.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

fn fetch<P: Protocol>(end: End<P>, load: &Load) -> Result<JoinHandle<Result<Received>>> {
    let (amount, digests) = (load.amount, load.seed.is_some());
    let live = Arc::clone(&load.gauges.live);
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
            cpu,
            bytes,
            begin,
            end,
            digest: sink.digest(),
        })
    })
}
