//! Plain TCP and TLS over TCP: the controls of `squall_yard`, in separate processes.
//!
//! ```text
//!   bulk        one thread per connection at each end, 256 KiB per system call; a QUIC stream
//!               corresponds to a connection
//!   requests    one connection; reads what has arrived and writes the responses, in one call each
//!   viewers     the same threads; a segment is requested when it is due
//!   scattered   one event loop at each end for all connections
//!   handshakes  four threads at each end: connect, handshake, requests, close
//! ```

mod handshakes;
mod place;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use rustls::crypto::CryptoProvider;
use squall_yard::certificate::Certificate;
use squall_yard::controls::channel::{Channel, Protocol, answer};
use squall_yard::controls::requests::{self as pipelined, Pipeline, Responses};
use squall_yard::controls::scattered::Group;
use squall_yard::controls::{in_turn, tcp, tls};
use squall_yard::error::{Failure, Result, context};
use squall_yard::options::Suite;
use squall_yard::pace::Begin;
use squall_yard::source::Source;

use self::place::Place;
use super::case::{Shape, Workload};
use super::job::{Contender, Job, Message, Role};
use super::process::{Count, say};
use super::verify::{Verifier, message};

/// Does one end's work.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    if job.case.workload.is_handshakes() {
        return handshakes::run(job, count);
    }
    if job.contender == Contender::Tcp {
        return run_as(&Arc::new(tcp::Plain), job, count);
    }
    let certificate = Certificate::read(&job.certificate, &job.key)?;
    let tls = tls::Tls::new(provider(&job.provider), Suite::Aes128, &certificate)?;
    run_as(&Arc::new(tls), job, count)
}

/// The crypto library with this name.
fn provider(name: &str) -> CryptoProvider {
    if name == "ring" {
        rustls::crypto::ring::default_provider()
    } else {
        rustls::crypto::aws_lc_rs::default_provider()
    }
}

/// A listener on any port of this machine; its address is reported.
fn listen(job: &Job) -> Result<TcpListener> {
    let listener =
        TcpListener::bind((job.local, 0)).map_err(context("no TCP port to listen on"))?;
    let address = listener.local_addr().map_err(context("local address"))?;
    say(&Message::Listening(address));
    Ok(listener)
}

fn run_as<P: Protocol>(protocol: &Arc<P>, job: &Job, count: &Arc<Count>) -> Result<()> {
    let shape = job.shape();
    match job.role {
        Role::Server => {
            let listener = listen(job)?;
            match job.case.workload {
                Workload::W6 => {
                    answer_scattered(&**protocol, &listener, &shape).map_err(context("requests"))
                }
                workload => serve(protocol, &listener, shape, workload),
            }
        }
        Role::Client(address) => match job.case.workload {
            Workload::W3 => {
                requests(&**protocol, address, shape, count, job.check).map_err(context("requests"))
            }
            Workload::W6 => ask_scattered(&**protocol, address, shape, job.check, count)
                .map_err(context("requests")),
            _ => download_all(protocol, address, shape, count, job.check),
        },
    }
}

/// Serves connections, one thread each, until the process ends.
fn serve<P: Protocol>(
    protocol: &Arc<P>,
    listener: &TcpListener,
    shape: Shape,
    workload: Workload,
) -> Result<()> {
    loop {
        let (socket, _) = listener.accept().map_err(context("accept"))?;
        let protocol = Arc::clone(protocol);
        thread::spawn(move || {
            let mut channel = protocol.server(socket)?;
            match (workload, shape.begin) {
                (Workload::W3, _) | (_, Begin::Every(_) | Begin::AtRandom(_)) => {
                    let request = message(&shape).len();
                    pipelined::answer(&mut channel, request, shape.answer, shape.streams)
                }
                (_, Begin::AfterAnswer) => answer(&mut channel, &mut Source::new(None)),
            }
        });
    }
}

/// Downloads on as many connections as QUIC has streams, one thread each.
fn download_all<P: Protocol>(
    protocol: &Arc<P>,
    address: SocketAddr,
    shape: Shape,
    count: &Arc<Count>,
    check: bool,
) -> Result<()> {
    let places = shape.connections * shape.streams;
    // The threads, and this one, which reports to the parent.
    let ready = Arc::new(Barrier::new(places + 1));
    let clients: Vec<_> = (0..places)
        .map(|place| {
            let (protocol, count) = (Arc::clone(protocol), Arc::clone(count));
            let ready = Arc::clone(&ready);
            thread::spawn(move || {
                let connected =
                    TcpStream::connect(address).and_then(|socket| protocol.client(socket));
                ready.wait();
                let mut place = Place::new(shape, place, Instant::now(), check, &count);
                match shape.begin {
                    Begin::AfterAnswer => download(connected?, shape, &count, check),
                    _ => in_turn::ask(&mut connected?, &message(&shape), shape.answer, &mut place),
                }
            })
        })
        .collect();
    ready.wait();
    say(&Message::Working);
    for client in clients {
        client
            .join()
            .map_err(|_| Failure::new("a thread panicked"))?
            .map_err(context("download"))?;
    }
    Ok(())
}

fn download(mut channel: impl Channel, shape: Shape, count: &Count, check: bool) -> io::Result<()> {
    channel.prepare_to_receive()?;
    channel.send(&shape.answer.to_be_bytes())?;
    let mut verifier = Verifier::new(check, shape.answer);
    while channel
        .receive(&mut |bytes| {
            verifier.take(bytes);
            count.add_bytes(bytes.len());
        })?
        .is_some()
    {}
    verifier.end().map_err(io::Error::other)?;
    count.add_units(1);
    Ok(())
}

/// Serves W6's connections, until all clients have left.
fn answer_scattered<P: Protocol>(
    protocol: &P,
    listener: &TcpListener,
    shape: &Shape,
) -> io::Result<()> {
    let sockets = listener.incoming().take(shape.connections);
    let mut group = Group::<P>::new(sockets, |socket| protocol.server(socket))?;
    group.answer(message(shape).len(), shape.answer as usize)
}

/// Makes W6's requests until none are left.
fn ask_scattered<P: Protocol>(
    protocol: &P,
    address: SocketAddr,
    shape: Shape,
    check: bool,
    count: &Count,
) -> io::Result<()> {
    let sockets = (0..shape.connections).map(|_| TcpStream::connect(address));
    let mut group = Group::<P>::new(sockets, |socket| protocol.client(socket))?;
    say(&Message::Working);
    let start = Instant::now();
    let mut places: Vec<_> = (0..shape.connections)
        .map(|index| Place::new(shape, index, start, check, count))
        .collect();
    group.ask(&message(&shape), shape.answer as usize, &mut places)
}

/// Compares and counts a client's responses, up to the number wanted.
struct Checked<'a> {
    check: bool,
    answer: u64,
    verifier: Verifier,
    /// Not yet requested.
    left: u64,
    /// Answered since units were last counted.
    fresh: u64,
    count: &'a Count,
}

impl Responses for Checked<'_> {
    fn take(&mut self, bytes: &[u8]) {
        self.verifier.take(bytes);
        self.count.add_bytes(bytes.len());
    }

    fn complete(&mut self) -> io::Result<()> {
        self.fresh += 1;
        let next = Verifier::new(self.check, self.answer);
        let done = std::mem::replace(&mut self.verifier, next);
        done.end().map_err(io::Error::other)
    }

    fn wanted(&mut self, room: usize) -> usize {
        self.count.add_units(std::mem::take(&mut self.fresh));
        let now = usize::try_from(self.left).map_or(room, |left| left.min(room));
        self.left -= now as u64;
        now
    }
}

/// Keeps a number of requests in flight on one connection.
fn requests<P: Protocol>(
    protocol: &P,
    address: SocketAddr,
    shape: Shape,
    count: &Count,
    check: bool,
) -> io::Result<()> {
    let mut channel = protocol.client(TcpStream::connect(address)?)?;
    say(&Message::Working);
    let pipeline = Pipeline {
        request: message(&shape),
        response: shape.answer,
        in_flight: shape.streams,
    };
    let mut checked = Checked {
        check,
        answer: shape.answer,
        verifier: Verifier::new(check, shape.answer),
        left: shape.repeat.saturating_mul(shape.streams as u64),
        fresh: 0,
        count,
    };
    pipelined::ask(&mut channel, &pipeline, &mut checked)
}
