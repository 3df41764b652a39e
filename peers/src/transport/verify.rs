//! Whether an answer is what it should be: its length always, and its bytes if requested.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use squall_yard::source::Source;

use super::case::Shape;

/// Takes the bytes of one answer.
pub(super) struct Verifier {
    wanted: u64,
    got: u64,
    digest: Option<Sha256>,
}

impl Verifier {
    /// For an answer of `wanted` bytes; with `check`, every byte is compared.
    pub(super) fn new(check: bool, wanted: u64) -> Self {
        Self {
            wanted,
            got: 0,
            digest: check.then(Sha256::new),
        }
    }

    /// Takes the next bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.got += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
    }

    /// Called at the end of the answer.
    pub(super) fn end(self) -> Result<(), String> {
        if self.got != self.wanted {
            return Err(format!("{} of {} bytes arrived", self.got, self.wanted));
        }
        if let Some(digest) = self.digest
            && digest.finalize()[..] != expected(self.wanted)[..]
        {
            return Err(format!("{} bytes arrived, but not those sent", self.got));
        }
        Ok(())
    }
}

/// A request: the length asked for, and its own data.
pub(super) fn message(shape: &Shape) -> Bytes {
    let mut message = shape.answer.to_be_bytes().to_vec();
    let mut source = Source::new(None);
    let whole = message.len() + shape.upload;
    while message.len() < whole {
        message.extend_from_slice(&source.next(whole - message.len()));
    }
    message.into()
}

/// The digest of the answer of this length, which repeats the start of the fixed buffer.
fn expected(mut left: u64) -> [u8; 32] {
    let mut source = Source::new(None);
    let mut digest = Sha256::new();
    while left > 0 {
        let piece = source.next(usize::try_from(left).unwrap_or(usize::MAX).min(1 << 20));
        digest.update(&piece);
        left -= piece.len() as u64;
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_byte_and_a_wrong_byte_are_detected() {
        let mut bytes = Source::new(None).next(1000).to_vec();
        let verdict = |bytes: &[u8]| {
            let mut verifier = Verifier::new(true, 1000);
            verifier.take(bytes);
            verifier.end()
        };
        assert_eq!(verdict(&bytes), Ok(()));
        assert!(verdict(&bytes[..999]).is_err());
        bytes[500] ^= 1;
        assert!(verdict(&bytes).is_err());
    }
}
