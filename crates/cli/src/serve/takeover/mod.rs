//! Upgrades: a server takes over the ports of the running one, and waits for its own successor.

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(not(target_os = "linux"))]
pub(crate) use absent::{Inherited, Successor};
#[cfg(target_os = "linux")]
pub(crate) use linux::{Inherited, Successor};
