//! The parts of a connection. None of them knows the whole: they take plain data and each other.

pub(super) mod clock;
pub(super) mod duties;
pub(super) mod endpoint;
pub(super) mod handshake;
pub(super) mod log;
pub(super) mod paths;
pub(super) mod spaces;
