//! quinn, in this process, on its own socket.
//!
//! ```text
//!  pair         a connection seen from both ends, in the wanted role
//!  traffic      its traffic: checked payloads, through either end's interface
//!     │
//!  streams      data: long, many, given up, held back, on a bad network
//!  connections  handshakes, keys, ends
//!  addresses    Retry, tickets and early data, clients that move
//! ```
//!
//! Once connected, both sides can do the same, so a test gets a pair of connections without knowing
//! which side is the client, and runs twice.

mod addresses;
mod connections;
mod pair;
mod streams;
mod traffic;
