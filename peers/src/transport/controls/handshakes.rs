//! The threads around TLS handshakes over TCP, which are made as in the command-line tool.

use std::io;
use std::sync::Arc;
use std::thread;

use squall_yard::controls::handshakes::{Requests, accept, connect};
use squall_yard::error::{Failure, Result, context};

use super::{listen, provider};
use crate::transport::identity;
use crate::transport::job::{Job, Message, Role};
use crate::transport::process::{Count, say};
use crate::transport::verify::Verifier;

/// Does one end's work: one thread per concurrent handshake.
pub(super) fn run(job: &Job, count: &Arc<Count>) -> Result<()> {
    let shape = job.shape();
    let provider = identity::limited(&provider(&job.provider));
    match job.role {
        Role::Server => {
            let config = Arc::new(identity::server(job, provider)?);
            let listener = Arc::new(listen(job)?);
            threads(shape.connections, || {
                let (listener, config) = (Arc::clone(&listener), Arc::clone(&config));
                move || -> io::Result<()> {
                    loop {
                        let (socket, _) = listener.accept()?;
                        // The client reports a failed handshake.
                        let _ = accept(socket, &config, shape.each);
                    }
                }
            })
        }
        Role::Client(address) => {
            let config = Arc::new(identity::client(job, provider, count)?);
            let check = job.check;
            let requests = Requests {
                number: shape.each,
                answer: shape.answer,
            };
            say(&Message::Working);
            threads(shape.connections, || {
                let (config, count) = (Arc::clone(&config), Arc::clone(count));
                move || -> io::Result<()> {
                    for _ in 0..shape.repeat {
                        connect(address, &config, requests, &mut |bytes| {
                            let mut verifier = Verifier::new(check, shape.answer);
                            verifier.take(bytes);
                            count.add_bytes(bytes.len());
                            verifier.end().map_err(io::Error::other)
                        })?;
                        count.add_units(1);
                    }
                    Ok(())
                }
            })
        }
    }
}

/// Runs this many threads to their end.
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
