//! The receiving part of a stream (RFC 9000 §3.2).

use bytes::Bytes;
use squall_wire::TransportErrorCode;

use super::chunk_pool::ChunkPool;
use super::flow::ReceiveCredit;
use super::reassembly::{Reassembly, TooFragmented};
use crate::error::ReadError;

/// States of RFC 9000 §3.2, figure 3; Data Recvd is part of SizeKnown, because no decision depends
/// on the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvState {
    /// Data arrives.
    Recv,
    /// The final size is known, data is missing.
    SizeKnown,
    /// The application has read all.
    DataRead,
    /// The peer reset the stream.
    ResetReceived,
    /// The application knows of the reset.
    ResetRead,
}

/// The receiving part of a stream.
#[derive(Debug)]
pub(crate) struct RecvStream {
    /// State of RFC 9000 §3.2.
    pub(crate) state: RecvState,
    /// The bytes.
    pub(crate) data: Reassembly,
    /// Credit given to the peer.
    pub(crate) credit: ReceiveCredit,
    final_size: Option<u64>,
    reset_code: u64,
    /// Bytes that are delivered although the stream was reset (RESET_STREAM_AT).
    reliable: Option<u64>,
    /// Code of our STOP_SENDING and whether the frame is to be sent (again).
    pub(crate) stop: Option<(u64, bool)>,
    /// Whether a MAX_STREAM_DATA is to be sent.
    pub(crate) credit_pending: bool,
    /// Whether data arrived in 0-RTT packets.
    pub(crate) early: bool,
    /// Whether the reader was notified of data and has not found the stream empty since.
    pub(crate) reader_told: bool,
    /// Whether a reader waits until a reset has come or can no longer come.
    pub(crate) reset_awaited: bool,
}

/// Data given to a reader.
pub(crate) trait Taken {
    /// Its length in bytes.
    fn count(&self) -> u64;
}

impl Taken for Bytes {
    fn count(&self) -> u64 {
        self.len() as u64
    }
}

impl Taken for (u64, Bytes) {
    fn count(&self) -> u64 {
        self.1.len() as u64
    }
}

/// The effect of a STREAM or RESET_STREAM frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Charges bytes to the connection's flow control.
    More(u64),
    /// The packet must be dropped unacknowledged.
    Refused,
}

impl RecvStream {
    /// A new stream that gives the peer `window` bytes of credit, growing to `max_window`.
    #[must_use]
    pub(crate) fn new(window: u64, max_window: u64) -> Self {
        Self {
            state: RecvState::Recv,
            data: Reassembly::of_stream(),
            credit: ReceiveCredit::new(window, max_window),
            final_size: None,
            reset_code: 0,
            reliable: None,
            stop: None,
            credit_pending: false,
            early: false,
            reader_told: false,
            reset_awaited: false,
        }
    }

    /// Becomes a new stream, with the memory of the data, which was
    /// [recycled](Reassembly::recycle).
    pub(crate) fn renew(&mut self, window: u64, max_window: u64) {
        // Every part is named, so that none is forgotten.
        let Self {
            state,
            data: _,
            credit,
            final_size,
            reset_code,
            reliable,
            stop,
            credit_pending,
            early,
            reader_told,
            reset_awaited,
        } = self;
        *state = RecvState::Recv;
        *credit = ReceiveCredit::new(window, max_window);
        (*final_size, *reset_code, *reliable, *stop) = (None, 0, None, None);
        (*credit_pending, *early) = (false, false);
        (*reader_told, *reset_awaited) = (false, false);
    }

    /// Processes the data of a STREAM frame.
    ///
    /// # Errors
    /// `FINAL_SIZE_ERROR` and `FLOW_CONTROL_ERROR` of RFC 9000 §4.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        offset: u64,
        data: &[u8],
        fin: bool,
        pool: &mut ChunkPool,
    ) -> Result<Received, TransportErrorCode> {
        let end = offset + data.len() as u64;
        // RFC 9000 §4.5: the final size never changes and nothing lies beyond it.
        match self.final_size {
            Some(size) if end > size || (fin && end != size) => {
                return Err(TransportErrorCode::FINAL_SIZE_ERROR);
            }
            None if fin && end < self.credit.received() => {
                return Err(TransportErrorCode::FINAL_SIZE_ERROR);
            }
            _ => {}
        }
        if !matches!(self.state, RecvState::Recv | RecvState::SizeKnown) {
            return Ok(Received::More(0));
        }
        let before = self.credit;
        let rise = self
            .credit
            .receive_to(end)
            .ok_or(TransportErrorCode::FLOW_CONTROL_ERROR)?;
        if self.stop.is_some() {
            // The stream is no longer read: the bytes count only against flow control.
            self.data.clear(self.credit.received());
        } else if let Err(TooFragmented) = self.data.insert(offset, data, pool) {
            self.credit = before;
            return Ok(Received::Refused);
        }
        if fin && self.final_size.is_none() {
            self.final_size = Some(end);
            self.state = RecvState::SizeKnown;
        }
        Ok(Received::More(rise))
    }

    /// How much of the connection's credit `pieces` frames with `len` bytes from `offset` on take,
    /// if they append to the existing data and nothing prevents that.
    pub(crate) fn rise_of_run(&self, offset: u64, len: u64, pieces: usize) -> Option<u64> {
        let plain = self.state == RecvState::Recv && self.stop.is_none();
        let end = offset + len;
        // No piece can find the stream too fragmented.
        let room = pieces < self.data.room();
        (plain && room && self.data.ends_at(offset) && end <= self.credit.advertised())
            .then(|| end.saturating_sub(self.credit.received()))
    }

    /// The bytes up to `end` that `rise_of_run` was asked about have been stored.
    pub(crate) fn receive_run(&mut self, end: u64) {
        let rise = self.credit.receive_to(end);
        debug_assert!(rise.is_some(), "there is credit for all");
    }

    /// Processes a RESET_STREAM frame, or a RESET_STREAM_AT one that promises the first `reliable`
    /// bytes.
    ///
    /// # Errors
    /// `FINAL_SIZE_ERROR` and `FLOW_CONTROL_ERROR` of RFC 9000 §4; `STREAM_STATE_ERROR` for a code
    /// different from before (draft-ietf-quic-reliable-stream-reset §5.2).
    pub(crate) fn receive_reset(
        &mut self,
        code: u64,
        final_size: u64,
        reliable: u64,
    ) -> Result<u64, TransportErrorCode> {
        if self.final_size.is_some_and(|size| size != final_size)
            || final_size < self.credit.received()
        {
            return Err(TransportErrorCode::FINAL_SIZE_ERROR);
        }
        let rise = self
            .credit
            .receive_to(final_size)
            .ok_or(TransportErrorCode::FLOW_CONTROL_ERROR)?;
        self.final_size = Some(final_size);
        if !matches!(self.state, RecvState::Recv | RecvState::SizeKnown) {
            return Ok(rise);
        }
        if self.reliable.is_some() && self.reset_code != code {
            return Err(TransportErrorCode::STREAM_STATE_ERROR);
        }
        self.reset_code = code;
        if reliable == 0 {
            self.state = RecvState::ResetReceived;
            self.data.clear(final_size);
        } else {
            // A promise only ever shrinks.
            let least = self.reliable.map_or(reliable, |known| known.min(reliable));
            (self.state, self.reliable) = (RecvState::SizeKnown, Some(least));
        }
        Ok(rise)
    }

    /// Whether a reader would learn something now: data, the end or a reset.
    #[must_use]
    pub(crate) fn is_readable(&self) -> bool {
        match self.state {
            RecvState::Recv => self.data.is_readable(),
            RecvState::SizeKnown => self.data.is_readable() || self.at_end() || self.at_reset(),
            RecvState::ResetReceived => true,
            RecvState::DataRead | RecvState::ResetRead => false,
        }
    }

    fn at_end(&self) -> bool {
        self.final_size.is_some_and(|size| self.data.has_read(size))
    }

    /// Whether all data has arrived.
    pub(crate) fn has_received_all(&mut self) -> bool {
        (self.final_size).is_some_and(|size| self.data.has_received(size))
    }

    /// Whether the reader has everything that the peer promised before it reset the stream.
    fn at_reset(&self) -> bool {
        self.reliable
            .is_some_and(|reliable| self.data.has_read(reliable))
    }

    /// The code of the peer's reset; `None` if none can come any more.
    ///
    /// # Errors
    /// `Blocked` while one may come.
    pub(crate) fn received_reset(&mut self) -> Result<Option<u64>, ReadError> {
        match self.state {
            RecvState::ResetReceived | RecvState::ResetRead => Ok(Some(self.reset_code)),
            RecvState::SizeKnown if self.reliable.is_some() => Ok(Some(self.reset_code)),
            RecvState::DataRead => Ok(None),
            _ if self.stop.is_some() => Ok(None),
            RecvState::Recv | RecvState::SizeKnown => {
                if self.has_received_all() {
                    Ok(None)
                } else {
                    Err(ReadError::Blocked)
                }
            }
        }
    }

    /// Gives the reader the next bytes; `None` is the end of the stream.
    ///
    /// # Errors
    /// `Blocked`, `Reset` once, `Closed` after the end, `IllegalOrderedRead` after
    /// `read_unordered`.
    pub(crate) fn read(
        &mut self,
        max: usize,
        pool: &mut ChunkPool,
    ) -> Result<Option<Bytes>, ReadError> {
        self.read_by(|data| {
            if data.is_unordered() {
                return Err(ReadError::IllegalOrderedRead);
            }
            Ok(data.read(max, pool))
        })
    }

    /// Gives the reader the bytes that arrived first, and their offset; `None` is the end.
    ///
    /// # Errors
    /// `Blocked`, `Reset` once, `Closed` after the end.
    pub(crate) fn read_unordered(
        &mut self,
        max: usize,
        pool: &mut ChunkPool,
    ) -> Result<Option<(u64, Bytes)>, ReadError> {
        self.read_by(|data| Ok(data.read_unordered(max, pool)))
    }

    #[inline]
    fn read_by<T: Taken>(
        &mut self,
        read: impl FnOnce(&mut Reassembly) -> Result<Option<T>, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        if self.stop.is_some() {
            return Err(ReadError::Closed);
        }
        match self.state {
            RecvState::Recv | RecvState::SizeKnown => {}
            RecvState::ResetReceived => {
                self.state = RecvState::ResetRead;
                return Err(ReadError::Reset(self.reset_code));
            }
            RecvState::ResetRead => return Err(ReadError::Reset(self.reset_code)),
            RecvState::DataRead => return Ok(None),
        }
        if let Some(taken) = read(&mut self.data)? {
            self.credit.consume(taken.count());
            return Ok(Some(taken));
        }
        if self.at_reset() {
            self.data.clear(self.credit.received());
            self.state = RecvState::ResetRead;
            return Err(ReadError::Reset(self.reset_code));
        }
        if self.at_end() {
            self.state = RecvState::DataRead;
            return Ok(None);
        }
        self.reader_told = false;
        Err(ReadError::Blocked)
    }

    /// Takes the end if nothing else is left to read.
    #[inline]
    pub(crate) fn read_end(&mut self) -> bool {
        let plain = self.stop.is_none() && self.reliable.is_none();
        let ends = plain && self.state == RecvState::SizeKnown && self.at_end();
        if ends {
            self.state = RecvState::DataRead;
        }
        ends
    }

    /// Whether everything has arrived, in one piece of at most `longest` bytes, and nothing was
    /// read.
    #[inline]
    #[must_use]
    pub(crate) fn holds_message(&self, longest: u64) -> bool {
        let plain = self.stop.is_none() && self.reliable.is_none();
        let whole = |size| size <= longest && self.data.is_whole(size);
        plain && self.state == RecvState::SizeKnown && self.final_size.is_some_and(whole)
    }

    /// Stops reading; STOP_SENDING is to be sent unless everything has arrived.
    pub(crate) fn stop(&mut self, code: u64) {
        if self.stop.is_none() {
            let open = matches!(self.state, RecvState::Recv);
            self.stop = Some((code, open));
            self.data.clear(self.credit.received());
        }
    }

    /// Received bytes that no reader has taken: they return to the connection's credit when the
    /// stream is removed.
    #[must_use]
    pub(crate) const fn unread(&self) -> u64 {
        self.credit.received() - self.credit.consumed()
    }

    /// Whether nothing more will happen here.
    #[must_use]
    pub(crate) fn is_terminal(&self) -> bool {
        match self.state {
            RecvState::DataRead | RecvState::ResetRead => true,
            // Stopped: all that matters is that the final size is known (RFC 9000 §3.5).
            _ => self.stop.is_some() && self.final_size.is_some(),
        }
    }

    /// Whether the peer may still need credit.
    #[must_use]
    pub(crate) const fn wants_credit(&self) -> bool {
        matches!(self.state, RecvState::Recv) && self.stop.is_none() && self.credit.wants_update()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> (RecvStream, ChunkPool) {
        (RecvStream::new(100, 100), ChunkPool::default())
    }

    // test: RFC 9000 §4.5
    #[test]
    fn the_final_size_is_final() {
        let (mut s, mut pool) = stream();
        assert_eq!(
            s.receive(0, &[0; 10], true, &mut pool),
            Ok(Received::More(10))
        );
        assert_eq!(
            s.receive(10, &[0], false, &mut pool),
            Err(TransportErrorCode::FINAL_SIZE_ERROR)
        );
        assert_eq!(
            s.receive(0, &[0; 5], true, &mut pool),
            Err(TransportErrorCode::FINAL_SIZE_ERROR)
        );
        assert_eq!(
            s.receive_reset(0, 9, 0),
            Err(TransportErrorCode::FINAL_SIZE_ERROR)
        );
        let (mut s, mut pool) = stream();
        assert_eq!(
            s.receive(20, &[0; 10], false, &mut pool),
            Ok(Received::More(30))
        );
        assert_eq!(
            s.receive(0, &[0; 10], true, &mut pool),
            Err(TransportErrorCode::FINAL_SIZE_ERROR)
        );
        assert_eq!(
            s.receive(90, &[0; 11], false, &mut pool),
            Err(TransportErrorCode::FLOW_CONTROL_ERROR)
        );
    }

    // test: draft-ietf-quic-reliable-stream-reset §5.2
    #[test]
    fn a_partial_reset_delivers_up_to_its_reliable_size() {
        let (mut s, mut pool) = stream();
        s.receive(0, b"abc", false, &mut pool).unwrap();
        assert_eq!(s.receive_reset(7, 10, 5), Ok(7));
        // A larger promise is ignored; another code or size is an error.
        assert_eq!(s.receive_reset(7, 10, 9), Ok(0));
        assert_eq!(
            s.receive_reset(8, 10, 5),
            Err(TransportErrorCode::STREAM_STATE_ERROR)
        );
        assert_eq!(
            s.receive_reset(7, 11, 5),
            Err(TransportErrorCode::FINAL_SIZE_ERROR)
        );
        assert_eq!(s.read(99, &mut pool), Ok(Some(Bytes::from_static(b"abc"))));
        assert_eq!(s.read(99, &mut pool), Err(ReadError::Blocked));
        s.receive(3, b"de", false, &mut pool).unwrap();
        assert_eq!(s.read(99, &mut pool), Ok(Some(Bytes::from_static(b"de"))));
        assert_eq!(s.read(99, &mut pool), Err(ReadError::Reset(7)));
        assert!(s.is_terminal() && s.unread() == 5);
    }

    #[test]
    fn a_message_is_whole_unread_and_not_reset() {
        for (data, fin, longest, holds) in [
            (&b"abc"[..], true, 3, true),
            (b"abc", true, 2, false),
            (b"abc", false, 3, false),
            (b"", true, 3, false),
        ] {
            let (mut s, mut pool) = stream();
            s.receive(0, data, fin, &mut pool).unwrap();
            assert_eq!(s.holds_message(longest), holds, "{data:?} {fin} {longest}");
        }
        let with_gap: fn(&mut RecvStream, &mut ChunkPool) = |s, pool| {
            let _ = s.receive(4, b"e", true, pool);
        };
        let part_read: fn(&mut RecvStream, &mut ChunkPool) = |s, pool| {
            let _ = s.receive(3, b"", true, pool);
            let _ = s.read(1, pool);
        };
        let reset: fn(&mut RecvStream, &mut ChunkPool) = |s, pool| {
            let _ = s.receive(3, b"", true, pool);
            let _ = s.receive_reset(7, 3, 3);
        };
        let stopped: fn(&mut RecvStream, &mut ChunkPool) = |s, pool| {
            let _ = s.receive(3, b"", true, pool);
            s.stop(7);
        };
        for spoil in [with_gap, part_read, reset, stopped] {
            let (mut s, mut pool) = stream();
            s.receive(0, b"abc", false, &mut pool).unwrap();
            spoil(&mut s, &mut pool);
            assert!(!s.holds_message(10));
        }
    }

    #[test]
    fn data_is_read_and_then_the_end_once() {
        let (mut s, mut pool) = stream();
        s.receive(0, b"abc", true, &mut pool).unwrap();
        assert_eq!(s.read(2, &mut pool), Ok(Some(Bytes::from_static(b"ab"))));
        assert_eq!(s.read(2, &mut pool), Ok(Some(Bytes::from_static(b"c"))));
        assert_eq!(s.read(2, &mut pool), Ok(None));
        assert!(s.is_terminal());
    }
}
