//! How connection ids are generated: plainly, or readable by load balancers.

use squall_wire::ConnectionId;

use super::limits::MAX_QUIC_LB_WORKERS;

/// How an endpoint generates the connection ids that it issues.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionIdGenerator {
    /// The worker's index followed by random bytes.
    Plain {
        /// Length in bytes, 4 to 20.
        len: usize,
    },
    /// Ids from which load balancers read the server's number. Up to 32 workers share that number:
    /// the five free bits of the first byte name the worker (draft-ietf-quic-load-balancers §7.2).
    /// As with plain ids, it is visible which of a server's workers a connection is on.
    QuicLb(QuicLb),
}

impl Default for ConnectionIdGenerator {
    /// Plain ids of 8 bytes.
    fn default() -> Self {
        Self::Plain { len: 8 }
    }
}

impl ConnectionIdGenerator {
    /// Length of every id in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain { len } => *len,
            Self::QuicLb(config) => 1 + config.plaintext_len(),
        }
    }

    /// Always `false`: a connection without its own id could not be distinguished from others on
    /// the socket.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks the settings for an endpoint with this many workers.
    ///
    /// # Errors
    /// A sentence that names the invalid setting and its bounds.
    pub fn check(&self, workers: usize) -> Result<(), &'static str> {
        match self {
            Self::Plain { len } if !(4..=ConnectionId::MAX_LEN).contains(len) => {
                Err("connection ids must be 4 to 20 bytes long")
            }
            Self::Plain { .. } => Ok(()),
            Self::QuicLb(config) if workers > 1 && config.encode_length => Err(
                "QUIC-LB ids that encode their length have no room for a worker: turn \
                     encode_length off, or use one worker",
            ),
            Self::QuicLb(_) if workers > MAX_QUIC_LB_WORKERS => {
                Err("QUIC-LB ids can distinguish at most 32 workers")
            }
            Self::QuicLb(config) => config.check(),
        }
    }
}

// An encrypted server id does not belong in a log, and neither does its key.
impl std::fmt::Debug for ConnectionIdGenerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain { len } => f.debug_struct("Plain").field("len", len).finish(),
            Self::QuicLb(config) => f
                .debug_struct("QuicLb")
                .field("rotation", &config.rotation)
                .field("len", &self.len())
                .finish_non_exhaustive(),
        }
    }
}

/// A configuration of draft-ietf-quic-load-balancers, shared by a server and its load balancers.
///
/// ```
/// let ids = squall_core::QuicLb::new(0, [0x12, 0x34], 8).key([7; 16]);
/// let generator = squall_core::ConnectionIdGenerator::QuicLb(ids);
/// assert_eq!(generator.len(), 11);
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuicLb {
    /// The configuration's rotation number, 0 to 6 (§3.1).
    pub rotation: u8,
    /// This server's id, unique within the configuration; at least 1 byte (§5.1).
    pub server_id: Vec<u8>,
    /// Length of the nonce that makes ids unique: at least 4 bytes, without a key at least 8;
    /// together with the server id at most 19 (§5.3).
    pub nonce_len: usize,
    /// Encrypts the server id. `None`: any observer can tell which server a connection is on.
    pub key: Option<[u8; 16]>,
    /// Whether the first byte contains the length of the rest, for crypto offload (§3.3). It then
    /// has no room for a worker.
    pub encode_length: bool,
}

impl QuicLb {
    /// A configuration without a key.
    #[must_use]
    pub fn new(rotation: u8, server_id: impl Into<Vec<u8>>, nonce_len: usize) -> Self {
        Self {
            rotation,
            server_id: server_id.into(),
            nonce_len,
            key: None,
            encode_length: false,
        }
    }

    /// Sets [`key`](field@Self::key).
    #[must_use]
    pub fn key(mut self, key: [u8; 16]) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets [`encode_length`](field@Self::encode_length).
    #[must_use]
    pub fn encode_length(mut self, on: bool) -> Self {
        self.encode_length = on;
        self
    }

    pub(crate) fn plaintext_len(&self) -> usize {
        self.server_id.len() + self.nonce_len
    }

    /// Checks the requirements of the draft.
    pub(crate) fn check_fields(&self) -> Result<(), &'static str> {
        if self.rotation > 6 {
            return Err("rotation must be 0 to 6: 7 means that there is no configuration");
        }
        if self.server_id.is_empty() || self.nonce_len < 4 {
            return Err("a server id must have at least 1 byte, and a nonce at least 4 bytes");
        }
        if self.plaintext_len() >= ConnectionId::MAX_LEN {
            return Err("server id and nonce together must have at most 19 bytes");
        }
        Ok(())
    }

    fn check(&self) -> Result<(), &'static str> {
        self.check_fields()?;
        // A shorter random nonce would repeat among a few tens of thousands of connections.
        if self.key.is_none() && self.nonce_len < 8 {
            return Err("without a key, the nonce is random and must have at least 8 bytes");
        }
        Ok(())
    }
}
