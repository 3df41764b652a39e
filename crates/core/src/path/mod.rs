//! The network path of a connection: address, validation, amplification limit, size.

pub(crate) mod cid;
pub(crate) mod mtu;

use squall_wire::Path;

use mtu::Mtu;

/// RFC 9000 §8.1: bytes sent for each byte received before the peer's address is validated.
const AMPLIFICATION: u64 = 3;

/// State of the path.
#[derive(Debug)]
pub(crate) struct PathState {
    /// Addresses of both ends.
    pub(crate) path: Path,
    /// Whether the peer has shown that it receives what we send there.
    pub(crate) validated: bool,
    received: u64,
    sent: u64,
    /// What size passes.
    pub(crate) mtu: Mtu,
}

impl PathState {
    /// A path that is `validated` (a client's) or not (a server's).
    #[must_use]
    pub(crate) fn new(path: Path, validated: bool, max_udp_payload: u16) -> Self {
        Self {
            path,
            validated,
            received: 0,
            sent: 0,
            mtu: Mtu::new(max_udp_payload),
        }
    }

    /// Credits received bytes; discarded datagrams count too (RFC 9000 §8.1).
    pub(crate) fn on_received(&mut self, bytes: usize) {
        self.received = self.received.saturating_add(bytes as u64);
    }

    /// Notes sent bytes.
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes as u64);
    }

    /// Bytes that may be sent now as far as the amplification limit goes.
    #[must_use]
    pub(crate) fn allowance(&self) -> u64 {
        if self.validated {
            u64::MAX
        } else {
            self.received
                .saturating_mul(AMPLIFICATION)
                .saturating_sub(self.sent)
        }
    }
}
