//! Where workers that share a port find out whose a stateless reset is (RFC 9000 §10.3).

use std::fmt;

/// The reset tokens that peers gave to the connections of all workers of a port. A reset looks like
/// a packet to a connection id that nobody has: what steers datagrams to workers by their ids
/// cannot know where it belongs.
pub trait ResetTokenDirectory: fmt::Debug + Send {
    /// A connection of this worker was given the token.
    fn insert(&mut self, token: [u8; 16], worker: u8);

    /// The token is void.
    fn remove(&mut self, token: &[u8; 16]);

    /// The worker whose connection has the token.
    fn worker(&self, token: &[u8; 16]) -> Option<u8>;
}
