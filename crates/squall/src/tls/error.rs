//! Why a TLS configuration could not be made.

use std::path::PathBuf;
use std::{fmt, io};

use rustls::pki_types::pem;

/// Why an identity, roots or a configuration could not be made. Each is displayed as one line that
/// names the file and what is wrong with it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file has PEM sections, but one of them is damaged.
    BrokenPem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: pem::Error,
    },
    /// The file holds no certificate.
    NoCertificate {
        /// The file.
        path: PathBuf,
        /// What it holds instead.
        holds: Holds,
    },
    /// A certificate of the file cannot be parsed, or cannot be a root.
    InvalidCertificate {
        /// The file.
        path: PathBuf,
        /// Which certificate of the file, from 1.
        number: usize,
        /// The error from rustls.
        error: rustls::Error,
    },
    /// The file holds no private key.
    NoKey {
        /// The file.
        path: PathBuf,
        /// What it holds instead.
        holds: Holds,
    },
    /// The private key is encrypted with a password.
    EncryptedKey {
        /// The file.
        path: PathBuf,
    },
    /// rustls does not accept the private key, for example because of its type.
    UnusableKey {
        /// The file.
        path: PathBuf,
        /// The error from rustls.
        error: rustls::Error,
    },
    /// The private key does not belong to the first certificate.
    KeyMismatch {
        /// The file with the certificates.
        certificates: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// The certificate of the file to which the key does belong, from 1: the order is wrong.
        belongs_to: Option<usize>,
    },
    /// rustls rejects the configuration.
    Rustls(rustls::Error),
    /// A self-signed certificate could not be made.
    SelfSigned(String),
    /// The platform's verifier cannot be used.
    Platform(rustls::Error),
}

/// What a file holds instead of what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holds {
    /// No PEM section at all; it may be DER.
    NoPem,
    /// Certificates.
    Certificates,
    /// A private key.
    Key,
    /// Other PEM sections.
    Other,
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPem => "it is not in PEM format, which has a line `-----BEGIN ...-----`",
            Self::Certificates => "it holds certificates; are the two files swapped?",
            Self::Key => "it holds a private key; are the two files swapped?",
            Self::Other => "its PEM sections are of other kinds",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => {
                write!(f, "{}: cannot be read: {error}", path.display())
            }
            Self::BrokenPem { path, error } => {
                write!(f, "{}: its PEM is damaged: {error}", path.display())
            }
            Self::NoCertificate { path, holds } => {
                write!(
                    f,
                    "{}: no certificate in this file: {holds}",
                    path.display()
                )
            }
            Self::InvalidCertificate {
                path,
                number,
                error,
            } => {
                let path = path.display();
                write!(
                    f,
                    "{path}: certificate {number} in this file is invalid: {error}"
                )
            }
            Self::NoKey { path, holds } => {
                write!(
                    f,
                    "{}: no private key in this file: {holds}",
                    path.display()
                )
            }
            Self::EncryptedKey { path } => write!(
                f,
                "{}: the private key is encrypted; `openssl pkey -in FILE -out NEW` decrypts it",
                path.display()
            ),
            Self::UnusableKey { path, error } => {
                write!(
                    f,
                    "{}: the private key is not usable: {error}",
                    path.display()
                )
            }
            Self::KeyMismatch {
                certificates,
                key,
                belongs_to: None,
            } => write!(
                f,
                "{}: the private key does not belong to the certificate in {}",
                key.display(),
                certificates.display()
            ),
            Self::KeyMismatch {
                certificates,
                key,
                belongs_to: Some(number),
            } => write!(
                f,
                "{}: the private key in {} belongs to certificate {number} in this file, which \
                 must come first",
                certificates.display(),
                key.display()
            ),
            Self::Rustls(error) => error.fmt(f),
            Self::SelfSigned(error) => write!(f, "cannot make a self-signed certificate: {error}"),
            Self::Platform(error) => write!(f, "the platform's verifier cannot be used: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { error, .. } => Some(error),
            Self::BrokenPem { error, .. } => Some(error),
            Self::InvalidCertificate { error, .. }
            | Self::UnusableKey { error, .. }
            | Self::Rustls(error)
            | Self::Platform(error) => Some(error),
            _ => None,
        }
    }
}

impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        Self::Rustls(error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Unreadable { error, .. } => error.kind(),
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}
