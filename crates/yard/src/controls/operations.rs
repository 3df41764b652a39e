//! The controls' frame for requests and handshakes: two threads a connection, or a handshake at a
//! time, and their clocks.
//!
//! ```text
//!   requests     client thread ◄─ a connection, opened before the clocks start ─► server thread
//!   handshakes   client thread ── connects, again and again ──► its own listener, server thread
//!                when the time is up: a last connection, to say so
//! ```
//! Blocking sockets, as in `bulk`.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, HandshakeKind, ServerConfig};

use super::channel::{Channel as _, Protocol};
use super::requests::{Pipeline, Responses};
use super::threads::{End, join, spawn};
use super::{handshakes, requests};
use crate::certificate::Certificate;
use crate::cpu::Cores;
use crate::ends::{client_tls, server_tls};
use crate::error::{Failure, Result, context};
use crate::latency::Histogram;
use crate::live::Counter;
use crate::options::Options;
use crate::outcome::Done;
use crate::tickets::Watch;
use crate::work::{Handshakes, Kind, Requests, request};
use crate::{interrupt, sys};

/// CPU of the server's threads and of the client's.
pub type Cpu = [Duration; 2];

/// What a client's thread brings back.
struct Client {
    cpu: Duration,
    begin: Instant,
    end: Instant,
    latency: Histogram,
    /// Handshakes that were of another kind.
    missed: u64,
}

/// The sum of all threads.
fn sum(servers: &[Duration], clients: &[Client]) -> (Done, Cpu) {
    let begin = clients.iter().map(|one| one.begin).min();
    let end = clients.iter().map(|one| one.end).max();
    let mut done = Done {
        elapsed: begin.zip(end).map_or(Duration::ZERO, |(a, b)| b - a),
        ..Done::default()
    };
    for client in clients {
        done.latency.add(&client.latency);
    }
    let cpu = [
        servers.iter().sum(),
        clients.iter().map(|one| one.cpu).sum(),
    ];
    (done, cpu)
}

/// Runs one round of requests on this many connections over this address.
///
/// # Errors
/// A connection broke.
pub fn requests<P: Protocol>(
    protocol: &Arc<P>,
    work: &Requests,
    connections: usize,
    cores: Cores,
    loopback: IpAddr,
    live: &Arc<Counter>,
) -> Result<(Done, Cpu)> {
    let (listener, address) = listen(loopback)?;
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let (near, far) = TcpStream::connect(address)
            .and_then(|near| Ok((near, listener.accept()?.0)))
            .map_err(context("cannot connect over loopback"))?;
        let server = End::new(protocol, true, far, cores.server);
        servers.push(serve_requests(server, work)?);
        let client = End::new(protocol, false, near, cores.client);
        clients.push(make_requests(client, work, live)?);
    }
    let clients = join(clients);
    // A server's own failure says more than what its client saw of it.
    let servers = join(servers)?;
    Ok(sum(&servers, &clients?))
}

/// A port of this machine.
fn listen(loopback: IpAddr) -> Result<(TcpListener, SocketAddr)> {
    let doing = format!("cannot listen on a TCP port of {loopback}");
    let listener = TcpListener::bind((loopback, 0)).map_err(context(&doing))?;
    let address = listener.local_addr().map_err(context("local address"))?;
    Ok((listener, address))
}

fn serve_requests<P: Protocol>(
    end: End<P>,
    work: &Requests,
) -> Result<JoinHandle<Result<Duration>>> {
    let (name, core) = (end.name(), end.core);
    let (up, down) = (work.up, work.down);
    spawn(name.clone(), core, move || {
        let mut channel = end.open()?;
        let start = sys::thread_cpu();
        requests::answer(&mut channel, up, down).map_err(context(&name))?;
        Ok(sys::thread_cpu().saturating_sub(start))
    })
}

/// Times a client's responses, until the time is up.
struct Timed {
    deadline: Instant,
    /// When requests were sent that are not answered yet, and how many at that time.
    sent: VecDeque<(Instant, usize)>,
    /// Answered since the clock was last read.
    fresh: usize,
    latency: Histogram,
    live: Arc<Counter>,
}

impl Responses for Timed {
    fn take(&mut self, _bytes: &[u8]) {}

    fn complete(&mut self) -> io::Result<()> {
        self.fresh += 1;
        Ok(())
    }

    fn wanted(&mut self, room: usize) -> usize {
        // What one read completed was there at one time.
        let now = Instant::now();
        self.live.add(self.fresh as u64);
        while let (1.., Some((begin, count))) = (self.fresh, self.sent.front_mut()) {
            let answered = self.fresh.min(*count);
            for _ in 0..answered {
                self.latency.record(now - *begin);
            }
            self.fresh -= answered;
            *count -= answered;
            if *count == 0 {
                self.sent.pop_front();
            }
        }
        if now >= self.deadline || interrupt::raised() {
            return 0;
        }
        self.sent.push_back((now, room));
        room
    }
}

fn make_requests<P: Protocol>(
    end: End<P>,
    work: &Requests,
    live: &Arc<Counter>,
) -> Result<JoinHandle<Result<Client>>> {
    let (name, core, time) = (end.name(), end.core, work.time);
    let pipeline = Pipeline {
        request: request(work.up, work.down),
        response: work.down,
        in_flight: work.in_flight,
    };
    let live = Arc::clone(live);
    spawn(name.clone(), core, move || {
        let mut channel = end.open()?;
        let (start, begin) = (sys::thread_cpu(), Instant::now());
        let mut timed = Timed {
            deadline: begin + time,
            sent: VecDeque::new(),
            fresh: 0,
            latency: Histogram::default(),
            live,
        };
        requests::ask(&mut channel, &pipeline, &mut timed).map_err(context(&name))?;
        let (cpu, end) = (sys::thread_cpu().saturating_sub(start), Instant::now());
        // The server answers the farewell; closing before it would reset the connection.
        channel.finish().map_err(context(&name))?;
        while channel
            .receive(&mut |_| ())
            .map_err(context(&name))?
            .is_some()
        {}
        Ok(Client {
            cpu,
            begin,
            end,
            latency: timed.latency,
            missed: 0,
        })
    })
}

/// Handshakes of TLS over TCP, with the crypto library, the suite and the groups that squall has.
pub struct TlsHandshakes {
    server: Arc<ServerConfig>,
    /// One for all, or one for each pair of threads.
    clients: Vec<Arc<ClientConfig>>,
    watch: Arc<Watch>,
    loopback: IpAddr,
}

/// Tells the server's thread when the client's thread ends, however it ends.
struct Ending {
    address: SocketAddr,
    over: Arc<AtomicBool>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // A server that waits in `accept` wakes up; one that has gone needs no telling.
        let _ = TcpStream::connect(self.address);
    }
}

impl TlsHandshakes {
    /// Both ends' TLS around a certificate, as squall's ends have it, for this many handshakes at a
    /// time.
    ///
    /// # Errors
    /// As [`server_tls`] and [`client_tls`].
    pub fn new(certificate: &Certificate, options: &Options, in_flight: usize) -> Result<Self> {
        let server = server_tls(certificate, options)?;
        let make = |provider| certificate.client(provider);
        let (clients, watch) = client_tls(options, in_flight, make)?;
        Ok(Self {
            server: Arc::new(server),
            clients,
            watch,
            loopback: Ipv4Addr::LOCALHOST.into(),
        })
    }

    /// The same over another address of this machine than 127.0.0.1.
    #[must_use]
    pub fn over(mut self, loopback: IpAddr) -> Self {
        self.loopback = loopback;
        self
    }

    /// Runs one round; resumed handshakes have tickets from unmeasured full ones.
    ///
    /// # Errors
    /// A handshake failed, or more than 1 % were of another kind.
    pub fn run(&self, work: &Handshakes, cores: Cores, live: &Arc<Counter>) -> Result<(Done, Cpu)> {
        self.watch.forget();
        if work.kind == Kind::Resumed {
            self.repeat(work.in_flight, HandshakeKind::Full, None, cores, live)?;
            self.watch.give(true);
        }
        let wanted = match work.kind {
            Kind::Full => HandshakeKind::Full,
            Kind::Resumed => HandshakeKind::Resumed,
            Kind::Early => return Err(Failure::new("early data over TCP is not supported")),
        };
        let time = Some(work.time);
        let (servers, clients) = self.repeat(work.in_flight, wanted, time, cores, live)?;
        let missed: u64 = clients.iter().map(|one| one.missed).sum();
        let (done, cpu) = sum(&servers, &clients);
        if missed * 100 > done.count() {
            return Err(Failure::new(format!(
                "{missed} of {} handshakes of TLS over TCP were not of kind {}",
                done.count(),
                work.kind.name()
            )));
        }
        Ok((done, cpu))
    }

    /// Makes handshakes on this many pairs of threads: for that time, or one each.
    fn repeat(
        &self,
        pairs: usize,
        wanted: HandshakeKind,
        time: Option<Duration>,
        cores: Cores,
        live: &Arc<Counter>,
    ) -> Result<(Vec<Duration>, Vec<Client>)> {
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for client in self.clients.iter().cycle().take(pairs) {
            let (listener, address) = listen(self.loopback)?;
            let over = Arc::new(AtomicBool::new(false));
            let ending = Ending {
                address,
                over: Arc::clone(&over),
            };
            servers.push(self.serve(listener, over, cores)?);
            clients.push(Self::connect(client, ending, wanted, time, cores, live)?);
        }
        let clients = join(clients);
        let servers = join(servers)?;
        Ok((servers, clients?))
    }

    fn serve(
        &self,
        listener: TcpListener,
        over: Arc<AtomicBool>,
        cores: Cores,
    ) -> Result<JoinHandle<Result<Duration>>> {
        let config = Arc::clone(&self.server);
        spawn("tls_tcp server".to_owned(), cores.server, move || {
            let start = sys::thread_cpu();
            loop {
                let (socket, _) = listener.accept().map_err(context("tls_tcp server"))?;
                if over.load(Ordering::Acquire) {
                    return Ok(sys::thread_cpu().saturating_sub(start));
                }
                handshakes::accept(socket, &config, 1).map_err(context("tls_tcp server"))?;
            }
        })
    }

    fn connect(
        client: &Arc<ClientConfig>,
        ending: Ending,
        wanted: HandshakeKind,
        time: Option<Duration>,
        cores: Cores,
        live: &Arc<Counter>,
    ) -> Result<JoinHandle<Result<Client>>> {
        let (config, live) = (Arc::clone(client), Arc::clone(live));
        spawn("tls_tcp client".to_owned(), cores.client, move || {
            // The whole of it: its end is the thread's.
            let ending = ending;
            let (start, begin) = (sys::thread_cpu(), Instant::now());
            let mut latency = Histogram::default();
            let mut missed = 0;
            loop {
                let empty = handshakes::Requests::EMPTY;
                let made = handshakes::connect(ending.address, &config, empty, &mut |_| Ok(()))
                    .map_err(context("tls_tcp client"))?;
                missed += u64::from(made.kind != Some(wanted));
                latency.record(made.took);
                let Some(time) = time else { break };
                live.add(1);
                if interrupt::due(Some(begin + time)) {
                    break;
                }
            }
            Ok(Client {
                cpu: sys::thread_cpu().saturating_sub(start),
                begin,
                end: Instant::now(),
                latency,
                missed,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn handshakes_of_another_kind_are_an_error() {
        let certificate = Certificate::generate().expect("a certificate");
        let options = Line::try_parse_from(["perf"]).expect("arguments").options;
        let mut tls = TlsHandshakes::new(&certificate, &options, 2).expect("TLS");
        let work = Handshakes {
            kind: Kind::Resumed,
            in_flight: 2,
            time: Duration::from_millis(50),
        };
        let live = Arc::default();
        let (done, cpu) = tls.run(&work, Cores::NONE, &live).expect("resumed ones");
        assert!(done.count() >= 2 && cpu.iter().all(|cpu| !cpu.is_zero()));
        // A server without tickets: nothing can be resumed.
        let mut server = ServerConfig::clone(&tls.server);
        server.send_tls13_tickets = 0;
        tls.server = Arc::new(server);
        let error = tls.run(&work, Cores::NONE, &live).expect_err("full ones");
        assert!(error.to_string().contains("resumed"), "{error}");
    }

    #[test]
    fn each_response_is_timed_from_its_own_request() {
        let mut timed = Timed {
            deadline: Instant::now() + Duration::from_secs(60),
            sent: VecDeque::new(),
            fresh: 0,
            latency: Histogram::default(),
            live: Arc::default(),
        };
        assert_eq!(timed.wanted(3), 3);
        let pause = Duration::from_millis(30);
        std::thread::sleep(pause);
        timed.complete().expect("taken");
        assert_eq!(timed.wanted(1), 1);
        // Two of the first three, and the one that followed a moment ago.
        for _ in 0..3 {
            timed.complete().expect("taken");
        }
        timed.deadline = Instant::now();
        assert_eq!(timed.wanted(3), 0, "the time is up");
        assert_eq!((timed.latency.count(), timed.sent.len()), (4, 0));
        let times = timed.latency.percentiles().expect("four");
        assert!(times.p50 >= pause.as_secs_f64() * 1e6 * 0.98, "{times}");
    }
}
