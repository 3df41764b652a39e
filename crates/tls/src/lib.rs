//! A rustls session: CRYPTO bytes in and out, key material out.
//!
//! ```text
//!  rustls::ClientConfig / ServerConfig, of any provider
//!        │
//!  Session::client / server ── read(CRYPTO bytes) ──▶ rustls::quic ── write() ──▶ CRYPTO bytes
//!                                                          │
//!                                        a key level became ready: rustls shows its secrets to
//!                                        a key log, which belongs to the session
//!                                                          ▼
//!                                        KeyChange { LevelMaterial } ──▶ squall-protect
//! ```
//!
//! Floors, lowest first: `hkdf` and `secrets` (the key log), [`ClientHello`] and
//! [`exporter`](ExporterSecret), [`schedule`](Secrets), [`wrap`](wrap()), `provider`, [`Session`].
//! Initial keys are not derived here: the endpoint needs them before there is a session, so
//! `squall-protect` derives them.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client_hello;
mod exporter;
#[cfg(any(feature = "aws-lc-rs", feature = "ring", test))]
mod hkdf;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod provider;
mod schedule;
mod secrets;
mod session;
mod storage;
mod wrap;

pub use client_hello::ClientHello;
pub use exporter::{ExporterSecret, InvalidLength};
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
pub use provider::provider;
pub use schedule::{DirectionMaterial, LevelMaterial, Secrets};
pub use session::{Alert, Error, KeyChange, Session, guarded};
pub use wrap::wrap;
