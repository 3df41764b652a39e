//! quiche, which does no I/O, in our own event loop.
//!
//! ```text
//!   mod      settings; the server, which answers, and the client, which asks and checks
//!    └──► engine   the loop, over connections and their streams
//!          └──► udp   bundles of datagrams, in and out
//!
//!   poll ──► recvmmsg, GRO ──► each datagram to its connection ──► streams of those connections
//!     ▲                                                                      │
//!     └───────── timers ◄── sendmmsg, GSO ◄── send() of each connection, until none is left
//! ```
//! Data for sending is handed over without a copy (`stream_send_zc`); quiche's interface copies
//! what is read.

mod engine;
mod udp;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use quiche::{Config, ConnectionId};
use squall_yard::error::{Failure, Result, context};
use squall_yard::pace::{Begin, Pace};

use self::engine::{Application, Engine, Entry, Outgoing, Sending, Stream, new_id};
use super::case::{Shape, Workload};
use super::job::{
    ALPN, CONNECTION_WINDOW, DATAGRAM_BUFFER, Job, MAX_STREAMS, MAX_UDP_PAYLOAD, Message, NAME,
    PIECE, Role, STREAM_WINDOW,
};
use super::process::{Count, say};
use super::stack;
use super::verify::{Verifier, message};

/// Does one end's work.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    let number = match job.role {
        Role::Server => 1,
        Role::Client(_) => job.case.sockets(),
    };
    let config = config(job).map_err(context("quiche's settings"))?;
    let mut engine = Engine::new(job.local, number, config)?;
    match job.role {
        Role::Server => {
            say(&Message::Listening(engine.locals[0]));
            let mut server = Server {
                workload: job.case.workload,
                datagram: (job.case.workload == Workload::W7)
                    .then(|| stack::datagram(job.case.size)),
                scratch: vec![0; PIECE],
            };
            engine.run(&mut server)
        }
        Role::Client(address) => {
            let shape = job.shape();
            let mut client = Client {
                address,
                shape,
                handshakes: job.case.workload.is_handshakes(),
                datagrams: job.case.workload == Workload::W7,
                resume: job.case.workload == Workload::W4Resumed,
                check: job.check,
                message: message(&shape),
                count: Arc::clone(count),
                scratch: vec![0; PIECE],
                session: None,
                working: shape.connections,
                left: shape.repeat.saturating_mul(shape.connections as u64),
                connected: 0,
                established: 0,
                due: BinaryHeap::new(),
            };
            for _ in 0..shape.connections {
                client.connect(&mut engine)?;
            }
            if client.handshakes {
                say(&Message::Working);
            }
            engine.run(&mut client)
        }
    }
}

fn config(job: &Job) -> std::result::Result<Config, Box<dyn std::error::Error>> {
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let mut tls = boring::ssl::SslContextBuilder::new(boring::ssl::SslMethod::tls())?;
    if job.case.workload != Workload::W4Resumed {
        tls.set_options(boring::ssl::SslOptions::NO_TICKET);
    }
    let mut config = Config::with_boring_ssl_ctx_builder(quiche::PROTOCOL_VERSION, tls)?;
    config.set_application_protos(&[ALPN])?;
    config.set_curves_list("X25519")?;
    match job.role {
        Role::Server => {
            config.load_cert_chain_from_pem_file(&path(&job.certificate))?;
            config.load_priv_key_from_pem_file(&path(&job.key))?;
        }
        Role::Client(_) => {
            config.load_verify_locations_from_file(&path(&job.certificate))?;
            config.verify_peer(true);
        }
    }
    config.set_max_idle_timeout(30_000);
    config.set_max_send_udp_payload_size(MAX_UDP_PAYLOAD.into());
    config.set_max_recv_udp_payload_size(MAX_UDP_PAYLOAD.into());
    config.set_initial_max_data(CONNECTION_WINDOW.into());
    config.set_max_connection_window(CONNECTION_WINDOW.into());
    config.set_initial_max_stream_data_bidi_local(STREAM_WINDOW.into());
    config.set_initial_max_stream_data_bidi_remote(STREAM_WINDOW.into());
    config.set_max_stream_window(STREAM_WINDOW.into());
    config.set_initial_max_streams_bidi(MAX_STREAMS.into());
    config.set_initial_max_streams_uni(MAX_STREAMS.into());
    config.set_cc_algorithm(quiche::CongestionControlAlgorithm::CUBIC);
    // It paces with BBR only: with CUBIC, `SendInfo::at` is always now.
    config.enable_pacing(false);
    if job.case.workload == Workload::W7 {
        let queue = (DATAGRAM_BUFFER as u64 / job.case.size.max(1)) as usize;
        config.enable_dgram(true, queue, queue);
    }
    Ok(config)
}

/// Answers requests.
struct Server {
    workload: Workload,
    /// What is sent repeatedly, if datagrams are the work.
    datagram: Option<Bytes>,
    scratch: Vec<u8>,
}

impl Application for Server {
    fn accepts(&self) -> bool {
        true
    }

    fn process(&mut self, entry: &mut Entry) -> Result<()> {
        for id in entry.quic.readable() {
            let stream = entry.streams.entry(id).or_insert_with(|| Stream {
                outgoing: Outgoing::nothing(),
                verifier: None,
                head: Vec::new(),
                upload: Vec::new(),
            });
            // A stream that is reset or empty needs no answer.
            while let Ok((len, end)) = entry.quic.stream_recv(id, &mut self.scratch) {
                let bytes = &self.scratch[..len];
                let head = bytes.len().min(8 - stream.head.len());
                stream.head.extend_from_slice(&bytes[..head]);
                if self.workload == Workload::Echo {
                    stream.upload.extend_from_slice(&bytes[head..]);
                }
                if end {
                    stream.answer(self.workload);
                    let pushed = stream.outgoing.push(&mut entry.quic, id);
                    if pushed.is_err() || stream.outgoing.state == Sending::Done {
                        entry.streams.remove(&id);
                    }
                    break;
                }
            }
        }
        if let Some(datagram) = &self.datagram
            && entry.quic.is_established()
        {
            // Until the queue is full, or the client has left.
            while entry.quic.dgram_send(datagram).is_ok() {}
        }
        for id in entry.quic.writable() {
            if let Some(stream) = entry.streams.get_mut(&id) {
                let pushed = stream.outgoing.push(&mut entry.quic, id);
                // Stopped by the client, or done.
                if pushed.is_err() || stream.outgoing.state == Sending::Done {
                    entry.streams.remove(&id);
                }
            }
        }
        Ok(())
    }

    fn ended(&mut self, _engine: &mut Engine, _entry: Entry) -> Result<bool> {
        Ok(true)
    }
}

impl Stream {
    /// The request has arrived: begins its answer.
    fn answer(&mut self, workload: Workload) {
        // draft-banks-quic-performance §2.3.1: one shorter than its eight bytes is ignored, with an
        // empty answer.
        let wanted = self
            .head
            .first_chunk()
            .map_or(0, |head| u64::from_be_bytes(*head));
        self.outgoing.state = Sending::Ready;
        if workload == Workload::Echo {
            self.outgoing.piece = std::mem::take(&mut self.upload).into();
        } else {
            self.outgoing.left = wanted;
        }
    }
}

/// Sends requests, or makes handshakes.
struct Client {
    address: SocketAddr,
    shape: Shape,
    handshakes: bool,
    datagrams: bool,
    resume: bool,
    check: bool,
    message: Bytes,
    count: Arc<Count>,
    scratch: Vec<u8>,
    /// The last ticket.
    session: Option<Vec<u8>>,
    /// Places that are still at work, and handshakes that have yet to begin.
    working: usize,
    left: u64,
    /// Connections begun; they take the sockets in turn.
    connected: usize,
    /// Connections whose handshake is complete.
    established: usize,
    /// Connections whose next request waits for its time.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
}

impl Client {
    fn connect(&mut self, engine: &mut Engine) -> Result<()> {
        self.left = self.left.saturating_sub(1);
        let socket = self.connected % engine.sockets.len();
        self.connected += 1;
        let id = new_id()?;
        let mut quic = quiche::connect_with_buffer_factory(
            Some(NAME),
            &ConnectionId::from_ref(&id),
            engine.locals[socket],
            self.address,
            &mut engine.config,
        )
        .map_err(context("cannot connect"))?;
        if let Some(session) = &self.session {
            quic.set_session(session).map_err(context("the ticket"))?;
        }
        let index = engine.add(quic, socket, vec![id.to_vec()]);
        if let Some(entry) = &mut engine.connections[index] {
            let repeat = match self.handshakes {
                true => self.shape.each,
                false => self.shape.repeat,
            };
            entry.unanswered = repeat.saturating_mul(self.shape.streams as u64);
            if self.shape.begin == Begin::AfterAnswer && !self.datagrams {
                entry.unsent = self.shape.streams as u64;
            }
        }
        Ok(())
    }

    /// Opens as many of the waiting requests' streams as the server allows.
    fn open(&self, entry: &mut Entry) -> Result<()> {
        while entry.unsent > 0 && entry.quic.peer_streams_left_bidi() > 0 {
            let id = entry.next_stream;
            entry.next_stream += 4;
            entry.unsent -= 1;
            let mut outgoing = Outgoing::nothing();
            outgoing.piece = self.message.clone();
            outgoing.state = Sending::Ready;
            outgoing
                .push(&mut entry.quic, id)
                .map_err(context("a request"))?;
            let stream = Stream {
                outgoing,
                verifier: Some(Verifier::new(self.check, self.shape.answer)),
                head: Vec::new(),
                upload: Vec::new(),
            };
            entry.streams.insert(id, stream);
        }
        Ok(())
    }
}

impl Application for Client {
    fn accepts(&self) -> bool {
        false
    }

    fn due(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    fn begin(&mut self, engine: &mut Engine) {
        let now = Instant::now();
        while let Some(&Reverse((due, index))) = self.due.peek()
            && due <= now
        {
            self.due.pop();
            if let Some(entry) = &mut engine.connections[index] {
                entry.unsent += 1;
                entry.begun = Some(now);
                engine.touch(index);
            }
        }
    }

    fn process(&mut self, entry: &mut Entry) -> Result<()> {
        if !entry.quic.is_established() {
            return Ok(());
        }
        if !entry.established {
            entry.established = true;
            self.on_established(entry);
        }
        while self.datagrams && entry.unanswered > 0 {
            let Ok(len) = entry.quic.dgram_recv(&mut self.scratch) else {
                break;
            };
            let mut verifier = Verifier::new(self.check, self.shape.answer);
            verifier.take(&self.scratch[..len]);
            verifier.end().map_err(Failure::new)?;
            self.count.add_bytes(len);
            self.count.add_units(1);
            entry.unanswered -= 1;
        }
        self.open(entry)?;
        for id in entry.quic.writable() {
            if let Some(stream) = entry.streams.get_mut(&id) {
                stream
                    .outgoing
                    .push(&mut entry.quic, id)
                    .map_err(context("a request"))?;
            }
        }
        for id in entry.quic.readable() {
            self.read(entry, id)?;
        }
        self.open(entry)?;
        if entry.unanswered == 0 {
            if !entry.quic.is_resumed() {
                self.count.add_full();
            }
            if self.handshakes {
                self.count.add_units(1);
            }
            if self.resume {
                self.session = entry.quic.session().map(<[u8]>::to_vec);
            }
            entry
                .quic
                .close(true, 0, b"")
                .map_err(context("cannot close"))?;
            entry.over = true;
        }
        Ok(())
    }

    fn ended(&mut self, engine: &mut Engine, entry: Entry) -> Result<bool> {
        if !entry.over {
            let (theirs, ours) = (entry.quic.peer_error(), entry.quic.local_error());
            return Err(Failure::new(format!(
                "quiche's connection broke off: {theirs:?} {ours:?}"
            )));
        }
        if self.handshakes && self.left > 0 {
            self.connect(engine)?;
            return Ok(true);
        }
        self.working -= 1;
        Ok(self.working > 0)
    }
}

/// When a place's next request begins.
fn next_due(pace: &mut Pace, index: usize) -> Option<Reverse<(Instant, usize)>> {
    pace.next_due().map(|due| Reverse((due, index)))
}

impl Client {
    /// A handshake is complete: schedules the connection's requests.
    fn on_established(&mut self, entry: &mut Entry) {
        self.established += 1;
        if !self.handshakes && self.established == self.shape.connections {
            say(&Message::Working);
        }
        if self.shape.begin != Begin::AfterAnswer {
            let mut pace = self.shape.pace(entry.index, Instant::now());
            self.due.extend(next_due(&mut pace, entry.index));
            entry.pace = Some(pace);
        }
    }

    /// Takes what has arrived of an answer.
    fn read(&mut self, entry: &mut Entry, id: u64) -> Result<()> {
        loop {
            let (len, end) = match entry.quic.stream_recv(id, &mut self.scratch) {
                Ok(read) => read,
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(Failure::new(format!("an answer: {error}"))),
            };
            self.count.add_bytes(len);
            let verifier = entry
                .streams
                .get_mut(&id)
                .and_then(|one| one.verifier.as_mut());
            if let Some(verifier) = verifier {
                verifier.take(&self.scratch[..len]);
            }
            if end {
                let stream = entry.streams.remove(&id);
                if let Some(verifier) = stream.and_then(|stream| stream.verifier) {
                    verifier.end().map_err(Failure::new)?;
                }
                if !self.handshakes {
                    self.count.add_units(1);
                }
                entry.unanswered -= 1;
                if let Some(pace) = &mut entry.pace {
                    self.due.extend(next_due(pace, entry.index));
                    if let Some(begun) = entry.begun.take() {
                        self.count.add_latency(begun.elapsed());
                    }
                } else if entry.unanswered > entry.streams.len() as u64 + entry.unsent {
                    entry.unsent += 1;
                }
                return Ok(());
            }
        }
    }
}
