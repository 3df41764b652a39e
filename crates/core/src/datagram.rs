//! Unreliable datagrams (RFC 9221): two bounded queues.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// What a datagram costs in addition to its bytes.
const OVERHEAD: usize = 64;
/// Bytes that received datagrams are copied into together: one allocation for many.
const CHUNK: usize = 16 * 1024;

/// Datagrams that wait: to be read, or to be sent.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// The lengths of those received, oldest first, and their bytes. None lies in two chunks.
    incoming: VecDeque<usize>,
    chunks: VecDeque<BytesMut>,
    incoming_cost: usize,
    /// To be sent, oldest first.
    outgoing: VecDeque<Bytes>,
    outgoing_cost: usize,
    /// Whether the reader was notified and has not found the queue empty since.
    pub(crate) reader_told: bool,
    /// Whether a writer was refused for lack of room and is to be notified.
    pub(crate) writer_waits: bool,
}

const fn cost(len: usize) -> usize {
    len + OVERHEAD
}

impl Datagrams {
    /// Bytes of memory that both queues take, about.
    pub(crate) fn memory(&self) -> usize {
        self.incoming_cost.max(self.chunks.len() * CHUNK) + self.outgoing_cost
    }

    /// Takes a received datagram; returns how many of the oldest make room for it within `limit`
    /// bytes.
    pub(crate) fn receive(&mut self, data: &[u8], limit: usize) -> u64 {
        let len = data.len();
        if cost(len) > limit {
            return 1;
        }
        if len > 0 {
            let chunk = match self.chunks.back_mut() {
                Some(chunk) if chunk.capacity() - chunk.len() >= len => chunk,
                Some(chunk) if chunk.is_empty() => {
                    // Memory that is not read any more is used again.
                    chunk.reserve(CHUNK.max(len));
                    chunk
                }
                _ => {
                    let chunk = BytesMut::with_capacity(CHUNK.max(len));
                    self.chunks.push_back(chunk);
                    let Some(chunk) = self.chunks.back_mut() else {
                        return 1;
                    };
                    chunk
                }
            };
            chunk.extend_from_slice(data);
        }
        self.incoming_cost += cost(len);
        self.incoming.push_back(len);
        let mut dropped = 0;
        while self.incoming_cost > limit {
            let Some(chunk_and_len) = self.next_received() else {
                break;
            };
            if let (Some(chunk), len) = chunk_and_len {
                chunk.advance(len);
            }
            dropped += 1;
        }
        dropped
    }

    /// Takes the oldest received datagram out of the line: its length, and the chunk that begins
    /// with it unless it is empty.
    fn next_received(&mut self) -> Option<(Option<&mut BytesMut>, usize)> {
        let len = self.incoming.pop_front()?;
        self.incoming_cost -= cost(len);
        if len == 0 {
            return Some((None, 0));
        }
        // The last chunk stays: the next datagram is appended to it.
        while self.chunks.len() > 1 && self.chunks.front().is_some_and(BytesMut::is_empty) {
            self.chunks.pop_front();
        }
        Some((self.chunks.front_mut(), len))
    }

    /// The oldest received datagram.
    pub(crate) fn read(&mut self) -> Option<Bytes> {
        let Some((chunk, len)) = self.next_received() else {
            self.reader_told = false;
            return None;
        };
        Some(chunk.map_or_else(Bytes::new, |chunk| {
            chunk.split_to(len.min(chunk.len())).freeze()
        }))
    }

    /// The length of the largest datagram that still fits into the sending queue.
    #[must_use]
    pub(crate) const fn room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.outgoing_cost + cost(0))
    }

    /// Whether one more fits into the sending queue.
    #[must_use]
    pub(crate) const fn has_room(&self, data: &Bytes, limit: usize) -> bool {
        self.outgoing_cost + cost(data.len()) <= limit
    }

    /// Takes a datagram to be sent; returns how many of the oldest make room for it within `limit`
    /// bytes.
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

    /// The datagram that is to be sent next.
    #[must_use]
    pub(crate) fn peek(&self) -> Option<&Bytes> {
        self.outgoing.front()
    }

    /// Takes that datagram out.
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

    /// Nothing is sent any more.
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
    fn queues_are_bounded_and_lose_their_oldest() {
        let mut datagrams = Datagrams::default();
        let limit = 10 * (100 + OVERHEAD);
        let dropped: u64 = (0..100u8)
            .map(|i| datagrams.receive(&[i; 100], limit))
            .sum();
        assert_eq!(dropped, 90);
        assert_eq!(datagrams.read(), Some(Bytes::from(vec![90; 100])));
        // Empty ones, and those of one chunk after those of another, come out as they went in.
        while datagrams.read().is_some() {}
        let limit_of_many = 3 * CHUNK;
        for i in 0..100_000usize {
            let data = vec![i as u8; i * 37 % 900];
            assert_eq!(datagrams.receive(&data, limit_of_many), 0);
            if i % 3 == 2 {
                for i in i - 2..=i {
                    let data = vec![i as u8; i * 37 % 900];
                    assert_eq!(datagrams.read(), Some(Bytes::from(data)));
                }
            }
        }
        assert_eq!(
            datagrams.receive(&[0; 5000], limit),
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
}
