//! TLS handshakes over TCP, by rustls' ordinary interface.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, Stream};

use super::{listen, prepared, provider};
use crate::error::{Failure, Result, context};
use crate::transport::identity;
use crate::transport::job::{Job, NAME, Role};
use crate::transport::process::Count;

/// Does one end's work: as many threads as handshakes at a time.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    let shape = job.workload.shape(job.check);
    let provider = identity::limited(&provider(&job.provider));
    match job.role {
        Role::Server => {
            let config = Arc::new(identity::server(job, provider)?);
            let listener = Arc::new(listen()?);
            threads(shape.connections, || {
                let (listener, config) = (Arc::clone(&listener), Arc::clone(&config));
                move || -> io::Result<()> {
                    loop {
                        let (socket, _) = listener.accept()?;
                        // The client tells of a failed handshake.
                        let _ = accept(socket, &config);
                    }
                }
            })
        }
        Role::Client(address) => {
            let config = Arc::new(identity::client(job, provider, count)?);
            threads(shape.connections, || {
                let (config, count) = (Arc::clone(&config), Arc::clone(count));
                move || -> io::Result<()> {
                    for _ in 0..shape.repeat {
                        connect(address, &config)?;
                        count.add_units(1);
                    }
                    Ok(())
                }
            })
        }
    }
}

/// Runs so many threads to their end.
fn threads<W>(number: usize, work: impl Fn() -> W) -> Result<()>
where
    W: FnOnce() -> io::Result<()> + Send + 'static,
{
    let all: Vec<_> = (0..number).map(|_| thread::spawn(work())).collect();
    for one in all {
        one.join()
            .map_err(|_| Failure::new("a thread panicked"))?
            .map_err(context("handshake"))?;
    }
    Ok(())
}

fn accept(socket: TcpStream, config: &Arc<ServerConfig>) -> io::Result<()> {
    let mut socket = prepared(socket)?;
    let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut stream = Stream::new(&mut tls, &mut socket);
    let mut request = [0; size_of::<u64>()];
    stream.read_exact(&mut request)?;
    tls.send_close_notify();
    tls.write_tls(&mut socket)?;
    socket.shutdown(Shutdown::Write)?;
    // Closing with something unread would reset the connection under the answer.
    while socket.read(&mut request)? > 0 {}
    Ok(())
}

fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<()> {
    let mut socket = prepared(TcpStream::connect(address)?)?;
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let mut stream = Stream::new(&mut tls, &mut socket);
    stream.write_all(&0_u64.to_be_bytes())?;
    let mut answer = [0; 1];
    if stream.read(&mut answer)? > 0 {
        return Err(io::Error::other("an answer to an empty request"));
    }
    Ok(())
}
