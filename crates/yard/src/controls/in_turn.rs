//! Requests over TCP or TLS over TCP, one at a time per connection: each when the previous one is
//! answered, or by the clock.
//!
//! ```text
//!   client   wait until it is due ─► request ─► read the response to its end ─► the next one
//! ```
//! `ask` uses one thread per connection, `scattered` one loop for all connections.

use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

use super::channel::Channel;
use crate::interrupt;

/// How long a thread sleeps before it checks whether the user has interrupted.
const LOOK: Duration = Duration::from_millis(100);

/// When a request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At once.
    Now,
    /// By the clock.
    At(Instant),
}

/// What decides when a connection's requests begin, and looks at their responses.
pub trait Turns {
    /// When the next request begins; `None`: there is none.
    fn next(&mut self) -> Option<Start>;
    /// Called when it begins.
    fn begin(&mut self);
    /// Takes the next bytes of the response.
    fn take(&mut self, bytes: &[u8]);
    /// Called after the last bytes of a response.
    ///
    /// # Errors
    /// The response is not what was asked for.
    fn complete(&mut self) -> io::Result<()>;
}

/// A client: makes one request at a time until there is none.
///
/// # Errors
/// The connection broke, or a response is not what was asked for.
pub fn ask(
    channel: &mut impl Channel,
    request: &[u8],
    response: u64,
    turns: &mut impl Turns,
) -> io::Result<()> {
    while let Some(start) = turns.next() {
        if let Start::At(due) = start
            && !sleep_until(due)
        {
            return Ok(());
        }
        turns.begin();
        channel.send(request)?;
        let mut left = response;
        while left > 0 {
            let read = channel.receive(&mut |bytes| turns.take(bytes))?;
            let read = read.ok_or(ErrorKind::UnexpectedEof)?;
            left = left.saturating_sub(read as u64);
        }
        turns.complete()?;
    }
    Ok(())
}

/// Returns false if the user interrupts first.
fn sleep_until(due: Instant) -> bool {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() || interrupt::raised() {
            return left.is_zero();
        }
        thread::sleep(left.min(LOOK));
    }
}
