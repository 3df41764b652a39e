//! One TLS handshake over TCP, by rustls' ordinary interface. `operations` runs it in threads of
//! one process, and `peers/` in processes of its own.
//!
//! ```text
//!   client   connect ─► handshake ─► 8 bytes: asks for nothing ─► tickets, close_notify ─► close
//!   server   handshake  ──►  reads the request  ──►  close_notify, FIN  ──►  reads to the end
//! ```

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection, Stream,
};

use super::channel::prepare;
use crate::certificate::NAME;

/// What came of a handshake.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// From the first system call to the established connection.
    pub took: Duration,
    /// Full or resumed.
    pub kind: Option<HandshakeKind>,
}

/// The server's side.
///
/// # Errors
/// The handshake failed, or the connection broke.
pub fn accept(mut socket: TcpStream, config: &Arc<ServerConfig>) -> io::Result<()> {
    prepare(&socket)?;
    let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut stream = Stream::new(&mut tls, &mut socket);
    let mut request = [0; size_of::<u64>()];
    stream.read_exact(&mut request)?;
    tls.send_close_notify();
    while tls.wants_write() {
        tls.write_tls(&mut socket)?;
    }
    socket.shutdown(Shutdown::Write)?;
    // Closing with something unread would reset the connection under the answer.
    while socket.read(&mut request)? > 0 {}
    Ok(())
}

/// The client's side, to the end of the connection, so that its tickets are there.
///
/// # Errors
/// The handshake failed, or the connection broke.
pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Made> {
    let begin = Instant::now();
    let mut socket = TcpStream::connect(address)?;
    prepare(&socket)?;
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
    }
    let made = Made {
        took: begin.elapsed(),
        kind: tls.handshake_kind(),
    };
    let mut stream = Stream::new(&mut tls, &mut socket);
    stream.write_all(&0_u64.to_be_bytes())?;
    let mut answer = [0; 1];
    if stream.read(&mut answer)? > 0 {
        return Err(io::Error::other("an answer to an empty request"));
    }
    Ok(made)
}
