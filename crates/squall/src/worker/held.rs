//! The tasks that wait on each stream that the application holds.

use std::task::Waker;

use squall_core::StreamMap;
use squall_wire::StreamId;

use super::waiters::Waiters;

/// How the sending part of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendEnd {
    /// The peer has acknowledged everything.
    Delivered,
    /// The peer stopped it with this code.
    Stopped(u64),
    /// This end has reset it.
    Reset,
}

/// The streams of a connection that the application holds.
pub(super) type HeldStreams = StreamMap<StreamWaiters>;

/// The tasks that wait on one stream that the application holds.
#[derive(Debug, Default)]
pub(crate) struct StreamWaiters {
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
    /// Futures that wait for the end of the sending part; there is seldom one.
    pub(super) ended: Option<Box<Waiters>>,
    pub(crate) send_end: Option<SendEnd>,
    /// Number of halves, and of futures that wait for the end, that the application holds.
    pub(super) holders: u32,
}

impl StreamWaiters {
    /// Of a stream that nothing waits on.
    pub(super) fn new(holders: u32) -> Self {
        Self {
            holders,
            ..Self::default()
        }
    }

    /// Moves all wakers into `wakers`.
    #[inline]
    pub(super) fn move_into(&mut self, wakers: &mut Vec<Waker>) {
        if let Some(waker) = self.reader.take() {
            wakers.push(waker);
        }
        if let Some(waker) = self.writer.take() {
            wakers.push(waker);
        }
        if let Some(mut line) = self.ended.take() {
            line.move_into(wakers);
        }
    }
}

/// One holder lets go of a stream, which is forgotten after the last one. Wakers that are left then
/// go to `discarded`.
#[inline]
pub(super) fn release(streams: &mut HeldStreams, id: StreamId, discarded: &mut Vec<Waker>) {
    streams.remove_if(id, |stream| {
        stream.holders = stream.holders.saturating_sub(1);
        if stream.holders > 0 {
            return false;
        }
        stream.move_into(discarded);
        true
    });
    streams.free_if_empty();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakers_of_a_stream_that_is_let_go_are_not_dropped_under_the_lock() {
        let mut held = HeldStreams::default();
        let mut discarded = Vec::new();
        let ids = [0, 4, 8, 12].map(StreamId);
        for id in ids {
            held.insert(id, StreamWaiters::new(2));
            held.get_or_default(id).reader = Some(Waker::noop().clone());
        }
        for id in ids {
            release(&mut held, id, &mut discarded);
        }
        assert_eq!((held.len(), discarded.len()), (4, 0));
        for id in ids {
            release(&mut held, id, &mut discarded);
        }
        assert_eq!((held.len(), discarded.len()), (0, 4));
    }
}
