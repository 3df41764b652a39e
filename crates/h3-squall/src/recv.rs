//! The receiving half of a stream.

use std::task::{Context, Poll};

use bytes::Bytes;
use h3::quic::{self, StreamErrorIncoming, StreamId};

use crate::error;

/// The receiving half of a stream. Dropping it before the stream was read to its end stops the
/// stream.
#[derive(Debug)]
pub struct RecvStream {
    stream: squall::RecvStream,
    id: StreamId,
}

impl RecvStream {
    /// Takes over a stream that is dropped with `drop_code`.
    pub(crate) fn new(mut stream: squall::RecvStream, id: StreamId, drop_code: u64) -> Self {
        stream.set_drop_code(drop_code);
        Self { stream, id }
    }
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        (self.stream.poll_read_chunk(cx, usize::MAX)).map_err(error::of_read)
    }

    fn stop_sending(&mut self, error_code: u64) {
        // An error means that the stream has ended anyway.
        let _ = self.stream.stop(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.id
    }
}
