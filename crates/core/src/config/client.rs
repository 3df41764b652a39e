//! Settings of a client connection.

use std::fmt;
use std::sync::Arc;

use squall_wire::ConnectionId;

use super::transport::TransportConfig;
use crate::token_store::{MemoryTokenStore, TokenStore};

/// Makes the destination connection id of a client's first packet.
type ChooseId = Arc<dyn Fn() -> ConnectionId + Send + Sync>;

/// Settings of a client connection.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClientConfig {
    /// An ordinary rustls configuration, built on a provider from `squall_tls`: a built-in one, or
    /// one that it wraps.
    pub tls: Arc<rustls::ClientConfig>,
    /// Transport settings.
    pub transport: Arc<TransportConfig>,
    /// Where tokens for later connections are kept (RFC 9000 §8.1.3). By default a
    /// [`MemoryTokenStore`] that clones of this configuration share.
    pub token_store: Arc<dyn TokenStore>,
    /// See [`original_destination_id`](Self::original_destination_id).
    pub(crate) original_destination_id: Option<ChooseId>,
}

impl ClientConfig {
    /// These TLS settings, with the default transport settings.
    #[must_use]
    pub fn new(tls: impl Into<Arc<rustls::ClientConfig>>) -> Self {
        Self {
            tls: tls.into(),
            transport: Arc::default(),
            token_store: Arc::new(MemoryTokenStore::default()),
            original_destination_id: None,
        }
    }

    /// Sets the transport settings.
    #[must_use]
    pub fn transport(mut self, transport: impl Into<Arc<TransportConfig>>) -> Self {
        self.transport = transport.into();
        self
    }

    /// Sets where tokens for later connections are kept, for example one store for several
    /// configurations, or one that outlives the process.
    #[must_use]
    pub fn token_store(mut self, store: Arc<dyn TokenStore>) -> Self {
        self.token_store = store;
        self
    }

    /// Calls `choose` for the destination connection id of each connection's first packet, instead
    /// of drawing 8 random bytes. It must be 8 to 20 bytes long, or connecting fails, and hard to
    /// guess (RFC 9000 §7.2). A load balancer may route by it, and qlogs are named after it.
    ///
    /// `choose` runs on a worker thread: it must return quickly. If it panics, connecting fails.
    #[must_use]
    pub fn original_destination_id(
        mut self,
        choose: impl Fn() -> ConnectionId + Send + Sync + 'static,
    ) -> Self {
        self.original_destination_id = Some(Arc::new(choose));
        self
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("tls", &self.tls)
            .field("transport", &self.transport)
            .field("token_store", &self.token_store)
            .finish_non_exhaustive()
    }
}
