//! Settings of an endpoint, and which worker an id names.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use squall_wire::FixedBit;

use super::connection_ids::ConnectionIdGenerator;

/// Settings of an endpoint, shared by all connections on a socket.
#[derive(Clone)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// How connection ids are generated.
    pub cid_generator: ConnectionIdGenerator,
    /// Index of this worker, below `workers`. Every id names it, so that datagrams are steered to
    /// the worker of their connection; see [`worker_of`].
    pub worker_index: u8,
    /// Number of workers that share the port, including this one, each with its own endpoint. A
    /// datagram that belongs to no connection here and whose destination id names another worker is
    /// routed to it ([`Route::Worker`](crate::Route::Worker)). 1: there are no others.
    pub workers: u8,
    /// Key of the stateless-reset tokens (RFC 9000 §10.3.2).
    pub reset_key: [u8; 32],
    /// Maximum number of connections, including handshakes and those of other endpoints that share
    /// the [count](crate::ConnectionCount); further Initials are answered with CONNECTION_REFUSED.
    pub max_connections: usize,
    /// Key of the address-validation tokens (RFC 9000 §8.1.1); workers and hosts with the same key
    /// accept each other's tokens.
    pub token_key: [u8; 32],
    /// Time within which a client must return with the token of a Retry.
    pub retry_token_lifetime: Duration,
    /// Lifetime of the token of a NEW_TOKEN frame. Each token is valid once (RFC 9000 §8.1.4): the
    /// endpoint records spent tokens in up to 4 MB per day of lifetime, see
    /// [`SpentTokens`](crate::SpentTokens).
    pub new_token_lifetime: Duration,
    /// The wall-clock time at `Time::ZERO`, since the Unix epoch; tokens carry the time. NEW_TOKEN
    /// tokens issued before that count as spent, because the endpoint does not know what was spent
    /// before it was created.
    pub unix_time_at_zero: Duration,
    /// Number of attempts in progress (offered, or in their handshake) from which on an Initial
    /// without a valid token is answered with a Retry, which costs no state (RFC 9000 §8.1.2).
    /// Zero: always.
    pub retry_from: usize,
    /// Maximum number of accepted connections in their handshake. Further attempts are dropped if a
    /// handshake was completed in the last three seconds, since their clients retry, and otherwise
    /// answered with CONNECTION_REFUSED (RFC 9000 §5.2.2).
    pub max_handshakes: usize,
    /// Maximum number of attempts that wait for the application's decision. Further ones are
    /// dropped if the application has accepted one in the last three seconds, and otherwise
    /// answered with CONNECTION_REFUSED.
    pub max_incoming: usize,
    /// Maximum number of stateless resets per second; a tenth of them may go to one source prefix
    /// (RFC 9000 §10.3.3). Zero: none, so the peers of lost connections wait for their idle
    /// timeout.
    pub stateless_resets_per_second: u32,
    /// Maximum number of connections from clients of one source prefix with a validated address; a
    /// further one is answered with CONNECTION_REFUSED. A handshake from an unvalidated address,
    /// which may be forged, is never refused because of this limit: once the prefix has this many
    /// connections and handshakes, it is answered with a Retry. `None`: no limit, since a whole
    /// carrier can share one address. A connection that migrates counts at its new prefix, and is
    /// never closed because of it.
    pub max_connections_per_prefix: Option<usize>,
    /// Length of an IPv4 source prefix in bits, at most 32.
    pub ipv4_prefix_bits: u8,
    /// Length of an IPv6 source prefix in bits, at most 128.
    pub ipv6_prefix_bits: u8,
    /// Memory that all connections may take, in bytes, as reported through
    /// [`Endpoint::set_memory`](crate::Endpoint::set_memory). From three quarters of it on,
    /// attempts without a valid token are answered with a Retry; at the limit, attempts with a
    /// token are answered with CONNECTION_REFUSED. `None`: no limit.
    pub max_memory: Option<usize>,
    /// Whether to grease the fixed bit of packets (RFC 9287): the transport parameter
    /// `grease_quic_bit` is sent, so that packets with any value of the bit are accepted, and the
    /// bit of this end's 1-RTT packets is random if the peer has sent the parameter too. If not,
    /// packets whose fixed bit is 0 are dropped (RFC 9000 §17.2), which a socket that tells QUIC
    /// from other protocols by this bit requires (RFC 7983).
    pub grease_quic_bit: bool,
}

/// Which of `workers` the first byte of a destination id names: the index that a worker put there
/// or, for an id chosen by a client, an arbitrary but fixed worker. The steering program in the
/// kernel computes the same.
#[must_use]
pub const fn worker_of(first_byte: u8, workers: u8) -> u8 {
    if workers == 0 {
        0
    } else {
        first_byte % workers
    }
}

impl EndpointConfig {
    setters! {
        cid_generator: ConnectionIdGenerator,
        worker_index: u8,
        workers: u8,
        reset_key: [u8; 32],
        max_connections: usize,
        token_key: [u8; 32],
        retry_token_lifetime: Duration,
        new_token_lifetime: Duration,
        unix_time_at_zero: Duration,
        retry_from: usize,
        max_handshakes: usize,
        max_incoming: usize,
        stateless_resets_per_second: u32,
        max_connections_per_prefix: Option<usize>,
        ipv4_prefix_bits: u8,
        ipv6_prefix_bits: u8,
        max_memory: Option<usize>,
        grease_quic_bit: bool,
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// A sentence that names the invalid setting and its bounds.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.workers == 0 {
            return Err("an endpoint must have at least one worker");
        }
        self.cid_generator.check(self.workers.into())?;
        if self.worker_index >= self.workers {
            return Err("a worker's index must be below the number of workers");
        }
        if self.ipv4_prefix_bits > 32 || self.ipv6_prefix_bits > 128 {
            return Err("a source prefix must have at most 32 bits for IPv4 and 128 bits for IPv6");
        }
        Ok(())
    }

    /// The values of the fixed bit that are accepted.
    pub(crate) const fn fixed_bit(&self) -> FixedBit {
        if self.grease_quic_bit {
            FixedBit::Greased
        } else {
            FixedBit::Required
        }
    }

    /// Default settings with the given secret, from which the token key is derived.
    #[must_use]
    pub fn new(reset_key: [u8; 32]) -> Self {
        Self {
            cid_generator: ConnectionIdGenerator::default(),
            worker_index: 0,
            workers: 1,
            reset_key,
            max_connections: 100_000,
            token_key: derived(&reset_key, b"squall token key"),
            retry_token_lifetime: Duration::from_secs(15),
            new_token_lifetime: Duration::from_secs(24 * 3600),
            unix_time_at_zero: Duration::ZERO,
            retry_from: 1000,
            max_handshakes: 10_000,
            max_incoming: 1024,
            stateless_resets_per_second: 1000,
            max_connections_per_prefix: None,
            ipv4_prefix_bits: 32,
            ipv6_prefix_bits: 56,
            max_memory: None,
            grease_quic_bit: true,
        }
    }
}

/// HMAC-SHA-256 of `label`.
fn derived(key: &[u8; 32], label: &[u8]) -> [u8; 32] {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("any length will do");
    mac.update(label);
    mac.finalize().into_bytes().into()
}

impl std::fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointConfig")
            .field("cid_generator", &self.cid_generator)
            .field("max_connections", &self.max_connections)
            .field("retry_from", &self.retry_from)
            .field("max_handshakes", &self.max_handshakes)
            .field("max_incoming", &self.max_incoming)
            .finish_non_exhaustive()
    }
}
