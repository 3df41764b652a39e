//! What the applications of both ends send, and what each byte of it is.

use std::sync::OnceLock;

use bytes::Bytes;
use squall_wire::{Direction, Side, StreamId};

use crate::rng::Rng;

/// Bytes of all streams are pieces of this many random ones.
const CONTENTS: usize = 4 << 20;

/// The largest stream.
const MAX_STREAM: usize = 2 << 20;

/// A stream that one side opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Whether the other side answers.
    pub direction: Direction,
    /// Bytes that the opener sends.
    pub size: usize,
    /// Bytes that the other side answers with; 0 for a unidirectional stream.
    pub reply: usize,
}

/// What both sides send.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The streams that each [`Side`] opens, in their order.
    pub streams: [Vec<Outgoing>; 2],
    /// Bytes handed to one call of `write`, at most; 0 for as many as there are.
    pub chunk: usize,
}

impl Plan {
    /// One bidirectional stream of the client with `bytes` each way.
    #[must_use]
    pub fn one_stream(bytes: usize) -> Self {
        let stream = Outgoing {
            direction: Direction::Bidirectional,
            size: bytes,
            reply: bytes,
        };
        Self {
            streams: [vec![stream], Vec::new()],
            ..Self::default()
        }
    }

    /// `bytes` each way over as many streams as the seed wants, of all kinds and sizes.
    #[must_use]
    pub fn from_seed(rng: &mut Rng, bytes: usize) -> Self {
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
            let mut stream = Outgoing {
                direction: Direction::Unidirectional,
                size: take(rng, &mut left[ours], share),
                reply: 0,
            };
            if stream.size == 0 || rng.chance(0.5) {
                stream.direction = Direction::Bidirectional;
                stream.reply = take(rng, &mut left[theirs], share);
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

    /// The bytes that `sender` sends on a stream; `None` if the plan has no such stream.
    pub(crate) fn contents(&self, id: StreamId, sender: Side) -> Option<Bytes> {
        let stream = self
            .of(id.initiator(), id.direction())
            .nth(usize::try_from(id.index()).ok()?)?;
        let size = if sender == id.initiator() {
            stream.size
        } else {
            stream.reply
        };
        let size = size.min(MAX_STREAM);
        // Every stream and each way of it begins elsewhere, so that a byte in the wrong place shows.
        let mut rng = Rng::new(2 * id.0 + sender as u64);
        let at = rng.below((CONTENTS - size) as u64) as usize;
        Some(random_bytes().slice(at..at + size))
    }

    /// Streams on which `sender` sends, and all bytes of them.
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
    fn a_seed_shares_out_all_bytes() {
        for seed in 0..200 {
            let plan = Plan::from_seed(&mut Rng::new(seed), 1_000_000);
            for side in [Side::Client, Side::Server] {
                assert_eq!(plan.total(side).1, 1_000_000, "seed {seed}");
            }
            assert!(plan.streams.iter().flatten().count() <= 400);
        }
    }

    #[test]
    fn contents_differ_by_stream_and_way() {
        let plan = Plan {
            streams: [
                vec![
                    Outgoing {
                        direction: Direction::Bidirectional,
                        size: 100,
                        reply: 50
                    };
                    2
                ],
                Vec::new(),
            ],
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
