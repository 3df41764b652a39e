//! Tickets that are valid only while the server's limits are unchanged.

use std::fmt;
use std::sync::Arc;

use rustls::server::StoresServerSessions;

/// A session storage whose entries are found only by a server with the same limits as the server
/// that made them.
///
/// A client that sends early data keeps to remembered limits. A server whose limits are now lower
/// must not accept it (RFC 9000 §7.4.1), and rustls does not check that. So this reports that there
/// is no such session, and the handshake is a full one.
pub(crate) struct Bound {
    pub(crate) inner: Arc<dyn StoresServerSessions>,
    /// The limits, in any encoding.
    pub(crate) limits: Vec<u8>,
}

impl Bound {
    fn open(&self, mut value: Vec<u8>) -> Option<Vec<u8>> {
        if !value.ends_with(&self.limits) {
            return None;
        }
        value.truncate(value.len() - self.limits.len());
        Some(value)
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").finish_non_exhaustive()
    }
}

impl StoresServerSessions for Bound {
    fn put(&self, key: Vec<u8>, mut value: Vec<u8>) -> bool {
        value.extend_from_slice(&self.limits);
        self.inner.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.open(self.inner.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.open(self.inner.take(key)?)
    }

    fn can_cache(&self) -> bool {
        self.inner.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use rustls::server::ServerSessionMemoryCache;

    use super::*;

    #[test]
    fn a_ticket_is_bound_to_its_limits_and_taken_once() {
        let inner: Arc<dyn StoresServerSessions> = ServerSessionMemoryCache::new(8);
        let bound = |limits: &[u8]| Bound {
            inner: Arc::clone(&inner),
            limits: limits.to_vec(),
        };
        for (key, limits, found) in [
            (b"one", &b"limits"[..], Some(b"value".to_vec())),
            (b"two", b"lower!", None),
        ] {
            assert!(bound(b"limits").put(key.to_vec(), b"value".to_vec()));
            assert_eq!(bound(limits).take(key), found);
            assert_eq!(
                bound(b"limits").take(key),
                None,
                "a ticket can be taken once"
            );
        }
    }
}
