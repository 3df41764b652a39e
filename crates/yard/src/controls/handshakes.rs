//! One TLS handshake over TCP, by rustls' ordinary interface. `operations` runs it in threads of
//! one process, `peers/` in separate ones.
//!
//! ```text
//!   client   connect ─► handshake ─► 8 bytes: a length ─► that many bytes ─► close_notify ─► close
//!   server   handshake ─► reads the request, answers ─► close_notify, FIN ─► reads to the end
//! ```

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection, Stream,
};

use super::channel::{BATCH, prepare};
use crate::certificate::NAME;
use crate::source::Source;

/// The result of a handshake.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// From the first system call to the established connection.
    pub took: Duration,
    /// From the first system call to the last byte of the last answer.
    pub answered: Duration,
    /// Full or resumed.
    pub kind: Option<HandshakeKind>,
}

/// Requests on a connection, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// How many there are.
    pub number: u64,
    /// Bytes of an answer.
    pub answer: u64,
}

impl Requests {
    /// No requests.
    pub const EMPTY: Self = Self {
        number: 1,
        answer: 0,
    };
}

/// The server's side, for this many requests.
///
/// # Errors
/// The handshake failed, or the connection broke.
pub fn accept(mut socket: TcpStream, config: &Arc<ServerConfig>, requests: u64) -> io::Result<()> {
    prepare(&socket)?;
    let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut stream = Stream::new(&mut tls, &mut socket);
    let mut request = [0; size_of::<u64>()];
    for _ in 0..requests {
        stream.read_exact(&mut request)?;
        let (mut left, mut source) = (u64::from_be_bytes(request), Source::new(None));
        while left > 0 {
            let piece = source.next(usize::try_from(left).map_or(BATCH, |left| left.min(BATCH)));
            stream.write_all(&piece)?;
            left -= piece.len() as u64;
        }
    }
    tls.send_close_notify();
    while tls.wants_write() {
        tls.write_tls(&mut socket)?;
    }
    socket.shutdown(Shutdown::Write)?;
    // Closing with unread data would reset the connection before the answer is delivered.
    while socket.read(&mut request)? > 0 {}
    Ok(())
}

/// The client's side, until the connection ends, so that its tickets have arrived. Each whole
/// answer is passed to `answer`.
///
/// # Errors
/// The handshake failed, or the connection broke.
pub fn connect(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    requests: Requests,
    answer: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Made> {
    let begin = Instant::now();
    let mut socket = TcpStream::connect(address)?;
    prepare(&socket)?;
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
    }
    let (took, kind) = (begin.elapsed(), tls.handshake_kind());
    let mut stream = Stream::new(&mut tls, &mut socket);
    let mut buffer = vec![0; usize::try_from(requests.answer).map_err(io::Error::other)?];
    for _ in 0..requests.number {
        stream.write_all(&requests.answer.to_be_bytes())?;
        stream.read_exact(&mut buffer)?;
        answer(&buffer)?;
    }
    let answered = begin.elapsed();
    if stream.read(&mut [0; 1])? > 0 {
        return Err(io::Error::other("more than was asked for"));
    }
    Ok(Made {
        took,
        answered,
        kind,
    })
}
