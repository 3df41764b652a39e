//! What is sent: bytes derived from a transfer's number and their offset, so that each end can
//! check them without a copy, and the head of a stream, which says what its server should do.

use squall::Bytes;

/// SplitMix64 (Steele, Lea, Flood 2014): a step of the sequence and its mixing.
pub(crate) fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Numbers derived from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `from..to`.
    pub(crate) fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }
}

fn word(id: u64, index: u64) -> [u8; 8] {
    mix(id ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93)).to_le_bytes()
}

/// The bytes of transfer `id` from `offset` on.
pub(crate) fn content(id: u64, offset: u64, len: usize) -> Bytes {
    let skipped = (offset % 8) as usize;
    let words = (skipped + len).div_ceil(8) as u64;
    let made: Vec<u8> = (0..words).flat_map(|n| word(id, offset / 8 + n)).collect();
    Bytes::from(made).slice(skipped..skipped + len)
}

/// Follows the content of one transfer.
pub(crate) struct Check {
    id: u64,
    pub(crate) offset: u64,
}

impl Check {
    pub(crate) fn of(id: u64) -> Self {
        Self { id, offset: 0 }
    }

    /// Checks the next bytes.
    ///
    /// # Errors
    /// They are not those of the transfer; the text says where.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let expected = content(self.id, self.offset, bytes.len());
        let differs = bytes.iter().zip(&expected[..]).position(|(a, b)| a != b);
        if let Some(at) = differs {
            let (id, place) = (self.id, self.offset + at as u64);
            return Err(format!("byte {place} of transfer {id:#x} is wrong"));
        }
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

/// What a stream asks of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Send `len` bytes.
    Get,
    /// `len` bytes follow; remember that they arrived.
    Put,
    /// `len` bytes follow; send them back.
    Echo,
    /// Did all of upload `id` arrive? The answer is one byte.
    Ask,
    /// As `Get`, with a handler that is aborted midway.
    Broken,
}

/// The first bytes of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) len: u64,
}

impl Head {
    pub(crate) const LEN: usize = 17;

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [self.kind as u8; Self::LEN];
        bytes[1..9].copy_from_slice(&self.id.to_be_bytes());
        bytes[9..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: [u8; Self::LEN]) -> Result<Self, String> {
        let kinds = [Kind::Get, Kind::Put, Kind::Echo, Kind::Ask, Kind::Broken];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == bytes[0]);
        let number = |at: usize| (0..8).fold(0, |n, i| n << 8 | u64::from(bytes[at + i]));
        Ok(Self {
            kind: kind.ok_or_else(|| format!("{} is no kind of stream", bytes[0]))?,
            id: number(1),
            len: number(9),
        })
    }
}
