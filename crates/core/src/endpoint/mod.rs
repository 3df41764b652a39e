//! The connection ids of one socket: which run of datagrams belongs to which connection. It owns no
//! connections.
//!
//! ```text
//!  datagrams of a bundle ──► route ──► Connection(handle)   the owner calls Connection::receive
//!                              ├─────► Incoming             accept, retry, refuse or drop
//!                              ├─────► Worker(index)        another worker of the port
//!                              ├─────► Predecessor          the process that had the port before
//!                              ├─────► Respond(datagram)    version negotiation, Retry, refusal,
//!                              │                            stateless reset
//!                              └─────► Discard
//! ```

mod answers;
mod counts;
mod incoming;
mod limits;
mod refusal;
mod route;
mod routes;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use rustls::pki_types::ServerName;
use squall_wire::{ConnectionId, Path};

use crate::config::{ClientConfig, EndpointConfig, LEAST_ORIGINAL_ID, ServerConfig};
use crate::connection::{Connection, Opening, Role, Start};
use crate::event::EndpointEvent;
use crate::path::cid::IdSource;
use crate::prefix::{Prefix, PrefixCounts, PrefixTable};
use crate::reset_directory::ResetTokenDirectory;
use crate::time::Time;
use crate::token::TokenKey;
use crate::token_filter::{SpentTokens, TokenFilter};
use crate::token_store::{MAX_TOKEN_LEN, TokenStore};
use answers::Answers;
pub use counts::EndpointCounts;
use incoming::Undecided;
pub use incoming::{AcceptError, Incoming};
pub use limits::ConnectionCount;
use refusal::Refusals;
pub use refusal::{Refusal, RefusalReason};
pub use route::{Route, Run};
use routes::Routes;

/// Identifies a connection of an endpoint: a small dense number, reused after `Endpoint::remove`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionHandle(pub usize);

/// Why a connection could not be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The server's name is neither a DNS name nor an IP address.
    ServerName(String),
    /// rustls rejected its configuration, or its crypto provider has no suite for QUIC.
    Tls(squall_tls::Error),
    /// A transport setting is out of bounds.
    Config(&'static str),
    /// The endpoint has reached its connection limit.
    TooMany,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerName(name) => write!(f, "'{name}' is neither a DNS name nor an IP address"),
            Self::Tls(error) => write!(f, "{error}"),
            Self::Config(what) => write!(f, "{what}"),
            Self::TooMany => write!(f, "the endpoint has reached its connection limit"),
        }
    }
}

impl std::error::Error for StartError {}

/// What is routed to one connection.
#[derive(Debug, Default)]
struct Slot {
    ids: Vec<ConnectionId>,
    tokens: Vec<[u8; 16]>,
    live: bool,
    /// Where the connection is counted, and whether with a validated address; `None`: nowhere.
    seat: Option<(Prefix, bool)>,
    /// Whether it is a server's connection whose handshake is not complete.
    handshaking: bool,
    /// The server of a client's connection, and where its tokens are stored.
    tokens_of: Option<(Box<str>, Arc<dyn TokenStore>)>,
}

/// The connection ids of one socket.
pub struct Endpoint {
    config: EndpointConfig,
    server: Option<Arc<ServerConfig>>,
    ids: Arc<IdSource>,
    tokens: Arc<TokenKey>,
    rng: StdRng,
    routes: Routes,
    /// Peers choose the tokens: std's keyed hash (`SECURITY.md` row 18).
    reset_tokens: HashMap<[u8; 16], ConnectionHandle>,
    /// The tokens of all workers; `None`: there are no others.
    reset_token_directory: Option<Box<dyn ResetTokenDirectory>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    answers: Answers,
    counts: EndpointCounts,
    token_filter: Box<dyn TokenFilter>,
    /// The connections of all endpoints that share the limit.
    total: ConnectionCount,
    /// Servers' connections by source prefix; used only if they are limited.
    prefixes: Box<dyn PrefixCounts>,
    /// Bytes that all connections take, as reported by the owner.
    memory: usize,
    /// Servers' connections whose handshake is not complete.
    handshakes: usize,
    undecided: Undecided,
    /// When an attempt was last accepted.
    accepted: Option<Time>,
    /// When a handshake was last seen to have completed, and whether one has since.
    completed: Option<Time>,
    has_completed: bool,
    /// `None` unless the owner observes.
    refusals: Option<Refusals>,
    /// Whether another process still has connections of this port.
    has_predecessor: bool,
}

impl Endpoint {
    /// Creates an endpoint; with `server`, it accepts connections. All randomness comes from
    /// `seed`, which must be unpredictable outside tests.
    ///
    /// # Panics
    /// If [`EndpointConfig::check`] rejects `config`.
    #[must_use]
    pub fn new(config: EndpointConfig, server: Option<Arc<ServerConfig>>, seed: [u8; 32]) -> Self {
        let checked = config.check();
        assert!(checked.is_ok(), "{checked:?}");
        let mut rng = StdRng::from_seed(seed);
        let start = rng.next_u64();
        let ids = IdSource::new(&config, start);
        let ids = Arc::new(ids);
        let mut answer_key = [0; 16];
        rng.fill_bytes(&mut answer_key);
        let token_filter = Box::new(SpentTokens::new(config.new_token_lifetime, 1));
        let tokens = Arc::new(TokenKey::new(&config));
        Self {
            answers: Answers::new(answer_key, config.stateless_resets_per_second),
            config,
            server,
            ids,
            tokens,
            rng,
            routes: Routes::new(),
            reset_tokens: HashMap::new(),
            reset_token_directory: None,
            slots: Vec::new(),
            free: Vec::new(),
            counts: EndpointCounts::default(),
            token_filter,
            total: ConnectionCount::default(),
            prefixes: Box::new(PrefixTable::default()),
            memory: 0,
            handshakes: 0,
            undecided: Undecided::default(),
            accepted: None,
            completed: None,
            has_completed: false,
            refusals: None,
            has_predecessor: false,
        }
    }

    /// Replaces the filter of spent NEW_TOKEN tokens (RFC 9000 §8.1.4), by default a
    /// [`SpentTokens`] of this endpoint. Endpoints that share a port and a token key must share a
    /// filter.
    pub fn set_token_filter(&mut self, filter: Box<dyn TokenFilter>) {
        self.token_filter = filter;
    }

    /// Replaces the count of connections that [`EndpointConfig::max_connections`] limits, by
    /// default this endpoint's own. Endpoints that share one share the limit. Call it before the
    /// first connection.
    pub fn set_connection_count(&mut self, count: ConnectionCount) {
        self.total = count;
    }

    /// Replaces the counts of connections by source prefix, by default a [`PrefixTable`] of this
    /// endpoint. Endpoints that share one share the limit. Call it before the first connection.
    pub fn set_prefix_counts(&mut self, counts: Box<dyn PrefixCounts>) {
        self.prefixes = counts;
    }

    /// Sets the memory that all connections take, in bytes, including those of other endpoints that
    /// share the limit: the sum of [`Connection::memory`]. Call it regularly, for example once per
    /// turn.
    pub const fn set_memory(&mut self, bytes: usize) {
        self.memory = bytes;
    }

    /// Sets the directory of reset tokens of all workers of the port.
    pub fn set_reset_token_directory(&mut self, directory: Box<dyn ResetTokenDirectory>) {
        self.reset_token_directory = Some(directory);
    }

    /// Replaces the server configuration for new connections. With `None`, no more connections are
    /// accepted.
    pub fn set_server(&mut self, server: Option<Arc<ServerConfig>>) {
        self.server = server;
    }

    /// Whether another process, from which this endpoint took over the port, still has connections
    /// there. If so, datagrams that neither belong to a connection of this endpoint nor begin one
    /// are returned as [`Route::Predecessor`], instead of being dropped or answered with a
    /// stateless reset. The predecessor's connection ids must have the length of this endpoint's.
    pub const fn set_predecessor(&mut self, exists: bool) {
        self.has_predecessor = exists;
    }

    /// Number of existing connections of this endpoint.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Number of attempts returned by `route` that are not yet accepted, refused or dropped.
    #[must_use]
    pub fn undecided(&self) -> usize {
        self.undecided.count()
    }

    /// Number of accepted connections whose handshake is not complete.
    #[must_use]
    pub const fn handshakes(&self) -> usize {
        self.handshakes
    }

    /// Counts of how datagrams that belong to no connection were handled.
    #[must_use]
    pub const fn counts(&self) -> &EndpointCounts {
        &self.counts
    }

    /// Records refused attempts from now on for [`poll_refusal`](Self::poll_refusal).
    pub fn observe(&mut self) {
        self.refusals.get_or_insert_default();
    }

    /// The next attempt that was refused, since [`observe`](Self::observe). Poll it once a turn: at
    /// most 64 are kept; [`counts`](Self::counts) includes all of them.
    pub fn poll_refusal(&mut self) -> Option<Refusal> {
        self.refusals.as_mut()?.pop()
    }

    fn note_refusal(&mut self, path: Path, reason: RefusalReason) {
        if let Some(refusals) = &mut self.refusals {
            refusals.push(path.remote, reason);
        }
    }

    /// Starts a connection to `path.remote`, which must present a certificate for `server_name`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn connect(
        &mut self,
        now: Time,
        config: ClientConfig,
        path: Path,
        server_name: &str,
    ) -> Result<(ConnectionHandle, Connection), StartError> {
        config.transport.check().map_err(StartError::Config)?;
        if self.is_full() {
            return Err(StartError::TooMany);
        }
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| StartError::ServerName(server_name.to_owned()))?;
        let local_id = self.ids.make(&mut self.rng);
        let remote_id = self.original_destination_id(&config)?;
        let version = config.transport.original_version();
        let store = &config.token_store;
        let token = squall_tls::guarded(|| store.take(server_name, version)).flatten();
        // A longer one would leave too little room in the first packet.
        let token = token.filter(|token| token.len() <= MAX_TOKEN_LEN);
        let start = Start {
            role: Role::Client(Opening {
                tls: config.tls,
                server_name: name,
                token: token.unwrap_or_default(),
            }),
            config: config.transport,
            version,
            path,
            local_id,
            remote_id,
            initial_dcid: remote_id,
            ids: Arc::clone(&self.ids),
            tokens: Arc::clone(&self.tokens),
            rng: self.fork_rng(),
            fixed_bit: self.config.fixed_bit(),
            grease: self.grease(),
        };
        let connection = Connection::new(start, now).map_err(StartError::Tls)?;
        if !self.total.add(self.config.max_connections) {
            return Err(StartError::TooMany);
        }
        let handle = self.occupy(&[local_id]);
        self.slots[handle.0].tokens_of = Some((server_name.into(), config.token_store));
        Ok((handle, connection))
    }

    /// The destination id of a client's first packet (RFC 9000 §7.2): 8 unpredictable bytes or
    /// more.
    fn original_destination_id(
        &mut self,
        config: &ClientConfig,
    ) -> Result<ConnectionId, StartError> {
        let id = match &config.original_destination_id {
            Some(choose) => squall_tls::guarded(|| choose())
                .ok_or(StartError::Config("original_destination_id panicked"))?,
            None => {
                let mut random = [0; LEAST_ORIGINAL_ID];
                self.rng.fill_bytes(&mut random);
                ConnectionId::new(&random).unwrap_or(ConnectionId::EMPTY)
            }
        };
        if id.len() < LEAST_ORIGINAL_ID {
            return Err(StartError::Config(
                "original_destination_id must be 8 to 20 bytes long (RFC 9000 §7.2)",
            ));
        }
        Ok(id)
    }

    /// Applies a connection's event. Returns `false` if the connection must not stay, because its
    /// client's prefix has reached its connection limit; the owner then calls
    /// [`Connection::refuse`].
    pub fn apply(&mut self, handle: ConnectionHandle, event: EndpointEvent) -> bool {
        let Some(slot) = self.slots.get_mut(handle.0).filter(|s| s.live) else {
            return true;
        };
        match event {
            EndpointEvent::AddId(id) => {
                slot.ids.push(id);
                self.routes.insert(id, handle);
            }
            EndpointEvent::RemoveId(id) => {
                slot.ids.retain(|known| *known != id);
                self.routes.remove(&id);
            }
            EndpointEvent::AddResetToken(token) => {
                slot.tokens.push(token);
                self.reset_tokens.insert(token, handle);
                if let Some(directory) = &mut self.reset_token_directory {
                    directory.insert(token, self.config.worker_index);
                }
            }
            EndpointEvent::RemoveResetToken(token) => {
                slot.tokens.retain(|known| *known != token);
                self.forget_reset_token(&token);
            }
            EndpointEvent::HandshakeComplete => {
                self.handshakes -= usize::from(std::mem::take(&mut slot.handshaking));
                self.has_completed = true;
            }
            EndpointEvent::AddressValidated(address) => return self.reseat(handle, address),
            EndpointEvent::NewToken { version, token } => {
                if let Some((name, store)) = &slot.tokens_of {
                    let _ = squall_tls::guarded(|| store.insert(name, version, &token));
                }
            }
        }
        true
    }

    /// Removes a connection; its handle may be reused.
    pub fn remove(&mut self, handle: ConnectionHandle) {
        let Some(slot) = self.slots.get_mut(handle.0).filter(|s| s.live) else {
            return;
        };
        let slot = std::mem::take(slot);
        for id in &slot.ids {
            self.routes.remove(id);
        }
        for token in &slot.tokens {
            self.forget_reset_token(token);
        }
        self.handshakes -= usize::from(slot.handshaking);
        self.leave(slot.seat);
        self.total.remove(1);
        self.free.push(handle.0);
    }

    fn forget_reset_token(&mut self, token: &[u8; 16]) {
        self.reset_tokens.remove(token);
        if let Some(directory) = &mut self.reset_token_directory {
            directory.remove(token);
        }
    }

    /// Makes room for a connection that is counted.
    fn occupy(&mut self, ids: &[ConnectionId]) -> ConnectionHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let handle = ConnectionHandle(index);
        self.slots[index] = Slot {
            ids: ids.to_vec(),
            live: true,
            ..Slot::default()
        };
        for id in ids {
            self.routes.insert(*id, handle);
        }
        handle
    }

    fn fork_rng(&mut self) -> StdRng {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        StdRng::from_seed(seed)
    }

    /// A reserved transport parameter, so that peers keep ignoring unknown ones (RFC 9000 §18.1).
    fn grease(&mut self) -> (u64, u8) {
        let id = 27 + 31 * u64::from(self.rng.next_u32() >> 8);
        (id, (self.rng.next_u32() & 7) as u8)
    }
}

impl Drop for Endpoint {
    /// Its connections end with it, and others may share the counts.
    fn drop(&mut self) {
        self.total.remove(self.connections());
        for slot in std::mem::take(&mut self.slots) {
            self.leave(slot.seat);
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    // test: SECURITY.md row 18: tokens that collide cannot be chosen without knowing the endpoint's
    // own key; ids: `routes`
    #[test]
    fn peers_reset_tokens_are_hashed_with_a_key_per_endpoint() {
        let endpoint = || Endpoint::new(EndpointConfig::new([1; 32]), None, [2; 32]);
        let (one, two) = (endpoint(), endpoint());
        let hash = |e: &Endpoint| e.reset_tokens.hasher().hash_one([7; 16]);
        assert_eq!(hash(&one), hash(&one));
        assert_ne!(hash(&one), hash(&two));
    }
}
