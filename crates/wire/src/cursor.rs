//! A reader and a writer over one byte slice: all that the formats above need.
//!
//! Both are bounded: a read past the end is [`Truncated`], a write past the end writes nothing and
//! is recorded in [`Writer::overflow`].

use crate::varint;
use std::fmt;

/// The input ended in the middle of a field.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Truncated;

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("input ended in the middle of a field")
    }
}

impl std::error::Error for Truncated {}

/// Reads fields from the front of a slice. A failed read leaves the position where it was.
#[derive(Copy, Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    total: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the first byte of `bytes`.
    #[inline]
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            total: bytes.len(),
        }
    }

    /// Bytes still to be read.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether everything has been read.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Bytes read so far.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> usize {
        self.total - self.rest.len()
    }

    /// The next byte, without reading it.
    #[inline]
    #[must_use]
    pub fn peek_u8(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`Truncated`] when fewer remain.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`Truncated`] at the end of the input.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes, big endian.
    ///
    /// # Errors
    /// [`Truncated`] when fewer remain.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes, big endian.
    ///
    /// # Errors
    /// [`Truncated`] when fewer remain.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_be_bytes)
    }

    /// Eight bytes, big endian.
    ///
    /// # Errors
    /// [`Truncated`] when fewer remain.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_be_bytes)
    }

    /// A variable-length integer (RFC 9000 §16), of any of the lengths that can hold its value.
    ///
    /// # Errors
    /// [`Truncated`] when fewer bytes remain than its prefix announces.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Truncated> {
        // One eight-byte load serves all four lengths; only the last seven bytes of a packet miss
        // it.
        let (value, len) = match self.rest.first_chunk::<8>() {
            Some(word) => {
                let word = u64::from_be_bytes(*word);
                let len = 1usize << (word >> 62);
                ((word & varint::MAX) >> (64 - 8 * len), len)
            }
            None => varint_near_end(self.rest)?,
        };
        self.rest = self.rest.get(len..).ok_or(Truncated)?;
        Ok(value)
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`Truncated`] when fewer remain.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Truncated> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `n` bytes, where `n` came from the wire and may exceed the length of any slice.
    ///
    /// # Errors
    /// [`Truncated`] when fewer remain.
    #[inline]
    pub(crate) fn bytes_u64(&mut self, n: u64) -> Result<&'a [u8], Truncated> {
        self.bytes(usize::try_from(n).map_err(|_| Truncated)?)
    }

    /// Everything that remains; the reader is empty afterwards.
    #[inline]
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

/// The varint at the start of fewer than eight bytes, and its length. Takes the slice and not the
/// reader: a value whose address is taken cannot live in registers. Not as rare as it looks,
/// because a packet that holds only an ACK has few more bytes.
#[inline(never)]
fn varint_near_end(rest: &[u8]) -> Result<(u64, usize), Truncated> {
    // RFC 9000 A.1: the prefix is not part of the value.
    match *rest {
        [a, ..] if a < 0x40 => Ok((a.into(), 1)),
        [a, b, ..] if a < 0x80 => Ok((u16::from_be_bytes([a & 0x3f, b]).into(), 2)),
        [a, b, c, d, ..] if (0x80..0xc0).contains(&a) => {
            Ok((u32::from_be_bytes([a & 0x3f, b, c, d]).into(), 4))
        }
        _ => Err(Truncated),
    }
}

/// Writes fields to the front of a slice.
///
/// Every put has a precondition: it fits (check [`remaining`](Self::remaining) or a size function
/// first). A put that does not fit writes nothing and sets [`overflow`](Self::overflow). The bytes
/// after the written ones are scratch space: [`varint`](Self::varint) may overwrite up to seven of
/// them, because one fixed-width store is cheaper than four cases.
#[derive(Debug)]
pub struct Writer<'a> {
    buf: &'a mut [u8],
    len: usize,
    overflow: bool,
}

impl<'a> Writer<'a> {
    /// A writer at the first byte of `buf`.
    #[inline]
    #[must_use]
    pub const fn new(buf: &'a mut [u8]) -> Self {
        Self {
            buf,
            len: 0,
            overflow: false,
        }
    }

    /// Bytes written so far.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing has been written.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that can still be written.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.buf.len() - self.len
    }

    /// Whether a put did not fit (or a value had no encoding) and was skipped.
    #[inline]
    #[must_use]
    pub const fn overflow(&self) -> bool {
        self.overflow
    }

    /// The free bytes, for a caller that fills them itself and then calls
    /// [`advance`](Self::advance).
    #[inline]
    pub fn spare(&mut self) -> &mut [u8] {
        self.buf.get_mut(self.len..).unwrap_or_default()
    }

    /// The bytes written so far, for a caller that fills in what [`advance`](Self::advance)
    /// skipped.
    #[inline]
    pub fn written_mut(&mut self) -> &mut [u8] {
        self.buf.get_mut(..self.len).unwrap_or_default()
    }

    /// Counts the first `n` bytes of [`spare`](Self::spare) as written.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        if n <= self.remaining() {
            self.len += n;
        } else {
            self.overflow = true;
        }
    }

    /// Puts `bytes`.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        match self.spare().get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.overflow = true,
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self, bytes: [u8; N]) {
        match self.spare().first_chunk_mut::<N>() {
            Some(place) => {
                *place = bytes;
                self.len += N;
            }
            None => self.overflow = true,
        }
    }

    /// Puts one byte.
    #[inline]
    pub fn u8(&mut self, v: u8) {
        self.array([v]);
    }

    /// Puts two bytes, big endian.
    #[inline]
    pub fn u16(&mut self, v: u16) {
        self.array(v.to_be_bytes());
    }

    /// Puts four bytes, big endian.
    #[inline]
    pub fn u32(&mut self, v: u32) {
        self.array(v.to_be_bytes());
    }

    /// Puts eight bytes, big endian.
    #[inline]
    pub fn u64(&mut self, v: u64) {
        self.array(v.to_be_bytes());
    }

    /// Puts `v` in its shortest encoding (RFC 9000 §16). A `v` above [`varint::MAX`] has none: it
    /// is treated as one that does not fit.
    #[inline]
    pub fn varint(&mut self, v: u64) {
        if v > varint::MAX {
            self.overflow = true;
            return;
        }
        let prefix = varint::prefix(v);
        let len = 1usize << prefix;
        let word = varint_word(v, prefix);
        match self.spare().first_chunk_mut::<8>() {
            Some(place) => {
                *place = word.to_be_bytes();
                self.len += len;
            }
            None => self.varint_near_end(word, len),
        }
    }

    #[cold]
    fn varint_near_end(&mut self, word: u64, len: usize) {
        self.bytes(word.to_be_bytes().get(..len).unwrap_or_default());
    }

    /// Puts `v` as a variable-length integer of `size` bytes (1, 2, 4 or 8), even if fewer would
    /// do. A `v` that needs more is treated as one that does not fit.
    #[inline]
    pub fn varint_of_size(&mut self, v: u64, size: usize) {
        if v > varint::MAX || varint::size(v) > size || !matches!(size, 1 | 2 | 4 | 8) {
            self.overflow = true;
            return;
        }
        let word = varint_word(v, size.trailing_zeros());
        self.bytes(word.to_be_bytes().get(..size).unwrap_or_default());
    }
}

/// The encoding of `v` with this prefix, which is large enough for it, in the first bytes (big
/// endian) of a word.
#[inline]
const fn varint_word(v: u64, prefix: u32) -> u64 {
    (v << (64 - (8 << prefix))) | ((prefix as u64) << 62)
}
