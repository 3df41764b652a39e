//! The controls' frame for handshakes, and for connections that come and go: two threads for each
//! concurrent one, and their clocks.
//!
//! ```text
//!   client thread ── connects repeatedly ──► its own listener, server thread
//!   when the time is up: a last connection, as a signal
//! ```
//! Blocking sockets, as in `bulk`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, HandshakeKind, ServerConfig};

use super::handshakes;
use super::operations::{Client, Cpu, listen, sum};
use super::threads::{join, spawn};
use crate::certificate::Certificate;
use crate::cpu::Cores;
use crate::ends::{client_tls, server_tls};
use crate::error::{Failure, Result, context};
use crate::latency::Histogram;
use crate::live::Counter;
use crate::options::Options;
use crate::outcome::Done;
use crate::tickets::Watch;
use crate::work::{Churn, Handshakes, Kind};
use crate::{interrupt, sys};

/// Handshakes of TLS over TCP, with squall's crypto library, suite and groups.
pub struct TlsHandshakes {
    server: Arc<ServerConfig>,
    /// One for all pairs of threads, or one for each.
    clients: Vec<Arc<ClientConfig>>,
    watch: Arc<Watch>,
    loopback: IpAddr,
}

/// What a client's thread repeats.
#[derive(Clone, Copy)]
struct Plan {
    wanted: HandshakeKind,
    requests: handshakes::Requests,
    /// `None`: only once.
    time: Option<Duration>,
}

/// Tells the server's thread that the client's thread has ended, however it ended.
struct Ending {
    address: SocketAddr,
    over: Arc<AtomicBool>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // Wakes a server that waits in `accept`; one that has ended need not be told.
        let _ = TcpStream::connect(self.address);
    }
}

impl TlsHandshakes {
    /// TLS for both ends with a certificate, configured like squall's ends, for this many
    /// handshakes at a time.
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

    /// Uses an address of this machine other than 127.0.0.1.
    #[must_use]
    pub fn over(mut self, loopback: IpAddr) -> Self {
        self.loopback = loopback;
        self
    }

    /// Runs one round; resumed handshakes use tickets from unmeasured full ones.
    ///
    /// # Errors
    /// A handshake failed, or more than 1 % were of the wrong kind.
    pub fn run(&self, work: &Handshakes, cores: Cores, live: &Arc<Counter>) -> Result<(Done, Cpu)> {
        self.watch.forget();
        if work.kind == Kind::Resumed {
            let once = Plan {
                wanted: HandshakeKind::Full,
                requests: handshakes::Requests::EMPTY,
                time: None,
            };
            self.repeat(&self.server, work.in_flight, once, cores, live)?;
            self.watch.give(true);
        }
        let wanted = match work.kind {
            Kind::Full => HandshakeKind::Full,
            Kind::Resumed => HandshakeKind::Resumed,
            Kind::Early => return Err(Failure::new("early data over TCP is not supported")),
        };
        let plan = Plan {
            wanted,
            requests: handshakes::Requests::EMPTY,
            time: Some(work.time),
        };
        let (servers, clients) = self.repeat(&self.server, work.in_flight, plan, cores, live)?;
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

    /// Runs one round of connections that come and go, without tickets.
    ///
    /// # Errors
    /// A connection failed.
    pub fn churn(&self, work: &Churn, cores: Cores, live: &Arc<Counter>) -> Result<(Done, Cpu)> {
        self.watch.forget();
        let mut server = ServerConfig::clone(&self.server);
        server.send_tls13_tickets = 0;
        let plan = Plan {
            wanted: HandshakeKind::Full,
            requests: handshakes::Requests {
                number: work.requests as u64,
                answer: work.down,
            },
            time: Some(work.time),
        };
        let server = Arc::new(server);
        let (servers, clients) = self.repeat(&server, work.in_flight, plan, cores, live)?;
        Ok(sum(&servers, &clients))
    }

    /// Makes connections on this many pairs of threads.
    fn repeat(
        &self,
        server: &Arc<ServerConfig>,
        pairs: usize,
        plan: Plan,
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
            servers.push(Self::serve(server, plan, listener, over, cores)?);
            clients.push(Self::connect(client, ending, plan, cores, live)?);
        }
        let clients = join(clients);
        let servers = join(servers)?;
        Ok((servers, clients?))
    }

    fn serve(
        server: &Arc<ServerConfig>,
        plan: Plan,
        listener: TcpListener,
        over: Arc<AtomicBool>,
        cores: Cores,
    ) -> Result<JoinHandle<Result<Duration>>> {
        let (config, requests) = (Arc::clone(server), plan.requests.number);
        spawn("tls_tcp server".to_owned(), cores.server, move || {
            let start = sys::thread_cpu();
            loop {
                let (socket, _) = listener.accept().map_err(context("tls_tcp server"))?;
                if over.load(Ordering::Acquire) {
                    return Ok(sys::thread_cpu().saturating_sub(start));
                }
                handshakes::accept(socket, &config, requests).map_err(context("tls_tcp server"))?;
            }
        })
    }

    fn connect(
        client: &Arc<ClientConfig>,
        ending: Ending,
        plan: Plan,
        cores: Cores,
        live: &Arc<Counter>,
    ) -> Result<JoinHandle<Result<Client>>> {
        let (config, live) = (Arc::clone(client), Arc::clone(live));
        spawn("tls_tcp client".to_owned(), cores.client, move || {
            // Captures the whole value, so it is dropped when the thread ends.
            let ending = ending;
            let (start, begin) = (sys::thread_cpu(), Instant::now());
            let mut latency = Histogram::default();
            let mut missed = 0;
            loop {
                let requests = plan.requests;
                let made = handshakes::connect(ending.address, &config, requests, &mut |_| Ok(()))
                    .map_err(context("tls_tcp client"))?;
                missed += u64::from(made.kind != Some(plan.wanted));
                latency.record(match requests.answer {
                    0 => made.took,
                    _ => made.answered,
                });
                let Some(time) = plan.time else { break };
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
    use super::*;

    #[test]
    fn handshakes_of_the_wrong_kind_are_an_error() {
        let certificate = Certificate::generate().expect("a certificate");
        let options = crate::parse::group(&[]).expect("no arguments");
        let mut tls = TlsHandshakes::new(&certificate, &options, 2).expect("TLS");
        let work = Handshakes {
            kind: Kind::Resumed,
            in_flight: 2,
            time: Duration::from_millis(50),
        };
        let live = Arc::default();
        let (done, cpu) = tls
            .run(&work, Cores::NONE, &live)
            .expect("resumed handshakes");
        assert!(done.count() >= 2 && cpu.iter().all(|cpu| !cpu.is_zero()));
        // A server without tickets: nothing can be resumed.
        let mut server = ServerConfig::clone(&tls.server);
        server.send_tls13_tickets = 0;
        tls.server = Arc::new(server);
        let error = tls.run(&work, Cores::NONE, &live).expect_err("full ones");
        assert!(error.to_string().contains("resumed"), "{error}");
    }
}
