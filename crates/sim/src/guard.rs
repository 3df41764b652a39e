//! Rules for every datagram of a connection, checked from outside: a violation ends the run.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use squall_wire::{FixedBit, Header, LongType, Path, Side, Transmit, header, is_long};

/// RFC 9000 §8.1.
const AMPLIFICATION: u64 = 3;
/// RFC 9000 §14.1.
const MIN_INITIAL: usize = 1200;

/// Watches one connection of one side.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    side: Side,
    max_payload: usize,
    /// The peer's address in the handshake.
    home: SocketAddr,
    /// One per address of the peer.
    accounts: BTreeMap<SocketAddr, Account>,
    /// For each connection id, the path on which the client used it, and whether the system chose
    /// the local address.
    ids: BTreeMap<Vec<u8>, (Path, bool)>,
    /// The local address that the system chooses.
    system_source: Option<IpAddr>,
}

/// Traffic to and from one address of the peer.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    received: u64,
    sent: u64,
    /// Whether the peer was at that address when something sent to it arrived: it may have read a
    /// challenge.
    reached: bool,
    /// Whether the peer receives what is sent to its address: a Handshake packet has arrived, or
    /// anything after something was read there, as it may be a response.
    validated: bool,
}

impl Guard {
    pub(crate) fn new(side: Side, max_payload: u16, home: SocketAddr) -> Self {
        Self {
            side,
            max_payload: max_payload.into(),
            home,
            accounts: BTreeMap::new(),
            ids: BTreeMap::new(),
            system_source: None,
        }
    }

    /// From now on the system sends from this address, unless another is requested.
    pub(crate) fn set_system_source(&mut self, source: Option<IpAddr>) {
        self.system_source = source;
    }

    /// RFC 9000 §9.5: an id is used on one path only. A server may not know that its client was
    /// moved, and a client may not know that the system sends from another of its addresses.
    fn check_id(&mut self, path: Path, bytes: &[u8], cid_len: usize) -> Result<(), String> {
        let Some(id) = header::destination(bytes, cid_len) else {
            return Err("a datagram without a destination".to_owned());
        };
        if self.side == Side::Server || is_long(bytes[0]) {
            return Ok(());
        }
        let by_system = path.local.is_none();
        let path = Path {
            local: path.local.or(self.system_source),
            ..path
        };
        let (known, unaware) = *self.ids.entry(id.to_vec()).or_insert((path, by_system));
        if known != path && !(by_system && unaware && known.remote == path.remote) {
            return Err(format!(
                "the connection id of {known:?} is used on {path:?} (RFC 9000 §9.5)"
            ));
        }
        Ok(())
    }

    /// A token has proved the peer's address.
    pub(crate) fn on_validated(&mut self) {
        self.accounts.entry(self.home).or_default().validated = true;
    }

    /// Records the datagrams of a run.
    pub(crate) fn on_received(&mut self, from: SocketAddr, bytes: &[u8], segment_size: u16) {
        for account in self.accounts.values_mut() {
            account.validated |= account.reached;
        }
        let account = self.accounts.entry(from).or_default();
        account.received += bytes.len() as u64;
        account.validated |= from == self.home
            && bytes
                .chunks(segment_size.max(1).into())
                .any(|datagram| types(datagram).any(|ty| ty == LongType::Handshake));
    }

    /// Records that the peer was at `address` when something arrived there.
    pub(crate) fn on_reached(&mut self, address: SocketAddr) {
        if let Some(account) = self
            .accounts
            .get_mut(&address)
            .filter(|_| address != self.home)
        {
            account.reached = true;
        }
    }

    /// Checks the datagrams that the connection sends.
    pub(crate) fn on_sent(
        &mut self,
        transmit: &Transmit,
        bytes: &[u8],
        cid_len: usize,
    ) -> Result<(), String> {
        self.on_sent_to_any_id(transmit, bytes)?;
        self.check_id(transmit.path, bytes, cid_len)
    }

    /// As [`on_sent`](Self::on_sent), for a peer that may issue ids of any length, and repeat one.
    pub(crate) fn on_sent_to_any_id(
        &mut self,
        transmit: &Transmit,
        bytes: &[u8],
    ) -> Result<(), String> {
        let account = self.accounts.entry(transmit.path.remote).or_default();
        account.sent += bytes.len() as u64;
        let Account {
            received,
            sent,
            validated,
            ..
        } = *account;
        if self.side == Side::Server && !validated && sent > AMPLIFICATION * received {
            return Err(format!(
                "{sent} bytes sent to {} for {received} received before the address is validated (RFC 9000 §8.1, §9.3)",
                transmit.path.remote
            ));
        }
        if bytes.is_empty() || usize::from(transmit.segment_size) > self.max_payload {
            return Err(format!(
                "datagrams of {} bytes, {} in all, where {} are allowed",
                transmit.segment_size,
                bytes.len(),
                self.max_payload
            ));
        }
        for datagram in bytes.chunks(transmit.segment_size.into()) {
            let initial = types(datagram).any(|ty| ty == LongType::Initial);
            if initial && self.side == Side::Client && datagram.len() < MIN_INITIAL {
                return Err(format!(
                    "a client's Initial in a datagram of {} bytes (RFC 9000 §14.1)",
                    datagram.len()
                ));
            }
        }
        Ok(())
    }
}

/// The types of the packets with long headers at the front of a datagram.
fn types(mut datagram: &[u8]) -> impl Iterator<Item = LongType> + '_ {
    std::iter::from_fn(move || {
        if !is_long(*datagram.first()?) {
            return None;
        }
        // The id length matters only for short headers, which play no part here.
        let read = header::parse_with(datagram, 0, FixedBit::Greased);
        let Ok(Header::Long { ty, len, .. }) = read else {
            return None;
        };
        datagram = datagram.get(len..)?;
        Some(ty)
    })
}

#[cfg(test)]
mod tests {
    use squall_wire::Ecn;

    use super::*;

    fn home() -> SocketAddr {
        ([10, 0, 0, 1], 1).into()
    }

    fn transmit(segment_size: u16, len: usize) -> Transmit {
        let path = Path {
            remote: home(),
            local: None,
        };
        Transmit {
            path,
            ecn: Ecn::NotEct,
            segment_size,
            len,
        }
    }

    /// A datagram with one long header of this type.
    fn datagram(ty: u8, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        bytes[..5].copy_from_slice(&[0xc0 | ty << 4, 0, 0, 0, 1]);
        // No ids; an Initial has an empty token before the Length field.
        let at = 7 + usize::from(ty == 0);
        bytes[at..at + 2].copy_from_slice(&(0x4000 | (size - at - 2) as u16).to_be_bytes());
        bytes
    }

    // test: RFC 9000 §8.1
    #[test]
    fn the_amplification_limit_ends_with_a_handshake_packet() {
        let mut guard = Guard::new(Side::Server, 1472, home());
        guard.on_received(home(), &datagram(0, 1200), 1200);
        let bytes = vec![0; 1200];
        for _ in 0..3 {
            guard.on_sent(&transmit(1200, 1200), &bytes, 8).unwrap();
        }
        // The smallest datagram that has a destination.
        let one_more = |guard: &Guard| guard.clone().on_sent(&transmit(9, 9), &[0x40; 9], 8);
        let refused = one_more(&guard).unwrap_err();
        assert!(refused.contains("RFC 9000 §8.1"), "{refused}");
        guard.on_received(home(), &datagram(2, 100), 100);
        guard.on_sent(&transmit(1200, 1200), &bytes, 8).unwrap();
        one_more(&guard).unwrap();
    }

    // test: RFC 9000 §9.5
    #[test]
    fn an_id_on_a_second_path_is_a_violation() {
        let mut guard = Guard::new(Side::Client, 1472, home());
        let mut there = transmit(30, 30);
        guard.on_sent(&there, &[0x41; 30], 8).unwrap();
        there.path.local = Some([10, 0, 0, 7].into());
        guard.on_sent(&there, &[0x41; 30], 8).unwrap_err();
        guard.on_sent(&there, &[0x42; 30], 8).unwrap();
    }

    // test: RFC 9000 §9.3.1
    #[test]
    fn the_amplification_limit_of_a_new_address_ends_once_the_peer_read_something_there() {
        let mut guard = Guard::new(Side::Server, 1472, home());
        guard.on_received(home(), &datagram(2, 100), 100);
        let other = SocketAddr::from(([10, 0, 0, 1], 2));
        // Not even a Handshake packet proves anything there.
        guard.on_received(other, &datagram(2, 100), 100);
        let mut there = transmit(300, 300);
        there.path.remote = other;
        guard.on_sent(&there, &[0; 300], 8).unwrap();
        guard.clone().on_sent(&there, &[0; 300], 8).unwrap_err();
        guard.on_reached(other);
        guard.clone().on_sent(&there, &[0; 300], 8).unwrap_err();
        guard.on_received(home(), &[0x40; 30], 30);
        guard.on_sent(&there, &[0; 300], 8).unwrap();
    }

    // test: RFC 9000 §14.1
    #[test]
    fn datagram_sizes_are_checked() {
        let mut guard = Guard::new(Side::Client, 1300, home());
        let small = datagram(0, 1199);
        guard.on_sent(&transmit(1199, 1199), &small, 8).unwrap_err();
        let large = datagram(0, 1300);
        guard.on_sent(&transmit(1300, 1300), &large, 8).unwrap();
        guard
            .on_sent(&transmit(1301, 1301), &[0; 1301], 8)
            .unwrap_err();
        guard.on_sent(&transmit(1200, 0), &[], 8).unwrap_err();
    }
}
