//! Requests over TCP or TLS over TCP, one at a time on a connection: each when the one before is
//! answered, or by the clock.
//!
//! ```text
//!   client   wait until it is due ─► request ─► read the response to its end ─► the next one
//! ```
//! `ask` has a thread for its connection, `scattered` one loop for all connections.

use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

use super::channel::Channel;
use crate::interrupt;

/// How long a thread sleeps without a look whether the user wants an end.
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
    /// It begins now.
    fn begin(&mut self);
    /// The next bytes of the response.
    fn take(&mut self, bytes: &[u8]);
    /// Those were its last ones.
    ///
    /// # Errors
    /// It is not what was asked for.
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

/// False if the user wants an end before.
fn sleep_until(due: Instant) -> bool {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() || interrupt::raised() {
            return left.is_zero();
        }
        thread::sleep(left.min(LOOK));
    }
}
