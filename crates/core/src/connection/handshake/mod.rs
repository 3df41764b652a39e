//! The decisions of the handshake, on plain data: `establish` applies them to the connection.

pub(super) mod early;
pub(super) mod keyring;
pub(super) mod parameters;
pub(super) mod tls;
pub(super) mod version;
pub(super) mod zero_rtt;
