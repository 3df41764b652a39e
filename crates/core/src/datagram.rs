//! Unreliable datagrams (RFC 9221): two bounded queues.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use crate::stream::chunk_pool::ChunkPool;

/// The cost of a datagram in addition to its bytes.
const OVERHEAD: usize = 64;
/// Bytes of the chunks that received datagrams are copied into: one for many of a run. The first
/// chunk of an empty queue is small, and each further one is twice as large as the one before.
const CHUNKS: [usize; 2] = [2 * 1024, 16 * 1024];

/// Datagrams waiting to be read, or to be sent.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Datagrams {
    /// To be sent, oldest first.
    outgoing: VecDeque<Bytes>,
    outgoing_cost: usize,
    /// The lengths of received datagrams, oldest first, and their bytes. None spans two chunks. A
    /// chunk that has been read completely goes back to the pool.
    incoming: VecDeque<usize>,
    chunks: VecDeque<Chunk>,
    /// Bytes of the chunks, including those already read.
    chunk_bytes: usize,
    incoming_cost: usize,
    /// Whether the reader was notified and has not found the queue empty since.
    pub(crate) reader_told: bool,
    /// Whether a writer was refused for lack of room and has not been notified since.
    pub(crate) writer_waits: bool,
}

/// Datagrams that lie back to back.
#[derive(Debug)]
struct Chunk {
    data: BytesMut,
    size: usize,
    /// The size class by which the pool takes it back.
    class: Option<u8>,
}

const fn cost(len: usize) -> usize {
    len + OVERHEAD
}

impl Datagrams {
    /// Roughly the bytes of memory that both queues take.
    pub(crate) fn memory(&self) -> usize {
        self.incoming_cost.max(self.chunk_bytes) + self.outgoing_cost
    }

    /// Stores a received datagram; returns how many of the oldest are dropped to make room for it
    /// within `limit` bytes.
    pub(crate) fn receive(&mut self, data: &[u8], limit: usize, pool: &mut ChunkPool) -> u64 {
        let len = data.len();
        if cost(len) > limit {
            return 1;
        }
        if len > 0 {
            let has_room = |chunk: &&mut Chunk| chunk.data.capacity() - chunk.data.len() >= len;
            match self.chunks.back_mut().filter(has_room) {
                Some(chunk) => chunk.data.extend_from_slice(data),
                None => self.begin_chunk(data, pool),
            }
        }
        self.incoming_cost += cost(len);
        self.incoming.push_back(len);
        let mut dropped = 0;
        while self.incoming_cost > limit {
            let Some(oldest) = self.incoming.pop_front() else {
                break;
            };
            self.take(oldest, pool, |chunk| chunk.advance(oldest));
            dropped += 1;
        }
        dropped
    }

    /// Puts a datagram into a chunk of its own, to which the next ones are added.
    fn begin_chunk(&mut self, data: &[u8], pool: &mut ChunkPool) {
        let wanted = self.chunks.back().map_or(0, |last| 2 * last.size);
        let wanted = wanted.clamp(CHUNKS[0], CHUNKS[1]).max(data.len());
        let (mut chunk, class) = pool.take(wanted);
        let size = chunk.capacity();
        chunk.extend_from_slice(data);
        self.chunk_bytes += size;
        self.chunks.push_back(Chunk {
            data: chunk,
            size,
            class,
        });
    }

    /// Takes the bytes of the oldest datagram, already removed from `incoming`, from their chunk.
    fn take<T>(
        &mut self,
        len: usize,
        pool: &mut ChunkPool,
        part: impl FnOnce(&mut BytesMut) -> T,
    ) -> Option<T> {
        self.incoming_cost -= cost(len);
        if len == 0 {
            return None;
        }
        let chunk = self.chunks.front_mut()?;
        let taken = part(&mut chunk.data);
        if chunk.data.is_empty()
            && let Some(chunk) = self.chunks.pop_front()
        {
            self.chunk_bytes -= chunk.size;
            pool.give(chunk.data, chunk.class);
        }
        Some(taken)
    }

    /// The oldest received datagram.
    pub(crate) fn read(&mut self, pool: &mut ChunkPool) -> Option<Bytes> {
        let Some(len) = self.incoming.pop_front() else {
            self.reader_told = false;
            return None;
        };
        let bytes = self.take(len, pool, |chunk| chunk.split_to(len.min(chunk.len())));
        Some(bytes.map_or_else(Bytes::new, BytesMut::freeze))
    }

    /// Frees unused memory: the connection is quiet.
    pub(crate) fn shed(&mut self) {
        self.incoming.shrink_to_fit();
        self.chunks.shrink_to_fit();
        self.outgoing.shrink_to_fit();
    }

    /// The length of the largest datagram that still fits into the sending queue.
    #[must_use]
    pub(crate) const fn room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.outgoing_cost + cost(0))
    }

    /// Whether one more fits into the sending queue. An empty one takes any.
    #[must_use]
    pub(crate) fn has_room(&self, data: &Bytes, limit: usize) -> bool {
        self.outgoing_cost + cost(data.len()) <= limit || self.outgoing.is_empty()
    }

    /// Whether to notify the writer now: it waits, and half of the queue is free. If notified of
    /// each datagram that leaves, it would write one at a time; if notified of the last one, it
    /// would let the connection run dry.
    #[must_use]
    pub(crate) fn tells_writer(&mut self, limit: usize) -> bool {
        let tells = self.writer_waits && self.outgoing_cost <= limit / 2;
        self.writer_waits &= !tells;
        tells
    }

    /// Queues a datagram to be sent; returns how many of the oldest are dropped to make room for it
    /// within `limit` bytes.
    pub(crate) fn send(&mut self, data: Bytes, limit: usize) -> u64 {
        self.outgoing_cost += cost(data.len());
        self.outgoing.push_back(data);
        let mut dropped = 0;
        while self.outgoing_cost > limit && self.outgoing.len() > 1 {
            self.next();
            dropped += 1;
        }
        dropped
    }

    /// The next datagram to be sent.
    #[must_use]
    pub(crate) fn peek(&self) -> Option<&Bytes> {
        self.outgoing.front()
    }

    /// Removes and returns that datagram.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let data = self.outgoing.pop_front()?;
        self.outgoing_cost -= cost(data.len());
        Some(data)
    }

    /// Whether one waits to be sent.
    #[must_use]
    pub(crate) fn wants_to_send(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Nothing more is sent.
    pub(crate) fn end_sending(&mut self) {
        self.outgoing = VecDeque::new();
        self.outgoing_cost = 0;
        self.writer_waits = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: SECURITY.md row 45
    #[test]
    fn queues_are_bounded_and_drop_their_oldest() {
        let (mut datagrams, mut pool) = (Datagrams::default(), ChunkPool::default());
        let limit = 10 * (100 + OVERHEAD);
        let dropped: u64 = (0..100u8)
            .map(|i| datagrams.receive(&[i; 100], limit, &mut pool))
            .sum();
        assert_eq!(dropped, 90);
        assert_eq!(datagrams.read(&mut pool), Some(Bytes::from(vec![90; 100])));
        // Empty ones, and those of one chunk after those of another, come out as they went in.
        while datagrams.read(&mut pool).is_some() {}
        let limit_of_many = 3 * CHUNKS[1];
        for i in 0..100_000usize {
            let data = vec![i as u8; i * 37 % 900];
            assert_eq!(datagrams.receive(&data, limit_of_many, &mut pool), 0);
            if i % 3 == 2 {
                for i in i - 2..=i {
                    let data = vec![i as u8; i * 37 % 900];
                    assert_eq!(datagrams.read(&mut pool), Some(Bytes::from(data)));
                }
            }
        }
        assert_eq!(
            datagrams.receive(&[0; 5000], limit, &mut pool),
            1,
            "larger than the queue"
        );
        let dropped: u64 = (0..100u8)
            .map(|i| datagrams.send(Bytes::from(vec![i; 100]), limit))
            .sum();
        assert_eq!(dropped, 90);
        assert_eq!(datagrams.peek(), Some(&Bytes::from(vec![90; 100])));
        assert!(!datagrams.has_room(&Bytes::from_static(b"x"), limit));
    }

    #[test]
    fn freed_memory_is_reused_by_the_next_connection() {
        let mut pool = ChunkPool::default();
        let [mut one, mut other] = [Datagrams::default(), Datagrams::default()];
        one.receive(&[1; 100], 1 << 20, &mut pool);
        one.receive(&[2; 100], 1 << 20, &mut pool);
        let first = one.read(&mut pool).expect("the first of two datagrams");
        assert!(one.memory() >= 2048, "the second datagram shares the chunk");
        let place = first.as_ptr();
        drop((first, one.read(&mut pool)));
        assert_eq!(one.memory(), 0);
        other.receive(&[3; 100], 1 << 20, &mut pool);
        let read = other.read(&mut pool).expect("the datagram has arrived");
        assert_eq!(read.as_ptr(), place);
        // Chunks grow while nothing is read.
        for _ in 0..100 {
            one.receive(&[4; 1000], 1 << 20, &mut pool);
        }
        let sizes: Vec<usize> = one.chunks.iter().map(|chunk| chunk.size).collect();
        assert_eq!(sizes[..5], [2048, 4096, 8192, 16_384, 16_384]);
        assert_eq!(one.memory(), one.chunk_bytes);
    }
}
