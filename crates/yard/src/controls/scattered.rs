//! One request at a time on each of many connections, in one event loop per end.
//!
//! ```text
//!   client   poll ─► read ─► a whole response? ─► the next request at once, or when it is due
//!   server   poll ─► read ─► a whole request? ─► the response
//! ```
//! A thread per connection would cost two more context switches per request. Requests and responses
//! are small: sockets take them at once, so neither end has to wait for room.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::channel::{Channel as _, Protocol};
use super::in_turn::{Start, Turns};
use crate::interrupt;
use crate::source::Source;

/// Events taken from the kernel in one call.
const EVENTS: usize = 256;
/// How long a client waits before it checks whether the user has interrupted.
const LOOK: Duration = Duration::from_millis(100);

/// Connections after their handshakes, in one poll.
pub struct Group<P: Protocol> {
    poll: Poll,
    channels: Vec<P::Channel>,
}

impl<P: Protocol> Group<P> {
    /// Makes the handshakes one by one, blocking, and then registers for events.
    ///
    /// # Errors
    /// A handshake failed, or a system call did.
    pub fn new(
        sockets: impl IntoIterator<Item = io::Result<TcpStream>>,
        handshake: impl Fn(TcpStream) -> io::Result<P::Channel>,
    ) -> io::Result<Self> {
        let (poll, mut channels) = (Poll::new()?, Vec::new());
        for socket in sockets {
            let socket = socket?;
            let same = socket.try_clone()?;
            let descriptor = socket.as_raw_fd();
            let channel = handshake(socket)?;
            same.set_nonblocking(true)?;
            let token = Token(channels.len());
            (poll.registry()).register(&mut SourceFd(&descriptor), token, Interest::READABLE)?;
            channels.push(channel);
        }
        Ok(Self { poll, channels })
    }

    /// Waits for events.
    fn wait(&mut self, events: &mut Events, limit: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, limit) {
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }

    /// Reads until `wanted` more bytes have arrived, or nothing is left to read. Events are
    /// edge-triggered, so no byte of an awaited message may stay unread.
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

    /// A server: answers until all clients have left.
    ///
    /// # Errors
    /// A response could not be sent.
    pub fn answer(&mut self, request: usize, response: usize) -> io::Result<()> {
        let response = Source::new(None).next(response);
        let mut have = vec![Some(0); self.channels.len()];
        // A request that came with the end of the handshake is already buffered here: no event will
        // report it.
        for (index, have) in have.iter_mut().enumerate() {
            self.answer_one(index, have, request, &response)?;
        }
        let mut events = Events::with_capacity(EVENTS);
        while have.iter().any(Option::is_some) {
            self.wait(&mut events, None)?;
            for event in &events {
                let index = event.token().0;
                self.answer_one(index, &mut have[index], request, &response)?;
            }
        }
        Ok(())
    }

    /// Reads what has arrived of a connection's request, and answers it once it is complete.
    /// `have`: bytes of it so far, or `None` if the client has left.
    fn answer_one(
        &mut self,
        index: usize,
        have: &mut Option<usize>,
        request: usize,
        response: &[u8],
    ) -> io::Result<()> {
        let Some(before) = *have else { return Ok(()) };
        let Ok(count) = self.read(index, request - before, &mut |_| {}) else {
            *have = None;
            return Ok(());
        };
        let is_whole = before + count == request;
        *have = Some(if is_whole { 0 } else { before + count });
        if is_whole {
            self.channels[index].send(response)?;
        }
        Ok(())
    }

    /// A client: makes requests until no connection has another one.
    ///
    /// # Errors
    /// A connection broke, or a response is not what was asked for.
    pub fn ask<T: Turns>(
        &mut self,
        request: &[u8],
        response: usize,
        turns: &mut [T],
    ) -> io::Result<()> {
        let mut client = Client {
            working: turns.len(),
            missing: vec![0; turns.len()],
            due: BinaryHeap::new(),
            group: self,
            turns,
            request,
            response,
        };
        for index in 0..client.working {
            client.next(index)?;
        }
        client.run()
    }
}

/// A client's work.
struct Client<'a, P: Protocol, T> {
    group: &'a mut Group<P>,
    turns: &'a mut [T],
    /// Bytes that are missing from each connection's response.
    missing: Vec<usize>,
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    request: &'a [u8],
    response: usize,
    /// Connections that still have something to do.
    working: usize,
}

impl<P: Protocol, T: Turns> Client<'_, P, T> {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        while self.working > 0 {
            let due = self.due.peek().map(|Reverse((due, _))| *due);
            let limit = due.map(|due| due.saturating_duration_since(Instant::now()).min(LOOK));
            self.group.wait(&mut events, limit)?;
            for event in &events {
                self.read(event.token().0)?;
            }
            let now = Instant::now();
            while let Some(&Reverse((due, index))) = self.due.peek()
                && due <= now
            {
                self.due.pop();
                self.begin(index)?;
            }
            if interrupt::raised() {
                self.working -= self.due.len();
                self.due.clear();
            }
        }
        Ok(())
    }

    /// Makes a connection's next request, now or when it is due.
    fn next(&mut self, index: usize) -> io::Result<()> {
        match self.turns[index].next() {
            None => self.working -= 1,
            Some(Start::At(due)) => self.due.push(Reverse((due, index))),
            Some(Start::Now) => self.begin(index)?,
        }
        Ok(())
    }

    fn begin(&mut self, index: usize) -> io::Result<()> {
        self.missing[index] = self.response;
        self.turns[index].begin();
        self.group.channels[index].send(self.request)
    }

    fn read(&mut self, index: usize) -> io::Result<()> {
        let (turns, missing) = (&mut self.turns[index], &mut self.missing[index]);
        let read = self
            .group
            .read(index, *missing, &mut |bytes| turns.take(bytes))?;
        *missing -= read.min(*missing);
        if read == 0 || *missing > 0 {
            return Ok(());
        }
        turns.complete()?;
        self.next(index)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::controls::channel::Channel;

    /// A protocol whose server reads the first request with its handshake, as TLS's may.
    struct Eager;

    struct Early {
        socket: TcpStream,
        early: Vec<u8>,
    }

    impl Protocol for Eager {
        const NAME: &'static str = "eager";
        type Channel = Early;

        fn server(&self, mut socket: TcpStream) -> io::Result<Early> {
            let mut early = vec![0; 10];
            socket.read_exact(&mut early)?;
            Ok(Early { socket, early })
        }

        fn client(&self, socket: TcpStream) -> io::Result<Early> {
            let early = Vec::new();
            Ok(Early { socket, early })
        }
    }

    impl Channel for Early {
        fn send(&mut self, data: &[u8]) -> io::Result<()> {
            self.socket.write_all(data)
        }

        fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> io::Result<Option<usize>> {
            let mut bytes = std::mem::take(&mut self.early);
            if bytes.is_empty() {
                bytes.resize(100, 0);
                let count = self.socket.read(&mut bytes)?;
                bytes.truncate(count);
            }
            sink(&bytes);
            Ok((!bytes.is_empty()).then_some(bytes.len()))
        }

        fn prepare_to_receive(&self) -> io::Result<()> {
            Ok(())
        }

        fn finish(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_request_received_with_the_end_of_the_handshake_is_answered() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a peer");
        let far = listener.accept().map(|(far, _)| far);
        client.write_all(&[0; 10]).expect("room");
        let server = std::thread::spawn(move || {
            Group::<Eager>::new([far], |socket| Eager.server(socket))?.answer(10, 20)
        });
        let patience = Some(Duration::from_secs(10));
        client.set_read_timeout(patience).expect("an option");
        for _ in 0..2 {
            client.read_exact(&mut [0; 20]).expect("an answer");
            client.write_all(&[0; 10]).expect("room");
        }
        client.read_exact(&mut [0; 20]).expect("an answer");
        drop(client);
        server
            .join()
            .expect("no panic")
            .expect("the client has left");
    }
}
