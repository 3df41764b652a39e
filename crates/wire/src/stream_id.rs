//! Stream ids: RFC 9000 §2.1.

/// One of the two ends of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The end that sent the first Initial packet.
    Client = 0,
    /// The end that answered it.
    Server = 1,
}

impl Side {
    /// The other end.
    #[inline]
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// The directions in which a stream carries data.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Both ways.
    Bidirectional = 0,
    /// From the end that opened it to the other.
    Unidirectional = 1,
}

/// How many streams of one kind there can be: 2^60, because an id has 62 bits (RFC 9000 §4.6).
pub const MAX_COUNT: u64 = 1 << 60;

/// A stream id: who opened the stream, its direction, and its index among those of its kind.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The id of the `index`-th stream (from 0, below 2^60) of this kind.
    #[inline]
    #[must_use]
    pub const fn new(initiator: Side, direction: Direction, index: u64) -> Self {
        // RFC 9000 §2.1, table 1: bit 0 is the initiator, bit 1 the direction.
        Self((index << 2) | ((direction as u64) << 1) | initiator as u64)
    }

    /// The end that opens this stream.
    #[inline]
    #[must_use]
    pub const fn initiator(self) -> Side {
        if self.0 & 1 == 0 {
            Side::Client
        } else {
            Side::Server
        }
    }

    /// The direction of this stream.
    #[inline]
    #[must_use]
    pub const fn direction(self) -> Direction {
        if self.0 & 2 == 0 {
            Direction::Bidirectional
        } else {
            Direction::Unidirectional
        }
    }

    /// Its index, from 0, among the streams of the same initiator and direction.
    #[inline]
    #[must_use]
    pub const fn index(self) -> u64 {
        self.0 >> 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 9000 §2.1, table 1
    #[test]
    fn the_two_low_bits_are_initiator_and_direction() {
        for (bits, side, direction) in [
            (0, Side::Client, Direction::Bidirectional),
            (1, Side::Server, Direction::Bidirectional),
            (2, Side::Client, Direction::Unidirectional),
            (3, Side::Server, Direction::Unidirectional),
        ] {
            for index in [0, 1, (1 << 60) - 1] {
                let id = StreamId::new(side, direction, index);
                assert_eq!(id, StreamId(index * 4 + bits));
                assert_eq!(
                    (id.initiator(), id.direction(), id.index()),
                    (side, direction, index)
                );
            }
        }
        assert_eq!(Side::Client.peer(), Side::Server);
        assert_eq!(Side::Server.peer(), Side::Client);
    }
}
