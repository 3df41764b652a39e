//! `squall perf server`: answers perf clients, including those of others, until Ctrl-C.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use squall::{Connection, Endpoint};
use squall_yard::certificate::Certificate;
use squall_yard::ends;
use squall_yard::error::{Failure, Result, context};
use squall_yard::meter::{Reading, Ticker, Volume};
use squall_yard::parse::MAX_COUNT;
use squall_yard::stages::{self, Table};
use squall_yard::suites::Suites;
use squall_yard::{interrupt, layout};

use super::args::Server;
use super::endpoint;
use super::protocol::{self, Service, Tally};
use crate::output::{print_json, say};

/// Streams that a client may have open at a time on one connection: the maximum of `-s`, in both
/// directions.
const STREAMS: usize = 2 * MAX_COUNT;

/// Serves until the user ends it, then prints a summary.
///
/// # Errors
/// The certificate, the port or the core is not available.
pub(crate) fn serve(args: &Server) -> Result<()> {
    if args.options.suite.as_ref().is_some_and(Suites::is_mix) {
        return Err(Failure::new(
            "shares in --suite are the client's choice: name one suite here, or omit --suite",
        ));
    }
    let (certificate, made) = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => (Certificate::read(cert, key)?, false),
        _ => (Certificate::generate()?, true),
    };
    let endpoint = bind(args, &certificate)?;
    let address = endpoint.local_addr().map_err(context("local address"))?;
    inform(
        args.json,
        &format!("listening on {address} (UDP), application protocol perf"),
    );
    if made {
        let fingerprint = certificate.fingerprint();
        inform(
            args.json,
            &format!(
                "certificate generated in memory for localhost, SHA-256 fingerprint {fingerprint}"
            ),
        );
    }
    let book = Arc::new(Book::new(args));
    let before = Reading::of(&endpoint);
    let ticker = Ticker::start();
    let (entries, family) = (Arc::clone(&book), args.family);
    endpoint.spawn(protocol::serve(
        endpoint.clone(),
        Arc::new(Service::default()),
        // An IPv6 socket serves both families.
        move |client| family.suits(client),
        move |connection, tally| entries.enter(connection, tally),
    ));
    endpoint::wait(&endpoint, interrupt::wait())?;
    endpoint::close(&endpoint, b"the server is shutting down")?;
    let (operations, each) = book.operations();
    let sample = before.until_now(&endpoint, Volume::Operations(operations));
    let rates = ticker.rates();
    let table = Table::new(&sample, rates).filter(|_| operations > 0);
    let retries = endpoint.stats().unrouted.retries;
    book.tell(sample.cpu.as_secs_f64(), retries, table.as_ref())?;
    if let Some(table) = table.filter(|_| !args.json) {
        let width = layout::width();
        let text = stages::text("by stage", &[(each, &table)], width);
        let overhead = table.overhead_percent();
        let remarks = stages::remarks(rates.core_ghz, rates.clocks, &[&table], overhead);
        let remarks = layout::wrap(&remarks, width);
        say(&format!("\n{text}{}", remarks.trim_end()));
    }
    Ok(())
}

/// Where to listen.
///
/// # Errors
/// -B and -4 or -6 contradict each other.
fn address(args: &Server) -> Result<SocketAddr> {
    let mut listen = args.listen;
    if let Some(local) = args.bind {
        listen.set_ip(local.ip());
        if let (SocketAddr::V6(listen), SocketAddr::V6(local)) = (&mut listen, local) {
            listen.set_scope_id(local.scope_id());
        }
        if !args.family.suits(listen) {
            let (ip, family) = (local.ip(), args.family.name());
            return Err(Failure::new(format!("-B {ip} is not an {family} address")));
        }
    } else if !args.family.suits((Ipv6Addr::UNSPECIFIED, 0).into()) {
        listen.set_ip(Ipv4Addr::UNSPECIFIED.into());
    }
    if let Some(port) = args.port {
        listen.set_port(port);
    }
    Ok(listen)
}

/// Prints a progress line; to standard error if standard output is for one JSON object.
fn inform(is_json: bool, text: &str) {
    if is_json {
        eprintln!("{text}");
    } else {
        say(text);
    }
}

fn bind(args: &Server, certificate: &Certificate) -> Result<Endpoint> {
    let listen = address(args)?;
    let mut tls = ends::server_tls(certificate, &args.options)?;
    // A request of this protocol does no harm if it is repeated.
    tls.max_early_data_size = ends::EARLY_DATA;
    let mut transport = args.options.transport(STREAMS);
    if args.retry {
        // RFC 9000 §8.1.3: with such a token, later connections would skip the Retry.
        Arc::make_mut(&mut transport).new_tokens = 0;
    }
    let mut builder = args
        .options
        .builder(listen)
        .server(squall::ServerConfig::new(tls).transport(transport));
    builder.cpus = super::these_cores(&args.cpu)?;
    if args.retry {
        builder = builder.retry_from(0);
    }
    builder.bind().map_err(|error| {
        Failure::new(format!(
            "cannot listen on UDP {listen}: {error}; choose another address or port with --listen ADDR:PORT"
        ))
    })
}

/// The server's results, with an entry for each connection that has ended.
struct Book {
    started: Instant,
    verbose: bool,
    conn_stats: bool,
    json: bool,
    sums: Mutex<Sums>,
}

/// The summary without the costs.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
struct Sums {
    connections: u64,
    /// Streams answered to their end.
    answered: u64,
    bytes_sent: u64,
    bytes_received: u64,
}

impl Book {
    fn new(args: &Server) -> Self {
        Self {
            started: Instant::now(),
            verbose: args.verbose,
            conn_stats: args.conn_stats,
            json: args.json,
            sums: Mutex::default(),
        }
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a connection that has ended.
    fn enter(&self, connection: &Connection, tally: &Tally) {
        let [sent, received, answered] = [&tally.sent, &tally.received, &tally.answered]
            .map(|count| count.load(Ordering::Relaxed));
        let mut sums = self.sums();
        sums.connections += 1;
        sums.answered += answered;
        sums.bytes_sent += sent;
        sums.bytes_received += received;
        drop(sums);
        // Thousands of handshakes per second would print as many lines.
        if self.verbose && sent + received > 0 {
            let reason = connection
                .close_reason()
                .map_or_else(String::new, |reason| format!(", {reason}"));
            let line = format!(
                "[{:8.1} s] {}: sent {sent} bytes, received {received} bytes{reason}",
                self.started.elapsed().as_secs_f64(),
                connection.remote_address(),
            );
            inform(self.json, &line);
        }
        if self.conn_stats {
            eprintln!(
                "{}: {}",
                connection.remote_address(),
                super::connection_stats(connection)
            );
        }
    }

    /// The unit of the costs: answers, or handshakes if there were no answers.
    fn operations(&self) -> (u64, &'static str) {
        let sums = self.sums();
        match sums.answered {
            0 => (sums.connections, "a connection"),
            answered => (answered, "an answer"),
        }
    }

    /// The summary.
    fn tell(&self, cpu_s: f64, retries: u64, table: Option<&Table>) -> Result<()> {
        let sums = *self.sums();
        if self.json {
            return print_json(&serde_json::json!({
                "seconds": self.started.elapsed().as_secs_f64(),
                "sums": sums,
                "server_cpu_s": cpu_s,
                "retries": retries,
                "stages": table,
            }));
        }
        let mut line = format!(
            "served {} connection(s) and {} stream(s) in {:.1} s: sent {} bytes, received {} bytes, {cpu_s:.3} CPU-seconds",
            sums.connections,
            sums.answered,
            self.started.elapsed().as_secs_f64(),
            sums.bytes_sent,
            sums.bytes_received,
        );
        if retries > 0 {
            line += &format!(", sent {retries} Retry packet(s)");
        }
        say(&layout::wrap(&line, layout::width()));
        Ok(())
    }
}
