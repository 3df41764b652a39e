//! String literals: RFC 9204 §4.1.2.

use super::huffman::{self, InvalidHuffman};
use super::integer::{self, IntegerError};

/// Why no string could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StringError {
    /// The input ends within it.
    Truncated,
    /// Its length is not a readable integer.
    Length,
    /// It is longer than the reader accepts.
    TooLong,
}

impl From<IntegerError> for StringError {
    fn from(error: IntegerError) -> Self {
        match error {
            IntegerError::Truncated => Self::Truncated,
            IntegerError::TooLarge => Self::Length,
        }
    }
}

/// A string as it appears in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Literal<'a> {
    /// Whether `bytes` are in Huffman code.
    pub(super) huffman: bool,
    pub(super) bytes: &'a [u8],
}

/// The bits of the longest code.
const LONGEST_CODE_BITS: usize = 30;

impl<'a> Literal<'a> {
    /// Reads the string whose length has a prefix of `PREFIX` bits in `first`, with the flag for
    /// Huffman code in the bit above them.
    ///
    /// `most` is its longest decoded length: a string that must exceed it is
    /// [`StringError::TooLong`] as soon as its length is known, whether or not its bytes are there.
    #[inline]
    pub(super) fn read<const PREFIX: u32>(
        first: u8,
        rest: &mut &'a [u8],
        most: usize,
    ) -> Result<Self, StringError> {
        let huffman = first >> PREFIX & 1 != 0;
        let len = integer::read::<PREFIX>(first, rest)?;
        let len = usize::try_from(len).map_err(|_| StringError::TooLong)?;
        if len > Self::longest(huffman, most) {
            return Err(StringError::TooLong);
        }
        let (bytes, after) = rest.split_at_checked(len).ok_or(StringError::Truncated)?;
        *rest = after;
        Ok(Self { huffman, bytes })
    }

    /// The longest literal of a string of `most` bytes.
    const fn longest(huffman: bool, most: usize) -> usize {
        if huffman {
            most.saturating_mul(LONGEST_CODE_BITS).div_ceil(8)
        } else {
            most
        }
    }

    /// Appends the decoded string.
    #[inline]
    pub(super) fn append_to(&self, out: &mut Vec<u8>) -> Result<(), InvalidHuffman> {
        if self.huffman {
            huffman::decode(self.bytes, out)
        } else {
            out.extend_from_slice(self.bytes);
            Ok(())
        }
    }
}

/// Appends `text` as a string whose length has a prefix of `PREFIX` bits, below the bits of
/// `first`: in Huffman code if that is shorter.
#[inline]
pub(super) fn write<const PREFIX: u32>(first: u8, text: &[u8], out: &mut Vec<u8>) {
    let len = huffman::encoded_len(text);
    if len < text.len() {
        integer::write::<PREFIX>(first | 1 << PREFIX, len as u64, out);
        huffman::encode(text, len, out);
    } else {
        integer::write::<PREFIX>(first, text.len() as u64, out);
        out.extend_from_slice(text);
    }
}
