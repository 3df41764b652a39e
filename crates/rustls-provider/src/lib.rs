//! squall's QUIC packet protection for [rustls]: a QUIC stack that takes its keys from rustls, such
//! as quinn, seals and opens packets with squall's kernels, with no change to the stack.
//!
//! ```text
//!   CryptoProvider ── wrap ──▶ CryptoProvider   the same key exchange, signatures and TLS records,
//!                                               with squall's QUIC algorithm
//!   quinn ─▶ rustls::quic::Keys ─▶ keys: PacketKey, HeaderKey ─▶ squall_protect
//! ```
//!
//! ```
//! use std::sync::Arc;
//!
//! let provider = squall_rustls::wrap(rustls::crypto::aws_lc_rs::default_provider());
//! # let roots = rustls::RootCertStore::empty();
//! let tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
//!     .with_protocol_versions(&[&rustls::version::TLS13])?
//!     .with_root_certificates(roots)
//!     .with_no_client_auth();
//! let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls)?;
//! let config = quinn::ClientConfig::new(Arc::new(tls));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `aws-lc-rs` or `ring`, `provider()` is that provider, wrapped.
//!
//! rustls' interface takes one packet per call, with the payload separate from header and tag. So
//! it gains less than [`squall_protect`] itself, which takes whole groups; the README has figures.

mod keys;
mod suites;

#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
pub use suites::provider;
pub use suites::{wrap, wrap_all};
