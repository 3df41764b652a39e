//! Informational responses on their way to the client.

use std::task::{Context, Poll, ready};

use squall::SendStream;

use crate::error::Error;
use crate::informational::Informational;
use crate::message::response_fields;
use crate::send::Buffer;
use crate::shared::Shared;

/// The sending end of an [`Informational`].
pub(super) struct Hints {
    from: Informational,
    /// Encoded, but not yet written.
    unwritten: Buffer,
}

impl Hints {
    pub(super) fn new(from: Informational) -> Self {
        Self {
            from,
            unwritten: Buffer::default(),
        }
    }

    /// Sends what is waiting; ready when all is written.
    pub(super) fn poll_send(
        &mut self,
        shared: &Shared,
        send: &mut SendStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        loop {
            ready!(self.unwritten.poll_write(send, cx, false))?;
            let Some(response) = self.from.next(cx) else {
                return Poll::Ready(Ok(()));
            };
            let (head, ()) = response.into_parts();
            let out = &mut self.unwritten.bytes;
            match shared.encode(send.id(), response_fields(&head), out) {
                Ok(begin) => self.unwritten.begin = begin,
                // The peer accepts no section of this size: the others and the final response may
                // still be sent.
                Err(_) => out.clear(),
            }
        }
    }
}

impl Hints {
    /// The final response has begun; see [`Informational::end`].
    pub(super) fn end(&self) {
        self.from.end();
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.end();
    }
}
