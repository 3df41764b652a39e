//! Two QUIC endpoints on a virtual, seeded, faulty network.
//!
//! Floors, lowest first: [`Rng`] (the seed), [`Network`] (what happens to a datagram). Nothing here
//! reads a clock: time is the arrival of the next datagram or the next timeout.

#![forbid(unsafe_code)]

mod network;
mod rng;

pub use network::{Counters, Delivery, Faults, Network};
pub use rng::Rng;
