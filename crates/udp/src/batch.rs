//! The two buffers of a worker: one that bundles are received into, one that they are sent from.
//!
//! ```text
//! RecvBatch   | slot 0: 64 KiB | slot 1: 64 KiB | …    one message a slot, reused next time;
//!                       ^─single─────┘                 single datagrams join what came before
//!
//! SendBatch   |bundle|ack|bundle+bundle|ack|  free …   packed, each message on a fresh cache line:
//!              ^cursor: first message not sent yet     small messages share few, hot cache lines
//! ```
//! A bundle that follows another one to the same peer, with datagrams of the same size, joins its
//! message: the two are adjacent, so that the kernel sees a single bundle, although they may belong
//! to different connections.
//!
//! The send cursor moves by messages, or by datagrams inside a message while its bundle is sent
//! singly. So data left behind by a full socket buffer is sent later, in order and exactly once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use squall_wire::{DatagramBatch, Ecn, Path, Transmit};

/// The largest bundle that the kernel accepts in one message: an IPv4 packet of 65,535 bytes minus
/// the IPv4 and UDP headers. (IPv6 allows 20 bytes more; one limit for both keeps callers simple.)
pub const MAX_BUNDLE_BYTES: usize = 65_507;

/// Messages start on a fresh cache line, so that sealing one does not touch the line of the
/// previous one.
const CACHE_LINE: usize = 64;

/// The largest datagram that is copied to join others: a copy of one of the usual size costs about
/// 30 ns, and a run of its own several times that.
const MAX_JOINED_BYTES: usize = 2048;

/// Refused paths that a batch remembers, at most.
const MAX_REFUSED: usize = 16;

/// One received message; its bytes are in the slot of the same index.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: Path,
    pub(crate) ecn: Ecn,
    pub(crate) segment_size: u16,
    pub(crate) len: usize,
}

impl Entry {
    /// The entry of a slot before its first message.
    const EMPTY: Self = Self {
        path: Path {
            remote: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            local: None,
        },
        ecn: Ecn::NotEct,
        segment_size: 0,
        len: 0,
    };
}

/// Bytes between slots: without them the first bytes of all slots, whose length is a power of two,
/// would share a few lines of each cache.
const SKEW: usize = 25 * 64;

/// The buffer of a receive call: some slots of one message each.
#[derive(Debug)]
pub struct RecvBatch {
    buffer: Box<[u8]>,
    slot_bytes: usize,
    /// Slots that the next call may fill, and the bytes that they should hold together.
    room: usize,
    within: usize,
    entries: Box<[Entry]>,
    filled: usize,
    drained: bool,
    dropped: u64,
}

impl RecvBatch {
    /// A batch of `messages` slots (at least 1) of `bytes` bytes each. With GRO a slot should hold
    /// 65,536 bytes.
    #[must_use]
    pub fn new(messages: usize, bytes: usize) -> Self {
        Self::within(messages, bytes, usize::MAX)
    }

    /// The same, but a call asks for fewer messages if they are long: as many as fill `within`
    /// bytes if they are like the previous ones, and at least two. Received data is then still in
    /// the level-2 cache when it is opened.
    #[must_use]
    pub fn within(messages: usize, bytes: usize, within: usize) -> Self {
        let messages = messages.max(1);
        let slot_bytes = bytes.max(1);
        Self {
            buffer: vec![0; messages * (slot_bytes + SKEW)].into_boxed_slice(),
            slot_bytes,
            room: messages,
            within,
            entries: vec![Entry::EMPTY; messages].into_boxed_slice(),
            filled: 0,
            drained: false,
            dropped: 0,
        }
    }

    /// The bundles of the last receive call, in order of arrival. Single datagrams of one path and
    /// size share a bundle, with GRO or without. Empty datagrams are left out; they are counted as
    /// received messages.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = DatagramBatch<'_>> {
        let slots = self.buffer.chunks_exact_mut(self.slot_bytes + SKEW);
        self.entries
            .iter()
            .take(self.filled)
            .zip(slots)
            .filter_map(|(entry, slot)| {
                let bytes = slot
                    .get_mut(..entry.len)
                    .filter(|bytes| !bytes.is_empty())?;
                Some(DatagramBatch {
                    path: entry.path,
                    ecn: entry.ecn,
                    segment_size: entry.segment_size,
                    bytes,
                })
            })
    }

    /// Bytes received by the last call.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries
            .iter()
            .take(self.filled)
            .map(|entry| entry.len)
            .sum()
    }

    /// Fills the batch from a source other than a [`Socket`](crate::Socket): `next` receives a
    /// message into the given slot and describes it. Returns the number of messages.
    ///
    /// # Errors
    /// That of the first call. A later one is not returned, since it will recur; if it is
    /// `WouldBlock`, the batch counts as [`drained`](Self::drained).
    pub fn fill(
        &mut self,
        mut next: impl FnMut(&mut [u8]) -> io::Result<Transmit>,
    ) -> io::Result<usize> {
        let (slots, entries) = self.parts();
        let (mut filled, mut drained, mut first) = (0, false, Ok(()));
        for (slot, entry) in slots.zip(entries) {
            match next(slot) {
                Ok(Transmit {
                    path,
                    ecn,
                    segment_size,
                    len,
                }) => {
                    let len = len.min(slot.len());
                    *entry = Entry {
                        path,
                        ecn,
                        segment_size,
                        len,
                    };
                    filled += 1;
                }
                Err(error) => {
                    drained = error.kind() == io::ErrorKind::WouldBlock;
                    if filled == 0 {
                        first = Err(error);
                    }
                    break;
                }
            }
        }
        self.received(filled, drained, 0);
        first.map(|()| filled)
    }

    /// Number of messages from the last receive call, including empty ones.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.filled
    }

    /// Limits the next receive call to this many messages (at least 1). Each later call may double
    /// the number.
    pub fn limit_next(&mut self, messages: usize) {
        self.room = self.room.min(messages.max(1));
    }

    /// Whether the last receive call emptied the socket's queue. A caller that sleeps on readiness
    /// may then sleep without another call that only returns `WouldBlock`.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.drained
    }

    /// Datagrams that the kernel reported as dropped because the receive buffer was full, summed
    /// over the calls with this batch.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The slots to receive into and the entries to describe them with.
    pub(crate) fn parts(&mut self) -> (impl Iterator<Item = &mut [u8]>, &mut [Entry]) {
        self.filled = 0;
        self.drained = false;
        let slot_bytes = self.slot_bytes;
        let slots = self.buffer.chunks_exact_mut(slot_bytes + SKEW);
        let slots = slots.take(self.room);
        let slots = slots.filter_map(move |slot| slot.get_mut(..slot_bytes));
        (slots, &mut self.entries[..self.room])
    }

    /// Records the result of a receive call: `filled` messages of `asked`, and the number of new
    /// drops.
    pub(crate) fn received(&mut self, filled: usize, drained: bool, dropped: u64) {
        self.filled = filled.min(self.entries.len());
        self.drained = drained;
        self.dropped += dropped;
        let total = self.within.saturating_mul(self.filled);
        if let Some(like_these) = total.checked_div(self.bytes()) {
            // In small steps: one short message says nothing about long ones that follow it.
            self.room = like_these.clamp(2, 2 * self.room).min(self.entries.len());
        }
        self.join_singles();
    }

    /// Makes bundles of single datagrams, as the kernel does with GRO: each is copied behind what
    /// came before it, if that has the same path and mark and datagrams of the same size. A
    /// shorter one ends a bundle.
    fn join_singles(&mut self) {
        let stride = self.slot_bytes + SKEW;
        let mut head = 0;
        for at in 1..self.filled {
            let [first, .., next] = &mut self.entries[head..=at] else {
                continue;
            };
            let size = usize::from(first.segment_size);
            let end = first.len + next.len;
            let joins = (1..=size.min(MAX_JOINED_BYTES)).contains(&next.len)
                && usize::from(next.segment_size) >= next.len
                && first.len.is_multiple_of(size)
                && end <= self.slot_bytes
                && (next.path, next.ecn) == (first.path, first.ecn);
            if !joins {
                head = at;
                continue;
            }
            let from = at * stride;
            self.buffer
                .copy_within(from..from + next.len, head * stride + first.len);
            first.len = end;
            next.len = 0;
        }
    }
}

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
    fn bundles_stay_whole_or_fall_apart_into_datagrams() {
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
    fn the_cursor_survives_a_change_of_mind() {
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
    fn an_empty_message_is_passed_over_once() {
        let mut batch = SendBatch::new(2, 64);
        push(&mut batch, 0, 0, 0);
        push(&mut batch, 1, 1, 7);
        batch.advance(0);
        assert_eq!(shape(&batch), [(1, None, 7)]);
    }

    #[test]
    fn small_messages_pack_and_a_full_batch_says_so() {
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
    fn nothing_joins_a_datagram_that_was_pushed_or_a_bundle_that_fell_apart() {
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
    fn a_joined_message_is_no_longer_than_the_kernel_takes() {
        let mut batch = SendBatch::packed(8, 65_536, 4 * 65_536);
        for _ in 0..3 {
            batch.free_slot().unwrap();
            batch.join(transmit(30_000, 1_000), 128, 1);
        }
        let lens: Vec<usize> = batch.pending().map(|message| message.bytes.len()).collect();
        assert_eq!(lens, [60_000, 30_000]);
    }

    #[test]
    fn a_batch_takes_as_many_full_messages_as_it_promised() {
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

    #[test]
    fn received_empty_datagrams_are_left_out() {
        let mut batch = RecvBatch::new(3, 16);
        let (_, entries) = batch.parts();
        entries[0].len = 4;
        entries[1].len = 0;
        entries[2].len = 5;
        batch.received(3, true, 2);
        let lens: Vec<usize> = batch.iter_mut().map(|b| b.bytes.len()).collect();
        assert_eq!(lens, [4, 5]);
        assert_eq!(batch.dropped(), 2);
    }

    #[test]
    fn single_datagrams_join_what_came_before_them() {
        const SLOT: usize = 4096;
        let path = |port| Path {
            remote: SocketAddr::from(([127, 0, 0, 1], port)),
            local: None,
        };
        let mut batch = RecvBatch::new(16, SLOT);
        // Port, length and segment size of each message, and how many it is joined with.
        let messages: [(u16, usize, u16); 16] = [
            (1, 300, 100), // a bundle
            (1, 100, 100),
            (1, 90, 90), // ends it
            (1, 100, 100),
            (2, 100, 100), // another path
            (2, 100, 100),
            (2, 120, 120), // longer
            (2, 120, 60),  // a bundle joins nothing
            (2, 60, 60),
            (2, 0, 0), // empty
            (2, 60, 60),
            (3, 2048, 2048), // a slot holds two
            (3, 2048, 2048),
            (3, 2048, 2048),
            (4, 2049, 2049), // too long to copy
            (4, 2049, 2049),
        ];
        let (slots, entries) = batch.parts();
        for (at, ((entry, slot), message)) in
            entries.iter_mut().zip(slots).zip(messages).enumerate()
        {
            let (port, len, segment_size) = message;
            *entry = Entry {
                path: path(port),
                segment_size,
                len,
                ..Entry::EMPTY
            };
            slot[..len].fill(at as u8);
        }
        batch.entries[3].ecn = Ecn::Ce;
        batch.received(16, true, 0);
        assert_eq!(
            batch.bytes(),
            messages.iter().map(|message| message.1).sum()
        );
        let bundles: Vec<(u16, u16, Vec<u8>)> = (batch.iter_mut())
            .map(|bundle| {
                let sizes = bundle.bytes.chunks(usize::from(bundle.segment_size));
                let datagrams = sizes.map(|datagram| {
                    assert!(datagram.iter().all(|byte| *byte == datagram[0]));
                    datagram[0]
                });
                (
                    bundle.path.remote.port(),
                    bundle.segment_size,
                    datagrams.collect(),
                )
            })
            .collect();
        assert_eq!(
            bundles,
            [
                (1, 100, vec![0, 0, 0, 1, 2]),
                (1, 100, vec![3]),
                (2, 100, vec![4, 5]),
                (2, 120, vec![6]),
                (2, 60, vec![7, 7, 8]),
                (2, 60, vec![10]),
                (3, 2048, vec![11, 12]),
                (3, 2048, vec![13]),
                (4, 2049, vec![14]),
                (4, 2049, vec![15]),
            ]
        );
    }

    #[test]
    fn long_messages_are_asked_for_by_twos_and_short_ones_by_more_each_time() {
        let mut batch = RecvBatch::within(16, 1000, 2000);
        let mut room = |lens: &[usize]| {
            let (_, entries) = batch.parts();
            for (entry, len) in entries.iter_mut().zip(lens) {
                entry.len = *len;
            }
            batch.received(lens.len(), true, 0);
            batch.parts().0.count()
        };
        assert_eq!(room(&[1000; 16]), 2, "as many as make up 2,000 bytes");
        assert_eq!(room(&[10]), 4);
        assert_eq!(room(&[10; 4]), 8);
        assert_eq!(room(&[0; 8]), 8, "nothing is known of empty ones");
        assert_eq!(room(&[10; 8]), 16);
        assert_eq!(room(&[10; 16]), 16, "there are no more slots");
        assert_eq!(room(&[400; 16]), 5);
    }

    #[test]
    fn a_limit_holds_for_one_call() {
        let mut batch = RecvBatch::within(16, 1000, 2000);
        let mut room = |filled: usize, limit: usize| {
            batch.parts().1[..filled]
                .iter_mut()
                .for_each(|entry| entry.len = 10);
            batch.received(filled, true, 0);
            batch.limit_next(limit);
            batch.parts().0.count()
        };
        assert_eq!(room(16, 3), 3);
        assert_eq!(room(3, 16), 6, "twice as many");
        assert_eq!(room(6, 0), 1, "at least one");
        assert_eq!(room(1, 16), 2);
    }
}
