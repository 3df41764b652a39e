//! The network path of a connection: address, validation, amplification limit, size.

pub(crate) mod cid;
pub(crate) mod mtu;

use squall_wire::Path;

use crate::config::MIN_UDP_PAYLOAD;
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
    ///
    /// A rest that no full datagram fits in counts as nothing: an Initial that asks for an acknowledgement needs one
    /// (RFC 9000 §14.1), and a probe timer that runs for what cannot be sent would be due without end.
    #[must_use]
    pub(crate) fn allowance(&self) -> u64 {
        if self.validated {
            return u64::MAX;
        }
        let allowed = self.received.saturating_mul(AMPLIFICATION);
        match allowed.saturating_sub(self.sent) {
            rest if rest < u64::from(MIN_UDP_PAYLOAD) => 0,
            rest => rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 9000 §8.1, §14.1
    #[test]
    fn three_times_what_was_received_in_full_datagrams() {
        let path = Path {
            remote: ([192, 0, 2, 1], 1).into(),
            local: None,
        };
        let mut state = PathState::new(path, false, 1472);
        assert_eq!(state.allowance(), 0);
        state.on_received(1200);
        assert_eq!(state.allowance(), 3600);
        state.on_sent(2400);
        assert_eq!(state.allowance(), 1200);
        state.on_sent(1);
        assert_eq!(state.allowance(), 0, "1,199 bytes are no datagram");
        state.on_received(1);
        assert_eq!(state.allowance(), 1202);
        state.validated = true;
        assert_eq!(state.allowance(), u64::MAX);
    }
}
