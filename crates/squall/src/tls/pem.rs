//! PEM files (RFC 7468), and what is wrong with those that lack the expected content.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::{Error, Holds};

/// The roots in a PEM file, for example of a private authority. A client that uses them trusts
/// these roots only.
///
/// Blocks while it reads.
///
/// # Errors
/// The file cannot be read, holds no certificate, or holds one that cannot be a root.
pub fn roots_from_pem(path: impl AsRef<Path>) -> Result<RootCertStore, Error> {
    let path = path.as_ref();
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates(path)?.into_iter().enumerate() {
        roots
            .add(certificate)
            .map_err(|error| Error::InvalidCertificate {
                path: path.to_owned(),
                number: index + 1,
                error,
            })?;
    }
    Ok(roots)
}

/// All certificates of a file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = read(path)?;
    let found: Vec<CertificateDer<'static>> = all(path, &text)?;
    if found.is_empty() {
        return Err(Error::NoCertificate {
            path: path.to_owned(),
            holds: holds(&text),
        });
    }
    Ok(found)
}

/// The first private key of a file.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let text = read(path)?;
    // Checked first: a key encrypted in PKCS #1 or SEC 1 has the same section as a plain one, with
    // headers that are not Base64.
    if is_encrypted(&text) {
        return Err(Error::EncryptedKey {
            path: path.to_owned(),
        });
    }
    let keys: Vec<PrivateKeyDer<'static>> = all(path, &text)?;
    keys.into_iter().next().ok_or_else(|| Error::NoKey {
        path: path.to_owned(),
        holds: holds(&text),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::Unreadable {
        path: path.to_owned(),
        error,
    })
}

fn all<T: PemObject>(path: &Path, text: &[u8]) -> Result<Vec<T>, Error> {
    T::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::BrokenPem {
            path: path.to_owned(),
            error,
        })
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| matches!(byte, b'\n' | b'\r'))
}

/// Whether the file holds a private key that a password protects.
fn is_encrypted(text: &[u8]) -> bool {
    lines(text).any(|line| {
        // PKCS #8 has a section of its own; older forms have a header (RFC 1421 §4.6.1.1).
        line.starts_with(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
            || line.starts_with(b"Proc-Type:") && line.ends_with(b"ENCRYPTED")
    })
}

fn holds(text: &[u8]) -> Holds {
    if !lines(text).any(|line| line.starts_with(b"-----BEGIN ")) {
        return Holds::NoPem;
    }
    let sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(text).flatten();
    let mut found = Holds::Other;
    for (kind, _) in sections {
        match kind {
            SectionKind::Certificate => return Holds::Certificates,
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                found = Holds::Key;
            }
            _ => {}
        }
    }
    found
}
