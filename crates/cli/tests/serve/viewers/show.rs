//! The show: two processes of the server, one after the other, and everyone who watches.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use squall::{Builder, ClientConfig, Connection, Endpoint, TransportConfig};
use squall_h3::Body;
use squall_h3::client::{Client, SendRequest, handshake};
use squall_yard::certificate::trusting_anyone;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;

use super::film::{Film, LADDER_S};
use super::plan::Plan;
use super::viewer::{Seen, Viewer};
use super::watch::{Process, Watch, machine, overflows};
use crate::client::{Folder, Server, renew};
use crate::common::signal;

/// Number of viewers' sockets; each carries its share of the connections.
const SOCKETS: usize = 16;
/// Idle connections that are made at a time.
const AT_A_TIME: usize = 32;
/// The file for clients that read little or nothing of it: larger than a client's receive window.
const LONG: usize = 20_000_000;

/// Until every connection has carried every bitrate: from then on memory no longer grows.
const SETTLED: Duration = Duration::from_secs(LADDER_S + 2);

/// How long the rest of a response in flight waits at the end, if ending takes time anyway: longer
/// than a server waits for clients that have nothing in flight.
const PAUSE: Duration = Duration::from_millis(500);

/// What happened.
pub(super) struct Outcome {
    pub(super) film: Arc<Film>,
    /// By viewer.
    pub(super) seen: Vec<Seen>,
    /// When handshakes of viewers were complete.
    pub(super) handshakes: Vec<Instant>,
    /// Why connections of viewers ended before the show did.
    pub(super) ends: Vec<String>,
    pub(super) renewal: Renewal,
    pub(super) restart: Restart,
    /// The second process's end.
    pub(super) end: End,
    /// Access logs of the first and the second process.
    pub(super) logs: [String; 2],
    pub(super) processes: Vec<Process>,
    /// When only the show is running: before and after the restart.
    pub(super) steady: [Range<Instant>; 2],
    pub(super) idle: Option<Idle>,
    /// Share of the machine's time that was used, by any process.
    pub(super) busy: Option<f64>,
    /// Datagrams lost for lack of room in any receive buffer.
    pub(super) overflows: Option<u64>,
    pub(super) took: Duration,
}

/// The exchange of the certificate.
pub(super) struct Renewal {
    pub(super) is_shown: bool,
    /// Handshakes of viewers until just after it.
    pub(super) handshakes: usize,
}

pub(super) struct Restart {
    /// When the signal was sent.
    pub(super) at: Instant,
    pub(super) end: End,
    pub(super) witness: Witness,
    /// From the signal until the other process listened.
    pub(super) gap: Duration,
}

/// A client whose response was in flight at the signal, and which read the rest only when told that
/// the connection takes no more requests.
#[derive(Default)]
pub(super) struct Witness {
    /// Whether GOAWAY arrived: the connection was still open.
    pub(super) is_told: bool,
    /// Bytes that arrived.
    pub(super) bytes: usize,
}

impl Witness {
    pub(super) fn got_everything(&self) -> bool {
        self.bytes == LONG
    }
}

/// How a process ended after SIGTERM.
pub(super) struct End {
    /// `None`: not in time, or by another signal.
    pub(super) status: Option<i32>,
    pub(super) took: Duration,
    /// What it printed.
    pub(super) stderr: Vec<String>,
}

/// The cost of connections without requests.
pub(super) struct Idle {
    /// Resident memory of the server and of the clients, per connection.
    pub(super) server: f64,
    pub(super) clients: f64,
}

/// Records the handshakes of an endpoint, and what ended its connections.
#[derive(Default)]
struct Noted {
    handshakes: Mutex<Vec<Instant>>,
    ends: Mutex<Vec<String>>,
}

impl squall::Events for Noted {
    fn handshake_completed(&self, _: &squall::ConnectionInfo, _: &squall::HandshakeCompleted) {
        self.handshakes
            .lock()
            .expect("no panic")
            .push(Instant::now());
    }

    fn connection_closed(&self, _: &squall::ConnectionInfo, event: &squall::ConnectionClosed) {
        self.ends
            .lock()
            .expect("no panic")
            .push(event.reason.to_string());
    }
}

impl Noted {
    fn handshakes(&self) -> usize {
        self.handshakes.lock().expect("no panic").len()
    }
}

/// Runs the show.
pub(super) fn run(plan: &Plan) -> Outcome {
    let runtime = runtime();
    let stage = Stage::new(plan);
    let watch = Watch::start();
    watch.add("viewers", std::process::id());
    let mut first = stage.server(plan, 0, 0);
    watch.add("first server", first.process.id());
    let (idle, stuck) = runtime.block_on(async {
        (
            stage.idle(plan, &first).await,
            stage.stuck(plan, &first).await,
        )
    });
    let (began, busy, lost) = (Instant::now(), machine(), overflows());
    let at = |part: f64| began + Duration::from_secs(plan.seconds).mul_f64(part);
    let noted = Arc::<Noted>::default();
    let over = Arc::<AtomicBool>::default();
    let viewers = stage.viewers(
        plan,
        &runtime,
        &first,
        [began, at(1.0 / 8.0)],
        &noted,
        &over,
    );
    sleep_until(at(1.0 / 3.0));
    let renewal = stage.renew(&runtime, &mut first, &noted);
    sleep_until(at(1.0 / 2.0));
    let (restart, second) = stage.restart(plan, &runtime, first);
    watch.add("second server", second.process.id());
    sleep_until(at(1.0));
    let ended = Instant::now();
    over.store(true, Ordering::Relaxed);
    let seen = runtime.block_on(viewers.join_all());
    let (took, busy) = (began.elapsed(), share(busy, machine()));
    // Everything up to here ended while viewers watched.
    let ends = std::mem::take(&mut *noted.ends.lock().expect("no panic"));
    let end = end(second, plan);
    drop((idle.1, stuck));
    let steady = [
        at(1.0 / 8.0) + SETTLED..restart.at,
        restart.at + SETTLED..ended,
    ];
    Outcome {
        seen,
        handshakes: noted.handshakes.lock().expect("no panic").clone(),
        ends,
        renewal,
        restart,
        end,
        logs: [0, 1].map(|process| std::fs::read_to_string(stage.log(process)).expect("a log")),
        processes: watch.stop(),
        steady,
        idle: idle.0,
        busy,
        overflows: overflows().zip(lost).map(|(after, before)| after - before),
        took,
        film: stage.film,
    }
}

/// Two threads: what one core sends, another can receive.
fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

fn sleep_until(when: Instant) {
    thread::sleep(when.saturating_duration_since(Instant::now()));
}

fn share(before: Option<(u64, u64)>, after: Option<(u64, u64)>) -> Option<f64> {
    let ((busy, all), (busy_after, all_after)) = (before?, after?);
    Some((busy_after - busy) as f64 / (all_after - all).max(1) as f64)
}

/// What all processes of the server share.
struct Stage {
    film: Arc<Film>,
    /// What is served.
    folder: Folder,
    /// The certificate, its key, and the access logs.
    own: Folder,
}

impl Stage {
    fn new(plan: &Plan) -> Self {
        let (folder, own) = (Folder::new(), Folder::new());
        let film = Film::new(plan.rate);
        film.write(&folder);
        folder.write("small", "content");
        folder.write("long", vec![0; LONG]);
        renew(&own);
        Self {
            film: Arc::new(film),
            folder,
            own,
        }
    }

    fn log(&self, process: usize) -> String {
        format!("{}/access.{process}", self.own.path())
    }

    fn server(&self, plan: &Plan, process: usize, port: u16) -> Server {
        let own = self.own.path();
        let connections = plan.viewers + plan.stuck + plan.idle + 100;
        let mut args = ["--access-log", "json", "--access-log-file"]
            .map(str::to_owned)
            .to_vec();
        args.extend([self.log(process), format!("--cert={own}/cert.pem")]);
        args.extend([
            format!("--key={own}/key.pem"),
            format!("--grace-period={}", plan.grace),
        ]);
        args.push(format!("--max-connections={connections}"));
        args.extend(plan.workers.map(|workers| format!("--workers={workers}")));
        args.push(self.folder.path().to_owned());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Server::at(port, &args)
    }

    /// Starts viewers, spread over some time.
    fn viewers(
        &self,
        plan: &Plan,
        runtime: &Runtime,
        server: &Server,
        [from, to]: [Instant; 2],
        noted: &Arc<Noted>,
        over: &Arc<AtomicBool>,
    ) -> JoinSet<Seen> {
        let sockets = SOCKETS.min(plan.viewers);
        let endpoints: Vec<_> = (0..sockets)
            .map(|_| endpoint(runtime.handle(), noted))
            .collect();
        let mut tasks = JoinSet::new();
        for index in 0..plan.viewers {
            let endpoint = endpoints[index % sockets].clone();
            // Every other one sends its first request with its first datagram, if it can.
            let client = ClientConfig::new(tls(index % 2 == 0));
            let viewer = Viewer {
                client: Client::with(endpoint, client, squall_h3::Config::new(), None),
                film: Arc::clone(&self.film),
                port: server.port,
                index,
                begin: from + (to - from) * index as u32 / plan.viewers as u32,
                over: Arc::clone(over),
            };
            tasks.spawn_on(viewer.watch(), runtime.handle());
        }
        tasks
    }

    /// Exchanges the certificate.
    fn renew(&self, runtime: &Runtime, server: &mut Server, noted: &Noted) -> Renewal {
        let new = renew(&self.own);
        signal(&server.process, "HUP");
        let line = server.stderr.next().expect("a line").expect("text");
        assert!(line.contains("as read now"), "{line}");
        let shown = runtime.block_on(async {
            let probe = endpoint(runtime.handle(), &Arc::default());
            let connection = connect(&probe, server.port).await;
            connection.peer_certificates().expect("a chain")
        });
        Renewal {
            is_shown: shown[0].as_ref() == new,
            handshakes: noted.handshakes(),
        }
    }

    /// Ends the first process and starts another one on its port.
    fn restart(&self, plan: &Plan, runtime: &Runtime, first: Server) -> (Restart, Server) {
        let port = first.port;
        let (endpoint, sender, response) = runtime.block_on(long(port));
        let pause = if plan.stuck > 0 {
            PAUSE
        } else {
            Duration::ZERO
        };
        let witness = runtime.spawn(async move {
            let _endpoint = endpoint;
            witness(sender, response, pause).await
        });
        let at = Instant::now();
        let end = end(first, plan);
        let second = self.server(plan, 1, port);
        let gap = at.elapsed();
        let witness = runtime.block_on(witness).expect("no panic");
        (
            Restart {
                at,
                end,
                witness,
                gap,
            },
            second,
        )
    }

    /// Connections that make one request and no more.
    async fn idle(&self, plan: &Plan, server: &Server) -> (Option<Idle>, Vec<Client>) {
        if plan.idle == 0 {
            return (None, Vec::new());
        }
        let ids = [server.process.id(), std::process::id()];
        let resident = |id| super::watch::sample(id).expect("the server runs").resident as f64;
        let before = ids.map(resident);
        let endpoint = endpoint(&Handle::current(), &Arc::default());
        let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
        let uri = format!("https://127.0.0.1:{}/small", server.port);
        for begun in 1..=plan.idle {
            let client = ClientConfig::new(tls(false));
            let client = Client::with(endpoint.clone(), client, squall_h3::Config::new(), None);
            let request = Request::get(&uri)
                .body(Empty::<Bytes>::new())
                .expect("a request");
            tasks.spawn(async move {
                let response = client.send(request).await.expect("a response");
                response.into_body().collect().await.expect("a body");
                client
            });
            while tasks.len() >= AT_A_TIME || begun == plan.idle && !tasks.is_empty() {
                clients.push(tasks.join_next().await.expect("a task").expect("no panic"));
            }
        }
        // Acknowledgements, path MTU, tickets.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let [server, clients_too] = ids.map(resident);
        let per_connection = |after: f64, before: f64| (after - before) / plan.idle as f64;
        let idle = Idle {
            server: per_connection(server, before[0]),
            clients: per_connection(clients_too, before[1]),
        };
        (Some(idle), clients)
    }

    /// Responses whose bodies are never read.
    async fn stuck(&self, plan: &Plan, server: &Server) -> Vec<Long> {
        let mut stuck = Vec::new();
        for _ in 0..plan.stuck {
            stuck.push(long(server.port).await);
        }
        stuck
    }
}

/// A response that takes long, and what it needs.
type Long = (Endpoint, SendRequest, Response<Body>);

/// Requests the long file on a connection of its own.
async fn long(port: u16) -> Long {
    let endpoint = endpoint(&Handle::current(), &Arc::default());
    let sender = handshake(connect(&endpoint, port).await);
    let uri = format!("https://127.0.0.1:{port}/long");
    let request = Request::get(uri).body(Empty::<Bytes>::new());
    let response = sender.send(request.expect("a request")).await;
    (endpoint, sender, response.expect("a response"))
}

async fn witness(sender: SendRequest, response: Response<Body>, pause: Duration) -> Witness {
    while !sender.is_closed() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut witness = Witness {
        is_told: sender.connection().close_reason().is_none(),
        bytes: 0,
    };
    tokio::time::sleep(pause).await;
    let mut body = response.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        witness.bytes += frame.data_ref().map_or(0, Bytes::len);
    }
    witness
}

/// TLS of a client, which trusts any certificate: what the server presents is compared.
fn tls(early_data: bool) -> rustls::ClientConfig {
    let mut tls = trusting_anyone(squall::provider()).expect("a configuration");
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.enable_early_data = early_data;
    tls
}

fn endpoint(runtime: &Handle, noted: &Arc<Noted>) -> Endpoint {
    let transport = TransportConfig::default().keep_peer_certificates(true);
    let client = ClientConfig::new(tls(false)).transport(transport);
    let builder = Builder::new(([127, 0, 0, 1], 0).into()).client(client);
    let events = Arc::<Noted>::clone(noted);
    builder
        .on_runtime(runtime.clone())
        .events(events)
        .bind()
        .expect("a port")
}

async fn connect(endpoint: &Endpoint, port: u16) -> Connection {
    let connecting = endpoint.connect(([127, 0, 0, 1], port).into(), "localhost");
    connecting.expect("a name").await.expect("a connection")
}

/// Asks a process to end, and waits slightly longer than it may take.
fn end(mut server: Server, plan: &Plan) -> End {
    let began = Instant::now();
    signal(&server.process, "TERM");
    let patience = Duration::from_secs_f64(plan.grace) + Duration::from_secs(5);
    let mut status = None;
    while status.is_none() && began.elapsed() < patience {
        status = server.process.try_wait().expect("a process");
        thread::sleep(Duration::from_millis(1));
    }
    let took = began.elapsed();
    // Kills it if it has not ended.
    let _ = server.process.kill();
    End {
        status: status.and_then(|status| status.code()),
        took,
        stderr: server.stderr.by_ref().map_while(Result::ok).collect(),
    }
}
