//! A look into a ClientHello before there is a session (RFC 8446 §4.1.2).
//!
//! A server's transport parameters name the version that it has chosen, rustls needs them when the
//! session is created, and the choice depends on the client's transport parameters (RFC 9368 §2.3).
//! So those are looked up here; malformed input is left for rustls to reject.

/// RFC 9001 §8.2.
const QUIC_TRANSPORT_PARAMETERS: usize = 0x39;
/// RFC 8446 §4.
const CLIENT_HELLO: u8 = 1;

/// The contents at the front of a client's CRYPTO stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientHello<'a> {
    /// The message continues.
    Incomplete,
    /// The message is complete, or can no longer become valid; with the client's encoded transport
    /// parameters if it has any.
    Complete(Option<&'a [u8]>),
    /// The message is complete and requests TLS 1.3's middlebox compatibility, which QUIC forbids
    /// (RFC 9001 §8.4).
    Compatible,
}

impl<'a> ClientHello<'a> {
    /// Parses the bytes of the Initial level's CRYPTO stream so far.
    #[must_use]
    pub fn peek(crypto: &'a [u8]) -> Self {
        let mut bytes = Bytes(crypto);
        match bytes.number(1) {
            None => return Self::Incomplete,
            Some(ty) if ty != usize::from(CLIENT_HELLO) => return Self::Complete(None),
            Some(_) => {}
        }
        match bytes.vector(3) {
            None => Self::Incomplete,
            // RFC 8446 §4.1.2: legacy_version, random, and then the length of legacy_session_id.
            Some(message) if message.get(2 + 32).is_some_and(|len| *len > 0) => Self::Compatible,
            Some(message) => Self::Complete(Bytes(message).transport_parameters()),
        }
    }
}

/// A cursor.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, width: usize) -> Option<usize> {
        let bytes = self.take(width)?;
        Some((bytes.iter()).fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    /// A vector preceded by a length of `width` bytes (RFC 8446 §3.4).
    fn vector(&mut self, width: usize) -> Option<&'a [u8]> {
        let len = self.number(width)?;
        self.take(len)
    }

    fn transport_parameters(&mut self) -> Option<&'a [u8]> {
        // legacy_version and random; legacy_session_id; cipher_suites; legacy_compression_methods.
        self.take(2 + 32)?;
        self.vector(1)?;
        self.vector(2)?;
        self.vector(1)?;
        let mut extensions = Bytes(self.vector(2)?);
        loop {
            let ty = extensions.number(2)?;
            let data = extensions.vector(2)?;
            if ty == QUIC_TRANSPORT_PARAMETERS {
                return Some(data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([9; 32]);
        body.push(0);
        body.extend([0, 2, 0x13, 0x01]);
        body.extend([1, 0]);
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut message = vec![1, 0];
        message.extend((body.len() as u16).to_be_bytes());
        message.extend(body);
        message
    }

    #[test]
    fn the_parameters_are_found_once_the_message_is_complete() {
        let message = hello(&[0, 43, 0, 3, 2, 3, 4, 0, 0x39, 0, 2, 5, 6, 0, 1, 0, 0]);
        for len in 0..message.len() {
            assert_eq!(ClientHello::peek(&message[..len]), ClientHello::Incomplete);
        }
        let complete = ClientHello::Complete(Some(&[5, 6][..]));
        assert_eq!(ClientHello::peek(&message), complete);
        let mut more = message.clone();
        more.extend([1, 2, 3]);
        assert_eq!(ClientHello::peek(&more), complete);
    }

    #[test]
    fn a_malformed_client_hello_has_no_parameters() {
        let none = ClientHello::Complete(None);
        assert_eq!(ClientHello::peek(&[2, 0, 0, 9]), none);
        assert_eq!(ClientHello::peek(&hello(&[0, 43, 0, 3, 2])), none);
        assert_eq!(ClientHello::peek(&hello(&[0, 0x39, 0, 3, 2])), none);
        assert_eq!(ClientHello::peek(&[1, 0, 0, 2, 3, 3]), none);
    }
}
