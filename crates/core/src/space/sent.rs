//! Packets sent and not yet settled, in a ring indexed by packet number.
//!
//! A packet's record is 24 bytes and its frames are in a second ring, in sending order, so neither
//! sending nor acknowledging allocates once both rings have grown. A frame is remembered as ids and
//! ranges, never as bytes: a loss re-queues what the frame said, not the packet (RFC 9000 §13.3).

use std::collections::VecDeque;

use squall_protect::{PacketSpan, prefetch};
use squall_wire::{StreamId, varint};

use crate::sent_frame::SentFrame;
use crate::time::Time;

/// The first packet number that no bundle begins with: in RFC 9000 §12.3 the numbers end at 2^62 -
/// 1, and a closing connection sends a few more packets.
const LAST: u64 = varint::MAX - 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Outstanding,
    Acknowledged,
    Lost,
    /// A number that was skipped on purpose (RFC 9000 §21.4); acknowledging it is a protocol
    /// violation.
    Skipped,
}

/// The record of one sent packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPacket {
    /// When it was sent.
    pub(crate) time_sent: Time,
    /// The mark of its first frame; once the packet is acknowledged, a number up to which all that
    /// follow it are acknowledged too.
    first_frame: u64,
    /// Its size in bytes, counted as in flight; 0 if congestion control does not count it.
    pub(crate) size: u16,
    /// The number of its frames that are remembered.
    pub(crate) frames: u16,
    state: State,
    /// Whether it asks for an acknowledgement.
    pub(crate) ack_eliciting: bool,
    /// The flow that it belongs to (`path::Flow`): congestion control and round-trip times are per
    /// path (RFC 9000 §9.4).
    pub(crate) flow: u8,
    /// Whether the congestion window, not the application, limited sending at that time (RFC 9002
    /// §7.8).
    pub(crate) window_limited: bool,
}

const _: () = assert!(size_of::<SentPacket>() <= 24);

impl SentPacket {
    /// Marks the packet, which has this number, as acknowledged; returns its previous state.
    #[inline]
    const fn settle(&mut self, number: u64) -> Self {
        let packet = *self;
        self.state = State::Acknowledged;
        self.first_frame = number + 1;
        packet
    }

    /// An ack-eliciting packet of `size` bytes, with one frame still to be recorded.
    pub(crate) const fn with_one_frame(
        time_sent: Time,
        size: u16,
        flow: u8,
        window_limited: bool,
    ) -> Self {
        Self {
            time_sent,
            first_frame: 0,
            size,
            frames: 1,
            state: State::Outstanding,
            ack_eliciting: true,
            flow,
            window_limited,
        }
    }
}

/// The result of acknowledging a packet number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Acked {
    /// First acknowledgement of an outstanding packet.
    Newly(SentPacket),
    /// It had been declared lost: the loss was spurious.
    AfterLoss(SentPacket),
    /// Already known, or settled long ago.
    Already,
    /// Never sent: RFC 9000 §13.1, PROTOCOL_VIOLATION.
    NeverSent,
}

/// Packets that were acknowledged in sequence and carried the bytes of one stream from `start` to
/// `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckedRun {
    /// How many.
    pub(crate) count: u64,
    /// Their sizes.
    pub(crate) bytes: u64,
    /// When the first of them was sent.
    pub(crate) first_sent: Time,
    /// When the last of them was sent.
    pub(crate) time_sent: Time,
    /// Whether the window was the limit when one of them was sent.
    pub(crate) window_limited: bool,
    /// The stream.
    pub(crate) id: StreamId,
    /// Offset of the first byte.
    pub(crate) start: u64,
    /// Offset after the last.
    pub(crate) end: u64,
}

/// The packets of one packet number space that were sent but are not yet settled.
#[derive(Debug, Default)]
pub(crate) struct SentPackets {
    base: u64,
    packets: VecDeque<SentPacket>,
    frame_base: u64,
    frames: VecDeque<SentFrame>,
    /// No lower number is outstanding. It only ever rises, so loss detection visits a packet only
    /// once.
    oldest_outstanding: u64,
    outstanding_eliciting: usize,
    /// The number after the last one sealed.
    #[cfg(debug_assertions)]
    unsealed: u64,
}

impl SentPackets {
    /// Prefetches the records of the oldest and the newest packet.
    #[inline]
    pub(crate) fn prefetch(&self) {
        for packet in self.packets.front().into_iter().chain(self.packets.back()) {
            prefetch(packet);
        }
        for frame in self.frames.front().into_iter().chain(self.frames.back()) {
            prefetch(frame);
        }
    }

    /// Bytes of memory that the rings take.
    #[must_use]
    pub(crate) fn memory(&self) -> usize {
        self.packets.capacity() * size_of::<SentPacket>()
            + self.frames.capacity() * size_of::<SentFrame>()
    }

    /// Whether the packet numbers are used up.
    #[must_use]
    pub(crate) fn is_spent(&self) -> bool {
        self.next_number() >= LAST
    }

    /// Checks, in builds with debug assertions, that no number is sealed twice: a reused nonce
    /// reveals the key (RFC 9001 §5.3). Every packet of a connection passes here on its way to the
    /// AEAD.
    #[inline]
    pub(crate) fn check_sealed(&mut self, spans: &[PacketSpan]) {
        #[cfg(debug_assertions)]
        for span in spans {
            assert!(
                span.packet_number >= self.unsealed && span.packet_number < self.next_number(),
                "packet number {} is sealed twice or was not booked",
                span.packet_number
            );
            self.unsealed = span.packet_number + 1;
        }
        #[cfg(not(debug_assertions))]
        let _ = spans;
    }

    /// As if this many packets had been sent and settled.
    #[cfg(test)]
    pub(crate) fn continue_from(&mut self, number: u64) {
        assert!(self.packets.is_empty() && number >= self.base);
        self.base = number;
    }

    /// The skipped numbers that are still remembered.
    #[cfg(test)]
    pub(crate) fn skipped(&self) -> Vec<u64> {
        let numbered = (self.base..).zip(&self.packets);
        let skipped = numbered.filter(|(_, p)| p.state == State::Skipped);
        skipped.map(|(number, _)| number).collect()
    }

    /// The next packet number to be used.
    #[must_use]
    pub(crate) fn next_number(&self) -> u64 {
        self.base + self.packets.len() as u64
    }

    /// Number of records: packets whose fate is open, and settled ones between them.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Number of ack-eliciting packets whose fate is open.
    #[must_use]
    pub(crate) const fn outstanding_eliciting(&self) -> usize {
        self.outstanding_eliciting
    }

    /// Records a frame of the packet that the next `push` completes.
    #[inline]
    pub(crate) fn push_frame(&mut self, frame: SentFrame) {
        self.frames.push_back(frame);
    }

    /// Number of frames recorded so far; the difference of two values counts the frames between.
    #[must_use]
    pub(crate) fn frame_mark(&self) -> u64 {
        self.frame_base + self.frames.len() as u64
    }

    /// Records the packet with the next number, whose frames are those recorded since
    /// `first_frame`.
    #[inline]
    pub(crate) fn push(
        &mut self,
        time_sent: Time,
        size: u16,
        ack_eliciting: bool,
        flow: u8,
        window_limited: bool,
        first_frame: u64,
    ) {
        let frames = (self.frame_mark() - first_frame) as u16;
        self.outstanding_eliciting += usize::from(ack_eliciting);
        let state = State::Outstanding;
        self.packets.push_back(SentPacket {
            time_sent,
            first_frame,
            size,
            frames,
            state,
            ack_eliciting,
            flow,
            window_limited,
        });
    }

    /// Records `count` packets of one stream: each of `size` bytes, filled by one frame with `len`
    /// bytes of data, the first of them at `start`.
    pub(crate) fn push_run(
        &mut self,
        like: SentPacket,
        count: usize,
        (id, start, len): (StreamId, u64, u32),
    ) {
        let first_frame = self.frame_mark();
        self.frames
            .extend((0..count as u64).map(|k| SentFrame::Stream {
                id,
                start: start + k * u64::from(len),
                len,
                fin: false,
            }));
        self.packets.extend((0..count as u64).map(|k| SentPacket {
            first_frame: first_frame + k,
            ..like
        }));
        self.outstanding_eliciting += count;
    }

    /// Skips the next number.
    pub(crate) fn skip_number(&mut self, now: Time) {
        let first_frame = self.frame_mark();
        self.packets.push_back(SentPacket {
            time_sent: now,
            first_frame,
            size: 0,
            frames: 0,
            state: State::Skipped,
            ack_eliciting: false,
            flow: 0,
            window_limited: false,
        });
    }

    /// The frames of a packet that this ring returned and that `forget_settled` has not dropped
    /// since.
    pub(crate) fn frames(&self, packet: &SentPacket) -> impl Iterator<Item = SentFrame> + '_ {
        let at = (packet.first_frame - self.frame_base) as usize;
        self.frames.range(at..at + packet.frames as usize).copied()
    }

    /// How many frames the packet carried.
    pub(crate) fn frame_count(&self, packet: &SentPacket) -> usize {
        packet.frames as usize
    }

    /// The packet's frame `i`.
    pub(crate) fn frame(&self, packet: &SentPacket, i: usize) -> Option<SentFrame> {
        self.frames
            .get((packet.first_frame - self.frame_base) as usize + i)
            .copied()
    }

    /// The lowest number that is not settled and forgotten.
    #[inline]
    pub(crate) fn first_open(&self) -> u64 {
        self.base
    }

    /// The first number from `number` on that is not acknowledged yet.
    ///
    /// An acknowledged record points past its acknowledged neighbours, and each walk shortens the
    /// pointers it has followed (a disjoint-set forest with path compression): a peer that repeats
    /// its ranges over a large flight makes us walk the flight once, not once per frame.
    #[inline]
    pub(crate) fn skip_acknowledged(&mut self, number: u64) -> u64 {
        let number = number.max(self.base);
        match self.packets.get((number - self.base) as usize) {
            Some(packet) if packet.state == State::Acknowledged => self.follow(number),
            _ => number,
        }
    }

    #[inline(never)]
    fn follow(&mut self, from: u64) -> u64 {
        let acknowledged_until = |packets: &VecDeque<SentPacket>, at: u64| {
            let packet = packets.get(at as usize)?;
            (packet.state == State::Acknowledged).then_some(packet.first_frame)
        };
        let mut end = from;
        while let Some(next) = acknowledged_until(&self.packets, end - self.base) {
            end = next;
        }
        let mut number = from;
        while let Some(packet) = self.packets.get_mut((number - self.base) as usize)
            && number < end
        {
            number = std::mem::replace(&mut packet.first_frame, end);
        }
        end
    }

    /// Marks `number` as acknowledged.
    #[inline]
    pub(crate) fn acknowledge(&mut self, number: u64) -> Acked {
        if number < self.base {
            return Acked::Already;
        }
        let Some(packet) = self.packets.get_mut((number - self.base) as usize) else {
            return Acked::NeverSent;
        };
        match packet.state {
            State::Outstanding => {
                self.outstanding_eliciting -= usize::from(packet.ack_eliciting);
                Acked::Newly(packet.settle(number))
            }
            State::Lost => Acked::AfterLoss(packet.settle(number)),
            State::Acknowledged => Acked::Already,
            State::Skipped => Acked::NeverSent,
        }
    }

    /// Marks packets from `number` to `through` as acknowledged, as long as they belong to this
    /// flow and each carries only the next bytes of one stream; `None` if not even the first is
    /// such a packet.
    pub(crate) fn acknowledge_run(
        &mut self,
        number: u64,
        through: u64,
        flow: u8,
    ) -> Option<AckedRun> {
        let at = number.checked_sub(self.base)? as usize;
        let first = self.packets.get(at)?;
        if first.state != State::Outstanding {
            return None;
        }
        let most = (through - number + 1) as usize;
        let last = self.packets.len().min(at.checked_add(most)?);
        let frame_at = (first.first_frame - self.frame_base) as usize;
        let SentFrame::Stream { id, start, .. } = *self.frames.get(frame_at)? else {
            return None;
        };
        let mut run = AckedRun {
            count: 0,
            bytes: 0,
            first_sent: first.time_sent,
            time_sent: first.time_sent,
            window_limited: first.window_limited,
            id,
            start,
            end: start,
        };
        // One frame per packet: frames are as contiguous as the packets.
        let packets = self.packets.range_mut(at..last);
        for (packet, frame) in packets.zip(self.frames.range(frame_at..)) {
            let SentFrame::Stream {
                id,
                start,
                len,
                fin: false,
            } = *frame
            else {
                break;
            };
            let plain =
                packet.state == State::Outstanding && packet.flow == flow && packet.frames == 1;
            if !plain || id != run.id || start != run.end {
                break;
            }
            debug_assert!(packet.ack_eliciting, "STREAM asks for it: RFC 9000 §13.2");
            packet.settle(number + run.count);
            run.end += u64::from(len);
            run.bytes += u64::from(packet.size);
            run.time_sent = packet.time_sent;
            run.window_limited |= packet.window_limited;
            run.count += 1;
        }
        self.outstanding_eliciting -= run.count as usize;
        (run.count > 0).then_some(run)
    }

    /// The outstanding packets, ascending.
    pub(crate) fn outstanding(&self) -> impl DoubleEndedIterator<Item = (u64, &SentPacket)> {
        let first = self.oldest_outstanding.max(self.base);
        let at = ((first - self.base) as usize).min(self.packets.len());
        self.packets
            .range(at..)
            .enumerate()
            .filter(|(_, p)| p.state == State::Outstanding)
            .map(move |(i, p)| (first + i as u64, p))
    }

    /// Makes `outstanding` begin after the settled packets, and returns the number of the first
    /// that is outstanding, or else the next number. Loss detection calls this first, and every
    /// packet that it then passes is declared lost: in total a packet is passed at most twice,
    /// however often the peer triggers it.
    pub(crate) fn pass_settled(&mut self) -> u64 {
        let first = self.oldest_outstanding.max(self.base);
        let rest = self.packets.range((first - self.base) as usize..);
        let settled = rest.take_while(|p| p.state != State::Outstanding).count();
        self.oldest_outstanding = first + settled as u64;
        self.oldest_outstanding
    }

    /// Declares `number` lost and returns its record.
    pub(crate) fn declare_lost(&mut self, number: u64) -> Option<SentPacket> {
        let packet = self
            .packets
            .get_mut(number.checked_sub(self.base)? as usize)?;
        if packet.state != State::Outstanding {
            return None;
        }
        packet.state = State::Lost;
        self.outstanding_eliciting -= usize::from(packet.ack_eliciting);
        Some(*packet)
    }

    /// Drops the settled packets at the ring's front, with their frames. Called once per
    /// acknowledgement, not per packet.
    pub(crate) fn forget_settled(&mut self, largest_acked: u64) {
        let (mut settled, mut frames) = (0, 0);
        for packet in &self.packets {
            // The newest numbers stay: an acknowledgement of a skipped one must be recognised while
            // its neighbours settle.
            let newest = self.base + settled as u64 >= largest_acked;
            if packet.state == State::Outstanding || (packet.state == State::Skipped && newest) {
                break;
            }
            settled += 1;
            frames += packet.frames as usize;
        }
        self.packets.drain(..settled);
        self.base += settled as u64;
        self.frames.drain(..frames);
        self.frame_base += frames as u64;
    }

    /// Frees the memory of settled packets. The rest moves: shrunk in place, it would pin the first
    /// page of a formerly large allocation.
    pub(crate) fn shed(&mut self) {
        move_if_sparse(&mut self.packets);
        move_if_sparse(&mut self.frames);
    }

    /// The frames of all packets that are remembered.
    pub(crate) fn all_frames(&self) -> impl Iterator<Item = SentFrame> + '_ {
        self.frames.iter().copied()
    }

    /// Empties the ring, for a key space that is discarded; returns the bytes that were in flight
    /// (RFC 9002 §6.4).
    pub(crate) fn discard(&mut self) -> u64 {
        let in_flight = self
            .packets
            .iter()
            .filter(|p| p.state == State::Outstanding)
            .map(|p| u64::from(p.size))
            .sum();
        self.base = self.next_number();
        self.packets = VecDeque::new();
        self.frame_base += self.frames.len() as u64;
        self.frames = VecDeque::new();
        self.outstanding_eliciting = 0;
        in_flight
    }
}

/// Moves a ring that is at most half full to a new allocation. A fuller one would take more memory
/// as soon as it grew again.
fn move_if_sparse<T: Copy>(ring: &mut VecDeque<T>) {
    if ring.len() <= ring.capacity() / 2 {
        *ring = ring.iter().copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(sent: &mut SentPackets, frame: SentFrame) {
        let mark = sent.frame_mark();
        sent.push_frame(frame);
        sent.push(Time::ZERO, 100, true, 0, false, mark);
    }

    #[test]
    fn frames_are_returned_with_their_packets() {
        let mut sent = SentPackets::default();
        for i in 0..5 {
            push(&mut sent, SentFrame::NewConnectionId(i));
        }
        let Acked::Newly(packet) = sent.acknowledge(3) else {
            panic!("3 was outstanding")
        };
        assert_eq!(
            sent.frames(&packet).collect::<Vec<_>>(),
            [SentFrame::NewConnectionId(3)]
        );
        sent.acknowledge(0);
        sent.forget_settled(3);
        assert_eq!(sent.first_open(), 1);
        let lost = sent.declare_lost(1).expect("1 was outstanding");
        assert_eq!(
            sent.frames(&lost).collect::<Vec<_>>(),
            [SentFrame::NewConnectionId(1)]
        );
        assert!(matches!(sent.acknowledge(1), Acked::AfterLoss(_)));
        assert!(matches!(sent.acknowledge(0), Acked::Already));
        assert_eq!(sent.outstanding_eliciting(), 2);
    }

    // test: RFC 9000 §13.1, §21.4
    #[test]
    fn packet_numbers_never_sent_are_recognised() {
        let mut sent = SentPackets::default();
        push(&mut sent, SentFrame::MaxData);
        sent.skip_number(Time::ZERO);
        push(&mut sent, SentFrame::MaxData);
        assert!(matches!(sent.acknowledge(1), Acked::NeverSent));
        assert!(matches!(sent.acknowledge(3), Acked::NeverSent));
        assert!(matches!(sent.acknowledge(2), Acked::Newly(_)));
    }

    #[test]
    fn a_run_covers_only_tracked_packets() {
        let mut sent = SentPackets::default();
        let id = StreamId(3);
        let like = SentPacket::with_one_frame(Time::ZERO, 100, 0, false);
        sent.push_run(like, 5, (id, 0, 80));
        assert!(sent.acknowledge_run(5, 9, 0).is_none(), "not sent yet");
        let run = sent.acknowledge_run(0, 1, 0).expect("a run");
        assert_eq!((run.count, run.bytes, run.start, run.end), (2, 200, 0, 160));
        sent.forget_settled(1);
        assert!(sent.acknowledge_run(1, 4, 0).is_none(), "forgotten");
        let run = sent.acknowledge_run(2, 1000, 0).expect("a run");
        assert_eq!((run.count, run.start, run.end), (3, 160, 400));
        assert_eq!(sent.outstanding_eliciting(), 0);
        assert!(
            sent.acknowledge_run(2, 4, 0).is_none(),
            "already acknowledged"
        );
    }

    // test: SECURITY.md row 48
    #[test]
    fn settled_packets_are_skipped() {
        let mut sent = SentPackets::default();
        for _ in 0..1000 {
            push(&mut sent, SentFrame::MaxData);
        }
        for number in (1..1000).rev() {
            assert!(matches!(sent.acknowledge(number), Acked::Newly(_)));
        }
        sent.forget_settled(999);
        assert_eq!(sent.skip_acknowledged(300), 1000);
        // From here on, a repeated range, or a part of it, is one step.
        let steps = sent.packets.range(300..).map(|p| p.first_frame);
        assert!(steps.eq(std::iter::repeat_n(1000, 700)));
        assert_eq!(
            sent.skip_acknowledged(0),
            0,
            "an outstanding packet is not skipped"
        );
        sent.declare_lost(0);
        assert_eq!(
            sent.skip_acknowledged(0),
            0,
            "a lost packet may still be acknowledged"
        );
        assert_eq!(sent.pass_settled(), 1000);
        assert_eq!(sent.outstanding().count(), 0);
    }

    #[test]
    fn skipping_agrees_with_a_linear_search() {
        let mut next = crate::common::numbers(3);
        for _ in 0..200 {
            let mut sent = SentPackets::default();
            for _ in 0..300 {
                let number = next(sent.next_number() + 1);
                match next(8) {
                    0 => drop(sent.acknowledge(number)),
                    1 => drop(sent.declare_lost(number)),
                    2 => sent.forget_settled(number),
                    3 => {
                        let first = sent.outstanding().map(|(n, _)| n).next();
                        let first = first.unwrap_or(sent.next_number());
                        assert_eq!(sent.pass_settled(), first);
                    }
                    4 => {
                        let found = sent.skip_acknowledged(number);
                        let from = number.max(sent.base);
                        let open = |n: &u64| {
                            let packet = sent.packets.get((n - sent.base) as usize);
                            packet.is_none_or(|p| p.state != State::Acknowledged)
                        };
                        assert_eq!(Some(found), (from..).find(open));
                    }
                    _ => push(&mut sent, SentFrame::MaxData),
                }
                let outstanding = sent.outstanding().map(|(n, _)| n);
                let numbered = (sent.base..).zip(&sent.packets);
                let all = numbered.filter(|(_, p)| p.state == State::Outstanding);
                assert!(outstanding.eq(all.map(|(n, _)| n)));
            }
        }
    }
}
