//! `squall serve`: files of a folder, or a reverse proxy for an application.
//!
//! ```text
//!   quic     HTTP/3 by squall-h3, a task a connection on its worker ─┐
//!   tcp      TLS, HTTP/1.1 and HTTP/2 by hyper, a task a connection ─► watch: progress and limits
//!    │                                                     └─► standstill: streams of HTTP/2
//!    │ Request
//!    ▼
//!   site     counts (metrics, transport; exposition), logs (access), adds fields
//!    ├─► files/    cached, or opened below the root ─► reader: chunks of large ones
//!    └─► proxy/    passed on to the application, streamed in both directions
//!    │ Response<Body>
//!    ▼
//!   certificate    the certificate of new connections; SIGHUP reads it again
//!   takeover       the ports come from the process that ran before, and go to the next
//! ```
//! Content does not depend on the transport: `site::Service` takes any body.

mod access;
pub(crate) mod args;
mod body;
mod certificate;
mod exposition;
mod fields;
mod files;
mod metrics;
mod peer;
mod proxy;
mod quic;
mod reader;
#[cfg(test)]
mod scratch;
mod site;
mod standstill;
mod takeover;
mod tcp;
pub(crate) mod transport;
mod watch;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue};
use squall::Endpoint;
use squall_yard::error::{Failure, Result, context};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch as flag};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use self::access::Log;
use self::args::{Metrics as MetricsAt, Serve};
use self::certificate::{Certificate, Source};
use self::files::Files;
use self::metrics::Metrics;
use self::proxy::{Proxy, Timeouts};
use self::site::{Content, Site};
use self::takeover::{Inherited, Successor};
use self::transport::Transport;
use self::watch::Limits;
use crate::output::say;

/// What a shell reports for a command that Ctrl-C ended: 128 + SIGINT.
const IMPATIENT: i32 = 130;

/// How long connections that have begun when the port is handed over may take to make their first
/// request. A GOAWAY before that would make the client repeat it.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// Runs the command.
///
/// # Errors
/// The folder, the certificate, the log or the address is not available.
pub(crate) fn main(args: &Serve) -> Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(args.workers.unwrap_or_else(cores))
        .enable_all()
        .thread_name("serve")
        .build()
        .map_err(context("cannot start threads"))?;
    let result = runtime.block_on(run(args));
    // A file system that hangs does not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn run(args: &Serve) -> Result<()> {
    let mut signals = Signals::new()?;
    let certificate = Arc::new(Certificate::new(source(args))?);
    let metrics = Arc::<Metrics>::default();
    // Whatever can fail comes before the ports are taken from a running server.
    let mut site = site(args, Arc::clone(&metrics))?;
    let mut input = pin!(input(args.until_eof)?);
    let (close, closing) = flag::channel(false);
    let (stop, stopping) = flag::channel(false);
    let mut inherited = match &args.takeover {
        Some(path) => Inherited::request(path, args.listen)?,
        None => None,
    };
    let mut metrics_listener = None;
    if let Some(MetricsAt::Address(address)) = args.metrics {
        let listener = match inherited_listener(&mut inherited, address)? {
            Some(listener) => listener,
            None => bind(address, "metrics").await?,
        };
        let address = listener.local_addr().map_err(context("metrics"))?;
        say(&format!("metrics at http://{address}/metrics"));
        let listener = Arc::new(listener);
        metrics_listener = Some(Arc::clone(&listener));
        let (metrics, closing) = (Arc::clone(&metrics), closing.clone());
        tokio::spawn(tcp::serve_metrics(listener, metrics, closing));
    }
    let (listener, endpoint) = match inherited {
        Some(inherited) => take_over(args, inherited, &certificate)?,
        None => bind_both(args, &certificate).await?,
    };
    let listener = Arc::new(listener);
    let address = listener.local_addr().map_err(context("local address"))?;
    if let Some(endpoint) = &endpoint {
        let transport = Transport::new(endpoint.clone(), args.stage_times);
        // Set only here.
        let _ = site.metrics.transport.set(transport);
        site.alt_svc = Some(alt_svc(address.port())?);
    }
    let site = Arc::new(site);
    let permits = Arc::new(Semaphore::new(args.max_connections as usize));
    let server = Arc::new(tcp::Server {
        site: Arc::clone(&site),
        tls: TlsAcceptor::from(Arc::new(certificate.tls(&tcp::ALPN))),
        limits: limits(args),
        permits: Arc::clone(&permits),
        closing: closing.clone(),
        stopping: stopping.clone(),
    });
    let accepting = tokio::spawn(server.run(Arc::clone(&listener)));
    if let Some(endpoint) = &endpoint {
        let server = Arc::new(quic::Server {
            site: Arc::clone(&site),
            limits: limits(args),
            permits: Arc::clone(&permits),
            closing,
            stopping,
        });
        tokio::spawn(server.run(endpoint.clone()));
    }
    // The listeners close when they are no longer accepted from, unless there is a successor.
    let successor = (args.takeover.as_ref())
        .zip(endpoint.clone())
        .map(|(path, endpoint)| Successor::new(path, endpoint, listener, metrics_listener));
    let mut handed_over = Box::pin(hand_over(successor.as_ref()));
    announce(address, endpoint.is_some(), &certificate);
    let has_successor = loop {
        let signal = tokio::select! {
            signal = signals.next() => signal,
            () = &mut input => Signal::Stop,
            () = &mut handed_over => break true,
        };
        match signal {
            Signal::Reload => reload(&certificate, &site).await,
            Signal::Stop => break false,
        }
    };
    drop(handed_over);
    // Without a successor, the TCP ports close with their last copies.
    let successor = (successor.filter(|_| has_successor)).map(Successor::without_metrics);
    let everything = async {
        let _ = accepting.await;
        let _ = permits.acquire_many(args.max_connections).await;
    };
    // Connections and listeners watch these; it does not matter if there are none.
    let _ = close.send(true);
    let mut ending = Ending { signals, stop };
    if has_successor {
        say("handed over; this process finishes its requests");
        let again = async {
            loop {
                hand_over(successor.as_ref()).await;
            }
        };
        tokio::select! {
            () = ending.take_your_time(args.timeouts.grace_period, everything) => {}
            () = again => {}
        }
    } else {
        ending.hurry(args.timeouts.grace_period, everything).await;
    }
    if let Some(endpoint) = endpoint {
        quic::close(endpoint).await;
    }
    Ok(())
}

/// Ends when a successor has the ports; without `--takeover`, never.
async fn hand_over(successor: Option<&Successor>) {
    match successor {
        Some(successor) => successor.wait().await,
        None => std::future::pending().await,
    }
}

/// The end of a server that accepts no more connections.
struct Ending {
    signals: Signals,
    /// Makes connections end after their last request.
    stop: flag::Sender<bool>,
}

impl Ending {
    /// Waits until everything is finished, for at most `grace_period`. A signal ends the process.
    async fn hurry(&mut self, grace_period: Duration, everything: impl Future<Output = ()>) {
        let _ = self.stop.send(true);
        tokio::select! {
            finished = timeout(grace_period, everything) => {
                if finished.is_err() {
                    eprintln!("squall: some requests did not finish within the grace period");
                }
            }
            () = self.signals.stop() => std::process::exit(IMPATIENT),
        }
    }

    /// Waits until everything is finished. A signal means to hurry.
    async fn take_your_time(
        &mut self,
        grace_period: Duration,
        everything: impl Future<Output = ()>,
    ) {
        let mut everything = pin!(everything);
        let finished = async {
            tokio::time::sleep(FIRST_REQUEST).await;
            let _ = self.stop.send(true);
            everything.as_mut().await;
        };
        tokio::select! {
            () = finished => return,
            () = self.signals.stop() => {}
        }
        self.hurry(grace_period, everything).await;
    }
}

/// The listener at this address, if the running server hands it over.
fn inherited_listener(
    inherited: &mut Option<Inherited>,
    address: SocketAddr,
) -> Result<Option<TcpListener>> {
    let Some(inherited) = inherited else {
        return Ok(None);
    };
    let listener = inherited.take_listener(address);
    listener.map_err(context("cannot take over a TCP port"))
}

/// The ports of the running server.
fn take_over(
    args: &Serve,
    inherited: Inherited,
    certificate: &Certificate,
) -> Result<(TcpListener, Option<Endpoint>)> {
    let address = inherited.address();
    let mut inherited = Some(inherited);
    let listener = inherited_listener(&mut inherited, address)?
        .ok_or_else(|| Failure::new("the running server did not hand over its TCP port"))?;
    let endpoint = bind_udp(args, address, certificate, inherited)?;
    Ok((listener, endpoint))
}

/// TCP and UDP on one port.
async fn bind_both(
    args: &Serve,
    certificate: &Certificate,
) -> Result<(TcpListener, Option<Endpoint>)> {
    /// A port that the system chooses for TCP may be in use for UDP.
    const ATTEMPTS: u32 = 8;
    let mut attempts = if args.listen.port() == 0 { ATTEMPTS } else { 1 };
    loop {
        let listener = listen(args.listen).await?;
        let address = listener.local_addr().map_err(context("local address"))?;
        attempts -= 1;
        match bind_udp(args, address, certificate, None) {
            Err(_) if attempts > 0 => {}
            Err(error) => return Err(error),
            Ok(endpoint) => return Ok((listener, endpoint)),
        }
    }
}

/// The endpoint of HTTP/3, on TCP's port number.
fn bind_udp(
    args: &Serve,
    address: SocketAddr,
    certificate: &Certificate,
    inherited: Option<Inherited>,
) -> Result<Option<Endpoint>> {
    if args.no_h3 {
        return Ok(None);
    }
    let settings = quic::Settings {
        address,
        workers: args.workers.unwrap_or_else(cores),
        retry: args.retry,
        max_connections: args.max_connections as usize,
        // The application must be able to handle replays.
        early_data: args.folder.is_some() || args.early_data,
        stage_times: args.stage_times,
        host_key: (args.quic_host_key.as_deref())
            .map(quic::read_host_key)
            .transpose()?,
    };
    let tls = certificate.tls(&[]);
    quic::bind(&settings, tls, &limits(args), inherited).map(Some)
}

/// The cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(args::MAX_WORKERS)
}

/// Where HTTP/3 is available (RFC 7838 §3), for a day.
fn alt_svc(port: u16) -> Result<HeaderValue> {
    HeaderValue::try_from(format!("h3=\":{port}\"; ma=86400")).map_err(context("Alt-Svc"))
}

fn source(args: &Serve) -> Source {
    match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Source::Files {
            cert: cert.clone(),
            key: key.clone(),
        },
        _ => {
            let mut names: Vec<String> =
                ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
            let ip = args.listen.ip();
            if !ip.is_unspecified() && !ip.is_loopback() {
                names.push(ip.to_string());
            }
            names.extend(args.name.iter().cloned());
            Source::Made { names }
        }
    }
}

fn limits(args: &Serve) -> Limits {
    let timeouts = &args.timeouts;
    // Stalled streams end by themselves before that.
    let mut stall = timeouts.send_timeout * 2;
    if args.upstream.is_some() {
        // The application's delay is not the client's fault, and ends in a response of its own.
        stall += timeouts.connect_timeout + timeouts.upstream_timeout.max(timeouts.body_timeout);
    }
    Limits {
        header: timeouts.header_timeout,
        idle: timeouts.idle_timeout,
        send: timeouts.send_timeout,
        body: timeouts.body_timeout,
        stall,
    }
}

fn site(args: &Serve, metrics: Arc<Metrics>) -> Result<Site> {
    let content = if let Some(address) = &args.upstream {
        let timeouts = Timeouts {
            connect: args.timeouts.connect_timeout,
            response: args.timeouts.upstream_timeout,
            body: args.timeouts.body_timeout,
        };
        Content::Application(Proxy::new(address.clone(), timeouts))
    } else {
        let folder = args.folder.clone().unwrap_or_default();
        let files = Files::open(&folder, args.cache, args.browse)
            .map_err(context(&format!("cannot serve {}", folder.display())))?;
        Content::Files(files)
    };
    let log = args.access_log.map(|format| {
        let file = args.access_log_file.as_deref();
        let name = file.map_or("standard output".into(), |file| file.display().to_string());
        Log::start(format, file).map_err(context(&format!("cannot log to {name}")))
    });
    Ok(Site {
        content,
        metrics,
        log: log.transpose()?,
        extra_fields: if args.security_headers {
            security_fields(args.cert.is_some())
        } else {
            Vec::new()
        },
        alt_svc: None,
        metrics_path: match &args.metrics {
            Some(MetricsAt::Path(path)) => Some(path.clone()),
            _ => None,
        },
    })
}

/// The fields that `--security-headers` adds. Strict-Transport-Security would lock browsers out of
/// a server whose certificate they do not trust.
fn security_fields(is_trusted: bool) -> Vec<(HeaderName, HeaderValue)> {
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    let mut fields = vec![
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "SAMEORIGIN"),
        (REFERRER_POLICY, "strict-origin-when-cross-origin"),
        (opener, "same-origin"),
    ];
    if is_trusted {
        fields.push((STRICT_TRANSPORT_SECURITY, "max-age=31536000"));
    }
    let value = |(name, value)| (name, HeaderValue::from_static(value));
    fields.into_iter().map(value).collect()
}

/// Listens, on all IPv4 addresses if IPv6 is disabled.
async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let all = address.ip() == IpAddr::from(std::net::Ipv6Addr::UNSPECIFIED);
    match TcpListener::bind(address).await {
        Err(error) if all && error.kind() == std::io::ErrorKind::Unsupported => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into(), "TCP").await
        }
        Err(_) => bind(address, "TCP").await,
        Ok(listener) => Ok(listener),
    }
}

async fn bind(address: SocketAddr, what: &str) -> Result<TcpListener> {
    let failed = format!("cannot listen on {address} ({what})");
    TcpListener::bind(address).await.map_err(context(&failed))
}

fn announce(address: SocketAddr, has_h3: bool, certificate: &Certificate) {
    let transports = if has_h3 { "TCP and UDP" } else { "TCP" };
    say(&format!("listening on {address} ({transports})"));
    if let Some(fingerprints) = &certificate.fingerprints {
        say("certificate made for localhost, valid for 13 days");
        say(&format!(
            "  Chromium: --ignore-certificate-errors-spki-list={}",
            fingerprints.spki
        ));
        say(&format!(
            "  WebTransport serverCertificateHashes, SHA-256: {}",
            fingerprints.certificate
        ));
    }
}

/// SIGHUP: reloads the certificate and reopens the log file.
async fn reload(certificate: &Arc<Certificate>, site: &Arc<Site>) {
    let (certificate, site) = (Arc::clone(certificate), Arc::clone(site));
    let reloading = tokio::task::spawn_blocking(move || {
        if let Some(log) = &site.log {
            log.reopen();
        }
        certificate.reload()
    });
    match reloading.await {
        Ok(Ok(true)) => eprintln!("squall: new connections use the certificate as read now"),
        Ok(Ok(false)) => {}
        Ok(Err(error)) => eprintln!("squall: the certificate stays the same: {error}"),
        Err(error) => eprintln!("squall: the certificate stays the same: {error}"),
    }
}

/// Waits for the end of standard input with `--until-eof`, and forever without.
fn input(is_awaited: bool) -> Result<impl Future<Output = ()>> {
    let (end, ended) = oneshot::channel();
    let end = if is_awaited {
        // A read of standard input cannot be cancelled: the runtime must not wait for its thread.
        std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || {
                // An unreadable input has ended as well.
                let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
                drop(end);
            })
            .map_err(context("cannot start a thread"))?;
        None
    } else {
        Some(end)
    };
    Ok(async move {
        let _end: Option<oneshot::Sender<()>> = end;
        let _ = ended.await;
    })
}

/// A request to the process.
enum Signal {
    Reload,
    Stop,
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).map_err(context("signals"));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.hangup.recv() => Signal::Reload,
        }
    }

    async fn stop(&mut self) {
        while !matches!(self.next().await, Signal::Stop) {}
    }
}

/// Ctrl-C only.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> Signal {
        // Without the handler, the system ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        Signal::Stop
    }

    async fn stop(&mut self) {
        self.next().await;
    }
}
