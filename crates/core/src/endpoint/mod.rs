//! The connection ids of one socket: which run of datagrams belongs to which connection. It owns no connection.
//!
//! ```text
//!  datagrams of a bundle ──► route ──► Connection(handle)   the owner calls Connection::receive with the run
//!                              ├─────► Incoming             accept, refuse or drop
//!                              ├─────► Respond(datagram)    version negotiation, refusal, stateless reset
//!                              └─────► Discard
//! ```

mod incoming;
mod route;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use rustls::pki_types::ServerName;
use squall_tls::Session;
use squall_wire::{ConnectionId, Path, Side, VERSION_1};

use crate::config::{ClientConfig, EndpointConfig, ServerConfig};
use crate::connection::{Connection, Start, declared};
use crate::event::EndpointEvent;
use crate::path::cid::IdSource;
use crate::time::Time;
pub use incoming::{AcceptError, Incoming};
use route::ResponseBudget;
pub use route::{Route, Run};

/// Names a connection of an endpoint: a small dense number, reused after `Endpoint::remove`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionHandle(pub usize);

/// Why a connection could not be begun.
#[derive(Debug)]
pub enum ConnectError {
    /// The server's name is neither a DNS name nor an IP address.
    ServerName(String),
    /// rustls refused, or its configuration was not built from our provider.
    Tls(squall_tls::Error),
    /// A transport setting is out of bounds.
    Config(&'static str),
    /// The endpoint has as many connections as it may have.
    TooMany,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerName(name) => write!(f, "'{name}' is neither a DNS name nor an IP address"),
            Self::Tls(error) => write!(f, "{error}"),
            Self::Config(what) => write!(f, "{what}"),
            Self::TooMany => write!(f, "the endpoint has as many connections as it may have"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// What is routed to one connection.
#[derive(Debug, Default)]
struct Slot {
    ids: Vec<ConnectionId>,
    tokens: Vec<[u8; 16]>,
    live: bool,
}

/// The connection ids of one socket.
pub struct Endpoint {
    config: EndpointConfig,
    server: Option<Arc<ServerConfig>>,
    ids: IdSource,
    rng: StdRng,
    /// Ids may be chosen by a peer (the first destination of a client): std's keyed hash (`threats.md` row 18).
    routes: HashMap<ConnectionId, ConnectionHandle>,
    tokens: HashMap<[u8; 16], ConnectionHandle>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    responses: ResponseBudget,
}

impl Endpoint {
    /// An endpoint; with `server` it takes connections. All randomness comes from `seed`, which must be unpredictable
    /// outside of tests.
    #[must_use]
    pub fn new(config: EndpointConfig, server: Option<Arc<ServerConfig>>, seed: [u8; 32]) -> Self {
        let ids = IdSource {
            len: config.cid_len.clamp(4, ConnectionId::MAX_LEN),
            worker_index: config.worker_index,
            reset_key: config.reset_key,
        };
        Self {
            config,
            server,
            ids,
            rng: StdRng::from_seed(seed),
            routes: HashMap::new(),
            tokens: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            responses: ResponseBudget::default(),
        }
    }

    /// Replaces the server's configuration for connections to come; `None`: no more are taken.
    pub fn set_server(&mut self, server: Option<Arc<ServerConfig>>) {
        self.server = server;
    }

    /// Connections that exist.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Begins a connection to `path.remote`, whose certificate must be for `server_name`.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(
        &mut self,
        now: Time,
        config: ClientConfig,
        path: Path,
        server_name: &str,
    ) -> Result<(ConnectionHandle, Connection), ConnectError> {
        config.transport.check().map_err(ConnectError::Config)?;
        if self.connections() >= self.config.max_connections {
            return Err(ConnectError::TooMany);
        }
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| ConnectError::ServerName(server_name.to_owned()))?;
        let local_id = self.ids.make(&mut self.rng);
        // RFC 9000 §7.2: at least 8 unpredictable bytes.
        let mut first = [0; 8];
        self.rng.fill_bytes(&mut first);
        let remote_id = ConnectionId::new(&first).unwrap_or(ConnectionId::EMPTY);
        let mut params = Vec::with_capacity(128);
        declared(
            Side::Client,
            &config.transport,
            local_id,
            remote_id,
            &self.ids,
        )
        .encode(&mut params, self.grease());
        let tls =
            Session::client(config.tls, VERSION_1, name, params).map_err(ConnectError::Tls)?;
        let start = Start {
            side: Side::Client,
            config: config.transport,
            version: VERSION_1,
            tls,
            path,
            local_id,
            remote_id,
            original_dcid: remote_id,
            ids: self.ids.clone(),
            rng: self.fork_rng(),
        };
        let handle = self.occupy(&[local_id]);
        Ok((handle, Connection::new(start, now)))
    }

    /// Follows what a connection did with its ids.
    pub fn apply(&mut self, handle: ConnectionHandle, event: EndpointEvent) {
        let Some(slot) = self.slots.get_mut(handle.0).filter(|s| s.live) else {
            return;
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
                self.tokens.insert(token, handle);
            }
            EndpointEvent::RemoveResetToken(token) => {
                slot.tokens.retain(|known| *known != token);
                self.tokens.remove(&token);
            }
        }
    }

    /// Forgets a connection; its handle may be given out again.
    pub fn remove(&mut self, handle: ConnectionHandle) {
        let Some(slot) = self.slots.get_mut(handle.0).filter(|s| s.live) else {
            return;
        };
        for id in &slot.ids {
            self.routes.remove(id);
        }
        for token in &slot.tokens {
            self.tokens.remove(token);
        }
        *slot = Slot::default();
        self.free.push(handle.0);
    }

    fn occupy(&mut self, ids: &[ConnectionId]) -> ConnectionHandle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let handle = ConnectionHandle(index);
        self.slots[index] = Slot {
            ids: ids.to_vec(),
            tokens: Vec::new(),
            live: true,
        };
        self.routes.extend(ids.iter().map(|id| (*id, handle)));
        handle
    }

    fn fork_rng(&mut self) -> StdRng {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        StdRng::from_seed(seed)
    }

    /// A reserved transport parameter, so that peers keep ignoring what they do not know (RFC 9000 §18.1).
    fn grease(&mut self) -> Option<(u64, u8)> {
        let id = 27 + 31 * u64::from(self.rng.next_u32() >> 8);
        Some((id, (self.rng.next_u32() & 7) as u8))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}
