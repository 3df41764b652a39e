//! TLS handshakes over TCP, as the command-line tool makes them: the threads around them.

use std::io;
use std::sync::Arc;
use std::thread;

use squall_yard::controls::handshakes::{accept, connect};
use squall_yard::error::{Failure, Result, context};

use super::{listen, provider};
use crate::transport::identity;
use crate::transport::job::{Job, Role};
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
