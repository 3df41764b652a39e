//! Where a client makes its requests, one at a time per connection, and checks and counts what
//! arrives.

use std::io;
use std::time::Instant;

use squall_yard::controls::in_turn::{Start, Turns};
use squall_yard::pace::{Begin, Pace};

use crate::transport::case::Shape;
use crate::transport::process::Count;
use crate::transport::verify::Verifier;

/// The place of one connection.
pub(super) struct Place<'a> {
    pace: Pace,
    /// Requests that have not begun.
    left: u64,
    verifier: Verifier,
    begun: Option<Instant>,
    shape: Shape,
    check: bool,
    count: &'a Count,
}

impl<'a> Place<'a> {
    pub(super) fn new(
        shape: Shape,
        index: usize,
        start: Instant,
        check: bool,
        count: &'a Count,
    ) -> Self {
        Self {
            pace: shape.pace(index, start),
            left: shape.repeat,
            verifier: Verifier::new(check, shape.answer),
            begun: None,
            shape,
            check,
            count,
        }
    }
}

impl Turns for Place<'_> {
    fn next(&mut self) -> Option<Start> {
        self.left = self.left.checked_sub(1)?;
        Some(self.pace.next_due().map_or(Start::Now, Start::At))
    }

    fn begin(&mut self) {
        self.begun = (self.shape.begin != Begin::AfterAnswer).then(Instant::now);
    }

    fn take(&mut self, bytes: &[u8]) {
        self.verifier.take(bytes);
        self.count.add_bytes(bytes.len());
    }

    fn complete(&mut self) -> io::Result<()> {
        let next = Verifier::new(self.check, self.shape.answer);
        let verifier = std::mem::replace(&mut self.verifier, next);
        verifier.end().map_err(io::Error::other)?;
        if let Some(begun) = self.begun {
            self.count.add_latency(begun.elapsed());
        }
        self.count.add_units(1);
        Ok(())
    }
}
