//! W6: one request at a time on each of many connections, in an event loop at each end.
//!
//! ```text
//!   client   poll ─► read ─► a whole answer? ─► the next request at once, or when it is due
//!   server   poll ─► read ─► a whole request? ─► the answer
//! ```
//! A thread for each connection would cost two context switches more for every request.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use squall_yard::controls::channel::{Channel as _, Protocol};
use squall_yard::source::Source;

use crate::transport::case::Shape;
use crate::transport::job::Message;
use crate::transport::pace::Pace;
use crate::transport::process::{Count, say};
use crate::transport::verify::{Verifier, message};

/// Events taken from the kernel in one call.
const EVENTS: usize = 256;

/// Connections after their handshakes, in one poll.
struct Group<P: Protocol> {
    poll: Poll,
    channels: Vec<P::Channel>,
}

impl<P: Protocol> Group<P> {
    fn new() -> io::Result<Self> {
        Ok(Self {
            poll: Poll::new()?,
            channels: Vec::new(),
        })
    }

    /// Makes a connection's handshake, which blocks, and then waits for what arrives.
    fn add(
        &mut self,
        socket: TcpStream,
        handshake: impl FnOnce(TcpStream) -> io::Result<P::Channel>,
    ) -> io::Result<()> {
        let same = socket.try_clone()?;
        let descriptor = socket.as_raw_fd();
        let channel = handshake(socket)?;
        same.set_nonblocking(true)?;
        let token = Token(self.channels.len());
        (self.poll.registry()).register(&mut SourceFd(&descriptor), token, Interest::READABLE)?;
        self.channels.push(channel);
        Ok(())
    }

    /// Waits for events.
    fn wait(&mut self, events: &mut Events, limit: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, limit) {
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }

    /// Reads until `wanted` bytes more are there, or nothing is left to read. Events tell only of
    /// news, so nothing may stay unread that belongs to what is waited for.
    fn read(
        &mut self,
        index: usize,
        wanted: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        let mut read = 0;
        while read < wanted {
            match self.channels[index].receive(sink) {
                Ok(Some(count)) => read += count,
                Ok(None) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }
}

/// Serves that many connections, until the process ends.
pub(super) fn serve<P: Protocol>(
    protocol: &P,
    listener: &TcpListener,
    shape: &Shape,
) -> io::Result<()> {
    let mut group = Group::<P>::new()?;
    for _ in 0..shape.connections {
        let (socket, _) = listener.accept()?;
        group.add(socket, |socket| protocol.server(socket))?;
    }
    let whole = message(shape).len();
    let answer = Source::new(None).next(shape.answer as usize);
    let mut have = vec![0; shape.connections];
    let mut events = Events::with_capacity(EVENTS);
    loop {
        group.wait(&mut events, None)?;
        for event in &events {
            let index = event.token().0;
            match group.read(index, whole - have[index], &mut |_| {}) {
                Ok(count) => have[index] += count,
                // The client has left.
                Err(_) => continue,
            }
            if have[index] == whole {
                have[index] = 0;
                group.channels[index].send(&answer)?;
            }
        }
    }
}

/// A client's place.
struct Place {
    pace: Pace,
    /// Requests that have not begun, and what is missing of the current one's answer.
    left: u64,
    missing: usize,
    verifier: Verifier,
    begun: Option<Instant>,
}

/// A client's work.
struct Client<'a, P: Protocol> {
    group: Group<P>,
    places: Vec<Place>,
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    request: Bytes,
    shape: Shape,
    check: bool,
    count: &'a Count,
    /// Places that still have something to do.
    working: usize,
}

/// Makes requests until none are left.
pub(super) fn ask<P: Protocol>(
    protocol: &P,
    address: SocketAddr,
    shape: Shape,
    check: bool,
    count: &Count,
) -> io::Result<()> {
    let mut group = Group::<P>::new()?;
    for _ in 0..shape.connections {
        group.add(TcpStream::connect(address)?, |socket| {
            protocol.client(socket)
        })?;
    }
    say(&Message::Working);
    let start = Instant::now();
    let place = |index| Place {
        pace: Pace::new(&shape, index, start),
        left: shape.repeat,
        missing: 0,
        verifier: Verifier::new(check, shape.answer),
        begun: None,
    };
    let mut client = Client {
        group,
        places: (0..shape.connections).map(place).collect(),
        due: BinaryHeap::new(),
        request: message(&shape),
        shape,
        check,
        count,
        working: shape.connections,
    };
    for index in 0..shape.connections {
        client.next(index)?;
    }
    client.run()
}

impl<P: Protocol> Client<'_, P> {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        while self.working > 0 {
            let due = self.due.peek().map(|Reverse((due, _))| *due);
            let limit = due.map(|due| due.saturating_duration_since(Instant::now()));
            self.group.wait(&mut events, limit)?;
            for event in &events {
                self.read(event.token().0)?;
            }
            let now = Instant::now();
            while let Some(&Reverse((due, index))) = self.due.peek()
                && due <= now
            {
                self.due.pop();
                self.places[index].begun = Some(now);
                self.begin(index)?;
            }
        }
        Ok(())
    }

    /// A place's next request, now or when it is due.
    fn next(&mut self, index: usize) -> io::Result<()> {
        let place = &mut self.places[index];
        if place.left == 0 {
            self.working -= 1;
            return Ok(());
        }
        place.left -= 1;
        match place.pace.next() {
            Some(due) => self.due.push(Reverse((due, index))),
            None => self.begin(index)?,
        }
        Ok(())
    }

    fn begin(&mut self, index: usize) -> io::Result<()> {
        self.places[index].missing = self.shape.answer as usize;
        self.group.channels[index].send(&self.request)
    }

    fn read(&mut self, index: usize) -> io::Result<()> {
        let place = &mut self.places[index];
        let (verifier, count) = (&mut place.verifier, self.count);
        let read = self.group.read(index, place.missing, &mut |bytes| {
            verifier.take(bytes);
            count.add_bytes(bytes.len());
        })?;
        place.missing -= read.min(place.missing);
        if read == 0 || place.missing > 0 {
            return Ok(());
        }
        let next = Verifier::new(self.check, self.shape.answer);
        let verifier = std::mem::replace(&mut place.verifier, next);
        verifier.end().map_err(io::Error::other)?;
        if let Some(begun) = place.begun.take() {
            count.add_latency(begun.elapsed());
        }
        count.add_units(1);
        self.next(index)
    }
}
