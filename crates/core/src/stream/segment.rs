//! A chunk of received bytes, and what the pool needs to take it back.

use bytes::{Bytes, BytesMut};

use super::chunk_pool::ChunkPool;

/// Bytes received at an offset of a stream.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) start: u64,
    pub(super) data: BytesMut,
    /// Bytes of the chunk, including those already read.
    pub(super) size: usize,
    /// The size class by which the pool takes it back.
    pub(super) class: Option<u8>,
}

impl Segment {
    pub(super) fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }

    /// Takes at most `max` bytes from the front, without a copy.
    pub(super) fn take(&mut self, max: usize) -> Bytes {
        let n = max.min(self.data.len());
        let bytes = if n == self.data.len() && self.class.is_none() {
            // Nothing returns to the pool: the reader gets the chunk itself, and no handle that
            // shares it is allocated.
            std::mem::take(&mut self.data).freeze()
        } else {
            self.data.split_to(n).freeze()
        };
        self.start += n as u64;
        bytes
    }

    /// Returns the chunk to the pool; all bytes are with the reader.
    pub(super) fn give_back(self, pool: &mut ChunkPool) {
        pool.settle(self.size);
        pool.give(self.data, self.class);
    }
}
