//! A rustls session: CRYPTO bytes in and out, key material out.
//!
//! ```text
//!  rustls::ClientConfig / ServerConfig, built on provider()
//!        │
//!  Session::client / server ── read(CRYPTO bytes) ──▶ rustls::quic ── write() ──▶ CRYPTO bytes
//!                                                          │
//!                                        a key level became ready: rustls makes "keys" with the
//!                                        wrapped provider, which only remembers their bytes
//!                                                          ▼
//!                                        KeyChange { LevelMaterial } ──▶ squall-protect
//! ```
//!
//! Floors, lowest first: [`capture`](provider) (the wrapped provider), [`Session`].
//! Initial keys do not come from here: the endpoint needs them before there is a session,
//! so `squall-protect` derives them.

#![forbid(unsafe_code)]

mod capture;
mod session;

pub use capture::{DirectionMaterial, LevelMaterial, provider, wrap};
pub use session::{Alert, Error, KeyChange, Secrets, Session};
