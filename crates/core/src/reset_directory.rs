//! Lets workers that share a port find the owner of a stateless reset (RFC 9000 §10.3).

use std::fmt;

/// The reset tokens that peers gave to the connections of all workers of a port. A reset looks like
/// a packet to an unknown connection id, so steering by ids cannot know where it belongs.
pub trait ResetTokenDirectory: fmt::Debug + Send {
    /// A connection of this worker received the token.
    fn insert(&mut self, token: [u8; 16], worker: u8);

    /// The token is no longer valid.
    fn remove(&mut self, token: &[u8; 16]);

    /// The worker whose connection has the token.
    fn worker(&self, token: &[u8; 16]) -> Option<u8>;
}
