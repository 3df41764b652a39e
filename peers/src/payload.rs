//! Bytes derived from a seed: never stored as a whole, never the same twice.

use sha2::{Digest, Sha256};

/// A source of `left` more bytes, which digests what it hands out.
pub(crate) struct Source {
    state: u64,
    left: u64,
    sha: Sha256,
}

impl Source {
    pub(crate) fn new(seed: u64, len: u64) -> Self {
        // xorshift would stay at zero.
        Self {
            state: seed | 1 << 63,
            left: len,
            sha: Sha256::new(),
        }
    }

    /// The next chunk; `None` at the end.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        const CHUNK: u64 = 1 << 16;
        let len = usize::try_from(self.left.min(CHUNK))
            .ok()
            .filter(|len| *len > 0)?;
        self.left -= len as u64;
        let mut bytes = vec![0; len];
        for word in bytes.chunks_mut(8) {
            // Marsaglia, "Xorshift RNGs", 2003: (13, 7, 17).
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            word.copy_from_slice(&self.state.to_le_bytes()[..word.len()]);
        }
        self.sha.update(&bytes);
        Some(bytes)
    }

    /// The digest of what was handed out.
    pub(crate) fn digest(self) -> String {
        hex(self.sha)
    }
}

/// Receives bytes and digests them.
#[derive(Default)]
pub(crate) struct Sink {
    len: u64,
    sha: Sha256,
}

impl Sink {
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        self.sha.update(bytes);
    }

    /// Returns how many bytes arrived, and their digest.
    pub(crate) fn end(self) -> (u64, String) {
        (self.len, hex(self.sha))
    }
}

fn hex(sha: Sha256) -> String {
    sha.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
