//! quiche, which does no I/O, in our own event loop.
//!
//! ```text
//!   poll ──► recvmmsg, GRO ──► each datagram to its connection ──► streams of those connections
//!     ▲                                                                      │
//!     └───────── timers ◄── sendmmsg, GSO ◄── send() of each connection, until none is left
//! ```
//! Data for sending is handed over without a copy (`stream_send_zc`); quiche's interface copies
//! what is read.

mod udp;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quiche::{BufFactory, Config, ConnectionId, RecvInfo};
use squall_yard::error::{Failure, Result, context};
use squall_yard::pace::{Begin, Pace};
use squall_yard::source::Source;

use self::udp::{Inbox, Outbox, Readable};
use super::case::{Shape, Workload};
use super::job::{
    ALPN, CONNECTION_WINDOW, DATAGRAM_BUFFER, Job, MAX_STREAMS, MAX_UDP_PAYLOAD, Message, NAME,
    PIECE, Role, STREAM_WINDOW,
};
use super::process::{Count, say};
use super::verify::{Verifier, message};
use super::{socket, stack};

/// Bytes of our connection ids.
const ID: usize = 16;

/// Lets quiche keep references to the application's memory.
#[derive(Clone, Debug, Default)]
struct Shared;

impl BufFactory for Shared {
    type Buf = Bytes;
    type DgramBuf = Vec<u8>;

    fn buf_from_slice(buf: &[u8]) -> Bytes {
        Bytes::copy_from_slice(buf)
    }

    fn dgram_buf_from_slice(buf: &[u8]) -> Vec<u8> {
        buf.to_vec()
    }
}

type Quic = quiche::Connection<Shared>;

/// Does one end's work.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    let number = match job.role {
        Role::Server => 1,
        Role::Client(_) => job.case.sockets(),
    };
    let mut sockets = Vec::new();
    let mut locals = Vec::new();
    for _ in 0..number {
        let socket = socket::bind((job.local, 0).into()).map_err(context("no UDP port"))?;
        udp::prepare(&socket).map_err(context("no GRO"))?;
        locals.push(socket.local_addr().map_err(context("local address"))?);
        sockets.push(socket);
    }
    let local = locals[0];
    let mut engine = Engine {
        watch: (number > 1)
            .then(|| Readable::new(&sockets))
            .transpose()
            .map_err(context("cannot watch the sockets"))?,
        readable: (0..number).collect(),
        sockets,
        locals,
        config: config(job).map_err(context("quiche's settings"))?,
        inbox: Inbox::new(),
        outbox: Outbox::new(),
        connections: Vec::new(),
        free: Vec::new(),
        by_id: HashMap::new(),
        touched: Vec::new(),
        deadlines: BTreeSet::new(),
    };
    match job.role {
        Role::Server => {
            say(&Message::Listening(local));
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

/// One end's work, from the loop's point of view.
trait Application {
    /// Something arrived for this connection, or its time is up.
    fn process(&mut self, entry: &mut Entry) -> Result<()>;
    /// When it wants to work next, whatever arrives.
    fn due(&self) -> Option<Instant> {
        None
    }
    /// Begins what is due.
    fn begin(&mut self, _engine: &mut Engine) {}
    /// A connection is over; false ends the loop.
    fn ended(&mut self, engine: &mut Engine, entry: Entry) -> Result<bool>;
    /// Whether unknown clients are welcome.
    fn accepts(&self) -> bool;
}

/// A connection and its streams.
struct Entry {
    quic: Quic,
    index: usize,
    /// The number of its socket.
    socket: usize,
    ids: Vec<Vec<u8>>,
    deadline: Option<Instant>,
    touched: bool,
    streams: HashMap<u64, Stream>,
    /// Clients: the next stream's number, requests that wait for one, and those without an answer.
    next_stream: u64,
    unsent: u64,
    unanswered: u64,
    /// Clients: whether the handshake's end has been seen; when the place's requests begin, and
    /// when the current one did.
    established: bool,
    pace: Option<Pace>,
    begun: Option<Instant>,
    /// The application has closed it.
    over: bool,
}

/// A stream's two halves.
struct Stream {
    outgoing: Outgoing,
    verifier: Option<Verifier>,
    /// Servers: the length asked for, as far as it has arrived, and an upload to send back.
    head: Vec<u8>,
    upload: Vec<u8>,
}

/// The state of a stream's sending half.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// It is not known yet what to send.
    Waiting,
    Ready,
    /// All data, and the end, has been handed to quiche.
    Done,
}

/// What a stream has to send.
struct Outgoing {
    source: Source,
    /// Bytes still to come, excluding those in `piece`.
    left: u64,
    piece: Bytes,
    state: Sending,
}

impl Outgoing {
    fn nothing() -> Self {
        Self {
            source: Source::new(None),
            left: 0,
            piece: Bytes::new(),
            state: Sending::Waiting,
        }
    }

    /// Hands over what quiche accepts.
    fn push(&mut self, quic: &mut Quic, id: u64) -> std::result::Result<(), quiche::Error> {
        while self.state == Sending::Ready {
            if self.piece.is_empty() && self.left > 0 {
                let len = usize::try_from(self.left).map_or(PIECE, |left| left.min(PIECE));
                self.piece = self.source.next(len);
                self.left -= self.piece.len() as u64;
            }
            let last = self.left == 0;
            match quic.stream_send_zc(id, self.piece.clone(), last) {
                Ok((sent, _)) => {
                    let rest = self.piece.split_off(sent);
                    self.piece = rest;
                    if !self.piece.is_empty() {
                        return Ok(());
                    }
                    if last {
                        self.state = Sending::Done;
                    }
                }
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The loop and its state.
struct Engine {
    /// A server's one socket, or a client's.
    sockets: Vec<UdpSocket>,
    locals: Vec<SocketAddr>,
    /// Watches several sockets.
    watch: Option<Readable>,
    /// Sockets that may have something to read.
    readable: Vec<usize>,
    config: Config,
    inbox: Inbox,
    outbox: Outbox,
    connections: Vec<Option<Entry>>,
    free: Vec<usize>,
    by_id: HashMap<Vec<u8>, usize>,
    /// Connections whose `touched` is set.
    touched: Vec<usize>,
    /// The connections' deadlines.
    deadlines: BTreeSet<(Instant, usize)>,
}

impl Engine {
    fn run(&mut self, application: &mut impl Application) -> Result<()> {
        loop {
            self.receive(application)?;
            self.time_out();
            application.begin(self);
            for index in std::mem::take(&mut self.touched) {
                if !self.turn(index, application)? {
                    return self.flush();
                }
            }
            self.flush()?;
            self.wait(application.due())?;
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.outbox
            .flush(&self.sockets)
            .map_err(context("sending datagrams"))
    }

    /// Waits for a datagram, or for a timer or the application's next work.
    fn wait(&mut self, due: Option<Instant>) -> Result<()> {
        let more = self.watch.is_some() && !self.readable.is_empty();
        let busy = more || !self.touched.is_empty();
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let next = deadline.into_iter().chain(due).min();
        let limit = next.map(|next| next.saturating_duration_since(Instant::now()));
        match &self.watch {
            None if busy => Ok(()),
            None => udp::wait(&self.sockets[0], false, limit),
            Some(watch) if busy => watch.wait(Some(Duration::ZERO), &mut self.readable),
            Some(watch) => watch.wait(limit, &mut self.readable),
        }
        .map_err(context("waiting for datagrams"))
    }

    /// Records that a connection has something to do.
    fn touch(&mut self, index: usize) {
        if let Some(entry) = &mut self.connections[index]
            && !entry.touched
        {
            entry.touched = true;
            self.touched.push(index);
        }
    }

    /// Hands every waiting datagram to its connection.
    fn receive(&mut self, application: &impl Application) -> Result<()> {
        for socket in std::mem::take(&mut self.readable) {
            let emptied = self.receive_from(socket, application)?;
            // A single one is tried again after every wait.
            if !emptied || self.watch.is_none() {
                self.readable.push(socket);
            }
        }
        Ok(())
    }

    /// The same for one socket; false if there may be more.
    fn receive_from(&mut self, socket: usize, application: &impl Application) -> Result<bool> {
        // Acknowledgements must get out, however much comes in.
        for _ in 0..4 {
            let all = self
                .inbox
                .fill(&self.sockets[socket])
                .map_err(context("receiving datagrams"))?;
            let mut inbox = std::mem::take(&mut self.inbox);
            for (from, datagram) in inbox.datagrams() {
                if let Some(index) = self.find(datagram, from, application)
                    && let Some(entry) = &mut self.connections[index]
                {
                    let to = self.locals[socket];
                    // quiche itself tells the peer what is wrong with a datagram.
                    let _ = entry.quic.recv(datagram, RecvInfo { from, to });
                    self.touch(index);
                }
            }
            self.inbox = inbox;
            if all {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The connection that a datagram is for, a new one if need be.
    fn find(
        &mut self,
        datagram: &mut [u8],
        from: SocketAddr,
        application: &impl Application,
    ) -> Option<usize> {
        // RFC 9000 §17.3.1: a short header has the connection id after its first byte.
        if datagram.first()? & 0x80 == 0 {
            return self.by_id.get(datagram.get(1..1 + ID)?).copied();
        }
        let header = quiche::Header::from_slice(datagram, ID).ok()?;
        if let Some(index) = self.by_id.get(header.dcid.as_ref()) {
            return Some(*index);
        }
        if header.ty != quiche::Type::Initial || !application.accepts() {
            return None;
        }
        let id = new_id().ok()?;
        let scid = ConnectionId::from_ref(&id);
        let quic =
            quiche::accept_with_buf_factory(&scid, None, self.locals[0], from, &mut self.config)
                .ok()?;
        Some(self.add(quic, 0, vec![id.to_vec(), header.dcid.to_vec()]))
    }

    fn add(&mut self, quic: Quic, socket: usize, ids: Vec<Vec<u8>>) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        for id in &ids {
            self.by_id.insert(id.clone(), index);
        }
        self.connections[index] = Some(Entry {
            quic,
            index,
            socket,
            ids,
            deadline: None,
            touched: false,
            streams: HashMap::new(),
            next_stream: 0,
            unsent: 0,
            unanswered: 0,
            established: false,
            pace: None,
            begun: None,
            over: false,
        });
        self.touch(index);
        index
    }

    fn time_out(&mut self) {
        let now = Instant::now();
        while let Some(&(deadline, index)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            if let Some(entry) = &mut self.connections[index] {
                entry.deadline = None;
                entry.quic.on_timeout();
                self.touch(index);
            }
        }
    }

    /// Lets the application work on a connection, and sends what is ready; false ends the loop.
    fn turn(&mut self, index: usize, application: &mut impl Application) -> Result<bool> {
        let Some(mut entry) = self.connections[index].take_if(|entry| entry.touched) else {
            return Ok(true);
        };
        entry.touched = false;
        if let Some(deadline) = entry.deadline.take() {
            self.deadlines.remove(&(deadline, index));
        }
        application.process(&mut entry)?;
        self.send(&mut entry)?;
        // An end that has sent or received a close has no more to say; late packets are then
        // unknown.
        if entry.over || entry.quic.is_draining() || entry.quic.is_closed() {
            self.free.push(index);
            for id in &entry.ids {
                self.by_id.remove(id);
            }
            return application.ended(self, entry);
        }
        entry.deadline = entry.quic.timeout_instant();
        self.deadlines
            .extend(entry.deadline.map(|deadline| (deadline, index)));
        self.connections[index] = Some(entry);
        Ok(true)
    }

    fn send(&mut self, entry: &mut Entry) -> Result<()> {
        loop {
            let Some(space) = self.outbox.space() else {
                self.flush()?;
                continue;
            };
            match entry.quic.send(space) {
                Ok((len, info)) => self
                    .outbox
                    .push(len, entry.socket, info.to)
                    .map_err(context("sending datagrams"))?,
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(Failure::new(format!("quiche cannot send: {error}"))),
            }
        }
    }
}

fn new_id() -> Result<[u8; ID]> {
    let mut id = [0; ID];
    aws_lc_rs::rand::fill(&mut id).map_err(context("no randomness"))?;
    Ok(id)
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
