//! Connection ids: RFC 9000 §5.1.

use std::fmt;

/// A connection id of QUIC version 1 or 2: 0 to 20 bytes (RFC 9000 §17.2).
///
/// A plain value without heap data, so that it can be a key and be part of events.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    len: u8,
    /// Zero from `len` on, so that the derived comparisons are correct.
    bytes: [u8; Self::MAX_LEN],
}

impl ConnectionId {
    /// The longest connection id of versions 1 and 2, in bytes.
    pub const MAX_LEN: usize = 20;

    /// The connection id of length zero.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; Self::MAX_LEN],
    };

    /// A connection id of these bytes; `None` when there are more than 20.
    #[inline]
    #[must_use]
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX_LEN];
        // The default length gets one register move instead of a call to memcpy.
        if let (Ok(id), Some(place)) = (<&[u8; 8]>::try_from(id), bytes.first_chunk_mut()) {
            *place = *id;
        } else {
            bytes.get_mut(..id.len())?.copy_from_slice(id);
        }
        let len = u8::try_from(id.len()).ok()?;
        Some(Self { len, bytes })
    }

    /// The bytes of the connection id.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len()).unwrap_or_default()
    }

    /// Whether it has these bytes.
    #[inline]
    #[must_use]
    pub fn is(&self, id: &[u8]) -> bool {
        // The default length gets one comparison instead of a call to memcmp.
        match (<&[u8; 8]>::try_from(id), self.bytes.first_chunk::<8>()) {
            (Ok(id), Some(own)) if self.len == 8 => id == own,
            _ => self.as_slice() == id,
        }
    }

    /// Its length in bytes, 0 to 20.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether its length is zero.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All 20 bytes, with zeros after the id: for fixed-width copies.
    #[inline]
    pub(crate) const fn padded(&self) -> &[u8; Self::MAX_LEN] {
        &self.bytes
    }
}

impl Default for ConnectionId {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_up_to_20_keeps_its_bytes() {
        let bytes: Vec<u8> = (1..=21).collect();
        for len in 0..=20 {
            let id = ConnectionId::new(&bytes[..len]).unwrap();
            assert_eq!(id.as_slice(), &bytes[..len]);
            assert_eq!((id.len(), id.is_empty()), (len, len == 0));
        }
        assert_eq!(ConnectionId::new(&bytes), None);
    }

    #[test]
    fn ids_that_differ_only_in_length_are_different() {
        let (one, two) = (ConnectionId::new(&[0; 8]), ConnectionId::new(&[0; 9]));
        assert_ne!(one, two);
        assert_eq!(ConnectionId::new(&[]), Some(ConnectionId::default()));
    }

    #[test]
    fn debug_is_hexadecimal() {
        assert_eq!(
            format!("{:?}", ConnectionId::new(&[0x83, 0x0a]).unwrap()),
            "830a"
        );
    }
}
