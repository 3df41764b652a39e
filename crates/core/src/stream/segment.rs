//! A chunk of received bytes, and what the pool needs to take it back.

use bytes::{Bytes, BytesMut};

use super::chunk_pool::ChunkPool;

/// Bytes received at an offset of a stream.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) start: u64,
    data: Data,
    /// Bytes of the chunk, including those already read.
    size: u32,
    /// The size class by which the pool takes it back.
    class: Option<u8>,
}

#[derive(Debug)]
enum Data {
    /// A chunk to which bytes can be appended.
    Growing(BytesMut),
    /// A part of a chunk that was filled in one go. The pool has a handle to all of it.
    Filled(Bytes),
}

impl Segment {
    /// The bytes of a chunk that may get more.
    pub(super) fn growing(start: u64, data: BytesMut, class: Option<u8>) -> Self {
        Self {
            start,
            size: data.capacity() as u32,
            data: Data::Growing(data),
            class,
        }
    }

    /// A part of a chunk of `size` bytes.
    pub(super) const fn filled(start: u64, data: Bytes, size: usize) -> Self {
        Self {
            start,
            data: Data::Filled(data),
            size: size as u32,
            class: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        match &self.data {
            Data::Growing(data) => data.len(),
            Data::Filled(data) => data.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.len() as u64
    }

    /// Bytes of the chunk, including those already read.
    pub(super) const fn size(&self) -> usize {
        self.size as usize
    }

    /// Whether the chunk was filled in one go.
    pub(super) const fn is_filled(&self) -> bool {
        matches!(self.data, Data::Filled(_))
    }

    /// How many bytes can be appended.
    #[inline]
    pub(super) fn room(&self) -> usize {
        match &self.data {
            Data::Growing(data) => data.capacity() - data.len(),
            Data::Filled(_) => 0,
        }
    }

    /// Appends as many of the bytes as there is room for; returns how many.
    #[inline]
    pub(super) fn append(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.room());
        if let Data::Growing(data) = &mut self.data {
            data.extend_from_slice(&bytes[..n]);
        }
        n
    }

    /// Makes room for `more` bytes in a chunk of fewer than `below` bytes that is not empty.
    pub(super) fn grow(&mut self, more: usize, below: usize, pool: &mut ChunkPool) {
        if let Data::Growing(data) = &mut self.data
            && data.capacity() < below
            && !data.is_empty()
        {
            data.reserve(more.max(data.len()));
            pool.settle(self.size as usize);
            self.size = data.capacity() as u32;
            pool.note(self.size as usize);
        }
    }

    /// Takes at most `max` bytes from the front, without a copy.
    pub(super) fn take(&mut self, max: usize) -> Bytes {
        let n = max.min(self.len());
        let bytes = match &mut self.data {
            // Nothing returns to the pool: the reader gets the chunk itself, and no handle that
            // shares it is allocated.
            Data::Growing(data) if n == data.len() && self.class.is_none() => {
                std::mem::take(data).freeze()
            }
            Data::Growing(data) => data.split_to(n).freeze(),
            Data::Filled(data) => data.split_to(n),
        };
        self.start += n as u64;
        bytes
    }

    /// Returns the chunk to the pool; all bytes are with the reader.
    pub(super) fn give_back(self, pool: &mut ChunkPool) {
        pool.settle(self.size as usize);
        if let Data::Growing(data) = self.data {
            pool.give(data, self.class);
        }
    }
}
