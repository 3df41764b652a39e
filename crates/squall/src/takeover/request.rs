//! The successor's side: it asks for a port, and says when it can start.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::channel::{Channel, unanswered};
use super::link::Link;
use super::message::{Greeting, Word};

/// How long the predecessor may take for each message.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port that another process is about to hand over, with its connections: see
/// [`Endpoint::hand_over`](crate::Endpoint::hand_over). Linux only.
///
/// Pass it to [`Builder::take_over`](crate::Builder::take_over). Until the endpoint is bound, the
/// other process goes on as before; it keeps doing so if this is dropped.
#[derive(Debug)]
pub struct Takeover {
    channel: Channel,
    greeting: Greeting,
    local_addr: SocketAddr,
    sockets: Vec<UdpSocket>,
    /// By worker: a link to each predecessor.
    links: Vec<Vec<Link>>,
    descriptors: Vec<OwnedFd>,
}

impl Takeover {
    /// Asks the process that [hands over](crate::Endpoint::hand_over) its port at `path`. Returns
    /// `None` if no process listens there, and the caller then binds the port itself. In that case,
    /// this also checks that the caller will be able to listen there.
    ///
    /// Blocks until the other process answers, usually for less than a millisecond.
    ///
    /// # Errors
    /// The other process does not hand over its port (`Other`, with its reason), does not answer
    /// within ten seconds (`TimedOut`), has ended (`ConnectionAborted`), belongs to another user
    /// (`PermissionDenied`) or speaks another version of the protocol (`InvalidData`); `path` is
    /// something other than a socket (`AlreadyExists`); or the system refused.
    pub fn request(path: impl AsRef<Path>) -> io::Result<Option<Self>> {
        let Some(channel) = Channel::connect(path.as_ref(), PATIENCE)? else {
            return Ok(None);
        };
        let mut fds = Vec::new();
        let greeting = Greeting::decode(&receive(&channel, &mut fds)?)?;
        let (mut sockets, mut links) = (Vec::new(), Vec::new());
        for _ in 0..greeting.workers {
            expect(Word::Descriptors, &receive(&channel, &mut fds)?)?;
            let mut fds = fds.drain(..);
            sockets.push(UdpSocket::from(fds.next().ok_or_else(incomplete)?));
            links.push(fds.map(Link::of).collect());
        }
        if greeting.descriptors > 0 {
            expect(Word::Descriptors, &receive(&channel, &mut fds)?)?;
        }
        let first = sockets.first().ok_or_else(incomplete)?;
        if fds.len() != usize::from(greeting.descriptors) {
            return Err(incomplete());
        }
        Ok(Some(Self {
            local_addr: first.local_addr()?,
            channel,
            greeting,
            sockets,
            links,
            descriptors: fds,
        }))
    }

    /// The address of the port.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Takes the descriptors that the other process hands over with the port, in its order.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Takes the workers' sockets, in order.
    pub(crate) fn take_sockets(&mut self) -> Vec<UdpSocket> {
        std::mem::take(&mut self.sockets)
    }

    pub(crate) const fn greeting(&self) -> &Greeting {
        &self.greeting
    }
}

/// What an endpoint that is being bound takes over, if anything.
pub(crate) struct Claim(Option<Takeover>);

impl Claim {
    /// A claim to the port of a predecessor whose connection ids have this length.
    ///
    /// # Errors
    /// The predecessor's have another.
    pub(crate) fn new(takeover: Option<Takeover>, id_len: usize) -> io::Result<Self> {
        let theirs = takeover.as_ref().map(|takeover| takeover.greeting.id_len);
        if let Some(theirs) = theirs.filter(|theirs| usize::from(*theirs) != id_len) {
            let why = format!(
                "connection ids have {id_len} bytes, but those of the running process have {theirs}"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self(takeover))
    }

    /// Whether there is something to take over.
    pub(crate) const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Takes the links to the predecessors, by worker.
    pub(crate) fn take_links(&mut self) -> Vec<Vec<Link>> {
        (self.0.as_mut()).map_or_else(Vec::new, |takeover| std::mem::take(&mut takeover.links))
    }

    /// Makes the predecessor stop reading its sockets. It starts again if this is dropped.
    pub(crate) fn stop_predecessor(&self) -> io::Result<()> {
        let Some(takeover) = &self.0 else {
            return Ok(());
        };
        say(Word::Ready, &takeover.channel)?;
        expect(Word::Stopped, &receive(&takeover.channel, &mut Vec::new())?)
    }

    /// The successor's workers run. If this fails, the predecessor keeps the port.
    pub(crate) fn finish(self) -> io::Result<()> {
        let Some(takeover) = &self.0 else {
            return Ok(());
        };
        say(Word::Done, &takeover.channel)?;
        // Otherwise the predecessor has given up waiting, and reads its sockets again.
        expect(Word::Done, &receive(&takeover.channel, &mut Vec::new())?)
    }
}

fn say(word: Word, channel: &Channel) -> io::Result<()> {
    let sent = channel.send(&[&word.bytes()], &[]);
    sent.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => gone(),
        io::ErrorKind::WouldBlock => unanswered(),
        _ => error,
    })
}

/// The next message.
fn receive(channel: &Channel, fds: &mut Vec<OwnedFd>) -> io::Result<Vec<u8>> {
    let mut message = vec![0; 1024];
    let len = loop {
        match channel.receive(&mut message, fds) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(gone()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(unanswered()),
            result => break result?,
        }
    };
    if len == 0 {
        return Err(gone());
    }
    message.truncate(len);
    if Word::Refused.is(&message) {
        let reason = String::from_utf8_lossy(message.get(1..).unwrap_or_default());
        let why = format!("the running process does not hand over its port: {reason}");
        return Err(io::Error::other(why));
    }
    Ok(message)
}

fn expect(word: Word, message: &[u8]) -> io::Result<()> {
    match word.is(message) {
        true => Ok(()),
        false => Err(incomplete()),
    }
}

fn gone() -> io::Error {
    let why = "the running process ended, or is handing over to another one";
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

fn incomplete() -> io::Error {
    let why = "the running process sent something other than a port";
    io::Error::new(io::ErrorKind::InvalidData, why)
}
