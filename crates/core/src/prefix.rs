//! Source prefixes: which addresses count as one source, and how many connections each has.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// The leading bits of an address, which all addresses of a network have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix([u8; 16]);

impl Prefix {
    /// The prefix of `address`, which has `ipv4_bits` (up to 32) or `ipv6_bits` (up to 128). An
    /// IPv4-mapped IPv6 address is an IPv4 address.
    #[must_use]
    pub fn of(address: IpAddr, ipv4_bits: u8, ipv6_bits: u8) -> Self {
        let (address, bits) = match address.to_canonical() {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96 + u32::from(ipv4_bits)),
            IpAddr::V6(ip) => (ip, u32::from(ipv6_bits)),
        };
        let rest = u128::MAX.checked_shr(bits).unwrap_or(0);
        Self((address.to_bits() & !rest).to_be_bytes())
    }

    /// Its bits as an IPv6 address, followed by zeros; IPv4 prefixes are mapped.
    #[must_use]
    pub const fn octets(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = std::net::Ipv6Addr::from(self.0);
        fmt::Display::fmt(&IpAddr::from(address).to_canonical(), f)
    }
}

/// Connections from clients of a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixConnections {
    /// With an address known to be the client's.
    pub validated: usize,
    /// In their handshake, from addresses that may be forged.
    pub unvalidated: usize,
}

/// Counts connections by source prefix. The workers of an endpoint share one, because a client's
/// connections are spread over them.
pub trait PrefixCounts: fmt::Debug + Send {
    /// The connections of a prefix.
    fn get(&self, prefix: Prefix) -> PrefixConnections;

    /// Adds a connection if there is room for one more within `limit`; returns whether it did. One
    /// with a validated address counts only others like it, one without counts all.
    fn add(&mut self, prefix: Prefix, validated: bool, limit: usize) -> bool;

    /// Removes a connection that was added.
    fn remove(&mut self, prefix: Prefix, validated: bool);
}

/// In-memory counts: an entry for each prefix that has connections.
#[derive(Debug, Default)]
pub struct PrefixTable(HashMap<Prefix, PrefixConnections>);

impl PrefixTable {
    /// Number of prefixes that have connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no prefix has a connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PrefixCounts for PrefixTable {
    fn get(&self, prefix: Prefix) -> PrefixConnections {
        self.0.get(&prefix).copied().unwrap_or_default()
    }

    fn add(&mut self, prefix: Prefix, validated: bool, limit: usize) -> bool {
        let now = self.get(prefix);
        // Forged addresses must not keep out clients whose addresses are validated.
        let taken = if validated {
            now.validated
        } else {
            now.validated + now.unvalidated
        };
        if taken >= limit {
            return false;
        }
        let entry = self.0.entry(prefix).or_default();
        if validated {
            entry.validated += 1;
        } else {
            entry.unvalidated += 1;
        }
        true
    }

    fn remove(&mut self, prefix: Prefix, validated: bool) {
        let Some(entry) = self.0.get_mut(&prefix) else {
            return;
        };
        let count = if validated {
            &mut entry.validated
        } else {
            &mut entry.unvalidated
        };
        *count = count.saturating_sub(1);
        if *entry == PrefixConnections::default() {
            self.0.remove(&prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(address: &str, ipv4_bits: u8, ipv6_bits: u8) -> Prefix {
        Prefix::of(address.parse().unwrap(), ipv4_bits, ipv6_bits)
    }

    #[test]
    fn addresses_of_one_network_have_one_prefix() {
        for (one, other, bits, same) in [
            ("192.0.2.1", "192.0.2.1", (32, 56), true),
            ("192.0.2.1", "192.0.2.2", (32, 56), false),
            ("192.0.2.1", "192.0.2.2", (24, 56), true),
            ("192.0.2.1", "::ffff:192.0.2.1", (32, 56), true),
            ("2001:db8::1", "2001:db8:0:ff::1", (32, 56), true),
            ("2001:db8::1", "2001:db8:0:100::1", (32, 56), false),
            ("2001:db8::1", "2001:db8::2", (32, 128), false),
            ("2001:db8::1", "8::", (32, 0), true),
            ("192.0.2.1", "198.51.100.1", (0, 0), true),
            ("192.0.2.1", "2001:db8::1", (0, 0), false),
        ] {
            let [one, other] = [one, other].map(|address| prefix(address, bits.0, bits.1));
            assert_eq!(one == other, same, "{one:?} {other:?} {bits:?}");
        }
    }

    #[test]
    fn forged_addresses_do_not_use_up_the_quota_of_validated_ones() {
        let (mut table, prefix) = (PrefixTable::default(), prefix("192.0.2.1", 32, 56));
        assert!(table.add(prefix, false, 2) && table.add(prefix, false, 2));
        assert!(!table.add(prefix, false, 2));
        assert!(table.add(prefix, true, 2) && table.add(prefix, true, 2));
        assert!(!table.add(prefix, true, 2));
        for validated in [false, false, true, true] {
            assert!(!table.is_empty());
            table.remove(prefix, validated);
        }
        assert!(table.is_empty(), "no entry is left behind");
    }
}
