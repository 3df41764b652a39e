//! The controls' frame for requests: two threads per connection, and their clocks.
//!
//! ```text
//!   client thread ◄─ a connection, opened before the clocks start ─► server thread
//!   one at a time on each of many connections: one thread per end for all (`scattered`)
//! ```
//! Blocking sockets, as in `bulk`, where each connection has a thread.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::channel::{Channel, Protocol};
use super::in_turn::{self, Start, Turns};
use super::requests;
use super::requests::{Pipeline, Responses};
#[cfg(unix)]
use super::scattered::Group;
use super::threads::{End, join, spawn};
use crate::cpu::Cores;
use crate::error::{Result, context};
use crate::latency::{Histogram, Shared};
use crate::live::Counter;
use crate::outcome::Done;
use crate::pace::{Begin, Pace};
use crate::work::{Requests, request};
use crate::{interrupt, sys};

/// CPU of the server's threads and of the client's.
pub type Cpu = [Duration; 2];

/// What a client's thread returns.
pub(super) struct Client {
    pub(super) cpu: Duration,
    pub(super) begin: Instant,
    pub(super) end: Instant,
    pub(super) latency: Histogram,
    /// Handshakes that were of the wrong kind.
    pub(super) missed: u64,
}

impl Client {
    /// What this thread has done since `begin`, when its CPU clock said `start`.
    fn since(start: Duration, begin: Instant, latency: Histogram) -> Self {
        Self {
            cpu: sys::thread_cpu().saturating_sub(start),
            begin,
            end: Instant::now(),
            latency,
            missed: 0,
        }
    }
}

/// The sum over all threads.
pub(super) fn sum(servers: &[Duration], clients: &[Client]) -> (Done, Cpu) {
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
    let pairs = connect_all(connections, loopback)?;
    if is_scattered(work, connections) {
        return scattered(protocol, work, pairs, cores, live);
    }
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    let ready = Arc::new(Barrier::new(connections));
    for (place, (near, far)) in pairs.into_iter().enumerate() {
        let server = End::new(protocol, true, far, cores.server);
        servers.push(serve_requests(server, work)?);
        let client = End::new(protocol, false, near, cores.client);
        let ready = Arc::clone(&ready);
        clients.push(match work.begin {
            Begin::AfterAnswer => make_requests(client, work, ready, live)?,
            _ => make_in_turn(client, work, (place, connections), ready, live)?,
        });
    }
    let clients = join(clients);
    // A server's own error says more than what its client saw.
    let servers = join(servers)?;
    Ok(sum(&servers, &clients?))
}

/// Both ends' sockets of this many connections, the client's first.
fn connect_all(connections: usize, loopback: IpAddr) -> Result<Vec<(TcpStream, TcpStream)>> {
    let (listener, address) = listen(loopback)?;
    let connect = |_| {
        let near = TcpStream::connect(address)?;
        Ok((near, listener.accept()?.0))
    };
    let pairs = (0..connections).map(connect).collect::<io::Result<_>>();
    pairs.map_err(context("cannot connect over loopback"))
}

/// Listens on a port of this machine.
pub(super) fn listen(loopback: IpAddr) -> Result<(TcpListener, SocketAddr)> {
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
    let (up, down, in_flight) = (work.up, work.down, work.in_flight);
    spawn(name.clone(), core, move || {
        let mut channel = end.open()?;
        let start = sys::thread_cpu();
        requests::answer(&mut channel, up, down, in_flight).map_err(context(&name))?;
        Ok(sys::thread_cpu().saturating_sub(start))
    })
}

/// Times a client's responses, until the time is up.
struct Timed {
    deadline: Instant,
    /// Unanswered requests: when they were sent, and how many at a time.
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
        // All that one read completes arrived at the same time.
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
    ready: Arc<Barrier>,
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
        let channel = end.open();
        // Otherwise the others would wait for ever.
        ready.wait();
        let mut channel = channel?;
        let (start, begin) = (sys::thread_cpu(), Instant::now());
        let mut timed = Timed {
            deadline: begin + time,
            sent: VecDeque::new(),
            fresh: 0,
            latency: Histogram::default(),
            live,
        };
        requests::ask(&mut channel, &pipeline, &mut timed).map_err(context(&name))?;
        let done = Client::since(start, begin, timed.latency);
        leave(&mut channel).map_err(context(&name))?;
        Ok(done)
    })
}

/// Says goodbye and waits for the server's answer; closing earlier would reset the connection.
fn leave(channel: &mut impl Channel) -> io::Result<()> {
    channel.finish()?;
    while channel.receive(&mut |_| ())?.is_some() {}
    Ok(())
}

/// Times the responses to one request at a time, until the time is up.
struct InTurn {
    pace: Pace,
    deadline: Instant,
    /// When the current request was due, or began.
    from: Instant,
    is_closed: bool,
    latency: Shared,
    live: Arc<Counter>,
}

impl InTurn {
    fn new(
        work: &Requests,
        (place, places): (usize, usize),
        begin: Instant,
        latency: &Shared,
        live: &Arc<Counter>,
    ) -> Self {
        Self {
            pace: Pace::new(work.begin, places, place, begin),
            deadline: begin + work.time,
            from: begin,
            is_closed: work.begin == Begin::AfterAnswer,
            latency: latency.clone(),
            live: Arc::clone(live),
        }
    }
}

impl Turns for InTurn {
    fn next(&mut self) -> Option<Start> {
        if interrupt::due(Some(self.deadline)) {
            return None;
        }
        match self.pace.next_due() {
            None => Some(Start::Now),
            Some(due) => {
                self.from = due;
                (due < self.deadline).then_some(Start::At(due))
            }
        }
    }

    fn begin(&mut self) {
        if self.is_closed {
            self.from = Instant::now();
        }
    }

    fn take(&mut self, _bytes: &[u8]) {}

    fn complete(&mut self) -> io::Result<()> {
        self.latency.record(self.from.elapsed());
        self.live.add(1);
        Ok(())
    }
}

/// A client's thread whose requests begin by the clock.
fn make_in_turn<P: Protocol>(
    end: End<P>,
    work: &Requests,
    place: (usize, usize),
    ready: Arc<Barrier>,
    live: &Arc<Counter>,
) -> Result<JoinHandle<Result<Client>>> {
    let (name, core, work) = (end.name(), end.core, work.clone());
    let (request, live) = (request(work.up, work.down), Arc::clone(live));
    spawn(name.clone(), core, move || {
        let channel = end.open();
        ready.wait();
        let mut channel = channel?;
        let (start, begin) = (sys::thread_cpu(), Instant::now());
        let latency = Shared::default();
        let mut turns = InTurn::new(&work, place, begin, &latency, &live);
        in_turn::ask(&mut channel, &request, work.down, &mut turns).map_err(context(&name))?;
        let done = Client::since(start, begin, latency.read());
        leave(&mut channel).map_err(context(&name))?;
        Ok(done)
    })
}

/// The largest request and response of an event loop: sockets take them at once, so neither end has
/// to wait for room.
const LARGEST: u64 = 64 * 1024;

/// Whether one event loop per end needs less CPU for this work than threads do.
pub fn is_scattered(work: &Requests, connections: usize) -> bool {
    let is_small = work.up as u64 <= LARGEST && work.down <= LARGEST;
    let is_viewers = matches!(work.begin, Begin::Every(_));
    cfg!(unix) && connections > 1 && work.in_flight == 1 && is_small && !is_viewers
}

/// One thread per end for all connections.
#[cfg(unix)]
fn scattered<P: Protocol>(
    protocol: &Arc<P>,
    work: &Requests,
    pairs: Vec<(TcpStream, TcpStream)>,
    cores: Cores,
    live: &Arc<Counter>,
) -> Result<(Done, Cpu)> {
    let (near, far): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let (own, up, down) = (Arc::clone(protocol), work.up, work.down as usize);
    let server = spawn(format!("{} server", P::NAME), cores.server, move || {
        let far = far.into_iter().map(Ok);
        let group = Group::<P>::new(far, |socket| own.server(socket));
        let mut group = group.map_err(context(P::NAME))?;
        let start = sys::thread_cpu();
        group.answer(up, down).map_err(context(P::NAME))?;
        Ok(sys::thread_cpu().saturating_sub(start))
    })?;
    let (own, work, live) = (Arc::clone(protocol), work.clone(), Arc::clone(live));
    let client = spawn(format!("{} client", P::NAME), cores.client, move || {
        let places = near.len();
        let near = near.into_iter().map(Ok);
        let group = Group::<P>::new(near, |socket| own.client(socket));
        let mut group = group.map_err(context(P::NAME))?;
        let (start, begin) = (sys::thread_cpu(), Instant::now());
        let latency = Shared::default();
        let turns = |place| InTurn::new(&work, (place, places), begin, &latency, &live);
        let mut turns: Vec<_> = (0..places).map(turns).collect();
        let asked = group.ask(&request(work.up, work.down), down, &mut turns);
        asked.map_err(context(P::NAME))?;
        Ok(Client::since(start, begin, latency.read()))
    })?;
    let clients = join(vec![client]);
    let servers = join(vec![server])?;
    Ok(sum(&servers, &clients?))
}

/// Never called, see [`is_scattered`].
#[cfg(not(unix))]
fn scattered<P: Protocol>(
    _protocol: &Arc<P>,
    _work: &Requests,
    _pairs: Vec<(TcpStream, TcpStream)>,
    _cores: Cores,
    _live: &Arc<Counter>,
) -> Result<(Done, Cpu)> {
    Err(crate::error::Failure::new(
        "event loops are for Unix systems",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Two of the first three, and the one that has just begun.
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
