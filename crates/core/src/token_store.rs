//! Where a client keeps the tokens of NEW_TOKEN frames for later connections (RFC 9000 §8.1.3).

use std::collections::VecDeque;
use std::fmt;

/// Tokens in all.
const MAX_TOKENS: usize = 256;
/// Tokens of one server.
const MAX_OF_SERVER: usize = 4;
/// Bytes of a token that is kept; longer ones leave too little of a first packet.
pub(crate) const MAX_TOKEN_LEN: usize = 512;

/// Keeps a client's tokens. A token is used for one connection at most, or who sees both can link
/// them (RFC 9000 §8.1.3), and for the version alone that it was issued in (RFC 9369 §5).
pub trait TokenStore: fmt::Debug + Send {
    /// Keeps a token of `server_name` for connections that begin with `version`.
    fn insert(&mut self, server_name: &str, version: u32, token: &[u8]);

    /// Takes a token out.
    fn take(&mut self, server_name: &str, version: u32) -> Option<Vec<u8>>;
}

#[derive(Debug)]
struct Entry {
    server_name: Box<str>,
    version: u32,
    token: Box<[u8]>,
}

/// The usual store: in memory, at most 256 tokens of at most 512 bytes, at most 4 of one server;
/// the oldest go first.
#[derive(Debug, Default)]
pub struct MemoryTokenStore {
    /// The newest last.
    entries: VecDeque<Entry>,
}

impl TokenStore for MemoryTokenStore {
    fn insert(&mut self, server_name: &str, version: u32, token: &[u8]) {
        if token.is_empty() || token.len() > MAX_TOKEN_LEN {
            return;
        }
        let alike = |entry: &Entry| *entry.server_name == *server_name;
        if self.entries.iter().filter(|e| alike(e)).count() == MAX_OF_SERVER
            && let Some(oldest) = self.entries.iter().position(alike)
        {
            self.entries.remove(oldest);
        }
        if self.entries.len() == MAX_TOKENS {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            server_name: server_name.into(),
            version,
            token: token.into(),
        });
    }

    fn take(&mut self, server_name: &str, version: u32) -> Option<Vec<u8>> {
        let newest = self
            .entries
            .iter()
            .rposition(|e| *e.server_name == *server_name && e.version == version)?;
        self.entries.remove(newest).map(|e| e.token.into_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_each_token_once_and_to_its_server_and_version_only() {
        let mut store = MemoryTokenStore::default();
        store.insert("a", 1, b"one");
        store.insert("a", 1, b"two");
        store.insert("a", 2, b"other");
        assert_eq!(store.take("b", 1), None);
        assert_eq!(store.take("a", 1).unwrap(), b"two");
        assert_eq!(store.take("a", 1).unwrap(), b"one");
        assert_eq!(store.take("a", 1), None);
        assert_eq!(store.take("a", 2).unwrap(), b"other");
    }

    #[test]
    fn is_bounded() {
        let mut store = MemoryTokenStore::default();
        for n in 0..100u8 {
            store.insert("greedy", 1, &[n; 10]);
        }
        assert_eq!(store.entries.len(), MAX_OF_SERVER);
        for n in 0..1000 {
            store.insert(&n.to_string(), 1, b"token");
        }
        assert_eq!(store.entries.len(), MAX_TOKENS);
        assert_eq!(store.take("0", 1), None);
        store.insert("long", 1, &[0; MAX_TOKEN_LEN + 1]);
        assert_eq!(store.take("long", 1), None);
    }
}
