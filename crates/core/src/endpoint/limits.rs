//! Limits on the connections of a source prefix, and on the memory of all connections.
//!
//! ```text
//!                     below the share       above it
//! address validated   let in                CONNECTION_REFUSED
//! not validated       let in                Retry: a real client comes again with a token
//! ```
//! Anything that may come from a forged address is never refused: otherwise, one network could lock
//! another out.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::refusal::RefusalReason;
use super::{ConnectionHandle, Endpoint};
use crate::prefix::Prefix;

/// Number of connections of all endpoints that share a limit: the workers of a port. Clones share
/// the count.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCount(Arc<AtomicUsize>);

impl ConnectionCount {
    /// The number of connections.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds a connection if there are fewer than `limit`. Returns whether it did.
    pub(super) fn add(&self, limit: usize) -> bool {
        let one_more = |count| (count < limit).then_some(count + 1);
        (self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more))
        .is_ok()
    }

    /// Removes connections that were added.
    pub(super) fn remove(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }
}

/// The fate of a new attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Granted,
    /// The client must first validate its address: a Retry.
    NotYet,
    Refused(RefusalReason),
}

impl Admission {
    fn denied(validated: bool, why: RefusalReason) -> Self {
        if validated {
            Self::Refused(why)
        } else {
            Self::NotYet
        }
    }
}

impl Endpoint {
    /// Whether all endpoints together have reached their connection limit.
    pub(super) fn is_full(&self) -> bool {
        self.total.get() >= self.config.max_connections
    }

    /// Whether the limits of prefixes and memory let an attempt in.
    pub(super) fn admit_to_limits(&mut self, address: IpAddr, validated: bool) -> Admission {
        if let Some(limit) = self.config.max_connections_per_prefix {
            let now = self.prefixes.get(self.prefix(address));
            let taken = if validated {
                now.validated
            } else {
                now.validated + now.unvalidated
            };
            if taken >= limit {
                return self.deny_prefix(validated);
            }
        }
        if let Some(limit) = self.config.max_memory {
            // Clients have to validate their addresses while there is still room for those that do.
            let retry_from = limit - limit / 4;
            if validated && self.memory >= limit {
                self.counts.memory_refusals += 1;
                return Admission::denied(validated, RefusalReason::Memory);
            }
            if !validated && self.memory >= retry_from {
                self.counts.memory_retries += 1;
                return Admission::denied(validated, RefusalReason::Memory);
            }
        }
        Admission::Granted
    }

    fn deny_prefix(&mut self, validated: bool) -> Admission {
        if validated {
            self.counts.prefix_refusals += 1;
        } else {
            self.counts.prefix_retries += 1;
        }
        Admission::denied(validated, RefusalReason::Prefix)
    }

    fn prefix(&self, address: IpAddr) -> Prefix {
        let (ipv4_bits, ipv6_bits) = (self.config.ipv4_prefix_bits, self.config.ipv6_prefix_bits);
        Prefix::of(address, ipv4_bits, ipv6_bits)
    }

    /// Counts a connection that is about to exist. Other attempts may have been admitted since this
    /// one was, so its prefix's share may be used up by now.
    pub(super) fn take_seat(
        &mut self,
        address: IpAddr,
        validated: bool,
    ) -> Result<Option<(Prefix, bool)>, Admission> {
        let Some(limit) = self.config.max_connections_per_prefix else {
            return Ok(None);
        };
        let prefix = self.prefix(address);
        if self.prefixes.add(prefix, validated, limit) {
            Ok(Some((prefix, validated)))
        } else {
            Err(self.deny_prefix(validated))
        }
    }

    /// The address of a connection's client is validated. `false` if its handshake counts from now
    /// on and its prefix has reached its limit. A connection that has migrated may always stay.
    pub(super) fn reseat(&mut self, handle: ConnectionHandle, address: IpAddr) -> bool {
        let Some(limit) = self.config.max_connections_per_prefix else {
            return true;
        };
        let prefix = self.prefix(address);
        let Some(slot) = self.slots.get_mut(handle.0) else {
            return true;
        };
        let (limit, before) = match slot.seat {
            Some(seat) if seat == (prefix, true) => return true,
            Some((_, true)) | None => (usize::MAX, slot.seat.take()),
            Some((_, false)) => (limit, slot.seat.take()),
        };
        self.leave(before);
        let stays = self.prefixes.add(prefix, true, limit);
        if !stays {
            self.counts.prefix_refusals += 1;
        } else if let Some(slot) = self.slots.get_mut(handle.0) {
            slot.seat = Some((prefix, true));
        }
        stays
    }

    /// A connection is no longer counted.
    pub(super) fn leave(&mut self, seat: Option<(Prefix, bool)>) {
        if let Some((prefix, validated)) = seat {
            self.prefixes.remove(prefix, validated);
        }
    }
}
