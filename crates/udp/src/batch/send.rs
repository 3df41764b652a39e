//! The buffer that bundles are sent from.

use std::io;
use std::net::IpAddr;

use squall_wire::{Ecn, Path, Transmit};

use super::MAX_BUNDLE_BYTES;

/// Messages start on a fresh cache line, so that sealing one does not touch the line of the
/// previous one.
const CACHE_LINE: usize = 64;

/// Refused paths that a batch remembers, at most.
const MAX_REFUSED: usize = 16;

/// One committed message of a [`SendBatch`].
#[derive(Copy, Clone, Debug)]
struct Message {
    transmit: Transmit,
    start: usize,
    /// Whether the kernel refuses this bundle as a whole: its datagrams are sent one by one.
    single: bool,
    /// The most datagrams that the message may have; 1: no other joins it.
    segments: usize,
    /// Only messages of the same lane are joined.
    lane: u8,
}

impl Message {
    /// Bytes of each datagram but the last.
    fn stride(transmit: &Transmit) -> usize {
        match usize::from(transmit.segment_size) {
            0 => transmit.len,
            size => size.min(transmit.len),
        }
    }

    /// Whether datagrams of the same size may follow in the same message.
    fn is_open(&self) -> bool {
        let stride = Self::stride(&self.transmit);
        self.segments > 1
            && !self.single
            && stride > 0
            && self.transmit.len.is_multiple_of(stride)
            && self.transmit.len / stride < self.segments
    }

    /// Joins `next`, which lies directly behind, if the kernel can send both as one bundle.
    fn join(&mut self, next: &Self) -> bool {
        let (ours, theirs) = (&self.transmit, &next.transmit);
        let (stride, their_stride) = (Self::stride(ours), Self::stride(theirs));
        let len = ours.len + theirs.len;
        let fits = their_stride == stride || (their_stride == theirs.len && their_stride < stride);
        let joins = self.is_open()
            && fits
            && theirs.len > 0
            && next.lane == self.lane
            && theirs.path == ours.path
            && theirs.ecn == ours.ecn
            && len <= MAX_BUNDLE_BYTES
            && len.div_ceil(stride) <= self.segments.min(next.segments);
        if joins {
            self.transmit.len = len;
            // A stride is at most the segment size from which it was computed, or the length of one
            // datagram.
            self.transmit.segment_size = stride as u16;
        }
        joins
    }
}

/// A message as a send call sees it: a whole bundle, or one datagram of it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) path: Path,
    pub(crate) ecn: Ecn,
    /// `Some`: a bundle of datagrams of this size, the last one at most this size.
    pub(crate) segment_size: Option<u16>,
    pub(crate) bytes: &'a [u8],
}

impl Outgoing<'_> {
    /// Datagrams in the message.
    pub(crate) fn datagrams(&self) -> usize {
        self.segment_size
            .map_or(1, |size| self.bytes.len().div_ceil(usize::from(size)))
    }
}

/// The buffer that bundles are written into before they are sent.
///
/// ```
/// # use squall_udp::SendBatch; use squall_wire::{Ecn, Path, Transmit};
/// let mut batch = SendBatch::new(4, 65_536);
/// let slot = batch.free_slot().expect("an empty batch has a slot");
/// slot[..3].copy_from_slice(b"abc");
/// let path = Path { remote: "127.0.0.1:4433".parse().unwrap(), local: None };
/// batch.push(Transmit { path, ecn: Ecn::NotEct, segment_size: 3, len: 3 });
/// assert!(!batch.is_empty());
/// ```
#[derive(Debug)]
pub struct SendBatch {
    buffer: Box<[u8]>,
    slot_bytes: usize,
    max_messages: usize,
    messages: Vec<Message>,
    /// Where the next slot starts.
    used: usize,
    /// The first message not sent, and how many of its bytes are (only a `single` message is ever
    /// partly sent).
    front: usize,
    front_bytes: usize,
    /// Where the system refused to send to, and why.
    refused: Vec<(Path, io::ErrorKind)>,
}

impl SendBatch {
    /// A batch of up to `messages` messages (at least 1) of `bytes` bytes each.
    #[must_use]
    pub fn new(messages: usize, bytes: usize) -> Self {
        let slot = bytes
            .clamp(1, MAX_BUNDLE_BYTES)
            .next_multiple_of(CACHE_LINE);
        Self::packed(messages, bytes, messages.max(1).saturating_mul(slot))
    }

    /// A batch of up to `messages` messages of up to `bytes` bytes each and `total` bytes (at least
    /// `bytes`) together: room for many small messages or a few full bundles in a buffer that stays
    /// in the level-2 cache.
    #[must_use]
    pub fn packed(messages: usize, bytes: usize, total: usize) -> Self {
        let slot_bytes = bytes.clamp(1, MAX_BUNDLE_BYTES);
        let max_messages = messages.max(1);
        Self {
            buffer: vec![0; total.max(slot_bytes)].into_boxed_slice(),
            slot_bytes,
            max_messages,
            messages: Vec::with_capacity(max_messages),
            used: 0,
            front: 0,
            front_bytes: 0,
            refused: Vec::new(),
        }
    }

    /// The paths on which the system has refused to send since the last call, and why: no route
    /// leads there, or none from the local address, which may be gone. Their messages are lost. At
    /// most 16 are kept, each once.
    pub fn take_refused(&mut self) -> impl Iterator<Item = (Path, io::ErrorKind)> + use<> {
        std::mem::take(&mut self.refused).into_iter()
    }

    /// The first waiting message cannot be sent on its path.
    pub(crate) fn note_refused(&mut self, why: io::ErrorKind) {
        if let Some(message) = self.messages.get(self.front) {
            let refused = (message.transmit.path, why);
            if self.refused.len() < MAX_REFUSED && !self.refused.contains(&refused) {
                self.refused.push(refused);
            }
        }
    }

    /// Room for one message of up to the batch's message size (never above [`MAX_BUNDLE_BYTES`]),
    /// or `None` when the batch is full. Calling it again without a [`push`](Self::push) returns
    /// the same slot.
    pub fn free_slot(&mut self) -> Option<&mut [u8]> {
        if self.messages.len() == self.max_messages {
            return None;
        }
        self.buffer.get_mut(self.used..self.used + self.slot_bytes)
    }

    /// Commits the most recently returned slot. `transmit.len` is limited to the slot; a
    /// `segment_size` of 0 or of at least `len` makes the message a single datagram; with a full
    /// batch (no slot was returned) the call does nothing.
    pub fn push(&mut self, transmit: Transmit) {
        self.commit(transmit, 1, 0);
    }

    /// As [`push`](Self::push), but if the previous message was also committed by this method, with
    /// the same `lane`, goes to the same peer and has datagrams of the same size, both become one
    /// message of up to `segments` datagrams, whichever connections they belong to. A single
    /// shorter datagram may end such a message.
    ///
    /// A receiver that steers by the first datagram of a bundle gets all of them: datagrams that it
    /// would steer elsewhere belong in another lane. Push datagrams for which the path may be too
    /// small instead: the kernel would refuse the others with them.
    pub fn join(&mut self, transmit: Transmit, segments: usize, lane: u8) {
        self.commit(transmit, segments, lane);
    }

    fn commit(&mut self, transmit: Transmit, segments: usize, lane: u8) {
        if self.is_full() {
            return;
        }
        let len = transmit.len.min(self.slot_bytes);
        let message = Message {
            transmit: Transmit { len, ..transmit },
            start: self.used,
            single: false,
            segments,
            lane,
        };
        if !(self.messages.last_mut()).is_some_and(|last| last.join(&message)) {
            self.messages.push(message);
        }
        if let Some(last) = self.messages.last() {
            let end = last.start + last.transmit.len;
            self.used = if last.is_open() {
                end
            } else {
                end.next_multiple_of(CACHE_LINE)
            };
        }
    }

    /// Whether nothing waits to be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether [`free_slot`](Self::free_slot) would return `None`.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.messages.len() == self.max_messages || self.used + self.slot_bytes > self.buffer.len()
    }

    /// The position of the cursor: it changes when something is sent or dropped, but not when more
    /// is pushed.
    #[must_use]
    pub fn position(&self) -> (usize, usize) {
        (self.front, self.front_bytes)
    }

    /// Sends the batch through something other than a [`Socket`](crate::Socket), and empties it:
    /// `send` takes one message after the other. Returns the number of messages.
    ///
    /// # Errors
    /// The first error of `send`. The batch keeps that message and those after it.
    pub fn send_with(
        &mut self,
        mut send: impl FnMut(&Transmit, &[u8]) -> io::Result<()>,
    ) -> io::Result<usize> {
        let mut messages = 0;
        loop {
            let Some(message) = self.pending().next() else {
                return Ok(messages);
            };
            let len = message.bytes.len();
            let whole = u16::try_from(len).unwrap_or(u16::MAX);
            let transmit = Transmit {
                path: message.path,
                ecn: message.ecn,
                segment_size: message.segment_size.unwrap_or(whole),
                len,
            };
            send(&transmit, message.bytes)?;
            self.advance(len);
            messages += 1;
        }
    }

    /// The messages waiting to be sent, in order: whole bundles, or single datagrams if a bundle
    /// was split.
    pub(crate) fn pending(&self) -> impl Iterator<Item = Outgoing<'_>> {
        let mut sent = self.front_bytes;
        self.messages
            .iter()
            .skip(self.front)
            .flat_map(move |message| {
                let Transmit {
                    path,
                    ecn,
                    segment_size,
                    len,
                } = message.transmit;
                let bytes = self
                    .buffer
                    .get(message.start + sent..message.start + len)
                    .unwrap_or_default();
                sent = 0;
                let segment = usize::from(segment_size);
                let bundle = segment > 0 && segment < len;
                let stride = if bundle && message.single {
                    segment
                } else {
                    bytes.len().max(1)
                };
                // An empty message is still one datagram; `chunks` would give none.
                let empty = bytes.is_empty().then_some(bytes);
                empty
                    .into_iter()
                    .chain(bytes.chunks(stride))
                    .map(move |bytes| Outgoing {
                        path,
                        ecn,
                        segment_size: (bytes.len() > segment && bundle).then_some(segment_size),
                        bytes,
                    })
            })
    }

    /// Moves the cursor over the first message of [`pending`](Self::pending). `bytes` is that
    /// message's length.
    pub(crate) fn advance(&mut self, bytes: usize) {
        let Some(message) = self.messages.get(self.front) else {
            return;
        };
        self.front_bytes += bytes;
        if self.front_bytes >= message.transmit.len {
            self.front += 1;
            self.front_bytes = 0;
        }
        if self.front == self.messages.len() {
            self.clear();
        }
    }

    /// From now on the waiting bundles to destinations for which `split` is true are sent as single
    /// datagrams.
    pub(crate) fn split_where(&mut self, split: impl Fn(IpAddr) -> bool) {
        for message in self.messages.iter_mut().skip(self.front) {
            message.single |= split(message.transmit.path.remote.ip());
        }
    }

    /// From now on the first waiting bundle is sent as single datagrams.
    pub(crate) fn split_front(&mut self) {
        if let Some(message) = self.messages.get_mut(self.front) {
            message.single = true;
        }
    }

    fn clear(&mut self) {
        self.messages.clear();
        self.used = 0;
        self.front = 0;
        self.front_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn transmit(len: usize, segment_size: u16) -> Transmit {
        let path = Path {
            remote: SocketAddr::from(([127, 0, 0, 1], 1)),
            local: None,
        };
        Transmit {
            path,
            ecn: Ecn::NotEct,
            segment_size,
            len,
        }
    }

    fn push(batch: &mut SendBatch, len: usize, segment_size: u16, fill: u8) {
        batch.free_slot().unwrap()[..len].fill(fill);
        batch.push(transmit(len, segment_size));
    }

    fn shape(batch: &SendBatch) -> Vec<(usize, Option<u16>, u8)> {
        batch
            .pending()
            .map(|o| {
                (
                    o.bytes.len(),
                    o.segment_size,
                    o.bytes.first().copied().unwrap_or(0),
                )
            })
            .collect()
    }

    #[test]
    fn bundles_are_sent_whole_or_split_into_datagrams() {
        let mut batch = SendBatch::new(4, 4096);
        push(&mut batch, 250, 100, 1);
        push(&mut batch, 50, 100, 2);
        push(&mut batch, 0, 0, 0);
        assert_eq!(
            shape(&batch),
            [(250, Some(100), 1), (50, None, 2), (0, None, 0)]
        );
        batch.split_where(|remote| remote.is_ipv6());
        assert_eq!(shape(&batch).len(), 3);
        batch.split_where(|remote| remote.is_ipv4());
        assert_eq!(
            shape(&batch),
            [
                (100, None, 1),
                (100, None, 1),
                (50, None, 1),
                (50, None, 2),
                (0, None, 0)
            ]
        );
    }

    #[test]
    fn the_cursor_survives_switching_between_whole_and_split() {
        let mut batch = SendBatch::new(4, 4096);
        push(&mut batch, 250, 100, 1);
        push(&mut batch, 300, 100, 2);
        batch.split_front();
        assert_eq!(
            shape(&batch),
            [
                (100, None, 1),
                (100, None, 1),
                (50, None, 1),
                (300, Some(100), 2)
            ]
        );
        batch.advance(100);
        batch.advance(100);
        assert_eq!(shape(&batch), [(50, None, 1), (300, Some(100), 2)]);
        batch.advance(50);
        batch.advance(300);
        assert!(batch.is_empty());
        assert!(batch.free_slot().is_some());
    }

    #[test]
    fn an_empty_message_is_skipped_once() {
        let mut batch = SendBatch::new(2, 64);
        push(&mut batch, 0, 0, 0);
        push(&mut batch, 1, 1, 7);
        batch.advance(0);
        assert_eq!(shape(&batch), [(1, None, 7)]);
    }

    #[test]
    fn small_messages_are_packed_and_a_full_batch_reports_it() {
        let mut batch = SendBatch::packed(3, 1000, 1100);
        push(&mut batch, 40, 40, 1);
        assert!(!batch.is_full());
        push(&mut batch, 40, 40, 2);
        // Two lines of 64 bytes are used: 972 bytes are left, less than a whole message.
        assert!(batch.is_full());
        assert!(batch.free_slot().is_none());
        batch.push(transmit(10, 10));
        assert_eq!(shape(&batch).len(), 2);
    }

    #[test]
    fn datagrams_of_one_size_to_one_peer_share_a_message() {
        let mut batch = SendBatch::packed(8, 1000, 8000);
        let mut join = |transmit: Transmit, lane: u8, fill: u8| {
            batch.free_slot().unwrap()[..transmit.len].fill(fill);
            batch.join(transmit, 4, lane);
        };
        join(transmit(100, 100), 1, 1);
        // A bundle joins a single datagram, and a shorter one ends the message.
        join(transmit(200, 100), 1, 2);
        join(transmit(90, 90), 1, 3);
        // That message is closed, and this one is full with four.
        join(transmit(400, 100), 1, 4);
        join(transmit(100, 100), 1, 5);
        // Not a shorter bundle, nor one that goes elsewhere, has another mark, or would be steered
        // elsewhere by the receiver.
        join(transmit(80, 40), 1, 6);
        let mut elsewhere = transmit(40, 40);
        elsewhere.path.remote.set_port(2);
        join(elsewhere, 1, 7);
        elsewhere.ecn = Ecn::Ect0;
        join(elsewhere, 1, 8);
        join(elsewhere, 2, 9);
        assert_eq!(
            shape(&batch),
            [
                (390, Some(100), 1),
                (400, Some(100), 4),
                (100, None, 5),
                (80, Some(40), 6),
                (40, None, 7),
                (40, None, 8),
                (40, None, 9),
            ]
        );
        let first = batch.pending().next().unwrap().bytes;
        let fills: Vec<u8> = first.chunks(100).map(|datagram| datagram[0]).collect();
        assert_eq!(fills, [1, 2, 2, 3]);
        assert!(first[300..].iter().all(|&byte| byte == 3));
    }

    #[test]
    fn nothing_joins_a_pushed_datagram_or_a_split_bundle() {
        let mut batch = SendBatch::packed(8, 1000, 8000);
        push(&mut batch, 100, 100, 1);
        batch.free_slot().unwrap()[..100].fill(2);
        batch.join(transmit(100, 100), 4, 1);
        batch.split_where(|_| true);
        batch.free_slot().unwrap()[..100].fill(3);
        batch.join(transmit(100, 100), 4, 1);
        push(&mut batch, 100, 100, 4);
        assert_eq!(
            shape(&batch),
            [
                (100, None, 1),
                (100, None, 2),
                (100, None, 3),
                (100, None, 4)
            ]
        );
    }

    #[test]
    fn a_joined_message_is_no_longer_than_the_kernel_accepts() {
        let mut batch = SendBatch::packed(8, 65_536, 4 * 65_536);
        for _ in 0..3 {
            batch.free_slot().unwrap();
            batch.join(transmit(30_000, 1_000), 128, 1);
        }
        let lens: Vec<usize> = batch.pending().map(|message| message.bytes.len()).collect();
        assert_eq!(lens, [60_000, 30_000]);
    }

    #[test]
    fn a_batch_accepts_the_promised_number_of_full_messages() {
        let mut batch = SendBatch::new(3, 1000);
        for fill in 0..3 {
            push(&mut batch, 1000, 1000, fill);
        }
        assert!(batch.is_full());
    }

    #[test]
    fn no_slot_exceeds_what_one_message_can_carry() {
        let mut batch = SendBatch::new(2, 65_536);
        assert_eq!(batch.free_slot().unwrap().len(), MAX_BUNDLE_BYTES);
    }
}
