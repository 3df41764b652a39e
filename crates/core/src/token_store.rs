//! Where a client keeps the tokens from NEW_TOKEN frames for later connections (RFC 9000 §8.1.3).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of tokens in total.
const MAX_TOKENS: usize = 256;
/// Maximum number of tokens of one server.
const MAX_OF_SERVER: usize = 4;
/// Longest token that is kept, in bytes; a longer one leaves too little room in a first packet.
pub(crate) const MAX_TOKEN_LEN: usize = 512;

/// Keeps the tokens that servers give a client in NEW_TOKEN frames (RFC 9000 §8.1.3). With one, the
/// client's next connection to that server begins with a validated address: the server need not
/// validate it with a Retry, nor limit itself to three times the bytes that it has received (§8.1).
///
/// A token must be used for at most one connection, or an observer can link two connections (RFC
/// 9000 §8.1.3), and only for the version in which it was issued (RFC 9369 §5). Tokens come from
/// servers, so a store must bound how many it keeps; each is at most 512 bytes long.
///
/// The methods are called on worker threads, which serve other connections too: they must return
/// quickly. If one panics, the token is lost, and the connection goes on without it.
///
/// ```
/// use squall_core::{MemoryTokenStore, TokenStore};
///
/// /// Keeps one server's tokens apart from the others', say in a file.
/// #[derive(Debug, Default)]
/// struct OfOneServer(MemoryTokenStore);
///
/// impl TokenStore for OfOneServer {
///     fn insert(&self, server_name: &str, version: u32, token: &[u8]) {
///         if server_name == "example.com" {
///             self.0.insert(server_name, version, token);
///         }
///     }
///
///     fn take(&self, server_name: &str, version: u32) -> Option<Vec<u8>> {
///         self.0.take(server_name, version)
///     }
/// }
/// ```
pub trait TokenStore: fmt::Debug + Send + Sync {
    /// Keeps a token of `server_name` for connections that start with `version`. A server may
    /// repeat a token after a loss: the store discards one that it has (RFC 9000 §19.7).
    fn insert(&self, server_name: &str, version: u32, token: &[u8]);

    /// Removes a token and returns it. One of more than 512 bytes is not used.
    fn take(&self, server_name: &str, version: u32) -> Option<Vec<u8>>;
}

#[derive(Debug)]
struct Entry {
    server_name: Box<str>,
    version: u32,
    token: Box<[u8]>,
}

/// The default store: in memory, at most 256 tokens of at most 512 bytes, at most 4 of one server;
/// the oldest are dropped first.
#[derive(Debug, Default)]
pub struct MemoryTokenStore {
    /// The newest last.
    entries: Mutex<VecDeque<Entry>>,
}

impl MemoryTokenStore {
    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenStore for MemoryTokenStore {
    fn insert(&self, server_name: &str, version: u32, token: &[u8]) {
        if token.is_empty() || token.len() > MAX_TOKEN_LEN {
            return;
        }
        let mut entries = self.entries();
        let alike = |entry: &Entry| *entry.server_name == *server_name;
        if entries.iter().any(|e| alike(e) && *e.token == *token) {
            return;
        }
        if entries.iter().filter(|e| alike(e)).count() == MAX_OF_SERVER
            && let Some(oldest) = entries.iter().position(alike)
        {
            entries.remove(oldest);
        }
        if entries.len() == MAX_TOKENS {
            entries.pop_front();
        }
        entries.push_back(Entry {
            server_name: server_name.into(),
            version,
            token: token.into(),
        });
    }

    fn take(&self, server_name: &str, version: u32) -> Option<Vec<u8>> {
        let mut entries = self.entries();
        let newest = entries
            .iter()
            .rposition(|e| *e.server_name == *server_name && e.version == version)?;
        entries.remove(newest).map(|e| e.token.into_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_returned_once_and_only_for_its_server_and_version() {
        let store = MemoryTokenStore::default();
        store.insert("a", 1, b"one");
        store.insert("a", 1, b"two");
        // RFC 9000 §19.7: a server repeats one that it takes for lost.
        store.insert("a", 1, b"one");
        store.insert("a", 2, b"other");
        assert_eq!(store.take("b", 1), None);
        assert_eq!(store.take("a", 1).unwrap(), b"two");
        assert_eq!(store.take("a", 1).unwrap(), b"one");
        assert_eq!(store.take("a", 1), None);
        assert_eq!(store.take("a", 2).unwrap(), b"other");
    }

    #[test]
    fn the_store_is_bounded() {
        let store = MemoryTokenStore::default();
        for n in 0..100u8 {
            store.insert("greedy", 1, &[n; 10]);
        }
        assert_eq!(store.entries().len(), MAX_OF_SERVER);
        for n in 0..1000 {
            store.insert(&n.to_string(), 1, b"token");
        }
        assert_eq!(store.entries().len(), MAX_TOKENS);
        assert_eq!(store.take("0", 1), None);
        store.insert("long", 1, &[0; MAX_TOKEN_LEN + 1]);
        assert_eq!(store.take("long", 1), None);
    }
}
