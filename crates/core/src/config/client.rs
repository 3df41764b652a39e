//! Settings of a client connection.

use std::sync::Arc;

use super::transport::TransportConfig;
use crate::token_store::{MemoryTokenStore, TokenStore};

/// Settings of a client connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientConfig {
    /// A regular rustls configuration, built on a provider of `squall_tls`: a built-in one, or one
    /// that it has wrapped.
    pub tls: Arc<rustls::ClientConfig>,
    /// Transport settings.
    pub transport: Arc<TransportConfig>,
    /// Where tokens for later connections are kept (RFC 9000 §8.1.3). By default a
    /// [`MemoryTokenStore`] that clones of this configuration share.
    pub token_store: Arc<dyn TokenStore>,
}

impl ClientConfig {
    /// These TLS settings, with the default transport settings.
    #[must_use]
    pub fn new(tls: impl Into<Arc<rustls::ClientConfig>>) -> Self {
        Self {
            tls: tls.into(),
            transport: Arc::default(),
            token_store: Arc::new(MemoryTokenStore::default()),
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
}
