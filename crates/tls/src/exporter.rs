//! Key material for the application (RFC 8446 §7.5), without the session from which it comes.
//!
//! A session takes kilobytes, and most servers drop it after the handshake. The exporter secret is
//! 32 or 48 bytes, and all exported material is derived from it.

use std::fmt;

use rustls::Tls13CipherSuite;
use rustls::crypto::tls13::OkmBlock;

/// The exporter secret of a session (RFC 8446 §7.5). It is wiped when dropped.
pub struct ExporterSecret {
    suite: &'static Tls13CipherSuite,
    secret: OkmBlock,
}

/// Why no key material was exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidLength {
    /// The output is empty, or longer than 255 hashes of the suite (RFC 5869 §2.3): 8,160 bytes
    /// with SHA-256, 12,240 with SHA-384.
    Output,
    /// The label is longer than 249 bytes (RFC 8446 §7.1).
    Label,
}

impl fmt::Display for InvalidLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Output => {
                "exported key material must be 1 to 8,160 bytes long (12,240 with SHA-384)"
            }
            Self::Label => "an exporter's label must be at most 249 bytes long",
        })
    }
}

impl std::error::Error for InvalidLength {}

/// The prefix of every label (RFC 8446 §7.1).
const PREFIX: &[u8] = b"tls13 ";
/// A label is preceded by its length, prefix included, in one byte.
const MAX_LABEL: usize = 255 - PREFIX.len();

impl ExporterSecret {
    pub(crate) const fn new(suite: &'static Tls13CipherSuite, secret: OkmBlock) -> Self {
        Self { suite, secret }
    }

    /// Fills `out` with key material for the purpose named by `label`, bound to `context` and to
    /// this session. Both ends get the same bytes. TLS 1.3 does not distinguish an empty context
    /// from none.
    ///
    /// # Errors
    /// [`InvalidLength`]; `out` is then unchanged.
    pub fn export(
        &self,
        out: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), InvalidLength> {
        if label.len() > MAX_LABEL {
            return Err(InvalidLength::Label);
        }
        let hash = self.suite.common.hash_provider;
        if out.is_empty() || out.len() > 255 * hash.output_len() {
            return Err(InvalidLength::Output);
        }
        let hkdf = self.suite.hkdf_provider;
        let length = |of: usize| (of as u16).to_be_bytes();
        let derived = {
            let (output, no_messages) = (length(hash.output_len()), hash.hash(&[]));
            let lengths = [
                [(PREFIX.len() + label.len()) as u8],
                [no_messages.as_ref().len() as u8],
            ];
            hkdf.expander_for_okm(&self.secret).expand_block(&[
                &output,
                &lengths[0],
                PREFIX,
                label,
                &lengths[1],
                no_messages.as_ref(),
            ])
        };
        let (output, context) = (length(out.len()), hash.hash(context));
        let label = b"exporter";
        let lengths = [
            [(PREFIX.len() + label.len()) as u8],
            [context.as_ref().len() as u8],
        ];
        let info = [
            &output[..],
            &lengths[0],
            PREFIX,
            label,
            &lengths[1],
            context.as_ref(),
        ];
        (hkdf.expander_for_okm(&derived).expand_slice(&info, out))
            .map_err(|_| InvalidLength::Output)
    }
}

impl fmt::Debug for ExporterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExporterSecret").finish_non_exhaustive()
    }
}
