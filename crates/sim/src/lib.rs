//! Two QUIC endpoints on a virtual, seeded, faulty network.
//!
//! ```text
//!  run_seed       a complete run: the Trial that a seed determines
//!  Simulation     Parties (the applications: streams written, read and compared) on a Pair
//!  Pair           two endpoints with their connections, driven by arrivals and timeouts
//!  Guard          rules for every datagram               Intruder   datagrams of neither end
//!  Network        what happens to a datagram      Happening   what happens to the network
//!  Rng            the seed
//!
//!  Duel           a real end against a RawPeer, whose packets are made by hand
//! ```
//!
//! Nothing here reads a clock: time is the arrival of the next datagram or the next timeout. The
//! same seed gives the same run on every machine, except for the random bytes of TLS, which change
//! no length and no time.

#![forbid(unsafe_code)]

mod certificate;
mod datagrams;
mod failure;
pub mod fuzz;
mod guard;
mod happening;
mod intruder;
mod network;
mod pair;
mod party;
mod plan;
mod raw;
mod rng;
mod run;
mod simulation;
mod trial;
mod variation;

pub use certificate::{Configs, Demands, SERVER_NAME, tls, tls_with};
pub use failure::Failure;
pub use happening::{Happening, Wish};
pub use intruder::Intrusion;
pub use network::{Counters, Delivery, EcnFault, Elsewhere, Faults, Network};
pub use pair::{Pair, Setup};
pub use party::{Party, Reading};
pub use plan::{Cut, Outgoing, Plan};
pub use raw::{Duel, Odd, RawPeer, Terms, Work, frames};
pub use rng::Rng;
pub use run::{Report, catch, run_seed, run_trial};
pub use simulation::Simulation;
pub use trial::{Fault, Handshake, Trial};
