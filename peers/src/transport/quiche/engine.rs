//! The event loop: sockets, timers, and connections with their streams.

use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quiche::{BufFactory, Config, ConnectionId, RecvInfo};
use squall_yard::error::{Failure, Result, context};
use squall_yard::pace::Pace;
use squall_yard::source::Source;

use super::udp::{self, Inbox, Outbox, Readable};
use crate::transport::job::PIECE;
use crate::transport::socket;
use crate::transport::verify::Verifier;

/// Bytes of our connection ids.
const ID: usize = 16;

/// Lets quiche keep references to the application's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared;

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

pub(super) type Quic = quiche::Connection<Shared>;

/// One end's work, from the loop's point of view.
pub(super) trait Application {
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
pub(super) struct Entry {
    pub(super) quic: Quic,
    pub(super) index: usize,
    /// The number of its socket.
    socket: usize,
    ids: Vec<Vec<u8>>,
    deadline: Option<Instant>,
    touched: bool,
    pub(super) streams: HashMap<u64, Stream>,
    /// Clients: the next stream's number, requests that wait for one, and those without an answer.
    pub(super) next_stream: u64,
    pub(super) unsent: u64,
    pub(super) unanswered: u64,
    /// Clients: whether the handshake's end has been seen; when the place's requests begin, and
    /// when the current one did.
    pub(super) established: bool,
    pub(super) pace: Option<Pace>,
    pub(super) begun: Option<Instant>,
    /// The application has closed it.
    pub(super) over: bool,
}

/// A stream's two halves.
pub(super) struct Stream {
    pub(super) outgoing: Outgoing,
    pub(super) verifier: Option<Verifier>,
    /// Servers: the length asked for, as far as it has arrived, and an upload to send back.
    pub(super) head: Vec<u8>,
    pub(super) upload: Vec<u8>,
}

/// The state of a stream's sending half.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// It is not known yet what to send.
    Waiting,
    Ready,
    /// All data, and the end, has been handed to quiche.
    Done,
}

/// What a stream has to send.
pub(super) struct Outgoing {
    source: Source,
    /// Bytes still to come, excluding those in `piece`.
    pub(super) left: u64,
    pub(super) piece: Bytes,
    pub(super) state: Sending,
}

impl Outgoing {
    pub(super) fn nothing() -> Self {
        Self {
            source: Source::new(None),
            left: 0,
            piece: Bytes::new(),
            state: Sending::Waiting,
        }
    }

    /// Hands over what quiche accepts.
    pub(super) fn push(
        &mut self,
        quic: &mut Quic,
        id: u64,
    ) -> std::result::Result<(), quiche::Error> {
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
pub(super) struct Engine {
    /// A server's one socket, or a client's.
    pub(super) sockets: Vec<UdpSocket>,
    pub(super) locals: Vec<SocketAddr>,
    /// Watches several sockets.
    watch: Option<Readable>,
    /// Sockets that may have something to read.
    readable: Vec<usize>,
    pub(super) config: Config,
    inbox: Inbox,
    outbox: Outbox,
    pub(super) connections: Vec<Option<Entry>>,
    free: Vec<usize>,
    by_id: HashMap<Vec<u8>, usize>,
    /// Connections whose `touched` is set.
    touched: Vec<usize>,
    /// The connections' deadlines.
    deadlines: BTreeSet<(Instant, usize)>,
}

impl Engine {
    /// Binds this many sockets at an address.
    pub(super) fn new(local: Ipv4Addr, number: usize, config: Config) -> Result<Self> {
        let mut sockets = Vec::new();
        let mut locals = Vec::new();
        for _ in 0..number {
            let socket = socket::bind((local, 0).into()).map_err(context("no UDP port"))?;
            udp::prepare(&socket).map_err(context("no GRO"))?;
            locals.push(socket.local_addr().map_err(context("local address"))?);
            sockets.push(socket);
        }
        Ok(Self {
            watch: (number > 1)
                .then(|| Readable::new(&sockets))
                .transpose()
                .map_err(context("cannot watch the sockets"))?,
            readable: (0..number).collect(),
            sockets,
            locals,
            config,
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            connections: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            touched: Vec::new(),
            deadlines: BTreeSet::new(),
        })
    }

    pub(super) fn run(&mut self, application: &mut impl Application) -> Result<()> {
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
    pub(super) fn touch(&mut self, index: usize) {
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

    pub(super) fn add(&mut self, quic: Quic, socket: usize, ids: Vec<Vec<u8>>) -> usize {
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

pub(super) fn new_id() -> Result<[u8; ID]> {
    let mut id = [0; ID];
    aws_lc_rs::rand::fill(&mut id).map_err(context("no randomness"))?;
    Ok(id)
}
