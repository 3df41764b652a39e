//! The Huffman code of string literals: RFC 7541 Appendix B, used unchanged by RFC 9204 §4.1.2.
//!
//! The code is canonical, so the lengths are the whole table, and the rest is computed from them at
//! compile time. Decoding looks up 12 bits at a time and takes up to two symbols from each look-up:
//! nearly all symbols in fields have 5 to 7 bits. Codes of more than 12 bits need a search.

use std::fmt;

/// The bits of each symbol; EOS comes last.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SYMBOLS: usize = 257;
/// The symbol that ends a string and must not occur within it.
const EOS: u16 = 256;
/// The shortest and the longest code.
const SHORTEST: usize = 5;
const LONGEST: usize = 30;

/// Bits of one look-up: 16 kB of table. With 11 bits fewer pairs fit; with 13 the table no longer
/// fits in the first-level cache together with everything else.
const LOOKUP_BITS: usize = 12;

/// A string that no encoder produces: it contains EOS, ends in the middle of a code, or is padded
/// with something other than the first bits of EOS, at most seven (RFC 7541 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidHuffman;

impl fmt::Display for InvalidHuffman {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid Huffman code")
    }
}

impl std::error::Error for InvalidHuffman {}

/// Some bits, the last one lowest.
#[derive(Clone, Copy)]
struct Code {
    bits: u64,
    len: u32,
}

impl Code {
    /// This code followed by another; at most 64 bits.
    #[inline]
    const fn then(self, next: Self) -> Self {
        Self {
            bits: self.bits << next.len | next.bits,
            len: self.len + next.len,
        }
    }
}

/// The code of each symbol that can occur in text.
static CODES: [Code; EOS as usize] = codes_of_text();

/// The symbols in the order of their codes.
static SORTED: [u16; SYMBOLS] = sorted();

/// The codes of one length.
#[derive(Clone, Copy)]
struct Length {
    /// The smallest 32 bits that begin with a longer code.
    end: u64,
    /// The first code, and its place in [`SORTED`].
    code: u32,
    place: u16,
}

/// By length.
static BY_LENGTH: [Length; LONGEST + 1] = by_length();

/// What the next [`LOOKUP_BITS`] bits begin with; see [`Found`].
static LOOKUP: [Found; 1 << LOOKUP_BITS] = lookup();

/// Up to two symbols at the beginning of some bits: the symbols in the high half, how many there
/// are, and, in the low byte, where a shift finds it, how many bits they have. That is 0 if the
/// first code is too long for the table.
#[derive(Clone, Copy)]
struct Found(u32);

impl Found {
    const NOTHING: Self = Self(0);

    const fn new(symbols: [u8; 2], count: usize, bits: usize) -> Self {
        Self((symbols[1] as u32) << 24 | (symbols[0] as u32) << 16 | (count << 8 | bits) as u32)
    }

    const fn symbols(self) -> [u8; 2] {
        [(self.0 >> 16) as u8, (self.0 >> 24) as u8]
    }

    const fn count(self) -> usize {
        (self.0 >> 8) as u8 as usize
    }

    const fn bits(self) -> u32 {
        self.0 as u8 as u32
    }

    /// The bits after these symbols. A shift uses only its low bits.
    #[inline]
    const fn remove_from(self, bits: u64) -> u64 {
        bits.wrapping_shl(self.0)
    }
}

const fn sorted() -> [u16; SYMBOLS] {
    let mut found = [0; SYMBOLS];
    let (mut len, mut place) = (SHORTEST, 0);
    while len <= LONGEST {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == len {
                found[place] = symbol as u16;
                place += 1;
            }
            symbol += 1;
        }
        len += 1;
    }
    assert!(place == SYMBOLS);
    found
}

const fn codes() -> [u32; SYMBOLS] {
    let order = sorted();
    let mut found = [0; SYMBOLS];
    let (mut place, mut code, mut len) = (0, 0u32, SHORTEST);
    while place < SYMBOLS {
        let symbol = order[place] as usize;
        code <<= LENGTHS[symbol] as usize - len;
        len = LENGTHS[symbol] as usize;
        found[symbol] = code;
        code += 1;
        place += 1;
    }
    // Every sequence of bits begins with a code.
    assert!(code == 1 << LONGEST && len == LONGEST);
    found
}

const fn codes_of_text() -> [Code; EOS as usize] {
    let codes = codes();
    let mut found = [Code { bits: 0, len: 0 }; EOS as usize];
    let mut symbol = 0;
    while symbol < EOS as usize {
        found[symbol] = Code {
            bits: codes[symbol] as u64,
            len: LENGTHS[symbol] as u32,
        };
        symbol += 1;
    }
    found
}

const fn by_length() -> [Length; LONGEST + 1] {
    let (order, codes) = (sorted(), codes());
    let mut found = [Length {
        end: 0,
        code: 0,
        place: 0,
    }; LONGEST + 1];
    let (mut len, mut place) = (SHORTEST, 0);
    while len <= LONGEST {
        found[len].end = found[len - 1].end;
        found[len].place = place as u16;
        if place < SYMBOLS && LENGTHS[order[place] as usize] as usize == len {
            found[len].code = codes[order[place] as usize];
        }
        while place < SYMBOLS && LENGTHS[order[place] as usize] as usize == len {
            found[len].end = (codes[order[place] as usize] as u64 + 1) << (32 - len);
            place += 1;
        }
        len += 1;
    }
    found
}

const fn lookup() -> [Found; 1 << LOOKUP_BITS] {
    let codes = codes();
    let mut single = [Found::NOTHING; 1 << LOOKUP_BITS];
    let mut symbol = 0;
    while symbol < EOS as usize {
        let len = LENGTHS[symbol] as usize;
        if len <= LOOKUP_BITS {
            let first = (codes[symbol] as usize) << (LOOKUP_BITS - len);
            let mut at = 0;
            while at < 1 << (LOOKUP_BITS - len) {
                single[first + at] = Found::new([symbol as u8, 0], 1, len);
                at += 1;
            }
        }
        symbol += 1;
    }
    let mut found = single;
    let mut at = 0;
    while at < 1 << LOOKUP_BITS {
        let first = single[at];
        let len = first.bits() as usize;
        let second = single[(at << len) & ((1 << LOOKUP_BITS) - 1)];
        let both = len + second.bits() as usize;
        if first.count() == 1 && second.count() == 1 && both <= LOOKUP_BITS {
            let symbols = [first.symbols()[0], second.symbols()[0]];
            found[at] = Found::new(symbols, 2, both);
        }
        at += 1;
    }
    found
}

/// Looks up the beginning of the next bits, of which the first one is highest.
#[inline]
fn look_up(bits: u64) -> Found {
    // The index has as many bits as the table.
    LOOKUP[(bits >> (64 - LOOKUP_BITS)) as usize]
}

/// A symbol of more than [`LOOKUP_BITS`] bits, and its number of bits.
#[cold]
fn long(bits: u64) -> Result<(u8, u32), InvalidHuffman> {
    let front = bits >> 32;
    for len in LOOKUP_BITS + 1..=LONGEST {
        let Some(length) = BY_LENGTH.get(len).filter(|length| front < length.end) else {
            continue;
        };
        let code = (front >> (32 - len)) as usize;
        let place = usize::from(length.place) + code - length.code as usize;
        let symbol = SORTED.get(place).ok_or(InvalidHuffman)?;
        // EOS is not a symbol of a string (RFC 7541 §5.2).
        let symbol = u8::try_from(*symbol).map_err(|_| InvalidHuffman)?;
        return Ok((symbol, len as u32));
    }
    // Two more bits than EOS has.
    Err(InvalidHuffman)
}

/// Appends the decoded `input`, at most 8/5 of its length.
///
/// # Errors
/// [`InvalidHuffman`]; everything decoded until then has been appended.
pub(super) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidHuffman> {
    let start = out.len();
    // Two symbols are written at a time.
    out.resize(start + input.len() * 8 / SHORTEST + 2, 0);
    let mut text = Text {
        room: out.get_mut(start..).unwrap_or_default(),
        len: 0,
    };
    let result = decode_into(input, &mut text);
    let len = text.len;
    out.truncate(start + len);
    result
}

/// Decoded text.
struct Text<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl Text<'_> {
    #[inline]
    fn push(&mut self, symbols: [u8; 2], count: usize) {
        if let Some(place) = self.room.get_mut(self.len..self.len + 2) {
            place.copy_from_slice(&symbols);
        }
        self.len += count;
    }
}

fn decode_into(mut input: &[u8], text: &mut Text<'_>) -> Result<(), InvalidHuffman> {
    // The next bits, the first one highest; after `count` of them there may be others that are read
    // again.
    let (mut bits, mut count) = (0u64, 0u32);
    while let Some(next) = input.first_chunk::<8>() {
        bits |= u64::from_be_bytes(*next) >> count;
        let taken = (63 - count) / 8;
        input = input.get(taken as usize..).unwrap_or_default();
        count += taken * 8;
        // At least 56 bits: four look-ups, or one long code and a look-up.
        for _ in 0..4 {
            let found = look_up(bits);
            if found.bits() == 0 {
                if count < LONGEST as u32 {
                    break;
                }
                let (symbol, len) = long(bits)?;
                text.push([symbol, 0], 1);
                bits <<= len;
                count -= len;
                break;
            }
            text.push(found.symbols(), found.count());
            bits = found.remove_from(bits);
            count -= found.bits();
        }
    }
    loop {
        // The last bytes, as far as they fit, followed by zeros.
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(input) {
            *to = *from;
        }
        bits |= u64::from_be_bytes(last) >> count;
        let taken = ((64 - count) / 8).min(input.len() as u32);
        input = input.get(taken as usize..).unwrap_or_default();
        count += taken * 8;
        loop {
            let found = look_up(bits);
            if found.bits() != 0 && found.bits() <= count {
                text.push(found.symbols(), found.count());
                bits = found.remove_from(bits);
                count -= found.bits();
                continue;
            }
            let (symbol, len) = if found.bits() == 0 {
                // Zeros follow the last bit of the input, so if it ends early this is not EOS.
                long(bits)?
            } else {
                let [first, _] = found.symbols();
                (first, u32::from(LENGTHS[usize::from(first)]))
            };
            if len > count {
                break;
            }
            text.push([symbol, 0], 1);
            bits <<= len;
            count -= len;
        }
        if input.is_empty() {
            break;
        }
    }
    // RFC 7541 §5.2: up to seven bits of EOS, which are ones.
    match count {
        0 => Ok(()),
        1..8 if bits == u64::MAX << (64 - count) => Ok(()),
        _ => Err(InvalidHuffman),
    }
}

/// The bytes that `text` takes in Huffman code.
#[inline]
#[must_use]
pub(super) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text
        .iter()
        .map(|byte| usize::from(LENGTHS[usize::from(*byte)]))
        .sum();
    bits.div_ceil(8)
}

/// Appends `text` in Huffman code, which takes `len` bytes, as returned by [`encoded_len`].
pub(super) fn encode(text: &[u8], len: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + len, 0);
    let mut bits = Bits {
        room: out.get_mut(start..).unwrap_or_default(),
        bits: 0,
        count: 0,
    };
    let (fours, rest) = text.as_chunks::<4>();
    for four in fours {
        let [a, b, c, d] = four.map(|byte| CODES[usize::from(byte)]);
        let (ab, cd) = (a.then(b), c.then(d));
        // Four codes averaging 8 bits are the exception.
        if ab.len + cd.len < WORD_BITS {
            bits.push(ab.then(cd));
        } else {
            for code in [a, b, c, d] {
                bits.push(code);
            }
        }
    }
    for byte in rest {
        bits.push(CODES[usize::from(*byte)]);
    }
    bits.finish();
}

/// Bits that are written at a time.
const WORD_BITS: u32 = 32;

/// Writes bits.
struct Bits<'a> {
    room: &'a mut [u8],
    /// Bits not written yet, the last one lowest: fewer than [`WORD_BITS`]. Those above have been
    /// written.
    bits: u64,
    count: u32,
}

impl Bits<'_> {
    /// Appends fewer than [`WORD_BITS`] bits.
    #[inline]
    fn push(&mut self, code: Code) {
        self.bits = self.bits << code.len | code.bits;
        self.count += code.len;
        if self.count >= WORD_BITS {
            self.count -= WORD_BITS;
            let word = (self.bits >> self.count) as u32;
            if let Some((to, after)) = std::mem::take(&mut self.room).split_first_chunk_mut() {
                *to = word.to_be_bytes();
                self.room = after;
            }
        }
    }

    /// Writes the rest, with ones up to the next byte (RFC 7541 §5.2).
    fn finish(self) {
        let padded = (self.bits << WORD_BITS | u64::from(u32::MAX)) >> self.count;
        for (to, from) in self.room.iter_mut().zip((padded as u32).to_be_bytes()) {
            *to = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, from the definition: each code is searched for among all of them.
    fn decode_slowly(input: &[u8]) -> Result<Vec<u8>, InvalidHuffman> {
        const CODES: [u32; SYMBOLS] = codes();
        let mut text = Vec::new();
        let (mut code, mut len) = (0u32, 0u8);
        for at in 0..input.len() * 8 {
            code = code << 1 | u32::from(input[at / 8] >> (7 - at % 8) & 1);
            len += 1;
            let symbol = (0..SYMBOLS).find(|at| LENGTHS[*at] == len && CODES[*at] == code);
            if let Some(symbol) = symbol {
                text.push(u8::try_from(symbol).map_err(|_| InvalidHuffman)?);
                (code, len) = (0, 0);
            }
        }
        if len < 8 && code == (1 << len) - 1 {
            Ok(text)
        } else {
            Err(InvalidHuffman)
        }
    }

    fn encode_all(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(text, encoded_len(text), &mut out);
        assert_eq!(out.len(), encoded_len(text));
        out
    }

    fn check(input: &[u8]) {
        let mut fast = b"before".to_vec();
        let result = decode(input, &mut fast);
        let slow = decode_slowly(input);
        assert_eq!(result.is_ok(), slow.is_ok(), "{input:02x?}");
        assert!(fast.starts_with(b"before"));
        if let Ok(slow) = slow {
            assert_eq!(&fast[6..], slow, "{input:02x?}");
        }
    }

    #[test]
    fn codes_match_the_rfc() {
        // RFC 7541 Appendix B: a few of each length.
        for (symbol, code, len) in [
            ('0' as usize, 0x0, 5),
            ('t' as usize, 0x9, 5),
            (' ' as usize, 0x14, 6),
            (':' as usize, 0x5c, 7),
            ('&' as usize, 0xf8, 8),
            ('?' as usize, 0x3fc, 10),
            ('|' as usize, 0x7fc, 11),
            ('#' as usize, 0xffa, 12),
            ('~' as usize, 0x1ffd, 13),
            ('^' as usize, 0x3ffc, 14),
            ('{' as usize, 0x7ffe, 15),
            ('\\' as usize, 0x7fff0, 19),
            (0, 0x1ff8, 13),
            (1, 0x7fffd8, 23),
            (10, 0x3ffffffc, 30),
            (249, 0xffffffe, 28),
            (255, 0x3ffffee, 26),
            (256, 0x3fffffff, 30),
        ] {
            assert_eq!((codes()[symbol], LENGTHS[symbol]), (code, len), "{symbol}");
        }
    }

    #[test]
    fn the_examples_of_the_rfc_are_reproduced() {
        // test: RFC 7541 §C.4
        for (text, code) in [
            (&b"www.example.com"[..], "f1e3c2e5f23a6ba0ab90f4ff"),
            (b"no-cache", "a8eb10649cbf"),
            (b"custom-key", "25a849e95ba97d7f"),
            (b"custom-value", "25a849e95bb8e8b4bf"),
            (b"", ""),
        ] {
            let hex: String = encode_all(text)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(hex, code);
            check(&encode_all(text));
        }
    }

    #[test]
    fn every_pair_of_symbols_round_trips_at_every_offset() {
        // Preceding symbols of 5 to 8 bits move a pair to any bit position.
        for before in [
            &b""[..],
            b"0",
            b"00",
            b"0000000",
            b"A",
            b"&",
            b"a:&A00a:&A0",
        ] {
            for first in 0..=u8::MAX {
                for second in (0..=u8::MAX).step_by(if before.is_empty() { 1 } else { 7 }) {
                    let text = [before, &[first, second], b"tail"].concat();
                    let mut out = Vec::new();
                    decode(&encode_all(&text), &mut out).unwrap();
                    assert_eq!(out, text);
                }
            }
        }
    }

    #[test]
    fn decoding_agrees_with_the_slow_twin() {
        // All inputs of up to two bytes, with others before and after them.
        for first in 0..=u8::MAX {
            check(&[first]);
            check(&[0xff, 0xff, 0xff, first]);
            for second in 0..=u8::MAX {
                check(&[first, second]);
            }
        }
        let mut state = 1u64;
        for round in 0..20_000 {
            let mut input = [0u8; 40];
            for byte in &mut input {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                // Many ones: long codes and EOS.
                *byte = (state >> 56) as u8
                    | if round % 2 == 0 {
                        0
                    } else {
                        (state >> 48) as u8
                    };
            }
            check(&input[..round % 41]);
        }
    }

    #[test]
    fn padding_is_at_most_seven_bits_of_eos() {
        // test: RFC 7541 §5.2
        assert_eq!(
            decode(&[0x07], &mut Vec::new()),
            Ok(()),
            "0, then three ones"
        );
        for input in [
            &[0xff][..],   // eight bits
            &[0x07, 0xff], // eleven
            &[0x00],       // a zero in the padding
            &[0x06],
            &[0xff, 0xff, 0xff, 0xff],       // EOS
            &[0x07, 0xff, 0xff, 0xff, 0xff], // EOS after a symbol
        ] {
            assert_eq!(
                decode(input, &mut Vec::new()),
                Err(InvalidHuffman),
                "{input:02x?}"
            );
        }
    }
}
