//! A rustls session: CRYPTO bytes in and out, key material out.
//!
//! ```text
//!  rustls::ClientConfig / ServerConfig, built on provider()
//!        │
//!  Session::client / server ── read(CRYPTO bytes) ──▶ rustls::quic ── write() ──▶ CRYPTO bytes
//!                                                          │
//!                                        a key level became ready: rustls makes "keys" with the
//!                                        wrapped provider, which only remembers their secret
//!                                                          ▼
//!                                        KeyChange { LevelMaterial } ──▶ squall-protect
//! ```
//!
//! Floors, lowest first: `hkdf`, [`capture`](provider) (the wrapped provider) and [`ClientHello`],
//! [`schedule`](Secrets), [`Session`]. Initial keys do not come from here: the endpoint needs them
//! before there is a session, so `squall-protect` derives them.

#![forbid(unsafe_code)]

mod capture;
mod client_hello;
mod hkdf;
mod schedule;
mod session;
mod storage;

pub use capture::{provider, wrap};
pub use client_hello::ClientHello;
pub use schedule::{DirectionMaterial, LevelMaterial, Secrets};
pub use session::{Alert, Error, KeyChange, Session};
