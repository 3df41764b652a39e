//! What the applications of both ends send, byte for byte.

use std::sync::OnceLock;

use bytes::Bytes;
use squall_wire::{Direction, Side, StreamId};

use crate::rng::Rng;

/// The bytes of all streams are taken from this many random ones.
const CONTENTS: usize = 4 << 20;

/// The largest stream.
const MAX_STREAM: usize = 2 << 20;

/// How the opener's direction of a stream ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// With its end.
    #[default]
    Never,
    /// The opener resets it after this many bytes.
    Reset(usize),
    /// The opener resets it after this many bytes, of which the second number must arrive all the
    /// same (draft-ietf-quic-reliable-stream-reset).
    ResetAt(usize, usize),
    /// The other side stops it after this many bytes, unless it reads the end first.
    Stop(usize),
}

/// The application's error code of every cut.
pub(crate) const CUT_CODE: u64 = 0x51;

/// A stream that one side opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The direction; in a bidirectional stream the other side answers.
    pub direction: Direction,
    /// Bytes that the opener sends.
    pub size: usize,
    /// Bytes that the other side answers with; 0 for a unidirectional stream.
    pub reply: usize,
    /// How the opener's direction ends.
    pub cut: Cut,
}

impl Outgoing {
    /// A bidirectional stream.
    #[must_use]
    pub const fn both_ways(size: usize, reply: usize) -> Self {
        Self {
            direction: Direction::Bidirectional,
            size,
            reply,
            cut: Cut::Never,
        }
    }

    /// A unidirectional stream.
    #[must_use]
    pub const fn one_way(size: usize) -> Self {
        Self {
            direction: Direction::Unidirectional,
            size,
            reply: 0,
            cut: Cut::Never,
        }
    }
}

/// What both sides send.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The streams that each [`Side`] opens, in their order.
    pub streams: [Vec<Outgoing>; 2],
    /// Maximum bytes handed to one call of `write`; 0 for no limit.
    pub chunk: usize,
    /// Unreliable datagrams that each [`Side`] sends (RFC 9221).
    pub datagrams: [u64; 2],
    /// Whether a new datagram takes the place of the oldest in a full queue.
    pub newest_datagrams: bool,
    /// Whether streams get priorities, which follow from their ids.
    pub priorities: bool,
}

impl Plan {
    /// One bidirectional stream of the client with `bytes` each way.
    #[must_use]
    pub fn one_stream(bytes: usize) -> Self {
        Self {
            streams: [vec![Outgoing::both_ways(bytes, bytes)], Vec::new()],
            ..Self::default()
        }
    }

    /// `bytes` each way over as many streams as the seed draws, of all kinds and sizes; `cuts` is
    /// the chance of a stream to be cut.
    #[must_use]
    pub fn from_seed(rng: &mut Rng, bytes: usize, cuts: f64) -> Self {
        let mut left = [bytes; 2];
        let mut plan = Self {
            chunk: [0, 1_000, 7_000, 65_536][rng.below(4) as usize],
            ..Self::default()
        };
        let most = 1 << rng.below(6);
        let share = bytes.div_ceil(most);
        while left != [0, 0] {
            let opener = if rng.chance(0.5) {
                Side::Client
            } else {
                Side::Server
            };
            let (ours, theirs) = (opener as usize, opener.peer() as usize);
            let size = take(rng, &mut left[ours], share);
            let mut stream = if size == 0 || rng.chance(0.5) {
                Outgoing::both_ways(size, take(rng, &mut left[theirs], share))
            } else {
                Outgoing::one_way(size)
            };
            if rng.chance(cuts) {
                let after = rng.below(size as u64 + 1) as usize;
                stream.cut = if rng.chance(0.5) {
                    Cut::Reset(after)
                } else {
                    Cut::Stop(after)
                };
            }
            plan.streams[ours].push(stream);
        }
        plan
    }

    /// The streams that `opener` opens in one direction.
    fn of(&self, opener: Side, direction: Direction) -> impl Iterator<Item = &Outgoing> {
        self.streams[opener as usize]
            .iter()
            .filter(move |s| s.direction == direction)
    }

    /// A stream by its id.
    fn stream(&self, id: StreamId) -> Option<&Outgoing> {
        self.of(id.initiator(), id.direction())
            .nth(usize::try_from(id.index()).ok()?)
    }

    /// How `sender`'s direction of a stream ends.
    pub(crate) fn cut(&self, id: StreamId, sender: Side) -> Cut {
        match self.stream(id) {
            Some(stream) if sender == id.initiator() => stream.cut,
            _ => Cut::Never,
        }
    }

    /// The bytes that `sender` sends on a stream; `None` if the plan has no such stream.
    pub(crate) fn contents(&self, id: StreamId, sender: Side) -> Option<Bytes> {
        let stream = self.stream(id)?;
        let size = if sender == id.initiator() {
            stream.size
        } else {
            stream.reply
        };
        let size = size.min(MAX_STREAM);
        // Each direction of each stream begins elsewhere, so that a misplaced byte is noticed.
        let mut rng = Rng::new(2 * id.0 + sender as u64);
        let at = rng.below((CONTENTS - size) as u64) as usize;
        Some(random_bytes().slice(at..at + size))
    }

    /// Number of streams on which `sender` sends, and their total bytes.
    pub(crate) fn total(&self, sender: Side) -> (usize, u64) {
        let own = self.streams[sender as usize].iter().map(|s| s.size);
        let replies = self
            .of(sender.peer(), Direction::Bidirectional)
            .map(|s| s.reply);
        own.chain(replies)
            .fold((0, 0), |(count, sum), size| (count + 1, sum + size as u64))
    }
}

/// Takes a stream's size from what is `left`: around `share`.
fn take(rng: &mut Rng, left: &mut usize, share: usize) -> usize {
    let size = (*left).min(1 + rng.below(2 * share as u64) as usize);
    *left -= size;
    size
}

fn random_bytes() -> &'static Bytes {
    static BYTES: OnceLock<Bytes> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut bytes = vec![0; CONTENTS];
        Rng::new(0).fill(&mut bytes);
        bytes.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_distributes_all_bytes() {
        for seed in 0..200 {
            let plan = Plan::from_seed(&mut Rng::new(seed), 1_000_000, 0.1);
            for side in [Side::Client, Side::Server] {
                assert_eq!(plan.total(side).1, 1_000_000, "seed {seed}");
            }
            assert!(plan.streams.iter().flatten().count() <= 400);
        }
    }

    #[test]
    fn contents_differ_by_stream_and_direction() {
        let plan = Plan {
            streams: [vec![Outgoing::both_ways(100, 50); 2], Vec::new()],
            ..Plan::default()
        };
        let id = |index| StreamId::new(Side::Client, Direction::Bidirectional, index);
        let first = plan.contents(id(0), Side::Client).unwrap();
        assert_eq!(first.len(), 100);
        assert_ne!(first, plan.contents(id(1), Side::Client).unwrap());
        let reply = plan.contents(id(0), Side::Server).unwrap();
        assert_eq!(reply.len(), 50);
        assert_ne!(reply[..], first[..50]);
        assert_eq!(plan.contents(id(2), Side::Client), None);
        assert_eq!(plan.total(Side::Client), (2, 200));
        assert_eq!(plan.total(Side::Server), (2, 100));
    }
}
