//! Bytes that both ends can generate and check at any offset, without storing them.

use sha2::{Digest, Sha256};

/// How much is sent each way: `SQUALL_INTEROP_BYTES`, or 1 MB.
pub(crate) fn transfer_size() -> u64 {
    match std::env::var("SQUALL_INTEROP_BYTES") {
        Ok(text) => parse_size(&text).unwrap_or_else(|| {
            panic!("SQUALL_INTEROP_BYTES is {text:?}; it must be a number, then K, M, G or nothing")
        }),
        Err(_) => 1_000_000,
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 1_000),
        Some(digits) if text.ends_with('M') => (digits, 1_000_000),
        Some(digits) => (digits, 1_000_000_000),
        None => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// The payload of one stream: `len` bytes derived from `seed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) seed: u64,
    pub(crate) len: u64,
}

impl Payload {
    /// Copies the bytes from `offset` on, as many as fit in `buffer` and exist.
    pub(crate) fn fill(self, offset: u64, buffer: &mut [u8]) -> usize {
        let left = self.len.saturating_sub(offset);
        let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let mut at = offset;
        let mut rest = &mut buffer[..count];
        while !rest.is_empty() {
            let word = self.word(at / 8);
            let from = usize::try_from(at % 8).expect("below 8");
            let part = rest.len().min(8 - from);
            rest[..part].copy_from_slice(&word[from..from + part]);
            rest = &mut rest[part..];
            at += part as u64;
        }
        count
    }

    /// The whole payload.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(self.len).expect("a payload that fits in memory")];
        self.fill(0, &mut all);
        all
    }

    /// Its SHA-256, in hexadecimal.
    pub(crate) fn digest(self) -> String {
        let mut sha = Sha256::new();
        let mut buffer = vec![0; 1 << 16];
        let mut offset = 0;
        while offset < self.len {
            let count = self.fill(offset, &mut buffer);
            sha.update(&buffer[..count]);
            offset += count as u64;
        }
        hex(sha)
    }

    /// Eight bytes: a counter, mixed (the finalizer of `SplitMix64`), so that no two positions look
    /// alike.
    fn word(self, index: u64) -> [u8; 8] {
        let mut z = self
            .seed
            .wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    }
}

/// Compares a stream's bytes with the expected payload as they arrive.
pub(crate) struct Check {
    payload: Payload,
    offset: u64,
    sha: Sha256,
    wanted: Vec<u8>,
}

impl Check {
    pub(crate) fn new(payload: Payload) -> Self {
        Self {
            payload,
            offset: 0,
            sha: Sha256::new(),
            wanted: Vec::new(),
        }
    }

    /// Checks the next bytes.
    ///
    /// # Panics
    /// They differ from the payload, or there are more.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.wanted.resize(bytes.len(), 0);
        let count = self.payload.fill(self.offset, &mut self.wanted);
        assert_eq!(
            count,
            bytes.len(),
            "more than the {} bytes sent",
            self.payload.len
        );
        if let Some(at) = self
            .wanted
            .iter()
            .zip(bytes)
            .position(|(wanted, got)| wanted != got)
        {
            panic!(
                "byte {} of {} is wrong",
                self.offset + at as u64,
                self.payload.len
            );
        }
        self.sha.update(bytes);
        self.offset += bytes.len() as u64;
    }

    /// The stream has ended: all bytes must have arrived. Returns the digest of what arrived.
    ///
    /// # Panics
    /// Some are missing.
    pub(crate) fn end(self) -> String {
        assert_eq!(self.offset, self.payload.len, "the stream ended early");
        hex(self.sha)
    }
}

/// The SHA-256 of `bytes`, in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

fn hex(sha: Sha256) -> String {
    sha.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn a_check_detects_wrong_bytes() {
    let payload = Payload { seed: 1, len: 100 };
    let mut check = Check::new(payload);
    check.take(&payload.bytes()[..33]);
    check.take(&payload.bytes()[33..]);
    assert_eq!(check.end(), payload.digest());

    let mut changed = payload.bytes();
    changed[57] ^= 1;
    let panicked = |bytes: Vec<u8>| {
        std::panic::catch_unwind(move || {
            let mut check = Check::new(payload);
            check.take(&bytes);
            check.end()
        })
        .is_err()
    };
    assert!(panicked(changed));
    assert!(panicked(payload.bytes()[1..].to_vec()));
    assert!(panicked(payload.bytes()[..99].to_vec()));
    assert!(!panicked(payload.bytes()));
    assert_eq!(parse_size("12K"), Some(12_000));
    assert_eq!(parse_size("1G"), Some(1_000_000_000));
    assert_eq!(parse_size("G"), None);
}
