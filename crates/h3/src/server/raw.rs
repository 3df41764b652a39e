//! Streams of other protocols between those of requests.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use squall::{Connection, RecvStream, SendStream};

use crate::receive::{Broken, MessageReader};

/// A bidirectional stream of a client that carries no request; see
/// [`Builder::raw_streams`](super::Builder::raw_streams).
///
/// A stream that is dropped before its end is reset with H3_INTERNAL_ERROR, or stopped with
/// H3_NO_ERROR, unless [`set_drop_code`](SendStream::set_drop_code) of the half sets another code.
#[derive(Debug)]
#[non_exhaustive]
pub struct RawStream {
    /// The connection that the stream belongs to. Its
    /// [`stable_id`](squall::Connection::stable_id) is that of [`Peer::connection`](super::Peer),
    /// which requests have.
    pub connection: Connection,
    /// The half to the client.
    pub send: SendStream,
    /// The half from the client, without what is in `first`.
    pub recv: RecvStream,
    /// What has arrived after the type; often empty.
    pub first: Bytes,
}

/// What takes the streams of one type.
#[derive(Clone)]
pub(super) struct RawStreams {
    pub(super) kind: u64,
    pub(super) take: Arc<dyn Fn(RawStream) + Send + Sync>,
}

/// Tells streams of this type from requests.
pub(super) struct Opening {
    kind: u64,
    /// The beginning of a type that spans chunks.
    held: Vec<u8>,
}

impl Opening {
    pub(super) fn new(kind: u64) -> Self {
        let held = Vec::new();
        Self { kind, held }
    }

    /// What follows the type on a stream of this type; `None` for another stream, whose beginning
    /// is then back in its reader.
    pub(super) fn poll(
        &mut self,
        reader: &mut MessageReader,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Broken>> {
        loop {
            let chunk = ready!(reader.recv.poll_read_chunk(cx, usize::MAX));
            let chunk = chunk.map_err(|error| Broken::Lost(error.into()))?;
            let is_end = chunk.is_none();
            let mut chunk = chunk.unwrap_or_default();
            if !self.held.is_empty() {
                self.held.extend_from_slice(&chunk);
                chunk = std::mem::take(&mut self.held).into();
            }
            let mut integers = squall_wire::Reader::new(&chunk);
            match integers.varint() {
                Ok(kind) if kind == self.kind => {
                    let len = integers.position();
                    chunk.advance(len);
                    return Poll::Ready(Ok(Some(chunk)));
                }
                Err(_) if !is_end => self.held = chunk.into(),
                _ => {
                    reader.begin_with(chunk);
                    return Poll::Ready(Ok(None));
                }
            }
        }
    }
}
