//! Plain TCP and TLS over TCP: the controls of `squall_yard`, in processes of their own.
//!
//! ```text
//!   bulk        one thread per connection at each end, 256 KiB per system call; a stream of QUIC
//!               is a connection here
//!   requests    one connection; reads what is there and writes all it asks for, in one call each
//!   handshakes  four threads at each end: connect, handshake, one empty request, close
//! ```

mod handshakes;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use rustls::crypto::CryptoProvider;
use squall_yard::certificate::Certificate;
use squall_yard::controls::channel::{Channel as _, Protocol, answer};
use squall_yard::controls::requests::{self as pipelined, Pipeline, Responses};
use squall_yard::controls::{tcp, tls};
use squall_yard::error::{Failure, Result, context};
use squall_yard::options::Suite;
use squall_yard::source::Source;

use super::job::{Contender, Job, Message, Role, Shape, Workload};
use super::process::{Count, say};
use super::verify::{Verifier, message};

/// Does one end's work.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    if job.workload.is_handshakes() {
        return handshakes::run(job, count);
    }
    if job.contender == Contender::Tcp {
        return run_as(&Arc::new(tcp::Plain), job, count);
    }
    let certificate = Certificate::read(&job.certificate, &job.key)?;
    let tls = tls::Tls::new(provider(&job.provider), Suite::Aes128, &certificate)?;
    run_as(&Arc::new(tls), job, count)
}

/// The crypto library of that name.
fn provider(name: &str) -> CryptoProvider {
    if name == "ring" {
        rustls::crypto::ring::default_provider()
    } else {
        rustls::crypto::aws_lc_rs::default_provider()
    }
}

/// A listener on any port of this machine, its address told.
fn listen() -> Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(context("no TCP port to listen on at 127.0.0.1"))?;
    let address = listener.local_addr().map_err(context("local address"))?;
    say(&Message::Listening(address));
    Ok(listener)
}

fn run_as<P: Protocol>(protocol: &Arc<P>, job: &Job, count: &Arc<Count>) -> Result<()> {
    let shape = job.workload.shape(job.check);
    match job.role {
        Role::Server => serve(protocol, shape, job.workload),
        Role::Client(address) if job.workload == Workload::W3 => {
            requests(&**protocol, address, shape, count, job.check).map_err(context("requests"))
        }
        Role::Client(address) => {
            let clients: Vec<_> = (0..shape.connections * shape.streams)
                .map(|_| {
                    let (protocol, count) = (Arc::clone(protocol), Arc::clone(count));
                    let check = job.check;
                    thread::spawn(move || download(&*protocol, address, shape, &count, check))
                })
                .collect();
            for client in clients {
                client
                    .join()
                    .map_err(|_| Failure::new("a thread panicked"))?
                    .map_err(context("download"))?;
            }
            Ok(())
        }
    }
}

/// Serves connections, a thread each, until the process ends.
fn serve<P: Protocol>(protocol: &Arc<P>, shape: Shape, workload: Workload) -> Result<()> {
    let listener = listen()?;
    loop {
        let (socket, _) = listener.accept().map_err(context("accept"))?;
        let protocol = Arc::clone(protocol);
        thread::spawn(move || {
            let mut channel = protocol.server(socket)?;
            if workload == Workload::W3 {
                pipelined::answer(&mut channel, message(&shape).len(), shape.answer)
            } else {
                answer(&mut channel, &mut Source::new(None))
            }
        });
    }
}

fn download<P: Protocol>(
    protocol: &P,
    address: SocketAddr,
    shape: Shape,
    count: &Count,
    check: bool,
) -> io::Result<()> {
    let mut channel = protocol.client(TcpStream::connect(address)?)?;
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

/// Compares and counts a client's responses, until there were as many as wanted.
struct Checked<'a> {
    check: bool,
    answer: u64,
    verifier: Verifier,
    /// Not asked for yet.
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

/// Keeps so many requests in flight on one connection.
fn requests<P: Protocol>(
    protocol: &P,
    address: SocketAddr,
    shape: Shape,
    count: &Count,
    check: bool,
) -> io::Result<()> {
    let mut channel = protocol.client(TcpStream::connect(address)?)?;
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
