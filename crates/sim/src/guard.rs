//! What every datagram of a connection has to obey, seen from outside: a violation ends the run.

use squall_wire::{Header, LongType, Side, Transmit, header, is_long};

/// RFC 9000 §8.1.
const AMPLIFICATION: u64 = 3;
/// RFC 9000 §14.1.
const MIN_INITIAL: usize = 1200;

/// Watches one connection of one side.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    side: Side,
    max_payload: usize,
    received: u64,
    sent: u64,
    /// Whether a Handshake packet has arrived: the peer receives what is sent to its address.
    validated: bool,
}

impl Guard {
    pub(crate) fn new(side: Side, max_payload: u16) -> Self {
        Self {
            side,
            max_payload: max_payload.into(),
            received: 0,
            sent: 0,
            validated: side == Side::Client,
        }
    }

    /// A token has shown that the peer's address is its own.
    pub(crate) fn on_validated(&mut self) {
        self.validated = true;
    }

    /// Notes the datagrams of a run from the peer's address.
    pub(crate) fn on_received(&mut self, bytes: &[u8], segment_size: u16, cid_len: usize) {
        self.received += bytes.len() as u64;
        self.validated |= bytes
            .chunks(segment_size.max(1).into())
            .any(|datagram| types(datagram, cid_len).any(|ty| ty == LongType::Handshake));
    }

    /// Checks the datagrams that the connection sends.
    pub(crate) fn on_sent(
        &mut self,
        transmit: &Transmit,
        bytes: &[u8],
        cid_len: usize,
    ) -> Result<(), String> {
        self.sent += bytes.len() as u64;
        if !self.validated && self.sent > AMPLIFICATION * self.received {
            let (sent, received) = (self.sent, self.received);
            return Err(format!(
                "{sent} bytes sent for {received} received before the address is validated (RFC 9000 §8.1)"
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
            let initial = types(datagram, cid_len).any(|ty| ty == LongType::Initial);
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
fn types(mut datagram: &[u8], cid_len: usize) -> impl Iterator<Item = LongType> + '_ {
    std::iter::from_fn(move || {
        if !is_long(*datagram.first()?) {
            return None;
        }
        let Ok(Header::Long { ty, len, .. }) = header::parse(datagram, cid_len) else {
            return None;
        };
        datagram = datagram.get(len..)?;
        Some(ty)
    })
}

#[cfg(test)]
mod tests {
    use squall_wire::{Ecn, Path};

    use super::*;

    fn transmit(segment_size: u16, len: usize) -> Transmit {
        let path = Path {
            remote: ([10, 0, 0, 1], 1).into(),
            local: None,
        };
        Transmit {
            path,
            ecn: Ecn::NotEct,
            segment_size,
            len,
        }
    }

    /// A datagram with one long header of that type.
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
    fn three_bytes_for_one_until_a_handshake_packet_comes() {
        let mut guard = Guard::new(Side::Server, 1472);
        guard.on_received(&datagram(0, 1200), 1200, 8);
        let bytes = vec![0; 1200];
        for _ in 0..3 {
            guard.on_sent(&transmit(1200, 1200), &bytes, 8).unwrap();
        }
        let mut over = guard.clone();
        over.on_sent(&transmit(1, 1), &bytes[..1], 8).unwrap_err();
        guard.on_received(&datagram(2, 100), 100, 8);
        guard.on_sent(&transmit(1200, 1200), &bytes, 8).unwrap();
    }

    // test: RFC 9000 §14.1
    #[test]
    fn sizes() {
        let mut guard = Guard::new(Side::Client, 1300);
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
