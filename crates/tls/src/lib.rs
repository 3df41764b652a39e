//! A rustls session: CRYPTO bytes in and out, key material out.
//!
//! ```text
//!  rustls::ClientConfig / ServerConfig, built on provider() or wrap(…)
//!        │
//!  Session::client / server ── read(CRYPTO bytes) ──▶ rustls::quic ── write() ──▶ CRYPTO bytes
//!                                                          │
//!                                        a key level became ready: rustls makes "keys" with the
//!                                        wrapped provider, which only remembers their secret
//!                                                          ▼
//!                                        KeyChange { LevelMaterial } ──▶ squall-protect
//! ```
//!
//! Floors, lowest first: `hkdf`, [`capture`](wrap) (wrapped providers), [`ClientHello`] and
//! [`exporter`](ExporterSecret), `provider`, [`schedule`](Secrets), [`Session`]. Initial keys do
//! not come from here: the endpoint needs them before there is a session, so `squall-protect`
//! derives them.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod capture;
mod client_hello;
mod exporter;
#[cfg(any(feature = "aws-lc-rs", feature = "ring", test))]
mod hkdf;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod provider;
mod schedule;
mod session;
mod storage;

pub use capture::wrap;
pub use client_hello::ClientHello;
pub use exporter::{ExporterSecret, InvalidLength};
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
pub use provider::provider;
pub use schedule::{DirectionMaterial, LevelMaterial, Secrets};
pub use session::{Alert, Error, KeyChange, Session};
