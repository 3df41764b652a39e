//! Unreliable datagrams (RFC 9221): two bounded queues.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// What a datagram costs beside its bytes.
const OVERHEAD: usize = 64;
/// Bytes that received datagrams are copied into together: one allocation for many.
const CHUNK: usize = 16 * 1024;

/// Datagrams that wait: to be read, or to be sent.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// Received, oldest first.
    incoming: VecDeque<Bytes>,
    incoming_cost: usize,
    chunk: BytesMut,
    /// To be sent, oldest first.
    outgoing: VecDeque<Bytes>,
    outgoing_cost: usize,
    /// Whether the reader was told and has not come back empty-handed since.
    pub(crate) reader_told: bool,
    /// Whether somebody was refused for lack of room and is to be told.
    pub(crate) writer_waits: bool,
}

const fn cost(data: &Bytes) -> usize {
    data.len() + OVERHEAD
}

impl Datagrams {
    /// Takes a received datagram; returns how many of the oldest make room for it within `limit` bytes.
    pub(crate) fn receive(&mut self, data: &[u8], limit: usize) -> u64 {
        if data.len() + OVERHEAD > limit {
            return 1;
        }
        if self.chunk.capacity() - self.chunk.len() < data.len() {
            self.chunk.reserve(CHUNK.max(data.len()));
        }
        self.chunk.extend_from_slice(data);
        let data = self.chunk.split().freeze();
        self.incoming_cost += cost(&data);
        self.incoming.push_back(data);
        let mut dropped = 0;
        while self.incoming_cost > limit {
            let Some(oldest) = self.incoming.pop_front() else {
                break;
            };
            self.incoming_cost -= cost(&oldest);
            dropped += 1;
        }
        dropped
    }

    /// The oldest received datagram.
    pub(crate) fn read(&mut self) -> Option<Bytes> {
        let Some(data) = self.incoming.pop_front() else {
            self.reader_told = false;
            return None;
        };
        self.incoming_cost -= cost(&data);
        Some(data)
    }

    /// Whether one more fits into the sending queue.
    #[must_use]
    pub(crate) const fn has_room(&self, data: &Bytes, limit: usize) -> bool {
        self.outgoing_cost + cost(data) <= limit
    }

    /// Takes a datagram to be sent; returns how many of the oldest make room for it within `limit` bytes.
    pub(crate) fn send(&mut self, data: Bytes, limit: usize) -> u64 {
        self.outgoing_cost += cost(&data);
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
        self.outgoing_cost -= cost(&data);
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

    // test: threats.md row 45
    #[test]
    fn queues_are_bounded_and_lose_their_oldest() {
        let mut datagrams = Datagrams::default();
        let limit = 10 * (100 + OVERHEAD);
        let dropped: u64 = (0..100u8)
            .map(|i| datagrams.receive(&[i; 100], limit))
            .sum();
        assert_eq!(dropped, 90);
        assert_eq!(datagrams.read(), Some(Bytes::from(vec![90; 100])));
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
